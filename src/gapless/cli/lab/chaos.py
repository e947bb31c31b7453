"""``gapless chaos``: kill the processes of a whole pipeline, and check the table it writes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from gapless.cli.group_options import note
from gapless.cli.parameters import SHARE
from gapless.cli.rendering import console, json_option, make_table, print_json
from gapless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gapless_lab.chaos.plan import ChaosPlan
    from gapless_lab.chaos.runner import ChaosResult

MAX_SHOWN = 20
"""Maximum number of findings that are printed of each seed."""


@click.command()
@click.option(
    "--seeds",
    default=20,
    show_default=True,
    metavar="N",
    type=click.IntRange(1, 100_000),
    help="How many seeds.",
)
@click.option(
    "--first", default=1, show_default=True, metavar="N", type=int, help="The first of them."
)
@click.option(
    "--seed",
    "only",
    metavar="N",
    type=int,
    help="Run this seed alone, such as one that has failed.",
)
@click.option("--producers", default=2, show_default=True, metavar="N", type=int, help="Producers.")
@click.option(
    "--rate",
    default=100,
    show_default=True,
    metavar="N",
    type=int,
    help="Messages a second of each.",
)
@click.option(
    "--loss",
    default="2%",
    show_default=True,
    type=SHARE,
    help="Datagrams to lose.",
)
@click.option(
    "--group-kills",
    default=4,
    show_default=True,
    metavar="N",
    type=int,
    help="Of producers and collector.",
)
@click.option(
    "--spark-kills",
    default=3,
    show_default=True,
    metavar="N",
    type=int,
    help="Of driver and executors.",
)
@click.option(
    "--back-pressure",
    is_flag=True,
    help="Stop Spark until the spool is full, instead of killing anything.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where it all happens; a temporary folder by default.",
)
@click.option(
    "--keep", is_flag=True, help="Keep the folders of all seeds, not only of those that fail."
)
@json_option
def chaos(
    *,
    seeds: int,
    first: int,
    only: int | None,
    back_pressure: bool,
    folder: Path | None,
    keep: bool,
    as_json: bool,
    **drawn: Any,
) -> int:
    """Kill producers, the collector, the Spark driver and executors, and check the table.

    Each seed draws the victims and the moments. The processes are real: producers on a network that
    loses datagrams, gapless collect, and a Spark cluster on this machine that writes a table of
    Parquet files. In the end every acknowledged message has to be in the table once, and each
    stream in order. The exit code is 1 if that is not so; the folder of a seed that fails is kept.
    """
    try:
        import gapless_lab.chaos.runner as running
        from gapless_lab.chaos.plan import ChaosPlan
    except ImportError as error:
        raise ConfigError(
            f"{error}: gapless chaos needs Spark; pip install 'gapless[spark]'"
        ) from None

    if not Path("/proc/self/stat").exists():
        raise ConfigError(
            "gapless chaos finds the processes that it kills under /proc; run it on Linux"
        )
    numbers = range(first, first + seeds) if only is None else [only]
    if back_pressure:
        numbers = numbers[:1]
    plans = [ChaosPlan(seed=number, **drawn) for number in numbers]
    found: list[ChaosResult] = []
    with _progress(plans, quiet=as_json) as show:
        for result in running.chaos(
            plans, folder=folder, keep=keep, back_pressure=back_pressure, on_progress=show
        ):
            found.append(result)
            show(result.seed, "")
            if not as_json and not sys.stderr.isatty():
                note(_line(result))
    sound = all(result.is_sound for result in found)
    if as_json:
        seeds_told = [result.as_dict() for result in found]
        print_json({"seeds": seeds_told, "totals": running.totals(found), "sound": sound})
    else:
        _show(found, running.totals(found))
    return 0 if sound else 1


@contextmanager
def _progress(plans: list[ChaosPlan], *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that shows the phase of a seed; an empty phase means the seed is done."""
    if quiet or not sys.stderr.isatty():
        yield lambda _seed, _what: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Spark starts", total=len(plans))

        def show(seed: int, what: str) -> None:
            progress.update(
                task, description=f"seed {seed}: {what or 'done'}", advance=0 if what else 1
            )

        yield show


def _line(result: ChaosResult) -> str:
    verdict = result.verdict
    struck = (
        ", ".join(f"{victim} {count}" for victim, count in result.kills.items() if count)
        or "nobody"
    )
    figures = f"{verdict.acknowledged:,} acknowledged, {verdict.rows:,} rows"
    wrong = (
        "sound"
        if result.is_sound
        else f"WRONG, see {result.folder}: {'; '.join(verdict.findings[:3])}"
    )
    return f"seed {result.seed}: killed {struck}; {figures}; {result.seconds['all']:.0f} s; {wrong}"


def _show(results: list[ChaosResult], totals: dict[str, Any]) -> None:
    screen = console()
    rows = [
        (
            str(result.seed),
            _kills(result.kills),
            *_figures(vars(result.verdict)),
            result.seconds["all"],
            result.is_sound,
        )
        for result in results
    ]
    spent_s = round(sum(result.seconds["all"] for result in results), 1)
    sound = all(result.is_sound for result in results)
    rows.append(("all", _kills(totals["kills"]), *_figures(totals), spent_s, sound))
    columns = ("seed", "kills", "acked", "rows", "missing", "repeated", "other", "s", "sound")
    screen.print(make_table("Killed under load, and what the table has", columns, rows))
    screen.print(
        "kills of: producer, collector, driver, executor, Python worker, source beside the driver",
        style="dim",
    )
    for result in results:
        if result.pressure is not None:
            _show_pressure(result.pressure)
        if not result.is_sound:
            screen.print(
                f"seed {result.seed} is in {result.folder}; once more: {result.plan.replay_command}"
            )
            for finding in result.verdict.findings[:MAX_SHOWN]:
                screen.print(f"  {finding}", style="red", markup=False)


def _kills(kills: Mapping[str, int]) -> str:
    return " ".join(f"{count}{victim[0]}" for victim, count in kills.items() if count) or "none"


def _figures(found: Mapping[str, Any]) -> tuple[int, ...]:
    other = sum(found[name] for name in ("out_of_order", "damaged", "foreign"))
    return (*(found[name] for name in ("acknowledged", "rows", "missing", "repeated")), other)


def _show_pressure(seen: Mapping[str, Any]) -> None:
    memory = [
        (
            name,
            *(round(size_bytes / 1e6, 1) for size_bytes in (samples[0], max(samples), samples[-1])),
        )
        for name, samples in seen["memory"].items()
        if samples
    ]
    rows = [(key.replace("_", " "), value) for key, value in seen.items() if key != "memory"]
    console().print(make_table("Spark stopped, the spool full", ("what", "found"), rows))
    console().print(
        make_table(
            "Memory while everything waited, MB", ("process", "first", "most", "last"), memory
        )
    )

"""``gapless chaos``: kill the processes of a Spark pipeline, and check the table."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import note
from gapless.cli.lab.common import (
    MAX_SHOWN,
    flag_option,
    folder_option,
    loss_option,
    number_option,
    print_findings,
    print_result,
    print_table,
)
from gapless.cli.rendering import console, json_option, progress_bar, spark_extra_needed
from gapless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless_lab.chaos.runner import ChaosResult


@click.command()
@number_option("--seeds", default=20, type=click.IntRange(1, 100_000), help="Number of seeds.")
@number_option("--first", default=1, help="The first seed.")
@number_option("--seed", "only", help="Run only this seed, for example to repeat a failure.")
@number_option("--producers", default=2, help="Number of producers.")
@number_option("--rate", default=100, help="Messages a second of each producer.")
@loss_option(default="2%")
@number_option("--group-kills", default=4, help="Kills of producers and the collector.")
@number_option("--spark-kills", default=3, help="Kills of driver, executors, Python workers.")
@flag_option("--back-pressure", help="Stop Spark until the spool is full; kill no processes.")
@folder_option("--folder", help="Working folder; a temporary folder by default.")
@flag_option("--keep", help="Keep the folders of all seeds, not only of failed seeds.")
@json_option
def chaos(*, seeds: int, first: int, only: int | None, as_json: bool, **options: Any) -> int:
    """Kill producers, the collector, the Spark driver and executors, and check the table.

    Each seed draws the victims and the moments. The processes are real: producers on a lossy
    network, gapless collect, and a local Spark cluster writing a table of Parquet files. At the end
    every acknowledged message has to be in the table exactly once, and each stream in order; else
    the exit code is 1. The folder of a failed seed is kept.
    """
    with spark_extra_needed("gapless chaos needs Spark"):
        import gapless_lab.chaos.runner as running
        from gapless_lab.chaos.plan import ChaosPlan

    if not Path("/proc/self/stat").exists():
        raise ConfigError(
            "gapless chaos finds the processes that it kills under /proc; run it on Linux"
        )
    numbers = range(first, first + seeds) if only is None else [only]
    if options["back_pressure"]:
        numbers = numbers[:1]
    folder, keep = options.pop("folder"), options.pop("keep")
    plans = [ChaosPlan(seed=number, **options) for number in numbers]
    found: list[ChaosResult] = []
    with progress_bar("Spark starts", len(plans), quiet=as_json) as progress:
        for result in running.chaos(
            plans,
            folder=folder,
            keep=keep,
            on_progress=lambda seed, what: progress(len(found), f"seed {seed}: {what}"),
        ):
            found.append(result)
            progress(len(found), f"seed {result.plan.seed}: done")
            if not as_json and not sys.stderr.isatty():
                note(_line(result))
    totals = running.totals(found)
    sound = all(result.is_sound for result in found)
    return print_result(
        {"seeds": [result.as_dict() for result in found], "totals": totals, "sound": sound},
        partial(_show, found, totals),
        is_sound=sound,
        as_json=as_json,
    )


def _line(result: ChaosResult) -> str:
    verdict, found = result.verdict, "sound"
    struck = ", ".join(f"{victim} {count}" for victim, count in result.kills.items() if count)
    figures = f"{verdict.acknowledged:,} acknowledged, {verdict.rows:,} rows"
    if not result.is_sound:
        found = f"WRONG, see {result.folder}: {'; '.join(verdict.findings[:3])}"
    took = f"{result.seconds['all']:.0f} s"
    return f"seed {result.plan.seed}: killed {struck or 'nobody'}; {figures}; {took}; {found}"


def _show(results: list[ChaosResult], totals: dict[str, Any]) -> None:
    screen = console()
    rows = [
        (
            str(result.plan.seed),
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
    print_table("Killed under load, and what the table has", columns, rows)
    screen.print(
        "kills of: producer, collector, driver, executor, Python worker, source beside the driver",
        style="dim",
    )
    for result in results:
        if result.pressure is not None:
            _show_pressure(result.pressure)
        if not result.is_sound:
            replay = result.plan.replay_command
            screen.print(f"seed {result.plan.seed} is in {result.folder}; once more: {replay}")
            print_findings(result.verdict.findings[:MAX_SHOWN], indent="  ")


def _kills(kills: Mapping[str, int]) -> str:
    return " ".join(f"{count}{victim[0]}" for victim, count in kills.items() if count) or "none"


def _figures(found: Mapping[str, Any]) -> tuple[int, ...]:
    other = sum(found[name] for name in ("out_of_order", "damaged", "foreign"))
    return (*(found[name] for name in ("acknowledged", "rows", "missing", "repeated")), other)


def _show_pressure(seen: Mapping[str, Any]) -> None:
    memory = [
        (name, *(round(size / 1e6, 1) for size in (samples[0], max(samples), samples[-1])))
        for name, samples in seen["memory"].items()
        if samples
    ]
    rows = [(key.replace("_", " "), value) for key, value in seen.items() if key != "memory"]
    print_table("Spark stopped, the spool full", ("what", "found"), rows)
    columns = ("process", "first", "most", "last")
    print_table("Memory while everything waited, MB", columns, memory)

"""``gapless sweep``: simulated runs by the thousand, spread over Spark."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from gapless import __version__
from gapless.cli.group_options import graceful_interrupt
from gapless.cli.interrupts import EXIT_INTERRUPTED
from gapless.cli.parameters import MAX_SEED, available_cores
from gapless.cli.rendering import (
    console,
    json_option,
    make_table,
    master_option,
    mutant_option,
    print_json,
    resolve_mutant,
)
from gapless.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark_gapless.sweep.cell import SweepCell
    from pyspark_gapless.sweep.runner import SweepOutcome, SweepPlan, SweepProgress
    from pyspark_gapless.sweep.summary import CellSummary, HuntSummary, SweepSummary

    Figure = Callable[[CellSummary], str]

SHOWN_FAILURES = 10
"""Maximum number of failures that are printed; --json and the table of results have more."""
GRID_SEEDS, HUNT_SEEDS = 10, 300
"""Seeds of each cell, by default."""
ENDING = "what is under way is still kept"


@click.command()
@click.option(
    "--grid",
    "grid_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with the cells.",
)
@click.option("--preset", metavar="NAME", help="Built-in grids: protocols or hunt.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100_000_000),
    metavar="N",
    help=f"Seeds for each cell.  [default: {GRID_SEEDS}; {HUNT_SEEDS} for a hunt]",
)
@click.option(
    "--first",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    help="The first seed of each cell.",
)
@click.option(
    "--output",
    default="gapless-sweep",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the results; runs with a result are not repeated.",
)
@master_option
@click.option("--no-spark", is_flag=True, help="Use local processes instead of Spark.")
@click.option(
    "--workers", type=click.IntRange(1, 256), help="Number of processes, with --no-spark."
)
@click.option(
    "--print-grid",
    is_flag=True,
    help="Print the grid file of the --preset, as a template.",
)
@mutant_option
@json_option
def sweep(  # noqa: PLR0917 - one parameter per option
    grid_file: Path | None,
    preset: str | None,
    seeds: int | None,
    first: int,
    output: Path,
    master: str | None,
    no_spark: bool,
    workers: int | None,
    print_grid: bool,
    mutant: str,
    as_json: bool,
) -> int:
    """Run every cell of a grid with many seeds, on Spark, and keep a row of results for each run.

    A grid file names profiles, group sizes, losses and settings; every combination is a cell. The
    preset "protocols" compares all profiles; "hunt" draws whole groups and faults from the seeds
    and looks for violations. A stopped or killed sweep continues when started again with the same
    --output. Failed runs are listed with the commands to repeat and shrink each. The exit code is 1
    after a failed run, or if a hunt of all profiles never saw a required situation.
    """
    if (grid_file is None) == (preset is None):
        raise click.UsageError("give either a --grid FILE or a --preset: protocols or hunt")
    _check_spark_options(master, workers, no_spark=no_spark)
    from pyspark_gapless.sweep import grid_file as grid
    from pyspark_gapless.sweep.runner import SweepPlan, run

    if print_grid:
        if preset is None:
            raise click.UsageError("--print-grid prints the grid of a --preset")
        click.echo(grid.preset(preset), nl=False)
        return 0
    cells = (
        grid.load_grid(grid_file)
        if grid_file is not None
        else grid.read_grid(grid.preset(preset or ""))
    )
    cells = grid.with_mutant(cells, resolve_mutant(mutant))
    count = seeds or (
        HUNT_SEEDS if all(cell.loss_percent is None for cell in cells) else GRID_SEEDS
    )
    last = first + count
    if last > MAX_SEED:
        raise click.UsageError(
            f"--first {first} with {count} seeds goes beyond the last one, {MAX_SEED}"
        )
    plan = SweepPlan(
        cells,
        range(first, last),
        output,
        master,
        (workers or available_cores()) if no_spark else None,
    )
    stop = threading.Event()
    began_s = perf_counter()
    with graceful_interrupt(stop, ENDING), _shown(spark=not no_spark, quiet=as_json) as on_progress:
        done = run(plan, on_progress, stop)
    wall_s = perf_counter() - began_s
    if as_json:
        print_json(as_dict(plan, done, wall_s))
    else:
        show(plan, done, wall_s)
    if stop.is_set():
        return EXIT_INTERRUPTED
    return 0 if done.summary.ok and not done.summary.missing else 1


def _check_spark_options(master: str | None, workers: int | None, *, no_spark: bool) -> None:
    if master is not None and no_spark:
        raise click.UsageError(
            "--master says where Spark runs, and --no-spark that it does not; give one of them"
        )
    if workers is not None and not no_spark:
        raise click.UsageError(
            "--workers goes with --no-spark; Spark has as many as its --master says"
        )


@contextmanager
def _shown(*, spark: bool, quiet: bool) -> Iterator[Callable[[SweepProgress], None]]:
    """Show the progress if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}", markup=False),
    )
    # A copy of the descriptor: while Spark starts, the other one leads to its log.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
        screen = console(file=file, force_terminal=True)
        with Progress(*columns, console=screen, transient=True) as progress:
            task = progress.add_task("Spark starts" if spark else "runs", total=None, speed="")

            def show(status: SweepProgress) -> None:
                failed = f", {status.failed:,} failed" if status.failed else ""
                label = (
                    f"runs{failed}" if status.done > status.before or not spark else "Spark starts"
                )
                progress.update(
                    task,
                    total=status.total,
                    completed=status.done,
                    speed=progress_text(status),
                    description=label,
                )

            yield show


def progress_text(status: SweepProgress) -> str:
    """Return the rate and the remaining time; empty before the first runs are done."""
    if status.done == status.before:
        return ""
    left_s = round((status.total - status.done) / status.per_s)
    hours, minutes = left_s // 3600, left_s // 60 % 60
    left = f"{hours}:{minutes:02}:{left_s % 60:02}" if hours else f"{minutes}:{left_s % 60:02}"
    return f"{status.per_s:,.1f}/s, {left} left"


# What is printed


def as_dict(plan: SweepPlan, done: SweepOutcome, wall_s: float) -> dict[str, Any]:
    """Return the output of ``--json``."""
    from pyspark_gapless.sweep.cell import code_digest

    progress = done.progress
    return {
        "output": str(plan.output),
        "version": __version__,
        "code": code_digest(),
        "first": plan.seeds.start,
        "seeds": len(plan.seeds),
        "spark": plan.workers is None,
        "slots": done.slots,
        "done_before": progress.before,
        "done_by_other_code": done.other_code_runs,
        "done_now": progress.done - progress.before,
        "wall_seconds": round(wall_s, 3),
        "runs_per_second": round(progress.per_s, 2) if progress.done > progress.before else None,
        **done.summary.as_dict(),
    }


def show(plan: SweepPlan, done: SweepOutcome, wall_s: float) -> None:
    """Print the result of a sweep."""
    screen, summary, progress = console(), done.summary, done.progress
    if summary.cells:
        each = {part.runs for part in summary.cells}
        screen.print(
            f"{len(summary.cells):,} cells, {min(each):,} runs of each"
            + (" or more" if len(each) > 1 else "")
        )
        for title, figures in TABLES.items():
            screen.print(*grid_lines(title, summary.cells, figures), sep="\n", soft_wrap=True)
    if summary.hunts:
        show_hunts(summary.hunts)
    show_failures(summary)
    now = progress.done - progress.before
    before = f", {progress.before:,} were there" if progress.before else ""
    progress_text = f" at {progress.per_s:.1f}/s" if now else ""
    screen.print(
        f"{now:,} runs{progress_text} in {wall_s:.1f} s{before}; results: {plan.output / 'runs'}",
        soft_wrap=True,
    )
    if done.other_code_runs:
        other = f"{done.other_code_runs:,} of the runs present are of other code and do not count"
        screen.print(other, style="yellow")
    if summary.missing:
        screen.print(
            f"{summary.missing:,} runs are still to do: the same command goes on", style="yellow"
        )
    verdict = f"{summary.violations:,} violations in {summary.runs:,} runs"
    failed = f", {summary.failed:,} runs failed" if summary.failed else ""
    screen.print(
        verdict + failed, style="bold green" if summary.ok else "bold red", highlight=False
    )


def _axes(cells: Sequence[SweepCell]) -> list[str]:
    """Return the varying columns; the last column varies within a section."""
    conditions = [cell.describe() for cell in cells]
    names = list(dict.fromkeys(name for each in conditions for name in each))
    differ = [name for name in names if len({each.get(name, "") for each in conditions}) > 1]
    if "profile" in differ or not differ:
        differ = [*(name for name in differ if name != "profile"), "profile"]
    return differ


def grid_lines(
    title: str, parts: Sequence[CellSummary], figures: Mapping[str, Figure]
) -> list[Text]:
    """Return a line for each cell, in sections of equal conditions."""
    *outer, inner = _axes([part.cell for part in parts])
    sections: dict[str, list[CellSummary]] = {}
    for part in parts:
        conditions = part.cell.describe()
        sections.setdefault(
            ", ".join(f"{name} {conditions[name]}" for name in outer if conditions.get(name)), []
        ).append(part)
    idle = {"runs"} if len({part.runs for part in parts}) == 1 else set()
    idle |= set() if any(part.sums["stalls"] for part in parts) else {"stalls"}
    chosen = {name: figure for name, figure in figures.items() if name not in idle}
    table = [
        (part.cell.describe().get(inner, ""), *(figure(part) for figure in chosen.values()))
        for part in parts
    ]
    widths = [max(map(len, column)) for column in zip((inner, *chosen), *table, strict=True)]
    rows = dict(zip(map(id, parts), table, strict=True))
    lines = [Text(title, "italic"), Text(_aligned((inner, *chosen), widths), "bold")]
    for condition, members in sections.items():
        lines += [Text(condition, "dim")] if condition else []
        lines += [
            Text(_aligned(rows[id(part)], widths), "red" if part.failed else "") for part in members
        ]
    return lines


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (text.rjust(width) for text, width in zip(row, widths, strict=True))
    return "  ".join(["", first.strip().ljust(widths[0]), *rest])


def _share(part: CellSummary) -> str:
    """Return the delivered share; only a complete delivery is 100 %."""
    delivered, expected = part.sums["delivered"], part.sums["expected"]
    return (
        "100 %"
        if delivered == expected
        else f"{min(100 * delivered / max(1, expected), 99.9):.1f} %"
    )


def _per_loss(part: CellSummary) -> str:
    repairs = part.repairs_per_loss()
    return "-" if repairs is None else f"{repairs:.2f}"


def _ms(value_ns: int | None) -> str:
    return "never" if value_ns is None else f"{value_ns / NS_PER_MS:,.1f}"


TABLES: dict[str, dict[str, Figure]] = {
    "Delivery; times are virtual": {
        "runs": lambda part: f"{part.runs:,}",
        "got": _share,
        "per s": lambda part: f"{part.per_second():,.0f}",
        "p50 ms": lambda part: _ms(part.percentile_ns(50)),
        "p99 ms": lambda part: _ms(part.percentile_ns(99)),
        "max ms": lambda part: _ms(part.maxima.get("max_ns")),
        "window": lambda part: f"{part.maxima.get('peak_window', 0):,}",
        "stalls": lambda part: f"{part.sums['stalls']:,}",
        "failed": lambda part: f"{part.failed:,}",
    },
    "Cost: repairs for each lost frame; frames and bytes for each delivery": {
        "repairs": _per_loss,
        "acks": lambda part: f"{part.per_message('ack'):.3f}",
        "naks": lambda part: f"{part.per_message('nak'):.3f}",
        "tails": lambda part: f"{part.per_message('tail'):.3f}",
        "votes": lambda part: f"{part.per_message('stability'):.3f}",
        "all": lambda part: f"{part.frames.total() / max(1, part.sums['delivered']):.3f}",
        "bytes": lambda part: f"{part.sizes_bytes.total() / max(1, part.sums['delivered']):.1f}",
    },
}
"""The tables of a grid, by title, with the figures of their columns."""


def show_hunts(hunts: Sequence[HuntSummary]) -> None:
    """Print the counters of the hunts, side by side."""
    screen = console()
    names = [hunt.kind for hunt in hunts]
    books = [hunt.as_dict() for hunt in hunts]
    plain = (
        "seeds",
        "events",
        "steps",
        "messages",
        "simulated_seconds",
        "failed",
        "violations",
        "digest",
    )
    rows = [(name.replace("_", " "), *(_cell(book[name]) for book in books)) for name in plain]
    rows += [
        (name, *(_counts(book[name]) for book in books)) for name in ("profiles", "characters")
    ]
    screen.print(make_table("Groups drawn from seeds", ("what", *names), rows))
    faults = sorted({fault for book in books for fault in book["faults"]})
    struck = [(fault, *(book["faults"].get(fault, 0) for book in books)) for fault in faults]
    screen.print(make_table("Faults that struck", ("fault", *names), struck))
    for hunt in hunts:
        seen = len(hunt.must_happen) - len(hunt.never_seen)
        screen.print(
            f"{hunt.kind}: {seen} of {len(hunt.must_happen)} situations that must happen were seen"
        )
        if hunt.never_seen:
            style = "red" if hunt.is_thorough else "yellow"
            screen.print(
                f"  never seen: {', '.join(hunt.never_seen)}",
                style=style,
                soft_wrap=True,
                highlight=False,
            )
        if not hunt.failed and hunt.runs:
            share = f"{100 * hunt.failure_rate_bound:.2g} %"
            screen.print(
                f"  no violation: at 95 % confidence a bug shows in fewer than {share} of such "
                f"runs",
                highlight=False,
            )


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{key} {count:,}" for key, count in counted.items())


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def show_failures(summary: SweepSummary) -> None:
    """Print the failed runs, with the commands to repeat and shrink each."""
    screen = console()
    for failure in summary.failures[:SHOWN_FAILURES]:
        drawn = f" ({failure.profile})" if failure.profile else ""
        screen.print(
            f"seed {failure.seed}{drawn}: {failure.description}",
            style="red",
            soft_wrap=True,
            markup=False,
        )
        for name, command in (("replay", failure.replay), ("shrink", failure.shrink)):
            if command is not None:
                screen.print(f"  {name}: {command}", soft_wrap=True, markup=False, highlight=False)
    if summary.failed > SHOWN_FAILURES:
        screen.print(f"… and {summary.failed - SHOWN_FAILURES:,} more: --json lists them")

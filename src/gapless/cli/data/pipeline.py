"""``gapless pipeline``: from producers on a lossy group to tables, every message once."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gapless.cli.data.collect import short_size
from gapless.cli.group_options import graceful_interrupt, signals_and_logs_handled
from gapless.cli.parameters import MAX_SEED, SECONDS, SHARE
from gapless.cli.rendering import console, docs_page, json_option, make_table, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless_lab.sensor_pipeline.report import PipelineReport
    from gapless_lab.sensor_pipeline.runner import PipelineProgress

LOG_INTERVAL_S = 1.0
"""How long between two lines without a terminal, and between two samples of speed."""
BAR = 60
ENDING = "what is collected still goes into the tables"
RIGHT = ("rows", "rows/s")


@click.command()
@click.option(
    "--output",
    default="gapless-pipeline",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where everything is kept.",
)
@click.option(
    "--producers", default=3, show_default=True, metavar="N", type=int, help="Members that send."
)
@click.option(
    "--messages",
    metavar="N",
    type=int,
    help="Of each, over all runs; 20000, or no end with --follow.",
)
@click.option(
    "--rate",
    default=2000.0,
    show_default=True,
    metavar="N",
    type=float,
    help="Of each a second; 0: no limit.",
)
@click.option(
    "--loss",
    default="5%",
    show_default=True,
    type=SHARE,
    help="Datagrams to lose.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, MAX_SEED),
    help="Of readings and losses; 1 for a new DIR.",
)
@click.option("--seconds", type=SECONDS, help="Send and follow for so long at most.")
@click.option(
    "--master", metavar="URL", help=f"Where Spark runs; local[*] by default: {docs_page('spark')}"
)
@click.option(
    "--group", default="", metavar="NAME", help="Collect what this group sends; no producers."
)
@click.option(
    "--discover",
    metavar="WHERE",
    help=f"Where the members of --group could be: {docs_page('discovery')}",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Read this spool; no collector either.",
)
@click.option("--once", is_flag=True, help="Take what is there and end.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C; producers send without end.")
@json_option
def pipeline(*, rate: float, messages: int | None, as_json: bool, **options: Any) -> int:
    """Send readings through a lossy group into tables: bronze raw, silver typed, gold by minute.

    Tables, checkpoints and the spool are in --output; the next run with the same one goes on where
    this one stopped, also if it was killed. At the end bronze is compared with what was
    acknowledged; the exit code is 1 if something is lost or repeated.
    """
    from gapless_lab.sensor_pipeline.plan import MESSAGES, PipelinePlan
    from gapless_lab.sensor_pipeline.runner import run

    if messages is None and not options["follow"]:
        messages = MESSAGES
    plan = PipelinePlan(rate=rate or None, messages=messages, **options)
    stop = threading.Event()
    with (
        signals_and_logs_handled(quiet=as_json),
        graceful_interrupt(stop, ENDING),
        _shown(plan.output, quiet=as_json) as tell,
    ):
        report = run(plan, tell, stop)
    if as_json:
        print_json(report.as_dict())
    else:
        show(report)
    return 0 if report.is_exact else 1


# While it runs


@contextmanager
def _shown(output: Path, *, quiet: bool) -> Iterator[Callable[[PipelineProgress], None]]:
    """Show the progress on standard error: live on a terminal, else a line a second."""
    if quiet:
        yield lambda _: None
        return
    # A copy of the descriptor: while Spark starts, the other one leads to its log.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
        screen = Console(file=file)
        speeds = Speeds()
        if not screen.is_terminal:
            yield partial(_write_line, screen, speeds)
            return
        with Live(console=screen, auto_refresh=False, transient=True) as live:
            yield partial(_update, live, speeds, output)


class Speeds:
    """Rows per second, from two samples at least a second apart."""

    def __init__(self) -> None:
        self._before: PipelineProgress | None = None
        self.per_s: dict[str, float] = {}

    def look(self, stand: PipelineProgress) -> bool:
        """Take a sample; return whether a second has passed or a new phase has begun since."""
        before = self._before
        if (
            before is not None
            and before.phase == stand.phase
            and stand.seconds - before.seconds < LOG_INTERVAL_S
        ):
            return False
        if before is not None and stand.seconds > before.seconds:
            passed_s = stand.seconds - before.seconds
            rows, former = counts(stand), counts(before)
            self.per_s = {name: (rows[name] - former[name]) / passed_s for name in rows}
        self._before = stand
        return True


def counts(stand: PipelineProgress) -> dict[str, int]:
    """Return how many messages have reached each stage."""
    rows = {name: stand.rows.get(name, 0) for name in ("bronze", "silver", "gold")}
    return {"sent": stand.sent, "acknowledged": stand.acknowledged, **rows}


def live_view(output: Path, stand: PipelineProgress, speeds: Speeds) -> Group:
    """Return the progress as a table."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("stage", *RIGHT, ""):
        table.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    behind = f"{stand.lag:,} behind" if stand.lag else "all read"
    more = {
        "acknowledged": f"spool {short_size(stand.spool_bytes)}, {behind}",
        **{name: f"{count:,} batches" for name, count in stand.batches.items()},
    }
    for name, count in counts(stand).items():
        style = {"bronze": "orange3", "silver": "bright_white", "gold": "gold1"}.get(name, "")
        table.add_row(
            Text(name, style),
            f"{count:,}",
            f"{speeds.per_s.get(name, 0):,.0f}",
            Text(more.get(name, ""), "dim"),
        )
    head = Text.assemble(
        ("gapless pipeline", "bold"),
        f" → {output}  ",
        (stand.phase, "cyan"),
        f"  {stand.seconds:.0f} s",
    )
    if not stand.expected:
        return Group(head, table)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=stand.expected, completed=stand.arrived, width=BAR))
    return Group(head, bar, table)


def _update(live: Live, speeds: Speeds, output: Path, stand: PipelineProgress) -> None:
    speeds.look(stand)
    live.update(live_view(output, stand, speeds), refresh=True)


def _write_line(screen: Console, speeds: Speeds, stand: PipelineProgress) -> None:
    if speeds.look(stand):
        screen.print(line(stand, speeds), soft_wrap=True, markup=False, highlight=False)


def line(stand: PipelineProgress, speeds: Speeds) -> str:
    """Return the progress in one line."""
    expected = f" of {stand.expected:,}" if stand.expected else ""
    parts = [f"sent {stand.sent:,}{expected}", f"acknowledged {stand.acknowledged:,}"]
    parts.append(f"spool {short_size(stand.spool_bytes)} with {stand.lag:,} unread")
    parts += [
        f"{name} {rows:,} (+{speeds.per_s.get(name, 0):,.0f}/s)"
        for name, rows in stand.rows.items()
    ]
    return f"{stand.seconds:5.0f} s  {stand.phase}: {', '.join(parts)}"


# At the end


def show(report: PipelineReport) -> None:
    """Print the report of a run."""
    screen = console()
    screen.print(
        make_table(f"gapless pipeline → {report.output}", ("what", "found", ""), summary(report))
    )
    if report.rejected:
        screen.print(
            make_table("Rejected rows, in silver", ("problem", "rows"), report.rejected.items())
        )
    screen.print(make_table("Tables", ("table", "rows", "path"), tables(report)))
    for problem in report.problems:
        screen.print(problem, style="red", markup=False)
    verdict = (
        "exact: bronze has every acknowledged message once"
        if report.is_exact
        else "NOT exact, see above"
    )
    screen.print(verdict, style="bold green" if report.is_exact else "bold red", markup=False)


def summary(report: PipelineReport) -> list[tuple[str, str, str]]:
    """Return the figures of a report, each with an explanation."""
    found = [
        ("sent", f"{report.sent:,}", "by this run"),
        (
            "acknowledged",
            f"{report.acknowledged:,}",
            f"over all runs, by {report.streams} lives of producers",
        ),
        ("lost", f"{report.lost:,}", "acknowledged and not in bronze"),
        ("repeated", f"{report.repeated:,}", "in bronze more than once"),
        ("rejected", f"{sum(report.rejected.values()):,}", "in silver, flagged with the problem"),
        (
            "too late",
            f"{report.too_late:,}",
            f"in silver and not in gold; the watermark is {report.watermark or 'not set'}",
        ),
        ("still open", f"{report.still_open:,}", "in silver; their windows are not over"),
    ]
    if report.latency_s:
        waits = ", ".join(f"{name} {value:.2f} s" for name, value in report.latency_s.items())
        found.append(("send to bronze", waits, "of the rows of this run"))
        speed = f"{report.new_rows / report.seconds:,.0f} rows/s" if report.seconds else ""
        found.append(("speed", speed, f"{report.mb_per_s:.2f} MB/s of payload"))
    return found


def tables(report: PipelineReport) -> list[tuple[str, int, str]]:
    """Return the tables with their rows and paths."""
    rows = {"bronze": report.bronze, "silver": report.silver, "gold": report.gold}
    return [(name, rows[name], path) for name, path in report.tables.items()]

"""``gapless pipeline``: from producers on a lossy group to tables, every message once."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gapless.cli.data.collect import short_size
from gapless.cli.group_options import graceful_interrupt, signals_and_logs_handled
from gapless.cli.lab.common import (
    LineThrottle,
    folder_option,
    live_display,
    master_option,
    number_option,
    option,
    print_result,
    print_verdict,
)
from gapless.cli.parameters import MAX_SEED, SECONDS, SHARE
from gapless.cli.rendering import console, docs_page, json_option, make_table

if TYPE_CHECKING:
    from gapless_lab.sensor_pipeline.report import PipelineReport
    from gapless_lab.sensor_pipeline.runner import PipelineProgress

BAR = 60
"""Width of the bar."""
ENDING = "what is collected still goes into the tables"
RIGHT = ("rows", "rows/s")
"""Columns that are aligned to the right."""


@click.command()
@folder_option("--output", default="gapless-pipeline", help="Where everything is kept.")
@number_option("--producers", default=3, help="Members that send.")
@number_option("--messages", help="Of each, over all runs; 20000, or no end with --follow.")
@number_option("--rate", default=2000.0, type=float, help="Of each a second; 0: no limit.")
@option("--loss", default="5%", type=SHARE, help="Datagrams to lose.")
@number_option(
    "--seed", type=click.IntRange(0, MAX_SEED), help="Of readings and losses; 1 for a new DIR."
)
@option("--seconds", type=SECONDS, help="Send and follow for so long at most.")
@master_option
@click.option(
    "--group", default="", metavar="NAME", help="Collect what this group sends; no producers."
)
@option(
    "--discover",
    metavar="WHERE",
    help=f"Where the members of --group could be: {docs_page('discovery')}",
)
@folder_option("--spool", help="Read this spool; no collector either.")
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
    stop, speeds = threading.Event(), Speeds()
    with (
        signals_and_logs_handled(quiet=as_json),
        graceful_interrupt(stop, ENDING),
        live_display(
            partial(live_view, plan.output, speeds),
            partial(line, speeds),
            quiet=as_json,
            auto_refresh=False,
            transient=True,
        ) as on_progress,
    ):
        report = run(plan, on_progress, stop)
    show_report = partial(show, report)
    return print_result(report.as_dict(), show_report, is_sound=report.is_exact, as_json=as_json)


# While it runs


class Speeds:
    """Rows per second, from two samples at least a second apart."""

    def __init__(self) -> None:
        self._before: PipelineProgress | None = None
        self._throttle = LineThrottle()
        self.per_s: dict[str, float] = {}

    def look(self, progress: PipelineProgress) -> bool:
        """Take a sample; return whether a second has passed or a new phase has begun since."""
        if not self._throttle.is_due(progress.phase, progress.seconds):
            return False
        before, self._before = self._before, progress
        if before is not None and progress.seconds > before.seconds:
            passed_s = progress.seconds - before.seconds
            rows, former = counts(progress), counts(before)
            self.per_s = {name: (rows[name] - former[name]) / passed_s for name in rows}
        return True


def counts(progress: PipelineProgress) -> dict[str, int]:
    """Return how many messages have reached each stage."""
    rows = {name: progress.rows.get(name, 0) for name in ("bronze", "silver", "gold")}
    return {"sent": progress.sent, "acknowledged": progress.acknowledged, **rows}


def live_view(output: Path, speeds: Speeds, progress: PipelineProgress) -> Group:
    """Return the progress as a table."""
    speeds.look(progress)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("stage", *RIGHT, ""):
        table.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    behind = f"{progress.lag:,} behind" if progress.lag else "all read"
    more = {
        "acknowledged": f"spool {short_size(progress.spool_bytes)}, {behind}",
        **{name: f"{count:,} batches" for name, count in progress.batches.items()},
    }
    for name, count in counts(progress).items():
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
        (progress.phase, "cyan"),
        f"  {progress.seconds:.0f} s",
    )
    if not progress.expected:
        return Group(head, table)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=progress.expected, completed=progress.arrived, width=BAR))
    return Group(head, bar, table)


def line(speeds: Speeds, progress: PipelineProgress) -> str:
    """Return the progress in one line, if one is due."""
    if not speeds.look(progress):
        return ""
    expected = f" of {progress.expected:,}" if progress.expected else ""
    parts = [f"sent {progress.sent:,}{expected}", f"acknowledged {progress.acknowledged:,}"]
    parts.append(f"spool {short_size(progress.spool_bytes)} with {progress.lag:,} unread")
    parts += [
        f"{name} {rows:,} (+{speeds.per_s.get(name, 0):,.0f}/s)"
        for name, rows in progress.rows.items()
    ]
    return f"{progress.seconds:5.0f} s  {progress.phase}: {', '.join(parts)}"


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
    print_verdict(
        report.problems,
        "exact: bronze has every acknowledged message once",
        "NOT exact, see above",
        is_sound=report.is_exact,
    )


def summary(report: PipelineReport) -> list[tuple[str, object, str]]:
    """Return the figures of a report, each with an explanation."""
    runs = f"over all runs, by {report.streams} lives of producers"
    watermark = f"the watermark is {report.watermark or 'not set'}"
    found: list[tuple[str, object, str]] = [
        ("sent", report.sent, "by this run"),
        ("acknowledged", report.acknowledged, runs),
        ("lost", report.lost, "acknowledged and not in bronze"),
        ("repeated", report.repeated, "in bronze more than once"),
        ("rejected", sum(report.rejected.values()), "in silver, flagged with the problem"),
        ("too late", report.too_late, f"in silver and not in gold; {watermark}"),
        ("still open", report.still_open, "in silver; their windows are not over"),
    ]
    if not report.latency_s:
        return found
    waits = ", ".join(f"{name} {value:.2f} s" for name, value in report.latency_s.items())
    speed = f"{report.new_rows / report.seconds:,.0f} rows/s" if report.seconds else ""
    return [
        *found,
        ("send to bronze", waits, "of the rows of this run"),
        ("speed", speed, f"{report.mb_per_s:.2f} MB/s of payload"),
    ]


def tables(report: PipelineReport) -> list[tuple[str, int, str]]:
    """Return the tables with their rows and paths."""
    rows = {"bronze": report.bronze, "silver": report.silver, "gold": report.gold}
    return [(name, rows[name], path) for name, path in report.tables.items()]

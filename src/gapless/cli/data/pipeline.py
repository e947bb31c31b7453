"""``gapless pipeline``: from producers on a lossy group to tables, every message once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import graceful_interrupt, signals_and_logs_handled
from gapless.cli.lab.common import (
    RunDisplay,
    flag_option,
    folder_option,
    loss_option,
    number_option,
    option,
    print_result,
    print_table,
    print_verdict,
)
from gapless.cli.parameters import MAX_SEED, SECONDS, spool_keys_option
from gapless.cli.rendering import docs_page, json_option, master_option

if TYPE_CHECKING:
    from gapless_lab.sensor_pipeline.report import PipelineReport

ENDING = "what is collected still goes into the tables"


@click.command()
@folder_option("--output", default="gapless-pipeline", help="Folder of spool and tables.")
@number_option("--producers", default=3, help="Number of producers.")
@number_option("--messages", help="Total of each producer; 20000, or endless with --follow.")
@number_option("--rate", default=2000.0, type=float, help="Messages a second each; 0: no limit.")
@loss_option(default="5%")
@number_option(
    "--seed", type=click.IntRange(0, MAX_SEED), help="Seed of readings and losses; 1 by default."
)
@option("--seconds", type=SECONDS, help="Maximum time to send and follow.")
@master_option
@click.option(
    "--group", default="", metavar="NAME", help="Collect from an existing group; no producers."
)
@option(
    "--discover",
    metavar="WHERE",
    help=f"Discovery of the members of --group: {docs_page('guides/discovery')}",
)
@folder_option("--spool", help="Read an existing spool; start no producers and no collector.")
@spool_keys_option(
    "Encrypt the spool with the sealing key of this keyring, or read it with its keys."
)
@flag_option("--once", help="Read to the end of the spool, and exit.")
@flag_option("--follow", help="Run until Ctrl-C; producers send without end.")
@json_option
def pipeline(*, rate: float, messages: int | None, as_json: bool, **options: Any) -> int:
    """Send readings through a lossy group into tables: bronze raw, silver typed, gold by minute.

    Tables, checkpoints and the spool are in --output. The next run with the same --output continues
    after the last row, also after a kill. At the end bronze is compared with the acknowledged
    messages; the exit code is 1 if a message is lost or repeated.
    """
    from gapless_lab.sensor_pipeline.plan import MESSAGES, PipelinePlan
    from gapless_lab.sensor_pipeline.runner import run

    if messages is None and not options["follow"]:
        messages = MESSAGES
    plan = PipelinePlan(rate=rate or None, messages=messages, **options)
    stop, display = threading.Event(), RunDisplay(f"gapless pipeline → {plan.output}")
    with (
        signals_and_logs_handled(quiet=as_json),
        # The next run continues after the last row, so only an endless run has to end in order.
        graceful_interrupt(stop, ENDING) if plan.follow else nullcontext(),
        display.shown(quiet=as_json) as on_progress,
    ):
        report = run(plan, on_progress, stop)
    show_report = partial(show, report)
    return print_result(report.as_dict(), show_report, is_sound=report.is_exact, as_json=as_json)


def show(report: PipelineReport) -> None:
    """Print the report of a run."""
    print_table(f"gapless pipeline → {report.output}", ("what", "found", ""), summary(report))
    if report.rejected:
        print_table("Rejected rows, in silver", ("problem", "rows"), report.rejected.items())
    tables = [(name, getattr(report, name), path) for name, path in report.tables.items()]
    print_table("Tables", ("table", "rows", "path"), tables)
    print_verdict(
        report.problems,
        "exact: bronze has every acknowledged message once",
        "NOT exact, see above",
        is_sound=report.is_exact,
    )


def summary(report: PipelineReport) -> list[tuple[str, object, str]]:
    """Return the figures of a report, each with an explanation."""
    runs = f"over all runs, by {report.streams} incarnations of producers"
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

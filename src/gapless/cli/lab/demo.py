"""``gapless demo``: the whole pipeline on this machine, with a report at the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import note, signals_and_logs_handled
from gapless.cli.lab.common import (
    RunDisplay,
    folder_option,
    master_option,
    number_option,
    option,
    print_result,
    print_verdict,
)
from gapless.cli.parameters import MAX_SEED, SHARE
from gapless.cli.rendering import console, json_option, make_table

if TYPE_CHECKING:
    from gapless_lab.demo.result import DemoResult

STAGES = {
    "start": "start four processes",
    "send": "send through the lossy group, kill a producer, bring it back",
    "tables": "bring the tables up to date, count them",
    "verify": "check the trace of every process",
    "report": "measure, and draw the report",
}


@click.command()
@number_option("--messages", default=10_000, help="Of each producer.")
@option("--loss", default="5%", type=SHARE, help="Datagrams lost.")
@option("--seed", default=1, type=click.IntRange(0, MAX_SEED), help="Seed of all randomness.")
@click.option(
    "--no-spark",
    is_flag=True,
    help="No tables, no report: the group alone, its trace checked here.",
)
@master_option
@folder_option(
    "--output",
    default="gapless-demo",
    help="Where everything is kept; a former demo there is removed.",
)
@json_option
def demo(*, no_spark: bool, as_json: bool, **options: Any) -> int:
    """Send through a lossy group into tables, kill a member, verify the traces, write a report.

    Three producers and a collector, each a process of its own, talk over UDP on this machine and
    lose datagrams; one of them is killed and comes back. Spark fills tables from what is collected,
    checks the trace of every process against the invariants, and makes a page of it. The exit code
    is 1 if anything is lost, repeated, out of order or violated.
    """
    from gapless_lab.demo.plan import DemoPlan
    from gapless_lab.demo.runner import run
    from gapless_lab.process import LabError

    plan = DemoPlan(spark=not no_spark, **options)
    display = RunDisplay(f"gapless demo → {plan.output}", STAGES)
    with signals_and_logs_handled(quiet=as_json), display.shown(quiet=as_json) as on_progress:
        try:
            result = run(plan, on_progress)
        except LabError as error:  # a member died or stalled: that is a result of the demo
            note(f"gapless demo: {error} (see {plan.logs})")
            return 1
    show_result = partial(show, result)
    return print_result(result.as_dict(), show_result, is_sound=result.is_sound, as_json=as_json)


def show(result: DemoResult) -> None:
    """Print the result."""
    screen = console()
    kill = "one killed and back" if result.kills else "none killed"
    loss = f"{result.loss_percent:g} % of the datagrams lost"
    title = f"{result.members} processes over UDP, {loss}, {kill}"
    screen.print(make_table(title, ("what", "found", ""), summary(result)))
    print_verdict(
        result.problems,
        "every message once, in order, and every invariant held",
        "NOT as it should be, see above",
        is_sound=result.is_sound,
    )
    if result.report:
        screen.print(f"report: {result.report}", soft_wrap=True, markup=False, highlight=False)


def summary(result: DemoResult) -> list[tuple[str, object, str]]:
    """Return the figures, each with an explanation."""
    where = "the bronze table" if result.rows is not None else "the spool"
    repairs = f"messages in {result.repairs:,} repairs, for {result.naks:,} naks"
    latency = f"{result.latency_p50_ms:,.2f} / {result.latency_p99_ms:,.1f} ms"
    found = [
        ("sent", result.sent, "different messages, each acknowledged"),
        ("delivered", result.delivered, "at all members but their senders together"),
        ("lost", result.lost, f"acknowledged and not in {where}, or missed by a member"),
        ("duplicated", result.duplicates, "delivered twice, or twice in the table"),
        ("out of order", result.out_of_order, "deliveries that were not the next of their stream"),
        ("datagrams lost", result.frames_lost, "thrown away on purpose"),
        ("repaired", result.repaired, repairs),
        ("latency", latency, "send to delivery, p50 / p99"),
    ]
    if result.rows is not None:
        found.append(("rows", result.rows, f"in {result.tables.get('bronze', 'bronze')}"))
    held = f"of {result.checks} invariants, checked on {result.events:,} events"
    found.append(("violations", result.violations, held))
    took = ", ".join(f"{name} {took_s:.0f}" for name, took_s in result.seconds.items())
    return [*found, ("seconds", f"{sum(result.seconds.values()):.0f}", took)]

"""``gapless demo``: the whole pipeline on the local machine, with a report at the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import note, signals_and_logs_handled
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
from gapless.cli.parameters import MAX_SEED
from gapless.cli.rendering import console, json_option, master_option

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
@number_option("--messages", default=10_000, help="Messages of each producer.")
@loss_option(default="5%")
@option("--seed", default=1, type=click.IntRange(0, MAX_SEED), help="Seed of all randomness.")
@flag_option("--no-spark", help="Run the group without Spark: no tables and no report.")
@master_option
@folder_option("--output", default="gapless-demo", help="Output folder; replaces a former demo.")
@json_option
def demo(*, no_spark: bool, as_json: bool, **options: Any) -> int:
    """Send through a lossy group into tables, kill a member, verify the traces, write a report.

    Three producers and a collector, each a separate process, communicate over lossy UDP on the
    local machine. A producer is killed and restarted. Spark fills tables from the collected
    messages, checks the trace of every process against the invariants, and writes a report page.
    The exit code is 1 if a message is lost, duplicated or out of order, or an invariant violated.
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
    found = result.figures
    kill = "one killed and back" if found["kills"] else "none killed"
    loss = f"{found['loss_percent']:g} % of the datagrams lost"
    title = f"{found['members']} processes over UDP, {loss}, {kill}"
    print_table(title, ("what", "found", ""), summary(result))
    print_verdict(
        result.problems,
        "every message once, in order, and every invariant held",
        "NOT as it should be, see above",
        is_sound=result.is_sound,
    )
    if result.report:
        console().print(f"report: {result.report}", soft_wrap=True, markup=False, highlight=False)


def summary(result: DemoResult) -> list[tuple[str, object, str]]:
    """Return the figures, each with an explanation."""
    of = result.figures
    where = "the bronze table" if of["rows"] is not None else "the spool"
    repairs = f"messages in {of['repairs']:,} repairs, for {of['naks']:,} naks"
    latency = f"{of['latency_p50_ms']:,.2f} / {of['latency_p99_ms']:,.1f} ms"
    found = [
        ("sent", of["sent"], "different messages, each acknowledged"),
        ("delivered", of["delivered"], "at all members but their senders together"),
        ("lost", of["lost"], f"acknowledged and not in {where}, or missed by a member"),
        ("duplicated", of["duplicates"], "delivered twice, or twice in the table"),
        ("out of order", of["out_of_order"], "deliveries that were not the next of their stream"),
        ("datagrams lost", of["frames_lost"], "thrown away on purpose"),
        ("repaired", of["repaired"], repairs),
        ("latency", latency, "send to delivery, p50 / p99"),
    ]
    if of["rows"] is not None:
        found.append(("rows", of["rows"], f"in {result.tables.get('bronze', 'bronze')}"))
    held = f"of {of['checks']} invariants, checked on {of['events']:,} events"
    found.append(("violations", of["violations"], held))
    took = ", ".join(f"{name} {took_s:.0f}" for name, took_s in result.seconds.items())
    return [*found, ("seconds", f"{sum(result.seconds.values()):.0f}", took)]

"""``gapless demo``: the whole pipeline on this machine, with a report at the end."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gapless.cli.group_options import note, signals_and_logs_handled
from gapless.cli.parameters import MAX_SEED, SHARE
from gapless.cli.rendering import console, docs_page, json_option, make_table, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless_lab.demo.result import DemoResult
    from gapless_lab.demo.runner import DemoProgress

LOG_INTERVAL_S = 1.0
"""How long between two lines of progress without a terminal."""
BAR = 40


@click.command()
@click.option(
    "--messages", default=10_000, show_default=True, metavar="N", type=int, help="Of each producer."
)
@click.option(
    "--loss",
    default="5%",
    show_default=True,
    type=SHARE,
    help="Datagrams lost.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=1,
    show_default=True,
    help="Seed of all randomness.",
)
@click.option(
    "--no-spark",
    is_flag=True,
    help="No tables, no report: the group alone, its trace checked here.",
)
@click.option(
    "--master", metavar="URL", help=f"Where Spark runs; local[*] by default: {docs_page('spark')}"
)
@click.option(
    "--output",
    default="gapless-demo",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where everything is kept; a former demo there is removed.",
)
@json_option
def demo(
    messages: int,
    loss: float,
    seed: int,
    no_spark: bool,
    master: str | None,
    output: Path,
    as_json: bool,
) -> int:
    """Send through a lossy group into tables, kill a member, verify the traces, write a report.

    Three producers and a collector, each a process of its own, talk over UDP on this machine and
    lose datagrams; one of them is killed and comes back. Spark fills tables from what is collected,
    checks the trace of every process against the invariants, and makes a page of it. The exit code
    is 1 if anything is lost, repeated, out of order or violated.
    """
    from gapless_lab.demo.plan import DemoPlan
    from gapless_lab.demo.runner import run
    from gapless_lab.process import LabError

    plan = DemoPlan(
        output=output,
        messages=messages,
        loss=loss,
        seed=seed,
        spark=not no_spark,
        master=master,
    )
    with signals_and_logs_handled(quiet=as_json), _shown(quiet=as_json) as tell:
        try:
            result = run(plan, tell)
        except LabError as error:  # a member died or stalled: that is a result of the demo
            note(f"gapless demo: {error}")
            return 1
    if as_json:
        print_json(result.as_dict())
    else:
        show(result)
    return 0 if result.is_sound else 1


# While it runs

STAGES = {
    "start": "start four processes",
    "send": "send through the lossy group, kill a producer, bring it back",
    "tables": "bring the tables up to date, count them",
    "verify": "check the trace of every process",
    "report": "measure, and draw the report",
}


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[DemoProgress], None]]:
    """Show how things stand, on standard error: live on a terminal, else a line a second."""
    if quiet:
        yield lambda _: None
        return
    # A copy of the descriptor: while Spark starts, the other one leads to its log.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
        screen = Console(file=file)
        if not screen.is_terminal:
            yield _Lines(screen)
            return
        with Live(console=screen, refresh_per_second=8) as live:
            yield lambda stand: live.update(render_progress(stand))


class _Lines:
    """Writes a line when a part begins, and once a second."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self._last: tuple[str, float] = ("", 0.0)

    def __call__(self, stand: DemoProgress) -> None:
        part, at_s = self._last
        if stand.phase != part or time.monotonic() - at_s >= LOG_INTERVAL_S:
            self._last = stand.phase, time.monotonic()
            text = f"{time.monotonic() - stand.began_s:5.0f} s  {STAGES[stand.phase]}"
            self.screen.print(
                f"{text}{_stage_progress(stand)}", soft_wrap=True, markup=False, highlight=False
            )


def _stage_progress(stand: DemoProgress) -> str:
    """Return how far the current phase is."""
    if stand.phase == "send":
        rows = f", {stand.rows:,} rows in bronze" if "tables" in stand.seconds else ""
        return f": {stand.acknowledged:,} of {stand.expected:,} acknowledged{rows}"
    return f": {stand.note}" if stand.note else ""


def render_progress(stand: DemoProgress) -> Group:
    """Return the phases, with the progress of each."""
    table = Table.grid(padding=(0, 1))
    for name, took_s in stand.seconds.items():
        if name == stand.phase and not took_s:
            mark: Any = Spinner("dots", style="cyan")
            time_text = f"{time.monotonic() - stand.began_s:.0f} s"
        else:
            mark = Text("✓", "green") if took_s is not None else Text("·", "dim")
            time_text = "" if took_s is None else f"{took_s:.1f} s"
        table.add_row(
            mark, Text(STAGES[name], "" if took_s is not None else "dim"), Text(time_text, "dim")
        )
    parts: list[Any] = [Text("gapless demo", "bold"), table]
    more = Table.grid(padding=(0, 1))
    if stand.phase == "send":
        bar = ProgressBar(total=stand.expected, completed=stand.acknowledged, width=BAR)
        more.add_row("", bar, Text(_stage_progress(stand).strip(": "), "dim"))
    elif stand.note:
        more.add_row("", Text(stand.note, "dim"))
    return Group(*parts, more)


# At the end


def show(result: DemoResult) -> None:
    """Print the result."""
    screen = console()
    kill = "one killed and back" if result.kills else "none killed"
    loss = f"{result.loss_percent:g} % of the datagrams lost"
    title = f"{result.members} processes over UDP, {loss}, {kill}"
    screen.print(make_table(title, ("what", "found", ""), summary(result)))
    for problem in result.problems:
        screen.print(problem, style="red", markup=False)
    sound = "every message once, in order, and every invariant held"
    screen.print(
        sound if result.is_sound else "NOT as it should be, see above",
        style="bold green" if result.is_sound else "bold red",
    )
    if result.report:
        screen.print(f"report: {result.report}", soft_wrap=True, markup=False, highlight=False)


def summary(result: DemoResult) -> list[tuple[str, str, str]]:
    """Return the figures, each with an explanation."""
    where = "the bronze table" if result.rows is not None else "the spool"
    found = [
        ("sent", f"{result.sent:,}", "different messages, each acknowledged"),
        ("delivered", f"{result.delivered:,}", "at all members but their senders together"),
        ("lost", f"{result.lost:,}", f"acknowledged and not in {where}, or missed by a member"),
        ("duplicated", f"{result.duplicates:,}", "delivered twice, or twice in the table"),
        (
            "out of order",
            f"{result.out_of_order:,}",
            "deliveries that were not the next of their stream",
        ),
        ("datagrams lost", f"{result.frames_lost:,}", "thrown away on purpose"),
        (
            "repaired",
            f"{result.repaired:,}",
            f"messages in {result.repairs:,} repairs, for {result.naks:,} naks",
        ),
        (
            "latency",
            f"{result.latency_p50_ms:,.2f} / {result.latency_p99_ms:,.1f} ms",
            "send to delivery, p50 / p99",
        ),
    ]
    if result.rows is not None:
        found.append(("rows", f"{result.rows:,}", f"in {result.tables.get('bronze', 'bronze')}"))
    held = f"of {result.checks} invariants, checked on {result.events:,} events"
    found.append(("violations", f"{result.violations:,}", held))
    took = ", ".join(f"{name} {took_s:.0f}" for name, took_s in result.seconds.items())
    found.append(("seconds", f"{sum(result.seconds.values()):.0f}", took))
    return found

"""``gapless verify``: the invariants, checked on a recorded trace with Spark."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from gapless.cli.rendering import console, json_option, make_table, master_option, print_json
from gapless.output.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from pyspark_gapless.verify import TraceVerdict

PROGRESS_AFTER_S = 2.0
"""How long a check runs before the progress is shown."""
SMALL_BYTES = 50_000_000
"""Maximum size of a local trace that is verified by a JVM tuned for a quick start."""
FAST_START_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MAX_SHOWN = 8
"""Maximum number of violations on a terminal, each with the rows around it."""
EXIT_NOT_JUDGED = 2
"""The exit code if no check could be made."""
COLORS = {"held": "green", "violated": "bold red", "not checked": "yellow"}


@click.command()
@click.argument("path")
@click.option("--only", default="", metavar="IDS", help="Run only these checks, such as S1,S3.")
@master_option
@json_option
def verify(path: str, only: str, master: str | None, as_json: bool) -> int:
    """Check every invariant that a trace can show on the trace in the folder PATH, with Spark.

    A trace is recorded with --trace by the commands that join a group, by gapless sim, or by
    gapless.join(trace=…). Several traces under one folder are one trace. The remains of a killed
    process are put in order first. The exit code is 1 if an invariant is violated.
    """
    from pyspark_gapless.runtime.spark_install import find_installation

    find_installation()
    from pyspark_gapless.quiet_session import own_interrupts
    from pyspark_gapless.session import session
    from pyspark_gapless.trace import Trace
    from pyspark_gapless.verify.runner import resolve_check_ids, verify as run

    ids = resolve_check_ids(only.split(",")) if only else []
    Trace.seal(path)
    with _progress_shown(quiet=as_json) as tell:
        tell("start Spark", 0)
        with own_interrupts():
            spark = session("gapless verify", master=master, settings=_spark_settings(path, master))
        try:
            tell("read", 0)
            verdict = run(Trace.read(spark, path), only=ids, progress=tell)
        finally:
            spark.stop()
    if as_json:
        print_json(verdict.as_dict())
    else:
        show(verdict)
    if not verdict.has_checks:
        return EXIT_NOT_JUDGED
    return 0 if verdict.ok else 1


def _spark_settings(path: str, master: str | None) -> dict[str, str]:
    """Return the settings of a Spark of this process alone for a trace of this size."""
    if not (master or "local").startswith("local") or "://" in path:
        return {}
    size_bytes = sum(file.stat().st_size for file in Path(path).rglob("*.parquet"))
    if size_bytes < SMALL_BYTES:
        return {"spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS}
    return {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(max(8, size_bytes // 20_000_000)),
    }


@contextmanager
def _progress_shown(*, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Report on standard error which check runs: a bar on a terminal, else lines."""
    if quiet:
        yield lambda _check, _rows: None
        return
    # A copy of the descriptor: while Spark starts, the other one leads to its log.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
        screen = console(file=file)
        if not screen.is_terminal:
            yield CheckProgress(lambda text, _: screen.print(text, highlight=False))
            return
        columns = (
            SpinnerColumn(),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=screen, transient=True) as progress:
            task = progress.add_task("", total=None)

            def update(text: str, done: int) -> None:
                progress.update(task, description=text, completed=done, total=_steps())

            yield CheckProgress(update, patience_s=0.0)


def _steps() -> int:
    from pyspark_gapless.verify import CHECKS

    return len(CHECKS) + 3


class CheckProgress:
    """Turns the running check into a line, with the rate of rows of the check before."""

    def __init__(
        self, write: Callable[[str, int], None], patience_s: float = PROGRESS_AFTER_S
    ) -> None:
        self._write = write
        self._progress_after_s = patience_s
        self._begin_s = self._before_s = time.monotonic()
        self._before: tuple[str, int] = ("", 0)
        self._done = 0

    def __call__(self, check: str, rows: int) -> None:
        """Record the start of ``check``, which reads ``rows`` rows."""
        now_s = time.monotonic()
        name, count = self._before
        took_s = max(now_s - self._before_s, 1e-3)
        rate = f"  ({name}: {count / took_s:,.0f} rows/s)" if count else ""
        self._before, self._before_s = (check, rows), now_s
        self._done += 1
        if now_s - self._begin_s >= self._progress_after_s:
            of = f": {rows:,} rows" if rows else ""
            self._write(f"{now_s - self._begin_s:5.1f} s  {check}{of}{rate}", self._done)


def show(verdict: TraceVerdict) -> None:
    """Print the verdict for a person."""
    out = console()
    rows = [
        (
            one.id,
            one.name,
            one.rows,
            one.violations,
            Text(one.state, COLORS[one.state]),
            one.why,
        )
        for one in verdict.checks
    ]
    of = f"{verdict.seeds:,} simulated groups" if verdict.simulated else "a real run"
    title = f"{verdict.events:,} events of {verdict.incarnations:,} incarnations, {of}"
    out.print(make_table(title, ("id", "invariant", "rows", "violations", "state", "note"), rows))
    for life in verdict.incomplete:
        what = life["why"] or f"{life['missing_rows']:,} rows of this incarnation are missing"
        out.print(f"{life['life']}: {what}", style="yellow", markup=False)
    for violation in verdict.violations[:MAX_SHOWN]:
        _show_violation(out, violation)
    if len(verdict.violations) > MAX_SHOWN:
        out.print(f"… and {len(verdict.violations) - MAX_SHOWN} more; --json has them")
    if not verdict.has_checks:
        out.print(
            "no check is applicable to this trace: it proves neither success nor failure",
            style="bold yellow",
        )
        return
    made = [one for one in verdict.checks if one.state != "not checked"]
    left_out = len(verdict.checks) - len(made)
    omitted = f" ({left_out} not applicable)" if left_out else ""
    what = (
        f"All {len(made)} {'applicable ' if left_out else ''}checks passed{omitted}"
        if verdict.ok
        else f"{verdict.violation_count:,} violations"
    )
    color = "red" if not verdict.ok else "yellow" if verdict.incomplete else "green"
    out.print(Text.assemble((what, f"bold {color}"), f" in {verdict.seconds:.1f} s"))


def _show_violation(out: Console, violation: dict[str, Any]) -> None:
    """Print one violation with the rows around it."""
    where = f"seed {violation['seed']}, " if violation["seed"] else ""
    of = f" (messages of {violation['origin']})" if violation["origin"] else ""
    about = printable(f"{where}{violation['member']}{of}: {violation['message']}")
    out.print(Text.assemble("\n", (printable(violation["check"]), "bold red"), " ", about))
    if not violation["rows"]:
        return
    begin_ns = violation["rows"][0]["t_ns"]
    rows = [
        (
            "▶" if row["here"] else "",
            f"{(row['t_ns'] - begin_ns) / 1e6:.3f}",
            row["member"],
            row["event"],
            row["origin"],
            _span(row),
            row["peer"],
            f"{row['low']} {row['delivered']} {row['high']}" if row["high"] else "",
            row["reason"],
        )
        for row in violation["rows"]
    ]
    columns = ("", "ms", "life", "event", "origin", "messages", "peer", "marks", "reason")
    out.print(make_table("", columns, rows))


def _span(row: dict[str, Any]) -> str:
    first, last = row["seqno"], row["seqno_last"]
    return (
        ""
        if not last and not first
        else str(last or first)
        if first in {0, last}
        else f"{first}..{last}"
    )

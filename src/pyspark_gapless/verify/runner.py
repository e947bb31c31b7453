"""Run the checks over a trace in sequence, and collect the findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from gapless.errors import ConfigError
from gapless.trace.schema import EVENT_NAMES
from pyspark_gapless.trace.trace import SAMPLED, materialize
from pyspark_gapless.verify.context_rows import with_context
from pyspark_gapless.verify.registry import CHECKS
from pyspark_gapless.verify.verdict import HELD, NOT_CHECKED, VIOLATED, CheckResult, TraceVerdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace
    from pyspark_gapless.verify.registry import TraceCheck

MAX_SHOWN = 50
"""Maximum number of violations shown with context."""
MAX_PER_CHECK = 10
"""Maximum number of shown violations of a check."""
MAX_INCOMPLETE = 100
"""Maximum number of named incarnations with lost rows."""
TRUNCATED = "its last rows are missing: recording had to stop, or still goes on"
"""Why an incarnation without a missing row is incomplete."""


def verify(
    trace: Trace,
    *,
    only: Iterable[str] = (),
    progress: Callable[[str, int], None] = lambda _check, _rows: None,
) -> TraceVerdict:
    """Return the verdict of the checks on a trace.

    Args:
        trace: The trace.
        only: The ids of the checks to run, such as ``S3``; all by default.
        progress: Called with each check before its run, and the number of rows to read.
    """
    begin_s = time.perf_counter()
    chosen = [CHECKS[check] for check in resolve_check_ids(only)] if only else list(CHECKS.values())
    progress("count", 0)
    counts = trace.cached("counts", lambda: _counts(trace))
    verdict = _empty_verdict(trace, counts)
    holes = materialize(_missing_rows(counts))
    if not holes.isEmpty():
        trace = trace.without(holes)
        counts = counts.join(
            F.broadcast(holes.select("seed", "member")), ["seed", "member"], "left_anti"
        )
    by_event = _by_event(counts)
    first: list[dict[str, Any]] = []
    for check in chosen:
        rows = sum(by_event.get(event, 0) for event in check.events)
        why = _skip_reason(check, trace, rows)
        if why and not _can_check_partly(check, trace, rows):
            verdict.checks.append(CheckResult(check.id, check.name, NOT_CHECKED, rows, 0, why))
            continue
        progress(check.id, rows)
        found, total = _first_violations(check(trace))
        first += found[:MAX_PER_CHECK]
        for seed in sorted({row["seed"] for row in found}):
            verdict.failing_seeds.setdefault(seed, []).append(check.id)
        state = VIOLATED if total else HELD
        verdict.checks.append(CheckResult(check.id, check.name, state, rows, total, why))
    if first:
        progress("around", len(first))
        verdict.violations = with_context(trace, _round_robin(first))
    verdict.seconds = time.perf_counter() - begin_s
    return verdict


def resolve_check_ids(only: Iterable[str]) -> list[str]:
    """Return ids of checks in the order of the list; raise for an unknown id."""
    wanted = [check.strip().upper() for check in only]
    for check in wanted:
        if check not in CHECKS:
            raise ConfigError(f"unknown check {check!r}; expected some of {', '.join(CHECKS)}")
    return [check for check in CHECKS if check in wanted]


def _counts(trace: Trace) -> DataFrame:
    """Return for each incarnation and event the number of rows, and the time of first and last."""
    return trace.rows.groupBy("seed", "member", "event").agg(
        F.count(F.lit(1)).alias("rows"),
        F.max("idx").alias("last"),
        F.min("t_ns").alias("begin_ns"),
        F.max("t_ns").alias("end_ns"),
    )


def _by_event(counts: DataFrame) -> dict[str, int]:
    """Return how many rows there are of each event."""
    found = counts.groupBy("event").agg(F.sum("rows").alias("n")).collect()
    return {EVENT_NAMES.get(row["event"], ""): row["n"] for row in found}


def _missing_rows(counts: DataFrame) -> DataFrame:
    """Return the incarnations with lost rows, and the number of lost rows."""
    lives = counts.groupBy("seed", "member").agg(
        F.sum("rows").alias("rows"), F.max("last").alias("last")
    )
    return lives.where("last + 1 != rows").select(
        "seed", "member", (F.col("last") + 1 - F.col("rows")).alias("lost")
    )


def _incomplete(trace: Trace, counts: DataFrame) -> list[dict[str, Any]]:
    """Return the incomplete incarnations, a limited number, each with the missing part."""
    holes = (
        trace.with_names(_missing_rows(counts))
        .orderBy("seed", "member_name")
        .limit(MAX_INCOMPLETE)
        .collect()
    )
    found = [{"life": row["member_name"], "missing_rows": row["lost"], "why": ""} for row in holes]
    cut = (
        trace.incarnations.where("own and not whole")
        .orderBy("seed", "name")
        .limit(MAX_INCOMPLETE)
        .collect()
    )
    return [*found, *({"life": row["name"], "missing_rows": 0, "why": TRUNCATED} for row in cut)][
        :MAX_INCOMPLETE
    ]


def _empty_verdict(trace: Trace, counts: DataFrame) -> TraceVerdict:
    """Return the verdict without checks."""
    lives = counts.groupBy("seed", "member").agg(
        F.sum("rows").alias("rows"),
        F.min("begin_ns").alias("begin_ns"),
        F.max("end_ns").alias("end_ns"),
    )
    spans = lives.groupBy("seed").agg(
        F.count(F.lit(1)).alias("lives"),
        F.sum("rows").alias("rows"),
        (F.max("end_ns") - F.min("begin_ns")).alias("span_ns"),
    )
    about = spans.agg(
        F.count(F.lit(1)).alias("seeds"),
        F.sum("lives").alias("lives"),
        F.sum("rows").alias("rows"),
        F.max("span_ns").alias("span_ns"),
    ).collect()[0]
    return TraceVerdict(
        events=about["rows"] or 0,
        incarnations=about["lives"] or 0,
        seeds=about["seeds"],
        span_ns=about["span_ns"] or 0,
        mode=SAMPLED if trace.sampled else "full",
        simulated=trace.simulated,
        incomplete=_incomplete(trace, counts),
    )


def _skip_reason(check: TraceCheck, trace: Trace, rows: int) -> str:
    """Return why a check covers less than the whole trace; empty if the check covers all."""
    if check.simulated_only_reason and not trace.simulated:
        return check.simulated_only_reason
    if not rows:
        return f"no {' or '.join(check.events)} rows"
    if check.needs_all_rows and trace.sampled:
        return "sampled"
    return ""


def _can_check_partly(check: TraceCheck, trace: Trace, rows: int) -> bool:
    """Return whether some incarnations can be checked although others were sampled."""
    return bool(rows) and check.needs_all_rows and len({mode for _, mode in trace.clock_modes}) > 1


def _first_violations(found: DataFrame) -> tuple[list[dict[str, Any]], int]:
    """Return the first violations of a check, and how many there are."""
    table = found.limit(MAX_EXAMINED).toArrow()
    total = table.num_rows
    if total == MAX_EXAMINED:
        total = found.count()
    rows = table.to_pylist()
    rows.sort(key=lambda row: (row["seed"], row["t_ns"], row["idx"]))
    return rows, total


MAX_EXAMINED = 10_000
"""Maximum number of violations of a check searched for the first violations."""


def _round_robin(first: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return some violations: the first of each check, then the second of each, and so on."""
    turns: dict[str, int] = {}
    ranked = []
    for at, row in enumerate(first):
        turns[row["check"]] = turns.get(row["check"], 0) + 1
        ranked.append((turns[row["check"]], at, row))
    return [row for _, _, row in sorted(ranked, key=lambda one: one[:2])[:MAX_SHOWN]]

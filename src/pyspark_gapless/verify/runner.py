"""Run the checks over a trace, one after the other, and gather what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from gapless.errors import ConfigError
from gapless.trace.schema import NAMES
from pyspark_gapless.trace.trace import SAMPLED, worked_out
from pyspark_gapless.verify.context_rows import shown
from pyspark_gapless.verify.registry import CHECKS
from pyspark_gapless.verify.verdict import HELD, NOT_CHECKED, VIOLATED, Finding, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace
    from pyspark_gapless.verify.registry import Check

MOST_SHOWN = 50
"""So many violations are shown with the rows around them."""
MOST_OF_ONE = 10
"""And so many of one check."""
MOST_INCOMPLETE = 100
"""So many lives that have lost rows are named."""
CUT = "its last rows are missing: recording had to stop, or still goes on"
"""Why a life without a hole is not complete."""


def verify(
    trace: Trace,
    *,
    only: Iterable[str] = (),
    progress: Callable[[str, int], None] = lambda _check, _rows: None,
) -> Verdict:
    """Return what the checks find in a trace.

    Args:
        trace: The trace.
        only: The ids of the checks to run, such as ``S3``; all without it.
        progress: Is told each check before it runs, and how many rows it looks at.
    """
    begin_s = time.perf_counter()
    chosen = [CHECKS[check] for check in known(only)] if only else list(CHECKS.values())
    progress("count", 0)
    counts = trace.once("counts", lambda: _counts(trace))
    verdict = _about(trace, counts)
    holes = worked_out(_holes(counts))
    if not holes.isEmpty():
        trace = trace.without(holes)
        counts = counts.join(
            F.broadcast(holes.select("seed", "member")), ["seed", "member"], "left_anti"
        )
    by_event = _by_event(counts)
    first: list[dict[str, Any]] = []
    for check in chosen:
        rows = sum(by_event.get(event, 0) for event in check.events)
        why = _why_not(check, trace, rows)
        if why and not _goes_on(check, trace, rows):
            verdict.checks.append(Finding(check.id, check.name, NOT_CHECKED, rows, 0, why))
            continue
        progress(check.id, rows)
        found, total = _first_of(check(trace))
        first += found[:MOST_OF_ONE]
        for seed in sorted({row["seed"] for row in found}):
            verdict.failing.setdefault(seed, []).append(check.id)
        state = VIOLATED if total else HELD
        verdict.checks.append(Finding(check.id, check.name, state, rows, total, why))
    if first:
        progress("around", len(first))
        verdict.violations = shown(trace, _fairly(first))
    verdict.seconds = time.perf_counter() - begin_s
    return verdict


def known(only: Iterable[str]) -> list[str]:
    """Return ids of checks in the order of the list, or say which one there is not."""
    wanted = [check.strip().upper() for check in only]
    for check in wanted:
        if check not in CHECKS:
            raise ConfigError(
                f"no check of traces is called {check!r}; expected some of {', '.join(CHECKS)}"
            )
    return [check for check in CHECKS if check in wanted]


def _counts(trace: Trace) -> DataFrame:
    """Return for each life and event how many rows there are, and from when to when."""
    return trace.rows.groupBy("seed", "member", "event").agg(
        F.count(F.lit(1)).alias("rows"),
        F.max("idx").alias("last"),
        F.min("t_ns").alias("begin_ns"),
        F.max("t_ns").alias("end_ns"),
    )


def _by_event(counts: DataFrame) -> dict[str, int]:
    """Return how many rows there are of each event."""
    found = counts.groupBy("event").agg(F.sum("rows").alias("n")).collect()
    return {NAMES.get(row["event"], ""): row["n"] for row in found}


def _holes(counts: DataFrame) -> DataFrame:
    """Return the lives that have lost rows, and how many."""
    lives = counts.groupBy("seed", "member").agg(
        F.sum("rows").alias("rows"), F.max("last").alias("last")
    )
    return lives.where("last + 1 != rows").select(
        "seed", "member", (F.col("last") + 1 - F.col("rows")).alias("lost")
    )


def _incomplete(trace: Trace, counts: DataFrame) -> list[dict[str, Any]]:
    """Return the lives of which something is not in the trace, the first of them, with what that is."""
    holes = (
        trace.named(_holes(counts)).orderBy("seed", "member_name").limit(MOST_INCOMPLETE).collect()
    )
    found = [{"life": row["member_name"], "missing_rows": row["lost"], "why": ""} for row in holes]
    cut = (
        trace.lives.where("own and not whole")
        .orderBy("seed", "name")
        .limit(MOST_INCOMPLETE)
        .collect()
    )
    return [*found, *({"life": row["name"], "missing_rows": 0, "why": CUT} for row in cut)][
        :MOST_INCOMPLETE
    ]


def _about(trace: Trace, counts: DataFrame) -> Verdict:
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
    return Verdict(
        events=about["rows"] or 0,
        lives=about["lives"] or 0,
        seeds=about["seeds"],
        span_ns=about["span_ns"] or 0,
        mode=SAMPLED if trace.sampled else "full",
        simulated=trace.simulated,
        incomplete=_incomplete(trace, counts),
    )


def _why_not(check: Check, trace: Trace, rows: int) -> str:
    """Return why a check says less than it could, or nothing."""
    if check.simulated and not trace.simulated:
        return check.simulated
    if not rows:
        return f"no {' or '.join(check.events)} rows"
    if check.whole and trace.sampled:
        return "sampled"
    return ""


def _goes_on(check: Check, trace: Trace, rows: int) -> bool:
    """Return whether some lives can be looked at although others were sampled."""
    return bool(rows) and check.whole and len({mode for _, mode in trace.kinds}) > 1


def _first_of(found: DataFrame) -> tuple[list[dict[str, Any]], int]:
    """Return the first violations of a check, and how many there are."""
    table = found.limit(MOST_LOOKED_AT).toArrow()
    total = table.num_rows
    if total == MOST_LOOKED_AT:
        total = found.count()
    rows = table.to_pylist()
    rows.sort(key=lambda row: (row["seed"], row["t_ns"], row["idx"]))
    return rows, total


MOST_LOOKED_AT = 10_000
"""Among so many violations of a check the first are looked for."""


def _fairly(first: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return some of the violations: the first of each check, then the second of each, and so on."""
    turns: dict[str, int] = {}
    ranked = []
    for at, row in enumerate(first):
        turns[row["check"]] = turns.get(row["check"], 0) + 1
        ranked.append((turns[row["check"]], at, row))
    return [row for _, _, row in sorted(ranked, key=lambda one: one[:2])[:MOST_SHOWN]]

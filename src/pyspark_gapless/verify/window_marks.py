"""S6, S7 and parts of S8, S10, S11 and S12: the rows of an incarnation fit the marks.

All checks here compare a row with the marks before the row, so all share a sort by incarnation and
stream, and are computed together (``mark_violations``).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_AT_MEMBER, STREAM_KEY
from pyspark_gapless.trace.trace import is_one_of
from pyspark_gapless.verify.delivery_order import exclude_returned_origins, sent_up_to
from pyspark_gapless.verify.violations import (
    VIOLATION_COLUMNS,
    format_message,
    seqno_count,
    seqno_range,
    union,
    violations,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

    from pyspark_gapless.trace import Trace

DATA_DROP_REASONS = ("duplicate", "old", "far", "full")
"""The reasons for not taking messages of an arrived run."""
CHECKED_EVENTS = ("STATE", "ACK_OUT", "REPAIR", "NAK_OUT", "STORE", "DROPPED")
"""The events compared with marks."""


def reaches(trace: Trace) -> DataFrame:
    """Return the reach of the windows of each incarnation."""
    return (
        trace.rare_rows("BEGIN")
        .where("high > 0")
        .groupBy("seed", "member")
        .agg(F.max("high").alias("reach"))
    )


def setting(name: str) -> Column:
    """Return a setting of the incarnations as a number."""
    return F.col("knobs")[name].cast("bigint")


def last_marks(trace: Trace) -> DataFrame:
    """Return the last marks of each stream, incarnation and view, and the maximum stored."""
    begin = F.when(F.col("member") == F.col("origin"), F.col("low")).otherwise(F.col("delivered"))
    last = F.max_by(F.struct("idx", "t_ns", "low", "delivered", "high"), "idx").alias("last")
    most = F.max(F.col("high") - begin).alias("most")
    return trace.cached(
        "states",
        lambda: trace.where_event("STATE").groupBy(*STREAM_AT_MEMBER, "view").agg(last, most),
    )


def mark_violations(trace: Trace, check: str) -> DataFrame:
    """Return the violations of a check that compares rows with marks."""
    return (
        trace.cached("history", lambda: _rows_with_marks(trace))
        .where(F.col("check") == check)
        .select(*VIOLATION_COLUMNS)
    )


def _rows_with_marks(trace: Trace) -> DataFrame:
    """Return the rows of each stream at each incarnation, with the marks before each row.

    ``then_low`` and the like are the marks of the last STATE row before, ``soon_high`` and the like
    the marks at the end of the same step; ``reach`` is null for an incarnation without a BEGIN row.
    """
    columns = (
        *STREAM_AT_MEMBER,
        "idx",
        "step",
        "t_ns",
        "event",
        "view",
        "seqno",
        "seqno_last",
        "low",
        "delivered",
        "high",
        "reason",
    )
    rows = trace.where_event(*CHECKED_EVENTS).where("to = 0").select(*columns)
    rows = rows.where(~is_one_of("DROPPED") | F.col("reason").isin(*DATA_DROP_REASONS))
    order = Window.partitionBy(*STREAM_AT_MEMBER).orderBy("step", "idx")
    step = Window.partitionBy(*STREAM_AT_MEMBER).orderBy("step")
    then = order.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumns(
        {f"then_{mark}": _last_mark(mark, then) for mark in ("low", "delivered", "high", "view")}
    )
    soon = step.rangeBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumns(
        {f"soon_{mark}": _last_mark(mark, soon) for mark in ("delivered", "high")}
    )
    rows = rows.join(F.broadcast(reaches(trace)), ["seed", "member"], "left")
    rules = _rules()
    # Few rows are wrong: messages are built for these alone.
    rows = rows.where(reduce(or_, (wrong for _, wrong, _ in rules)))
    each = (
        F.when(wrong, F.struct(F.lit(check).alias("check"), text.alias("message")))
        for check, wrong, text in rules
    )
    rows = rows.withColumn("found", F.explode(F.array_compact(F.array(*each))))
    rows = rows.withColumn("seqno", F.greatest("seqno", "seqno_last", "high"))
    told = rows.select(
        "found.check",
        *STREAM_AT_MEMBER,
        "idx",
        "t_ns",
        "seqno",
        "found.message",
        "view",
        "then_view",
    )
    return exclude_returned_origins(trace, told)


def _last_mark(mark: str, where: WindowSpec) -> Column:
    return F.last(F.when(is_one_of("STATE"), F.col(mark)), ignorenulls=True).over(where)


def _rules() -> list[tuple[str, Column, Column]]:
    """Return the condition and the message of each check."""
    state = is_one_of("STATE")
    low, delivered, high = F.col("low"), F.col("delivered"), F.col("high")
    reach = F.col("reach")
    then = {mark: F.col(f"then_{mark}") for mark in ("low", "delivered", "high")}
    soon = {mark: F.col(f"soon_{mark}") for mark in ("delivered", "high")}
    first, last = F.col("seqno"), F.col("seqno_last")
    begin = F.when(F.col("member") == F.col("origin"), low).otherwise(delivered)
    has = F.coalesce(soon["delivered"], F.lit(0))
    back = (low < then["low"]) | (delivered < then["delivered"]) | (high < then["high"])
    return [
        (
            "S6",
            state & (high - begin > reach),
            format_message(
                "the window reaches from %d to %d; the maximum is %d", begin, high, reach
            ),
        ),
        (
            "S7",
            state & ((low > delivered) | (delivered > high)),
            format_message("the marks are out of order: %d, %d, %d", low, delivered, high),
        ),
        (
            "S7",
            state & back,
            format_message(
                "the marks went back from %d, %d, %d to %d, %d, %d",
                *(then["low"], then["delivered"], then["high"]),
                *(low, delivered, high),
            ),
        ),
        (
            "S8",
            is_one_of("ACK_OUT") & (last > has),
            format_message("acknowledges %d, but has delivered %d", last, has),
        ),
        (
            "S10",
            is_one_of("REPAIR") & (first <= then["low"]),
            format_message("resends %s, but has purged up to %d", seqno_range(), then["low"]),
        ),
        (
            "S11",
            is_one_of("NAK_OUT") & (first <= then["delivered"]),
            format_message("requests %s, but has delivered %d", seqno_range(), then["delivered"]),
        ),
        *_acceptance_rules(then, soon, reach),
    ]


def _acceptance_rules(
    then: dict[str, Column], soon: dict[str, Column], reach: Column
) -> list[tuple[str, Column, Column]]:
    first, last = F.col("seqno"), F.col("seqno_last")
    stored, dropped = is_one_of("STORE"), is_one_of("DROPPED")
    limit = soon["delivered"] + reach
    return [
        (
            "S12",
            stored & (last <= then["delivered"]),
            format_message("stores %s, but has delivered %d", seqno_range(), then["delivered"]),
        ),
        (
            "S12",
            stored & (first > limit),
            format_message("stores %s, but %d is the last in reach", seqno_range(), limit),
        ),
        (
            "S12",
            dropped & (F.col("reason") == "far") & (last <= then["delivered"] + reach),
            format_message(
                "drops %s as too far, but has delivered %d", seqno_range(), then["delivered"]
            ),
        ),
        (
            "S12",
            dropped & F.col("reason").isin("old", "duplicate") & (first > soon["high"]),
            format_message(
                "drops %s as %s, but the window ends at %d",
                seqno_range(),
                F.col("reason"),
                soon["high"],
            ),
        ),
    ]


def window(trace: Trace) -> DataFrame:
    """S6: no window exceeds its reach, as stated in the BEGIN row of the incarnation.

    The marks come from the machine, without marks for connections.
    """
    return mark_violations(trace, "S6")


def marks(trace: Trace) -> DataFrame:
    """S7: low <= delivered <= high, and no mark goes down while the origin stays a member."""
    return mark_violations(trace, "S7")


def naks_exist(trace: Trace) -> DataFrame:
    """S11, the target: a nak names sent messages, and goes to the origin or an allowed holder."""
    naks = trace.where_event("NAK_OUT")
    far = (
        naks.join(trace.complete_incarnations("origin"), ["seed", "origin"], "left_semi")
        .join(F.broadcast(sent_up_to(trace)), [*STREAM_KEY], "left")
        .where(F.col("seqno_last") > F.coalesce("sent", F.lit(0)))
    )
    message = format_message(
        "requests %s, but only %d were sent", seqno_range(), F.coalesce("sent", F.lit(0))
    )
    anybody = trace.complete_incarnations("member", "knobs['xmit_from_random_member'] = 'true'")
    astray = trace.with_names(
        naks.where("peer != origin").join(anybody, ["seed", "member"], "left_anti")
    )
    elsewhere = format_message(
        "sends a nak to %s for %s, but the target is not an allowed holder",
        "peer_name",
        seqno_range(),
    )
    return union(violations("S11", far, message), violations("S11", astray, elsewhere))


def acceptance(trace: Trace) -> DataFrame:
    """S12: stored messages are in range; dropped messages have the right reason.

    Each arriving message is either stored or dropped. A run that arrived without any row cannot be
    seen.
    """
    told = (is_one_of("STORE") & (F.col("k") != seqno_count())) | (
        is_one_of("DROPPED") & F.col("reason").isin(*DATA_DROP_REASONS)
    )
    rows = trace.where_event("STORE", "DROPPED").where("to = 0").where(told)
    runs = rows.groupBy(*STREAM_AT_MEMBER, "step", "seqno", "seqno_last")
    sums = runs.agg(F.sum("k").alias("k"), F.min("idx").alias("idx"), F.min("t_ns").alias("t_ns"))
    odd = sums.where(F.col("k") % seqno_count() != 0)
    uneven = violations(
        "S12",
        odd,
        format_message("of the arrived %s, %d are stored or dropped", seqno_range(), "k"),
    )
    return union(mark_violations(trace, "S12"), uneven)

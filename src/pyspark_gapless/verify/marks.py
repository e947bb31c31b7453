"""S6, S7, S11, S12 and parts of S8 and S10: what a life does fits to the marks that it tells.

All of them compare a row with the marks before it, in the order of the life: one sort by life and stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.columns import AT, STREAM
from pyspark_gapless.trace.trace import code, is_one_of
from pyspark_gapless.verify.deliveries import sent
from pyspark_gapless.verify.violations import count, says, span, together, violations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

DATA_REASONS = ("duplicate", "old", "far", "full")
"""Why messages of a run that arrived are not taken."""


def reaches(trace: Trace) -> DataFrame:
    """Return how far the windows of each life may reach."""
    begun = trace.rare("BEGIN").where("high > 0").groupBy("seed", "member").agg(F.max("high").alias("reach"))
    return F.broadcast(begun)


def knob(name: str) -> Column:
    """Return a knob of the lives as a number."""
    return F.col("knobs")[name].cast("bigint")


def window(trace: Trace) -> DataFrame:
    """S6: no window reaches further than it may; how far stands in the row of the life's beginning.

    The marks are those that the machine tells; of connections it tells none.
    """
    rows = trace.of("STATE").select(*AT, "idx", "t_ns", "low", "delivered", "high", F.col("high").alias("seqno"))
    rows = rows.join(reaches(trace), ["seed", "member"])
    rows = rows.withColumn(
        "low", F.when(F.col("member") == F.col("origin"), F.col("low")).otherwise(F.col("delivered"))
    )
    wide = rows.where(F.col("high") - F.col("low") > F.col("reach"))
    return violations("S6", wide, says("its window reaches from %d to %d, %d are allowed", "low", "high", "reach"))


def marks(trace: Trace) -> DataFrame:
    """S7: low <= delivered <= high, and none of them goes down while the origin stays a member."""
    rows = trace.of("STATE").select(
        *AT, "idx", "t_ns", "view", "low", "delivered", "high", F.col("high").alias("seqno")
    )
    mixed = rows.where("low > delivered or delivered > high")
    order = Window.partitionBy(*AT).orderBy("idx")
    before = F.lag(F.struct("low", "delivered", "high", "view")).over(order)
    back = rows.withColumn("before", before).where(
        "low < before.low or delivered < before.delivered or high < before.high"
    )
    back = _without_returns(trace, back)
    were = says("its marks are out of order: %d, %d, %d", "low", "delivered", "high")
    went = says(
        "its marks went back from %d, %d, %d to %d, %d, %d",
        *("before.low", "before.delivered", "before.high"),
        *("low", "delivered", "high"),
    )
    return together(violations("S7", mixed, were), violations("S7", back, went))


def _without_returns(trace: Trace, rows: DataFrame) -> DataFrame:
    """Leave out streams whose origin was gone in between: they have begun anew."""
    told = trace.rare("MEMBERS").select(
        "seed", "member", F.col("view").alias("number"), F.split("reason", " ").alias("names")
    )
    named = trace.named(rows)
    gone = named.join(told, ["seed", "member"]).where(
        (F.col("number") > F.col("before.view"))
        & (F.col("number") <= F.col("view"))
        & ~F.array_contains("names", F.col("origin_name"))
    )
    return rows.join(gone.select(*AT, "idx"), [*AT, "idx"], "left_anti")


def with_marks(trace: Trace, *events: str) -> DataFrame:
    """Return the rows of some events, about streams to the group, with the marks that the life told before.

    ``delivered_then`` and ``low_then`` are those of the last STATE row before; ``delivered_soon`` and ``high_soon`` those
    at the end of the same step. Null where nothing has been told.
    """
    rows = trace.of("STATE", *events).where("to = 0")
    is_state = is_one_of("STATE")
    order = Window.partitionBy(*AT).orderBy("step", "idx")
    then = order.rowsBetween(Window.unboundedPreceding, -1)
    soon = Window.partitionBy(*AT).orderBy("step").rangeBetween(Window.unboundedPreceding, 0)

    def told(mark: str, where: Window) -> Column:
        return F.last(F.when(is_state, F.col(mark)), ignorenulls=True).over(where)

    rows = rows.select(
        "*",
        told("low", then).alias("low_then"),
        told("delivered", then).alias("delivered_then"),
    ).select("*", told("delivered", soon).alias("delivered_soon"), told("high", soon).alias("high_soon"))
    return rows.where(~is_state)


def acks_follow(rows: DataFrame) -> DataFrame:
    """S8, at the receiver: it acknowledges nothing beyond its delivered mark."""
    false = rows.where(is_one_of("ACK_OUT") & (F.col("seqno_last") > F.coalesce("delivered_soon", F.lit(0))))
    message = says("acknowledges %d, it has %d", "seqno_last", F.coalesce("delivered_soon", F.lit(0)))
    return violations("S8", false, message)


def repairs_are_kept(rows: DataFrame) -> DataFrame:
    """S10, the stock: a repair is of what was not let go before."""
    gone = rows.where(is_one_of("REPAIR") & (F.col("seqno") <= F.col("low_then")))
    return violations("S10", gone, says("sends %s again, but has let go up to %d", span(), "low_then"))


def naks_are_due(rows: DataFrame) -> DataFrame:
    """S11, the range: a nak names nothing that was delivered."""
    had = rows.where(is_one_of("NAK_OUT") & (F.col("seqno") <= F.col("delivered_then")))
    return violations("S11", had, says("asks for %s, but has delivered %d", span(), "delivered_then"))


def naks_exist(trace: Trace) -> DataFrame:
    """S11, the other end: a nak names what was sent, and goes to the origin, or to a holder where that is allowed."""
    naks = trace.of("NAK_OUT")
    far = (
        naks.join(trace.recorded("origin"), ["seed", "origin"], "left_semi")
        .join(F.broadcast(sent(trace)), [*STREAM], "left")
        .where(F.col("seqno_last") > F.coalesce("sent", F.lit(0)))
    )
    message = says("asks for %s, but only %d were sent", span(), F.coalesce("sent", F.lit(0)))
    anybody = trace.recorded("member", "knobs['xmit_from_random_member'] = 'true'")
    astray = trace.named(naks.where("peer != origin").join(anybody, ["seed", "member"], "left_anti"))
    elsewhere = says("asks %s for %s, which is not its origin", "peer_name", span())
    return together(violations("S11", far, message), violations("S11", astray, elsewhere))


def acceptance(rows: DataFrame, reach: DataFrame) -> DataFrame:
    """S12: what is taken is in range, and what is dropped is dropped for the right reason.

    A run that arrived and of which nothing is told cannot be seen.
    """
    rows = rows.join(reach, ["seed", "member"]).where(
        is_one_of("STORE") | (is_one_of("DROPPED") & F.col("reason").isin(*DATA_REASONS))
    )
    limit = F.col("delivered_soon") + F.col("reach")
    is_store, reason = F.col("event") == code("STORE"), F.col("reason")
    stale = rows.where(is_store & (F.col("seqno_last") <= F.col("delivered_then")))
    ahead = rows.where(is_store & (F.col("seqno") > limit))
    near = rows.where(~is_store & (reason == "far") & (F.col("seqno_last") <= F.col("delivered_then") + F.col("reach")))
    fresh = rows.where(
        ~is_store & reason.isin("old", "duplicate") & (F.col("seqno") > F.greatest("high_soon", "delivered_soon"))
    )
    return together(
        violations("S12", stale, says("takes %s, but has delivered %d", span(), "delivered_then")),
        violations("S12", ahead, says("takes %s, but %d is the last in reach", span(), limit)),
        violations("S12", near, says("drops %s as too far, but has delivered %d", span(), "delivered_then")),
        violations("S12", fresh, says("drops %s as %s, but %d is the last it has", span(), "reason", "high_soon")),
    )


def acceptance_adds_up(trace: Trace) -> DataFrame:
    """S12, the sum: each message of a run that arrived is either taken or dropped."""
    rows = (
        trace.of("STORE", "DROPPED")
        .where("to = 0")
        .where(
            (is_one_of("STORE") & (F.col("k") != count()))
            | (is_one_of("DROPPED") & F.col("reason").isin(*DATA_REASONS))
        )
    )
    key = ("step", "seqno", "seqno_last")
    sums = rows.groupBy(*AT, *key).agg(F.sum("k").alias("k"), F.min("idx").alias("idx"), F.min("t_ns").alias("t_ns"))
    odd = sums.where(F.col("k") % count() != 0)
    return violations("S12", odd, says("of %s that arrived %d are taken or dropped", span(), "k"))

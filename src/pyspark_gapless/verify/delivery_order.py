"""S1, S2 and S3: delivered messages were sent, and are delivered once, in order, without gaps.

Level 1 is a hash aggregate over all rows of SEND and DELIVER. The recorder counts earlier messages
of a part of a stream in ``k``, so ``seqno - k`` is the same in all rows of a part, and equals the
announced start. Level 2 goes through the rows of all other parts in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_AT_MEMBER, STREAM_KEY
from pyspark_gapless.verify.violations import (
    format_message,
    seqno_count,
    seqno_range,
    union,
    violations,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

PART_KEY = (*STREAM_AT_MEMBER, "part")
IN_ORDER = ("", "one")
"""The reasons of deliveries in order: of a stream to the group, and of a connection."""


def in_order(trace: Trace) -> DataFrame:
    """Return the deliveries in the order of a stream."""
    return trace.where_event("DELIVER").where(F.col("reason").isin(*IN_ORDER))


def stream_parts(trace: Trace) -> DataFrame:
    """Return the begin and the end of each part of each stream at each incarnation."""
    begin = F.col("seqno") - F.col("k")
    found = (
        F.min(begin).alias("begin"),
        F.max(begin).alias("begin_last"),
        F.min_by(begin, "idx").alias("begin_first"),
        F.min("seqno").alias("seqno"),
        F.max("seqno_last").alias("seqno_last"),
        F.min("idx").alias("idx"),
        F.min("t_ns").alias("t_ns"),
    )
    return trace.cached("parts", lambda: in_order(trace).groupBy(*PART_KEY).agg(*found))


def send_ranges(trace: Trace) -> DataFrame:
    """Return how far each stream was sent in each view, and the first row out of order."""
    leap = F.when(
        F.col("seqno") != F.col("k") + 1, F.struct("idx", "t_ns", "seqno", "seqno_last", "k")
    )
    found = F.max("seqno_last").alias("sent"), F.min(leap).alias("leap")
    return trace.cached(
        "sends", lambda: trace.where_event("SEND").groupBy(*STREAM_AT_MEMBER, "view").agg(*found)
    )


def sent_up_to(trace: Trace) -> DataFrame:
    """Return up to where each stream has been sent."""
    return send_ranges(trace).groupBy(*STREAM_KEY).agg(F.max("sent").alias("sent"))


def no_creation(trace: Trace) -> DataFrame:
    """S1: seqnos are consecutive, and a delivered message was sent before.

    The order of send and delivery is checked in simulated traces only: otherwise the clocks of two
    incarnations would have to agree. Streams of unrecorded incarnations are left out.
    """
    leaps = (
        send_ranges(trace)
        .groupBy(*STREAM_AT_MEMBER)
        .agg(F.min("leap").alias("leap"))
        .where("leap is not null")
        .select(*STREAM_AT_MEMBER, "leap.*")
    )
    found = violations(
        "S1",
        leaps,
        format_message("sends %s as new, but %d was the last seqno", seqno_range(), "k"),
    )
    # A sample of the origin shows what was sent only up to its last multiple, and a delivery may
    # end behind that.
    every = F.greatest("every", F.lit(1))
    known = trace.incarnations.where("own and whole").select(
        "seed", F.col("life").alias("origin"), every.alias("every")
    )
    reached = F.col("seqno_last") - F.col("seqno_last") % F.col("every")
    beyond = (
        stream_parts(trace)
        .join(F.broadcast(known), ["seed", "origin"])
        .join(F.broadcast(sent_up_to(trace)), [*STREAM_KEY], "left")
        .where(reached > F.coalesce("sent", F.lit(0)))
        .select(*PART_KEY, F.coalesce("sent", F.lit(0)).alias("sent"), "every")
    )
    far = trace.cached("beyond", lambda: beyond)
    rows = in_order(trace).join(F.broadcast(far), [*PART_KEY]).where(reached > F.col("sent"))
    never = violations(
        "S1",
        first_per_key(rows, *PART_KEY),
        format_message("delivers %s, but %d was the last sent message", seqno_range(), "sent"),
    )
    return union(found, never, *([_too_early(trace)] if trace.simulated else []))


def _too_early(trace: Trace) -> DataFrame:
    """Return deliveries before their send, in the order of a simulated run."""
    rows = trace.where_event("SEND").withColumn("sent", F.col("seqno_last"))
    rows = rows.unionByName(in_order(trace).withColumn("sent", F.lit(None).cast("bigint")))
    so_far = (
        Window.partitionBy(*STREAM_KEY).orderBy("step").rangeBetween(Window.unboundedPreceding, 0)
    )
    rows = rows.withColumn("high_then", F.max("sent").over(so_far)).withColumn(
        "high", F.max("sent").over(Window.partitionBy(*STREAM_KEY))
    )
    early = rows.where(
        F.col("sent").isNull()
        & (F.col("seqno_last") > F.coalesce("high_then", F.lit(0)))
        & (F.col("seqno_last") <= F.col("high"))
    )
    return violations(
        "S1",
        first_per_key(early, *PART_KEY),
        format_message("delivers %s before it was sent", seqno_range()),
    )


def no_duplicate(trace: Trace) -> DataFrame:
    """S2: an incarnation delivers no message of a stream twice, however often the stream starts."""
    again = _out_of_order_rows(trace).where(F.col("seqno") <= F.col("highest"))
    within = violations(
        "S2", again, format_message("delivers %s after %d", seqno_range(), "highest")
    )
    before = (
        Window.partitionBy(*STREAM_AT_MEMBER)
        .orderBy("part")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    later = stream_parts(trace).withColumn("highest", F.max("seqno_last").over(before))
    later = later.where(
        (F.col("seqno") <= F.col("highest")) & (F.col("begin") == F.col("begin_last"))
    )
    message = format_message("restarts with %d, but has delivered %d", "seqno", "highest")
    return union(within, violations("S2", later, message))


def gapless_prefix(trace: Trace) -> DataFrame:
    """S3: each part of a stream begins at the announced start, and has no gap.

    The rest of a fragmented message from before the start is not delivered, and messages without
    loopback are left out at their sender: the recorder counts both as passed. Messages in a state
    are not in the trace, so an incarnation with a received state may begin anywhere.
    """
    gaps = _out_of_order_rows(trace).where(F.col("seqno") > F.col("due"))
    within = violations(
        "S3", gaps, format_message("delivers %s, but %d is next", seqno_range(), "due")
    )
    starts = trace.rare_rows("START", "LOST").select(
        *PART_KEY, F.greatest(F.col("seqno"), F.col("seqno_last") + 1).alias("start")
    )
    starts = starts.groupBy(*PART_KEY).agg(F.max("start").alias("start"))
    given = trace.rare_rows("STATE_IN").select("seed", "member").distinct()
    begun = stream_parts(trace).join(starts, [*PART_KEY], "left")
    begun = begun.withColumn("start", F.coalesce("start", F.when(_starts_at_one(), 1)))
    wrong = begun.where(F.col("start").isNull() | (F.col("begin_first") != F.col("start")))
    wrong = _exclude_headless(
        trace, wrong.join(F.broadcast(given), ["seed", "member"], "left_anti")
    )
    message = F.when(
        F.col("start").isNull(),
        format_message("delivers from %d on without an announced start", "seqno"),
    ).otherwise(
        format_message("delivers from %d on, but the announced start is %d", "seqno", "start")
    )
    again = format_message(
        ("restarts at %d, but %d is next; the origin never left and no state was received"),
        "seqno",
        "due",
    )
    return union(
        within, violations("S3", wrong, message), violations("S3", _restarts(trace, given), again)
    )


def _restarts(trace: Trace, given: DataFrame) -> DataFrame:
    """Return starts that skip part of a stream in delivery, without a reason.

    An incarnation with a received state continues after the state, and the stream of a returned
    member starts again. Before the first delivery the start may move: a sender that learns of a
    view late owes less than announced.
    """
    before = F.lag("view").over(Window.partitionBy(*STREAM_AT_MEMBER).orderBy("idx"))
    starts = trace.rare_rows("START").withColumn("then_view", before).where("then_view is not null")
    starts = starts.join(F.broadcast(given), ["seed", "member"], "left_anti")
    ends = stream_parts(trace).select(
        *STREAM_AT_MEMBER, F.col("part").alias("former"), F.col("seqno_last").alias("end")
    )
    done = starts.join(ends, [*STREAM_AT_MEMBER]).where("former < part")
    done = done.groupBy(*STREAM_AT_MEMBER, "idx").agg((F.max("end") + 1).alias("due"))
    return exclude_returned_origins(
        trace, starts.join(done, [*STREAM_AT_MEMBER, "idx"]).where("seqno > due")
    )


def exclude_returned_origins(trace: Trace, found: DataFrame) -> DataFrame:
    """Drop rows of streams with an origin absent since view ``then_view``: such streams restart."""
    told = trace.rare_rows("MEMBERS").select(
        "seed", "member", F.col("view").alias("number"), F.split("reason", " ").alias("names")
    )
    gone = (
        trace.with_names(found)
        .join(F.broadcast(told), ["seed", "member"])
        .where(
            (F.col("number") > F.col("then_view"))
            & (F.col("number") <= F.col("view"))
            & ~F.array_contains("names", F.col("origin_name"))
        )
    )
    return found.join(
        gone.select(*STREAM_AT_MEMBER, "idx").distinct(), [*STREAM_AT_MEMBER, "idx"], "left_anti"
    )


def _exclude_headless(trace: Trace, wrong: DataFrame) -> DataFrame:
    """Drop starts after the rest of a message dropped before the start, in the same step."""
    wrong = trace.cached("wrong starts", lambda: wrong)
    rests = (
        trace.where_event("DROPPED")
        .where("reason = 'headless'")
        .select(*STREAM_AT_MEMBER, F.col("seqno").alias("rest"), F.col("seqno_last").alias("end"))
    )
    passed = wrong.join(rests, [*STREAM_AT_MEMBER]).where("rest >= start and end < seqno")
    passed = passed.groupBy(*PART_KEY).agg(F.sum(F.col("end") - F.col("rest") + 1).alias("passed"))
    found = wrong.join(passed, [*PART_KEY], "left").fillna(0, "passed")
    return found.where("start is null or begin_first != start + passed").drop("passed")


def _starts_at_one() -> Column:
    """Return whether a stream starts at 1 without an announcement: the own stream, a connection."""
    return (F.col("member") == F.col("origin")) | (F.col("to") != 0)


def _out_of_order_rows(trace: Trace) -> DataFrame:
    """Return rows of parts out of order, each with the expected and highest seqno."""
    flagged = trace.cached(
        "out of order", lambda: stream_parts(trace).where("begin != begin_last").select(*PART_KEY)
    )
    rows = in_order(trace).join(F.broadcast(flagged), [*PART_KEY])
    order = Window.partitionBy(*PART_KEY).orderBy("idx")
    rows = rows.withColumn(
        "highest", F.max("seqno_last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    )
    passed = F.col("k") - F.lag(F.col("k") + seqno_count()).over(order)
    return rows.withColumn("due", F.col("highest") + 1 + passed)


def first_per_key(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the first row for each key, in the order of the incarnation."""
    first = rows.groupBy(*keys).agg(F.min_by(F.struct("*"), "idx").alias("first"))
    return first.select("first.*")

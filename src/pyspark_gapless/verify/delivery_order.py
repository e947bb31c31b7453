"""S1, S2 and S3: what is delivered was sent, once, from the start on, with nothing left out.

Level 1 is one hash aggregate over all rows of SEND and DELIVER. The recorder counts in ``k`` what
came before in a part of a stream, so ``seqno - k`` is the same in all its rows, and is where the
part was said to start. Where that is not so level 2 goes through the rows of these parts in their
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import AT, STREAM
from pyspark_gapless.verify.violations import count, says, span, together, violations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

PART = (*AT, "part")
IN_ORDER = ("", "one")
"""The reasons of deliveries that are in order: of a stream to the group, and of a connection."""


def in_order(trace: Trace) -> DataFrame:
    """Return the deliveries that are in the order of a stream."""
    return trace.of("DELIVER").where(F.col("reason").isin(*IN_ORDER))


def parts(trace: Trace) -> DataFrame:
    """Return for each part of each stream at each life where it begins, and how far it goes."""
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
    return trace.once("parts", lambda: in_order(trace).groupBy(*PART).agg(*found))


def sends(trace: Trace) -> DataFrame:
    """Return for each stream and view up to where it was sent, and the first row with a number that was not due."""
    leap = F.when(
        F.col("seqno") != F.col("k") + 1, F.struct("idx", "t_ns", "seqno", "seqno_last", "k")
    )
    found = F.max("seqno_last").alias("sent"), F.min(leap).alias("leap")
    return trace.once("sends", lambda: trace.of("SEND").groupBy(*AT, "view").agg(*found))


def sent(trace: Trace) -> DataFrame:
    """Return up to where each stream has been sent."""
    return sends(trace).groupBy(*STREAM).agg(F.max("sent").alias("sent"))


def no_creation(trace: Trace) -> DataFrame:
    """S1: numbers are given one after the other, and what is delivered has been sent, before.

    That it was sent *before* is looked at in simulated traces only: in others the clocks of two
    lives would have to agree. Streams of lives that were not recorded are left out.
    """
    leaps = (
        sends(trace)
        .groupBy(*AT)
        .agg(F.min("leap").alias("leap"))
        .where("leap is not null")
        .select(*AT, "leap.*")
    )
    found = violations("S1", leaps, says("%s goes out as new, but %d was last", span(), "k"))
    # A sample of the origin shows what was sent only up to its last multiple, and a delivery may
    # end behind that.
    every = F.greatest("every", F.lit(1))
    known = trace.lives.where("own and whole").select(
        "seed", F.col("life").alias("origin"), every.alias("every")
    )
    reached = F.col("seqno_last") - F.col("seqno_last") % F.col("every")
    beyond = (
        parts(trace)
        .join(F.broadcast(known), ["seed", "origin"])
        .join(F.broadcast(sent(trace)), [*STREAM], "left")
        .where(reached > F.coalesce("sent", F.lit(0)))
        .select(*PART, F.coalesce("sent", F.lit(0)).alias("sent"), "every")
    )
    far = trace.once("beyond", lambda: beyond)
    rows = in_order(trace).join(F.broadcast(far), [*PART]).where(reached > F.col("sent"))
    never = violations(
        "S1",
        first_of(rows, *PART),
        says("delivers %s, but %d was the last that was sent", span(), "sent"),
    )
    return together(found, never, *([_too_early(trace)] if trace.simulated else []))


def _too_early(trace: Trace) -> DataFrame:
    """Return what was delivered before it was sent, in the order of a simulated run."""
    rows = trace.of("SEND").withColumn("sent", F.col("seqno_last"))
    rows = rows.unionByName(in_order(trace).withColumn("sent", F.lit(None).cast("bigint")))
    so_far = Window.partitionBy(*STREAM).orderBy("step").rangeBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumn("high_then", F.max("sent").over(so_far)).withColumn(
        "high", F.max("sent").over(Window.partitionBy(*STREAM))
    )
    early = rows.where(
        F.col("sent").isNull()
        & (F.col("seqno_last") > F.coalesce("high_then", F.lit(0)))
        & (F.col("seqno_last") <= F.col("high"))
    )
    return violations("S1", first_of(early, *PART), says("delivers %s before it was sent", span()))


def no_duplicate(trace: Trace) -> DataFrame:
    """S2: a life delivers no message of a stream twice, however often the stream starts there."""
    again = _walked(trace).where(F.col("seqno") <= F.col("highest"))
    within = violations("S2", again, says("delivers %s after %d", span(), "highest"))
    before = Window.partitionBy(*AT).orderBy("part").rowsBetween(Window.unboundedPreceding, -1)
    later = parts(trace).withColumn("highest", F.max("seqno_last").over(before))
    later = later.where(
        (F.col("seqno") <= F.col("highest")) & (F.col("begin") == F.col("begin_last"))
    )
    message = says("begins anew with %d, but has delivered %d", "seqno", "highest")
    return together(within, violations("S2", later, message))


def gapless_prefix(trace: Trace) -> DataFrame:
    """S3: each part of a stream begins where it was said to start, and goes on one by one.

    Of a message in pieces that had begun before the start the rest cannot be handed out, and
    messages that their sender did not want back are left out: the recorder counts both as passed.
    What a state covers is not in the trace: whoever was given one may begin anywhere.
    """
    gaps = _walked(trace).where(F.col("seqno") > F.col("due"))
    within = violations("S3", gaps, says("delivers %s, but %d is next", span(), "due"))
    starts = trace.rare("START", "LOST").select(
        *PART, F.greatest(F.col("seqno"), F.col("seqno_last") + 1).alias("start")
    )
    starts = starts.groupBy(*PART).agg(F.max("start").alias("start"))
    given = trace.rare("STATE_IN").select("seed", "member").distinct()
    begun = parts(trace).join(starts, [*PART], "left")
    begun = begun.withColumn("start", F.coalesce("start", F.when(_starts_at_one(), 1)))
    wrong = begun.where(F.col("start").isNull() | (F.col("begin_first") != F.col("start")))
    wrong = _without_headless(
        trace, wrong.join(F.broadcast(given), ["seed", "member"], "left_anti")
    )
    message = F.when(
        F.col("start").isNull(), says("delivers from %d on, but was told no start", "seqno")
    ).otherwise(says("delivers from %d on, but was told to start at %d", "seqno", "start"))
    again = says(
        "starts anew at %d, but %d is next, the origin never left and no state came", "seqno", "due"
    )
    return together(
        within, violations("S3", wrong, message), violations("S3", _restarts(trace, given), again)
    )


def _restarts(trace: Trace, given: DataFrame) -> DataFrame:
    """Return the starts that leave something out of a stream that was being delivered, where nothing allows for that.

    Whoever was given a state goes on behind it, and the stream of a member that was away begins
    anew. Before the first delivery the start may move: a sender that learns of a view late owes
    less than was thought.
    """
    before = F.lag("view").over(Window.partitionBy(*AT).orderBy("idx"))
    starts = trace.rare("START").withColumn("then_view", before).where("then_view is not null")
    starts = starts.join(F.broadcast(given), ["seed", "member"], "left_anti")
    ends = parts(trace).select(*AT, F.col("part").alias("former"), F.col("seqno_last").alias("end"))
    done = starts.join(ends, [*AT]).where("former < part")
    done = done.groupBy(*AT, "idx").agg((F.max("end") + 1).alias("due"))
    return without_returns(trace, starts.join(done, [*AT, "idx"]).where("seqno > due"))


def without_returns(trace: Trace, found: DataFrame) -> DataFrame:
    """Leave out rows of streams whose origin was gone since the view ``then_view``: there all begins anew."""
    told = trace.rare("MEMBERS").select(
        "seed", "member", F.col("view").alias("number"), F.split("reason", " ").alias("names")
    )
    gone = (
        trace.named(found)
        .join(F.broadcast(told), ["seed", "member"])
        .where(
            (F.col("number") > F.col("then_view"))
            & (F.col("number") <= F.col("view"))
            & ~F.array_contains("names", F.col("origin_name"))
        )
    )
    return found.join(gone.select(*AT, "idx").distinct(), [*AT, "idx"], "left_anti")


def _without_headless(trace: Trace, wrong: DataFrame) -> DataFrame:
    """Leave out what begins behind the rest of a message that was dropped before the start was told, in its step."""
    wrong = trace.once("wrong starts", lambda: wrong)
    rests = (
        trace.of("DROPPED")
        .where("reason = 'headless'")
        .select(*AT, F.col("seqno").alias("rest"), F.col("seqno_last").alias("end"))
    )
    passed = wrong.join(rests, [*AT]).where("rest >= start and end < seqno")
    passed = passed.groupBy(*PART).agg(F.sum(F.col("end") - F.col("rest") + 1).alias("passed"))
    found = wrong.join(passed, [*PART], "left").fillna(0, "passed")
    return found.where("start is null or begin_first != start + passed").drop("passed")


def _starts_at_one() -> Column:
    """Return whether nobody has to say where a stream starts: the own one, and a connection."""
    return (F.col("member") == F.col("origin")) | (F.col("to") != 0)


def _walked(trace: Trace) -> DataFrame:
    """Return the rows of parts that are not in order, each with what is due and the highest before it."""
    flagged = trace.once(
        "out of order", lambda: parts(trace).where("begin != begin_last").select(*PART)
    )
    rows = in_order(trace).join(F.broadcast(flagged), [*PART])
    order = Window.partitionBy(*PART).orderBy("idx")
    rows = rows.withColumn(
        "highest", F.max("seqno_last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    )
    passed = F.col("k") - F.lag(F.col("k") + count()).over(order)
    return rows.withColumn("due", F.col("highest") + 1 + passed)


def first_of(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the first row for each key, in the order of its life."""
    first = rows.groupBy(*keys).agg(F.min_by(F.struct("*"), "idx").alias("first"))
    return first.select("first.*")

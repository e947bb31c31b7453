"""S10, S11 and L4: repairs are asked for, naks are paced, and neither costs more than was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_AT_MEMBER
from pyspark_gapless.trace.trace import event_code, is_one_of
from pyspark_gapless.verify.violations import (
    format_message,
    seqno_count,
    seqno_range,
    seqnos,
    union,
    violations,
)
from pyspark_gapless.verify.window_marks import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace

SLOWEST_PERCENT = 94
"""A simulated clock may run 5 % fast: an interval may be as much shorter, plus rounding."""
ONE_BLOCK = 256
"""Size of the blocks of messages for the lookup of stored runs."""


def each_seqno(rows: DataFrame, *columns: str) -> DataFrame:
    """Return a row for each message of the ranges, as ``number``."""
    return rows.select(*STREAM_AT_MEMBER, *columns, F.explode(seqnos()).alias("number"))


def repairs_were_requested(trace: Trace) -> DataFrame:
    """S10, the request: a repair answers an earlier request, unless marked as unasked.

    Whether every requested and stored message is repaired is left to the simulator.
    """
    asked = each_seqno(trace.where_event("NAK_IN"), "idx").withColumnRenamed("idx", "asked")
    asked = asked.groupBy(*STREAM_AT_MEMBER, "number").agg(F.min("asked").alias("asked"))
    made = each_seqno(
        trace.where_event("REPAIR").where("reason != 'unasked'"),
        "idx",
        "t_ns",
        "seqno",
        "seqno_last",
    )
    unasked = made.join(asked, [*STREAM_AT_MEMBER, "number"], "left").where(
        "asked is null or asked > idx"
    )
    unasked = unasked.dropDuplicates(["seed", "member", "idx"])
    return violations(
        "S10",
        unasked,
        format_message("resends %s, but no member has requested %d", seqno_range(), "number"),
    )


def naks_are_paced(trace: Trace) -> DataFrame:
    """S11, the pace: a nak is repeated only after ``min_retry``, and never for a stored message.

    By the clock of the machine: a process may write its decisions late. Compared within a view,
    because the stream of a returning member starts again. The age of a gap at its first request is
    left to the simulator.
    """
    retry = F.when(
        F.col("knobs")["adaptive_grace"] == "false", setting("xmit_interval_ns")
    ).otherwise(setting("min_retry_ns"))
    pace = trace.incarnations.where("own").select(
        "seed", F.col("life").alias("member"), retry.alias("retry_ns")
    )
    told_ns = F.when(F.col("sent_ns") > 0, F.col("sent_ns")).otherwise(
        F.col("t_ns")
    )  # older traces do not have the column
    naks = trace.where_event("NAK_OUT").where("to = 0").withColumn("asked_ns", told_ns)
    named = each_seqno(naks, "idx", "t_ns", "asked_ns", "view", "seqno", "seqno_last")
    order = Window.partitionBy(*STREAM_AT_MEMBER, "number").orderBy("idx")
    before = F.lag(F.struct("asked_ns", "view")).over(order)
    named = named.withColumn("before", before).withColumn(
        "pause_ns", F.col("asked_ns") - F.col("before.asked_ns")
    )
    hasty = named.where("view = before.view").join(F.broadcast(pace), ["seed", "member"])
    hasty = hasty.where(F.col("pause_ns") * 100 < F.col("retry_ns") * SLOWEST_PERCENT)
    hasty = hasty.dropDuplicates(["seed", "member", "idx"])
    again = format_message(
        "requests %d again after %d ns; the minimum pause is %d", "number", "pause_ns", "retry_ns"
    )
    return union(violations("S11", hasty, again), _naks_for_stored(trace))


def _naks_for_stored(trace: Trace) -> DataFrame:
    """Return the naks for messages stored, whole, before."""
    block = F.floor(F.col("number") / ONE_BLOCK)
    asked = each_seqno(
        trace.where_event("NAK_OUT"), "idx", "t_ns", "view", "seqno", "seqno_last"
    ).withColumn("block", block)
    blocks = asked.select(*STREAM_AT_MEMBER, "block").distinct()
    stored = (
        trace.where_event("STORE")
        .where(F.col("k") == seqno_count())
        .select(
            *STREAM_AT_MEMBER,
            "view",
            F.col("idx").alias("stored_idx"),
            F.col("seqno").alias("first"),
            F.col("seqno_last").alias("last"),
            F.explode(seqnos(ONE_BLOCK)).alias("block"),
        )
    )
    stored = stored.join(F.broadcast(blocks), [*STREAM_AT_MEMBER, "block"], "left_semi")
    held = asked.join(stored, [*STREAM_AT_MEMBER, "view", "block"]).where(
        "number between first and last and stored_idx < idx"
    )
    held = held.dropDuplicates(["seed", "member", "idx"])
    return violations(
        "S11", held, format_message("requests %s, but has stored %d", seqno_range(), "number")
    )


def repair_cost(trace: Trace) -> DataFrame:
    """L4: repairs <= 1.5 x lost data frames + 1 per loss episode; without loss none at all.

    Checked in simulated runs with loss as the only fault and scripted views: the network of real
    processes does not report its losses.
    """
    alone = (
        trace.incarnations.where("own and knobs['character'] in ('calm', 'loss')")
        .select("seed")
        .distinct()
    )
    kind = F.split("frame_id", " ")[0]
    by_themselves = (
        trace.where_event("TX")
        .where(kind.isin("ALIVE", "BEACON", "JOIN"))
        .select("seed")
        .distinct()
    )
    alone = alone.join(by_themselves, "seed", "left_anti")
    sums = _repair_costs(trace).join(F.broadcast(alone), "seed")
    dear = sums.where("repairs > 1.5 * lost + bursts")
    idle = sums.where("lost = 0 and naks > 0")
    much = format_message(
        "%d repairs for %d lost data frames in %d bursts", "repairs", "lost", "bursts"
    )
    return union(
        violations("L4", dear, much),
        violations("L4", idle, format_message("%d naks, but nothing was lost", "naks")),
    )


def _repair_costs(trace: Trace) -> DataFrame:
    """Return for each seed the repairs, the naks, the lost data frames and the loss episodes."""
    frames = trace.where_event("TX", "NET_DROP").where(
        F.split("frame_id", " ")[0].isin("DATA", "REPAIR")
    )
    link = Window.partitionBy("seed", "member", "peer").orderBy("idx")
    follows = F.lead(F.struct("event", "frame_id")).over(link)
    frames = frames.withColumn("follows", follows).where(is_one_of("TX"))
    lost = (F.col("follows.event") == event_code("NET_DROP")) & (
        F.col("follows.frame_id") == F.col("frame_id")
    )
    frames = frames.withColumn("lost", F.coalesce(lost, F.lit(False)))
    begins = F.col("lost") & ~F.lag("lost", 1, False).over(link)
    frames = frames.withColumn("begins", begins)
    losses = frames.groupBy("seed").agg(
        F.count_if("lost").alias("lost"), F.count_if("begins").alias("bursts")
    )
    asked = trace.where_event("REPAIR", "NAK_OUT").where("to = 0").groupBy("seed")
    spent = asked.agg(
        F.count_if(is_one_of("REPAIR")).alias("repairs"),
        F.count_if(is_one_of("NAK_OUT")).alias("naks"),
    )
    return spent.join(losses, "seed", "left").fillna(0, ["lost", "bursts"])

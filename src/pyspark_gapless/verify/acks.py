"""S8 and S9: members acknowledge delivered messages; all members acknowledge purged messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_AT_MEMBER, STREAM_KEY
from pyspark_gapless.trace.trace import event_code, is_one_of
from pyspark_gapless.verify.views import owed_from
from pyspark_gapless.verify.violations import format_message, union, violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace


def acks_were_sent(trace: Trace) -> DataFrame:
    """S8, at the sender: the member of each arriving ack has sent the ack, if recorded.

    In a simulated trace the ack was sent before.
    """
    reader = F.when(F.col("event") == event_code("ACK_OUT"), F.col("member")).otherwise(
        F.col("peer")
    )
    rows = trace.where_event("ACK_OUT", "ACK_IN").withColumn("reader", reader)
    said = rows.groupBy(*STREAM_KEY, "reader", "seqno_last").agg(
        F.min(F.when(is_one_of("ACK_OUT"), F.col("step"))).alias("sent_step"),
        F.min(F.when(is_one_of("ACK_IN"), F.col("step"))).alias("step"),
        F.min(F.when(is_one_of("ACK_IN"), F.col("idx"))).alias("idx"),
        F.min(F.when(is_one_of("ACK_IN"), F.col("t_ns"))).alias("t_ns"),
    )
    early = "sent_step is null or sent_step > step" if trace.simulated else "sent_step is null"
    false = (
        said.where("step is not null")
        .where(early)
        .join(trace.complete_incarnations("reader"), ["seed", "reader"], "left_semi")
    )
    # The receiver of an ack is the origin of the messages.
    false = false.withColumn("member", F.col("origin")).withColumnRenamed("reader", "peer")
    false = trace.with_names(false.withColumn("seqno", F.col("seqno_last")))
    return violations(
        "S8",
        false,
        format_message("received an ack of %s for %d that was never sent", "peer_name", "seqno"),
    )


def purge_is_safe(trace: Trace) -> DataFrame:
    """S9: every member of the view has acknowledged a purged message, or joined too late.

    Where stability releases, every member has delivered the messages: before, in a simulated trace;
    at any time, in a trace of real processes. Retention for absent members is not in the trace.
    """
    purges = trace.where_event("PURGE").select(
        *STREAM_AT_MEMBER, "idx", "step", "t_ns", "view", F.col("seqno_last").alias("purged")
    )
    others = (
        owed_from(trace).select("seed", "member", "view", "peer", "base").where("peer != member")
    )
    group = purges.where("to = 0").join(F.broadcast(others), ["seed", "member", "view"])
    ones = purges.where("to != 0 and to != member").withColumns(
        {"peer": F.col("to"), "base": F.lit(0).cast("bigint")}
    )
    wanted = group.unionByName(ones.select(group.columns))
    releases = trace.incarnations.where("own").select(
        "seed", F.col("life").alias("member"), "release"
    )
    wanted = wanted.join(F.broadcast(releases), ["seed", "member"])
    by_acks = wanted.where("release = 'acks' or to != 0").drop("release")
    by_truth = wanted.where("release != 'acks' and to = 0").drop("release")
    return union(_without_ack(trace, by_acks), _without_delivery(trace, by_truth))


def _without_ack(trace: Trace, purges: DataFrame) -> DataFrame:
    acks = trace.where_event("ACK_IN").select(
        *STREAM_AT_MEMBER, "idx", "peer", F.col("seqno_last").alias("ack")
    )
    rows = purges.unionByName(acks, allowMissingColumns=True)
    before = (
        Window.partitionBy(*STREAM_AT_MEMBER, "peer")
        .orderBy("idx")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    rows = rows.withColumn("acked", F.greatest(F.max("ack").over(before), "base"))
    early = trace.with_names(
        rows.where(F.col("purged") > F.col("acked")).withColumn("seqno", F.col("purged"))
    )
    return violations(
        "S9",
        early,
        format_message(
            "purges up to %d, but %s has acknowledged only %d", "purged", "peer_name", "acked"
        ),
    )


def _without_delivery(trace: Trace, purges: DataFrame) -> DataFrame:
    states = trace.where_event("STATE").where("to = 0 and member != origin")
    states = states.select(*STREAM_KEY, "step", F.col("member").alias("peer"), "delivered")
    known = purges.join(trace.complete_incarnations("peer"), ["seed", "peer"], "left_semi")
    rows = known.unionByName(states, allowMissingColumns=True)
    reader = Window.partitionBy(*STREAM_KEY, "peer")
    if trace.simulated:
        reader = reader.orderBy("step").rangeBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumn("has", F.greatest(F.max("delivered").over(reader), "base"))
    early = rows.where(F.col("purged") > F.coalesce("has", F.lit(0))).withColumn(
        "seqno", F.col("purged")
    )
    message = format_message(
        "purges up to %d, but %s has delivered only %d",
        "purged",
        "peer_name",
        F.coalesce("has", F.lit(0)),
    )
    return violations("S9", trace.with_names(early), message)

"""For how long sends waited for room, and whose ack they waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.rows import LIFE
from pyspark_gapless.trace.trace import code, is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIGNS = ("ACK_IN", "STABLE_IN", "VOTE_IN")
"""What makes room: an ack, or being told that something is stable."""
_BY_OTHERS = ("ack", "stable")


class Waits(Dataset):
    """A stretch of time in which at least one send of a life waited for room, and the cause of its end.

    ``cause`` is the life that was waited for: whose ack, or word of what is stable, let the next send go on; 0 if it
    was something else, which ``reason`` names. A stretch that nothing ended has no reason.
    """

    name = "waits"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "from_ns": "bigint",
        "until_ns": "bigint",
        "cause": "bigint",
        "reason": "string",
        "released": "boolean",
    }


class Blocked(Dataset):
    """Each life that waited: how many of its sends, for how long at least one of them, and the longest of one."""

    name = "blocked"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "times": "bigint",
        "blocked_ns": "bigint",
        "longest_ns": "bigint",
        "caused_by": "array<struct<blocked_ns:bigint,times:bigint,cause:bigint,reason:string>>",
    }


def waits(rows: DataFrame, rare: DataFrame, ends: DataFrame) -> Waits:
    """Return the stretches of waiting, without overlap: as long as any send waits, its life does.

    ``rare`` has the rows of BLOCK and UNBLOCK, ``ends`` when each life ended: then a wait is over that nothing ended.
    """
    turns = rare.where(is_one_of("BLOCK", "UNBLOCK")).select(*LIFE, "idx", "step", "event", "at_ns", "reason")
    freed = turns.where(is_one_of("UNBLOCK")).select(*LIFE, "step").distinct()
    signs = rows.where(is_one_of(*SIGNS)).select(*LIFE, "step", "idx", "peer")
    peers = signs.join(freed, [*LIFE, "step"], "left_semi")
    peers = peers.groupBy(*LIFE, "step").agg(F.max_by("peer", "idx").alias("peer"))
    known = turns.join(peers, [*LIFE, "step"], "left").join(ends.select(*LIFE, "ended_ns"), list(LIFE))
    # An ack that nobody sent is the own one: the life's own application had not taken its messages.
    whose = F.when(
        F.col("reason").isin(*_BY_OTHERS), F.coalesce("peer", F.when(F.col("reason") == "ack", F.col("member")))
    )
    cause = F.when(is_one_of("UNBLOCK"), F.struct(F.coalesce(whose, F.lit(0)).alias("cause"), "reason"))
    in_time = Window.partitionBy(*LIFE).orderBy("idx")
    back = Window.partitionBy(*LIFE).orderBy(F.desc("idx")).rowsBetween(Window.unboundedPreceding, -1)
    waiting = F.sum(F.when(is_one_of("BLOCK"), 1).otherwise(-1)).over(
        in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    following = F.lead("event").over(in_time)
    stretches = known.withColumn("caused", cause).select(
        *LIFE,
        F.col("at_ns").alias("from_ns"),
        F.coalesce(F.lead("at_ns").over(in_time), F.greatest("ended_ns", "at_ns")).alias("until_ns"),
        F.last("caused", ignorenulls=True).over(back).alias("caused"),
        waiting.alias("waiting"),
        F.coalesce(following == code("UNBLOCK"), F.lit(False)).alias("released"),
    )
    return Waits(
        stretches.where("waiting > 0").select(
            *LIFE,
            "from_ns",
            "until_ns",
            F.coalesce("caused.cause", F.lit(0)).cast("bigint").alias("cause"),
            F.coalesce("caused.reason", F.lit("")).alias("reason"),
            "released",
        )
    )


def blocked(stretches: DataFrame, rare: DataFrame, ends: DataFrame) -> Blocked:
    """Return the sums for each life, with who caused how much of it, most first."""
    lasted = F.col("until_ns") - F.col("from_ns")
    by_cause = stretches.groupBy(*LIFE, "cause", "reason").agg(
        F.sum(lasted).alias("blocked_ns"), F.count(F.when(F.col("released"), 1)).alias("times")
    )
    ordered = F.sort_array(F.collect_list(F.struct("blocked_ns", "times", "cause", "reason")), asc=False)
    sums = by_cause.groupBy(*LIFE).agg(F.sum("blocked_ns").alias("blocked_ns"), ordered.alias("caused_by"))
    sends = (
        rare.where(is_one_of("BLOCK", "UNBLOCK"))
        .groupBy(*LIFE, "seqno")
        .agg(
            F.min(F.when(is_one_of("BLOCK"), F.col("at_ns"))).alias("from_ns"),
            F.max(F.when(is_one_of("UNBLOCK"), F.col("at_ns"))).alias("until_ns"),
        )
    )
    single = sends.where("from_ns is not null").join(ends.select(*LIFE, "ended_ns"), list(LIFE))
    longest = single.groupBy(*LIFE).agg(
        F.count(F.lit(1)).alias("times"),
        F.max(F.coalesce("until_ns", "ended_ns") - F.col("from_ns")).alias("longest_ns"),
    )
    return Blocked(longest.join(sums, list(LIFE)))


def blocked_over_time(stretches: DataFrame, begin_ns: int, step_ns: int) -> DataFrame:
    """Return ``blocked_ns`` by life and part of the run: each stretch is cut where a part ends."""
    first = F.floor((F.col("from_ns") - begin_ns) / step_ns)
    last = F.floor((F.col("until_ns") - begin_ns) / step_ns)
    cut = stretches.where("until_ns > from_ns").withColumn("step", F.explode(F.sequence(first, last)))
    opens = F.col("step") * step_ns + begin_ns
    inside = F.least("until_ns", opens + step_ns) - F.greatest("from_ns", opens)
    return cut.groupBy(*LIFE, "step").agg(F.sum(inside).alias("blocked_ns"))

"""How long sends waited for room, and for the ack of which member."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.schema import INCARNATION_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACK_EVENTS = ("ACK_IN", "STABLE_IN", "VOTE_IN")
"""Events that make room: an ack, or a stability message."""
_BY_OTHERS = ("ack", "stable")


class SendWaits(Dataset):
    """A time span with at least one waiting send of an incarnation, and the end of the wait.

    ``cause`` is the awaited incarnation, whose ack or stability message released the next send; 0
    for another cause, named by ``reason``. A span without an end has no reason.
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


class BlockedTimes(Dataset):
    """How long sends of an incarnation waited, by cause; ``times`` counts releases."""

    name = "blocked"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "cause": "bigint",
        "reason": "string",
        "blocked_ns": "bigint",
        "times": "bigint",
    }


class LongestWaits(Dataset):
    """The longest wait of a send of an incarnation."""

    name = "longest"
    columns: ClassVar = {"seed": "bigint", "member": "bigint", "longest_ns": "bigint"}


def waits(rows: DataFrame, rare: DataFrame, ends: DataFrame) -> SendWaits:
    """Return the spans of waiting, without overlap: an incarnation waits while any send does.

    ``rare`` has the rows of BLOCK and UNBLOCK, ``ends`` the end of each incarnation; the end of an
    incarnation ends every open wait.
    """
    columns = (*INCARNATION_KEY, "step", "idx", "event", "at_ns", "reason", "peer")
    turns = rare.where(is_one_of("BLOCK", "UNBLOCK"))
    freeing = F.broadcast(turns.where(is_one_of("UNBLOCK")).select(*INCARNATION_KEY, "step"))
    signs = (
        rows.where(is_one_of(*ACK_EVENTS))
        .select(*columns)
        .join(freeing, [*INCARNATION_KEY, "step"], "left_semi")
    )
    together = turns.select(*columns).unionByName(signs).repartition(*INCARNATION_KEY)
    in_time = Window.partitionBy(*INCARNATION_KEY).orderBy("step")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    back = (
        Window.partitionBy(*INCARNATION_KEY)
        .orderBy(F.desc("step"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    stretches = (
        _steps(together)
        .withColumn("waiting", F.sum("more").over(so_far))
        .withColumn("until_ns", F.lead("from_ns").over(in_time))
        .withColumn(
            "released", F.coalesce(F.lead("caused").over(in_time).isNotNull(), F.lit(False))
        )
        .withColumn("ending", F.last("caused", ignorenulls=True).over(back))
        .where("waiting > 0")
        .join(ends, list(INCARNATION_KEY))
    )
    return SendWaits(
        stretches.select(
            *INCARNATION_KEY,
            "from_ns",
            F.coalesce("until_ns", F.greatest("ended_ns", "from_ns")).alias("until_ns"),
            F.coalesce("ending.cause", F.lit(0)).cast("bigint").alias("cause"),
            F.coalesce("ending.reason", F.lit("")).alias("reason"),
            "released",
        )
    )


def _steps(turns: DataFrame) -> DataFrame:
    """Return the steps at which sends began or ceased to wait, with the change and the cause."""
    freed = is_one_of("UNBLOCK")
    steps = turns.groupBy(*INCARNATION_KEY, "step").agg(
        F.min("at_ns").alias("from_ns"),
        F.sum(F.when(is_one_of("BLOCK"), 1).when(freed, -1).otherwise(0)).alias("more"),
        F.max(F.when(freed, F.struct("idx", "reason"))).alias("freed"),
        F.max(F.when(is_one_of(*ACK_EVENTS), F.struct("idx", "peer"))).alias("sign"),
    )
    reason = F.col("freed.reason")
    # An ack without a peer is the own one: the own application had not read its messages.
    own = F.when(reason == "ack", F.col("member"))
    whose = F.when(reason.isin(*_BY_OTHERS), F.coalesce(F.col("sign.peer"), own))
    caused = F.struct(F.coalesce(whose, F.lit(0)).alias("cause"), reason.alias("reason"))
    return steps.select(
        *INCARNATION_KEY,
        "step",
        "from_ns",
        "more",
        F.when(F.col("freed").isNotNull(), caused).alias("caused"),
    )


def blocked(stretches: DataFrame) -> BlockedTimes:
    """Return how long each incarnation waited for each other."""
    lasted = F.sum(F.col("until_ns") - F.col("from_ns")).alias("blocked_ns")
    times = F.count(F.when(F.col("released"), 1)).alias("times")
    return BlockedTimes(stretches.groupBy(*INCARNATION_KEY, "cause", "reason").agg(lasted, times))


def longest(rare: DataFrame, ends: DataFrame) -> LongestWaits:
    """Return the longest wait of each incarnation; tickets match the rows of a wait."""
    sends = (
        rare.where(is_one_of("BLOCK", "UNBLOCK"))
        .groupBy(*INCARNATION_KEY, "seqno")
        .agg(
            F.min(F.when(is_one_of("BLOCK"), F.col("at_ns"))).alias("from_ns"),
            F.max(F.when(is_one_of("UNBLOCK"), F.col("at_ns"))).alias("until_ns"),
        )
    )
    lasted = F.coalesce("until_ns", "ended_ns") - F.col("from_ns")
    return LongestWaits(
        sends.join(ends, list(INCARNATION_KEY))
        .groupBy(*INCARNATION_KEY)
        .agg(F.max(lasted).alias("longest_ns"))
    )


def blocked_over_time(stretches: DataFrame, begin_ns: int, step_ns: int) -> DataFrame:
    """Return ``blocked_ns`` by incarnation and part of the run: spans are cut at part ends."""
    first = F.floor((F.col("from_ns") - begin_ns) / step_ns)
    last = F.floor((F.col("until_ns") - begin_ns) / step_ns)
    cut = stretches.where("until_ns > from_ns").withColumn(
        "step", F.explode(F.sequence(first, last))
    )
    opens = F.col("step") * step_ns + begin_ns
    inside = F.least("until_ns", opens + step_ns) - F.greatest("from_ns", opens)
    return cut.groupBy(*INCARNATION_KEY, "step").agg(F.sum(inside).alias("blocked_ns"))

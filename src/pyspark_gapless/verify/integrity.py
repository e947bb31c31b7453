"""S4, and the bytes of S10: all rows about the same messages of a stream have the same hash.

Level 1 folds, for each incarnation and each block of a stream, all hashes into a number: where the
incarnations agree, the comparison ends. Level 2 compares all other blocks message range by message
range (a late joiner or a run cut differently is enough for a difference).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_KEY
from pyspark_gapless.trace.trace import event_code, is_one_of
from pyspark_gapless.verify.delivery_order import IN_ORDER, in_order
from pyspark_gapless.verify.violations import format_message, seqno_range, violations

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

BLOCK_SEQNOS = 1 << 16
"""Number of messages of a stream that are compared together."""
HASHED_RANGE = (*STREAM_KEY, "hash_first", "seqno_last")
"""Rows with equal values in these columns are about the same messages."""


def integrity(trace: Trace) -> DataFrame:
    """S4: the bytes delivered are the bytes sent.

    Hashes stand for bytes, over runs as delivered. The hash of a run cut in another place than by
    the sender is compared only with runs of the same cut. The hash does not show the boundary
    between two messages.
    """
    rows = trace.where_event("SEND", "DELIVER").where((F.col("hash_first") > 0) & _is_ordered())
    stretch = F.floor(F.col("seqno_last") / BLOCK_SEQNOS)
    folded = F.bit_xor(F.xxhash64("hash_first", "seqno_last", "hash"))
    sides = rows.groupBy(*STREAM_KEY, stretch.alias("stretch"), "member", "event").agg(
        folded.alias("folded")
    )
    differ = sides.groupBy(*STREAM_KEY, "stretch").agg(
        F.min("folded").alias("a"), F.max("folded").alias("b")
    )
    differ = differ.where("a != b").drop("a", "b")
    doubtful = rows.withColumn("stretch", stretch).join(
        F.broadcast(differ), [*STREAM_KEY, "stretch"]
    )
    return violations(
        "S4",
        _mismatched_hashes(doubtful),
        format_message("delivers %s with other bytes than sent", seqno_range()),
    )


def repairs_match_originals(trace: Trace) -> DataFrame:
    """S10, the bytes: a repair has the bytes of the original, wherever both have a hash.

    Most repairs are of messages sent by the origin as a single run: the few sends settle these
    repairs. All other repairs, cut elsewhere or from an unrecorded origin, are searched in all
    deliveries.
    """
    repairs = trace.where_event("REPAIR").where("hash_first > 0")
    spans = repairs.select(*HASHED_RANGE).distinct()
    sends = (
        trace.where_event("SEND").where("hash_first > 0").join(spans, [*HASHED_RANGE], "left_semi")
    )
    rest = trace.cached(
        "repairs of no send",
        lambda: spans.join(sends.select(*HASHED_RANGE).distinct(), [*HASHED_RANGE], "left_anti"),
    )
    others = in_order(trace).where("hash_first > 0").join(rest, [*HASHED_RANGE], "left_semi")
    wrong = _mismatched_hashes(repairs.unionByName(sends).unionByName(others)).where(
        is_one_of("REPAIR")
    )
    return violations(
        "S10", wrong, format_message("resends %s with other bytes than before", seqno_range())
    )


def _is_ordered() -> Column:
    return is_one_of("SEND") | F.col("reason").isin(*IN_ORDER)


def _mismatched_hashes(rows: DataFrame) -> DataFrame:
    """Return rows with another hash than the send of the same messages, or the first row."""
    sent = F.max(F.when(F.col("event") == event_code("SEND"), F.col("hash")))
    known = rows.groupBy(*HASHED_RANGE).agg(
        F.coalesce(sent, F.min_by("hash", "t_ns")).alias("true_hash"),
        F.min("hash").alias("a"),
        F.max("hash").alias("b"),
    )
    known = known.where("a != b").drop("a", "b")
    return rows.join(known, [*HASHED_RANGE]).where("hash != true_hash")

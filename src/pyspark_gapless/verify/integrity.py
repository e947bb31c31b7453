"""S4, and the bytes of S10: all rows about the same messages of a stream have the same hash.

Level 1 folds, for each incarnation and each block of a stream, all hashes into one number: where
the incarnations agree nothing more is compared. Level 2 compares, in blocks where they differ (a
late joiner and a run that was cut differently are enough for that), message range by message range.
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
"""How many messages of a stream are compared as one."""
HASHED_RANGE = (*STREAM_KEY, "hash_first", "seqno_last")
"""Rows that are equal in these columns are about the same messages."""


def integrity(trace: Trace) -> DataFrame:
    """S4: the bytes delivered are the bytes sent.

    Bytes are compared by their hash, over runs as they were delivered. The hash of a run that was
    cut where its sender did not cut is compared only with others that were cut there. The hash does
    not show where one message ends and the next begins.
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
        format_message("delivers other bytes as %s than were sent", seqno_range()),
    )


def repairs_match_originals(trace: Trace) -> DataFrame:
    """S10, the bytes: a repair has the bytes of the original, wherever both have a hash.

    Most repairs are of messages that their origin sent as one run: the few sends settle these. Only
    for the rest, which were cut elsewhere or come from an origin that was not recorded, all
    deliveries are searched.
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
        "S10", wrong, format_message("sends %s again with other bytes than before", seqno_range())
    )


def _is_ordered() -> Column:
    return is_one_of("SEND") | F.col("reason").isin(*IN_ORDER)


def _mismatched_hashes(rows: DataFrame) -> DataFrame:
    """Return rows whose hash differs from the send of the same messages, or the first row."""
    sent = F.max(F.when(F.col("event") == event_code("SEND"), F.col("hash")))
    known = rows.groupBy(*HASHED_RANGE).agg(
        F.coalesce(sent, F.min_by("hash", "t_ns")).alias("true_hash"),
        F.min("hash").alias("a"),
        F.max("hash").alias("b"),
    )
    known = known.where("a != b").drop("a", "b")
    return rows.join(known, [*HASHED_RANGE]).where("hash != true_hash")

"""L1, L2, L3 and S16: the end, among the incarnations present at the end (with a REST row)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.trace.schema import STREAM_KEY
from pyspark_gapless.trace.trace import is_one_of
from pyspark_gapless.verify.delivery_order import stream_parts
from pyspark_gapless.verify.views import owed_from, present_at_end
from pyspark_gapless.verify.violations import format_message, seqno_range, union, violations
from pyspark_gapless.verify.window_marks import last_marks, setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace

DATA_EVENTS = ("SEND", "REPAIR", "NAK_OUT", "SEND_ASIDE", "REPAIR_ASIDE")
"""Events of frames that a group at rest has no reason to send."""
CONTROL_EVENTS = ("ACK_OUT", "TAIL_OUT", "GONE_OUT")
"""Frames that a group at rest sends only in answer to late arrivals."""
ARRIVAL_EVENTS = (
    "RX",
    "STORE",
    "DROPPED",
    "ACK_IN",
    "NAK_IN",
    "TAIL_IN",
    "GONE_IN",
    "VOTE_IN",
    "STABLE_IN",
    "STORE_ASIDE",
)
"""Events that show the arrival of a frame."""


def delivery(trace: Trace) -> DataFrame:
    """L1: every message sent since another incarnation joined the view is delivered there.

    Checked at the end, not within a bound. Of streams numbered by view the last stream counts.
    Connections are left out: the trace does not show the close of a connection with a report of
    undelivered messages. Messages lost by a member do not count against the sender, because the
    rest of a fragmented message may be lost with its beginning, and rows do not tell messages
    apart. A sample shows deliveries up to its last row.
    """
    columns = (*STREAM_KEY, "member", "seqno_last")
    passed = trace.rare_rows("LOST").select(*columns)
    passed = passed.unionAll(
        trace.where_event("DROPPED").where("reason = 'headless'").select(*columns)
    )
    ends = (
        stream_parts(trace).select(*columns).unionAll(passed).withColumnRenamed("member", "reader")
    )
    got = ends.groupBy(*STREAM_KEY, "reader").agg(F.max("seqno_last").alias("got"))
    found = expected_deliveries(trace).join(got, [*STREAM_KEY, "reader"], "left").fillna(0, "got")
    # A member with a state and no delivery since has everything in the state.
    given = (
        trace.rare_rows("STATE_IN")
        .select("seed", F.col("member").alias("reader"), F.lit(0).alias("got"))
        .distinct()
    )
    found = found.join(F.broadcast(given), ["seed", "reader", "got"], "left_anti")
    short = (
        found.where("got < sent")
        .withColumn("member", F.col("origin"))
        .withColumnRenamed("reader", "peer")
    )
    message = format_message(
        "%s has not delivered every message of this member: %d of %d", "peer_name", "got", "sent"
    )
    return violations("L1", trace.with_names(short), message)


def expected_deliveries(trace: Trace) -> DataFrame:
    """Return the deliveries owed between incarnations at the end: ``base + 1 .. sent``."""
    rest = present_at_end(trace)
    ends = rest.select(
        "seed", F.col("member").alias("origin"), "idx", "t_ns", F.col("view").alias("last_view")
    )
    readers = F.broadcast(rest.select("seed", F.col("member").alias("reader")))
    every = trace.incarnations.where("own").select(
        "seed", F.col("life").alias("origin"), F.greatest("every", F.lit(1)).alias("every")
    )
    high = (
        trace.where_event("SEND")
        .where("to = 0")
        .groupBy(*STREAM_KEY)
        .agg(F.max("seqno_last").alias("sent"))
    )
    high = high.join(F.broadcast(ends), ["seed", "origin"]).join(
        F.broadcast(every), ["seed", "origin"]
    )
    high = high.where("to != 0 or epoch = 0 or epoch = last_view")
    high = high.withColumn(
        "sent",
        F.when(
            F.col("every") > 1, F.floor(F.col("sent") / F.col("every")) * F.col("every")
        ).otherwise(F.col("sent")),
    )
    last = owed_from(trace).where("turn = last_turn and peer != member")
    last = last.select(
        "seed", F.col("member").alias("origin"), F.col("peer").alias("reader"), "base"
    )
    pairs = high.join(F.broadcast(last), ["seed", "origin"]).join(readers, ["seed", "reader"])
    pairs = pairs.withColumn(
        "base", F.when((F.col("to") != 0) | (F.col("epoch") > 0), 0).otherwise(F.col("base"))
    )
    return pairs.where("(to = 0 or to = reader) and sent > base").drop("every", "last_view")


def stability(trace: Trace) -> DataFrame:
    """L2: every sent message is acknowledged and delivered at the sender; no send waits."""
    rest = F.broadcast(
        present_at_end(trace).withColumnsRenamed(
            {"idx": "rest_idx", "t_ns": "rest_ns", "view": "last_view"}
        )
    )
    mine = last_marks(trace).where("member = origin").groupBy("seed", "member", "origin")
    own = mine.agg(F.max_by(F.struct("epoch", "last"), "last.idx").alias("of")).select(
        "seed", "member", "origin", "of.*"
    )
    every = trace.incarnations.select(
        "seed", F.col("life").alias("member"), F.greatest("every", F.lit(1)).alias("every")
    )
    own = (
        own.select("seed", "member", "origin", "epoch", "last.*")
        .join(rest, ["seed", "member"])
        .join(F.broadcast(every), ["seed", "member"])
    )
    step = F.col("every")
    held = own.where(F.floor(F.col("low") / step) < F.floor(F.col("high") / step)).withColumn(
        "seqno", F.col("low") + 1
    )
    unseen = own.where(
        F.floor(F.col("delivered") / step) < F.floor(F.col("high") / step)
    ).withColumn("seqno", F.col("delivered") + 1)
    waits = (
        trace.where_event("BLOCK", "UNBLOCK")
        .groupBy("seed", "member", "seqno")
        .agg(
            F.sum(F.when(is_one_of("BLOCK"), 1).otherwise(-1)).alias("open"),
            F.max("idx").alias("idx"),
            F.max("t_ns").alias("t_ns"),
        )
    )
    waits = waits.where("open > 0").join(rest, ["seed", "member"])
    return union(
        violations(
            "L2",
            held,
            format_message("own messages %d..%d are not released", F.col("low") + 1, "high"),
        ),
        violations(
            "L2",
            unseen,
            format_message(
                "has not delivered its own messages %d..%d", F.col("delivered") + 1, "high"
            ),
        ),
        violations("L2", waits, format_message("send %d still waits for room", "seqno")),
    )


def _at_rest(trace: Trace, *events: str) -> DataFrame:
    """Return rows after the REST row of the same incarnation."""
    rest = F.broadcast(
        present_at_end(trace).select(
            "seed", "member", F.col("idx").alias("rest_idx"), F.col("t_ns").alias("rest_ns")
        )
    )
    return (
        trace.where_event(*events)
        .join(rest, ["seed", "member"])
        .where(F.col("idx") > F.col("rest_idx"))
    )


def no_data_at_rest(trace: Trace) -> DataFrame:
    """L3: a group at rest sends no data, nak or repair."""
    found = trace.with_names(_at_rest(trace, *DATA_EVENTS))
    return violations("L3", found, format_message("sends or requests %s at rest", seqno_range()))


def silence(trace: Trace) -> DataFrame:
    """S16: a group at rest sends nothing but answers to late arrivals, and heartbeats when due.

    A frame counts as an answer within two ack delays of an arrival anywhere in the group.
    """
    delays = trace.incarnations.where("own").select(
        "seed", F.col("life").alias("member"), setting("ack_delay_ns").alias("ack_delay_ns")
    )
    rows = _at_rest(trace, *CONTROL_EVENTS, *ARRIVAL_EVENTS).join(
        F.broadcast(delays), ["seed", "member"]
    )
    heard = F.max(F.when(is_one_of(*ARRIVAL_EVENTS), F.col("t_ns"))).over(
        Window.partitionBy("seed").orderBy("t_ns").rangeBetween(Window.unboundedPreceding, 0)
    )
    rows = rows.withColumn("heard_ns", F.greatest(heard, "rest_ns"))
    talk = rows.where(
        is_one_of(*CONTROL_EVENTS) & (F.col("t_ns") > F.col("heard_ns") + 2 * F.col("ack_delay_ns"))
    )
    return violations(
        "S16",
        talk,
        format_message(
            "sends at rest, %d ns after the last arrival", F.col("t_ns") - F.col("heard_ns")
        ),
    )

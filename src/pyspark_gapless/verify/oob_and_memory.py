"""S5, S13 and S14: out-of-band messages, hostile bytes, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from gapless.wire.primitives import REASONS
from pyspark_gapless.trace.trace import event_name, is_one_of, materialize
from pyspark_gapless.verify.views import present_at_end, rosters
from pyspark_gapless.verify.violations import format_message, seqno_range, seqnos, union, violations
from pyspark_gapless.verify.window_marks import last_marks, reaches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

OOB_KEY = ("seed", "origin", "seqno")
"""The columns that identify an out-of-band message; the numbers continue for an incarnation."""
REFUSAL_REASONS = ("group", "stranger", "incarnation", "own", "addressee")
"""The reasons for refusing a decoded datagram as a whole."""
MAY_FOLLOW = ("BEGIN", "RX", "DROPPED")
"""The events that a rejected datagram may leave in the trace."""


def out_of_band(trace: Trace) -> DataFrame:
    """S5: out-of-band messages keep S1, S2 and S4 and reach all remaining members, in any order.

    Unreliable messages have no numbers, so a trace shows nothing about unreliable messages.
    """
    got = trace.where_event("DELIVER").where("reason = 'out of band'")
    got = got.withColumn("number", F.explode(seqnos()))
    sends = trace.where_event("SEND_ASIDE").select(
        "seed", "origin", F.col("seqno").alias("number"), F.col("hash").alias("sent_hash")
    )
    sends = sends.dropDuplicates(["seed", "origin", "number"]).withColumn("was_sent", F.lit(True))
    pairs = got.join(trace.complete_incarnations("origin"), ["seed", "origin"], "left_semi")
    pairs = pairs.join(sends, ["seed", "origin", "number"], "left")
    created = pairs.where("was_sent is null")
    changed = pairs.where(
        "hash_first = seqno and seqno = seqno_last and sent_hash != 0 and hash != sent_hash"
    )
    order = Window.partitionBy("seed", "member", "origin", "number").orderBy("idx")
    again = got.withColumn("nth", F.row_number().over(order)).where("nth > 1")
    return union(
        violations(
            "S5",
            created,
            format_message(
                "delivers %s out of band, but no out-of-band message has the number", seqno_range()
            ),
        ),
        violations(
            "S5",
            changed,
            format_message("delivers %s out of band with other bytes than sent", seqno_range()),
        ),
        violations("S5", again, format_message("delivers %d out of band again", "number")),
        _missing_out_of_band(trace),
    )


def _missing_out_of_band(trace: Trace) -> DataFrame:
    """Return the out-of-band messages not delivered by a member that stayed to the end."""
    rest = present_at_end(trace).select("seed", "member")
    stayed = (
        rosters(trace)
        .where("turn = last_turn and peer != member")
        .select("seed", "member", "peer", "since")
    )
    stayed = stayed.join(rest, ["seed", "member"]).join(
        rest.withColumnRenamed("member", "peer"), ["seed", "peer"]
    )
    given = trace.rare_rows("STATE_IN").select("seed", F.col("member").alias("peer")).distinct()
    stayed = stayed.join(F.broadcast(given), ["seed", "peer"], "left_anti").withColumnRenamed(
        "peer", "reader"
    )
    sends = trace.where_event("SEND_ASIDE").select(
        "seed", "member", "origin", "view", "idx", "t_ns", "seqno", "peer"
    )
    owed = sends.join(F.broadcast(stayed), ["seed", "member"]).where(
        "since <= view and (peer = 0 or peer = reader)"
    )
    got = (
        trace.where_event("DELIVER")
        .where("reason = 'out of band'")
        .select(
            "seed",
            F.col("member").alias("reader"),
            "origin",
            F.explode(seqnos()).alias("seqno"),
        )
    )
    missing = owed.drop("peer").join(got, ["seed", "reader", "origin", "seqno"], "left_anti")
    missing = trace.with_names(missing.withColumnRenamed("reader", "peer"))
    return violations(
        "S5",
        missing,
        format_message("out-of-band message %d was never delivered at %s", "seqno", "peer_name"),
    )


def hostile_bytes(trace: Trace) -> DataFrame:
    """S13: an unreadable datagram is a counted drop, without any other effect in the step.

    In simulated traces: there a step is a datagram.
    """
    # A frame inside a datagram may be dropped for a reason of the same name; its row names the
    # sender.
    dropped = trace.where_event("DROPPED").where(
        F.col("reason").isin(*REASONS) & (F.col("peer") == 0)
    )
    return violations(
        "S13", *_rows_in_drop_steps(dropped, trace.rows.where(~is_one_of(*MAY_FOLLOW)))
    )


def strangers(trace: Trace) -> DataFrame:
    """S15, strangers: a datagram from no member, or not for this incarnation, changes nothing."""
    # A view releases buffered frames, and some of them may be from strangers.
    installs = F.broadcast(trace.rare_rows("VIEW").select("seed", "member", "step"))
    dropped = trace.where_event("DROPPED").where(F.col("reason").isin(*REFUSAL_REASONS))
    dropped = dropped.join(installs, ["seed", "member", "step"], "left_anti")
    moved = trace.where_event("STATE", "DELIVER").where(~is_one_of("STATE") | (F.col("high") > 0))
    return violations("S15", *_rows_in_drop_steps(dropped, moved))


def _rows_in_drop_steps(dropped: DataFrame, rows: DataFrame) -> tuple[DataFrame, Column]:
    """Return the ``rows`` that share a step with a dropped datagram, with a message."""
    steps = materialize(
        dropped.groupBy("seed", "member", "step").agg(F.min("reason").alias("refused"))
    )
    rows = rows.join(F.broadcast(steps), ["seed", "member", "step"])
    return rows, format_message(
        "a datagram refused as %s led to %s", "refused", event_name(F.col("event"))
    )


def memory(trace: Trace) -> DataFrame:
    """S14: an incarnation stores at most the number of members times the reach of the window.

    Taken from the marks; buffers for later views, timers and tables are not in the trace.
    """
    sums = (
        last_marks(trace)
        .groupBy("seed", "member", "view")
        .agg(
            F.sum("most").alias("stored"),
            F.max("last.idx").alias("idx"),
            F.max("last.t_ns").alias("t_ns"),
        )
    )
    sizes = trace.rare_rows("MEMBERS").select(
        "seed", "member", "view", F.size(F.split("reason", " ")).alias("members")
    )
    sizes = sizes.dropDuplicates(["seed", "member", "view"])
    sums = sums.join(F.broadcast(sizes), ["seed", "member", "view"]).join(
        F.broadcast(reaches(trace)), ["seed", "member"]
    )
    over = sums.where(F.col("stored") > F.col("members") * F.col("reach"))
    return violations(
        "S14",
        over,
        format_message(
            "stores %d messages in view %d; the maximum is %d members times %d",
            "stored",
            "view",
            "members",
            "reach",
        ),
    )

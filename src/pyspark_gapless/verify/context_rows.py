"""The rows around a violation: of its incarnation, and of others about the same messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window, functions as F  # noqa: N812

from gapless.trace.schema import EVENT_NAMES
from pyspark_gapless.trace.schema import STREAM_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace

ROWS_EACH_SIDE = 8
"""How many rows of the incarnation before and after a violation are shown."""
MAX_CONTEXT_ROWS = 40
"""Maximum number of rows around a violation."""
BLOCK = 4096
"""Size of the blocks of seqnos for the lookup of rows about a message; no run is longer."""
FREQUENT_EVENTS = ("TX", "RX", "TIMER", "STATE")
"""Frequent events of other incarnations without a particular message."""
ARRIVAL_EVENTS = {
    "SEND": ("STORE",),
    "REPAIR": ("STORE",),
    "NAK_OUT": ("NAK_IN",),
    "ACK_OUT": ("ACK_IN",),
}
"""Events by which a frame of an incarnation shows at another incarnation."""


def context_rows(trace: Trace, violations: DataFrame, near: int = ROWS_EACH_SIDE) -> DataFrame:
    """Return the rows of the trace around each violation, with its ``check`` and number ``nth``.

    ``violations`` has the columns of a violation and ``nth``. The context is ``near`` rows of the
    same incarnation on each side, and the rows of any incarnation about the same message of the
    same stream. ``here`` marks the row itself.
    """
    beside = violations.select(
        "nth",
        "check",
        "seed",
        "member",
        F.col("idx").alias("v_idx"),
        F.explode(F.sequence(F.col("idx") - near, F.col("idx") + near)).alias("idx"),
    )
    beside = trace.rows.join(F.broadcast(beside), ["seed", "member", "idx"])
    beside = beside.withColumn("here", F.col("idx") == F.col("v_idx")).withColumn(
        "far", F.abs(F.col("idx") - F.col("v_idx"))
    )
    block = F.floor(F.col("seqno") / BLOCK)
    same = violations.where("origin != 0").select(
        "nth",
        "check",
        *STREAM_KEY,
        F.col("member").alias("v_member"),
        F.col("idx").alias("v_idx"),
        F.col("seqno").alias("v_seqno"),
        F.explode(F.array(block, block + 1)).alias("block"),
    )
    rows = trace.rows.where(~is_one_of(*FREQUENT_EVENTS)).withColumn(
        "block", F.floor(F.col("seqno_last") / BLOCK)
    )
    same = rows.join(F.broadcast(same), [*STREAM_KEY, "block"]).where(
        F.col("v_seqno").between(F.greatest("seqno", F.lit(1)), F.col("seqno_last"))
        & ~(
            (F.col("member") == F.col("v_member"))
            & F.col("idx").between(F.col("v_idx") - near, F.col("v_idx") + near)
        )
    )
    same = same.withColumns(
        {
            "here": F.lit(False),
            "far": F.lit(near) + 1 + F.abs(F.col("seqno_last") - F.col("v_seqno")),
        }
    )
    columns = ("nth", "check", "here", "far", *trace.rows.columns)
    found = beside.select(*columns).unionAll(same.select(*columns))
    nearest = Window.partitionBy("nth").orderBy("far", "t_ns", "member", "idx")
    found = found.withColumn("nearest", F.row_number().over(nearest)).where(
        F.col("nearest") <= MAX_CONTEXT_ROWS
    )
    return found.drop("far", "nearest")


def with_context(trace: Trace, violations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return violations as JSON values, with names, context rows, and frames."""
    spark = trace.rows.sparkSession
    numbered = [{"nth": nth, **row} for nth, row in enumerate(violations)]
    # By way of Arrow no Python process is needed at the side of Spark.
    frame = spark.createDataFrame(pa.Table.from_pylist(numbered))
    names = {row["nth"]: row for row in trace.with_names(frame).collect()}
    near = trace.with_names(context_rows(trace, frame)).orderBy(
        "nth", "step" if trace.simulated else "t_ns", "member", "idx"
    )
    rows: dict[int, list[Any]] = {}
    for row in near.toArrow().to_pylist():
        rows.setdefault(row["nth"], []).append(row)
    return [_as_json(names[nth], rows.get(nth, [])) for nth in range(len(numbered))]


def _as_json(violation: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "check": violation["check"],
        "seed": violation["seed"],
        "t_ns": violation["t_ns"],
        "member": violation["member_name"],
        "origin": violation["origin_name"],
        "seqno": violation["seqno"],
        "message": violation["message"],
        "rows": [
            {
                "t_ns": row["t_ns"],
                "member": row["member_name"],
                "event": EVENT_NAMES.get(row["event"], str(row["event"])),
                "origin": row["origin_name"],
                "seqno": row["seqno"],
                "seqno_last": row["seqno_last"],
                "peer": row["peer_name"],
                "reason": row["reason"],
                "low": row["low"],
                "delivered": row["delivered"],
                "high": row["high"],
                "here": row["here"],
            }
            for row in rows
        ],
        "frames": infer_frames(rows),
    }


def infer_frames(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the frames between incarnations shown by rows; ``got_ns`` may be None."""
    drawn = []
    for row in rows:
        event = EVENT_NAMES.get(row["event"], "")
        if event not in ARRIVAL_EVENTS:
            continue
        last = row["seqno_last"]
        what = f"{event} {row['seqno']}..{last}" if 0 < row["seqno"] < last else f"{event} {last}"
        arrivals = [one for one in rows if _is_arrival(row, one, ARRIVAL_EVENTS[event])]
        from_to = {"from": row["member_name"], "sent_ns": row["t_ns"], "what": what}
        drawn += [{**from_to, "to": one["member_name"], "got_ns": one["t_ns"]} for one in arrivals]
        if not arrivals:
            drawn.append({**from_to, "to": row["peer_name"], "got_ns": None})
    return drawn


def _is_arrival(out: dict[str, Any], row: dict[str, Any], events: tuple[str, ...]) -> bool:
    """Return whether a row shows the arrival of a frame at another incarnation."""
    return (
        EVENT_NAMES.get(row["event"]) in events
        and row["member"] != out["member"]
        and row["origin"] == out["origin"]
        and row["seqno"] <= out["seqno_last"]
        and out["seqno"] <= row["seqno_last"]
        and row["t_ns"] >= out["t_ns"]
        and out["peer"] in {0, row["member"]}
    )

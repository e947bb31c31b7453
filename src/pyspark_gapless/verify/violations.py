"""The common schema of violations: the invariant, the row, and a message."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column

VIOLATION_COLUMNS = {
    "check": "string",
    "seed": "bigint",
    "member": "bigint",
    "idx": "bigint",
    "t_ns": "bigint",
    "origin": "bigint",
    "epoch": "bigint",
    "to": "bigint",
    "seqno": "bigint",
    "message": "string",
}
"""The columns of a violation. ``idx`` is the violating row of ``member``, or -1."""


def violations(check: str, rows: DataFrame, message: Column) -> DataFrame:
    """Return a violation for each of ``rows``."""
    told = {"check": F.lit(check), "message": message}
    there = set(rows.columns)
    absent = {
        name: F.lit(-1 if name == "idx" else 0)
        for name in VIOLATION_COLUMNS
        if name not in there and name not in told
    }
    values = {
        **{name: F.col(name) for name in VIOLATION_COLUMNS if name in there},
        **absent,
        **told,
    }
    return rows.select(
        *(values[name].cast(kind).alias(name) for name, kind in VIOLATION_COLUMNS.items())
    )


def union(*found: DataFrame) -> DataFrame:
    """Return the union of violations of several kinds."""
    return reduce(DataFrame.unionAll, found)


def format_message(text: str, *columns: str | Column) -> Column:
    """Return a message with values, as ``%d`` for numbers and ``%s`` for texts."""
    return F.format_string(
        text, *(F.col(column) if isinstance(column, str) else column for column in columns)
    )


def seqno_range() -> Column:
    """Return the range of messages of a row, for a message."""
    return F.when(
        F.col("seqno") == F.col("seqno_last"), F.col("seqno_last").cast("string")
    ).otherwise(
        F.concat_ws("..", F.col("seqno").cast("string"), F.col("seqno_last").cast("string"))
    )


MAX_RANGE = 1 << 16
"""Maximum length of a range that is expanded message by message: a trace may be garbage."""


def seqnos(step: int = 1) -> Column:
    """Return the messages of a row as an array; with ``step`` the blocks around the messages."""
    last = F.greatest("seqno", F.least(F.col("seqno_last"), F.col("seqno") + MAX_RANGE))
    return (
        F.sequence("seqno", last)
        if step == 1
        else F.sequence(F.floor(F.col("seqno") / step), F.floor(last / step))
    )


def seqno_count() -> Column:
    """Return how many messages a row is about."""
    return F.col("seqno_last") - F.col("seqno") + 1

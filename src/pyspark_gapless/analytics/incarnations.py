"""Lives: when each began and ended, and how; and the views that they were told."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.analytics.timed_rows import LIFE
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ENDS = {"EXPELLED": "expelled", "CRASH": "killed", "REST": "rest", "LEFT": "left", "END": "left"}


class Spans(Dataset):
    """When the rows of a life begin and end, on its own clock, and how many there are."""

    name = "spans"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "began_ns": "bigint",
        "ended_ns": "bigint",
        "events": "bigint",
    }


class Views(Dataset):
    """A view as one life was told it: its number, who made it, the names of its members."""

    name = "views"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "at_ns": "bigint",
        "number": "bigint",
        "maker": "bigint",
        "members": "array<string>",
    }


class Named(Dataset):
    """The last view that names a life, and the last view of all."""

    name = "named"
    columns: ClassVar = {
        "seed": "bigint",
        "name": "string",
        "last_with": "bigint",
        "last_view": "bigint",
    }


def spans(rows: DataFrame) -> Spans:
    """Return the span of each life."""
    return Spans(
        rows.groupBy(*LIFE).agg(
            F.min("t_ns").alias("began_ns"),
            F.max("t_ns").alias("ended_ns"),
            F.count(F.lit(1)).alias("events"),
        )
    )


def views(rare: DataFrame) -> Views:
    """Return the views that were told."""
    names = F.filter(F.split("reason", " "), lambda name: name != "")
    told = F.col("view").alias("number"), F.col("origin").alias("maker"), names.alias("members")
    return Views(rare.where(is_one_of("MEMBERS")).select(*LIFE, "at_ns", *told))


def named(told: DataFrame) -> Named:
    """Return up to which view each name is in the views of its seed."""
    names = told.select("seed", "number", F.explode("members").alias("name"))
    last_with = names.groupBy("seed", "name").agg(F.max("number").alias("last_with"))
    return Named(
        last_with.join(told.groupBy("seed").agg(F.max("number").alias("last_view")), "seed")
    )


def ended(events: Container[str], *, forgotten: bool) -> str:
    """Return how a life ended, from the events that it has; ``forgotten``: the last view does not name it any more.

    What its own rows say comes first. A life whose rows just stop, and that the others noticed to
    be gone, was killed; if they did not, nobody can say.
    """
    for event, end in _ENDS.items():
        if event in events:
            return end
    return "killed" if forgotten else "unknown"


def reach(rare: DataFrame) -> DataFrame:
    """Return how far the windows of each life reach."""
    begun = rare.where(is_one_of("BEGIN") & (F.col("high") > 0))
    return begun.groupBy(*LIFE).agg(F.max("high").alias("reach"))

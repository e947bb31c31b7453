"""Incarnations: the start and the end of each, and the installed views."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.schema import INCARNATION_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_END_REASONS = {
    "EXPELLED": "expelled",
    "CRASH": "killed",
    "REST": "rest",
    "LEFT": "left",
    "END": "left",
}


class IncarnationSpans(Dataset):
    """The time span of the rows of an incarnation, on its own clock, and the number of rows."""

    name = "spans"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "began_ns": "bigint",
        "ended_ns": "bigint",
        "events": "bigint",
    }


class InstalledViews(Dataset):
    """A view installed by an incarnation: number, creator, and the names of the members."""

    name = "views"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "at_ns": "bigint",
        "number": "bigint",
        "maker": "bigint",
        "members": "array<string>",
    }


class LastNamedViews(Dataset):
    """The last view with an incarnation, and the last view of all."""

    name = "named"
    columns: ClassVar = {
        "seed": "bigint",
        "name": "string",
        "last_with": "bigint",
        "last_view": "bigint",
    }


def spans(rows: DataFrame) -> IncarnationSpans:
    """Return the span of each incarnation."""
    return IncarnationSpans(
        rows.groupBy(*INCARNATION_KEY).agg(
            F.min("t_ns").alias("began_ns"),
            F.max("t_ns").alias("ended_ns"),
            F.count(F.lit(1)).alias("events"),
        )
    )


def views(rare: DataFrame) -> InstalledViews:
    """Return the installed views."""
    names = F.filter(F.split("reason", " "), lambda name: name != "")
    told = F.col("view").alias("number"), F.col("origin").alias("maker"), names.alias("members")
    return InstalledViews(rare.where(is_one_of("MEMBERS")).select(*INCARNATION_KEY, "at_ns", *told))


def last_named(told: DataFrame) -> LastNamedViews:
    """Return the last view of each seed with each name."""
    names = told.select("seed", "number", F.explode("members").alias("name"))
    last_with = names.groupBy("seed", "name").agg(F.max("number").alias("last_with"))
    return LastNamedViews(
        last_with.join(told.groupBy("seed").agg(F.max("number").alias("last_view")), "seed")
    )


def end_reason(events: Container[str], *, forgotten: bool) -> str:
    """Return how an incarnation ended; ``forgotten``: the last view does not name the incarnation.

    The own rows of the incarnation come first. An incarnation with rows that just stop was killed
    if the others removed the incarnation; otherwise the end is unknown.
    """
    for event, end in _END_REASONS.items():
        if event in events:
            return end
    return "killed" if forgotten else "unknown"


def window_reach(rare: DataFrame) -> DataFrame:
    """Return the reach of the windows of each incarnation."""
    begun = rare.where(is_one_of("BEGIN") & (F.col("high") > 0))
    return begun.groupBy(*INCARNATION_KEY).agg(F.max("high").alias("reach"))

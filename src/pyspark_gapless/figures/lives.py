"""Lives: when each began and ended, and how; and the views that they were told."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.rows import LIFE
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Spans(Dataset):
    """When the rows of a life begin and end, on the clock of the reference, and how many there are."""

    name = "spans"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "began_ns": "bigint",
        "ended_ns": "bigint",
        "events": "bigint",
    }


class Ends(Dataset):
    """How each life ended: rest, left, killed, expelled or unknown."""

    name = "ends"
    columns: ClassVar = {**Spans.columns, "end": "string"}


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


def spans(rows: DataFrame) -> Spans:
    """Return the span of each life."""
    return Spans(
        rows.groupBy(*LIFE).agg(
            F.min("at_ns").alias("began_ns"), F.max("at_ns").alias("ended_ns"), F.count(F.lit(1)).alias("events")
        )
    )


def views(rare: DataFrame) -> Views:
    """Return the views in the order of time."""
    told = rare.where(is_one_of("MEMBERS"))
    names = F.filter(F.split("reason", " "), lambda name: name != "")
    return Views(
        told.select(
            *LIFE, "at_ns", F.col("view").alias("number"), F.col("origin").alias("maker"), names.alias("members")
        ).orderBy("at_ns", "seed", "number", "member")
    )


def ends(spanned: DataFrame, rare: DataFrame, names: DataFrame) -> Ends:
    """Return how each life ended.

    What its own rows say comes first. A life whose rows just stop, and that the last view does not name any more
    although one before did, was killed; if the others never noticed, nobody can say.
    """
    said = rare.groupBy(*LIFE).agg(
        _seen("EXPELLED").alias("expelled"),
        _seen("CRASH").alias("crashed"),
        _seen("REST").alias("rests"),
        _seen("END").alias("left"),
    )
    told = views(rare).frame
    last_of_all = told.groupBy("seed").agg(F.max("number").alias("last_view"))
    named = told.select("seed", "number", F.explode("members").alias("name"))
    last_with = named.groupBy("seed", "name").agg(F.max("number").alias("last_with"))
    gone = last_with.join(last_of_all, "seed").where("last_with < last_view").select("seed", "name").distinct()
    ids = names.select("seed", F.col("life").alias("member"), "name")
    forgotten = ids.join(gone, ["seed", "name"], "left_semi").select(*LIFE, F.lit(True).alias("forgotten"))
    known = spanned.join(said, list(LIFE), "left").join(forgotten, list(LIFE), "left")
    end = (
        F.when(F.col("expelled"), "expelled")
        .when(F.col("crashed"), "killed")
        .when(F.col("rests"), "rest")
        .when(F.col("left"), "left")
        .when(F.col("forgotten"), "killed")
        .otherwise("unknown")
    )
    return Ends(known.select(*Spans.columns, end.alias("end")))


def _seen(*events: str) -> Column:
    return F.max(is_one_of(*events))


def reach(rare: DataFrame) -> DataFrame:
    """Return how far the windows of each life reach."""
    begun = rare.where(is_one_of("BEGIN") & (F.col("high") > 0))
    return begun.groupBy(*LIFE).agg(F.max("high").alias("reach"))

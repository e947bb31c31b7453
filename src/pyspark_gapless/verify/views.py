"""Membership by view: the base of S5, S9, S15 and the checks of the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.verify.delivery_order import send_ranges
from pyspark_gapless.verify.violations import format_message, union, violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace


def rosters(trace: Trace) -> DataFrame:
    """Return rosters: ``peer`` is in view ``view`` of ``member``, since view ``since``.

    ``turn`` numbers the views of an incarnation, ``last_turn`` is the last view.
    """
    return trace.cached("rosters", lambda: _rosters(trace))


def _rosters(trace: Trace) -> DataFrame:
    mine = Window.partitionBy("seed", "member")
    told = trace.rare_rows("MEMBERS").select("seed", "member", "view", "idx", "reason")
    told = told.withColumn("turn", F.row_number().over(mine.orderBy("idx")))
    told = told.withColumn("last_turn", F.max("turn").over(mine))
    each = told.withColumn("name", F.explode(F.split("reason", " "))).drop("reason")
    each = each.join(
        trace.incarnations.select("seed", "name", F.col("life").alias("peer")), ["seed", "name"]
    )
    both = Window.partitionBy("seed", "member", "peer")
    island = F.col("turn") - F.row_number().over(both.orderBy("turn"))
    each = each.withColumn("island", island)
    stays = Window.partitionBy("seed", "member", "peer", "island")
    return each.withColumn("since", F.min("view").over(stays)).drop("name", "island", "idx")


def high_by_view(trace: Trace) -> DataFrame:
    """Return the last seqno sent to the group by each incarnation before each of its views."""
    within = (
        send_ranges(trace)
        .where("to = 0 and epoch = 0")
        .groupBy("seed", "member", "view")
        .agg(F.max("sent").alias("high"))
    )
    views = (
        trace.rare_rows("MEMBERS").select("seed", "member", F.col("view").alias("since")).distinct()
    )
    before = views.join(within, ["seed", "member"]).where("view < since")
    return before.groupBy("seed", "member", "since").agg(F.max("high").alias("high"))


def owed_from(trace: Trace) -> DataFrame:
    """Return ``rosters`` with ``base``: ``member`` owes ``peer`` only later messages."""
    base = high_by_view(trace).withColumnRenamed("high", "base")
    found = rosters(trace).join(base, ["seed", "member", "since"], "left").fillna(0, "base")
    return trace.cached("counted from", lambda: found)


def present_at_end(trace: Trace) -> DataFrame:
    """Return the incarnations present at the end: the incarnations with a REST row."""
    rest = trace.rare_rows("REST").groupBy("seed", "member")
    last = (
        F.max("idx").alias("idx"),
        F.max("t_ns").alias("t_ns"),
        F.max_by("view", "idx").alias("view"),
    )
    return trace.cached("at end", lambda: rest.agg(*last))


def views(trace: Trace) -> DataFrame:
    """S15: an id has a single list; numbers rise; members are in their views, coordinator first.

    The existence of members is checked in simulated groups that create their own views: elsewhere
    there may be unrecorded members.
    """
    order = Window.partitionBy("seed", "member").orderBy("idx")
    installed = trace.rare_rows("VIEW").withColumn("before", F.lag("seqno_last").over(order))
    falls = installed.where(F.col("seqno_last") <= F.col("before"))
    told = trace.rare_rows("MEMBERS").withColumn("names", F.split("reason", " "))
    ids = told.groupBy("seed", "view", "origin").agg(
        F.min("reason").alias("one"), F.max("reason").alias("other")
    )
    ids = ids.where("one != other").drop("one", "other")
    two = told.join(F.broadcast(ids), ["seed", "view", "origin"])
    named = trace.with_names(told)
    outside = named.where(~F.array_contains("names", F.col("member_name")))
    made = named.where(F.get("names", F.lit(0)) != F.col("origin_name"))
    found = [
        violations("S15", falls, format_message("view %d follows view %d", "seqno_last", "before")),
        violations(
            "S15",
            two,
            format_message("view %d has several lists of members, such as: %s", "view", "reason"),
        ),
        violations("S15", outside, format_message("view %d does not contain this member", "view")),
        violations(
            "S15",
            made,
            format_message("view %d was not created by its first member: %s", "view", "reason"),
        ),
    ]
    if trace.simulated:
        each = told.withColumn("name", F.explode("names"))
        lived = trace.incarnations.where("own").select("seed", "name")
        # A scripted view may name a member that dies before its first row.
        own_views = trace.where_event("TX").where(
            F.split("frame_id", " ")[0].isin("ALIVE", "BEACON", "JOIN")
        )
        each = each.join(own_views.select("seed").distinct(), "seed", "left_semi")
        ghosts = each.join(F.broadcast(lived), ["seed", "name"], "left_anti")
        found.append(
            violations(
                "S15",
                ghosts,
                format_message("view %d names %s, which never existed", "view", "name"),
            )
        )
    return union(*found)


def single_view(trace: Trace) -> DataFrame:
    """L6: at the end all present members share a view of exactly themselves.

    Later rows are ignored. Incarnations that were not recorded, or not to their end, may be present
    or not: any view may have such incarnations.
    """
    rest = present_at_end(trace)
    ends = rest.select("seed", "member", F.col("idx").alias("end"))
    told = (
        trace.rare_rows("MEMBERS")
        .join(ends, ["seed", "member"])
        .where("idx < end")
        .groupBy("seed", "member")
    )
    last = told.agg(F.max_by(F.struct("view", "origin", "reason"), "idx").alias("last"))
    names = trace.incarnations.select("seed", F.col("life").alias("member"), "name")
    there = rest.join(names, ["seed", "member"], "left").join(last, ["seed", "member"], "left")
    groups = there.groupBy("seed").agg(
        F.array_sort(F.collect_set("name")).alias("living"),
        F.count_distinct("last.view", "last.origin").alias("ids"),
    )
    # An incarnation that was not recorded to its end may be present or not.
    unknown = (
        trace.incarnations.where("not (own and whole)")
        .groupBy("seed")
        .agg(F.collect_set("name").alias("unknown"))
    )
    groups = groups.join(unknown, "seed", "left").withColumn(
        "unknown", F.array_except(F.coalesce("unknown", F.array().cast("array<string>")), "living")
    )
    seen = F.array_sort(
        F.array_except(F.split(F.coalesce("last.reason", F.lit("")), " "), "unknown")
    )
    each = there.join(groups, "seed").withColumn("seen", seen)
    wrong = each.where((F.col("ids") > 1) | (F.col("seen") != F.col("living")))
    message = format_message(
        "the last view has %d members, but %d are present, in %d views",
        F.size("seen"),
        F.size("living"),
        F.col("ids"),
    )
    return violations("L6", wrong, message)

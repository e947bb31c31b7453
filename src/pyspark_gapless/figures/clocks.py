"""Clock offsets between the lives of a trace: what each life's clock shows more than that of one reference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.offsets import Bounds, Solution, solve
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.trace import Trace

VIRTUAL = "virtual"
"""The clock of lives in the simulator: there is one for all of them."""
THIRDS = 3
"""Into so many parts a run is cut to see whether clocks drift; the first and the last are compared."""

Pair = tuple[int, int]


class Delays(Dataset):
    """The least apparent delay from one life to another, by part of the run: clock of the target less the source's."""

    name = "delays"
    columns: ClassVar = {"source": "bigint", "target": "bigint", "part": "int", "least_ns": "bigint"}


class Clock(NamedTuple):
    """The clock of one life: so much ahead of the reference, give or take the uncertainty (None: nobody can say).

    ``drift_ns`` is how much that changed between the first and the last third of the run; 0 if it is not more than
    can be told.
    """

    life: int
    offset_ns: int
    uncertainty_ns: int | None
    drift_ns: int = 0


def clocks(trace: Trace) -> list[dict[str, Any]]:
    """Return the clock of each life with rows: ``life`` (its number), ``name``, ``offset_ns``, ``uncertainty_ns`` and
    ``drift_ns``. In simulated traces all are 0: there is one clock.
    """  # noqa: D205 - the list of keys is the summary
    own = trace.lives.where("own").select("life", "name", "member", "clock").distinct().collect()
    names = {row.life: row.name for row in own}
    if all(row.clock == VIRTUAL for row in own):
        found = [Clock(life, 0, 0) for life in names]
    else:
        found = estimate(trace.rows, {row.life: row.member for row in own})
    return [{**clock._asdict(), "name": names.get(clock.life, "")} for clock in found]


def estimate(rows: DataFrame, members: Mapping[int, str]) -> list[Clock]:
    """Return the clocks of the lives that ``members`` names, from the rows of a real run."""
    delivered = delivery_delays(rows, F.lit(0)).frame.collect()
    least_ns = {(row.source, row.target): row.least_ns for row in delivered}
    for row in ack_delays(rows, _unanswered(least_ns, members)).frame.collect():
        least_ns[row.source, row.target] = row.least_ns
    least_ns = {pair: delay_ns for pair, delay_ns in least_ns.items() if set(pair) <= set(members)}
    if not members:
        return []
    whole = _solve(least_ns, members)
    return _drifting(rows, members, whole)


def delivery_delays(rows: DataFrame, part: Column) -> Delays:
    """Return the least time between the sending of a message and its delivery, for each pair of lives."""
    delivered = rows.where(is_one_of("DELIVER") & (F.col("member") != F.col("origin")) & (F.col("sent_ns") > 0))
    pair = F.col("origin").alias("source"), F.col("member").alias("target"), part.cast("int").alias("part")
    return Delays(delivered.groupBy(*pair).agg(F.min(F.col("t_ns") - F.col("sent_ns")).alias("least_ns")))


def ack_delays(rows: DataFrame, pairs: Sequence[Pair]) -> Delays:
    """Return the least time that an ack took, for the ``pairs`` (who acknowledges, whose stream).

    The same ack may be sent again. What comes in first was sent no earlier than the first of them, so the difference
    between the first of both is never less than what the one that came took.
    """
    wanted = rows.sparkSession.createDataFrame(list(pairs), "source bigint, target bigint")
    key = ("source", "target", "epoch", "to", "seqno_last")
    moments = []
    for event, source, column in (("ACK_OUT", "member", "out_ns"), ("ACK_IN", "peer", "in_ns")):
        acks = rows.where(is_one_of(event)).withColumnsRenamed({source: "source", "origin": "target"})
        acks = acks.join(F.broadcast(wanted), ["source", "target"], "left_semi")
        moments.append(acks.groupBy(*key).agg(F.min("t_ns").alias(column)))
    both = moments[0].join(moments[1], list(key))
    found = both.groupBy("source", "target").agg(F.min(F.col("in_ns") - F.col("out_ns")).alias("least_ns"))
    return Delays(found.withColumn("part", F.lit(0)))


def _unanswered(least_ns: Mapping[Pair, int], members: Mapping[int, str]) -> list[Pair]:
    """Return the pairs of which only the other direction is known: who never sends says something in acks only."""
    return [(b, a) for a, b in least_ns if (b, a) not in least_ns and a in members and b in members]


def _solve(least_ns: Mapping[Pair, int], members: Mapping[int, str], reference: int | None = None) -> Solution:
    """Return the offsets; lives on one host share a clock, unless what was measured says that they do not."""
    shared = {pair: min(delay_ns, 0) for pair, delay_ns in _shared(members).items()}
    together = solve({**least_ns, **shared}, members, reference)
    contradicted = any(delay_ns < 0 and pair in shared for pair, delay_ns in least_ns.items())
    if not shared or (not contradicted and not together.slack_ns):
        return together
    return solve(least_ns, members, reference)


def _shared(members: Mapping[int, str]) -> dict[Pair, int]:
    hosts: dict[str, list[int]] = {}
    for life, member in members.items():
        if member:
            match = re.fullmatch(r"(.+):\d+", member)
            hosts.setdefault(match[1] if match else member, []).append(life)
    return {(a, b): 0 for lives in hosts.values() for a in lives for b in lives if a != b}


def _drifting(rows: DataFrame, members: Mapping[int, str], whole: Solution) -> list[Clock]:
    """Return the clocks, with what the first and the last third of the run say of their drift."""
    from pyspark_gapless.figures.rows import timed

    steady = [
        Clock(life, bounds.offset_ns, bounds.uncertainty_ns) for life, bounds in whole.bounds.items() if life in members
    ]
    at = timed(rows, steady)
    first_ns, last_ns = at.where(is_one_of("DELIVER")).agg(F.min("at_ns"), F.max("at_ns")).collect()[0]
    if first_ns is None or first_ns == last_ns:
        return steady
    third = F.floor((F.col("at_ns") - first_ns) * THIRDS / (last_ns - first_ns + 1))
    of_part: dict[int, dict[Pair, int]] = {0: {}, THIRDS - 1: {}}
    for row in delivery_delays(at, third).frame.collect():
        if row.part in of_part and {row.source, row.target} <= set(members):
            of_part[row.part][row.source, row.target] = row.least_ns
    early, late = (solve(part, members, whole.reference).bounds for part in of_part.values())
    return [_judged(clock, early[clock.life], late[clock.life]) for clock in steady]


def _judged(clock: Clock, early: Bounds, late: Bounds) -> Clock:
    """Return a clock with its drift, if that is larger than what can be told; it is then uncertain by that too."""
    if early.uncertainty_ns is None or late.uncertainty_ns is None:
        return clock
    drift_ns = late.offset_ns - early.offset_ns
    if abs(drift_ns) <= early.uncertainty_ns + late.uncertainty_ns:
        return clock
    anywhere = Bounds(min(early.lower_ns, late.lower_ns), max(early.upper_ns, late.upper_ns))
    return Clock(clock.life, anywhere.offset_ns, anywhere.uncertainty_ns, drift_ns)

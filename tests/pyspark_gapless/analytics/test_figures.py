"""The figures of simulated runs of every profile equal those computed row by row in Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gapless.faults.faults import Loss
from gapless.rng import split
from gapless.sim import profile_cost
from gapless.sim.runner import simulate
from gapless.sim.swarm.profile_draw import ALL_PROFILES
from gapless.sim.world.tracer import SimulationTracer
from gapless.trace.incarnations import INCARNATIONS_FILE, IncarnationRecord
from gapless.trace.parquet import rows_to_table, write_table
from gapless.trace.schema import TraceRow
from pyspark_gapless.analytics import figures, sections, shared_frames
from pyspark_gapless.analytics.histogram import MAX_RELATIVE_ERROR
from pyspark_gapless.trace import Trace
from tests.pyspark_gapless.analytics import row_by_row as oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.faults.faults import Fault

pytestmark = pytest.mark.xdist_group("spark")

MEASURED = 900
"""The seed of the run that the meter of ``gapless compare`` looked on at."""
PLANTED = 901
"""The seed of a run in which everything goes wrong; nobody but this test has made it."""


class Told(NamedTuple):
    """The rows of some runs, the lives in them, and their figures."""

    rows: list[TraceRow]
    lives: list[IncarnationRecord]
    figures: dict[str, Any]
    steps: list[tuple[str, int, int]]
    meter: profile_cost._ProfileMeter

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = self.figures["summary"]
        return found


def measured_run() -> tuple[list[TraceRow], list[IncarnationRecord], profile_cost._ProfileMeter]:
    """Run the default profile on a lossy network, with a trace and the meter of the comparison."""
    load = profile_cost.ProfileWorkload(messages=60, seed=MEASURED)
    names = ("a", "b", "c")
    faults: list[Fault] = [Loss(split(MEASURED, "loss"), (0.05,))]
    config = profile_cost.config_of("nakack4")
    tracer = SimulationTracer(MEASURED, config)
    world, meter = profile_cost._world("nakack4", load, names, names, faults, config, tracer=tracer)
    world.run()
    return tracer.rows, tracer.incarnation_records("compare"), meter


def planted_run() -> tuple[list[TraceRow], list[IncarnationRecord]]:
    """Return a run of 20 messages: 5 arrives twice, 8 and 9 out of order, 12 and 13 never."""
    a = TraceRow(PLANTED, "a", 0, 1, 1_000, "BEGIN", high=64)
    rows = [
        a,
        a._replace(idx=1, step=2, event="SEND", origin="a", seqno=1, seqno_last=20, sent_ns=1_000),
    ]
    b = TraceRow(PLANTED, "b", 0, 3, 1_000, "BEGIN", high=64)
    rows.append(b)
    seqnos = [1, 2, 3, 4, 5, 5, 6, 9, 7, 8, 10, 11, *range(14, 21)]
    for k, seqno in enumerate(seqnos):
        got = b._replace(idx=k + 1, step=4 + k, t_ns=2_000 + k, event="DELIVER", origin="a", high=0)
        rows.append(
            got._replace(seqno=seqno, seqno_last=seqno, part=1, k=k, size_bytes=10, sent_ns=1_000)
        )
    asked = b._replace(
        idx=20, step=40, t_ns=3_000, event="NAK_OUT", origin="a", seqno=12, seqno_last=13, high=0
    )
    rows.append(asked)
    for idx, seqno in ((21, 13), (22, 12)):
        stored = asked._replace(idx=idx, step=20 + idx, t_ns=3_000 + idx, event="STORE", k=1)
        rows.append(stored._replace(seqno=seqno, seqno_last=seqno))
    # Of a run of five only two were there already.
    rows.append(
        asked._replace(
            idx=23, step=43, t_ns=3_100, event="DROPPED", seqno=9, k=2, reason="duplicate"
        )
    )
    lives = [
        IncarnationRecord(
            PLANTED, name, own=True, member=name, mode="full", every=1, clock="virtual"
        )
        for name in "ab"
    ]
    return rows, lives


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    rows, lives, meter = measured_run()
    for more_rows, more_lives in (planted_run(), *swarm()):
        rows, lives = rows + more_rows, lives + more_lives
    folder = tmp_path_factory.mktemp("trace")
    write(folder, rows, lives)
    steps: list[tuple[str, int, int]] = []
    found = figures(
        Trace.read(spark, folder), title="all", progress=lambda *step: steps.append(step)
    )
    return Told(rows, lives, found, steps, meter)


def swarm() -> Iterator[tuple[list[TraceRow], list[IncarnationRecord]]]:
    """Return a run of each profile, and two that make their own views."""
    for number, profile in enumerate(ALL_PROFILES):
        outcome = simulate(40 + number, profile=profile, messages=25, trace=True)
        yield outcome.trace or [], outcome.incarnations
    for seed in (71, 72):
        outcome = simulate(seed, membership=True, messages=15, trace=True)
        yield outcome.trace or [], outcome.incarnations


def write(folder: Path, rows: list[TraceRow], lives: list[IncarnationRecord]) -> None:
    write_table(rows_to_table(rows), folder / "00001.parquet")
    (folder / INCARNATIONS_FILE).write_text("".join(life.to_json_line() for life in lives))


def name(seed: int, life: str) -> str:
    return f"{seed}:{life}" if life else ""


def within(told: float, exact: float) -> bool:
    """Whether a percentile is the exact one, or too high by no more than a bucket."""
    return exact <= told <= exact * (1 + MAX_RELATIVE_ERROR) + 1


def test_there_is_something_to_count(told: Told) -> None:
    """Guards the others: a figure that is always 0 agrees with everything."""
    events = Counter(row.event for row in told.rows)
    wanted = [
        "SEND",
        "DELIVER",
        "REPAIR",
        "NAK_OUT",
        "BLOCK",
        "UNBLOCK",
        "STATE",
        "TAIL_IN",
        "DROPPED",
        "NET_DROP",
    ]
    assert (
        min((events[event], event) for event in [*wanted, "CRASH", "REST", "MEMBERS", "STABLE_IN"])[
            0
        ]
        > 2
    )
    assert {row.reason for row in told.rows if row.event == "DELIVER"} >= {"", "one"}
    assert [step[0] for step in told.steps] == ["clocks", *parts_of(told)]


def parts_of(told: Told) -> list[str]:
    return [
        key
        for key in told.figures
        if key not in {"kind", "title", "version", "made_at", "mode", "simulated"}
    ]


def test_what_became_of_messages(told: Told) -> None:
    exact = oracle.fate([row for row in told.rows if row.seed != PLANTED])
    wrong = {
        "sent": 20,
        "delivered": 19,
        "expected": 20,
        "lost": 2,
        "duplicates": 1,
        "out_of_order": 2,
    }
    assert {key: told.summary[key] for key in exact} == {
        key: exact[key] + wrong[key] for key in exact
    }
    assert exact["duplicates"] == exact["out_of_order"] == 0 < exact["delivered"]


def test_counts_of_the_summary(told: Told) -> None:
    events = Counter(row.event for row in told.rows)
    again = [row for row in told.rows if row.event in {"REPAIR", "REPAIR_ASIDE"}]
    assert told.summary["naks"] == events["NAK_OUT"]
    assert told.summary["repairs"] == len(again)
    assert told.summary["repaired"] == sum(row.seqno_last - row.seqno + 1 for row in again)
    assert told.summary["frames_lost"] == events["NET_DROP"]
    span_ns = 0
    for seed in {row.seed for row in told.rows}:
        sent = [
            row.t_ns
            for row in told.rows
            if row.seed == seed and row.event in {"SEND", "SEND_ASIDE"}
        ]
        got = [
            row.t_ns
            for row in told.rows
            if row.seed == seed and row.event == "DELIVER" and row.member != row.origin
        ]
        span_ns += max(0, max(got) - min(sent))
    assert told.summary["messages_per_s"] == pytest.approx(
        told.summary["delivered"] * 1e9 / span_ns
    )


def test_latencies_by_stream_and_of_all(told: Told) -> None:
    exact = oracle.latencies(told.rows)
    whole, *each = told.figures["latency"]
    assert len(each) == min(len(exact), sections.MAX_LATENCIES)
    by_name = {
        (name(seed, m), name(seed, o), name(seed, to)): took
        for (seed, m, o, to), took in exact.items()
    }
    everything = [one for took in exact.values() for one in took]
    for row, took in [
        (whole, everything),
        *((row, by_name[row["member"], row["origin"], row["to"]]) for row in each),
    ]:
        assert (
            row["count"]
            == sum(weight for _, weight in took)
            == sum(count for _, count in row["histogram"])
        )
        assert row["max_ns"] == max(value for value, _ in took)
        for key, share in (("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999)):
            assert within(row[key], oracle.percentile(took, share)), (row, key)
    assert min(value for value, _ in everything) >= 0
    assert (told.summary["latency_p50_ns"], told.summary["latency_max_ns"]) == (
        whole["p50_ns"],
        whole["max_ns"],
    )


def test_latency_is_what_the_meter_of_the_comparison_saw(told: Told) -> None:
    """The meter counts from the call of send; without waiting, a message gets its seqno then."""
    rows = [row for row in told.figures["latency"] if row["member"].startswith(f"{MEASURED}:")]
    assert sum(row["count"] for row in rows) == told.meter.delivered > 0
    assert max(row["max_ns"] for row in rows) == told.meter.percentile_ns(100)
    exact = [
        one
        for key, took in oracle.latencies(told.rows).items()
        if key[0] == MEASURED
        for one in took
    ]
    assert flat(exact) == told.meter.latency_ns


def flat(weighted: list[tuple[int, int]]) -> dict[int, int]:
    sums: dict[int, int] = defaultdict(int)
    for value, weight in weighted:
        sums[value] += weight
    return sums


def test_overhead(told: Told) -> None:
    exact = {name(*life): said for life, said in oracle.overhead(told.rows).items()}
    assert {row.pop("member"): row for row in map(dict, told.figures["overhead"])} == exact


def test_who_waited_for_whom(told: Told) -> None:
    exact = {name(*life): said for life, said in oracle.blocked(told.rows).items()}
    assert {row["member"] for row in told.figures["blocked"]} == set(exact)
    for row in told.figures["blocked"]:
        said, seed = exact[row["member"]], int(row["member"].split(":")[0])
        causes = {
            (name(seed, who), why): spent
            for (who, why), spent in said["caused_by"].items()
            if spent
        }
        assert {
            (one["member"], one["reason"]): one["blocked_ns"]
            for one in row["caused_by"]
            if one["blocked_ns"]
        } == causes
        assert [row[key] for key in ("times", "blocked_ns", "longest_ns")] == [
            said[key] for key in ("times", "blocked_ns", "longest_ns")
        ]


def test_windows_are_thinned_to_the_last_marks_of_each_part(told: Told) -> None:
    begin_ns, end_ns = min(row.t_ns for row in told.rows), max(row.t_ns for row in told.rows)
    part_ns = -(-(end_ns - begin_ns + 1) // sections.WINDOW_POINTS)
    exact = {
        (name(s, m), name(s, o), name(s, to)): rows
        for (s, m, o, to), rows in oracle.marks(told.rows).items()
    }
    assert len(told.figures["windows"]) == min(len(exact), sections.MAX_WINDOWS)
    for window in told.figures["windows"]:
        last = {}
        for row in exact[window["member"], window["origin"], window["to"]]:
            last[(row.t_ns - begin_ns) // part_ns] = [row.t_ns, row.low, row.delivered, row.high]
        assert window["points"] == list(last.values())
        assert 0 < len(last) <= sections.WINDOW_POINTS
        assert window["reach"] > 0


def test_occupancy_is_weighted_by_time(told: Told) -> None:
    exact = {
        (name(s, m), name(s, o), name(s, to)): rows
        for (s, m, o, to), rows in oracle.marks(told.rows).items()
    }
    assert told.figures["occupancy"]
    for row in told.figures["occupancy"]:
        marks = exact[row["member"], row["origin"], row["to"]]
        until = [mark.t_ns for mark in marks[1:]] + [marks[-1].t_ns]
        held = [
            (mark.high - mark.low, end_ns - mark.t_ns + 1)
            for mark, end_ns in zip(marks, until, strict=True)
        ]
        total = sum(lasted for _, lasted in held)
        assert row["mean"] == pytest.approx(sum(count * lasted for count, lasted in held) / total)
        assert row["max"] == max(count for count, _ in held)
        assert within(row["p50"], oracle.percentile(held, 0.5))
        assert within(row["p99"], oracle.percentile(held, 0.99))


def test_from_gap_to_repair(told: Told) -> None:
    exact = oracle.repair_log(told.rows)
    assert 5 < len(exact) <= sections.MAX_REPAIRS, "all of them are told, so all can be compared"
    named = {
        (
            name(at[0], at[1]),
            name(at[0], at[2]),
            name(at[0], at[4]),
            first,
            last,
            times["nak_ns"],
        ): times
        for (at, first, last), times in exact.items()
    }
    found = {
        (
            row["member"],
            row["origin"],
            row["to"],
            row["seqno"],
            row["seqno_last"],
            row["nak_ns"],
        ): row
        for row in told.figures["repair_log"]
    }
    assert found.keys() == named.keys()
    for key, times in named.items():
        assert {name: found[key][name] for name in times} == times


def test_over_time_adds_up(told: Told) -> None:
    step_ns, points = told.figures["over_time"]["step_ns"], told.figures["over_time"]["points"]
    begin_ns = min(row.t_ns for row in told.rows)
    exact: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    took: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in told.rows:
        key = name(row.seed, row.member), (row.t_ns - begin_ns) // step_ns
        count, size = exact[key], row.seqno_last - row.seqno + 1
        if row.event in {"SEND", "SEND_ASIDE"}:
            count["sent"] += size
        if row.event == "DELIVER" and row.member != row.origin:
            count.update(delivered=size, bytes=row.size_bytes)
            took[key].append((row.t_ns - row.sent_ns, size))
        kind = {
            "NAK_OUT": "naks",
            "REPAIR": "repairs",
            "REPAIR_ASIDE": "repairs",
            "ACK_OUT": "acks",
        }.get(row.event)
        if kind:
            count[kind] += 1
        if row.event == "DROPPED" and row.reason in {"duplicate", "old"}:
            count["duplicates"] += row.k or size
    lives = {point["member"] for point in points}
    assert 0 < len(lives) <= shared_frames.MAX_INCARNATIONS_OVER_TIME
    found = {(point["member"], (point["t_ns"] - begin_ns) // step_ns): point for point in points}
    assert len(found) == len(points)
    columns = ("sent", "delivered", "bytes", "naks", "repairs", "acks", "duplicates")
    for key, count in exact.items():
        if key[0] in lives and count.total():
            assert [found[key][column] for column in columns] == [
                count[column] for column in columns
            ]
        if key[0] in lives and took[key]:
            assert within(found[key]["latency_p99_ns"], oracle.percentile(took[key], 0.99))
    waits = {
        row["member"]: row["blocked_ns"]
        for row in told.figures["blocked"]
        if row["member"] in lives
    }
    summed: Counter[str] = Counter()
    for point in points:
        assert 0 <= point["blocked_ns"] <= step_ns
        summed[point["member"]] += point["blocked_ns"]
    assert {life: waited for life, waited in waits.items() if waited} == +summed


def test_lives_and_views(told: Told) -> None:
    seen: dict[tuple[int, str], set[str]] = defaultdict(set)
    for row in told.rows:
        seen[row.seed, row.member].add(row.event)
    lives = {row["name"]: row for row in told.figures["lives"]}
    assert set(lives) == {name(*life) for life in seen}
    for (seed, life), events in seen.items():
        said = lives[name(seed, life)]
        if "CRASH" in events and "EXPELLED" not in events:
            assert said["end"] == "killed"
        elif "REST" in events and not events & {"EXPELLED", "CRASH"}:
            assert said["end"] == "rest"
        own = [row for row in told.rows if (row.seed, row.member) == (seed, life)]
        assert (said["began_ns"], said["ended_ns"], said["events"]) == (
            own[0].t_ns,
            own[-1].t_ns,
            len(own),
        )
        assert (said["offset_ns"], said["uncertainty_ns"]) == (0, 0)
    assert {row["end"] for row in lives.values()} >= {"rest", "killed", "unknown"}
    views = [row for row in told.rows if row.event == "MEMBERS"]
    assert len(told.figures["views"]) == len(views)
    first = min(views, key=lambda row: (row.t_ns, row.seed, row.view))
    assert told.figures["views"][0]["members"] == [
        name(first.seed, member) for member in first.reason.split()
    ]

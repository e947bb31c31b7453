"""Traces verified in a real Spark: each check passes good traces, and finds every planted error."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gapless.errors import ConfigError
from gapless.sim.runner import simulate
from gapless.trace.parquet import rows_to_table, write_table
from pyspark_gapless.trace import Trace, TraceError
from pyspark_gapless.verify import CHECKS, NOT_CHECKABLE, verify
from pyspark_gapless.verify.runner import resolve_check_ids
from tests.pyspark_gapless.verify.broken_traces import (
    Change,
    Which,
    delivered_again,
    good,
    insert,
    is_a,
    never_delivered,
    renumbered,
    replace,
    started_anew,
    without,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.trace import TraceRow
    from pyspark_gapless.verify import TraceVerdict

pytestmark = pytest.mark.xdist_group("spark")


def of(member: str, origin: str, event: str = "DELIVER", **columns: object) -> Which:
    return is_a(event, member=member, origin=origin, **columns)


def ghost(origin: str, rows: list[TraceRow]) -> list[TraceRow]:
    """Return marks of somebody that nobody knows, with as much stored as a window may hold."""
    reach = next(row.high for row in rows if row.event == "BEGIN")
    end = next(row for row in rows if row.event == "END" and row.member == "b")
    return [end._replace(event="STATE", origin=origin, high=reach)]


LATE_NS = 10**12

PLANTED: dict[str, tuple[str, Change, set[str]]] = {
    "S1 never sent": ("loss", without(of("a", "a", "SEND"), -1), {"S1"}),
    "S1 a number left out": (
        "loss",
        replace(of("a", "a", "SEND"), 1, seqno=lambda row: row.seqno + 1),
        {"S1"},
    ),
    "S1 sent too late": ("loss", replace(of("a", "a", "SEND"), 0, step=10**9), {"S1"}),
    "S2": ("loss", delivered_again(of("b", "a"), 1), {"S2"}),
    "S3 left out": ("loss", never_delivered(of("b", "a"), 1), {"S3"}),
    "S3 own": ("loss", never_delivered(of("a", "a"), 1), {"S3"}),
    "S3 no start": ("loss", without(of("b", "a", "START")), {"S3"}),
    "S3 another start": ("loss", replace(of("b", "a", "START"), seqno=2), {"S3"}),
    "S3 started anew": ("loss", started_anew(of("b", "a"), 1), {"S3"}),
    "S4": ("loss", replace(of("b", "a"), -1, hash=7), {"S4"}),
    "S5 again": ("aside", insert(is_a("DELIVER", reason="out of band")), {"S5"}),
    "S5 other bytes": ("aside", replace(is_a("DELIVER", reason="out of band"), hash=7), {"S5"}),
    "S5 never sent": ("aside", without(is_a("SEND_ASIDE")), {"S5"}),
    "S5 never came": ("aside", without(is_a("DELIVER", reason="out of band"), -1), {"S5"}),
    "S6 sender": (
        "loss",
        replace(of("a", "a", "STATE"), -1, high=lambda row: row.low + 10_000),
        {"S6", "S14", "L2"},
    ),
    "S6 receiver": (
        "loss",
        replace(of("b", "a", "STATE"), -1, high=lambda row: row.delivered + 10_000),
        {"S6", "S14"},
    ),
    "S7 order": (
        "loss",
        replace(of("b", "a", "STATE"), -1, low=lambda row: row.delivered + 1),
        {"S7"},
    ),
    "S7 back": (
        "loss",
        insert(
            of("b", "a", "STATE"), -1, low=0, delivered=0, high=0, step=lambda row: row.step + 1
        ),
        {"S7", "S8"},
    ),
    "S8 acknowledges too much": (
        "loss",
        replace(of("b", "a", "ACK_OUT"), seqno_last=lambda row: row.seqno_last + 9),
        {"S8"},
    ),
    "S8 never sent": (
        "loss",
        replace(of("a", "a", "ACK_IN"), seqno_last=lambda row: row.seqno_last + 1),
        {"S8"},
    ),
    "S9 no ack": ("loss", without(of("a", "a", "ACK_IN", peer="b"), None), {"S9"}),
    "S9 not in truth": ("stable", replace(of("a", "a", "PURGE"), step=1), {"S9"}),
    "S10 nobody asked": ("loss", without(is_a("NAK_IN"), None), {"S10"}),
    "S10 other bytes": ("loss", replace(is_a("REPAIR"), hash=7), {"S10"}),
    "S10 let go": (
        "loss",
        insert(is_a("REPAIR"), seqno=0, seqno_last=0, hash_first=0, reason="unasked"),
        {"S10"},
    ),
    "S11 it has that": ("loss", replace(is_a("NAK_OUT"), -1, seqno=1), {"S11"}),
    "S11 there is none": (
        "loss",
        replace(is_a("NAK_OUT"), seqno_last=lambda row: row.seqno_last + 999),
        {"S11"},
    ),
    "S11 astray": ("loss", replace(is_a("NAK_OUT", origin="a"), peer="c"), {"S11"}),
    "S11 too soon": ("loss", insert(is_a("NAK_OUT")), {"S11"}),
    "S11 too soon, and told late": (
        "loss",
        insert(is_a("NAK_OUT"), t_ns=lambda row: row.t_ns + LATE_NS),
        {"S11"},
    ),
    "S12 delivered before": (
        "loss",
        insert(of("b", "a", "STORE"), -1, seqno=1, seqno_last=1, k=1),
        {"S12"},
    ),
    "S12 out of reach": (
        "loss",
        replace(of("b", "a", "STORE"), -1, seqno=9000, seqno_last=9000, k=1),
        {"S12"},
    ),
    "S12 a wrong reason": (
        "loss",
        insert(of("b", "a", "STORE"), event="DROPPED", reason="far", k=1),
        {"S12"},
    ),
    "S12 not all": (
        "loss",
        insert(of("b", "a", "STORE"), seqno_last=lambda row: row.seqno + 4, k=2),
        {"S12"},
    ),
    "S13": (
        "loss",
        insert(of("b", "a", "STORE"), event="DROPPED", reason="magic", peer="", origin=""),
        {"S13"},
    ),
    "S14": (
        "loss",
        lambda rows: [*rows, *(row for one in "xyz" for row in ghost(one, rows))],
        {"S14"},
    ),
    "S15 two lists": ("loss", replace(is_a("MEMBERS"), 1, reason="a c b"), {"S15"}),
    "S15 not in it": ("loss", replace(is_a("MEMBERS", member="b"), reason="a c"), {"S15", "L6"}),
    "S15 another maker": ("loss", replace(is_a("MEMBERS"), 1, origin="b"), {"S15", "L6"}),
    "S15 one more": ("loss", replace(is_a("MEMBERS"), 1, reason="a b c x"), {"S15", "L6"}),
    "S15 number": ("loss", insert(is_a("VIEW"), step=lambda row: row.step + 1), {"S15"}),
    "S15 stranger": (
        "loss",
        insert(of("b", "a", "STORE"), event="DROPPED", reason="stranger", seqno=0, seqno_last=0),
        {"S15"},
    ),
    "S16": (
        "loss",
        insert(is_a("END"), event="ACK_OUT", origin="b", t_ns=lambda row: row.t_ns + LATE_NS),
        {"S16"},
    ),
    "L1": ("loss", never_delivered(of("b", "a"), -1), {"L1"}),
    "L2 not released": ("loss", without(of("a", "a", "STATE"), -1), {"L2"}),
    "L2 waits": ("loss", insert(is_a("BEGIN"), event="BLOCK", seqno=77, high=0), {"L2"}),
    "L3": ("loss", insert(is_a("REST"), event="REPAIR_ASIDE", seqno=1, seqno_last=1), {"L3"}),
    "L4": ("loss", insert(is_a("REPAIR"), copies=50, reason="unasked"), {"L4"}),
    "L6 somebody less": ("loss", without(is_a("REST")), {"L6"}),
}


BASES = ("loss", "aside", "stable")


def naks_written_late(rows: list[TraceRow]) -> list[TraceRow]:
    """Write the first NAK of each range just before the second, as after a long pause."""
    asked = [row for row in rows if row.event == "NAK_OUT"]
    again = next(row for at, row in enumerate(asked) for one in asked[:at] if _same_nak(one, row))
    late = [
        row._replace(t_ns=again.t_ns) if row.event == "NAK_OUT" and _same_nak(row, again) else row
        for row in rows
    ]
    assert late != rows
    return late


def _same_nak(one: TraceRow, other: TraceRow) -> bool:
    return (one.member, one.origin, one.seqno) == (other.member, other.origin, other.seqno)


SWARM = 30
"""How many drawn groups of all profiles are verified too (docs/internals/trace-checks.md)."""
FIRST_GOOD = 1000


def record_swarm(folder: Path) -> None:
    """Write the traces of groups as the swarm draws them, half of which make their own views."""
    for at in range(SWARM):
        outcome = simulate(FIRST_GOOD + at, messages=6, membership=at % 2 == 1, trace=True)
        assert outcome.ok
        place = folder / f"swarm-{at}"
        place.mkdir()
        (place / "lives.jsonl").write_text(
            "".join(life.to_json_line() for life in outcome.incarnations), encoding="utf-8"
        )
        write_table(rows_to_table(outcome.trace or ()), place / "00001.parquet")


@pytest.fixture(scope="module")
def verdict(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TraceVerdict:
    """Return the violations in one trace with every error, each in a simulated group of its own."""
    folder = tmp_path_factory.mktemp("planted")
    runs = {seed: (base, change) for seed, (base, change, _) in enumerate(PLANTED.values(), 1)}
    good_ones: dict[int, tuple[str, Change]] = {
        100 + at: (base, list) for at, base in enumerate(BASES)
    }
    write(folder, {**runs, **good_ones, 100 + len(BASES): ("loss", naks_written_late)})
    record_swarm(folder)
    return verify(Trace.read(spark, folder))


def test_each_bad_trace_is_found_by_its_check_and_good_ones_by_none(verdict: TraceVerdict) -> None:
    found: dict[str, set[str]] = {}
    names = dict(enumerate(PLANTED, 1))
    for seed, checks in verdict.failing_seeds.items():
        found[names.get(seed, "good")] = set(checks)
    expected = {name: checks for name, (_, _, checks) in PLANTED.items()}
    assert found == expected


def test_what_is_found_is_told_with_the_rows_around(verdict: TraceVerdict) -> None:
    assert not verdict.ok
    assert verdict.simulated
    assert verdict.seeds == len(PLANTED) + len(BASES) + 1 + SWARM
    assert verdict.incomplete == []
    assert [one.state for one in verdict.checks] == ["violated"] * len(CHECKS)
    said = verdict.as_dict()
    json.dumps(said)
    assert len(said["violations"]) <= 50
    assert {one["check"] for one in said["violations"]} == set(CHECKS)
    names = list(PLANTED)
    gap = next(one for one in said["violations"] if names[one["seed"] - 1] == "S3 left out")
    assert (gap["member"], gap["origin"]) == ("b", "a")
    here = [row for row in gap["rows"] if row["here"]]
    assert [(row["member"], row["event"], row["seqno"]) for row in here] == [
        ("b", "DELIVER", gap["seqno"])
    ]
    assert {row["event"] for row in gap["rows"]} >= {"SEND", "STORE"}
    assert any(frame["from"] == "a" and frame["what"].startswith("SEND") for frame in gap["frames"])


def test_each_check_has_a_bad_trace() -> None:
    assert {name.split()[0] for name in PLANTED} == set(CHECKS)


def test_the_page_lists_the_checks() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "internals/trace-checks.md").read_text(
        encoding="utf-8"
    )
    shown, _, hidden = page.partition("Not in a trace at all")
    assert re.findall(r"^\| ([SL]\d+) \| ([^|]+?) \|", shown, re.MULTILINE) == [
        (check.id, check.name) for check in CHECKS.values()
    ]
    assert dict(re.findall(r"^\| ([SL]\d+) \| (.+) \|$", hidden, re.MULTILINE)) == NOT_CHECKABLE


def test_a_check_that_there_is_not_is_named(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="unknown check 'S98'"):
        resolve_check_ids(["S98"])


def test_what_is_no_trace_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lives.jsonl").write_text("")
    pq.write_table(pa.table({"seed": [1]}), tmp_path / "1.parquet")
    with pytest.raises(TraceError, match="Parquet files that are not a trace: 'member' is missing"):
        Trace.read(spark, tmp_path)


def _lacking(which: Which) -> Change:
    """Lose rows without a word: the numbers of the others stay."""
    return lambda rows: [row for row in renumbered(rows) if not which(row)]


def test_who_is_not_recorded_to_the_end_is_named_and_makes_nobody_guilty(
    spark: SparkSession, tmp_path: Path
) -> None:
    outcome = good("loss")
    rows = list(outcome.trace or ())
    most = max(row.idx for row in renumbered(rows) if row.member == "a")
    changes: dict[int, tuple[Change, dict[str, Any]]] = {
        1: (_lacking(lambda row: row.member == "a" and most < 3 * row.idx < 2 * most), {}),
        2: (_lacking(lambda row: row.member == "a" and 2 * row.idx > most), {"whole": False}),
        3: (_lacking(lambda row: row.member == "a"), {"own": False}),
    }
    found, lines = [], []
    for seed, (change, about) in changes.items():
        found += [row._replace(seed=seed) for row in change(rows)]
        lives = [
            life._replace(seed=seed, **(about if life.name == "a" else {}))
            for life in outcome.incarnations
        ]
        lines += [life._replace(clock="time of day").to_json_line() for life in lives]
    (tmp_path / "lives.jsonl").write_text("".join(lines), encoding="utf-8")
    write_table(rows_to_table(found), tmp_path / "00001.parquet")
    verdict = verify(Trace.read(spark, tmp_path), only=("S1", "S8", "S9", "L6"))
    assert [one.state for one in verdict.checks] == ["held"] * 4, verdict.violations
    assert verdict.events == len(found)
    hole, cut = verdict.incomplete
    assert (hole["life"], hole["why"]) == ("a", "")
    assert hole["missing_rows"] == len(rows) - sum(row.seed == 1 for row in found)
    assert cut["life"] == "a"
    assert "recording had to stop" in cut["why"]


def test_a_process_that_still_writes_makes_nobody_guilty(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, {0: ("loss", without(is_a("SEND", member="a"), -1))})
    here, other = tmp_path / "set", tmp_path / "of a"
    other.mkdir()
    lines = (here / "lives.jsonl").read_text().splitlines(keepends=True)
    of_a = ['"name": "a"' in line for line in lines]
    (here / "lives.jsonl").write_text(
        "".join(line for line, mine in zip(lines, of_a, strict=True) if not mine)
    )
    (other / "lives.jsonl").write_text(
        "".join(line for line, mine in zip(lines, of_a, strict=True) if mine)
    )
    with (other / "00002.rows").open("wb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        verdict = verify(Trace.read(spark, tmp_path), only=("S1",))
    assert verdict.ok, verdict.violations
    assert [one["life"] for one in verdict.incomplete] == ["a"]
    (other / "00002.rows").unlink(missing_ok=True)
    assert not CHECKS["S1"](Trace.read(spark, tmp_path)).isEmpty(), (
        "of one that was killed this is the truth"
    )


def test_a_sample_makes_nobody_guilty(spark: SparkSession, tmp_path: Path) -> None:
    """A sampled incarnation among full ones: of its fragments only the seventh has a row."""
    outcome = good("loss")
    sends = is_a("SEND", member="a", to="")
    change = replace(sends, seqno=7, seqno_last=7, k=6)
    found = [
        row for row in change(list(outcome.trace or ())) if not sends(row) or row.seqno_last == 7
    ]
    lives = [
        life._replace(mode="sampled", every=7) if life.name == "a" else life
        for life in outcome.incarnations
    ]
    lines = [life._replace(clock="time of day").to_json_line() for life in lives]
    (tmp_path / "lives.jsonl").write_text("".join(lines), encoding="utf-8")
    write_table(rows_to_table(renumbered(found)), tmp_path / "00001.parquet")
    verdict = verify(Trace.read(spark, tmp_path), only=("S1", "S8", "S11"))
    assert [(one.state, one.violations) for one in verdict.checks] == [("held", 0)] * 3, (
        verdict.violations
    )

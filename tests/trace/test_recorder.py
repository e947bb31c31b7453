"""What a real member records: everything, even if killed, and the same at every member."""

import fcntl
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gapless import blocking
from gapless.cli.app import run as command
from gapless.config import Config
from gapless.errors import ConfigError, GaplessError, LocalProtocolError
from gapless.identity import Address
from gapless.protocol.ready import Delivery, Ready, TraceEntry, Transmit
from gapless.run import Run
from gapless.runtime.delivery_queue import DeliveryQueue
from gapless.runtime.handle import MemberHandle, fit_config
from gapless.runtime.member_runtime import MemberRuntime
from gapless.runtime.reactor import process_ready
from gapless.runtime.send_requests import SendRequest
from gapless.trace import (
    EVENTS,
    Recorder,
    TraceRow,
    check,
    incarnation_id,
    incarnations_of,
    read,
    seal,
)
from gapless.trace.journal import ROW_STRUCT, TraceJournal
from gapless.trace.reader import file_sets
from gapless.trace.row_builder import RowBuilder
from gapless.transport import InProcessNetwork
from tests.support.handles import gathering
from tests.support.networks import free_ports
from tests.support.processes import ENVIRONMENT
from tests.support.real_groups import WITHIN_S, options, threads

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "programs" / "recording_member.py"
ME, OTHER = Address(1, 5), Address(2, 6)


def program(name: str, **said: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), name, json.dumps(said)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def recorder(folder: Path, config: Config | None = None, **how: Any) -> Recorder:
    """Return a recorder with a life that has begun."""
    made = Recorder(folder, **how)
    made.begin_incarnation(ME, config or Config(), 10**18, member="me", stores=False)
    return made


def delivered(origin: Address, first: int, messages: list[bytes], sent_ns: int = 7) -> Delivery:
    run = Run.of(origin, first, messages, sent_ns=sent_ns)
    return Delivery(origin, first, run.last, run)


# Processes that do not come to their end


def test_a_killed_process_has_written_down_whatever_others_have_of_it(tmp_path: Path) -> None:
    ports = free_ports(2)
    with blocking.join("tests", **options(ports), trace=tmp_path) as group:
        child = program("sender", ports=ports, folder=str(tmp_path))
        for _ in range(500):
            assert group.receive(WITHIN_S) is not None
        child.kill()
        child.communicate()
        group.wait_for_members(1, WITHIN_S)
    (left,) = tmp_path.rglob("*.rows")  # the killed one could not seal its own
    rows = list(read(tmp_path))
    killed = left.parent.name
    sent = {
        seqno
        for row in rows
        if row.event == "SEND"
        for seqno in range(row.seqno, row.seqno_last + 1)
    }
    got = {
        seqno
        for row in rows
        if row.event == "DELIVER"
        for seqno in range(row.seqno, row.seqno_last + 1)
    }
    assert len(got) >= 500
    assert got <= sent
    assert {row.origin for row in rows if row.event == "DELIVER"} == {killed}
    assert check(rows) == []
    assert len(seal(tmp_path).files) == 1
    assert list(read(tmp_path)) == rows


def test_rows_are_written_before_datagrams_leave_and_anything_is_handed_over(
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, list[str]]] = []
    transport, outbox, made = (
        InProcessNetwork().open(),
        DeliveryQueue(),
        Recorder(tmp_path),
    )
    config = fit_config(Config.make(), transport)
    seat = MemberRuntime("g", 1, "", transport, config, outbox, join={}, rejoin=True, trace=made)

    def look(what: str) -> None:
        seen.append((what, [row.event for row in read(tmp_path)]))

    transport.send = lambda _: look("left")  # type: ignore[method-assign, assignment]
    outbox.put = lambda *_: look("handed over")  # type: ignore[method-assign]
    process_ready([Ready([Transmit(None, b"datagram")], [delivered(OTHER, 1, [b"x"])])], seat)
    there = ["BEGIN", "DELIVER", "TX"]
    assert seen == [("left", there), ("handed over", there)]
    made.close()
    transport.close()


def test_a_nak_bears_the_time_that_the_machine_was_told_however_late_it_is_written(
    tmp_path: Path,
) -> None:
    bench = "bench --members 2 --size 100 --seconds 0.3 --loss 0.1 --json --trace"
    assert command([*bench.split(), str(tmp_path)]) == 0
    naks = [row for row in read(tmp_path) if row.event == "NAK_OUT"]
    assert naks
    assert all(0 <= row.t_ns - row.sent_ns < 60e9 for row in naks)
    made = recorder(tmp_path / "late")
    made.record_ready(Ready(trace=[TraceEntry("NAK_OUT", OTHER, 1, 3, peer=OTHER, sent_ns=5)]))
    made.flush(())
    made.abandon()
    (row,) = [row for row in read(tmp_path / "late") if row.event == "NAK_OUT"]
    assert row.sent_ns == 5 < row.t_ns


def test_a_torn_journal_keeps_every_whole_row(tmp_path: Path) -> None:
    made = recorder(tmp_path / "whole")
    made.record_ready(
        Ready(
            deliveries=[delivered(OTHER, 1, [b"a", b"bc"])],
            trace=[TraceEntry("TIMER", ME, reason="gap")],
        )
    )
    made.flush([Transmit(None, b"1234")])
    made.abandon()
    rows = list(read(tmp_path / "whole"))
    assert [row.event for row in rows] == ["BEGIN", "TIMER", "DELIVER", "TX"]
    (journal,) = (tmp_path / "whole").rglob("*.rows")
    data = journal.read_bytes()
    for length in range(2 * ROW_STRUCT.size, len(data) + 1):
        journal.write_bytes(data[:length])
        assert list(read(tmp_path / "whole")) == rows[: length // ROW_STRUCT.size], length
    journal.write_bytes(data[:-1])
    (sealed,) = seal(tmp_path).files
    assert list(read(tmp_path)) == rows[:-1]
    assert sealed.suffix == ".parquet"
    assert not journal.exists()


def test_a_full_disk_stops_the_recorder_and_not_the_group(tmp_path: Path) -> None:
    child = program("full_disk", folder=str(tmp_path))
    out, complaints = child.communicate(timeout=60)
    assert child.returncode == 0, complaints
    said = json.loads(out)
    assert said["told"] == 1
    assert (
        len(
            [
                line
                for line in said["logged"]
                if "recording stopped" in line and "File too large" in line
            ]
        )
        == 1
    )
    assert [life.whole for life in incarnations_of(tmp_path) if life.own] == [True]
    seal(tmp_path)
    assert [life.whole for life in incarnations_of(tmp_path) if life.own] == [False]
    rows = list(read(tmp_path))
    assert [row.idx for row in rows] == list(range(len(rows)))
    assert "END" not in {row.event for row in rows}
    assert seal(tmp_path).files == []


def test_a_journal_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    made = recorder(tmp_path, rows_per_file=2)
    for first in (1, 2, 3):
        made.record_ready(Ready(deliveries=[delivered(OTHER, first, [b"x"])]))
        made.flush(())
    made._sealer.join()  # type: ignore[union-attr]
    before = list(read(tmp_path))
    found = seal(tmp_path)
    assert [path.name for path in found.live] == ["00003.rows"]
    assert list(read(tmp_path)) == before
    made.close()
    assert seal(tmp_path) == ([], [])
    assert [row.event for row in read(tmp_path)] == ["BEGIN", *["DELIVER"] * 3, "END"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


# Groups


def by_life(rows: list[TraceRow]) -> dict[str, list[TraceRow]]:
    found: dict[str, list[TraceRow]] = {}
    for row in rows:
        found.setdefault(row.member, []).append(row)
    return found


def test_a_group_is_recorded_without_the_help_of_its_programs(tmp_path: Path) -> None:
    with threads(3, each={"trace": tmp_path}) as (one, two, three):
        one.send_many([b"%d" % number for number in range(50)])
        two.send(b"large" * 10_000)
        one.send(b"you", to=two.me)
        two.send(b"aside", mode="out-of-band")
        for group, count in ((one, 52), (two, 53), (three, 52)):
            assert len([group.receive(WITHIN_S) for _ in range(count)]) == count
    rows = list(read(tmp_path))
    assert check(rows) == []
    lives = by_life(rows)
    assert len(lives) == 3
    for own in lives.values():
        assert [row.idx for row in own] == list(range(len(own)))
        assert (own[0].event, own[-1].event) == ("BEGIN", "END")
        assert {"DELIVER", "MEMBERS", "TX", "LEFT", "STATE"} <= {row.event for row in own}
        assert all(first.t_ns <= second.t_ns for first, second in pairwise(own))
        assert {row.k for row in own if row.event == "SEND" and row.epoch == 0} <= set(range(60))
        by_group = [row for row in own if row.event == "DELIVER" and not row.reason]
        assert {row.seqno - row.k for row in by_group} == {1}
    assert {row.reason for row in rows if row.event == "DELIVER"} == {"", "one", "out of band"}
    (to_one,) = [row for row in rows if row.event == "SEND" and row.to]
    (one_got,) = [row for row in rows if row.reason == "one"]
    assert (to_one.origin, to_one.epoch, to_one.to) == (
        one_got.origin,
        one_got.epoch,
        one_got.member,
    )
    latency_ns = [row.t_ns - row.sent_ns for row in rows if row.event == "DELIVER"]
    assert all(0 <= took_ns < 60e9 for took_ns in latency_ns)
    same: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        if row.event in {"SEND", "DELIVER"} and row.hash_first and row.reason != "out of band":
            same.setdefault(
                (row.origin, row.epoch, row.to, row.hash_first, row.seqno_last), set()
            ).add(row.hash)
    assert {len(hashes) for hashes in same.values()} == {1}
    assert {life.member for life in incarnations_of(tmp_path) if life.own} == _names(tmp_path)


def _names(folder: Path) -> set[str]:
    """Return the display names of the members, as their side files say: each in a file set."""
    found = [
        [life.member for life in incarnations_of(place) if life.own] for place in file_sets(folder)
    ]
    assert [len(members) for members in found] == [1] * len(found)
    names = {members[0] for members in found}
    assert len(names) == len(found), "each member has a name of its own"
    assert all(re.fullmatch(r".+-\d+-\d+", name) for name in names), names
    return names


def test_two_lives_of_one_process_are_two_lives(tmp_path: Path) -> None:
    with threads(2) as (one, two), blocking.join("tests", **_like(one), trace=tmp_path) as guest:
        guest.wait_for_members(3, WITHIN_S)
        one.wait_for_members(3, WITHIN_S)
        former = guest.me
        assert former is not None
        one.expel(former)
        one.send(b"after")
        while guest.me == former:
            guest.receive_event(WITHIN_S)
        two.wait_for_members(3, WITHIN_S)
    rows = by_life(list(read(tmp_path)))
    assert (
        list(rows)
        == [str(former), str(guest.me)]
        == [life.name for life in incarnations_of(tmp_path) if life.own]
    )
    first, second = rows.values()
    assert [row.event for row in first if row.event in {"BEGIN", "EXPELLED", "LEFT", "END"}] == [
        "BEGIN",
        "EXPELLED",
    ]
    assert [row.event for row in second if row.event in {"BEGIN", "EXPELLED", "END"}] == [
        "BEGIN",
        "END",
    ]
    assert [row.idx for row in second] == list(range(len(second)))
    assert len(file_sets(tmp_path)) == 1


def _like(group: Any) -> dict[str, Any]:
    """Return how a further member finds the group that this one is in."""
    found = group._session.options
    return {
        "host": "127.0.0.1",
        "ports": free_ports(1),
        "discover": found.discover,
        "config": found.config,
    }


def test_a_sample_has_the_same_messages_at_every_member(tmp_path: Path) -> None:
    with threads(3, each={"trace": tmp_path, "trace_mode": "sampled:10"}) as (one, two, three):
        rng = Random(1)
        for _ in range(40):
            one.send_many([rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 9))])
        high = one._session.handle.query(lambda member: member.outbound.window.high).result(
            WITHIN_S
        )
        for group in (one, two, three):
            assert len([group.receive(WITHIN_S) for _ in range(high)]) == high
    assert {(life.mode, life.every) for life in incarnations_of(tmp_path) if life.own} == {
        ("sampled", 10)
    }
    for event in ("DELIVER", "SEND"):
        for own in by_life(
            [row for row in read(tmp_path) if row.event == event and not row.reason]
        ).values():
            kept = {
                seqno // 10
                for row in own
                for seqno in range(row.seqno, row.seqno_last + 1)
                if seqno % 10 == 0
            }
            assert kept == set(range(1, high // 10 + 1))
            assert all(row.seqno - row.k == 1 for row in own)
            assert all(
                any(seqno % 10 == 0 for seqno in range(row.seqno, row.seqno_last + 1))
                for row in own
            )


def test_what_chaos_drops_is_written_down(tmp_path: Path) -> None:
    bench = "bench --members 2 --size 100 --seconds 0.3 --loss 0.1 --json --trace"
    assert command([*bench.split(), str(tmp_path)]) == 0
    rows = list(read(tmp_path))
    assert check(rows) == []
    names = {life.name for life in incarnations_of(tmp_path)}
    drops = [row for row in rows if row.event == "NET_DROP"]
    assert drops
    assert {row.peer for row in drops} <= names
    assert {row.event for row in rows} >= {"REPAIR", "NAK_OUT", "SEND"}


def test_rest_stands_between_what_was_before_and_after(tmp_path: Path) -> None:
    with gathering(1, trace=(made := Recorder(tmp_path))) as (guest,):
        guest.handle.submit(SendRequest.of([b"x"])).result(WITHIN_S)
        made.mark_end_of_load()
    events = [row.event for row in read(tmp_path)]
    assert events.index("SEND") < events.index("REST") < events.index("END") == len(events) - 1


# The hash


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.binary(max_size=5), min_size=1, max_size=6)),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_a_run_that_was_cut_elsewhere_ends_with_the_same_hash(
    sent: list[tuple[int, list[bytes]]], rng: Random
) -> None:
    runs, first, now_ns = [], 1, 1
    for later_ns, messages in sent:
        now_ns += later_ns
        runs.append(Run.of(OTHER, first, messages, sent_ns=now_ns))
        first = runs[-1].last + 1
    cut: list[Run] = []
    for run in runs:
        ends = sorted(
            {*(seqno for seqno in range(run.first, run.last) if rng.random() < 0.3), run.last}
        )
        firsts = [run.first, *(end + 1 for end in ends)]
        cut += (run.part(left, right) for left, right in zip(firsts, ends, strict=False))
    whole, parts = hashes(ME, runs), hashes(ME, cut)
    later = {run.first for run, (later_ns, _) in zip(runs, sent, strict=True) if later_ns}
    assert {first for first, _ in whole} == {1, *later}
    assert {key: parts.get(key) for key in whole} == whole
    at_origin = hashes(OTHER, runs)
    assert at_origin == whole


def hashes(me: Address, runs: list[Run]) -> dict[tuple[int, int], int]:
    """Return what is written of runs that are delivered, or at their origin sent and delivered."""
    scribe = RowBuilder(me, str, str, {event: event for event in EVENTS}, str, by_view=False)
    found: dict[tuple[int, int], int] = {}
    for run in runs:
        trace = [TraceEntry("SEND", OTHER, run.first, run.last, run=run)] if me == OTHER else []
        for values in scribe.rows_of_ready(
            Ready(deliveries=[Delivery(OTHER, run.first, run.last, run)], trace=trace)
        ):
            row = TraceRow(0, "", 0, 0, 0, *values)
            assert found.setdefault((row.hash_first, row.seqno_last), row.hash) == row.hash
    return found


# What cannot be


def test_what_strangers_say_may_have_any_size(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.record_ready(
        Ready(
            trace=[
                TraceEntry(
                    "DROPPED",
                    OTHER,
                    2**64 - 1,
                    2**64 - 1,
                    peer=Address(2**64 - 1, 2**64 - 1),
                    reason="far",
                )
            ]
        )
    )
    made.flush(())
    made.abandon()
    (row,) = [row for row in read(tmp_path) if row.event == "DROPPED"]
    assert (row.seqno, row.reason, row.peer) == (
        2**63 - 1,
        "far",
        "ffffffffffffffff.ffffffffffffffff",
    )


def test_one_recorder_is_for_one_member(tmp_path: Path) -> None:
    made = Recorder(tmp_path)
    with (
        gathering(1, trace=made) as (guest,),
        pytest.raises(LocalProtocolError, match="a Recorder for each join"),
    ):
        MemberHandle("g", guest.handle.transport, trace=made)


def test_a_recorder_that_is_closed_leaves_its_member_alone(tmp_path: Path) -> None:
    with (
        threads(3) as (one, two, _),
        blocking.join("tests", **_like(one), trace=(made := Recorder(tmp_path))) as guest,
    ):
        one.wait_for_members(4, WITHIN_S)
        made.close()
        former = guest.me
        assert former is not None
        one.expel(former)
        while guest.me == former:
            guest.receive_event(WITHIN_S)
        two.wait_for_members(4, WITHIN_S)
    assert [life.name for life in incarnations_of(tmp_path) if life.own] == [str(former)]
    assert [row.event for row in read(tmp_path)][-1] == "END"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trace": 7}, "path of a folder, or a Recorder"),
        ({"trace": "x", "trace_mode": "half"}, "expected full, sampled, or sampled:N"),
        ({"trace": "x", "trace_mode": "sampled:1"}, "expected full, sampled, or sampled:N"),
        ({"trace": "x", "trace_mode": "full:9"}, "expected full, sampled, or sampled:N"),
        ({"trace_mode": "full"}, "a folder as trace="),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        blocking.join("g", **wrong)


@pytest.mark.parametrize("wrong", [{"mode": "half"}, {"every": 1}, {"every": "9"}])
def test_a_recorder_that_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Recorder(tmp_path, **wrong)


def test_a_folder_that_cannot_be_written_is_said_before_anything_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GaplessError, match=r"cannot record a trace in .*Not a directory"):
        TraceJournal(tmp_path / "file" / "set")
    wanted = str(tmp_path / "file" / "trace")
    assert (
        command(
            [
                "send",
                "g",
                "--trace",
                wanted,
                "--discover",
                "seeds://127.0.0.1:1",
                "--host",
                "127.0.0.1",
            ]
        )
        == 2
    )
    assert "cannot record a trace" in capsys.readouterr().err


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    for look in (seal, read):
        with pytest.raises(GaplessError, match="there is no trace at"):
            look(tmp_path / "nowhere")
    with pytest.raises(GaplessError, match="there is no trace at"):
        read(tmp_path)
    recorder(tmp_path).close()
    (side,) = tmp_path.rglob("lives.jsonl")
    side.write_text(side.read_text() + '{"colour": 1}\n')
    with pytest.raises(GaplessError, match=r"lives\.jsonl:2: expected an incarnation"):
        read(tmp_path)


def test_a_life_has_one_number_that_is_never_nothing() -> None:
    assert incarnation_id("") == 0
    assert {incarnation_id(name) > 0 for name in ("a", "b", str(ME))} == {True}
    assert incarnation_id("1.5") == incarnation_id(str(ME)) != incarnation_id(str(OTHER))


@pytest.mark.parametrize("side", ["texts.jsonl", "lives.jsonl"])
def test_side_files_that_are_no_text_are_refused(side: str, tmp_path: Path) -> None:
    made = recorder(tmp_path, seals=False)
    made.close()
    (file_set,) = file_sets(tmp_path)
    (file_set / side).write_bytes(b"\xff\xfe\n")
    with pytest.raises(GaplessError, match=f"{side}:1: expected a"):
        list(read(tmp_path))


def test_rows_of_any_bytes_can_be_sealed(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "lives.jsonl").touch()
    (tmp_path / "set" / "00001.rows").write_bytes(b"\xff" * 3 * ROW_STRUCT.size)
    assert len(seal(tmp_path).files) == 1


def test_an_empty_journal_that_is_taken_away_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever seals may come between the opening of the file and its lock."""
    taken: list[Path] = []
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if not taken:
            taken.append(next(tmp_path.rglob("*.rows")))
            taken[0].unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    made = TraceJournal(tmp_path / "set", 1000)
    made.write_rows([bytes(ROW_STRUCT.size)])
    made.close()
    assert taken[0].stat().st_size == ROW_STRUCT.size, "what is written is where others look for it"

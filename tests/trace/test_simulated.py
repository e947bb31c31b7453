"""Traces of the simulator on disk: the same rows, with one order over all members."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.sim import simulate
from gapless.trace import check, incarnations_of, read
from gapless.trace.schema import COLUMNS, TraceRow


def test_what_is_written_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["sim", "--seeds", "3", "--first", "5", "--messages", "10", "--workers", "1", "--json"]
    assert run([*few, "--trace", str(tmp_path)]) == 0
    digest = json.loads(capsys.readouterr().out)["digest"]
    rows = list(read(tmp_path))
    outcomes = [simulate(seed, messages=10, trace=True) for seed in (5, 6, 7)]
    assert rows == [row for outcome in outcomes for row in outcome.trace or []]
    assert run(few) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == digest
    lives = {(life.seed, life.name): life for life in incarnations_of(tmp_path)}
    assert {(row.seed, row.member) for row in rows} == {
        key for key, life in lives.items() if life.own
    }
    assert {life.clock for life in lives.values() if life.own} == {"virtual"}
    assert all(
        (row.seed, name) in lives for row in rows for name in (row.origin, row.to, row.peer) if name
    )
    assert TraceRow._fields == tuple(COLUMNS)


def test_one_seed_and_a_folder_that_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "new")
    assert run(["sim", "9", "--membership", "--messages", "5", "--trace", place, "--json"]) == 0
    rows = list(read(place))
    steps = [row.step for row in rows]
    assert steps == sorted(steps)
    for _, own in groupby(
        sorted(rows, key=lambda row: (row.member, row.step, row.idx)), key=lambda row: row.member
    ):
        assert [row.idx for row in own] == list(
            range(len([row for row in rows if row.member == _]))
        )
    capsys.readouterr()
    assert run(["sim", "9", "--trace", place]) == 2
    assert "already has a trace" in capsys.readouterr().err


@pytest.mark.parametrize("profile", ["nakack4", "nakack", "ordered", "classic", "unicast2"])
def test_every_profile_counts_and_hashes_alike(profile: str) -> None:
    for seed in (11, 12):
        outcome = simulate(seed, profile=profile, messages=30, trace=True)
        rows = outcome.trace or []
        firsts: dict[tuple[object, ...], set[int]] = {}
        hashes: dict[tuple[object, ...], set[int]] = {}
        for row in rows:
            stream = row.origin, row.epoch, row.to
            if row.event == "DELIVER" and row.reason in {"", "one"}:
                firsts.setdefault((row.member, *stream, row.part), set()).add(row.seqno - row.k)
            if row.event in {"SEND", "DELIVER", "REPAIR"} and row.reason not in {
                "out of band",
                "unreliable",
            }:
                hashes.setdefault((*stream, row.hash_first, row.seqno_last), set()).add(row.hash)
        assert {len(found) for found in firsts.values()} == {1}
        assert {len(found) for found in hashes.values()} == {1}
        starts = {
            (row.member, row.origin, row.epoch, row.to, row.part): row.seqno
            for row in rows
            if row.event == "START"
        }
        told = {key: found for key, found in firsts.items() if key in starts}
        assert {key: {starts[key]} for key in told} == told
        if profile == "nakack4":
            assert check(rows) == []


def test_all_times_are_on_the_true_clock() -> None:
    for seed in (1006, 1008):  # lives whose own clocks show other times
        rows = simulate(seed, messages=6, trace=True).trace or []
        naks = [row for row in rows if row.event == "NAK_OUT"]
        sends = [row for row in rows if row.event == "SEND"]
        assert naks
        assert [row.sent_ns for row in naks + sends] == [row.t_ns for row in naks + sends]

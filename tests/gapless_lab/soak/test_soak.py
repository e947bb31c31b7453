"""Groups of real processes under loss, kill -9 and SIGSTOP, whose traces are checked."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.app import run
from gapless.errors import ConfigError
from gapless.trace import TraceRow, read
from gapless.trace.reader import file_sets
from gapless_lab.nemesis import CONTINUE, KILL, RESTART, STOP
from gapless_lab.soak import SoakPlan, SoakReport
from gapless_lab.soak.plan import DetectedKill
from gapless_lab.soak.runner import (
    AppliedOp,
    detect_kills,
    draw_nemesis_ops,
    is_at_rest,
    report,
)
from tests.support.processes import in_namespace


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_soak_breaks_no_invariant(
    transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--seconds",
        "6",
        "--transport",
        transport,
        "--seed",
        "5",
        "--trace",
        str(tmp_path / "traces"),
    ]
    code = run(["soak", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["violations"], found["rested"], found["sound"]) == (0, [], True, True)
    assert found["unnoticed"] == found["hangs"] == 0
    assert found["kill_to_view_s"]["max"] > 0
    assert found["lives"] >= 6  # four, one killed and back, one stopped, expelled and back
    assert found["expelled"] >= 1
    assert found["sent"] > 500
    assert found["delivered"] > found["sent"]
    assert found["repairs"] > 0
    assert all(found["struck"].values())
    check_plants(tmp_path / "traces")


def check_plants(folder: Path) -> None:
    """The checks look at these very traces: whatever is taken out of them, or put in, is found."""
    assert len(file_sets(folder)) == 5
    rows = list(read(folder))
    ends = {row.member for row in rows if row.event == "REST"}
    handed = [
        row for row in rows if row.event == "DELIVER" and row.member in ends and row.origin in ends
    ]
    middle = handed[len(handed) // 2]
    at = rows.index(middle)
    taken_out = [*rows[:at], *rows[at + 1 :]]
    put_in = [*rows[:at], middle, *rows[at:]]
    damaged = [*rows[:at], middle._replace(hash=1), *rows[at + 1 :]]
    counted: dict[str, Any] = {"rested": True, "struck": {}, "memory": {}}
    for planted, broken in ((taken_out, {"S3", "L1"}), (put_in, {"S2"}), (damaged, {"S4"})):
        checked = report(SoakPlan(), planted, **counted)
        assert {violation.check for violation in checked.violations} == broken
        assert not checked.is_sound


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_hosts_whose_network_drops_packets(transport: str) -> None:
    probe = (
        "ip link add bridge9 type bridge; ip link add port9 type veth peer name cable9;"
        " tc qdisc add dev port9 root tbf rate 1mbit burst 4kb limit 4kb;"
        " ip link del port9; ip link del bridge9;"
        " unshare --net true"
    )
    found = in_namespace(probe, "inside_hosts.py", transport, "5")
    assert found["dropped"] > 0
    assert (found["violations"], found["rested"]) == ([], True)
    assert found["lives"] >= 6
    assert found["repairs"] > 0 or transport == "tcp"


def test_operations_come_from_the_seed_and_hit_different_members() -> None:
    ops = draw_nemesis_ops(SoakPlan(seconds=60, kills=2, stops=2, seed=3))
    assert ops == draw_nemesis_ops(SoakPlan(seconds=60, kills=2, stops=2, seed=3))
    assert ops != draw_nemesis_ops(SoakPlan(seconds=60, kills=2, stops=2, seed=4))
    assert {op.victim for op in ops} == {"0", "1", "2", "3"}
    assert all(op.at_s < 60 for op in ops)
    assert sorted(op.action for op in ops) == sorted([KILL, RESTART, STOP, CONTINUE] * 2)
    for member in range(4):
        first, second = [op for op in ops if op.victim == str(member)]
        assert (first.action, second.action) in {(KILL, RESTART), (STOP, CONTINUE)}
        assert second.at_s - first.at_s > 1.5 or first.action == KILL
    assert all(one.at_s <= other.at_s for one, other in pairwise(ops))


def test_operations_repeat_in_every_interval() -> None:
    ops = draw_nemesis_ops(SoakPlan(members=6, seconds=60, every_s=20))
    assert [op.action for op in ops].count(KILL) == [op.action for op in ops].count(STOP) == 3
    for begin_s in (0, 20, 40):
        own = [op for op in ops if begin_s <= op.at_s < begin_s + 20]
        assert {op.action for op in own} == {KILL, RESTART, STOP, CONTINUE}
        assert len({op.victim for op in own}) == 2


def _row(event: str, at_ns: int, member: str, members: str = "") -> TraceRow:
    fields: dict[str, Any] = dict.fromkeys(TraceRow._fields, 0)
    return TraceRow(
        **{**fields, "event": event, "t_ns": at_ns, "member": member, "reason": members}
    )


def test_kills_are_timed_by_the_views_of_the_others() -> None:
    s = 1_000_000_000
    everyone = "1.1 2.1 3.1 4.1"
    rows = [_row("BEGIN", 1, member) for member in everyone.split()]
    rows += [_row("MEMBERS", 2, member, everyone) for member in everyone.split()]
    rows += [_row("MEMBERS", 10 * s + s // 2, "2.1", "2.1 3.1 4.1")]
    rows += [_row("MEMBERS", 12 * s, "3.1", "2.1 3.1 4.1")]
    applied = [AppliedOp(4, STOP, 9 * s), AppliedOp(1, KILL, 10 * s)]
    assert detect_kills(rows, applied) == [DetectedKill("1.1", 2.0)], "a stopped one cannot know"
    assert detect_kills(rows[:-1], applied) == [DetectedKill("1.1", None)]
    unnoticed = SoakReport(True, [], {}, {}, {}, detected=[DetectedKill("1.1", None)])
    assert not unnoticed.is_sound
    assert not SoakReport(True, [], {}, {}, {}, hangs=1).is_sound
    times = [DetectedKill("x", float(number)) for number in range(1, 101)]
    assert SoakReport(True, [], {}, {}, {}, detected=times).kill_to_view_s() == {
        "p50": 51.0,
        "p99": 100.0,
        "max": 100.0,
    }


def test_rest_is_when_everybody_has_everything() -> None:
    one = {
        "me": "a",
        "low": 3,
        "high": 3,
        "heard": {"a": 3, "b": 0},
        "members": ["a", "b"],
        "idle": True,
    }
    other = {"me": "b", "low": 0, "high": 0, "heard": {"a": 3}, "members": ["a", "b"], "idle": True}
    assert is_at_rest([one, other])
    for wrong in ({"heard": {"a": 2}}, {"members": ["b"]}, {"idle": False}, {"high": 1}):
        assert not is_at_rest([one, {**other, **wrong}])


def test_memory_that_grows_is_not_sound() -> None:
    def checked(*seen: float) -> SoakReport:
        short = {"2.2": [10.0, 20.0, 30.0]}  # it was started late, and is still at its beginning
        return report(SoakPlan(), [], rested=True, struck={}, memory={"1.1": list(seen), **short})

    assert checked(*[30] * 3, 31, 32, 33, 33, 33).is_sound
    growing = checked(*[30] * 3, 31, 32, 33, 38, 42)
    assert not growing.is_flat
    assert not growing.is_sound


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"transport": "pigeon"}, "udp, tcp"),
        ({"members": 1}, "2 to 64"),
        ({"loss": 1.0}, "share"),
        ({"kills": 4}, "fewer than members"),
        ({"stops": -1}, "0 to 3"),
        ({"seconds": 0}, "more than 0"),
        ({"rate": 0}, "1 to 10,000"),
        ({"every_s": 90.0}, "at most the seconds"),
        ({"settings": {"capacity": -1}}, "capacity"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        SoakPlan(**wrong)


def test_traces_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.jsonl").touch()
    assert run(["soak", "--trace", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err

"""The harness at work: each workload for a moment, with Gapless and bare sockets; no leftovers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import plans, run, workloads
from bench.contenders import CONTENDERS
from bench.environment import ROOT, Environment, Peer
from bench.groups import Group, Shape
from bench.network import Network, UnavailableError
from bench.workloads import Case, Course, Outcome

BRIEF = {
    "LEAD_S": 0.3,
    "STOP_S": 0.3,
    "AFTER_S": 0.4,
    "FILL_S": 0.2,
    "SLOW_S": 0.3,
    "LOAD_S": 0.1,
    "SETTLE_S": 0.05,
}


def course(**options: Any) -> Course:
    environment = options.pop("environment", None) or Environment()
    return Course(environment, rounds=1, seconds=0.2, warm=0.2, **options)


def outcome_of(case: Case, course: Course) -> Outcome:
    (found,) = course.run([case], CONTENDERS)
    assert (found.missing, found.failed) == ("", "")
    return found


def assert_sound(found: Outcome) -> None:
    assert [(each["lost"], each["duplicated"], each["out_of_order"]) for each in found.rounds] == [
        (0, 0, 0)
    ]
    assert "none lost" in found.promises


def test_a_group_and_its_limit_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--only",
        "limit",
        "--peers",
        "gapless-mesh,raw-udp",
        "--seconds",
        "0.2",
        "--rounds",
        "2",
        "--quick",
        "--json",
    ]
    assert run.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conditions"]["rounds"] == 2
    assert [peer["name"] for peer in found["peers"]] == ["gapless", "raw"]
    ours, raw = found["figures"]
    assert (ours["contender"], raw["contender"]) == ("gapless-mesh", "raw-udp")
    assert len(ours["rounds"]) == len(raw["rounds"]) == 2
    assert raw["ratio_messages_per_s"]["middle"] > 0
    assert all(
        each["lost"] == 0 and each["messages_per_s"] > 0 and each["cpu_s_per_million"] > 0
        for each in ours["rounds"]
    )


@pytest.mark.parametrize("name", ["gapless-tcp", "gapless-udp-single"])
def test_one_to_one_both_ways(name: str) -> None:
    assert_sound(
        outcome_of(Case("one", "", (name,), shape=Shape(2, 2, "one"), size_bytes=101), course())
    )


def test_round_trips() -> None:
    case = Case(
        "rtt", "", ("gapless-udp", "raw-udp"), workloads.TRIPS, Shape(2, 1, "rtt"), 100, how="rtt"
    )
    ours, raw = course().run([case], CONTENDERS)
    for found in (ours, raw):
        assert found.rounds[0]["trips"] > 0
        assert (
            0
            < found.rounds[0]["p50_us"]
            <= found.rounds[0]["p99_us"]
            <= found.rounds[0]["p99_9_us"]
        )


@pytest.mark.parametrize(
    ("how", "shape", "metrics"),
    [
        ("stopped", Shape(3, 1), workloads.STOPPED),
        ("slowed", Shape(3, 1), workloads.SLOWED),
        ("joined", Shape(3, 2), workloads.JOINED),
        ("remembered", Shape(2, 2), workloads.MEMORY),
        ("started", Shape(2, 1), workloads.STARTED),
    ],
)
def test_what_has_its_own_processes(
    how: str, shape: Shape, metrics: tuple[workloads.Metric, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in BRIEF.items():
        monkeypatch.setattr(workloads, name, seconds)
    found = outcome_of(Case("x", "", ("gapless-udp",), metrics, shape, 1000, how=how), course())
    assert all(found.rounds[0][metric.key] >= 0 for metric in metrics)
    if how != "remembered":
        assert_sound(found)
    if how in ("joined", "started"):
        assert 0 < found.rounds[0]["joined_s"] < found.rounds[0]["first_s"]


def test_a_network_that_loses_packets() -> None:
    case = Case("loss", "", ("gapless-udp",), shape=Shape(2, 2), loss=0.05)
    try:
        with Network(2) as network:
            found = outcome_of(case, course(network=network))
            assert "drops packets" in network.way
    except UnavailableError as why:
        pytest.skip(f"no network of our own: {why}")
    assert_sound(found)
    assert found.rounds[0]["repairs"] > 0
    left = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert f"gapless-{os.getpid()}-" not in left


def test_without_such_a_network_a_library_drops_packets_itself_or_is_missing() -> None:
    case = Case("loss", "", ("gapless-udp", "pyzmq"), shape=Shape(2, 2), loss=0.05)
    environment = Environment()
    environment.peers["pyzmq"] = Peer("pyzmq", "27")
    ours, other = run.without_network(course(environment=environment), [case], "there is no ip")
    assert ours.rounds[0]["repairs"] > 0
    assert_sound(ours)
    assert "there is no ip" in other.missing


def test_what_is_missing_or_fails_is_said_and_the_others_go_on() -> None:
    case = Case("fan", "", ("pyzmq", "raw-tcp", "pyre"), shape=Shape(2, 1), size_bytes=100)
    environment = Environment()  # of this interpreter, which has neither library
    environment.peers |= {
        "pyzmq": Peer("pyzmq", reason="it is not for this machine"),
        "pyre": Peer("pyre", "1"),
    }
    missing, raw, failed = course(environment=environment).run([case], CONTENDERS)
    assert (missing.missing, missing.failed, missing.rounds) == (
        "it is not for this machine",
        "",
        [],
    )
    assert len(raw.rounds) == 1
    assert (failed.missing, failed.rounds) == ("", [])
    assert "No module named 'pyre'" in failed.failed


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running(ending: signal.Signals) -> None:
    program = (
        "import signal, sys; from bench.contenders import CONTENDERS;"
        " from bench.environment import Environment;"
        "from bench.groups import Group, Shape; from bench.run import interrupted;"
        "signal.signal(signal.SIGTERM, interrupted); signal.signal(signal.SIGINT, interrupted)\n"
        "with Group(CONTENDERS['raw-udp'], Shape(2, 2), Environment()) as group:\n"
        "    group.ask('prepare', turn=1, size_bytes=100); group.ask('go')\n"
        "    print(*group.pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        watched = [os.pidfd_open(pid) for pid in pids]
        parent.send_signal(ending)
        for one in watched:
            assert select.select([one], [], [], 20)[0], "a process has outlived its parent"
            os.close(one)


def test_every_case_has_known_contenders_and_metrics() -> None:
    for quick in (True, False):
        cases = [case for group in plans.plan(quick=quick) for case in group]
        assert {case.workload for case in cases} == set(plans.WORKLOADS)
        for case in cases:
            assert CONTENDERS[case.contenders[0]].is_ours, "ratios need one of ours first"
            assert set(case.contenders) <= set(CONTENDERS)
            assert all(case.shape.mode in CONTENDERS[name].modes for name in case.contenders)
        assert all(
            len({(case.shape, case.how) for case in group}) == 1
            for group in plans.plan(quick=quick)
        )


def test_what_would_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list", "--only", "rtt,fan", "--peers", "pyzmq"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert all(line.endswith("pyzmq") for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "everything"], "'everything' is no workload"),
        (["--peers", "kafka"], "'kafka' is no contender"),
        (["--peers", ","], "expected names"),
        (["--rounds", "0"], "'0' is not a number from 1"),
        (["--seconds", "long"], "'long' is not a number"),
        (["--only", "rtt", "--peers", "pyre"], "none of these contenders takes part"),
        (["--jason"], "--jason"),
        (["--write", "--only", "sealed"], "--write replaces all figures"),
    ],
)
def test_a_bad_option_is_one_line_and_status_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run.main(options)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert words in err


def test_group_closes_twice_without_harm() -> None:
    group = Group(CONTENDERS["raw-udp"], Shape(2, 1), Environment())
    group.start()
    pids = group.pids
    group.close()
    group.close()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []

"""Groups of real processes over real sockets."""

import signal
from typing import Any

import pytest

from tests.support.companions import QUICK, Companion, ask_all, companions
from tests.support.networks import free_ports, need_multicast, seeds
from tests.support.processes import in_namespace, run_program


def check_complete(members: list[Companion], count: int, **options: Any) -> list[dict[str, Any]]:
    """Let every member send ``count`` messages; all of them get all of them, once and in order."""
    names = [member.name for member in members]
    for answer in ask_all(members, "send", count=count, **options):
        assert answer["accepted"]
    answers = ask_all(members, "got", wanted=dict.fromkeys(names, count))
    for answer in answers:
        assert answer["next"] == dict.fromkeys(names, count)
        assert answer["wrong"] == []
        assert (answer["skipped"], answer["count"]) == (0, count * len(names))
    return answers


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_three_processes_exchange_messages(host: str) -> None:
    ports = free_ports(3, host)
    with companions(3, seeds(ports, host), host=host, ports=ports) as members:
        check_complete(members, 2000)


def test_multicast_reaches_all_with_one_datagram() -> None:
    need_multicast()
    where = f"multicast://:{free_ports(1)[0]}?interface=127.0.0.1"
    with companions(3, where, transport="multicast") as members:
        answers = check_complete(members, 5000)
    for answer in answers:
        assert answer["problems"] == {}
        assert "dropped.own" not in answer["machine"], "the kernel keeps what comes back"


def test_the_best_that_works_is_chosen() -> None:
    need_multicast()
    where = f"multicast://:{free_ports(1)[0]}?interface=127.0.0.1"
    with companions(2, where, transport="auto") as members:
        assert [member.ask("report")["transport"] for member in members] == ["UdpMulticast"] * 2
    ports = free_ports(2)
    nowhere = f"{seeds(ports)}, multicast://239.255.9.9:{ports[0]}?interface=192.0.2.77"
    with companions(2, nowhere, transport="auto", ports=ports) as members:
        assert [member.ask("report")["transport"] for member in members] == ["UdpMesh"] * 2


def test_faults_on_real_sockets_lose_nothing() -> None:
    ports = free_ports(3)
    with companions(
        3, seeds(ports), ports=ports, seed=7, knobs={**QUICK, "max_frame_bytes": 1000}
    ) as members:
        answers = check_complete(members, 4000, batch=20)
    for answer in answers:
        assert answer["machine"]["dropped.checksum"] > 0
        assert answer["machine"]["sent.repair"] > 0


def test_a_process_that_ends_without_closing_anything_leaves() -> None:
    ports = free_ports(2)
    with companions(2, seeds(ports), ports=ports, knobs={**QUICK, "suspect_after": "1min"}) as (
        a,
        b,
    ):
        b.close_input()
        assert b.wait(10) == 0
        assert a.ask("members", nodes=[1], within_s=10)["met"], "nobody had to find out"


def test_members_that_stop_or_are_killed_hold_nobody_up() -> None:
    ports = free_ports(3)
    with companions(3, seeds(ports), ports=ports) as members:
        a, b, c = members
        check_complete(members, 200)

        c.signal(signal.SIGKILL)
        sent = ask_all(
            [a, b], "send", count=1000
        )  # more than the window takes before the dead one is expelled
        assert all(answer["accepted"] for answer in sent)
        for answer in ask_all([a, b], "members", nodes=[1, 2], within_s=10):
            assert answer["met"], answer
        for answer in ask_all([a, b], "got", wanted={"a": 1200, "b": 1200}):
            assert (answer["wrong"], answer["skipped"]) == ([], 0)
            assert {"a": 1200, "b": 1200}.items() <= answer["next"].items()

        b.signal(signal.SIGSTOP)
        assert a.ask("members", nodes=[1], within_s=10)["met"]
        assert a.ask("send", count=100)["accepted"]
        b.signal(signal.SIGCONT)
        for answer in ask_all([a, b], "members", nodes=[1, 2], within_s=10):
            assert answer["met"], answer
        ask_all([a, b], "send", count=100)
        for answer in ask_all([a, b], "got", wanted={"a": 1400, "b": 1300}):
            assert answer["wrong"] == []
            assert {"a": 1400, "b": 1300}.items() <= answer["next"].items()


def test_a_process_that_does_not_read_slows_the_others_down() -> None:
    ports = free_ports(2)
    knobs = {**QUICK, "capacity": 256, "unread_limit": 100}
    with companions(2, seeds(ports), ports=ports, knobs=knobs) as (a, b):
        b.ask("hold")
        a.request("send", count=3000, batch=50)
        assert b.ask("report")["count"] == 0
        stuck = b.ask("held back", count=100)
        assert stuck == {"outstanding": 100, "stored": True, "expelled": 0}, (
            "more is there, and not handed out"
        )
        b.ask("release")
        assert a.read_json()["accepted"]
        answer = b.ask("got", wanted={"a": 3000})
        assert (answer["wrong"], answer["skipped"], answer["count"]) == ([], 0, 3000)


def test_a_forked_child_is_told_to_join_by_itself() -> None:
    answer = run_program("inside_fork.py")
    assert answer["child"] == {
        "send": "this member of forked belongs to the parent process; join again after a fork",
        "close": "this member of forked belongs to the parent process; join again after a fork",
        "own": ["from the child"],
        "threads": 1,
    }
    assert answer["parent"] == ["before", "after"], "the parent goes on as if nothing had been"


def test_a_network_that_goes_and_comes_back() -> None:
    answer = in_namespace("true", "inside_outage.py")
    assert answer["problems"] == ["send.ENETUNREACH"]
    assert answer["messages"] == 300
    assert answer["in_order"]
    assert answer["views"] == 1, "it was too short to be noticed by anything else"

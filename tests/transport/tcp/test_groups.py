"""Groups of real processes over TCP, whose streams are cut again and again."""

import signal
from typing import Any

import pytest

from tests.runtime.test_groups import check_complete
from tests.support.companions import QUICK, Companion, ask_all, companions
from tests.support.networks import free_ports, seeds
from tests.support.tcp_relay import Relays

PATIENT = {**QUICK, "suspect_after": "20s", "stall_after": "3s"}
REPAIRS = {"sent.repair", "received.repair", "sent.nak", "received.nak"}


def start(name: str, node: int, **options: Any) -> Companion:
    return Companion(name, node, transport="tcp", **options)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("profile", ["nakack4", "ordered"])
def test_three_processes_exchange_messages(host: str, profile: str) -> None:
    ports = free_ports(3, host)
    knobs = {**QUICK, "profile": profile}
    with companions(
        3, seeds(ports, host), host=host, ports=ports, transport="tcp", knobs=knobs
    ) as members:
        for answer in check_complete(members, 2000):
            assert answer["transport"] == "TcpMesh"
            assert answer["stalled"] == 0
            assert not REPAIRS & set(answer["machine"]) or profile != "ordered"


@pytest.mark.parametrize("seed", [1, 2])
def test_order_without_retransmission_survives_streams_that_are_cut(seed: int) -> None:
    """Three members send without pause; relays and members cut streams at any byte."""
    ports = free_ports(3)
    knobs = {**PATIENT, "profile": "ordered"}
    with Relays(ports, seed, 1, 400_000) as relays:
        where = [f"127.0.0.1:{relays.at[port]}" for port in ports]
        everywhere = "seeds://" + ",".join(where)
        members = [
            start(name, node, seeds=everywhere, ports=port, advertise=place, knobs=knobs)
            for node, (name, port, place) in enumerate(zip("abc", ports, where, strict=True), 1)
        ]
        try:
            for member in members:
                member.read_json()
            for answer in ask_all(members, "members", nodes=[1, 2, 3]):
                assert answer["met"], answer
            cuts_before, own_cuts = relays.cuts, 0
            for _ in range(3):
                for member in members:
                    member.request("send", count=4000, size_bytes=400, batch=50, within_s=60)
                    member.request("cut", times=10, pause_s=0.01)
                for member in members:
                    assert member.read_json()["accepted"]
                    own_cuts += member.read_json()[
                        "cut"
                    ]  # none, where the relays were always faster
            assert own_cuts > 0
            answers = ask_all(members, "got", wanted=dict.fromkeys("abc", 12_000), within_s=60)
            assert relays.cuts - cuts_before >= 10
        finally:
            for member in members:
                member.close()
    for answer in answers:
        assert answer["next"] == dict.fromkeys("abc", 12_000)
        assert (answer["wrong"], answer["skipped"], answer["count"]) == ([], 0, 36_000)
        assert (answer["stalled"], answer["expelled"]) == (0, 0)
        assert not REPAIRS & set(answer["machine"]), "nothing was asked for or sent again"
        assert "send.full" not in answer["problems"]
    assert sum(answer["problems"]["sent.again"] for answer in answers) > 0, (
        "the cuts have cost something"
    )


def test_members_that_are_killed_stop_or_come_back_hold_nobody_up() -> None:
    ports = free_ports(3)
    options: dict[str, Any] = {"seeds": seeds(ports), "knobs": QUICK}
    members = [
        start(name, node, ports=port, **options)
        for node, (name, port) in enumerate(zip("abc", ports, strict=False), 1)
    ]
    a, b, c = members
    try:
        for member in members:
            member.read_json()
        for answer in ask_all(members, "members", nodes=[1, 2, 3]):
            assert answer["met"], answer
        check_complete(members, 200)
        c.signal(signal.SIGKILL)
        assert all(answer["accepted"] for answer in ask_all([a, b], "send", count=1000))
        for answer in ask_all([a, b], "members", nodes=[1, 2], within_s=10):
            assert answer["met"], answer

        again = start("d", 3, ports=ports[2], **options)
        members.append(again)
        again.read_json()
        for answer in ask_all([a, b, again], "members", nodes=[1, 2, 3], within_s=10):
            assert answer["met"], answer
        ask_all([a, b, again], "send", count=100)
        for answer in ask_all([a, b, again], "got", wanted={"a": 1300, "b": 1300, "d": 100}):
            assert (answer["wrong"], answer["skipped"]) == ([], 0)

        b.signal(signal.SIGSTOP)
        for answer in ask_all([a, again], "members", nodes=[1, 3], within_s=10):
            assert answer["met"], answer
        assert a.ask("send", count=100)["accepted"]
        b.signal(signal.SIGCONT)
        for answer in ask_all([a, b, again], "members", nodes=[1, 2, 3], within_s=10):
            assert answer["met"], answer
        ask_all([a, b, again], "send", count=100)
        for answer in ask_all([a, b, again], "got", wanted={"a": 1500, "b": 1400, "d": 200}):
            assert answer["wrong"] == []
            assert {"a": 1500, "b": 1400, "d": 200}.items() <= answer["next"].items()
    finally:
        for member in members:
            member.close()


def test_a_process_that_does_not_read_slows_the_others_down() -> None:
    ports = free_ports(2)
    knobs = {
        **QUICK,
        "profile": "ordered",
        "capacity": 256,
        "max_seqno_ahead": 256,
        "unread_limit": 100,
    }
    with companions(2, seeds(ports), ports=ports, transport="tcp", knobs=knobs) as (a, b):
        b.ask("hold")
        a.request("send", count=3000, batch=50)
        assert b.ask("held back", count=100) == {"outstanding": 100, "stored": True, "expelled": 0}
        b.ask("release")
        assert a.read_json()["accepted"]
        answer = b.ask("got", wanted={"a": 3000})
        assert (answer["wrong"], answer["skipped"], answer["count"], answer["stalled"]) == (
            [],
            0,
            3000,
            0,
        )

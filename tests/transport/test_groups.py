"""Groups of real processes over real sockets."""

from typing import Any

import pytest

from tests.transport.networks import free_ports, need_multicast, seeds
from tests.transport.processes import Process, ask_all, companions


def check_complete(members: list[Process], count: int, **options: Any) -> list[dict[str, Any]]:
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
    with companions(3, seeds(ports), ports=ports, seed=7) as members:
        answers = check_complete(members, 4000, batch=20)
    for answer in answers:
        assert answer["machine"]["dropped.checksum"] > 0
        assert answer["machine"]["sent.repair"] > 0

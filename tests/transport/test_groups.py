"""Groups of real processes over real sockets."""

import pytest

from tests.transport.networks import free_ports, seeds
from tests.transport.processes import ask_all, companions


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_three_processes_exchange_messages(host: str) -> None:
    ports = free_ports(3, host)
    with companions(3, seeds(ports, host), host=host, ports=ports) as members:
        for answer in ask_all(members, "send", count=2000):
            assert answer["accepted"]
        for answer in ask_all(members, "got", wanted={"a": 2000, "b": 2000, "c": 2000}):
            assert answer["next"] == {"a": 2000, "b": 2000, "c": 2000}
            assert answer["wrong"] == []
            assert (answer["skipped"], answer["count"]) == (0, 6000)

"""Groups over TCP with certificates: options, refusals, and members that die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ConfigError, TransportError
from gapless.events import KeyMismatch
from gapless.faults.faulty_transport import FaultyTransport
from gapless.keys.keyring import Keyring, local_path
from gapless.spool.collector import Collector
from gapless.transport import TcpMesh
from tests.support.certificates import Authority
from tests.support.companions import QUICK, Companion, ask_all, companions
from tests.support.networks import free_ports, seeds
from tests.support.processes import CLI, ENVIRONMENT
from tests.support.real_groups import WITHIN_S, options, threads

ELSEWHERE = "192.0.2.77"
"""An address of a network that no machine has."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GAPLESS_INSECURE", raising=False)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Authority().write(tmp_path / "tls")


def transport_of(group: Any) -> Any:
    return group._session.handle.transport


@pytest.mark.parametrize("keys", [False, True])
def test_members_with_certificates_exchange_messages_of_every_size(
    folder: Path, keys: bool
) -> None:
    more: dict[str, Any] = {"keys": Keyring.new()} if keys else {}
    each = {"transport": "tcp", "tls": folder, **more}
    with threads(3, each=each) as groups:
        payloads = [b"tea", bytes(3_000_000), b"milk" * 5000]
        for payload in payloads:
            groups[0].send(payload)
        for group in groups:
            assert [group.receive(WITHIN_S).payload for _ in payloads] == payloads  # type: ignore[union-attr]
        for group in groups:
            transport = transport_of(group)
            assert (transport.seal is not None) is keys
            assert transport.certificates.refused == 0
            assert all(stream._tls.version() == "TLSv1.3" for stream in transport.streams)
    assert not local_path().exists(), "certificates need no keys of this user"


def test_asyncio_takes_the_same_option(folder: Path) -> None:
    import asyncio

    async def story() -> None:
        async with gapless.join("orders", transport="tcp", tls=str(folder), ports=0) as group:
            assert transport_of(group).certificates is not None

    asyncio.run(story())


@pytest.mark.parametrize("host", [ELSEWHERE, "2001:db8::1"])
def test_an_address_of_a_network_is_used_with_certificates(folder: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="no keyring of an operator"):
        blocking.join("orders", transport="tcp", host=host).open()
    with pytest.raises(TransportError, match=host):
        blocking.join("orders", transport="tcp", host=host, tls=folder).open()


def test_a_group_with_certificates_is_not_called_insecure(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gapless")
    for insecure in (False, True):
        with blocking.join(
            "orders", transport="tcp", tls=folder, insecure=insecure, ports=0
        ) as group:
            assert transport_of(group).seal is None
    assert not [record for record in caplog.records if "insecure" in record.message]
    assert [record for record in caplog.records if "protected by certificates" in record.message]


def test_an_open_transport_with_certificates_may_be_on_a_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports = [TcpMesh("127.0.0.1", 0), TcpMesh("127.0.0.1", 0, tls=folder)]
    for transport in transports:
        locator = type(transport.locator).of(ELSEWHERE, transport.locator.port)
        monkeypatch.setattr(transport, "locator", locator)
    with pytest.raises(ConfigError, match=r"has no keys.*with seal= or tls="):
        blocking.join("orders", transport=transports[0]).open()
    transports[0].close()
    with blocking.join("orders", transport=FaultyTransport(transports[1], [])):
        pass


# Options that cannot be


@pytest.mark.parametrize("transport", ["auto", "mesh", "udp", "multicast"])
def test_only_tcp_has_certificates(folder: Path, transport: str) -> None:
    expected = f"tls= with transport='{transport}'.*TCP connections only; pass transport='tcp'"
    with pytest.raises(ConfigError, match=expected):
        blocking.join("orders", transport=transport, tls=folder)


def test_an_open_transport_has_its_own_certificates(folder: Path) -> None:
    transport = TcpMesh("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="has its own certificates: omit tls"):
        blocking.join("orders", transport=transport, tls=folder)
    transport.close()


@pytest.mark.parametrize("given", [7, "", " ", b"tls", "a\0b", True])
def test_values_that_are_no_folder_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"tls=.*: expected a folder with ca.pem, cert.pem and"):
        blocking.join("orders", transport="tcp", tls=given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--transport", "tcp", "--tls", "{home}/nowhere"), "there is no file"),
        (("--transport", "tcp", "--tls", "{home}/tls"), "run: chmod 600"),
        (("--tls", "{home}/tls"), "pass transport='tcp' too"),
    ],
)
@pytest.mark.parametrize("command", [("listen", "orders"), ("collect", "orders")])
def test_the_command_line_refuses_wrong_files_with_exit_code_2(
    home: Path, folder: Path, arguments: tuple[str, ...], text: str, command: tuple[str, ...]
) -> None:
    (folder / "key.pem").chmod(0o644)
    spool = ("--spool", str(home / "spool"), "--name", "store") if command[0] == "collect" else ()
    done = subprocess.run(
        [sys.executable, *CLI, *command, *spool, *(one.format(home=home) for one in arguments)],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


# Members


def test_a_member_with_a_certificate_of_another_authority_says_why_it_is_alone(
    folder: Path, home: Path
) -> None:
    other = Authority("another").write(home / "other")
    where = {**options(free_ports(2)), "transport": "tcp"}
    with (
        blocking.join("orders", tls=folder, **where) as member,
        blocking.join("orders", tls=other, **where) as stranger,
    ):
        while not isinstance(event := stranger.receive_event(WITHIN_S), KeyMismatch):
            assert event is not None
        assert event.reason == "certificate"
        assert "connections were refused; the last: 127.0.0.1" in event.text
        assert event.text.endswith("one authority, with tls=")
        assert [len(group.view or ()) for group in (member, stranger)] == [1, 1]
        counters = stranger.snapshot().counters
        assert counters.get("transport.tls.untrusted", 0) + counters["transport.tls.refused"] >= 3


def test_members_that_are_killed_hold_nobody_up(folder: Path) -> None:
    ports = free_ports(3)
    more: dict[str, Any] = {"transport": "tcp", "tls": str(folder), "knobs": QUICK}
    with companions(3, seeds(ports), ports=ports, **more) as (a, b, c):
        c.signal(signal.SIGKILL)
        assert all(answer["accepted"] for answer in ask_all([a, b], "send", count=1000))
        for answer in ask_all([a, b], "members", nodes=[1, 2], within_s=10):
            assert answer["met"], answer
        with Companion("d", 4, seeds=seeds(ports), ports=ports, **more) as again:
            again.read_line()
            for answer in ask_all([a, b, again], "members", nodes=[1, 2, 4], within_s=10):
                assert answer["met"], answer
            ask_all([a, b, again], "send", count=100)
            for answer in ask_all([a, b], "got", wanted={"a": 1100, "b": 1100, "d": 100}):
                assert (answer["wrong"], answer["skipped"]) == ([], 0)


def test_a_collector_takes_certificates(folder: Path, home: Path) -> None:
    where = {**options(free_ports(2)), "transport": "tcp", "tls": folder}
    with (
        Collector(home / "spool", "orders", name="store", **where),
        blocking.join("orders", min_members=2, timeout=WITHIN_S, **where) as member,
    ):
        member.send(b"tea", mode="acknowledged")

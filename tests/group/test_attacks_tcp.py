"""Attacks with TCP connections: each works without keys, and not in a sealed group."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gapless import blocking
from gapless.identity import Address, group_id
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.run import Run
from gapless.transport.tcp.handshake import SEALED_MAGIC, Handshake
from gapless.transport.tcp.link import START, Hello, encode_numbered, encode_record
from gapless.wire.codec import encode
from gapless.wire.frames import Data, Leave
from gapless.wire.seal import Seal
from tests.support.real_groups import WITHIN_S
from tests.support.strangers import (
    GROUP,
    Scene,
    has_opened,
    known_targets,
    scene,
    target_of,
    transport_of,
    until,
)

STREAMS = 1000
"""A number of streams that no true link has had: the stranger's stream would replace the true."""
LEVELS = ("keyless", "other ring")

pytestmark = pytest.mark.xdist_group("attacks")


def hello_of(member: blocking.Group, group: int, locator: Locator | None = None) -> Hello:
    assert member.me is not None
    where = locator or transport_of(member).locator
    return Hello(group, member.me, 7, 0, 0, STREAMS, where)


@contextmanager
def connection(member: blocking.Group) -> Iterator[socket.socket]:
    with closing(socket.create_connection(target_of(member), WITHIN_S)) as link:
        yield link


def counters(member: blocking.Group) -> Any:
    return transport_of(member).problems.counters


def _wait_for_count(member: blocking.Group, reason: str, times: int) -> None:
    until(lambda: counters(member)[reason] >= times, f"{reason} is counted")
    assert counters(member)[reason] == times


def read_to_end(link: socket.socket) -> bytes:
    """Return what a member sends until it closes the connection."""
    found = b""
    try:
        while data := link.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def in_use(found: Scene) -> list[dict[Any, Any]]:
    """Return the streams in use between the members."""
    return [
        {
            link.locator: link.stream.socket.getpeername()
            for link in transport_of(group)._connector.links.values()
            if link.stream is not None
        }
        for group in found.groups
    ]


def talk(found: Scene) -> None:
    """Open a stream in every direction."""
    for group in found.groups:
        group.send(b"a stream to everybody")
    for group in found.groups:
        for _ in found.groups:
            assert group.receive(WITHIN_S)
    until(lambda: [len(links) for links in in_use(found)] == [2, 2, 2], "streams in use")


def test_a_hello_in_a_members_name_takes_its_traffic_in_a_group_without_keys() -> None:
    with scene("plain", transport="tcp") as found:
        talk(found)
        victim, owner = found.others[0], found.acting
        with connection(victim) as link:
            link.sendall(hello_of(owner, group_id(GROUP)).encode())
            reply = b""
            while (hello := Hello.decode(memoryview(reply))) is None:
                reply += link.recv(1 << 16)
            assert hello[0].address == victim.me
            assert owner.me is not None
            forged = encode(group_id(GROUP), owner.me, [Leave(owner.me)])
            link.sendall(encode_numbered(START, 1) + encode_record(0, forged))
            victim.send(b"for the owner alone", owner.me, mode="unreliable")
            while b"for the owner alone" not in reply:
                reply += link.recv(1 << 16)


def forged_records(sender: Address, group: int) -> bytes:
    """Return START, a datagram and garbage, as they would follow a hello."""
    datagram = encode(group, sender, [Data(Run.of(sender, 1, [b"forged"]))])
    records = encode_numbered(START, 1) + encode_record(0, datagram)
    return records + encode_record(START, os.urandom(64)) + os.urandom(100)


def hello_sealed_by(seal: Seal, hello: Hello) -> bytes:
    """Return the first bytes of a stream that begins with ``hello``."""
    stream: Any = SimpleNamespace(dialled=True, write_buffer=[], local_note=b"", peer_note=b"")
    Handshake(seal).write_hello(stream, hello)
    return bytes(stream.write_buffer[0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_stranger_opens_no_stream_in_a_sealed_group(level: str) -> None:
    keys = Keyring.new()
    with scene(level, keys, transport="tcp") as found:
        talk(found)
        found.note()
        streams = in_use(found)
        victim, owner = found.others[0], found.acting
        assert owner.me is not None
        for group in (group_id(GROUP), keys.ring.group_id(GROUP)):
            hello = hello_of(owner, group)
            fronts = {"unsealed": hello.encode(), "hello": SEALED_MAGIC + b"\xff\xff" + b"x" * 600}
            other = Keyring.new().ring
            fronts["key"] = hello_sealed_by(Seal(other, suites_of(other)), hello)
            marked = bytearray(fronts["key"])
            marked[10:14] = keys.ring.sealing_key.key_id.to_bytes(4, "little")
            fronts["seal"] = bytes(marked)
            for reason, front in fronts.items():
                # A counter that was opened before is a replay, whatever follows it.
                reasons = {reason, "replay"} if reason == "seal" else {reason}
                before = _counted(victim, reasons)
                with connection(victim) as link:
                    link.sendall(front + forged_records(owner.me, group))
                    assert read_to_end(link) == b"", "a stranger gets no answer"
                until(lambda: _counted(victim, reasons) == before + 1, f"{reasons} are counted")  # noqa: B023
        assert in_use(found) == streams
        found.check_undisturbed()


def _refused(member: blocking.Group) -> int:
    """Return how many streams ended because a hello or START does not fit."""
    return _counted(member, {"start", "hello"})


def _counted(member: blocking.Group, reasons: set[str]) -> int:
    """Return how many streams ended for one of the reasons."""
    found = counters(member)
    return sum(int(found[f"stream.{reason}"]) for reason in reasons)


@contextmanager
def recorded_streams(member: blocking.Group) -> Iterator[list[bytes]]:
    """Record every hello of a member, and the START behind it."""
    found: list[bytes] = []
    handshake = transport_of(member)._handshake
    write_hello, write_start = handshake.write_hello, handshake.write_start

    def hello(stream: Any, *values: Any) -> None:
        write_hello(stream, *values)
        found.append(bytes(stream.write_buffer[-1]))

    def start(stream: Any, *values: Any) -> None:
        write_start(stream, *values)
        found[-1] += stream.write_buffer[-1]

    handshake.write_hello, handshake.write_start = hello, start
    yield found
    del handshake.write_hello, handshake.write_start


def cut(member: blocking.Group, other: blocking.Group) -> None:
    """End the stream between two members, as a network would, and wait for another."""
    connector = transport_of(member)._connector
    link = connector.links[transport_of(other).locator]
    before = link.streams
    link.stream.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: link.streams > before and link.stream is not None, "another stream")


def test_a_recorded_stream_opens_no_stream() -> None:
    """At the member that it was for the hello is a replay; elsewhere it or START does not fit."""
    keys = Keyring.new()
    with scene("keyless", keys, transport="tcp") as found:
        talk(found)
        owner, (victim, bystander) = found.acting, found.others
        assert owner.me is not None
        with recorded_streams(owner) as recorded:
            cut(owner, victim)
        talk(found)
        found.note()
        streams = in_use(found)
        records = forged_records(owner.me, keys.ring.group_id(GROUP))
        before = counters(victim)["stream.replay"]
        # A hello on a stream that lost against another was never read.
        read = [front for front in recorded if has_opened(victim, front[6:])]
        assert read
        for front in read:
            with connection(victim) as link:
                link.sendall(front + records)
                assert read_to_end(link) == b"", "a replay gets no answer"
        _wait_for_count(victim, "stream.replay", before + len(read))
        refused = _refused(bystander)
        for front in read:
            with connection(bystander) as link:
                link.sendall(front + records)
                answer = read_to_end(link)
                # A first hello opens there; the answer is sealed, and START names both hellos. The
                # hello of the side that was connected to answers another hello.
                assert not answer or answer.startswith(SEALED_MAGIC)
                assert len(answer) < 350
        until(lambda: _refused(bystander) == refused + len(read), "every recording to be refused")
        assert in_use(found) == streams
        found.check_undisturbed()


def test_a_stranger_between_two_members_reads_and_changes_nothing() -> None:
    """A member connects to the stranger's socket, because the stranger is at its seed."""
    with (
        scene("keyless", transport="tcp") as found,
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
    ):
        talk(found)
        found.note()
        caller = found.acting
        where = Locator.of(*listener.getsockname())
        connector = transport_of(caller)._connector
        until(
            lambda: caller._session.handle.query(
                lambda member: (
                    connector.get_link(where).enqueue(
                        encode(member.endpoint.group, member.me, [Leave(member.me)])
                    )
                    or connector.ensure_stream(connector.get_link(where))
                    or True
                )
            ).result(WITHIN_S)
        )
        link, _ = listener.accept()
        with closing(link):
            link.settimeout(WITHIN_S)
            hello = link.recv(1 << 16)
            assert hello.startswith(SEALED_MAGIC)
            # Its own hello, sent back to it: it has never opened its own seal.
            link.sendall(hello)
            read_to_end(link)
        assert where not in known_targets(caller)
        with connection(caller) as back:
            back.sendall(hello)
            read_to_end(back)
        found.check_undisturbed()

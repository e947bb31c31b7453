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
from gapless.transport.tcp.handshake import CHALLENGE_MAGIC, SEALED_MAGIC, Handshake
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


def greeting_sealed_by(seal: Seal, hello: Hello) -> bytes:
    """Return the first bytes of a stream in the name of a member."""
    stream: Any = SimpleNamespace(write_buffer=[])
    Handshake(seal).write_greeting(stream, hello.group, hello.address)
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
            fronts["key"] = greeting_sealed_by(Seal(other, suites_of(other)), hello)
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
def recorded_streams(member: blocking.Group) -> Iterator[list[list[bytes]]]:
    """Record the greeting or challenge, the hello and the START of a member on each stream."""
    found: dict[Any, list[bytes]] = {}
    handshake = transport_of(member)._handshake
    names = ("write_greeting", "read_greeting", "write_hello", "write_start")

    def recorded(name: str) -> Any:
        write = getattr(handshake, name)

        def call(stream: Any, *values: Any) -> Any:
            before = len(stream.write_buffer)
            answer = write(stream, *values)
            found.setdefault(stream, []).extend(map(bytes, stream.write_buffer[before:]))
            return answer

        return call

    for name in names:
        setattr(handshake, name, recorded(name))
    streams: list[list[bytes]] = []
    yield streams
    for name in names:
        delattr(handshake, name)
    streams += found.values()


def read_bytes(link: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection, fewer at its end."""
    found = b""
    while len(found) < size and (data := link.recv(size - len(found))):
        found += data
    return found


def cut(member: blocking.Group, other: blocking.Group) -> None:
    """End the stream between two members, as a network would, and wait for another."""
    connector = transport_of(member)._connector
    link = connector.links[transport_of(other).locator]
    before = link.streams
    link.stream.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: link.streams > before and link.stream is not None, "another stream")


def recorded_cut(found: Scene, owner: blocking.Group, other: blocking.Group) -> list[list[bytes]]:
    """Return what ``owner`` says on the streams after cuts, until it has dialled and answered."""
    streams: list[list[bytes]] = []
    for _ in range(50):
        with recorded_streams(owner) as more:
            cut(owner, other)
        streams += [stream for stream in more if len(stream) == 3]
        if len({stream[0].startswith(CHALLENGE_MAGIC) for stream in streams}) == 2:
            return streams
    raise AssertionError("each side dials now and then")


def test_a_recorded_stream_opens_no_stream() -> None:
    """At the member that it was for the greeting is a replay; elsewhere the hello does not fit."""
    with scene("keyless", transport="tcp") as found:
        talk(found)
        owner, (victim, bystander) = found.acting, found.others
        recorded = recorded_cut(found, owner, victim)
        dialled = [one for one in recorded if not one[0].startswith(CHALLENGE_MAGIC)]
        talk(found)
        found.note()
        streams = in_use(found)
        before = counters(victim)["stream.replay"]
        for stream in dialled:
            assert has_opened(victim, stream[0][6:])
            with connection(victim) as link:
                link.sendall(b"".join(stream))
                assert read_to_end(link) == b"", "a replay gets no answer"
        _wait_for_count(victim, "stream.replay", before + len(dialled))
        refused = _refused(bystander)
        for greeting, hello, start in dialled:
            with connection(bystander) as link:
                # A first greeting opens there. The answer is a nonce, and names nobody.
                link.sendall(greeting)
                challenge = read_bytes(link, 20)
                assert len(challenge) == 20
                assert challenge.startswith(CHALLENGE_MAGIC)
                link.sendall(hello + start)
                assert read_to_end(link) == b"", "the hello answers another challenge"
        until(lambda: _refused(bystander) == refused + len(dialled), "every hello to be refused")
        assert in_use(found) == streams
        found.check_undisturbed()


def test_a_recorded_answer_does_not_make_a_stranger_a_member() -> None:
    """A member connects to the stranger, who has recorded how another member was connected to."""
    with (
        scene("keyless", transport="tcp") as found,
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
    ):
        talk(found)
        owner, (victim, caller) = found.acting, found.others
        recorded = recorded_cut(found, owner, victim)
        answers = [one for one in recorded if one[0].startswith(CHALLENGE_MAGIC)]
        talk(found)
        found.note()
        streams = in_use(found)
        refused = _refused(caller)
        for at, answer in enumerate(answers, 1):
            with dialled_by(caller, listener) as link:
                greeting = link.recv(1 << 16)
                assert greeting.startswith(SEALED_MAGIC)
                link.sendall(answer[0])
                assert link.recv(1 << 16).startswith(SEALED_MAGIC), "a hello, as to any peer"
                link.sendall(b"".join(answer[1:]))
                assert read_to_end(link) == b"", "a recorded hello answers another hello"
            until(lambda: _refused(caller) == refused + at, "the hello to be refused")  # noqa: B023
        assert in_use(found) == streams
        found.check_undisturbed()


@contextmanager
def dialled_by(member: blocking.Group, listener: socket.socket) -> Iterator[socket.socket]:
    """Make a member connect to a stranger, as if the stranger were at a seed."""
    where = Locator.of(*listener.getsockname())
    connector = transport_of(member)._connector

    def dial(machine: Any) -> bool:
        link = connector.get_link(where)
        link.enqueue(encode(machine.endpoint.group, machine.me, [Leave(machine.me)]))
        link.failures = link.retry_at_ns = 0
        connector.ensure_stream(link)
        return True

    assert member._session.handle.query(dial).result(WITHIN_S)
    listener.settimeout(WITHIN_S)
    link, _ = listener.accept()
    with closing(link):
        link.settimeout(WITHIN_S)
        yield link
    member._session.handle.query(
        lambda _: where not in connector.links or connector._remove(connector.links[where])
    ).result(WITHIN_S)


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
        with dialled_by(caller, listener) as link:
            greeting = link.recv(1 << 16)
            assert greeting.startswith(SEALED_MAGIC)
            link.sendall(CHALLENGE_MAGIC + bytes(16))
            hello = link.recv(1 << 16)
            # Its own hello, sent back to it: it has never opened its own seal.
            link.sendall(hello)
            read_to_end(link)
        assert where not in known_targets(caller)
        with connection(caller) as back:
            back.sendall(greeting)
            read_to_end(back)
        found.check_undisturbed()

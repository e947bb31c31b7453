"""The cost of many members, many connections and a lying member: time and memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from gapless.config import Config
from gapless.identity import Address, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.stream import ranges
from gapless.protocol.stream.start_requests import MAX_STARTS
from gapless.run import Run
from gapless.wire.codec import decode, encode
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Ack,
    Data,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StreamProgress,
    Vote,
)
from tests.support.virtual_group import GROUP, MS, SECOND, A, B, lines_of

_PER_VOTE = 40


def _member(members: int, **knobs: object) -> tuple[Endpoint, tuple[Address, ...]]:
    addresses = tuple(Address(node, 1) for node in range(1, members + 1))
    member = Endpoint(A, GROUP, Config.make(jitter_percent=0, **knobs), Random(0))
    member.install(View.of(1, *addresses), SECOND, dict.fromkeys(addresses, Marks(0, 0, 0)))
    return member, addresses


def _votes(voter: Address, origins: tuple[Address, ...], delivered: int) -> list[bytes]:
    parts = [origins[at : at + _PER_VOTE] for at in range(0, len(origins), _PER_VOTE)]
    made = (tuple(StreamProgress(origin, delivered, 1) for origin in part) for part in parts)
    return [encode(GROUP, voter, [Vote(voter, 1, progress)]) for progress in made]


def _round_cost(members: int) -> float:
    """The cost in lines of one vote, at a coordinator with a vote of every member."""
    member, addresses = _member(members, profile="nakack")
    for origin in addresses[1:]:
        member.receive(encode(GROUP, origin, [Data(Run.of(origin, 1, (b"x",)))]), SECOND)
    member.send((b"x",), SECOND)
    votes = [vote for voter in addresses[1:] for vote in _votes(voter, addresses, 0)]
    for vote in votes:
        member.receive(vote, SECOND)
    again = [vote for voter in addresses[1:] for vote in _votes(voter, addresses, 1)]
    lines = lines_of(lambda: [member.receive(vote, SECOND) for vote in again])
    assert all(member.stability.lagging(origin, 1) == () for origin in addresses)  # type: ignore[union-attr]
    return lines / len(again)


@pytest.mark.behaviour("P-12")
def test_a_vote_costs_by_what_it_names_not_by_the_square_of_the_members() -> None:
    assert _round_cost(120) < 3 * _round_cost(40)


@pytest.mark.behaviour("P-12")
def test_a_voter_is_told_again_only_of_what_it_named() -> None:
    member, addresses = _member(100, profile="nakack")
    for voter in addresses[1:]:
        for vote in _votes(voter, addresses, 0):
            member.receive(vote, SECOND)
    (transmit,) = member.receive(_votes(B, addresses, 0)[1], SECOND).transmits
    (sent,) = decode(transmit.datagram).frames
    assert isinstance(sent, Stable)
    assert [origin for origin, *_ in sent.progress] == list(addresses[_PER_VOTE : 2 * _PER_VOTE])


@pytest.mark.behaviour("N7-24")
def test_votes_for_streams_of_nobody_are_not_remembered() -> None:
    member, _ = _member(2, profile="nakack")
    before = member.snapshot()
    for node in range(1000, 1100):
        vote = Vote(B, 1, (StreamProgress(Address(node, 1), 5, 5),))
        assert not member.receive(encode(GROUP, B, [vote]), SECOND).transmits
    strangers = member.snapshot()
    member.receive(
        encode(GROUP, B, [Vote(B, 1, (StreamProgress(Address(2000, 1), 5, 5),))]), SECOND
    )
    assert strangers == member.snapshot()
    assert len(str(strangers)) < len(str(before)) + 100


@pytest.mark.behaviour("N7-19", "N7-25")
def test_the_minimum_rises_when_the_last_one_at_it_moves_on() -> None:
    member, (_, b, c) = _member(3, profile="nakack")
    for seqno in (1, 2, 3):
        member.receive(encode(GROUP, b, [Data(Run.of(b, seqno, (b"x",)))]), SECOND)
    sent: list[tuple[int, int]] = []
    for voter, delivered in ((b, 3), (c, 1), (c, 2), (c, 1), (c, 3)):
        vote = encode(GROUP, voter, [Vote(voter, 1, (StreamProgress(b, delivered, 3),))])
        frames = [
            frame
            for sent in member.receive(vote, SECOND).transmits
            for frame in decode(sent.datagram).frames
        ]
        sent += [
            entry[1:] for frame in frames if isinstance(frame, Stable) for entry in frame.progress
        ]
        member.restore(member.snapshot())
    assert sent == [(1, 3), (2, 3), (2, 3), (3, 3)]


@pytest.mark.behaviour("P-10")
def test_out_of_band_numbers_far_above_the_floor_are_not_taken() -> None:
    member, _ = _member(2)
    ready = member.receive(encode(GROUP, B, [OutOfBand(Run.of(B, 10**6, (b"x",)), 0)]), SECOND)
    assert not ready.deliveries
    assert not ready.transmits, "what was not taken is not acknowledged"
    assert member.counters["dropped.far aside"] == 1
    ready = member.receive(
        encode(GROUP, B, [OutOfBand(Run.of(B, 10**6, (b"x",)), 10**6 - 1)]), SECOND
    )
    assert len(ready.deliveries) == 1
    assert isinstance(decode(ready.transmits[0].datagram).frames[0], OutOfBandAck)


def test_an_out_of_band_message_costs_the_same_however_many_gaps_are_before_it() -> None:
    member, _ = _member(2)

    def receive(first: int) -> None:
        member.receive(encode(GROUP, B, [OutOfBand(Run.of(B, first, (b"x",)), 0)]), SECOND)

    receive(1)
    few = lines_of(lambda: receive(3))
    for first in range(5, 1001, 2):
        receive(first)
    assert lines_of(lambda: receive(1001)) < 2 * few


def test_ranges_that_are_put_in_one_by_one_are_those_that_are_merged_at_once() -> None:
    rng = Random(7)
    for _ in range(500):
        found: list[tuple[int, int]] = []
        for _ in range(12):
            first = rng.randint(1, 30)
            span = (first, first + rng.randint(0, 6))
            fresh = ranges.subtract([span], found)
            together = ranges.merge([*found, span])
            assert ranges.insert(found, *span) == fresh
            assert found == together


@pytest.mark.behaviour("OL-06")
def test_a_message_of_a_later_view_costs_the_same_however_many_wait() -> None:
    member, _ = _member(2, profile="classic", xmit_interval="0s")

    def receive(first: int) -> None:
        member.receive(encode(GROUP, B, [Data(Run.of(B, first, (b"x",)), False, 2)]), SECOND)

    receive(1)
    few = lines_of(lambda: receive(2))
    for first in range(3, 500):
        receive(first)
    assert lines_of(lambda: receive(500)) < 2 * few


def test_requests_for_many_unknown_starts_are_paced_and_reach_every_sender() -> None:
    """Every sender announces its start anyway: 300 joiners must not ask each other at once."""
    addresses = tuple(Address(node, 1) for node in range(1, 301))
    config = Config.make(xmit_interval="100ms")
    for me in (A, addresses[150], addresses[-1]):
        member = Endpoint(me, GROUP, config, Random(0))
        member.install(View.of(1, *addresses), 0)
        asked: list[Address] = []
        for interval in range(20):
            sent = [
                transmit.to
                for tick in range(10)
                for transmit in member.tick((10 * interval + tick + 1) * 10 * MS).transmits
                if any(isinstance(frame, Nak) for frame in decode(transmit.datagram).frames)
            ]
            assert len(sent) <= 2 * MAX_STARTS
            asked += sent  # type: ignore[arg-type]
        member.check_invariants()
        assert len(asked) <= 21 * MAX_STARTS
        assert set(asked) == set(addresses) - {me}
        following = addresses[addresses.index(me) + 1 :]
        assert asked[: min(8, len(following))] == list(following[:8]), "each begins elsewhere"


@pytest.fixture(scope="module")
def connected() -> dict[int, tuple[Endpoint, tuple[Address, ...]]]:
    """Members with few and with many connections, each with an unacknowledged message."""
    return {count: _connected(count) for count in (10, 1000)}


def _connected(connections: int) -> tuple[Endpoint, tuple[Address, ...]]:
    member, addresses = _member(connections + 1, tail_delay="100ms")
    for at, peer in enumerate(addresses[1:]):
        member.send((b"x",), SECOND + at, to=peer)
    # The shares of the receive buffers change, for all connections at once.
    member.send((b"x",), SECOND + 1001)
    return member, addresses


_INPUTS: dict[str, Callable[[Endpoint, int], object]] = {
    "send to one": lambda member, now_ns: member.send((b"x",), now_ns, to=B),
    "send to all": lambda member, now_ns: member.send((b"x",), now_ns),
    "ack": lambda member, now_ns: member.receive(
        encode(GROUP, B, [Ack(A, 1, 1 << 20, member.connections.outgoing[B].stream.epoch)]), now_ns
    ),
    "data": lambda member, now_ns: member.receive(
        encode(GROUP, B, [Data(Run.of(B, member.inbound[B].window.high + 1, (b"x",)))]),  # type: ignore[union-attr]
        now_ns,
    ),
    "nothing due": lambda member, now_ns: member.tick(now_ns),
    "a probe due": lambda member, _: member.tick(SECOND + 100 * MS),
}


@pytest.mark.parametrize("what", _INPUTS)
def test_an_input_costs_the_same_however_many_connections_there_are(
    what: str, connected: dict[int, tuple[Endpoint, tuple[Address, ...]]]
) -> None:
    few, many = (
        lines_of(lambda member=connected[count][0]: _INPUTS[what](member, SECOND + 2000))  # type: ignore[misc]
        for count in (10, 1000)
    )
    assert many <= few + 20


@pytest.mark.behaviour("U3-20", "U3-21")
def test_activity_puts_the_end_of_a_connection_off_and_does_not_lose_it() -> None:
    member, _ = _member(
        2, conn_expiry_timeout="100ms", conn_close_timeout="50ms", xmit_interval="20ms"
    )
    now_ns = SECOND
    for _ in range(5):
        now_ns += 80 * MS
        member.send((b"x",), now_ns, to=B)
        high = member.connections.outgoing[B].stream.window.high
        epoch = member.connections.outgoing[B].stream.epoch
        assert epoch >= FIRST_CONNECTION_EPOCH
        member.receive(encode(GROUP, B, [Ack(A, high, 1 << 20, epoch)]), now_ns)
    states: list[tuple[int, str]] = []
    start_ns = now_ns
    while member.deadline_ns is not None:
        now_ns = member.deadline_ns
        events = member.tick(now_ns).events
        states += [(now_ns - start_ns, event.state) for event in events]  # type: ignore[union-attr, misc]
    assert states == [(100 * MS, "closing"), (150 * MS, "closed")]

"""Dispatch: strangers, old incarnations, other groups, hostile bytes, and the caller's mistakes."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gapless.config import Config
from gapless.errors import LocalProtocolError
from gapless.identity import Address, Marks, View, ViewId
from gapless.protocol.endpoint import Endpoint
from gapless.wire.codec import encode
from gapless.wire.frames import Ack, Frame, Gone, MembershipFrame, Nak, StateFrame, Tail
from tests.support.frames import GOLDEN
from tests.support.virtual_group import GROUP, MS, SECOND, A, B, C, Group, data


def busy() -> Group:
    """A group at work: a gap, an owed ack, an outstanding message, a waiting send."""
    group = Group(2, capacity=3, ack_threshold=3)
    group.receive("a", B, data(B, 1), data(B, 3))
    group.send("a", *[b"%d" % seqno for seqno in range(1, 6)])
    return group


def state(member: Endpoint) -> tuple[object, ...]:
    return member.snapshot(), member.deadline_ns, member.armed_timers(), member.view


FRAMES: list[Frame] = [
    data(B, 2, b"evil"),
    Ack(A, 3, 1),
    Nak(A, ((1, 3),)),
    Nak(A, ()),
    Tail(B, 2, 90, 1),
    Gone(B, 90),
]
names = [type(frame).__name__ + str(at) for at, frame in enumerate(FRAMES)]
ABOUT_THE_GROUP: list[Frame] = [
    frame for frame, _ in GOLDEN if isinstance(frame, (MembershipFrame, StateFrame))
]


@pytest.mark.parametrize(
    "frame", ABOUT_THE_GROUP, ids=[f"{frame}"[:60] for frame in ABOUT_THE_GROUP]
)
def test_a_member_that_is_told_its_views_listens_to_nothing_else_about_them(frame: Frame) -> None:
    group = busy()
    before = state(group["a"])
    ready = group["a"].receive(encode(GROUP, B, [frame]), group.now_ns)
    assert state(group["a"]) == before
    assert (ready.transmits, ready.deliveries, ready.events) == ([], [], [])
    assert group["a"].counters["dropped.membership"] == 1


@pytest.mark.behaviour("N4-38", "P-22")
@pytest.mark.parametrize("frame", FRAMES, ids=names)
@pytest.mark.parametrize(
    ("sender", "group_id", "reason"),
    [
        (Address(99, 1), GROUP, "stranger"),
        (Address(B.node, 2), GROUP, "incarnation"),
        (Address(B.node, 0), GROUP, "incarnation"),
        (Address(A.node, 2), GROUP, "incarnation"),
        (A, GROUP, "own"),
        (B, GROUP + 1, "group"),
        (Address(99, 1), GROUP + 1, "group"),
    ],
)
def test_rule_8_a_frame_that_is_not_for_me_changes_nothing(
    frame: Frame, sender: Address, group_id: int, reason: str
) -> None:
    """Rule 8, N4-38, M-07, P-22, S15: a counted drop; nothing is sent, delivered or armed."""
    group = busy()
    before = state(group["a"])
    ready = group.receive("a", sender, frame, group=group_id)
    assert (ready.transmits, ready.deliveries, ready.events) == ([], [], [])
    assert state(group["a"]) == before
    assert group["a"].counters[f"dropped.{reason}"] == 1


@pytest.mark.parametrize("frame", FRAMES, ids=names)
def test_the_same_frames_from_the_member_itself_count(frame: Frame) -> None:
    """Or the test above would prove nothing."""
    group = busy()
    before = state(group["a"])
    ready = group.receive("a", B, frame)
    assert ready.transmits or state(group["a"]) != before
    assert not any(name.startswith("dropped") for name in group["a"].counters)


@pytest.mark.behaviour("P-18")
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (data(C, 2), "origin"),
        (data(A, 6), "origin"),
        (Tail(A, 9, 9, 9), "origin"),
        (Gone(A, 3), "origin"),
        (Ack(B, 1, 1), "not mine"),
        (Ack(C, 1, 1), "not mine"),
        (Nak(C, ()), "not mine"),
        (Ack(Address(A.node, 7), 1, 1), "incarnation"),
        (Nak(Address(A.node, 7), ((1, 1),)), "incarnation"),
    ],
)
def test_rule_8_a_member_speaks_only_of_what_it_may(frame: Frame, reason: str) -> None:
    """R-08, P-18: data, tails and GONE of its own stream; acks and naks to their origin."""
    group = busy()
    before = state(group["a"])
    ready = group.receive("a", B, frame)
    assert (ready.transmits, ready.deliveries, ready.events) == ([], [], [])
    assert state(group["a"]) == before
    assert group["a"].counters[f"dropped.{reason}"] == 1


def test_good_frames_in_the_same_datagram_still_count() -> None:
    group = busy()
    group.receive("a", B, data(C, 1), data(B, 2), Ack(C, 1, 1), data(B, 4))
    assert group.messages("a", "b") == [b"1", b"2", b"3", b"4"]


@given(st.binary(max_size=200), st.integers(0, 120), st.integers(1, 255))
def test_s13_hostile_bytes_change_nothing(garbage: bytes, at: int, flip: int) -> None:
    """S13: garbage, and a true datagram with one byte changed."""
    group = busy()
    true = bytearray(encode(GROUP, B, [data(B, 2), Ack(A, 3, 9)]))
    true[at % len(true)] ^= flip
    for datagram in (garbage, bytes(true), bytes(true)[: at % len(true)]):
        before, dropped = state(group["a"]), sum(group["a"].counters.values())
        ready = group.step(A, lambda m, datagram=datagram: m.receive(datagram, group.now_ns))  # type: ignore[misc]
        assert (ready.transmits, ready.deliveries, ready.events) == ([], [], [])
        assert state(group["a"]) == before
        assert sum(group["a"].counters.values()) == dropped + 1


@pytest.mark.behaviour("P-22")
def test_s14_hostile_input_does_not_grow_the_counters() -> None:
    """S14, P-22: reasons are from a small set, whoever the sender is."""
    group = busy()
    for number in range(500):
        group.receive(
            "a", Address(1000 + number, number), data(Address(1000 + number, number), number + 1)
        )
        group.receive("a", B, Ack(Address(number + 50, 1), number, 1))
        group.receive("a", B, data(B, 10**6 + number))
        group.receive("a", B, Ack(A, 10**6 + number, number))
        group.step(A, lambda m, n=number: m.receive(b"GL%d" % n, group.now_ns))  # type: ignore[misc]
    assert len(group["a"].counters) < 20
    assert set(group["a"].active_senders.last_data_ns) | set(
        group["a"].outbound.flow_control._buffers
    ) <= {B}


@pytest.mark.behaviour("N7-09")
def test_own_frames_that_come_back_are_dropped() -> None:
    """N7-09, M-08: own messages are delivered from the own window, once."""
    group = Group(2)
    ready = group.send("a", b"1")
    for transmit in ready.transmits:
        group.step(A, lambda m, d=transmit.datagram: m.receive(d, group.now_ns))  # type: ignore[misc]
    group.settle()
    assert group.messages("a", "a") == [b"1"]
    assert group["a"].counters["dropped.own"] == 1


def test_before_the_first_view_a_few_runs_are_kept() -> None:
    """J-01: a member requests such losses once it has its view."""
    group = Group(2, start=False, become_server_queue_size=1)
    group.receive("a", B, data(B, 1))
    group.receive("a", B, data(B, 2))
    group.receive("a", A, data(A, 1))
    assert len(group["a"].future_view_buffer) == 1
    assert group["a"].counters == {"dropped.stranger": 1, "dropped.own": 1}
    assert group["a"].digest() == {A: Marks(0, 0, 0)}
    assert group["a"].tick(SECOND).deadline_ns is None


@pytest.mark.behaviour("P-02")
def test_a_fresh_member_knows_nothing() -> None:
    """P-02: a new incarnation is a new machine; there is nothing to clear."""
    fresh = Endpoint(B, GROUP, Config(), Random(0))
    assert (fresh.digest(), fresh.deadline_ns, fresh.counters) == ({B: Marks(0, 0, 0)}, None, {})


# The caller's mistakes


@pytest.mark.parametrize(
    ("payloads", "how", "text"),
    [
        ([], {}, "at least one message"),
        (["text"], {}, "a message must be bytes, not str; encode"),
        ([b"good", bytearray(b"bad")], {}, "a message must be bytes, not bytearray"),
        ([b"good", None], {}, "a message must be bytes, not NoneType"),
        (b"one message", {}, "put the message into a list"),
        ("text", {}, "put the message into a list"),
        ([b"x" * 2001], {}, r"2001 bytes exceeds max_message_bytes \(2000 bytes\)"),
        ([b"x"], {"timeout_ns": -1}, "wait=False"),
    ],
)
def test_a_send_that_makes_no_sense_is_refused_at_the_caller(
    payloads: Any, how: dict[str, Any], text: str
) -> None:
    """The text says what to do, and nothing has changed."""
    group = Group(2, max_message_bytes=2000)
    before = state(group["a"])
    with pytest.raises(LocalProtocolError, match=text):
        group["a"].send(payloads, group.now_ns, **how)
    assert state(group["a"]) == before
    assert group.send("a", b"good").ticket == 1, "no ticket was used up"


def test_sending_without_a_view_is_refused() -> None:
    """M-03: never silently dropped."""
    group = Group(2, start=False)
    with pytest.raises(LocalProtocolError, match="no view yet"):
        group["a"].send([b"x"], group.now_ns)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (View.of(5, B, C), r"does not include this member \(1.1\)"),
        (View.of(5, Address(A.node, 2), B), r"does not include this member \(1.1\)"),
        (View.of(1, A, B), "not newer than view 1"),
        (View.of(0, A, B), "not newer than view 1"),
        (View.of(2**32, A, B), "does not fit the wire"),
        (View.of(-1, A, B), "does not fit the wire"),
    ],
)
def test_g10_a_view_that_is_not_mine_or_not_newer_is_refused(view: View, text: str) -> None:
    """G-10, S15: and the member stays in its view."""
    group = busy()
    before = state(group["a"])
    with pytest.raises(LocalProtocolError, match=text):
        group["a"].install(view, group.now_ns)
    assert state(group["a"]) == before
    group.receive("a", B, Ack(A, 3, 1 << 20))
    assert group["a"].digest()[A].low == 3


def test_the_coordinator_decides_between_views_of_one_number() -> None:
    """Two members that made a view at once: all follow the same one in the end."""
    group = Group(2)
    group["a"].install(View(ViewId(2, A), (A, B)), group.now_ns)
    group["a"].install(View(ViewId(2, B), (A, B)), group.now_ns)
    with pytest.raises(LocalProtocolError, match="not newer"):
        group["a"].install(View(ViewId(2, A), (A, B)), group.now_ns)


def test_consuming_less_than_nothing_is_refused() -> None:
    group = Group(2, unread_limit=1)
    with pytest.raises(LocalProtocolError, match="-1 messages"):
        group["a"].consumed(-1, group.now_ns)
    group.send("a", b"1", b"2")
    assert group.messages("a", "a") == [b"1"]


@pytest.mark.parametrize(
    ("me", "group_id"), [(Address(2**64, 1), 1), (Address(1, -1), 1), (A, 2**64), (A, -1)]
)
def test_an_address_that_the_wire_cannot_say_is_refused(me: Address, group_id: int) -> None:
    with pytest.raises(LocalProtocolError, match="64-bit"):
        Endpoint(me, group_id, Config(), Random(0))


# Snapshots, for exhaustive search


def test_a_snapshot_goes_on_like_the_original() -> None:
    """Credit, fragments, gaps, owed acks and waiting sends: the continuation is the same."""
    config: dict[str, Any] = {"capacity": 3, "unread_limit": 3, "max_frame_bytes": 256}

    def story(group: Group) -> list[bytes]:
        for _ in range(60):
            group.consumed("a", 1)
            group.receive("a", B, Ack(A, group["a"].digest()[A].high, 1 << 20))
        group.receive("a", B, data(B, 2))
        for _ in range(4):
            group.consumed("a", 1)
        return group.messages("a", "a") + group.messages("a", "b")

    group, copy = Group(2, **config), Group(2, **config)
    group.receive("a", B, data(B, 1), data(B, 3))
    group.send("a", b"own", b"x" * 2000, b"last")
    group.receive("a", B, Ack(A, 2, 1 << 20))
    assert group["a"].deliveries.own_reassembler._fragments, "a message is under way in pieces"
    handed = group.messages("a", "a") + group.messages("a", "b")
    copy["a"].restore(group["a"].snapshot())
    copy["a"].check_invariants()
    assert copy["a"].snapshot() == group["a"].snapshot()
    rest = story(copy)
    assert rest == [b"x" * 2000, b"last", b"2", b"3"]
    assert sorted(story(group)) == sorted(handed + rest)


def test_timers_can_be_fired_one_by_one() -> None:
    """For exhaustive search: timers that are not due stay armed."""
    group = busy()
    armed = group["a"].armed_timers()
    assert armed == ("ack", "gap", "pin", "tail")
    for name in ("gap", "tail", "pin"):
        group.step(A, lambda m, name=name: m.fire_timer(name, group.now_ns))  # type: ignore[misc]
        assert group["a"].armed_timers() == armed
    ready = group.step(A, lambda m: m.fire_timer("ack", group.now_ns + MS))
    assert len(ready.transmits) == 1
    assert group["a"].armed_timers() == ("gap", "pin", "tail")

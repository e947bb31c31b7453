"""Every sub-machine detects a field that violates its invariants, and the member asks each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gapless.delivery_mode import Mode
from gapless.identity import Address
from gapless.protocol.membership.membership import JOINING
from gapless.protocol.state_transfer.requester import ASKING, PULLING
from gapless.protocol.stream.connections import ConnectionState
from gapless.protocol.stream.durable_retention import RetainedPosition
from gapless.protocol.stream.loss_detector import _OpenNak
from gapless.protocol.stream.retransmit import _RecentRepair
from gapless.wire.frames import StateChunk
from tests.support.membership_checks import gathered
from tests.support.virtual_group import SECOND
from tests.support.virtual_state_transfer import StateTransferGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    Break = Callable[[Any], object]

STRANGER = Address(99, 1)


def a_member(profile: str = "nakack4") -> Any:
    """Return a member of three that has sent, received and connected, and owes nothing."""
    world = gathered(3, profile=profile)
    b, c = world["b"].me, world["c"].me
    for name, to in (("a", b), ("b", world["a"].me), ("c", None)):
        world.send(name, b"ordered", b"twice")
        world.send(name, b"private", to=to or c)
    world.send("a", b"out of band", mode=Mode.OUT_OF_BAND)
    world.run(2)
    member = world["a"]
    member.check_invariants()
    return member


def waiting_for_a_state() -> Any:
    """Return a member that pulls the blocks of a state, and its provider."""
    company = StateTransferGroup("ab", padding=b"x" * 300_000)
    company.lose(StateChunk)
    company.enter("c")
    requester = company.transfer("c").requester
    assert company.run_for(5 * SECOND, lambda: requester.stage == PULLING)
    for member in company.members.values():
        member.check_invariants()
    return company


def stream_of(member: Any) -> Any:
    """Return the first group stream that a member receives."""
    return next(iter(member.inbound.values()))


def connection_of(member: Any) -> Any:
    """Return the first connection that a member has opened."""
    return next(iter(member.connections.outgoing.values()))


STREAMS: dict[str, tuple[Break, str]] = {
    "ack table": (lambda m: setattr(m.outbound.acks, "minimum", 1), "the lowest ack"),
    "ack scheduler": (
        lambda m: setattr(stream_of(m).ack_scheduler, "_messages", 3),
        "not pending",
    ),
    "flow control": (lambda m: m.outbound.flow_control._lasts.append(0), "one byte total"),
    "flow control buffers": (
        lambda m: setattr(m.outbound.flow_control, "buffers_differ", True),
        "follows the buffers",
    ),
    "delivery credit": (lambda m: setattr(m.credit, "outstanding", -1), "outstanding"),
    "loss detector": (
        lambda m: stream_of(m).loss_detector.open_naks.extend([_OpenNak(5, 4, 0, 0, 1, 0)]),
        "do not overlap",
    ),
    "round trip": (
        lambda m: setattr(stream_of(m).loss_detector.rtt, "deviation_ns", -1),
        "mean deviation",
    ),
    "retransmit handler": (
        lambda m: setattr(m.outbound.retransmit_handler, "_spent_bytes", 1 << 40),
        "the budget",
    ),
    "recent repairs": (
        lambda m: m.outbound.retransmit_handler._recent.append(_RecentRepair(2, 1, None, 0)),
        "repaired no message",
    ),
    "reassembly": (lambda m: setattr(stream_of(m).reassembler, "_held_bytes", 7), "counted"),
    "own reassembly": (
        lambda m: m.endpoint.deliveries.own_reassembler._fragments.append(b"x"),
        "open message",
    ),
    "send queue": (
        lambda m: setattr(m.outbound.queue.enqueue(1, [b"x"], 0, None), "taken", 1),
        "done and queued",
    ),
    "window": (lambda m: setattr(m.outbound.window, "stored", 9), "messages add up"),
    "outbound starts": (lambda m: m.outbound.starts.popitem(), "has a start"),
    "outbound stable": (lambda m: setattr(m.outbound, "stable", 99), "stable was delivered"),
    "inbound start": (lambda m: setattr(stream_of(m), "start", 99), "behind the start"),
    "inbound bytes": (lambda m: setattr(stream_of(m), "_unstored_bytes", 1), "add up"),
    "durable retention": (
        lambda m: m.outbound.retention.retained.update(n=RetainedPosition(STRANGER, 99)),
        "'n' needs were purged",
    ),
    "durable minimum": (lambda m: setattr(m.outbound.retention, "minimum", 1), "the minimum"),
    "future views": (lambda m: setattr(m.future_view_buffer, "_runs", 1), "runs are buffered"),
    "connection state": (
        lambda m: setattr(connection_of(m), "state", ConnectionState.CLOSED),
        "a closed end is removed",
    ),
    "connection epoch": (lambda m: setattr(m.connections, "_last_epoch", 0), "above view numbers"),
    "connection timer": (lambda m: setattr(m.connections, "_reap_ns", 1 << 62), "reap timer"),
    "out of band": (
        lambda m: m.out_of_band._delivered_ranges.update({STRANGER: [(3, 4), (1, 2)]}),
        "ranges are merged",
    ),
    "out of band self": (
        lambda m: m.out_of_band._delivered_ranges.update({m.me: []}),
        "own messages",
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_broken_stream_is_noticed(name: str) -> None:
    member = a_member()
    break_it, sentence = STREAMS[name]
    break_it(member)
    with pytest.raises(AssertionError, match=sentence):
        member.check_invariants()


STABILITY: dict[str, tuple[Break, str]] = {
    "count": (lambda s: s._lagging.update({next(iter(s._lagging)): 77}), "hold it back"),
    "stable": (
        lambda s: s._stable.update({origin: (99, high) for origin, (_, high) in s._stable.items()}),
        "is stable, not delivered",
    ),
    "received": (lambda s: setattr(s, "_received", -1), "since the last vote"),
}


@pytest.mark.parametrize("name", STABILITY)
def test_broken_stability_is_noticed(name: str) -> None:
    member = a_member("nakack")
    break_it, sentence = STABILITY[name]
    assert member.stability._stable, "something is stable"
    break_it(member.stability)
    with pytest.raises(AssertionError, match=sentence):
        member.check_invariants()


def test_an_unacknowledged_out_of_band_message_is_filed_under_its_number() -> None:
    world = gathered(2)
    world.crash("b")
    world.send("a", b"x", mode=Mode.OUT_OF_BAND)
    channel: Any = world["a"].out_of_band
    (pending,) = channel.pending.values()
    pending.unacked_by.clear()
    with pytest.raises(AssertionError, match="acknowledged by everybody"):
        world["a"].check_invariants()
    pending.unacked_by.add(STRANGER)
    with pytest.raises(AssertionError, match="waits for members"):
        world["a"].check_invariants()


MEMBERSHIP: dict[str, tuple[Break, str]] = {
    "phase": (lambda m: setattr(m, "phase", "elsewhere"), "the phase is"),
    "joiner with a view": (lambda m: setattr(m, "phase", JOINING), "a joiner has no view"),
    "members": (lambda m: setattr(m, "members", frozenset()), "dead|members|confirm"),
    "leaving": (lambda m: m.leaving.add(STRANGER), "only members leave"),
    "pending": (lambda m: setattr(m, "pending", m.roster), "newer than the installed"),
    "admitted": (lambda m: setattr(m, "admitted", False), "repeats its join request"),
    "coordinator joiners": (
        lambda m: m.coordinator.joiners.update({m.me: m.own_entry}),
        "a member is not a joiner",
    ),
    "coordinator expels": (lambda m: m.coordinator.to_expel.add(m.me), "are expelled"),
    "coordinator proposal": (
        lambda m: setattr(m.coordinator, "proposal", m.roster),
        "a proposal is decided",
    ),
    "coordinator number": (lambda m: setattr(m.coordinator, "_highest", 0), "never used twice"),
    "merge": (lambda m: setattr(m.merging, "agreed_to", m.me), "merges with others"),
    "merge pause": (
        lambda m: setattr(m.merging, "_views_blocked_until_ns", 1 << 62),
        "refused for a while",
    ),
    "failure detector": (lambda m: m.failure_detector.dead.add(STRANGER), "members are dead"),
    "failure detector timer": (
        lambda m: m.failure_detector._probed_ns.update(dict.fromkeys(m.members - {m.me}, -SECOND)),
        "noticed in time",
    ),
    "view transfer": (
        lambda m: m.view_transfer._known.update({m.roster.id._replace(number=77): m.roster}),
        "is filed under",
    ),
}


@pytest.mark.parametrize("name", MEMBERSHIP)
def test_a_broken_membership_is_noticed(name: str) -> None:
    member = a_member()
    break_it, sentence = MEMBERSHIP[name]
    break_it(member.membership)
    with pytest.raises(AssertionError, match=sentence):
        member.check_invariants()


REQUESTER: dict[str, tuple[Break, str]] = {
    "stage": (lambda s: setattr(s.requester, "stage", ASKING), "fetched by pulling"),
    "provider": (lambda s: setattr(s.requester, "provider", STRANGER), "provider is a member"),
    "wrong blocks": (lambda s: setattr(s.requester, "_wrong", 3), "wrong blocks"),
    "block fetch": (
        lambda s: setattr(s.requester._fetch, "outstanding_bytes", 1),
        "bytes are outstanding",
    ),
    "blocks": (lambda s: s.requester._fetch._missing_bytes.clear(), "partial blocks"),
    "held deliveries": (lambda s: s.held_deliveries._marks.update({STRANGER: 1}), "no state"),
    "held bytes": (lambda s: setattr(s.held_deliveries, "held_bytes", 1), "held deliveries"),
    "waiting": (lambda s: setattr(s.held_deliveries, "waiting", False), "wait for the state|held"),
}


@pytest.mark.parametrize("name", REQUESTER)
def test_a_broken_state_request_is_noticed(name: str) -> None:
    member = waiting_for_a_state()["c"]
    break_it, sentence = REQUESTER[name]
    break_it(member.state_transfer)
    with pytest.raises(AssertionError, match=sentence):
        member.check_invariants()


PROVIDER: dict[str, tuple[Break, str]] = {
    "stranger": (
        lambda p: p._requests.update({STRANGER: next(iter(p._requests.values()))}),
        "members are served",
    ),
    "part": (lambda p: setattr(next(iter(p._requests.values())), "part", 99), "next part exists"),
    "number": (lambda p: setattr(p, "_number", 0), "before it is provided"),
}


@pytest.mark.parametrize("name", PROVIDER)
def test_a_broken_state_provider_is_noticed(name: str) -> None:
    member = waiting_for_a_state()["a"]
    break_it, sentence = PROVIDER[name]
    break_it(member.state_transfer.provider)
    with pytest.raises(AssertionError, match=sentence):
        member.check_invariants()

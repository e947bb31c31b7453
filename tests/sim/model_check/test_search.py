"""Exhaustive search: the machine passes, planted bugs do not, and the reductions are sound."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gapless.identity import Address
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.ready import Delivery, Ready
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.stream.acks import AckTable
from gapless.protocol.stream.inbound import InboundStream
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.stream.window import FixedWindow, Window
from gapless.protocol.timers import Timers
from gapless.run import Run
from gapless.sim.model_check.bounds import NOW_NS
from gapless.sim.model_check.checks import StreamObservation, payload
from gapless.sim.model_check.search import (
    Exploration,
    SearchBounds,
    TransitionSystem,
    explore,
)
from gapless.sim.model_check.transitions import SUBMIT, FrameTable
from gapless.wire.frames import Ack, Data

ROOT = Path(__file__).resolve().parents[3]
A = SearchBounds().members()[0]
HOUR_NS = 3600 * 10**9

SMALL = SearchBounds(receivers=1, capacity=2, messages=3, in_flight=2)
PAIR = SearchBounds(receivers=2, capacity=2, messages=2, in_flight=2)


# The machine passes


@pytest.mark.parametrize(
    "bounds",
    [
        SMALL,
        SMALL._replace(ack_threshold=2),
        SMALL._replace(capacity=1),
        SMALL._replace(capacity=3, messages=4),
        PAIR._replace(use_mcast_xmit="always"),
        PAIR._replace(ack_threshold=2),
        SearchBounds(receivers=3, capacity=1, messages=1, in_flight=2),
    ],
    ids=str,
)
def test_the_machine_passes(bounds: SearchBounds) -> None:
    found = explore(bounds)
    assert found.ok, found.counterexample
    assert found.complete
    assert (found.violations, found.traps, found.counterexample) == ((), 0, None)
    assert found.states > found.depth > 2 * bounds.messages
    assert found.transitions > found.states


def test_the_machine_passes_with_three_frames_in_flight() -> None:
    found = explore(SearchBounds(receivers=1, capacity=2, messages=4, in_flight=3))
    assert found.ok, found.counterexample
    assert found.complete
    assert found.states > 20_000


def test_the_machine_passes_in_a_group_of_three() -> None:
    found = explore(SearchBounds(receivers=2, capacity=2, messages=2, in_flight=3))
    assert found.ok, found.counterexample
    assert found.complete
    assert found.states > 200_000
    assert found.transitions > 2_000_000


def test_the_search_stops_where_it_is_told_to() -> None:
    counts: list[int] = []
    found = explore(PAIR, max_states=10_000, progress=counts.append)
    assert not found.complete
    assert found.traps is None
    assert found.ok
    assert 10_000 <= found.states < 10_100
    assert counts == sorted(counts)
    assert counts[-1] == found.states


def test_findings_as_plain_values() -> None:
    found = explore(SMALL._replace(messages=1)).as_dict()
    assert found["receivers"] == 1
    assert found["complete"] is True
    assert found["violations"] == 0
    assert found["traps"] == 0
    assert found["counterexample"] is None


# Reductions


def _states(group: TransitionSystem) -> list[int]:
    order = [group.start]
    seen = {group.start}
    for state in order:
        new = {after for after, *_ in group.moves(state)} - seen
        seen |= new
        order += new
    return order


def _seen(bounds: SearchBounds, *, reduced: bool) -> set[tuple[object, ...]]:
    """Return what all members hold, for every state."""
    group = TransitionSystem(bounds, reduced=reduced)
    return {
        tuple(
            repr(position._observations[local])
            for position, local in zip(group.members, group.locals(state), strict=True)
        )
        for state in _states(group)
    }


@pytest.mark.parametrize(
    "bounds", [SMALL, PAIR._replace(messages=1), PAIR._replace(capacity=1, messages=1)], ids=str
)
def test_the_reductions_leave_nothing_out(bounds: SearchBounds) -> None:
    assert _seen(bounds, reduced=True) == _seen(bounds, reduced=False)
    reduced, full = explore(bounds), explore(bounds, reduced=False)
    assert reduced.ok
    assert full.ok
    assert reduced.complete
    assert full.complete
    assert reduced.states < full.states


class _Live:
    """A group that keeps running while the search restores: an hour between two inputs."""

    def __init__(self, bounds: SearchBounds, *, reduced: bool) -> None:
        self.group = TransitionSystem(bounds, reduced=reduced)
        self.locals = [0] * (bounds.receivers + 1)
        self.bounds = bounds
        begun = [bounds.member(me) for me in bounds.members()]
        self.members = [member for member, _ in begun]
        self.names = FrameTable(bounds.members())
        self.flying: list[tuple[int, int]] = []
        for at, (_, ready) in enumerate(begun):
            self.fly(at, self.group.members[at].first_frames, ready)
        self.now_ns = NOW_NS

    def walk(self, rng: Random) -> None:
        """Take one step at random."""
        self.now_ns += HOUR_NS
        inputs: list[tuple[int, str | tuple[int, int]]] = [
            (self.group.frames.target[pair[0]], pair) for pair in self.arriving()
        ]
        for at, position in enumerate(self.group.members):
            inputs += [(at, name) for name, _ in position.own_steps(self.locals[at])]
        if inputs:
            at, chosen = rng.choice(inputs)
            if isinstance(chosen, str):
                self.own(at, chosen)
            elif self.bounds.keeps_order or rng.random() < 0.5:
                self.arrive(at, chosen)
            if not isinstance(chosen, str) and (self.bounds.keeps_order or rng.random() < 0.7):
                self.flying.remove(chosen)

    def arriving(self) -> list[tuple[int, int]]:
        """Return the frames that may arrive next: all, or the first of each FIFO link."""
        if not self.bounds.keeps_order:
            return self.flying
        frames = self.group.frames
        links = {
            (frames.source[pair[0]], frames.target[pair[0]]): pair for pair in reversed(self.flying)
        }
        return list(links.values())

    def own(self, at: int, name: str) -> None:
        member, position = self.members[at], self.group.members[at]
        step = dict(position.own_steps(self.locals[at]))[name]
        if name == SUBMIT:
            message = payload(position.submitted(self.locals[at]) + 1)
            ready = member.send([message], self.now_ns, to=self.bounds.to)
        else:
            assert name in member.armed_timers()
            ready = member.fire_timer(name, self.now_ns)
        self.compare(at, step, ready)

    def arrive(self, at: int, pair: tuple[int, int]) -> None:
        step = self.group.members[at].on_frame(self.locals[at], pair[0])
        self.compare(at, step, self.members[at].receive(self.names.datagram[pair[1]], self.now_ns))

    def compare(self, at: int, step: Any, ready: Ready) -> None:
        assert not step.failures
        self.fly(at, step.sent, ready)
        seen = StreamObservation.of(self.members[at], A, self.bounds.to)
        assert seen._replace(voted=0) == self.group.members[at]._observations[step.after]._replace(
            voted=0
        )
        self.locals[at] = step.after

    def fly(self, at: int, frames: tuple[int, ...], ready: Ready) -> None:
        """Add the frames of both machines to the network; they must be the same."""
        members = [member.me for member in self.members]
        sent = [
            self.names.number(target, datagram)
            for to, datagram in ready.transmits
            for target in (
                [other for other in members if other != members[at]] if to is None else [to]
            )
        ]
        restored = list(frames)
        if not self.bounds.keeps_order:
            sent.sort(key=self.names.name)
            restored.sort(key=self.group.frames.name)
        assert [self.names.name(frame) for frame in sent] == [
            self.group.frames.name(frame) for frame in restored
        ]
        self.flying += zip(restored, sent, strict=True)


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize(
    "bounds",
    [
        SearchBounds(receivers=1, capacity=3, messages=8, ack_threshold=2),
        SearchBounds(receivers=2, capacity=2, messages=6),
        SearchBounds(receivers=2, capacity=4, messages=9, ack_threshold=3, use_mcast_xmit="always"),
        SearchBounds(
            profile="nakack", receivers=2, capacity=9, messages=20, coordinator="receiver"
        ),
        SearchBounds(profile="ordered", receivers=2, messages=6),
        SearchBounds(profile="classic", receivers=2, messages=6),
        SearchBounds(profile="unicast3", receivers=1, capacity=3, messages=8, forgets=True),
        SearchBounds(profile="unicast", receivers=1, capacity=3, messages=8, forgets=True),
        SearchBounds(profile="unicast2", receivers=1, capacity=3, messages=8, ack_threshold=2),
    ],
    ids=str,
)
def test_a_member_that_lives_on_does_what_a_restored_one_does(
    bounds: SearchBounds, *, reduced: bool
) -> None:
    for seed in range(12):
        live = _Live(bounds, reduced=reduced)
        rng = Random(seed)
        for _ in range(150):
            live.walk(rng)
        assert live.group.members[0].submitted(live.locals[0]) > 0


# Planted bugs: each dies by the check that is meant for it, in few steps


def _killed(bounds: SearchBounds, check: str, within: int) -> Exploration:
    # The bugs are planted in the general path.
    found = explore(bounds, short_path="off")
    assert not found.ok
    assert found.counterexample is not None
    assert found.counterexample.check == check, found.counterexample
    assert len(found.counterexample.steps) <= within, found.counterexample
    if check == "L5":
        assert found.complete
        assert found.traps
        assert not found.violations
    else:
        assert not found.complete
        assert found.traps is None
        assert check in {failure.check for failure in found.violations}
    return found


def _patch(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., Any]
) -> None:
    """Replace a method by ``bug``, whose first parameter is the method."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: bug(original, *args, **kwargs))


def test_purge_at_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    def highest(self: AckTable) -> bool:
        before, self.minimum = self.minimum, max(ack for member, ack in self.items() if member != A)
        return self.minimum > before

    monkeypatch.setattr(AckTable, "_raise_minimum", highest)
    # The table notices by itself; this test is about the check from outside.
    monkeypatch.setattr(AckTable, "check_invariants", _silent)
    found = _killed(PAIR, "S9", 3)
    assert found.counterexample is not None
    assert found.counterexample.steps == (
        "submit a1",
        "deliver DATA a1 a->b",
        "deliver ACK a1 b->a",
    )
    assert found.counterexample.reason == "purged up to 1, and 3.1 has acknowledged 0"
    assert str(found.counterexample).splitlines()[1] == "  1. submit a1"


def test_ack_of_high(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: InboundStream, context: ReadyBuilder, senders: int = 1) -> None:
        assert self.window is not None
        self.ack_now = False
        self.ack_scheduler.on_ack_sent(self.window.high)
        context.transmit(
            self.origin, Ack(self.origin, self.window.high, self.config.receive_buffer_bytes)
        )

    monkeypatch.setattr(InboundStream, "acknowledge", acknowledge)
    _killed(SMALL, "S8", 6)


def test_take_that_skips_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(original: Any, self: Window, limit: int | None = None) -> list[Run]:
        if not self.keep_delivered and self.stored and not self.has_next:
            self.skip_to(self.runs[0].first - 1)
        taken: list[Run] = original(self, limit)
        return taken

    _patch(monkeypatch, Window, "take", take)
    _killed(SMALL, "S3", 3)


def test_ack_that_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def ack(self: AckTable, member: Address, seqno: int) -> bool:
        self._acks[member] = seqno
        return self._raise_minimum()

    monkeypatch.setattr(AckTable, "on_ack", ack)
    # The table notices by itself; this test is about the check from outside.
    monkeypatch.setattr(AckTable, "check_invariants", _silent)
    _killed(SMALL, "S7", 7)


def test_delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def hand_out(
        original: Any, self: InboundStream, run: Run, credit: object, context: ReadyBuilder
    ) -> None:
        original(self, run, credit, context)
        if run.first == 2:
            original(self, run, credit, context)

    _patch(monkeypatch, InboundStream, "_deliver_run", hand_out)
    _killed(SMALL, "S2", 4)


def test_delivered_and_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def hand_out(
        original: Any, self: InboundStream, run: Run, credit: object, context: ReadyBuilder
    ) -> None:
        original(self, run, credit, context)
        made_up = Run.of(run.origin, run.last + 1, [payload(run.last + 1)])
        context.deliver(Delivery(run.origin, made_up.first, made_up.last, made_up))

    _patch(monkeypatch, InboundStream, "_deliver_run", hand_out)
    _killed(SMALL, "S1", 2)


def test_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def hand_out(
        original: Any, self: InboundStream, run: Run, credit: object, context: ReadyBuilder
    ) -> None:
        original(self, Run.of(run.origin, run.first, [b"?"] * run.count), credit, context)

    _patch(monkeypatch, InboundStream, "_deliver_run", hand_out)
    _killed(SMALL, "S4", 2)


def test_window_one_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FixedWindow, "ceiling", lambda self, low, delivered: low + self.capacity + 1
    )
    _killed(SMALL, "S6", 3)


def test_receiver_that_takes_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(original: Any, self: Window, run: Run) -> Any:
        if not self.keep_delivered and run.last == self.low + 2:
            return original(self, Run.of(run.origin, self.low + 9, [b"?"]))
        return original(self, run)

    _patch(monkeypatch, Window, "add", add)
    _killed(SMALL, "S12", 3)


def test_nak_for_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(
        original: Any, self: Window, upto: int | None = None, limit: int | None = None
    ) -> Any:
        return original(self, None if upto is None else upto + 1, limit)

    _patch(monkeypatch, Window, "missing", missing)
    _killed(SMALL, "S11", 6)


@pytest.mark.parametrize(
    "change", [lambda asked: asked[1:], lambda asked: [(asked[0][0], asked[-1][1] + 1)]]
)
def test_repair_that_is_not_exact(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> None:
    def on_nak(
        original: Any, self: OutboundStream, peer: Address, asked: Any, context: ReadyBuilder
    ) -> None:
        if changed := change(asked):
            original(self, peer, changed, context)

    _patch(monkeypatch, OutboundStream, "on_nak", on_nak)
    _killed(SMALL, "S10", 6)


def test_data_that_is_sent_again_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def announce(original: Any, self: OutboundStream, context: ReadyBuilder) -> None:
        original(self, context)
        for run in self.window.runs:
            context.transmit(None, Data(run))

    _patch(monkeypatch, OutboundStream, "announce_tail", announce)
    _killed(SMALL, "S10", 2)


def test_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_nak(*_: object) -> None:
        raise KeyError("nobody asked")

    monkeypatch.setattr(OutboundStream, "on_nak", on_nak)
    found = _killed(SMALL, "EXCEPTION", 5)
    assert "KeyError" in found.violations[0].reason


def test_timer_that_is_not_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    def arm_earlier(original: Any, self: Timers, name: str, at_ns: int) -> None:
        if name != "gap":
            original(self, name, at_ns)

    _patch(monkeypatch, Timers, "arm_earlier", arm_earlier)
    _killed(SMALL, "INVARIANTS", 3)


def test_state_that_no_snapshot_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def acknowledge(
        original: Any, self: InboundStream, context: ReadyBuilder, senders: int = 1
    ) -> None:
        calls[0] += 1
        original(self, context, senders)
        if calls[0] % 3 == 0:
            original(self, context, senders)

    _patch(monkeypatch, InboundStream, "acknowledge", acknowledge)
    found = explore(SMALL)
    assert "S17" in {failure.check for failure in found.violations}


def test_old_news_that_matters_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_ack(
        original: Any,
        self: OutboundStream,
        peer: Address,
        seqno: int,
        buffer_bytes: int,
        context: ReadyBuilder,
    ) -> None:
        if seqno < self.acks[peer] and self.window.low == self.window.high == 3:
            self.send_start(peer, context)
        original(self, peer, seqno, buffer_bytes, context)

    _patch(monkeypatch, OutboundStream, "on_ack", on_ack)
    found = explore(SMALL)
    assert {failure.check for failure in found.violations} == {"REDUCTION"}
    assert not found.complete
    assert explore(SMALL, reduced=False).complete


# Planted bugs that violate no safety check, but liveness


def _silent(*_: object) -> None:
    """Do nothing."""


def test_tail_that_is_never_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutboundStream, "announce_tail", _silent)
    found = _killed(SMALL, "L5", 4)
    assert found.counterexample is not None
    assert "no continuation" in found.counterexample.reason


def test_tail_whose_timer_is_not_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(original: Any, self: Endpoint, touched: Any) -> Ready:
        ready: Ready = original(self, touched)
        self.timers.arm("tail", None)
        self.timers.find_earliest_ns()
        return ready

    _patch(monkeypatch, Endpoint, "finish", finish)
    _killed(SMALL, "L5", 4)


def test_receiver_that_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InboundStream, "send_naks", _silent)
    _killed(SMALL, "L5", 2)


def test_sends_that_nobody_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(original: Any, self: OutboundStream, *given: object) -> None:
        if not any(waiting.blocked for waiting in self.queue.queued_sends()):
            original(self, *given)

    _patch(monkeypatch, OutboundStream, "flush", flush)
    _killed(SMALL, "L5", 3)


def test_lost_ack_that_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_tail(original: Any, self: InboundStream, *heard: object) -> None:
        original(self, *heard)
        self.ack_now = False

    _patch(monkeypatch, InboundStream, "on_tail", on_tail)
    _killed(SMALL, "L5", 5)


def test_no_periodic_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ack timer may fail, because announcements draw the acks; without them it must not."""

    def fire(original: Any, self: Endpoint, name: str, out: ReadyBuilder) -> None:
        if name == "ack":
            self.timers.arm(name, None)
            self.deliveries.pending_acks = {}
            for stream in self.inbound.values():
                stream.ack_scheduler.on_ack_sent(0)
        else:
            original(self, name, out)

    _patch(monkeypatch, Endpoint, "fire", fire)
    bounds = SMALL._replace(ack_threshold=2)
    assert explore(bounds).ok
    monkeypatch.setattr(OutboundStream, "announce_tail", _silent)
    _killed(bounds, "L5", 3)


@pytest.mark.parametrize("reduced", [True, False])
def test_traps_are_found_with_and_without_reductions(
    monkeypatch: pytest.MonkeyPatch, *, reduced: bool
) -> None:
    monkeypatch.setattr(InboundStream, "send_naks", _silent)
    found = explore(SMALL._replace(messages=2), reduced=reduced)
    assert found.complete
    assert found.traps
    assert found.counterexample is not None
    assert found.counterexample.steps == ("submit a1", "drop DATA a1 a->b")


def _reaches_goal(group: TransitionSystem, state: int) -> bool:
    seen, order = {state}, [state]
    for here in order:
        if group.is_goal(here):
            return True
        new = {after for after, *_ in group.moves(here)} - seen
        seen |= new
        order += new
    return False


def test_traps_are_exactly_the_states_without_a_way_to_the_goal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted once more, by a search of its own from each state."""
    monkeypatch.setattr(OutboundStream, "announce_tail", _silent)
    bounds = SMALL._replace(messages=2, in_flight=1)
    group = TransitionSystem(bounds, reduced=True)
    order = _states(group)
    traps = [state for state in order if not _reaches_goal(group, state)]
    assert 0 < len(traps) < len(order)
    found = explore(bounds)
    assert (found.states, found.traps) == (len(order), len(traps))


def test_a_story_names_the_frames_that_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs count as originals, and stale acks as none; a counterexample has the real frames."""

    def on_data(
        original: Any, self: InboundStream, run: Run, repair: bool, context: ReadyBuilder
    ) -> None:
        if self.loss_detector.due_ns is not None:
            raise KeyError(run.first)
        original(self, run, repair, context)

    _patch(monkeypatch, InboundStream, "on_data", on_data)
    found = _killed(SMALL._replace(in_flight=1, messages=1), "EXCEPTION", 7)
    assert found.counterexample is not None
    assert found.counterexample.steps == (
        "submit a1",
        "drop DATA a1 a->b",
        "fire tail at a",
        "deliver TAIL a0..1 a->b",
        "fire gap at b",
        "deliver NAK a1 b->a",
        "deliver REPAIR a1 a->b",
    )


def test_a_story_says_what_found_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_data(*_: object) -> None:
        raise KeyError("no data, please")

    monkeypatch.setattr(InboundStream, "on_data", on_data)
    found = explore(PAIR._replace(in_flight=1), short_path="off")
    assert found.counterexample is not None
    assert found.counterexample.steps == (
        "submit a1; DATA a1 a->c finds no room and is lost",
        "deliver DATA a1 a->b",
    )

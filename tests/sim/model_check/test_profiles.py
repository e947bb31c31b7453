"""Exhaustive search of every profile: each passes, and its typical bugs are found."""

from collections.abc import Callable
from typing import Any

import pytest

from gapless.config import Config
from gapless.identity import Address
from gapless.profiles import Profile
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.stream.acks import AckScheduler
from gapless.protocol.stream.connections import Connections
from gapless.protocol.stream.inbound import InboundStream
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.stream.stability import Stability
from gapless.sim.model_check.search import SearchBounds, TransitionSystem, explore
from gapless.sim.swarm.profile_draw import ALL_PROFILES
from gapless.wire.codec import encode
from gapless.wire.frames import Data, Gone, Stable, StreamProgress, Tail

SMALL = SearchBounds(receivers=1, capacity=2, messages=2, in_flight=2)
THREE = SearchBounds(receivers=1, capacity=2, messages=3, in_flight=3)
PAIR = SearchBounds(receivers=2, capacity=2, messages=1, in_flight=2)
CONNECTIONS = ("unicast3", "unicast", "unicast2")


def _name(bounds: SearchBounds) -> str:
    changed = {
        key: value
        for key, value in bounds._asdict().items()
        if value != SearchBounds._field_defaults[key]
    }
    return " ".join(f"{key}={value}" for key, value in changed.items())


# Every profile passes


@pytest.mark.parametrize("profile", ALL_PROFILES)
@pytest.mark.parametrize("bounds", [SMALL, THREE, THREE._replace(capacity=1), PAIR], ids=_name)
def test_the_profile_passes(profile: str, bounds: SearchBounds) -> None:
    found = explore(bounds._replace(profile=profile))
    assert found.ok, found.counterexample
    assert found.complete
    assert found.traps == 0
    assert found.states > found.depth > 2 * bounds.messages


@pytest.mark.parametrize(
    "bounds",
    [
        *(
            THREE._replace(profile=profile, coordinator="receiver")
            for profile in ("nakack", "ordered", "classic")
        ),
        PAIR._replace(profile="nakack", messages=2, any_holder=True),
        PAIR._replace(
            profile="nakack", coordinator="receiver", any_holder=True, use_mcast_xmit="always"
        ),
        PAIR._replace(profile="ordered", messages=3, in_flight=3, coordinator="receiver"),
        *(SMALL._replace(profile=profile, messages=3, ack_threshold=2) for profile in CONNECTIONS),
        *(SMALL._replace(profile=profile, forgets=True) for profile in CONNECTIONS),
        SMALL._replace(profile="unicast3", messages=3, forgets=True, ack_threshold=2),
        *(SMALL._replace(profile=profile, acknowledged=True) for profile in ALL_PROFILES),
        PAIR._replace(profile="classic", acknowledged=True),
    ],
    ids=_name,
)
def test_the_profile_passes_with_what_else_it_has(bounds: SearchBounds) -> None:
    found = explore(bounds)
    assert found.ok, found.counterexample
    assert found.complete


def _seen(bounds: SearchBounds, *, reduced: bool) -> set[tuple[str, ...]]:
    """Return what all members hold, for every state."""
    group = TransitionSystem(bounds, reduced=reduced)
    order, known = [group.start], {group.start}
    for state in order:
        new = {after for after, *_ in group.moves(state)} - known
        known |= new
        order += new
    return {
        tuple(
            repr(position._observations[local]._replace(voted=0))
            for position, local in zip(group.members, group.locals(state), strict=True)
        )
        for state in order
    }


@pytest.mark.parametrize(
    "bounds",
    [
        *(SMALL._replace(profile=profile) for profile in ALL_PROFILES),
        *(SMALL._replace(profile=profile, forgets=True) for profile in CONNECTIONS),
        PAIR._replace(profile="nakack", coordinator="receiver"),
    ],
    ids=_name,
)
def test_the_reductions_leave_nothing_out(bounds: SearchBounds) -> None:
    assert _seen(bounds, reduced=True) == _seen(bounds, reduced=False)
    assert explore(bounds, reduced=False).ok


def test_links_that_keep_their_order_neither_lose_nor_repeat() -> None:
    group = TransitionSystem(THREE._replace(profile="ordered", in_flight=1), reduced=True)
    order, known = [group.start], {group.start}
    verbs: set[str] = set()
    for state in order:
        for after, verb, _, lost in group.moves(state):
            verbs.add(verb)
            assert not lost
            if after not in known:
                known.add(after)
                order.append(after)
    assert "deliver" in verbs
    assert not verbs & {"drop", "deliver and keep"}


# Planted bugs


def _killed(bounds: SearchBounds, checks: str, within: int) -> None:
    found = explore(bounds)
    assert found.counterexample is not None, "not found"
    assert found.counterexample.check in checks.split(), found.counterexample
    assert len(found.counterexample.steps) <= within, found.counterexample
    if checks == "L5":
        assert found.complete
        assert found.traps


def _patch(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., Any]
) -> None:
    """Replace a method by ``bug``, whose first parameter is the method."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: bug(original, *args, **kwargs))


def _silent(*_: object, **__: object) -> None:
    """Do nothing."""


STABLE = pytest.mark.parametrize("profile", ["nakack", "ordered", "classic"])
SIDES = pytest.mark.parametrize("coordinator", ["sender", "receiver"])


@STABLE
@pytest.mark.behaviour("N7-19")
def test_purge_before_it_is_stable(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    def release(original: Any, self: OutboundStream, context: ReadyBuilder, reason: str) -> None:
        self.stable = self.window.delivered
        original(self, context, reason)

    _patch(monkeypatch, OutboundStream, "release", release)
    _killed(SMALL._replace(profile=profile), "S9", 8)


@STABLE
@SIDES
def test_stable_although_not_everybody_has_voted(
    monkeypatch: pytest.MonkeyPatch, profile: str, coordinator: Any
) -> None:
    def risen(original: Any, self: Stability, moved: Any) -> list[StreamProgress]:
        for origin in moved:
            if all(origin in table for table in self._votes.values()):
                self._lagging[origin] = 0
        fresh: list[StreamProgress] = original(self, moved)
        return fresh

    _patch(monkeypatch, Stability, "_advance_stable", risen)
    _killed(PAIR._replace(profile=profile, coordinator=coordinator), "S8 S9", 15)


@pytest.mark.parametrize("profile", ["nakack", "classic"])
@pytest.mark.behaviour("N7-25")
def test_vote_for_what_has_merely_been_received(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    def vote(original: Any, self: Stability, digest: Any, context: ReadyBuilder) -> Any:
        seen = {origin: marks._replace(delivered=marks.high) for origin, marks in digest.items()}
        return original(self, seen, context)

    _patch(monkeypatch, Stability, "vote", vote)
    bounds = THREE._replace(profile=profile, capacity=3, in_flight=2)
    _killed(bounds, "S8", 7)
    _killed(bounds._replace(coordinator="receiver"), "S8", 8)


@pytest.mark.parametrize("profile", ["nakack", "classic"])
@SIDES
def test_lost_stability_message_that_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch, profile: str, coordinator: Any
) -> None:
    def tell(
        original: Any, self: Stability, to: Address | None, progress: Any, context: ReadyBuilder
    ) -> None:
        if to is None:
            original(self, to, progress, context)

    _patch(monkeypatch, Stability, "_send_stable", tell)
    _killed(SMALL._replace(profile=profile, coordinator=coordinator), "L5", 6)


@STABLE
def test_nobody_votes(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    monkeypatch.setattr(Stability, "on_delivered", lambda *_: False)
    monkeypatch.setattr(Stability, "schedule_vote", _silent)
    _killed(SMALL._replace(profile=profile), "L5", 1)


@pytest.mark.parametrize("profile", ["nakack", "classic"])
def test_a_lost_vote_is_not_repeated(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    monkeypatch.setattr(Stability, "schedule_vote", _silent)
    _killed(SMALL._replace(profile=profile), "L5", 4)


@pytest.mark.parametrize("profile", ["nakack4", "nakack", "classic"])
def test_acknowledged_although_not_everybody_has_it(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    def on_ack(original: Any, self: OutboundStream, peer: Address, seqno: int, *rest: Any) -> None:
        original(self, peer, seqno, *rest)
        if seqno:
            self._tracked.clear()

    _patch(monkeypatch, OutboundStream, "on_ack", on_ack)
    _killed(PAIR._replace(profile=profile, acknowledged=True), "S8", 3)


def test_a_holder_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InboundStream, "on_nak", _silent)
    _killed(PAIR._replace(profile="nakack", any_holder=True), "S10", 7)


def test_a_holder_that_forgets_what_is_not_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(original: Any, self: InboundStream, *args: Any) -> bool:
        due: bool = original(self, *args)
        assert self.window is not None
        self.window.purge(self.window.delivered)
        return due

    _patch(monkeypatch, InboundStream, "deliver", deliver)
    _killed(PAIR._replace(profile="nakack", any_holder=True), "S9", 3)


@pytest.mark.behaviour("P-07")
@pytest.mark.parametrize("profile", CONNECTIONS)
def test_any_message_opens_a_connection(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    def meet(
        original: Any,
        self: Connections,
        sender: Address,
        frame: Data | Tail | Gone,
        context: ReadyBuilder,
    ) -> Any:
        opened = frame._replace(first=True) if isinstance(frame, Data) else frame
        return original(self, sender, opened, context)

    _patch(monkeypatch, Connections, "_on_other_epoch", meet)
    _killed(SMALL._replace(profile=profile), "S3", 4)


@pytest.mark.behaviour("P-05")
@pytest.mark.parametrize("profile", CONNECTIONS)
def test_a_removed_connection_whose_end_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    def remember(
        original: Any, self: Connections, peer: Address, epoch: int, resume: int, *, closed: bool
    ) -> None:
        original(self, peer, epoch, 0, closed=closed)

    bounds = SMALL._replace(profile=profile, forgets=True)
    assert explore(bounds).ok
    _patch(monkeypatch, Connections, "_add_tombstone", remember)
    _killed(bounds, "S2 S3 S7", 6)


@pytest.mark.parametrize("profile", CONNECTIONS)
def test_nobody_answers_the_question_for_the_first_message(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """A sender that repeats everything needs no request for the first message."""
    monkeypatch.setattr(OutboundStream, "_send_first", _silent)
    _killed(SMALL._replace(profile=profile), "S10", 6)


@pytest.mark.parametrize("profile", ["unicast3", "unicast"])
def test_nothing_is_sent_again(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    monkeypatch.setattr(OutboundStream, "_probe_tail", _silent)
    _killed(SMALL._replace(profile=profile), "L5 S10", 3)


def test_everything_is_sent_again_where_the_last_message_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resend(original: Any, self: OutboundStream, first: int, *rest: Any) -> None:
        original(self, self.window.low + 1, *rest)

    _patch(monkeypatch, OutboundStream, "_retransmit", resend)
    _killed(SMALL._replace(profile="unicast3"), "S10", 4)


@pytest.mark.parametrize("profile", ["unicast3", "unicast"])
def test_a_duplicate_draws_no_ack(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    monkeypatch.setattr(AckScheduler, "on_duplicate", _silent)
    _killed(SMALL._replace(profile=profile), "L5", 6)


def test_a_receiver_that_asks_where_nobody_is_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(
        original: Any,
        self: InboundStream,
        origin: Address,
        config: Config,
        row: Profile,
        *rest: Any,
        **more: Any,
    ) -> None:
        original(self, origin, config, row._replace(naks=True), *rest, **more)

    _patch(monkeypatch, InboundStream, "__init__", init)
    _killed(THREE._replace(profile="unicast"), "S11", 7)


def test_a_stability_message_is_counted_as_what_it_says() -> None:
    group = TransitionSystem(SMALL._replace(profile="nakack"), reduced=True)
    a, b = SMALL.members()
    datagram = encode(group.members[1]._member.group, a, [Stable(a, 1, (StreamProgress(a, 1, 1),))])
    frame = group.frames.number(b, datagram)
    assert (group.frames.claim[frame], group.frames.stable[frame]) == (0, 1)
    assert group.frames.name(frame) == "STABLE a0..1 a->b"

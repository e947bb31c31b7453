"""From the events of the machine to what a reader and the log get."""

from __future__ import annotations

import logging
import re
from typing import Any, get_args

import pytest

from gapless import blocking, events
from gapless.group import member_names
from gapless.group.public_events import public_event
from gapless.identity import Address, View
from gapless.protocol import events as machine
from gapless.transport.in_process import InProcessNetwork
from tests.support.real_groups import threads

ANN, BEN = Address(1, 1), Address(2, 1)
SAMPLES: dict[type, Any] = {
    machine.Suspected: machine.Suspected(BEN),
    machine.Unheard: machine.Unheard(BEN, ANN),
    machine.Expelled: machine.Expelled(View.of(2, ANN).id),
    machine.Left: machine.Left(confirmed=True),
    machine.SlowReceivers: machine.SlowReceivers((BEN,), 4, 9, 1_000),
    machine.Stalled: machine.Stalled(BEN, 4, 1_000),
    machine.Lost: machine.Lost(BEN, 4, 9),
    machine.Discarded: machine.Discarded(BEN, 3),
    machine.Undelivered: machine.Undelivered(BEN, 4, 9),
    machine.Oversized: machine.Oversized(BEN, 4, 9),
    machine.Retained: machine.Retained("store", BEN),
    machine.RetentionReleased: machine.RetentionReleased("store", BEN, "back"),
    machine.RetentionBlocking: machine.RetentionBlocking("store", BEN),
}
INTERNAL = {
    *(machine.Accepted, machine.Refused, machine.GivenUp, machine.Acknowledged),
    *(machine.Unacknowledged, machine.Connected, machine.Started, machine.Located),
    *(machine.StateWanted, machine.StateReceived, machine.NameInUse),
}
"""Events that the runtime and the session handle; the inbox makes a ViewChange of a view."""


def test_every_event_of_the_machine_is_public_or_internal() -> None:
    assert {*get_args(machine.Event)} == {*SAMPLES} | INTERNAL | {machine.ViewInstalled}
    public = {machine.EVENT_NAMES[kind] for kind in (*SAMPLES, machine.ViewInstalled)}
    assert public == {*events.EVENTS} - {"discovery_failed", "no_peers_found", "key_mismatch"}


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: str(kind.__name__))
def test_the_public_form_has_the_kind_and_the_values_of_the_machine(kind: type) -> None:
    event = SAMPLES[kind]
    found = public_event(event, {BEN: "ben"}, now_ns=3_000)
    assert found is not None
    assert found.kind == machine.EVENT_NAMES[kind]
    assert found.names == {BEN: "ben"}
    values = [getattr(found, name) for name in found.__match_args__]
    # The machine reports the instant at which something began, an event how long it has lasted.
    assert values == [2_000 if name == "since_ns" else value for name, value in _fields(event)]


def _fields(event: Any) -> list[tuple[str, Any]]:
    return list(event._asdict().items())


def test_internal_events_have_no_public_form() -> None:
    assert public_event(machine.Started(BEN, 4), {}, 0) is None
    assert public_event(machine.Acknowledged(7), {}, 0) is None


SLOW = {
    "found_after": "50ms",
    "join_interval": "20ms",
    "slow_receiver_after": "100ms",
    "unread_limit": 1,
}


def test_a_blocked_window_is_an_event_that_names_the_member() -> None:
    network = InProcessNetwork()
    ann = blocking.join("x", transport=network.open(), config=SLOW, display_name="ann")
    ben = blocking.join("x", transport=network.open(), config=SLOW, display_name="ben")
    with ann, ben:
        ann.wait_for_members(2, 20)
        ann.send_many([b"ben does not read"] * 3, loopback=False)
        while not isinstance(event := ann.receive_event(20), events.WindowBlocked):
            assert event is not None
        assert event.members == (ben.me,)
        assert event.blocked_ns >= 100_000_000
        assert f"waiting for {ben.label(event.members[0])} since " in str(event)
        assert str(event).startswith("send window blocked: waiting for ben (")


def test_an_event_that_nobody_reads_is_logged_in_words(caplog: pytest.LogCaptureFixture) -> None:
    network = InProcessNetwork()
    ann = blocking.join(
        "x", transport=network.open(), config=SLOW, display_name="ann", listen=False
    )
    ben = blocking.join("x", transport=network.open(), config=SLOW, display_name="ben")
    with caplog.at_level(logging.WARNING, "gapless"), ann, ben:
        ann.wait_for_members(2, 20)
        ann.send_many([b"ben does not read"] * 3)
        found = ann.snapshot()
        while "application.event.window_blocked" not in found.counters:
            found = ann.snapshot()
        assert found.blockers[0].name == "ben"
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "[event.window_blocked" in line]
    assert line.startswith("x: send window blocked: waiting for ben (")


def test_a_member_that_left_keeps_its_name_in_the_change_of_view() -> None:
    network = InProcessNetwork()
    with blocking.join(
        "x", transport=network.open(), config=SLOW | {"unread_limit": 16}, display_name="ann"
    ) as ann:
        with blocking.join("x", transport=network.open(), config=SLOW, display_name="ben") as ben:
            ann.wait_for_members(2, 20)
            address = ben.me
            assert address is not None
        while True:
            event = ann.receive_event(20)
            if isinstance(event, events.ViewChange) and event.left:
                break
        assert event.left == (address,)
        assert str(event).endswith(f"left: ben ({address.short})")


def test_the_name_of_a_peer_is_the_best_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    network = InProcessNetwork()
    each: dict[str, Any] = {"config": SLOW | {"unread_limit": 64}}
    ann = blocking.join("x", transport=network.open(), display_name="ann", **each)
    ben = blocking.join(
        "x", transport=network.open(), display_name="ben", durable_name="store", **each
    )
    with ann, ben:
        ann.wait_for_members(2, 20)
        assert ben.me is not None
        short = ben.me.short
        assert ann.label(ben.me) == f"ben ({short})", "a member of the same process"
        # Without the registry of the process, ben is as any member of another process.
        monkeypatch.setattr(member_names, "_LOCAL_NAMES", {})
        assert ann.label(ben.me) == f"store ({short})", "its durable name is in the roster"
        assert ann.snapshot(ben.me).display_name == "ben"
        assert ann.label(ben.me) == f"ben ({short})", "its snapshot has its display name"
        assert ann.snapshot().peers[0].name == "ben"


def test_a_peer_without_a_name_is_called_by_its_locator(monkeypatch: pytest.MonkeyPatch) -> None:
    with threads(2, each={"transport": "mesh"}) as (ann, ben):
        monkeypatch.setattr(member_names, "_LOCAL_NAMES", {})
        assert ben.me is not None
        assert re.fullmatch(rf"127\.0\.0\.1:\d+ \({ben.me.short}\)", ann.label(ben.me))

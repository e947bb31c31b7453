"""Public events: kinds, sentences, and the names of 0.1."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from gapless import events
from gapless.identity import Address, View

ANN, BEN = Address(0xA << 60, 1), Address(0xB << 60, 1)
NAMES = {ANN: "ann", BEN: "ben"}
SAMPLES: dict[str, tuple[tuple[Any, ...], str]] = {
    "view_changed": (
        (View.of(3, ANN), (ANN,), (BEN,), ANN),
        "view 3 with 1 member; joined: ann (a0000000); left: ben (b0000000)",
    ),
    "member_suspected": ((BEN,), "ben (b0000000) is silent and suspected; one more probe is sent"),
    "link_broken": (
        (ANN, BEN),
        "ben (b0000000) does not hear ann (a0000000): one of them is expelled",
    ),
    "expelled": (
        (View.of(4, BEN).id,),
        "expelled: the group continues without this incarnation in view 4",
    ),
    "discovery_failed": (
        ("dns://a.internal:7800", "lookup", "cannot look up a.internal: no such name"),
        (
            "discovery dns://a.internal:7800 failed: cannot look up a.internal: no such name;"
            " correct discover= or seeds=, or run gapless doctor"
        ),
    ),
    "key_mismatch": (
        ("key", "heard 9 datagrams sealed with ring 3f9a…"),
        "heard 9 datagrams sealed with ring 3f9a…",
    ),
    "no_peers_found": (
        (("192.0.2.1:7800 did not answer",),),
        (
            "no other member was found although seeds were given: 192.0.2.1:7800 did not answer;"
            " start a seed or correct seeds=, or pass min_members= to make this an error"
        ),
    ),
    "left_group": ((False,), "left the group, without a confirmation"),
    "window_blocked": (
        ((ANN, BEN), 4, 9, 2_100_000_000),
        (
            "send window blocked: waiting for ann (a0000000), ben (b0000000) since 2.1 s;"
            " 5..9 not acknowledged by all"
        ),
    ),
    "stream_stalled": (
        (BEN, 0, 1_000_000_000),
        (
            "delivery from ben (b0000000) waits for the start of the stream since 1.0 s,"
            " and no member will resend it"
        ),
    ),
    "messages_lost": (
        (BEN, 4, 9),
        "messages 4..9 of ben (b0000000) are lost: the sender has purged them",
    ),
    "messages_discarded": (
        (BEN, 3),
        (
            "3 messages of ben (b0000000) were discarded: the sender left, and earlier messages are"
            " missing"
        ),
    ),
    "messages_undelivered": ((None, 4, 9), "messages 4..9 to the group may not have arrived"),
    "message_oversized": (
        (BEN, 4, 9),
        "a message of ben (b0000000) (4..9) exceeds max_message_bytes and was skipped",
    ),
    "retention_started": (
        ("store", BEN),
        "messages are retained for the absent durable member store (b0000000)",
    ),
    "retention_ended": (
        ("store", BEN, "timeout"),
        "messages are no longer retained for store (b0000000): retention_timeout passed",
    ),
    "retention_full": (
        ("store", BEN),
        "send window full: messages are retained for the absent durable member store (b0000000)",
    ),
}
OLD_NAMES = sorted(events._RENAMED)


def test_every_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == events.EVENTS.keys()


@pytest.mark.parametrize("kind", events.EVENTS)
def test_an_event_is_a_frozen_value_that_explains_itself(kind: str) -> None:
    values, sentence = SAMPLES[kind]
    make: Any = events.EVENTS[kind]
    event = make(*values, names=NAMES)
    assert str(event) == sentence
    assert event == make(*values)  # names are for people, and do not tell events apart
    assert hash(event) == hash(make(*values))
    with pytest.raises(FrozenInstanceError):
        event.names = {}
    assert isinstance(event, events.GroupEvent)
    assert "What to do: " in (inspect.getdoc(make) or "")


def test_a_member_without_a_name_is_shown_by_its_short_id() -> None:
    assert str(events.MemberSuspected(BEN)).startswith("b0000000 is silent")


@pytest.mark.parametrize("old", OLD_NAMES)
def test_names_of_0_1_work_and_warn(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"events.{old} is deprecated: use ") as caught:
        found = getattr(events, old)
    assert found in events.EVENTS.values()
    assert caught[0].filename == __file__


def test_fields_of_0_1_work_and_warn() -> None:
    lost = events.MessagesLost(BEN, 4, 9)
    with pytest.warns(DeprecationWarning, match="event.origin is deprecated: use sender"):
        assert lost.origin == BEN
    with pytest.raises(AttributeError, match="'MessagesLost' object has no attribute 'orgin'"):
        _ = lost.orgin
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = events.Nothing

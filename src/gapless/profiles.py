"""The protocol family: each published protocol is one row of policies, and no code of its own.

The machine in ``protocol/`` reads the row of the profile wherever the generations differ.
``GROUP_PROFILES`` are the rows for messages to the group, ``UNICAST_PROFILES`` the rows for
messages to one member. ``defaults`` are settings that a profile changes unless the user sets them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReleasePolicy(StrEnum):
    """The condition under which a sender purges a message."""

    ACKS = "acks"
    """The acks of all receivers."""
    STABILITY = "stability"
    """A stability message."""


class TailPolicy(StrEnum):
    """The action of a sender while the end of the stream is not known to have arrived."""

    ANNOUNCE = "announce"
    """The sender announces the marks."""
    RESEND_LAST = "resend last"
    """The sender resends the last message if the marks have not moved since the last probe."""
    RESEND_ALL = "resend all"
    """The sender resends every unacknowledged message."""


class NumberingScope(StrEnum):
    """How long seqnos continue before they restart."""

    INCARNATION = "life"
    """For an incarnation of the sender. The value is part of the format of traces."""
    VIEW = "view"
    """For a view."""
    CONNECTION = "connection"
    """For a connection with one member."""


class AckPolicy(StrEnum):
    """The moment at which a receiver acknowledges."""

    COUNTED = "counted"
    """After ``ack_threshold`` messages, or after ``ack_delay``."""
    ASKED = "asked"
    """Only for a message that requests an ack."""
    PACED = "paced"
    """Once for each batch, but at most once every ``min_ack_interval``."""
    EACH = "each"
    """At once, for every frame."""
    PERIODIC = "periodic"
    """Every ``stability_interval``."""


class Profile(NamedTuple):
    """One protocol. With ``naks``, receivers request missing messages."""

    name: str
    release: ReleasePolicy
    tail: TailPolicy
    numbering: NumberingScope
    acks: AckPolicy
    naks: bool
    defaults: Mapping[str, object]
    meaning: str


NAKACK4 = Profile(
    "nakack4",
    ReleasePolicy.ACKS,
    TailPolicy.ANNOUNCE,
    NumberingScope.INCARNATION,
    AckPolicy.COUNTED,
    True,
    {},
    "A fixed window that the acks of all members release; senders wait while it is full.",
)
NAKACK = Profile(
    "nakack",
    ReleasePolicy.STABILITY,
    TailPolicy.ANNOUNCE,
    NumberingScope.INCARNATION,
    AckPolicy.ASKED,
    True,
    {"window": "growing"},
    "A growing window for each sender; a stability message releases what all members have"
    " delivered.",
)
ORDERED = Profile(
    "ordered",
    ReleasePolicy.STABILITY,
    TailPolicy.ANNOUNCE,
    NumberingScope.INCARNATION,
    AckPolicy.ASKED,
    True,
    {"window": "growing", "discard_delivered": True, "xmit_interval": "0s"},
    "Order without retransmission, for a transport that neither loses nor reorders; a lasting gap"
    " is reported.",
)
CLASSIC = Profile(
    "classic",
    ReleasePolicy.STABILITY,
    TailPolicy.ANNOUNCE,
    NumberingScope.VIEW,
    AckPolicy.ASKED,
    True,
    {"window": "growing", "discard_delivered": True},
    "The modes of 2001: seqnos restart with every view, and a message belongs to the view in which"
    " it was sent.",
)
UNICAST3 = Profile(
    "unicast3",
    ReleasePolicy.ACKS,
    TailPolicy.RESEND_LAST,
    NumberingScope.CONNECTION,
    AckPolicy.PACED,
    True,
    {},
    "Paced cumulative acks; the last message is resent when nothing moves; the receiver requests"
    " what it misses.",
)
UNICAST = Profile(
    "unicast",
    ReleasePolicy.ACKS,
    TailPolicy.RESEND_ALL,
    NumberingScope.CONNECTION,
    AckPolicy.EACH,
    False,
    {},
    "Every frame is acknowledged at once; the sender resends everything that is not.",
)
UNICAST2 = Profile(
    "unicast2",
    ReleasePolicy.ACKS,
    TailPolicy.ANNOUNCE,
    NumberingScope.CONNECTION,
    AckPolicy.PERIODIC,
    True,
    {},
    "The receiver requests what it misses, and reports its progress periodically.",
)

GROUP_PROFILES = {row.name: row for row in (NAKACK4, NAKACK, ORDERED, CLASSIC)}
"""The protocols for messages to the whole group, by name."""
UNICAST_PROFILES = {row.name: row for row in (UNICAST3, UNICAST, UNICAST2)}
"""The protocols for messages to one member, by name."""

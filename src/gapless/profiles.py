"""The family: each published protocol is a row of policies, and nothing else.

The machine in ``core/`` reads the row of its profile wherever generations differ; there is no
second copy of anything. ``GROUP_PROFILES`` holds the rows for messages to all, ``UNICAST_PROFILES`` those for
messages to one member. A row's ``defaults`` are the knobs that the profile sets where its user did
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ReleasePolicy = Literal["acks", "stability"]
TailPolicy = Literal["announce", "resend last", "resend all"]
NumberingScope = Literal["life", "view", "connection"]
AckPolicy = Literal["counted", "asked", "paced", "each", "periodic"]


class Profile(NamedTuple):
    """One protocol.

    ``release``: what lets a sender forget a message: the acks of all receivers, or a stability
    message. ``tail``: what a sender does while the end of its stream is not known to have arrived:
    announce its marks, send the last message again (if two looks in a row see the same marks), or
    send everything again. ``numbering``: how long numbers go on: for a life of the member, for a
    view, or for a connection. ``acks``: when a receiver acknowledges: after so many messages or a
    delay (counted), only where a message asks for it (asked), once a batch but not more often than
    the gap between two acks (paced), at once for every frame (each), or now and then (periodic).
    ``naks``: whether a receiver asks for what it misses.
    """

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
    "acks",
    "announce",
    "life",
    "counted",
    True,
    {},
    "A fixed window that the acks of all members release; the sender waits when it is full.",
)
NAKACK = Profile(
    "nakack",
    "stability",
    "announce",
    "life",
    "asked",
    True,
    {"window": "growing"},
    "One growing table for each sender; what everybody has delivered goes when a stability message says so.",
)
ORDERED = Profile(
    "ordered",
    "stability",
    "announce",
    "life",
    "asked",
    True,
    {"window": "growing", "discard_delivered": True, "xmit_interval": "0s"},
    "Order without retransmission, over a transport that neither loses nor reorders; a gap that stays is reported.",
)
CLASSIC = Profile(
    "classic",
    "stability",
    "announce",
    "view",
    "asked",
    True,
    {"window": "growing", "discard_delivered": True},
    "The modes of 2001: numbers restart with every view, and a message belongs to the view it was sent in.",
)
UNICAST3 = Profile(
    "unicast3",
    "acks",
    "resend last",
    "connection",
    "paced",
    True,
    {},
    "Paced cumulative acks; the last message again when nothing moves; the receiver asks for what it misses.",
)
UNICAST = Profile(
    "unicast",
    "acks",
    "resend all",
    "connection",
    "each",
    False,
    {},
    "Every frame is acknowledged at once, and the sender repeats everything until it is.",
)
UNICAST2 = Profile(
    "unicast2",
    "acks",
    "announce",
    "connection",
    "periodic",
    True,
    {},
    "The receiver asks for what it misses and reports now and then what it has delivered.",
)

GROUP_PROFILES = {row.name: row for row in (NAKACK4, NAKACK, ORDERED, CLASSIC)}
"""The protocols for messages to the whole group, by name."""
UNICAST_PROFILES = {row.name: row for row in (UNICAST3, UNICAST, UNICAST2)}
"""The protocols for messages to one member, by name."""

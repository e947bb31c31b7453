"""What happened at a seal, for the checkers: sealed datagrams, and attempts to open datagrams."""

from __future__ import annotations

from typing import NamedTuple

FORGED = "no member sealed the datagram"
KEY = "the key is not in the keyring of the receiver, or is retired"
OWN = "the receiver itself sealed the datagram"
REPLAY = "the receiver has opened the datagram before"
OLD = "the datagram is older than the replay window"

UNFIT = (FORGED, KEY, OWN, REPLAY, OLD)
"""Why a datagram must not open."""


class SealedDatagram(NamedTuple):
    """A datagram that a member has sealed.

    ``fields`` are group, node and incarnation of the sender, and ``path`` the flags that select a
    replay window. ``opened`` is a digest of the datagram in the form in which it opens.
    """

    key_id: int
    secret: bytes
    fields: bytes
    path: int
    counter: int
    opened: bytes


class OpeningAttempt(NamedTuple):
    """An attempt of a member to open a datagram.

    Attributes:
        unfit: Why the datagram must not open, one of ``UNFIT``; empty if the datagram must open.
        rejection: The reason of the rejection; empty if the datagram opened.
        changed: Whether a rejection changed more than a counter.
        intact: Whether an opened datagram has the bytes that the sender sealed.
        has_key: Whether the receiver opens datagrams of the key that the datagram names.
        decryptions: How many keys were tried.
    """

    unfit: str
    rejection: str
    changed: bool
    intact: bool
    has_key: bool
    decryptions: int

"""Events of a group, as ``group.events()`` and ``receive_event()`` yield them between messages.

An event stands in the order of the messages around it. ``kind`` is the stable name of an event in
metrics and in the output of ``gapless listen --json``. ``str(event)`` is a sentence for people. An
unread event is logged if ``LOGGED_EVENTS`` contains the class of the event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import warn as _warn

from gapless.identity import Address, View, ViewId, member_label as _member_label
from gapless.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "EVENTS",
    "LOGGED_EVENTS",
    "DiscoveryFailed",
    "ExpelledFromGroup",
    "GroupEvent",
    "KeyMismatch",
    "LeftGroup",
    "LinkBroken",
    "MemberSuspected",
    "MessageOversized",
    "MessagesDiscarded",
    "MessagesLost",
    "MessagesUndelivered",
    "NoPeersFound",
    "RetentionEnded",
    "RetentionFull",
    "RetentionStarted",
    "StreamStalled",
    "ViewChange",
    "WindowBlocked",
]


@dataclass(frozen=True, slots=True)
class _EventBase:
    """The part of every event: the kind, and the names of mentioned members."""

    kind: ClassVar[str]
    _renamed: ClassVar[dict[str, str]] = {}

    names: Mapping[Address, str] = field(
        default_factory=dict, kw_only=True, compare=False, repr=False
    )
    """Names of members as far as known here; ``str(event)`` shows them."""

    def _label(self, member: Address) -> str:
        return _member_label(member, self.names.get(member, ""))

    def _labels(self, members: Iterable[Address]) -> str:
        return ", ".join(map(self._label, members))

    def __getattr__(self, name: str) -> Any:
        new = self._renamed.get(name)
        if new is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        _warn(f"event.{name} is deprecated: use {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)


@dataclass(frozen=True, slots=True)
class ViewChange(_EventBase):
    """The group has a new view: the following messages come from the members of ``view``.

    ``joined`` are the new members, ``left`` the members of the previous view that are gone. ``me``
    is the address of this member, which changes if this member was expelled and joined again.

    What to do: update everything that depends on the list of members, such as a leader or a
    partitioning.
    """

    kind: ClassVar[str] = "view_changed"

    view: View
    joined: tuple[Address, ...]
    left: tuple[Address, ...]
    me: Address

    def __str__(self) -> str:
        parts = [f"view {self.view.id.number} with {format_count(len(self.view), 'member')}"]
        for word, members in (("joined", self.joined), ("left", self.left)):
            if members:
                parts.append(f"{word}: {self._labels(members)}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class MemberSuspected(_EventBase):
    """``member`` was silent for ``suspect_after`` and is probed once more before its expulsion.

    What to do: nothing. A live member answers; otherwise a ViewChange without the member follows.
    Frequent suspicions of live members mean overloaded machines: raise ``suspect_after``.
    """

    kind: ClassVar[str] = "member_suspected"

    member: Address

    def __str__(self) -> str:
        return f"{self._label(self.member)} is silent and suspected; one more probe is sent"


@dataclass(frozen=True, slots=True)
class LinkBroken(_EventBase):
    """``receiver`` does not hear ``sender``, though both live; one of them is expelled for a while.

    What to do: repair the network between the two, for example a firewall rule for one direction.
    The expelled member comes back by itself.
    """

    kind: ClassVar[str] = "link_broken"

    sender: Address
    receiver: Address

    def __str__(self) -> str:
        return (
            f"{self._label(self.receiver)} does not hear {self._label(self.sender)}: one of them"
            " is expelled"
        )


@dataclass(frozen=True, slots=True)
class ExpelledFromGroup(_EventBase):
    """The group continues without this incarnation, from ``view`` on.

    An expulsion follows a pause, a partition, or a call of ``expel``. Unless the member joined with
    ``rejoin=False``, the member joins again as a new incarnation, and a ViewChange with the new
    ``me`` follows. Messages sent in between are not received, except by a durable member.

    What to do: restore all data that depends on every message, for example with ``state=`` of
    ``join``.
    """

    kind: ClassVar[str] = "expelled"

    view: ViewId

    def __str__(self) -> str:
        return f"expelled: the group continues without this incarnation in view {self.view.number}"


@dataclass(frozen=True, slots=True)
class LeftGroup(_EventBase):
    """This member has left, as requested. No event follows.

    ``confirmed`` is false if ``leave_timeout`` passed before the group installed a view without
    this member; the failure detectors of the others then remove the member.

    What to do: nothing.
    """

    kind: ClassVar[str] = "left_group"

    confirmed: bool

    def __str__(self) -> str:
        return "left the group" if self.confirmed else "left the group, without a confirmation"


@dataclass(frozen=True, slots=True)
class WindowBlocked(_EventBase):
    """``members`` have not acknowledged message ``low + 1`` for ``slow_receiver_after``.

    Messages up to ``high`` wait for these members in the send window; once the window is full,
    sends wait. ``blocked_ns`` is how long the window has not moved. The event repeats while the
    window is blocked. In profiles without acknowledgements the sender asks the members first; if
    all have the message, the event names the coordinator, which has not announced it.

    What to do: find out why the members do not read: ``group.snapshot(member)`` answers even if an
    application hangs. With ``on_slow_receiver = "expel"`` the group expels slow members.
    """

    kind: ClassVar[str] = "window_blocked"

    members: tuple[Address, ...]
    low: int
    high: int
    blocked_ns: int

    def __str__(self) -> str:
        return (
            f"send window blocked: waiting for {self._labels(self.members)} since "
            f"{_seconds(self.blocked_ns)}; {self.low + 1}..{self.high} not acknowledged by all"
        )


@dataclass(frozen=True, slots=True)
class StreamStalled(_EventBase):
    """Delivery of messages of ``sender`` waits for ``seqno``, and no member will resend it.

    Streams stall only if retransmission is switched off, as in the profile ``ordered``. A lost last
    message is a stall, too: a sender whose window does not move says so. ``seqno``
    is 0 if the start of the stream is missing. ``stalled_ns`` is how long delivery has waited; the
    event repeats every ``stall_after``.

    What to do: set ``on_stall = "retransmit"``, or choose a profile with retransmission.
    """

    kind: ClassVar[str] = "stream_stalled"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender"}

    sender: Address
    seqno: int
    stalled_ns: int

    def __str__(self) -> str:
        missing = f"message {self.seqno}" if self.seqno else "the start of the stream"
        return (
            f"delivery from {self._label(self.sender)} waits for {missing} since"
            f" {_seconds(self.stalled_ns)}, and no member will resend it"
        )


@dataclass(frozen=True, slots=True)
class MessagesLost(_EventBase):
    """Messages ``first .. last`` of ``sender`` will not arrive: the sender has purged them.

    Messages are lost to a durable member that was absent for longer than ``retention_timeout``, and
    to a joining member if the received state does not cover the last messages of a departed member.

    What to do: get the data elsewhere, or record the gap.
    """

    kind: ClassVar[str] = "messages_lost"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender"}

    sender: Address
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"messages {self.first}..{self.last} of {self._label(self.sender)} are lost:"
            " the sender has purged them"
        )


@dataclass(frozen=True, slots=True)
class MessagesDiscarded(_EventBase):
    """``count`` received messages of ``sender`` were dropped, because earlier messages are missing.

    The sender left before this member received the missing messages; other members may have
    delivered them.

    What to do: treat the last messages of the sender as unsent, as after an earlier failure.
    """

    kind: ClassVar[str] = "messages_discarded"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender", "message_count": "count"}

    sender: Address
    count: int

    def __str__(self) -> str:
        sender = self._label(self.sender)
        count, were = format_count(self.count, "message"), "was" if self.count == 1 else "were"
        return (
            f"{count} of {sender} {were} discarded: the sender left,"
            " and earlier messages are missing"
        )


@dataclass(frozen=True, slots=True)
class MessagesUndelivered(_EventBase):
    """Own messages ``first .. last`` may not have arrived: the stream has ended.

    ``to`` is the receiver; None for the group. The receiver left, or this member was expelled or
    closed, before the messages were acknowledged. In the profile ``classic`` seqnos restart with
    every view, and ``view`` is the number of the view of these; otherwise ``view`` is 0.

    What to do: send the messages again if the application tolerates duplicates.
    """

    kind: ClassVar[str] = "messages_undelivered"

    to: Address | None
    first: int
    last: int
    view: int = 0

    def __str__(self) -> str:
        to = "the group" if self.to is None else self._label(self.to)
        of = f" of view {self.view}" if self.view else ""
        return f"messages {self.first}..{self.last}{of} to {to} may not have arrived"


@dataclass(frozen=True, slots=True)
class MessageOversized(_EventBase):
    """A fragmented message of ``sender`` exceeds ``max_message_bytes`` here and was skipped.

    ``first .. last`` are the seqnos of the fragments.

    What to do: set ``max_message_bytes`` to the same value at all members.
    """

    kind: ClassVar[str] = "message_oversized"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender"}

    sender: Address
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"a message of {self._label(self.sender)} ({self.first}..{self.last}) exceeds"
            " max_message_bytes and was skipped"
        )


@dataclass(frozen=True, slots=True)
class RetentionStarted(_EventBase):
    """The durable member ``name`` is absent; from now on messages are retained for this member.

    ``last_address`` is the address of the last incarnation.

    What to do: nothing, if the member returns within ``retention_timeout``.
    """

    kind: ClassVar[str] = "retention_started"
    _renamed: ClassVar[dict[str, str]] = {"last": "last_address"}

    name: str
    last_address: Address

    def __str__(self) -> str:
        member = _member_label(self.last_address, self.name)
        return f"messages are retained for the absent durable member {member}"


@dataclass(frozen=True, slots=True)
class RetentionEnded(_EventBase):
    """Messages are no longer retained for the durable member ``name``.

    ``reason`` is ``back`` (the member returned), ``timeout`` (``retention_timeout`` passed) or
    ``capacity`` (the window was full and ``on_retention_full`` is ``release``).

    What to do: nothing after ``back``. After ``timeout`` and ``capacity`` the returning member
    misses messages, and gets MessagesLost.
    """

    kind: ClassVar[str] = "retention_ended"
    _renamed: ClassVar[dict[str, str]] = {"last": "last_address"}

    name: str
    last_address: Address
    reason: str

    def __str__(self) -> str:
        why = {
            "back": "the member returned",
            "timeout": "retention_timeout passed",
            "capacity": "the window was full",
        }
        member = _member_label(self.last_address, self.name)
        return f"messages are no longer retained for {member}: {why.get(self.reason, self.reason)}"


@dataclass(frozen=True, slots=True)
class RetentionFull(_EventBase):
    """The send window is full of messages retained for the absent durable member ``name``.

    Sends wait until the member returns or ``retention_timeout`` passes. The event occurs once for
    each absence.

    What to do: start the durable member, or set ``on_retention_full = "release"``.
    """

    kind: ClassVar[str] = "retention_full"
    _renamed: ClassVar[dict[str, str]] = {"last": "last_address"}

    name: str
    last_address: Address

    def __str__(self) -> str:
        member = _member_label(self.last_address, self.name)
        return f"send window full: messages are retained for the absent durable member {member}"


@dataclass(frozen=True, slots=True)
class DiscoveryFailed(_EventBase):
    """The discovery source ``source`` has failed: ``text`` describes the failure.

    ``reason`` is the short name of the failure, such as ``lookup`` for a name that does not
    resolve. The event occurs once for each source and reason, is always logged as a warning, and
    belongs to ``snapshot().health`` while the failure repeats or this member is alone.

    What to do: correct the seeds, the name or the interface; ``gapless doctor`` checks the network.
    """

    kind: ClassVar[str] = "discovery_failed"

    source: str
    reason: str
    text: str

    def __str__(self) -> str:
        return (
            f"discovery {self.source} failed: {self.text}; correct discover= or seeds=, or run"
            " gapless doctor"
        )


@dataclass(frozen=True, slots=True)
class NoPeersFound(_EventBase):
    """This member is alone although seeds were given; ``found`` says what each seed answered.

    The event occurs once, 3 s after the member was left alone, is always logged as a warning, and
    belongs to ``snapshot().health`` until another member is found. Discovery continues.

    What to do: start a seed, or correct the list. ``min_members=`` of ``join`` turns loneliness
    into an error.
    """

    kind: ClassVar[str] = "no_peers_found"

    found: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"no other member was found although seeds were given: {'; '.join(self.found)}; start"
            " a seed or correct seeds=, or pass min_members= to make this an error"
        )


@dataclass(frozen=True, slots=True)
class KeyMismatch(_EventBase):
    """This member is alone and hears datagrams that it cannot use: ``text`` says why.

    ``reason`` is ``"key"`` (sealed with another key), ``"sealed"`` (this member has no keys),
    ``"unsealed"`` (the others have none), ``"retired"`` (members whose datagrams open here do not
    answer: they may have retired the key that this member seals with, or not have it yet),
    ``"certificate"`` (a certificate was refused, here or by others), or, where keyrings differ
    about the identities that may join, ``"signed"``, ``"unsigned"`` or ``"identity"``. The event
    occurs once for each reason, is always logged as a warning, and belongs to
    ``snapshot().health`` while this member is alone.

    What to do: give every member of the group a copy of one keyring file (``gapless keys check``
    compares files), with ``keys=`` or ``GAPLESS_KEYS``; after ``"certificate"``, valid certificates
    of one authority (docs/guides/operating/certificates.md).
    """

    kind: ClassVar[str] = "key_mismatch"

    reason: str
    text: str

    def __str__(self) -> str:
        return self.text


GroupEvent = (
    ViewChange
    | MemberSuspected
    | LinkBroken
    | ExpelledFromGroup
    | LeftGroup
    | WindowBlocked
    | StreamStalled
    | MessagesLost
    | MessagesDiscarded
    | MessagesUndelivered
    | MessageOversized
    | RetentionStarted
    | RetentionEnded
    | RetentionFull
    | DiscoveryFailed
    | NoPeersFound
    | KeyMismatch
)
"""Any event; ``isinstance(item, GroupEvent)`` distinguishes events from messages."""

EVENTS: dict[str, type[GroupEvent]] = {event.kind: event for event in GroupEvent.__args__}
"""The class of each kind."""

LOGGED_EVENTS = (
    ExpelledFromGroup,
    WindowBlocked,
    StreamStalled,
    MessagesLost,
    MessagesDiscarded,
    MessagesUndelivered,
    MessageOversized,
    RetentionFull,
)
"""Events that are logged as warnings if the application does not read them."""

_RENAMED = {
    "Discarded": "MessagesDiscarded",
    "Expelled": "ExpelledFromGroup",
    "Held": "RetentionStarted",
    "HoldFull": "RetentionFull",
    "Left": "LeftGroup",
    "Lost": "MessagesLost",
    "Oversized": "MessageOversized",
    "Pinned": "WindowBlocked",
    "Released": "RetentionEnded",
    "Stalled": "StreamStalled",
    "Suspected": "MemberSuspected",
    "Undelivered": "MessagesUndelivered",
}
"""Names of 0.1, kept until 0.3."""


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.1f} s"


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    _warn(f"events.{name} is deprecated: use {new}", DeprecationWarning, stacklevel=2)
    return globals()[new]


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__"])

"""Events of a group: what ``group.events()`` and ``receive_event()`` yield beside messages.

An event stands in the order of the messages around it. ``kind`` is its stable name, under which
metrics count it and ``gapless listen --json`` prints it. ``str(event)`` is a sentence for people.
An event that nobody reads is logged if :data:`LOGGED_EVENTS` contains its class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import warn as _warn

from gapless.identity import Address, View, ViewId, member_label as _member_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "EVENTS",
    "LOGGED_EVENTS",
    "ExpelledFromGroup",
    "GroupEvent",
    "LeftGroup",
    "MemberSuspected",
    "MessageOversized",
    "MessagesDiscarded",
    "MessagesLost",
    "MessagesUndelivered",
    "RetentionEnded",
    "RetentionFull",
    "RetentionStarted",
    "StreamStalled",
    "ViewChange",
    "WindowBlocked",
]


@dataclass(frozen=True, slots=True)
class _EventBase:
    """Part of every event: its kind, and the names of the members that it mentions."""

    kind: ClassVar[str]
    _renamed: ClassVar[dict[str, str]] = {}

    names: Mapping[Address, str] = field(
        default_factory=dict, kw_only=True, compare=False, repr=False
    )
    """Names of members as far as they are known here; ``str(event)`` shows them."""

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
    """The group has a new view: the messages that follow come from the members of ``view``.

    ``joined`` are new in it, ``left`` are no longer in it. ``me`` is the address of this member,
    which differs from before if this member was expelled and joined again.

    What to do: update whatever depends on the list of members, such as a leader or a partitioning.
    """

    kind: ClassVar[str] = "view_changed"

    view: View
    joined: tuple[Address, ...]
    left: tuple[Address, ...]
    me: Address

    def __str__(self) -> str:
        parts = [f"view {self.view.id.number} with {len(self.view)} members"]
        for word, members in (("joined", self.joined), ("left", self.left)):
            if members:
                parts.append(f"{word}: {self._labels(members)}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class MemberSuspected(_EventBase):
    """``member`` was silent for ``suspect_after``; it is probed once more before it is expelled.

    What to do: nothing. If the member is alive it answers; otherwise a ViewChange without it
    follows. Frequent suspicions of live members mean overloaded machines: raise ``suspect_after``.
    """

    kind: ClassVar[str] = "member_suspected"

    member: Address

    def __str__(self) -> str:
        return f"{self._label(self.member)} is silent, and is probed once more"


@dataclass(frozen=True, slots=True)
class ExpelledFromGroup(_EventBase):
    """The group continues without this incarnation, from ``view`` on.

    It happens after a pause, a partition, or an eviction by ``expel``. Unless the member joined
    with ``rejoin=False`` it joins again as a new incarnation, and a ViewChange with the new ``me``
    follows. It does not receive messages sent between the two, unless it is durable.

    What to do: restore what depends on every message, for example with ``state=`` of ``join``.
    """

    kind: ClassVar[str] = "expelled"

    view: ViewId

    def __str__(self) -> str:
        return f"expelled: the group continues without this incarnation in view {self.view.number}"


@dataclass(frozen=True, slots=True)
class LeftGroup(_EventBase):
    """This member has left, as requested. It is the last event.

    ``confirmed`` is false if ``leave_timeout`` passed before the group installed a view without
    this member; the failure detector of the others then removes it.

    What to do: nothing.
    """

    kind: ClassVar[str] = "left_group"

    confirmed: bool

    def __str__(self) -> str:
        return "left the group" if self.confirmed else "left the group, which did not confirm it"


@dataclass(frozen=True, slots=True)
class WindowBlocked(_EventBase):
    """``members`` have not acknowledged ``low + 1`` for ``slow_receiver_after``.

    Messages up to ``high`` wait for them in the send window, and sends wait once it is full.
    ``blocked_ns`` is how long the window has not moved. The event repeats while that lasts; with
    the profiles without acknowledgements only the coordinator knows the members.

    What to do: find out why these members do not read: ``group.snapshot(member)`` answers even if
    their application hangs. With ``on_slow_receiver = "expel"`` the group continues without them.
    """

    kind: ClassVar[str] = "window_blocked"

    members: tuple[Address, ...]
    low: int
    high: int
    blocked_ns: int

    def __str__(self) -> str:
        waits_for = self._labels(self.members) or "acknowledgements"
        return (
            f"send window blocked: waiting for {waits_for} since {_seconds(self.blocked_ns)};"
            f" {self.low + 1}..{self.high} not acknowledged by all"
        )


@dataclass(frozen=True, slots=True)
class StreamStalled(_EventBase):
    """Delivery of messages of ``sender`` waits for ``seqno``, and no member will resend it.

    It happens only if retransmission is switched off, as in the profile ``ordered``. ``seqno`` is 0
    if the start of the stream is missing. ``stalled_ns`` is how long delivery has waited; the event
    repeats every ``stall_after``.

    What to do: set ``on_stall = "retransmit"``, or choose a profile that retransmits.
    """

    kind: ClassVar[str] = "stream_stalled"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender"}

    sender: Address
    seqno: int
    stalled_ns: int

    def __str__(self) -> str:
        missing = f"message {self.seqno}" if self.seqno else "the start of its stream"
        return (
            f"delivery from {self._label(self.sender)} waits for {missing} since"
            f" {_seconds(self.stalled_ns)}, and no member will resend it"
        )


@dataclass(frozen=True, slots=True)
class MessagesLost(_EventBase):
    """Messages ``first .. last`` of ``sender`` will not arrive: the sender no longer has them.

    It happens to a durable member that was absent for longer than its messages were retained, and
    to a joining member whose state does not cover the last messages of a member that left.

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
            " the sender no longer has them"
        )


@dataclass(frozen=True, slots=True)
class MessagesDiscarded(_EventBase):
    """``count`` received messages of ``sender`` were dropped, because earlier ones are missing.

    The sender left, and no remaining member has the missing messages.

    What to do: treat the last messages of that sender as unsent, as if it had failed earlier.
    """

    kind: ClassVar[str] = "messages_discarded"
    _renamed: ClassVar[dict[str, str]] = {"origin": "sender", "message_count": "count"}

    sender: Address
    count: int

    def __str__(self) -> str:
        sender = self._label(self.sender)
        return (
            f"{self.count} messages of {sender} were discarded: it left, and earlier ones"
            " are missing"
        )


@dataclass(frozen=True, slots=True)
class MessagesUndelivered(_EventBase):
    """Own messages ``first .. last`` may not have arrived: their stream has ended.

    ``to`` is the member that they were sent to; None for the group. The member left, or this
    member was expelled or closed, before the messages were acknowledged.

    What to do: send them again if the application can tolerate duplicates.
    """

    kind: ClassVar[str] = "messages_undelivered"

    to: Address | None
    first: int
    last: int

    def __str__(self) -> str:
        to = "the group" if self.to is None else self._label(self.to)
        return f"messages {self.first}..{self.last} to {to} may not have arrived"


@dataclass(frozen=True, slots=True)
class MessageOversized(_EventBase):
    """A fragmented message of ``sender`` exceeds ``max_message_bytes`` here and was skipped.

    Its fragments have the seqnos ``first .. last``.

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
    """The durable member ``name`` is absent; messages are retained for it from now on.

    ``last_address`` is the address of its last incarnation.

    What to do: nothing, if it returns within ``retention_timeout``.
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

    ``reason`` is ``back`` (it returned), ``timeout`` (``retention_timeout`` passed) or ``capacity``
    (the window was full and ``on_retention_full`` is ``release``).

    What to do: nothing after ``back``. After the others the member misses messages when it returns,
    and gets MessagesLost.
    """

    kind: ClassVar[str] = "retention_ended"
    _renamed: ClassVar[dict[str, str]] = {"last": "last_address"}

    name: str
    last_address: Address
    reason: str

    def __str__(self) -> str:
        why = {
            "back": "it returned",
            "timeout": "retention_timeout passed",
            "capacity": "the window was full",
        }
        member = _member_label(self.last_address, self.name)
        return f"messages are no longer retained for {member}: {why.get(self.reason, self.reason)}"


@dataclass(frozen=True, slots=True)
class RetentionFull(_EventBase):
    """The send window is full of messages retained for the absent durable member ``name``.

    Sends wait until it returns or ``retention_timeout`` passes. The event occurs once for each
    absence.

    What to do: start that member, or set ``on_retention_full = "release"``.
    """

    kind: ClassVar[str] = "retention_full"
    _renamed: ClassVar[dict[str, str]] = {"last": "last_address"}

    name: str
    last_address: Address

    def __str__(self) -> str:
        member = _member_label(self.last_address, self.name)
        return f"send window full: messages are retained for the absent durable member {member}"


GroupEvent = (
    ViewChange
    | MemberSuspected
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
)
"""Any event; ``isinstance(item, GroupEvent)`` tells events from messages."""

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

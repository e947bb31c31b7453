"""The script: all that happens in a simulated world and is not the default.

By default nothing happens and the network delivers every frame once, after ``delay_ns``. A script
lists the rest: what the applications and the members do and when (*actions*), what becomes of
single frames, by their stable names (*fates*), and which timers fire late. A seeded run writes down
its own script, and playing that script again repeats the run. Because nothing in it refers to a
position or a count of events, any line of a script can be taken out and the others still mean the
same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import Mode
from gapless.faults.faults import CORRUPT, FORGED, INTACT, Copy, DriftingClock

if TYPE_CHECKING:
    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import FrameName

ZERO = "zero"
"""The digest of a group that has just begun: every stream starts at 0."""


class Start(NamedTuple):
    """A life begins: a process that is not yet a member of any view.

    Where members find each other by themselves, it begins to join: under the ``durable`` name, if
    it has one, and asking for the application's state if ``state``. With ``stores`` its application
    has a disk, which outlasts its lives, and the life acknowledges what is on it.
    """

    at_ns: int
    who: str
    durable: str = ""
    state: bool = False
    stores: bool = False


class Leave(NamedTuple):
    """The application at ``who`` leaves the group in good order; its life ends when the group has taken note."""

    at_ns: int
    who: str


class Install(NamedTuple):
    """``who`` is told view ``number``; ``digest`` is empty, :data:`ZERO`, or the key of an earlier :class:`SaveDigest`."""

    at_ns: int
    who: str
    number: int
    members: tuple[str, ...]
    digest: str = ""


class SaveDigest(NamedTuple):
    """The digest of ``who`` is taken down under ``key``, for views to come."""

    at_ns: int
    who: str
    key: str


class ApplyDigest(NamedTuple):
    """``who`` is told the digest noted under ``key``, without a view: streams that wait for their start begin there."""

    at_ns: int
    who: str
    key: str


class Send(NamedTuple):
    """The application at ``who`` sends messages, to the group or to the node ``to``, if that is in its view."""

    at_ns: int
    who: str
    payloads: tuple[bytes, ...]
    wait: bool = True
    timeout_ns: int | None = None
    loopback: bool | None = None
    to: str = ""
    mode: Mode = Mode.ORDERED


class Cancel(NamedTuple):
    """The application at ``who`` cancels its ``nth`` send (from 1)."""

    at_ns: int
    who: str
    nth: int


class Close(NamedTuple):
    """``who`` has no more to say to the node ``to``: the connection may end when it is idle."""

    at_ns: int
    who: str
    to: str


class Tune(NamedTuple):
    """``who`` goes on with another ``xmit_interval``; zero switches retransmission off."""

    at_ns: int
    who: str
    xmit_interval_ns: int


class Pause(NamedTuple):
    """``who`` stops: it neither receives nor ticks; datagrams wait in its socket buffer as long as there is room."""

    at_ns: int
    who: str


class Resume(NamedTuple):
    """``who`` goes on."""

    at_ns: int
    who: str


class Crash(NamedTuple):
    """The life of ``who`` ends without a word."""

    at_ns: int
    who: str


class Read(NamedTuple):
    """From now on the application at ``who`` takes ``per_message_ns`` for each message (0: none at all)."""

    at_ns: int
    who: str
    per_message_ns: int


PARTITION, ONE_WAY, HEAL = "partition", "one-way", "heal"
"""The marks of a partition: nothing crosses between the two sides, or nothing leaves the side that is named."""


class PartitionChange(NamedTuple):
    """Something that the world takes note of: ``partition``, ``one-way`` or ``heal``, with the members of one side.

    Where members make their own views, the side is really cut off from one mark to the other.
    """

    at_ns: int
    who: str
    what: str


Action = (
    Start
    | Leave
    | Install
    | SaveDigest
    | ApplyDigest
    | Send
    | Cancel
    | Close
    | Tune
    | Pause
    | Resume
    | Crash
    | Read
    | PartitionChange
)


class Fate(NamedTuple):
    """What becomes of one frame: its copies, none if it is lost. ``None`` for bytes means the bytes that were sent."""

    copies: tuple[tuple[int, bytes | None, str], ...]
    reason: str

    @classmethod
    def of(cls, copies: list[Copy], reason: str) -> Fate:
        """Return the fate that a chain of faults decided on."""
        return cls(
            tuple(
                (delay_ns, datagram if mark in _OTHER_BYTES else None, mark)
                for delay_ns, datagram, mark in copies
            ),
            reason,
        )

    @property
    def lost(self) -> bool:
        """Whether nothing of the frame arrives."""
        return not self.copies


LOST = Fate((), "loss")
"""The fate of a frame that is simply lost."""

_OTHER_BYTES = (CORRUPT, FORGED)


@dataclass(slots=True)
class Script:
    """A run in writing.

    ``seed`` feeds the members' own randomness; from ``calm_ns`` on no fault may strike;
    ``only_loss`` promises that frames are lost or nothing, so that the cost of repairs can be held
    against the losses. With ``fifo`` no frame overtakes another on its link, and no buffer of a
    process that stands still overflows: the links are like TCP. ``rare`` names the switches of
    :mod:`gapless.protocol.buggify` that are on.

    With ``membership`` nobody is told a view: members find each other and agree on their views by
    themselves. Actions then name nodes, not lives: what is to be done is done by whatever life the
    node has at that time.
    """

    seed: int = 0
    delay_ns: int = 1_000_000
    calm_ns: int = 0
    clocks: dict[str, DriftingClock] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    fates: dict[FrameName, Fate] = field(default_factory=dict)
    late_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    only_loss: bool = False
    fifo: bool = False
    rare: tuple[str, ...] = ()
    membership: bool = False

    def nodes(self) -> list[str]:
        """Return the letters of every node that has a life in the script, in order of appearance."""
        return list(
            dict.fromkeys(
                action.who.rstrip("'") for action in self.actions if isinstance(action, Start)
            )
        )

    def messages(self) -> int:
        """Return how many messages the script sends."""
        return sum(len(action.payloads) for action in self.actions if isinstance(action, Send))


class ScriptedFates:
    """The fault that plays a script: it gives every frame that has a fate exactly that fate."""

    name = "script"

    def __init__(self, fates: dict[FrameName, Fate]) -> None:
        self.fates = fates

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Replace the copies by those of the frame's fate."""
        fate = self.fates.get(crossing.name)
        if fate is None:
            return copies
        return [
            Copy(delay_ns, crossing.datagram if datagram is None else datagram, mark)
            for delay_ns, datagram, mark in fate.copies
        ]


def payload(who: str, number: int, size_bytes: int) -> bytes:
    """Return message ``number`` of ``who``: as unlike the others as its size allows."""
    text = b"%s%d|" % (who.encode(), number)
    return (text * (size_bytes // len(text) + 1))[:size_bytes]


def initial_actions(names: tuple[str, ...], *, at_ns: int = 0, digest: str = ZERO) -> list[Action]:
    """Return the actions with which a group of ``names`` begins: everybody starts and gets view 1."""
    return [
        *(Start(at_ns, name) for name in names),
        *(Install(at_ns, name, 1, names, digest) for name in names),
    ]


__all__ = [
    "HEAL",
    "INTACT",
    "LOST",
    "ONE_WAY",
    "PARTITION",
    "ZERO",
    "Action",
    "ApplyDigest",
    "Cancel",
    "Close",
    "Crash",
    "Fate",
    "Install",
    "Leave",
    "PartitionChange",
    "Pause",
    "Read",
    "Resume",
    "SaveDigest",
    "Script",
    "ScriptedFates",
    "Send",
    "Start",
    "Tune",
    "initial_actions",
    "payload",
]

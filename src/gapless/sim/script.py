"""The script of a simulated run: actions, fates of single frames, and late timers.

Without a script no process starts and the network delivers every frame once, after ``delay_ns``. A
script lists every deviation:

* *actions*: the inputs of processes and applications, each with its time and its subject;
* *fates*: the copies of single frames that arrive, each frame addressed by its stable name;
* late timers, each addressed by member and number.

A seeded run records its own script; playing the recorded script repeats the run. No entry refers to
a position or to a count of events. Therefore any entry can be removed, and the others keep their
meaning. The shrinker depends on independent entries.

Each action class is named after its call. ``who`` is the subject: the name of an incarnation
(``a``, after a restart ``a'``), or of a node where members make their own views.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import CORRUPT, FORGED, INTACT, Copy, DriftingClock
from gapless.protocol.membership.failure_detector import DeathEvidence

if TYPE_CHECKING:
    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import FrameName

ZERO = "zero"
"""The key of the digest of a new group: every stream starts at 0."""


class StartProcess(NamedTuple):
    """Start an incarnation outside of any view.

    Where members make their own views, the incarnation joins the group: under the ``durable`` name,
    unless the name is empty, and with a request for the application's state if ``state``. With
    ``stores`` the application has a disk that outlasts its incarnations, and the member
    acknowledges a message only after the message is on the disk.
    """

    at_ns: int
    who: str
    durable: str = ""
    state: bool = False
    stores: bool = False


class LeaveGroup(NamedTuple):
    """Leave the group in good order. The incarnation ends when a view excludes the member."""

    at_ns: int
    who: str


class InstallView(NamedTuple):
    """Install view ``number``.

    ``digest`` is empty, ``ZERO``, or the key of an earlier ``SaveDigest``.
    """

    at_ns: int
    who: str
    number: int
    members: tuple[str, ...]
    digest: str = ""


class SaveDigest(NamedTuple):
    """Save the digest of ``who`` under ``key``, for later views."""

    at_ns: int
    who: str
    key: str


class ApplyDigest(NamedTuple):
    """Apply the digest saved under ``key`` without a view: streams without a start begin there."""

    at_ns: int
    who: str
    key: str


class SendMessages(NamedTuple):
    """Send messages to the group, or to the node ``to`` if the sender's view contains the node.

    Without a ``mode`` a message is sent as ``SetNextMode`` says, by default ordered.
    """

    at_ns: int
    who: str
    payloads: tuple[bytes, ...]
    wait: bool = True
    timeout_ns: int | None = None
    loopback: bool | None = None
    to: str = ""
    mode: DeliveryMode | None = DeliveryMode.ORDERED


class SetNextMode(NamedTuple):
    """Switch the mode of the next message to the group that is sent without a mode."""

    at_ns: int
    who: str
    mode: DeliveryMode


class CancelSend(NamedTuple):
    """Cancel send number ``nth`` of the incarnation (from 1)."""

    at_ns: int
    who: str
    nth: int


class CloseConnection(NamedTuple):
    """Close the connection to the node ``to`` once the connection is idle."""

    at_ns: int
    who: str
    to: str


class SetRetransmitInterval(NamedTuple):
    """Change the member's ``xmit_interval``; zero switches retransmission off."""

    at_ns: int
    who: str
    xmit_interval_ns: int


class PauseProcess(NamedTuple):
    """Suspend the process: no input reaches the member.

    Datagrams wait in the socket buffer while there is room.
    """

    at_ns: int
    who: str


class ResumeProcess(NamedTuple):
    """Resume a paused process."""

    at_ns: int
    who: str


class CrashProcess(NamedTuple):
    """End the incarnation without notice."""

    at_ns: int
    who: str


class NoteEvidence(NamedTuple):
    """Give ``who`` a hint of its runtime that the process at the node ``to`` is gone.

    The hint may be false, except for a refused datagram: a running process refuses none.
    """

    at_ns: int
    who: str
    to: str
    evidence: DeathEvidence


class SetReadDelay(NamedTuple):
    """Set the read delay of the application to ``per_message_ns`` (0 reads at once)."""

    at_ns: int
    who: str
    per_message_ns: int


PARTITION, ONE_WAY, HEAL = "partition", "one-way", "heal"
"""The kinds of partition changes: cut both directions, cut only outgoing traffic, or heal."""


class ChangePartition(NamedTuple):
    """Cut the nodes ``who`` off, or heal their partition, as ``what`` says.

    Where members make their own views, the network drops frames between the two sides. In other
    runs the action only marks a partition made by the fault chain.
    """

    at_ns: int
    who: str
    what: str


Action = (
    StartProcess
    | LeaveGroup
    | InstallView
    | SaveDigest
    | ApplyDigest
    | SendMessages
    | SetNextMode
    | CancelSend
    | CloseConnection
    | SetRetransmitInterval
    | PauseProcess
    | ResumeProcess
    | CrashProcess
    | NoteEvidence
    | SetReadDelay
    | ChangePartition
)
"""Any action of a script."""


class Fate(NamedTuple):
    """The fate of a frame: the copies that arrive, or no copies if the frame is lost.

    A copy is a delay, the bytes (``None`` for unchanged bytes) and a mark.
    """

    copies: tuple[tuple[int, bytes | None, str], ...]
    reason: str

    @classmethod
    def of(cls, copies: list[Copy], reason: str) -> Fate:
        """Return the fate that a chain of faults decided."""
        return cls(
            tuple(
                (delay_ns, datagram if mark in _OTHER_BYTES else None, mark)
                for delay_ns, datagram, mark in copies
            ),
            reason,
        )

    @property
    def lost(self) -> bool:
        """Whether no copy of the frame arrives."""
        return not self.copies


LOST = Fate((), "loss")
"""The fate of a lost frame."""

_OTHER_BYTES = (CORRUPT, FORGED)


@dataclass(slots=True)
class Script:
    """Everything that determines a run, except the settings of the group.

    ``seed`` feeds the members' own randomness. No fault strikes from ``calm_ns`` on. ``only_loss``
    promises loss as the only fault, so checks can compare the cost of repairs with the losses (L4).
    With ``fifo`` the links behave like TCP: no frame overtakes another on its link, and the socket
    buffer of a paused process never overflows. ``rare`` names the rare branches of
    ``gapless.protocol.buggify`` that are switched on.

    With ``membership`` the script installs no view: members find each other and agree on their
    views. Actions then name nodes, and apply to the current incarnation of the node.
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
        """Return the name of every node of the script, in order of appearance."""
        return list(
            dict.fromkeys(
                action.who.rstrip("'")
                for action in self.actions
                if isinstance(action, StartProcess)
            )
        )

    def messages(self) -> int:
        """Return the number of messages sent by the script."""
        return sum(
            len(action.payloads) for action in self.actions if isinstance(action, SendMessages)
        )


class ScriptedFates:
    """The fault that replays a script: a frame with a fate in the script gets exactly its fate."""

    name = "script"

    def __init__(self, fates: dict[FrameName, Fate]) -> None:
        self.fates = fates

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Return the copies of the frame's fate, or ``copies`` for a frame without a fate."""
        fate = self.fates.get(crossing.name)
        if fate is None:
            return copies
        return [
            Copy(delay_ns, crossing.datagram if datagram is None else datagram, mark)
            for delay_ns, datagram, mark in fate.copies
        ]


def payload(who: str, number: int, size_bytes: int) -> bytes:
    """Return generated message ``number`` of ``who``, distinct as far as the size allows."""
    text = b"%s%d|" % (who.encode(), number)
    return (text * (size_bytes // len(text) + 1))[:size_bytes]


def initial_actions(names: tuple[str, ...], *, at_ns: int = 0, digest: str = ZERO) -> list[Action]:
    """Return the first actions of a group: each of ``names`` starts and installs view 1."""
    return [
        *(StartProcess(at_ns, name) for name in names),
        *(InstallView(at_ns, name, 1, names, digest) for name in names),
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
    "CancelSend",
    "ChangePartition",
    "CloseConnection",
    "CrashProcess",
    "Fate",
    "InstallView",
    "LeaveGroup",
    "NoteEvidence",
    "PauseProcess",
    "ResumeProcess",
    "SaveDigest",
    "Script",
    "ScriptedFates",
    "SendMessages",
    "SetNextMode",
    "SetReadDelay",
    "SetRetransmitInterval",
    "StartProcess",
    "initial_actions",
    "payload",
]

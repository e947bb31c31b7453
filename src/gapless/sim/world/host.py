"""A host: a node of the simulated world, with its current incarnation.

A host models everything between the member and the world: the process (with pauses, crashes and
restarts), its clock, its socket with a limited buffer, and the reading application.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import DriftingClock
from gapless.faults.frame_names import incarnation_name, node_number
from gapless.identity import Address
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Refused
from gapless.protocol.member import Member
from gapless.rng import split
from gapless.sim.world.application import SimulatedApplication

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.script import Action, StartProcess
    from gapless.sim.world.network import CopyInFlight
    from gapless.wire import Datagram


class Host:
    """A node: ``member`` is the current incarnation, or None while no process runs."""

    __slots__ = (
        "address",
        "application",
        "buffer",
        "buffered_bytes",
        "clock",
        "disk",
        "disk_queue",
        "due_ns",
        "durable",
        "epoch_ns",
        "has_no_drift",
        "incarnation",
        "incarnation_name",
        "late_until_ns",
        "member",
        "member_model",
        "name",
        "next_mode",
        "next_start",
        "next_wake_ns",
        "node",
        "paused",
        "per_message_ns",
        "postponed",
        "reading",
        "received",
        "slow",
        "stores_deliveries",
        "tickets",
        "ticks",
        "unread",
        "wakes",
        "wants_state",
    )

    def __init__(self, name: str, clock: DriftingClock) -> None:
        self.name = name
        self.node = node_number(name)
        self.clock = clock
        self.epoch_ns = clock.epoch_ns
        self.has_no_drift = not clock.drift_ppm
        self.incarnation = 0
        self.member: Endpoint | Member | None = None
        self.durable = ""
        self.wants_state = False
        self.stores_deliveries = False
        self.disk: dict[Address, int] = {}
        self.next_start: StartProcess | None = None
        self.application = SimulatedApplication()
        self._reset()

    def _reset(self) -> None:
        self.address = Address(self.node, self.incarnation)
        self.incarnation_name = incarnation_name(self.address)
        self.member_model: MemberModel | None = None
        self.paused = False
        self.buffer: deque[tuple[CopyInFlight, Datagram | None]] = deque()
        self.buffered_bytes = 0
        self.due_ns: int | None = None
        self.next_wake_ns: int | None = None
        self.wakes = 0
        self.late_until_ns = 0
        self.ticks = 0
        self.postponed: list[Action] = []
        self.slow = False
        self.per_message_ns = 0
        self.unread = 0
        self.reading = False
        self.disk_queue: dict[Address, int] = {}
        self.received: dict[str, list[bytes]] = {}
        self.tickets: list[int] = []
        self.next_mode: DeliveryMode | None = None

    def take_next_mode(self, sent: Ready, *, to_one: bool) -> DeliveryMode:
        """Return the mode of a send without a mode; a sent message to the group uses it up."""
        if to_one or self.next_mode is None:
            return DeliveryMode.ORDERED
        mode = self.next_mode
        if not any(isinstance(event, Refused) for event in sent.events):
            self.next_mode = None
        return mode

    def start(
        self,
        name: str,
        group: int,
        config: Config,
        seed: int,
        *,
        tracing: bool,
        rarely: RareBranchHook | None = None,
    ) -> Endpoint:
        """Start the incarnation called ``name``."""
        self.incarnation = 1 + name.count("'")
        self._reset()
        rng = split(seed, f"member {name}")
        self.member = Endpoint(self.address, group, config, rng, tracing=tracing, rarely=rarely)
        return self.member

    def next_incarnation_name(self) -> str:
        """Return the name of the next incarnation."""
        return self.name + "'" * self.incarnation

    def start_self_managed(
        self,
        name: str,
        group: int,
        config: Config,
        seed: int,
        *,
        rarely: RareBranchHook | None = None,
    ) -> Member:
        """Start incarnation ``name`` of a member that makes its own views."""
        waiting, slow, per_message_ns = self.postponed, self.slow, self.per_message_ns
        self.incarnation = 1 + name.count("'")
        self._reset()
        self.postponed, self.slow, self.per_message_ns = waiting, slow, per_message_ns
        participant = self.member = Member(
            self.address,
            group,
            config,
            split(seed, f"member {name}"),
            name=self.durable,
            locator=self.name.encode(),
            tracing=True,
            rarely=rarely,
        )
        return participant

    def crash(self) -> list[CopyInFlight]:
        """End the incarnation; return the copies in the socket buffer."""
        lost = [copy for copy, _ in self.buffer]
        self.member = None
        self.postponed = []
        self.buffer.clear()
        self.buffered_bytes = 0
        self.due_ns = self.next_wake_ns = None
        return lost

    def local_ns(self, true_ns: int) -> int:
        """Return the time of the host's own clock."""
        return self.clock.local_ns(true_ns)

    def is_quiet(self, by_node: dict[int, Host]) -> bool:
        """Return whether the member has nothing left to send or to receive."""
        member = self.member
        assert member is not None
        if self.paused or not member.is_quiet or member.outbound.tail_due_ns:
            return False
        for origin, stream in member.inbound.items():
            other = by_node[origin.node]
            if stream.window is None:
                return False
            if other.address == origin and other.member is not None:
                theirs = other.member.outbound
                same = theirs.epoch == stream.epoch
                if (
                    self.address in theirs.acks
                    and same
                    and stream.window.delivered < theirs.window.high
                ):
                    return False
        return True

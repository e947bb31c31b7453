"""Required situations for a sweep of groups with their own views.

A sweep without an occurrence of every required situation has tested less than expected, and fails.
See ``gapless.sim.coverage.stream_coverage`` for the situations of streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.events import (
    Expelled,
    Left,
    RetentionBlocking,
    RetentionReleased,
    SlowReceivers,
    StateReceived,
    StateWanted,
    Suspected,
)
from gapless.sim.oracle.checker import InvariantChecker
from gapless.wire.frames import Join, MergeAsk

if TYPE_CHECKING:
    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import Label
    from gapless.identity import Address, View
    from gapless.protocol.events import Event
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.sim.script import ChangePartition
    from gapless.wire import Frame

REQUIRED_MEMBERSHIP_COVERAGE = (
    "concurrent first members",
    "many joins in one view",
    "leave and join in one view",
    "join request forwarded",
    "restart with the same address",
    "coordinator leaves",
    "coordinator crash",
    "coordinator crash during a join",
    "coordinator crash during a merge",
    "two suspects at once with a full window",
    "suspect proves to be alive",
    "frozen member expelled and back",
    "view message lost and repaired",
    "joiner during loss at full window",
    "merge of two",
    "merge of three",
    "expelled member readmitted",
    "asymmetric partition",
    "partition during a merge",
    "durable member away and back",
    "retention_timeout over",
    "window full because of an absent member",
    "pin expelled",
    "state transfer under load",
    "state provider ends",
    "leave_timeout over",
)
"""Every required situation of a membership sweep."""


class MembershipCoverage(InvariantChecker):
    """Records the situations of ``REQUIRED_MEMBERSHIP_COVERAGE`` in a run, in ``seen``."""

    id = "must gather"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.seen: set[str] = set()
        self._suspects: dict[Address, dict[Address, int]] = {}
        self._expelled: set[int] = set()
        self._lost_views: set[tuple[str, int]] = set()
        self._pins: set[Address] = set()
        self._merging_ns: dict[Address, int] = {}
        self._providing: dict[Address, set[Address]] = {}

    def record(self, what: str) -> None:
        """Note an observation."""
        assert what in REQUIRED_MEMBERSHIP_COVERAGE, what
        self.seen.add(what)

    def _living(self) -> list[MemberModel]:
        return [model for model in self.model.members.values() if model.alive]

    def _is_full(self, members: frozenset[Address]) -> bool:
        """Return whether a member has its maximum number of outstanding messages."""
        models = (self.model.members[member] for member in members if member in self.model.members)
        return any(
            model.stream.high - model.stream.marks.low >= self.config.capacity
            for model in models
            if model.alive
        )

    # From the world

    def on_partition_change(self, action: ChangePartition) -> None:
        """A partition begins."""
        if action.what == "heal":
            return
        side = set(action.who.split(","))
        sides = [model.name.rstrip("'") in side for model in self._living()]
        if action.what == "one-way" and any(sides) and not all(sides):
            self.record("asymmetric partition")
        if any(self._is_merging(model) for model in self._living()):
            self.record("partition during a merge")

    def _is_merging(self, model: MemberModel) -> bool:
        asked_ns = self._merging_ns.get(model.address)
        return (
            asked_ns is not None
            and self.oracle.t_ns - asked_ns <= self.config.join_confirm_timeout_ns
        )

    def on_frame_lost(self, crossing: Crossing, label: Label) -> None:
        """The network lost a frame."""
        target = crossing.target
        if label.kind == "VIEW":
            self._lost_views.add((target, label.first))
        ends = {target, crossing.source.rstrip("'")}
        for model in self._living():
            new = model.name.rstrip("'") in ends and any(
                not inbound.open for inbound in model.inbound.values()
            )
            if new and self._is_full(model.view_members):
                self.record("joiner during loss at full window")

    # From the oracle

    def incarnation_started(self, model: MemberModel) -> None:
        """An incarnation begins to look for a group."""
        others = [other for other in self._living() if other is not model]
        if others and all(other.view is None for other in others):
            self.record("concurrent first members")

    def incarnation_ended(self, model: MemberModel) -> None:
        """An incarnation ends."""
        peers = self._providing.pop(model.address, set())
        if getattr(model.member, "phase", "over") == "over":
            return
        if any(
            self.model.members[peer].alive and self.model.members[peer].transferring
            for peer in peers
        ):
            self.record("state provider ends")
        if (
            model.view is None
            or model.view.members[0] != model.address
            or len(model.view.members) < 2
        ):
            return
        self.record("coordinator crash")
        if any(other.view is None for other in self._living()):
            self.record("coordinator crash during a join")
        if self._is_merging(model):
            self.record("coordinator crash during a merge")

    def control_frame_in(self, model: MemberModel, sender: Address, frame: Frame) -> None:
        """A relayed join request arrives."""
        if isinstance(frame, Join) and frame.entry.address != sender:
            self.record("join request forwarded")

    def control_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """A merge begins."""
        if isinstance(frame, MergeAsk):
            self._merging_ns[model.address] = self.oracle.t_ns

    def event(self, model: MemberModel, event: Event) -> None:
        """An event is reported to the application."""
        if isinstance(event, Suspected):
            suspects = self._suspects.setdefault(model.address, {})
            suspects[event.member] = self.oracle.t_ns
            recent_ns = self.oracle.t_ns - self.config.suspect_after_ns
            at_once = [member for member, at_ns in suspects.items() if at_ns >= recent_ns]
            if len(at_once) > 1 and self._is_full(model.view_members):
                self.record("two suspects at once with a full window")
        elif isinstance(event, Expelled):
            self._expelled.add(model.address.node)
        elif isinstance(event, Left):
            self._left(model, event)
        elif isinstance(event, RetentionReleased) and event.reason == "timeout":
            self.record("retention_timeout over")
        elif isinstance(event, RetentionBlocking) or (
            isinstance(event, RetentionReleased) and event.reason == "capacity"
        ):
            self.record("window full because of an absent member")
        elif isinstance(event, StateWanted):
            self._providing.setdefault(model.address, set()).add(event.peer)
        elif (
            isinstance(event, StateReceived)
            and event.provider is not None
            and self._has_held(model)
        ):
            self.record("state transfer under load")
        elif isinstance(event, SlowReceivers) and self.config.on_slow_receiver == "expel":
            self._pins.update(event.members)

    @staticmethod
    def _has_held(model: MemberModel) -> bool:
        return any(inbound.delivered > inbound.start for inbound in model.inbound.values())

    def _left(self, model: MemberModel, event: Left) -> None:
        if not event.confirmed:
            self.record("leave_timeout over")
        elif model.view is not None and model.view.members[0] == model.address:
            self.record("coordinator leaves")

    def view(self, model: MemberModel, view: View) -> None:
        """A view is about to be installed."""
        before = () if model.view is None else model.view.members
        if (model.name.rstrip("'"), view.id.number) in self._lost_views:
            self.record("view message lost and repaired")
        if model.view is None and len(view.members) > 1 and model.address.node in self._expelled:
            self.record("frozen member expelled and back")
        if any(member in model.departed_inbound for member in view.members):
            self.record("expelled member readmitted")
        if self._pins.intersection(before).difference(view.members):
            self.record("pin expelled")
        nodes = {member.node: member.incarnation for member in before}
        if any(
            nodes.get(member.node, member.incarnation) < member.incarnation
            for member in view.members
        ):
            self.record("restart with the same address")
        self._check_durable_retention(model)
        if view.id.coordinator == model.address:
            self._check_view_change(model, view)

    def _check_durable_retention(self, model: MemberModel) -> None:
        before, now = model.roster, getattr(model.member, "pending", None)
        if before is not None and now is not None:
            absent = {place.name for place in before.absent}
            if any(place.name in absent for place in now.entries):
                self.record("durable member away and back")

    def _check_view_change(self, model: MemberModel, view: View) -> None:
        """Classify the change of a view, when the coordinator installs the view."""
        before = set() if model.view is None else set(model.view.members)
        models = [
            self.model.members[member] for member in view.members if member in self.model.members
        ]
        new = [member for member in view.members if member not in before]
        if model.view is not None and len(new) >= 3:
            self.record("many joins in one view")
        gone = [self.model.members[member] for member in before - set(view.members)]
        if new and any(one.leaving_ns is not None for one in gone):
            self.record("leave and join in one view")
        parts = self._count_partitions(
            [other for other in models if other.view is not None and other.view.id != view.id]
        )
        if parts > 1:
            self.record("merge of two")
        if parts > 2:
            self.record("merge of three")

    @staticmethod
    def _count_partitions(models: list[MemberModel]) -> int:
        """Return the number of disjoint groups of the members in ``models``."""
        parts: list[frozenset[Address]] = []
        for model in models:
            members = model.view_members
            joined = [part for part in parts if part & members]
            parts = [part for part in parts if not part & members] + [members.union(*joined)]
        return len(parts)

    def close(self) -> None:
        """Look for suspects at the end of the run."""
        for address, suspects in self._suspects.items():
            model = self.model.members[address]
            if model.alive and any(member in model.view_members for member in suspects):
                self.record("suspect proves to be alive")

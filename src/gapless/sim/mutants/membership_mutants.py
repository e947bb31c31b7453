"""Planted bugs in membership: joins, views, failure detection, merges, retention, state."""

from __future__ import annotations

from gapless.sim.mutants.planting import Mutant

MEMBERSHIP_MUTANTS = (
    # Views
    Mutant(
        "number used twice",
        "a coordinator does not raise the number with every view",
        "gapless.protocol.membership.coordinator:Coordinator.next_number",
        "max(self._highest, self._membership.view_number, *others) + 1",
        "max(0, self._membership.view_number, *others) + 1",
        membership=True,
    ),
    Mutant(
        "view for others",
        "a roster without this member is accepted",
        "gapless.protocol.membership.membership:Membership._on_roster",
        "if not named:",
        "if not named and self.roster is None:",
        membership=True,
    ),
    Mutant(
        "view again",
        "a view with the current number is installed again",
        "gapless.protocol.membership.membership:Membership._on_roster",
        "elif roster.id.number > self.view_number and self._follows(roster, sender):",
        "elif roster.id.number >= self.view_number and self._follows(roster, sender):",
        membership=True,
    ),
    Mutant(
        "old life stays",
        "a new incarnation joins beside the old incarnation of its node",
        "gapless.protocol.membership.coordinator:Coordinator._remaining_entries",
        "if p.address not in gone and p.address.node not in nodes\n",
        "if p.address not in gone and (nodes or True)\n",
        membership=True,
    ),
    Mutant(
        "joiners for show",
        "a confirmed joiner is not announced to the others",
        "gapless.protocol.membership.coordinator:Coordinator._commit",
        "            m.view_transfer.broadcast(made, m.roster, out)\n",
        "            pass\n",
        membership=True,
    ),
    Mutant(
        "no takeover",
        "a dead member still counts as the acting coordinator",
        "gapless.protocol.membership.membership:Membership.acting_coordinator",
        "gone = self.failure_detector.dead, self.leaving, self.moved_away",
        "gone = self.leaving, self.moved_away",
        membership=True,
    ),
    # Leaving
    Mutant(
        "leaves in a hurry",
        "a member asks to leave before all acks have arrived",
        "gapless.protocol.member:Member._finish",
        "            and endpoint.all_acknowledged\n",
        "",
        membership=True,
    ),
    # Failure detection
    Mutant(
        "no heartbeat",
        "an idle member sends no heartbeats",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_interval",
        "                self._send_alive(watcher, out)\n",
        "                pass\n",
        membership=True,
    ),
    Mutant(
        "never dead",
        "a probed member without an answer does not count as dead",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_interval",
        "            self.dead.add(member)\n",
        "            pass\n",
        membership=True,
    ),
    Mutant(
        "dead at once",
        "a silent member counts as dead without a probe",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_interval",
        "            if at_ns + config.verify_timeout_ns <= now_ns\n",
        "            if at_ns <= now_ns\n",
        membership=True,
        character="gentle",
    ),
    Mutant(
        "nobody speaks",
        "a member does not report a dead member",
        "gapless.protocol.membership.membership:Membership.report_dead",
        "out.transmit(to, Suspect(self.me, tuple(gone[at : at + MAX_NAMED])))",
        "pass",
        membership=True,
    ),
    Mutant(
        "a hint is proof",
        "the end of a process proves the death of a member before the member is asked",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_evidence",
        "if evidence is not DeathEvidence.REFUSED or not (",
        "if evidence is DeathEvidence.CLOSED or not (",
        membership=True,
    ),
    Mutant(
        "a hint is a suspicion",
        "a hint of the runtime makes a member suspect",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_evidence",
        "            self.watch(member, out)\n",
        "            self.probe((member,), out)\n",
        membership=True,
    ),
    # Merging
    Mutant(
        "merge alone",
        "the leader of a merge omits the members of the other views",
        "gapless.protocol.membership.merge:MergeProtocol._conclude",
        "entries = self._merged_entries([m.roster, *rosters])",
        "entries = self._merged_entries([m.roster])",
        membership=True,
    ),
    Mutant(
        "merge without me",
        "coordinators send no beacons",
        "gapless.protocol.membership.merge:MergeProtocol.on_timer",
        "        out.transmit(ANYONE, "
        "Beacon(m.me, m.roster.id, tuple(sorted(self._foreign)[:_MAX_HEARD])))\n",
        "",
        membership=True,
    ),
    Mutant(
        "held for ever",
        "a coordinator that agreed to a merge creates no view until the merge",
        "gapless.protocol.membership.merge:MergeProtocol.blocks_views",
        "return now_ns < self._views_blocked_until_ns or self._reply_deadline_ns is not None",
        "return self._views_blocked_until_ns > 0 or self._reply_deadline_ns is not None",
        membership=True,
    ),
    # Retention and state transfer
    Mutant(
        "place in name only",
        "messages retained for an absent durable member are purged",
        "gapless.protocol.stream.durable_retention:DurableRetention._update_minimum",
        "min((position.acked for position in self.retained.values()), default=None)",
        "None",
        membership=True,
    ),
    Mutant(
        "stranger in its own place",
        "a returning durable member starts like any joiner",
        "gapless.protocol.member:Member._returning_members",
        "for entry in new if entry.name in last}",
        "for entry in new if entry.name in last and not entry.name}",
        membership=True,
    ),
    Mutant(
        "kept for ever",
        "retention for a durable member never expires",
        "gapless.protocol.membership.coordinator:Coordinator._absent_entries",
        "limit_ns = now_ns - self.config.retention_timeout_ns",
        "limit_ns = -self.config.retention_timeout_ns",
        membership=True,
    ),
    Mutant(
        "state and message",
        "messages covered by the state are delivered again",
        "gapless.protocol.state_transfer.held_deliveries:HeldDeliveries._behind_mark",
        "        if last <= mark:\n            return ()\n",
        "        if last <= mark:\n            return (delivery,)\n",
        membership=True,
    ),
    Mutant(
        "acknowledged before it is stored",
        "a storing member acknowledges delivered messages, not stored ones",
        "gapless.protocol.stream.inbound:InboundStream.acknowledge",
        "                seqno = min(seqno, self.stored)",
        "                pass",
        membership=True,
    ),
    Mutant(
        "the disk counts for nothing",
        "a stream begins at the sender's start although more is stored on disk",
        "gapless.protocol.stream.inbound:InboundStream._create_window",
        "        start = max(start, self.delivered_before or 0)\n",
        "        start = max(start, self.delivered_before or 0) "
        "if self.stored is None else start\n",
        membership=True,
    ),
    Mutant(
        "done without the place",
        "an acknowledged send completes without the ack of an absent durable member",
        "gapless.protocol.stream.outbound:OutboundStream._purge",
        "            upto = known = min(upto, self.retention.minimum)",
        "            upto = min(upto, self.retention.minimum)",
        membership=True,
    ),
    Mutant(
        "nothing waits for the state",
        "a joiner delivers messages before the state",
        "gapless.protocol.state_transfer.held_deliveries:HeldDeliveries.take",
        "if self.waiting:",
        "if False:",
        membership=True,
    ),
)

SCENARIO_MUTANTS = (
    Mutant(
        "dead is dead",
        "a dead member that answers stays dead",
        "gapless.protocol.membership.failure_detector:FailureDetector.on_traffic",
        "            self.dead.discard(member)\n",
        "            pass\n",
        membership=True,
    ),
)
"""Planted bugs that need a rare story: each has a scenario in the place of a hunt."""

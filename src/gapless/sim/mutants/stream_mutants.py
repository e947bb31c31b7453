"""The first planted bugs: in the window, in acks, gaps, repairs, flow control and identity."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted bug: in function ``target``, the text ``old`` becomes ``new``.

    It is hunted under ``profile``, or under whatever profile the seeds draw; where ``membership``
    says so, in groups that make their own views.
    """

    name: str
    bug: str
    target: str
    old: str
    new: str
    profile: str = ""
    membership: bool = False


STREAM_MUTANTS = (
    # The window
    Mutant(
        "ceiling+1",
        "a fixed window takes one message more than its capacity",
        "gapless.protocol.stream.window:FixedWindow.ceiling",
        "low + self.capacity",
        "low + self.capacity + 1",
    ),
    Mutant(
        "ceiling-1",
        "a fixed window takes one message less than its capacity",
        "gapless.protocol.stream.window:FixedWindow.ceiling",
        "low + self.capacity",
        "low + max(1, self.capacity - 1)",
        "nakack4",
    ),
    Mutant(
        "take over a gap",
        "delivery goes on behind a missing message",
        "gapless.protocol.stream.window:Window.take",
        "start, end = self.delivered + 1, run.last\n            if run.first > start:\n                break\n",
        "start, end = max(self.delivered + 1, run.first), run.last\n",
    ),
    Mutant(
        "refusal moves high",
        "a message that was refused still counts as the highest seen",
        "gapless.protocol.stream.window:Window._add_between",
        "        if first > last:\n",
        "        self.high = max(self.high, run.last)\n        if first > last:\n",
        "nakack4",
    ),
    Mutant(
        "duplicate stored",
        "a run that overlaps what is stored is stored whole",
        "gapless.protocol.stream.window:Window._add_between",
        "in run.parts(self.missing_in(first, last))",
        "in [run.part(first, last)]",
    ),
    Mutant(
        "bytes leak",
        "erased messages still count against the byte limit",
        "gapless.protocol.stream.window:Window._erase",
        "            self.stored_bytes -= runs[at].size_bytes\n",
        "",
    ),
    # Acks
    Mutant(
        "purge at maximum",
        "the window is purged when the first member has acknowledged, not the last",
        "gapless.protocol.stream.acks:AckTable._raise_minimum",
        "min(self._acks.values()",
        "max(self._acks.values()",
    ),
    Mutant(
        "ack goes back",
        "an old ack that arrives late lowers the entry",
        "gapless.protocol.stream.acks:AckTable.on_ack",
        "before is None or seqno <= before",
        "before is None",
    ),
    Mutant(
        "ack of high",
        "the receiver acknowledges what it has seen, not what it has delivered",
        "gapless.protocol.stream.inbound:InboundStream.acknowledge",
        "Ack(self.origin, seqno,",
        "Ack(self.origin, window.high,",
    ),
    Mutant(
        "departed still counts",
        "the ack of a member that left is still waited for",
        "gapless.protocol.stream.acks:AckTable.set_members",
        "{member: self._acks.get(member, start) for member in members}",
        "{**self._acks, **{member: self._acks.get(member, start) for member in members}}",
    ),
    Mutant(
        "self does not count",
        "the sender purges what it has not delivered itself",
        "gapless.protocol.stream.outbound:OutboundStream.install",
        "self.acks.set_members(members, high)",
        "self.acks.set_members([member for member in members if member != self.me], high)",
        "nakack4",
    ),
    Mutant(
        "no second ack",
        "an announcement does not make the receiver repeat an ack that may have been lost",
        "gapless.protocol.stream.inbound:InboundStream.on_tail",
        'self.ack_now = tail.start is not None or self.profile.acks != "asked"',
        "self.ack_now = tail.start is not None",
    ),
    # Gaps and tails
    Mutant(
        "no grace",
        "a gap is asked for in the moment it is seen",
        "gapless.protocol.stream.loss_detector:LossDetector.on_gap",
        "self.due_ns = now_ns + self.grace_ns",
        "self.due_ns = now_ns",
    ),
    Mutant(
        "no rest",
        "a question is repeated at every pass",
        "gapless.protocol.stream.loss_detector:LossDetector.due_naks",
        "resting = [(asked.first, asked.last) for asked in still if asked.retry_ns > now_ns]",
        "resting = []\n        still = []",
        "nakack4",
    ),
    Mutant(
        "asks once",
        "a question is never repeated",
        "gapless.protocol.stream.loss_detector:LossDetector.due_naks",
        "(asked.first, asked.last) for asked in still if asked.retry_ns > now_ns",
        "(asked.first, asked.last) for asked in still",
    ),
    Mutant(
        "forgets new gaps",
        "a gap that appears while another is open is not remembered",
        "gapless.protocol.stream.loss_detector:LossDetector._schedule",
        "self._watched_upto = highest",
        "pass",
        "nakack4",
    ),
    Mutant(
        "asks one too many",
        "a nak names a message that was not announced",
        "gapless.protocol.stream.inbound:InboundStream.send_naks",
        "known = max(self.window.high, self.announced_high)",
        "known = max(self.window.high, self.announced_high) + 1",
    ),
    Mutant(
        "tail unheard",
        "what an announcement says is missing is not believed",
        "gapless.protocol.stream.inbound:InboundStream.on_tail",
        "self.announced_high = max(self.announced_high, tail.high)",
        "pass",
    ),
    Mutant(
        "tail once",
        "the tail is announced a single time",
        "gapless.protocol.stream.outbound:OutboundStream.announce_tail",
        "self._tail_ns = out.now_ns + self._tail_interval_ns",
        "self._tail_ns = None",
    ),
    Mutant(
        "tail too short",
        "the announcement names what is purged as the end",
        "gapless.protocol.stream.outbound:OutboundStream._send_tail",
        "Tail(self.me, low, high, None",
        "Tail(self.me, low, low, None",
    ),
    # Repairs
    Mutant(
        "repairs too much",
        "a repair sends the whole run where a part was asked for",
        "gapless.protocol.stream.window:Window.get",
        "found.append(run.part(max(first, run.first), min(last, run.last)))",
        "found.append(run)",
        "nakack4",
    ),
    Mutant(
        "repairs too little",
        "the first range of a nak is overlooked",
        "gapless.protocol.stream.outbound:OutboundStream.on_nak",
        "ranges.clip(asked, self.window.low + 1, self.window.high)",
        "ranges.clip(asked[1:] or asked, self.window.low + 1, self.window.high)",
        "nakack4",
    ),
    Mutant(
        "suppressed for ever",
        "what was repaired once is never repaired again",
        "gapless.protocol.stream.retransmit:RetransmitHandler.plan_repairs",
        "now_ns - done.at_ns < self.suppress_ns",
        "done.at_ns <= now_ns",
    ),
    Mutant(
        "no suppression",
        "every nak is answered, however often it is repeated",
        "gapless.protocol.stream.retransmit:RetransmitHandler.plan_repairs",
        "wanted = ranges.subtract(asked, ranges.merge(done))",
        "wanted = list(asked)",
    ),
    Mutant(
        "budget never renewed",
        "what was spent on repairs is never forgotten",
        "gapless.protocol.stream.retransmit:RetransmitHandler.spend_budget",
        "            self._spent_bytes = 0\n",
        "",
        "nakack4",
    ),
    Mutant(
        "gone too far",
        "the answer for what is purged names what is still there",
        "gapless.protocol.stream.outbound:OutboundStream.on_nak",
        "Gone(self.me, self.window.low,",
        "Gone(self.me, self.window.high,",
    ),
    # Flow control
    Mutant(
        "no wake-up by acks",
        "an ack frees room, but nobody tells the sends that wait",
        "gapless.protocol.stream.outbound:OutboundStream.release",
        "        self.flush(out, reason)\n",
        "",
    ),
    Mutant(
        "no wake-up by views",
        "a departure frees room, but the window is not purged",
        "gapless.protocol.stream.outbound:OutboundStream.install",
        'self.release(out, "view")',
        "pass",
        "nakack4",
    ),
    Mutant(
        "hole by cancel",
        "a send that gives up uses up a number",
        "gapless.protocol.stream.outbound:OutboundStream.give_up",
        "        out.emit(event)\n",
        "        out.emit(event)\n        self.window.high += 1\n",
    ),
    Mutant(
        "credit leaks",
        "half of what the application has consumed is not given back",
        "gapless.protocol.stream.flow_control:DeliveryCredit.refund",
        "self.outstanding - messages",
        "self.outstanding - messages // 2",
    ),
    # Identity and integrity
    Mutant(
        "old life counts",
        "a frame of an older incarnation is taken for one of the present",
        "gapless.protocol.dispatch:FrameDispatcher.on_datagram",
        "stream = self._endpoint.inbound.get(sender)",
        "inbound = self._endpoint.inbound.items()\n"
        "        stream = next((s for o, s in inbound if o.node == sender.node), None)",
    ),
    Mutant(
        "checksum ignored",
        "a damaged datagram is believed",
        "gapless.protocol.endpoint:decode",
        "    if crc32(memoryview(datagram)[_PREAMBLE.size : covered], flags) != checksum:\n",
        "    if False:\n",
    ),
    Mutant(
        "pieces run on",
        "pieces of one message are put into the next",
        "gapless.protocol.stream.reassembly:Reassembler.clear",
        "self._fragments, self._held_bytes, self._first, self._state = [], 0, 0, _NONE",
        "self._held_bytes, self._first, self._state = 0, 0, _NONE",
    ),
)
"""Bugs that most profiles would have in common."""

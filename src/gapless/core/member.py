"""The machine: one member of one group.

Every input (a datagram, a send, a view, the time) returns one ``Ready``; nothing is called back. Time, randomness and
bytes come in from outside, so the same code runs over sockets, in the simulator and in exhaustive search.

On sending: outbound.py. On reception: the datagram is decoded; what is not for this group, or not from a member in its
present incarnation, is a counted drop that changes nothing; then each frame goes to the stream it speaks of.

On a view: departed members' streams end, their remaining consecutive messages are delivered, and what lies behind a gap
is counted as discarded (I-08). New members' streams start where the digest says, or else where their sender says:
it tells them (I-22), and they ask until it has.

Every interval: see timers.py; each timer is handled by the half that it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core import timers
from gapless.core.context import RECEIVED, Context
from gapless.core.credit import Credit
from gapless.core.inbound import Inbound
from gapless.core.outbound import Outbound
from gapless.core.pieces import Pieces
from gapless.core.ready import Delivery, Discarded, Ready, Refused, ViewInstalled
from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX
from gapless.run import NOT_BACK, PIECE
from gapless.wire.codec import decode
from gapless.wire.frames import Ack, Data, Nak, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.core.window import Window
    from gapless.identity import Address, Digest, View
    from gapless.run import Run
    from gapless.wire.frames import Frame

_ACKS_PER_SHARE = 4
"""How many acks a sender gets, at the least, for its share of the receive buffer."""
_MOST_FORMER = 1024
"""Departed streams of which the end is remembered, in case the same life comes back."""


class Member:
    """One member: give it inputs, work through the ``Ready`` that each returns."""

    def __init__(self, me: Address, group: int, config: Config, rng: Random, *, tracing: bool = False) -> None:
        if not all(0 <= number <= U64_MAX for number in (*me, group)):
            raise LocalProtocolError(f"address {me} or group {group:x} does not fit the wire: use 64-bit numbers")
        self.me = me
        self.group = group
        self.config = config
        self.view: View | None = None
        self.outbound = Outbound(me, config)
        self.inbound: dict[Address, Inbound] = {}
        self._rng = rng
        self._context = Context(me, group, config.max_frame_bytes, tracing=tracing)
        self._credit = Credit(config.max_unconsumed, config.max_batch_size)
        self._own_pieces = Pieces(config.max_message_bytes)
        self._timers = timers.Timers()
        self._owing: dict[Address, Inbound] = {}
        self._stalled: dict[Address, Inbound | None] = {}
        self._former: dict[Address, int] = {}
        self._active: dict[Address, int] = {}
        self._nodes: frozenset[int] = frozenset()
        self._traced: dict[Address, tuple[int, int, int]] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Frames sent and received by kind, and what was dropped by reason."""
        return self._context.counters

    @property
    def deadline_ns(self) -> int | None:
        """When ``tick`` is to be called next."""
        return self._timers.next_ns

    def digest(self) -> Digest:
        """Return the marks of every stream whose start is known, the own included."""
        marks = {origin: stream.window.marks for origin, stream in self.inbound.items() if stream.window is not None}
        return {self.me: self.outbound.window.marks, **marks}

    # Inputs of the application

    def send(
        self,
        payloads: Sequence[bytes],
        now_ns: int,
        *,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> Ready:
        """Send messages to the group, in this order; ``ticket`` of the answer names the send in later events.

        With ``wait=False`` all of them are taken at once or none is. ``loopback``: whether the sender gets them too.
        """
        self._check_payloads(payloads)
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(f"a timeout of {timeout_ns} ns is over before it begins: use wait=False")
        context = self._begin(now_ns)
        flags = 0 if (self.config.loopback if loopback is None else loopback) else NOT_BACK
        self._share_buffers(now_ns)
        if not wait and not self.outbound.has_room(payloads):
            ticket = self.outbound.queue.next_ticket()
            context.event(Refused(ticket))
        else:
            deadline_ns = None if timeout_ns is None else now_ns + timeout_ns
            ticket = self.outbound.send(payloads, flags, deadline_ns, context)
            if deadline_ns is not None and len(self.outbound.queue):
                self._timers.arm_sooner(timers.TIMEOUT, deadline_ns)
        ready = self._finish(())
        ready.ticket = ticket
        return ready

    def _check_payloads(self, payloads: Sequence[bytes]) -> None:
        if self.view is None:
            raise LocalProtocolError("not a member yet: install a view before sending")
        if not payloads:
            raise LocalProtocolError("nothing to send: give at least one message")
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise LocalProtocolError("one message is not a list of messages: put it into a list")
        if set(map(type, payloads)) != {bytes}:
            wrong = next(type(payload).__name__ for payload in payloads if type(payload) is not bytes)
            raise LocalProtocolError(f"a message is {wrong}, not bytes: encode it first")
        largest_bytes = max(map(len, payloads))
        if largest_bytes > self.config.max_message_bytes:
            limit_bytes = self.config.max_message_bytes
            raise LocalProtocolError(f"a message of {largest_bytes} bytes is over max_message_bytes ({limit_bytes})")

    def cancel(self, ticket: int, now_ns: int) -> Ready:
        """Give up a waiting send; without a GivenUp event in the answer it was accepted before."""
        context = self._begin(now_ns)
        if self.outbound.give_up(ticket, "cancel", context):
            self.outbound.flush(context, "cancel")
        return self._finish(())

    def consumed(self, messages: int, now_ns: int) -> Ready:
        """Note that the application is done with messages it was handed: there is room for as many more.

        Streams that wait for room, the own one among them, take turns: who was served goes to the end of the line.
        """
        if messages < 0:
            raise LocalProtocolError(f"{messages} messages cannot have been consumed: report how many were")
        context = self._begin(now_ns)
        self._credit.refund(messages)
        for origin in list(self._stalled):
            if self._credit.limit() == 0:
                break
            stream = self._stalled.pop(origin)
            if stream is None:
                self._deliver_own(context)
            else:
                self._settle(stream, context)
        return self._finish(())

    # Inputs of the network and the clock

    def receive(self, datagram: bytes, now_ns: int) -> Ready:
        """Take in a datagram, whatever it holds."""
        context = self._begin(now_ns)
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            context.drop(error.reason)
            return self._finish(())
        sender = said.sender
        stream = self.inbound.get(sender)
        if said.group != self.group:
            context.drop("group", peer=sender)
        elif stream is None:
            context.drop(self._why_not(sender), peer=sender)
        else:
            moved = False
            for frame in said.frames:
                moved = self._on_frame(frame, sender, stream, context) or moved
            return self._finish((stream,) if moved else ())
        return self._finish(())

    def _why_not(self, sender: Address) -> str:
        if sender == self.me:
            return "own"
        return "incarnation" if sender.node in self._nodes else "stranger"

    def _on_frame(self, frame: Frame, sender: Address, stream: Inbound, context: Context) -> bool:
        """Let a frame have its effect; return whether it spoke of the sender's stream, which may have moved."""
        if isinstance(frame, (Ack, Nak)):
            self._on_own_stream(frame, sender, context)
            return False
        origin = frame.run.origin if isinstance(frame, Data) else frame.origin
        if origin != sender:
            context.drop("origin", origin, peer=sender)
            return False
        context.count(RECEIVED[type(frame)])
        if isinstance(frame, Data):
            self._active[sender] = context.now_ns
            stream.on_data(frame.run, frame.repair, context)
        elif isinstance(frame, Tail):
            stream.on_tail(frame, self.me, context)
        else:
            stream.on_gone(frame.low)
        return True

    def _on_own_stream(self, frame: Ack | Nak, sender: Address, context: Context) -> None:
        origin = frame.origin
        if origin != self.me:
            context.drop("not mine" if origin.node != self.me.node else "incarnation", origin, peer=sender)
            return
        context.count(RECEIVED[type(frame)])
        if isinstance(frame, Nak):
            self.outbound.on_nak(sender, frame.ranges, context)
            return
        if len(self.outbound.queue):
            self._share_buffers(context.now_ns)
        self.outbound.on_ack(sender, frame.seqno, frame.buffer_bytes, context)

    def tick(self, now_ns: int) -> Ready:
        """Fire every timer that is due."""
        self._begin(now_ns)
        self._share_buffers(now_ns)
        for name in self._timers.due(now_ns):
            self._fire(name)
        return self._finish(())

    def fire(self, name: str, now_ns: int) -> Ready:
        """Fire one timer alone; what hangs on it and is not due yet stays."""
        self._begin(now_ns)
        self._fire(name)
        return self._finish(())

    def _fire(self, name: str) -> None:
        context = self._context
        context.step("TIMER", self.me, reason=name)
        self._timers.arm(name, None)
        if name == timers.ACK:
            for stream in self._owing.values():
                stream.acknowledge(context)
            self._owing = {}
        elif name == timers.GAP:
            for stream in self.inbound.values():
                stream.ask(context)
            self._arm_gap(self.inbound.values())
        elif name == timers.TAIL:
            self.outbound.announce(context)
        elif name == timers.TIMEOUT:
            self._time_out(context)
        else:
            self.outbound.name_pinners(context)

    def _time_out(self, context: Context) -> None:
        queue = self.outbound.queue
        for ticket in queue.overdue(context.now_ns):
            self.outbound.give_up(ticket, "timeout", context)
        self._timers.arm(timers.TIMEOUT, queue.deadline_ns)
        self.outbound.flush(context, "timeout")

    # On a view

    def install(self, view: View, now_ns: int, digest: Digest | None = None) -> Ready:
        """Become a member of ``view``; streams in ``digest`` start behind what it says was delivered."""
        if self.me not in view.members:
            raise LocalProtocolError(f"view {view.id.number} does not contain {self.me}")
        if not 0 <= view.id.number <= U32_MAX:
            raise LocalProtocolError(f"view number {view.id.number} does not fit the wire: it has 32 bits")
        if self.view is not None and view.id <= self.view.id:
            raise LocalProtocolError(f"view {view.id.number} is not newer than view {self.view.id.number}")
        context = self._begin(now_ns)
        first_view = self.view is None
        self.view = view
        self._nodes = frozenset(member.node for member in view.members)
        for origin in [origin for origin in self.inbound if origin not in view.members]:
            self._forget(origin, context)
        context.step("VIEW", self.me, last=view.id.number)
        context.event(ViewInstalled(view))
        joined = [member for member in view.members if member != self.me and member not in self.inbound]
        for origin in joined:
            self._welcome(origin, digest or {}, context)
        self.outbound.install(view.id.number, view.members, context)
        for origin in () if first_view and digest is not None else joined:
            self.outbound.welcome(origin, context)
        return self._finish(())

    def set_digest(self, digest: Digest, now_ns: int) -> Ready:
        """Open the streams that wait for their start behind what ``digest`` says was delivered; leave others alone."""
        context = self._begin(now_ns)
        opened = [(stream, digest[origin]) for origin, stream in self.inbound.items() if origin in digest]
        opened = [(stream, marks) for stream, marks in opened if stream.window is None]
        for stream, marks in opened:
            stream.begin(marks.delivered, context)
        return self._finish([stream for stream, _ in opened])

    def _forget(self, origin: Address, context: Context) -> None:
        stream = self.inbound.pop(origin)
        for table in (self._owing, self._stalled, self._active, self._traced):
            table.pop(origin, None)
        if discarded := stream.abandon(self._credit, context):
            context.event(Discarded(origin, discarded))
        self._former[origin] = stream.resume
        if len(self._former) > _MOST_FORMER:
            del self._former[next(iter(self._former))]

    def _welcome(self, origin: Address, digest: Digest, context: Context) -> None:
        marks = digest.get(origin)
        start, former = None if marks is None else marks.delivered, self._former.pop(origin, 0)
        stream = self.inbound[origin] = Inbound(origin, self.config, self._rng, start, former)
        if marks is None:
            stream.gaps.notice(0, context.now_ns)
            self._arm_gap((stream,))

    # What every input ends with

    def _begin(self, now_ns: int) -> Context:
        self._context.now_ns = now_ns
        return self._context

    def _finish(self, touched: Iterable[Inbound]) -> Ready:
        context = self._context
        for stream in touched:
            self._settle(stream, context)
        self._deliver_own(context)
        self._timers.arm(timers.TAIL, self.outbound.tail_due_ns)
        self._timers.arm(timers.PIN, self.outbound.pin_due_ns)
        if context.tracing:
            self._trace_marks(context)
        return context.ready(self._timers.next_ns)

    def _settle(self, stream: Inbound, context: Context) -> None:
        """Deliver from a stream, then owe, send or plan its ack and its next pass over gaps."""
        ack_bytes = self.config.receive_buffer_bytes // (_ACKS_PER_SHARE * (1 + len(self._active)))
        if stream.deliver(self._credit, ack_bytes, context) or stream.ack_now:
            stream.acknowledge(context)
            self._owing.pop(stream.origin, None)
        elif stream.owed.owed and stream.origin not in self._owing:
            self._owing[stream.origin] = stream
            self._timers.arm_sooner(timers.ACK, context.now_ns + self._ack_delay_ns())
        if stream.can_deliver:
            self._stalled[stream.origin] = stream
        self._arm_gap((stream,))

    def _ack_delay_ns(self) -> int:
        delay_ns, jitter = self.config.ack_delay_ns, self.config.jitter_percent
        return delay_ns - int(delay_ns * self._rng.random() * jitter / 100) if jitter else delay_ns

    def _arm_gap(self, streams: Iterable[Inbound]) -> None:
        for stream in streams:
            if stream.gaps.due_ns is not None:
                self._timers.arm_sooner(timers.GAP, stream.gaps.due_ns)

    def _deliver_own(self, context: Context) -> None:
        """Deliver the own messages, in order like everybody else's; this counts as the own ack."""
        window = self.outbound.window
        while window.delivered < window.high:
            runs = window.take(self._own_limit())
            if not runs:
                self._stalled.setdefault(self.me, None)
                return
            for run in runs:
                self._hand_out_own(run, context)
            self.outbound.acknowledge_self(context)

    def _own_limit(self) -> int | None:
        """Return how many own messages may be delivered; one that is not wanted back needs no room (M-11)."""
        limit = self._credit.limit()
        if limit == 0:
            seqno = self.outbound.window.delivered + 1
            (run,) = self.outbound.window.get(seqno, seqno)
            return 1 if run.flags & NOT_BACK else 0
        return limit

    def _hand_out_own(self, run: Run, context: Context) -> None:
        if run.flags & NOT_BACK:
            return
        delivery: Delivery | None = Delivery(run.origin, run.first, run.last, run)
        if run.flags & PIECE:
            delivery = self._own_pieces.add(run, context)
        if delivery is not None:
            self._credit.spend(delivery.message_count)
            context.deliver(delivery)

    def _share_buffers(self, now_ns: int) -> None:
        """Divide the receivers' buffers by the number of members that are sending just now."""
        interval_ns = self.config.xmit_interval_ns
        self._active = {origin: at_ns for origin, at_ns in self._active.items() if now_ns - at_ns < interval_ns}
        self.outbound.limit_bytes(1 + len(self._active))

    def _trace_marks(self, context: Context) -> None:
        self._trace_window(self.me, self.outbound.window, context)
        for origin, stream in self.inbound.items():
            if stream.window is not None:
                self._trace_window(origin, stream.window, context)

    def _trace_window(self, origin: Address, window: Window, context: Context) -> None:
        before = self._traced.get(origin)
        low, delivered, high = window.low, window.delivered, window.high
        if before is None or before[2] != high or before[1] != delivered or before[0] != low:
            self._traced[origin] = low, delivered, high
            context.step("STATE", origin, low=low, delivered=delivered, high=high)

    # For tests, simulation and exhaustive search

    def check_invariants(self) -> None:
        """Raise AssertionError if the machine contradicts its own law."""
        self.outbound.check_invariants()
        for origin, stream in self.inbound.items():
            assert origin == stream.origin != self.me, "streams are filed under their origin"
            stream.check_invariants()
            if stream.owed.owed and stream.window is not None:
                assert origin in self._owing, "what is owed is on the list"
            if stream.gaps.due_ns is not None:
                assert self._timers.armed(timers.GAP), "a gap is being watched"
        assert not self._owing or self._timers.armed(timers.ACK), "an owed ack has its timer"

    def armed(self) -> tuple[str, ...]:
        """Return the timers that could fire."""
        return self._timers.snapshot()

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times and counters; the view must not change meanwhile."""
        unconsumed = self._credit.outstanding if self.config.max_unconsumed else 0
        streams = (stream.snapshot() for stream in self.inbound.values())
        return (unconsumed, self._own_pieces.snapshot(), self.outbound.snapshot(), *streams)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every armed timer due at time zero."""
        self._credit.outstanding, own_pieces, outbound, *streams = snapshot  # type: ignore[assignment]
        self._own_pieces.restore(own_pieces)  # type: ignore[arg-type]
        self.outbound.restore(outbound)  # type: ignore[arg-type]
        for stream, state in zip(self.inbound.values(), streams, strict=True):
            stream.restore(state)  # type: ignore[arg-type]
        self._owing = {origin: stream for origin, stream in self.inbound.items() if stream.owed.owed}
        self._stalled = {origin: stream for origin, stream in self.inbound.items() if stream.can_deliver}
        if self.outbound.window.next_is_there:
            self._stalled[self.me] = None
        gaps = any(stream.gaps.due_ns is not None for stream in self.inbound.values())
        armed = {timers.ACK: bool(self._owing), timers.GAP: gaps, timers.TAIL: self.outbound.tail_due_ns is not None}
        self._timers.restore(tuple(name for name, on in armed.items() if on))
        self._active = {}

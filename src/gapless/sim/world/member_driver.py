"""The driver of every simulated member: passes inputs to members, and acts on each ``Ready``.

On an input (a datagram, a timer, a call of the application): the member answers with a ``Ready``.
The driver passes transmits to the network, deliveries to the application, the deadline to the
scheduler, and the whole ``Ready`` to the oracle.

On the arrival of a copy: a running process gets the copy at once. A paused process finds the copy
in its socket buffer later, unless the buffer is full. For a crashed process, the copy is lost.

On an exception: the machine must not raise on any input. The driver reports a violation of S13, and
the process crashes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from gapless.errors import LocalProtocolError
from gapless.faults.faults import FORGED
from gapless.faults.frame_names import incarnation_name, label_of
from gapless.protocol.ready import ANYONE
from gapless.run import Run
from gapless.sim.link_counters import LinkCounters
from gapless.sim.world.network import decode_or_none
from gapless.wire import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.faults.faults import Crossing
    from gapless.identity import Address
    from gapless.protocol.ready import Ready
    from gapless.sim.world.host import Host
    from gapless.sim.world.network import CopyInFlight
    from gapless.sim.world.run_context import RunContext
    from gapless.wire import Datagram

_ARRIVE, _TICK, _SEND, _DELIVER = range(4)
_APPLICATION_CAUSES = ("send", "install")
"""Inputs from the script: a refused input is an error of the script."""
_MAX_DECODED = 256


class ProcessEvents(Protocol):
    """The part of the work done by the processes around the members."""

    def crash(self, host: Host) -> None:
        """End the process of a host."""

    def install_pending_view(self, host: Host) -> bool:
        """Install the view that the member decided on; return False if there is none."""

    def load_state(self, host: Host, ready: Ready) -> None:
        """Load a received state into the application, before its first delivery."""

    def queue_for_disk(self, host: Host, ready: Ready) -> None:
        """Store deliveries, if the application has a disk."""

    def handle_events(self, host: Host, ready: Ready) -> None:
        """React to the events of the member as a runtime does."""


class MemberDriver:
    """Runs the members of all hosts; ``log`` is the input of the determinism digest."""

    def __init__(
        self, context: RunContext, processes: ProcessEvents, *, keep_payloads: bool = False
    ) -> None:
        self.log = array("q")
        self.delivered_messages = 0
        self.late_ns: dict[tuple[str, int], int] = {}
        self.late_ticks = 0
        self.on_ready: Callable[[Host, Ready], None] | None = None
        self._config = context.config
        self._script = context.script
        self._scheduler = context.scheduler
        self._network = context.network
        self._oracle = context.oracle
        self._stream_coverage = context.stream_coverage
        self._membership_coverage = context.membership_coverage
        self._tracer = context.tracer
        self._hosts = context.hosts
        self._by_node = context.by_node
        self._late_timers = context.late_timers
        self._record = context.record
        self._names_matter = context.names_matter
        self._processes = processes
        self._sealed_group = context.sealed_group
        self._keep_payloads = keep_payloads
        self._names: dict[Address, str] = {}
        self._decoded: dict[bytes, Datagram] = {}
        self._stream_coverage.in_flight = self._in_flight

    # Inputs of a member

    def call(
        self, host: Host, cause: str, method: Callable[..., Ready], *args: Any, **options: Any
    ) -> None:
        """Call a method of a member, and act on the answer."""
        now_ns = self._scheduler.now_ns
        local_ns = now_ns + host.epoch_ns if host.has_no_drift else host.clock.local_ns(now_ns)
        try:
            ready = method(*args, now_ns=local_ns, **options)
        except Exception as error:
            if (
                isinstance(error, LocalProtocolError)
                and cause in _APPLICATION_CAUSES
                and not self._script.membership
            ):
                raise
            self._report_exception(host, cause, error)
            return
        if cause == "send":
            host.tickets.append(ready.ticket)
            assert host.member_model is not None
            how = {name: options[name] for name in ("loopback", "to", "mode")}
            if how["mode"] is None:
                how["mode"] = host.take_next_mode(ready, to_one=how["to"] is not None)
            self._oracle.on_send(host.member_model, args[0], ready, **how)
        self._process_ready(host, cause, None, ready, local_ns)

    def _report_exception(self, host: Host, cause: str, error: Exception) -> None:
        oracle = self._oracle
        oracle.t_ns, oracle.current_member = self._scheduler.now_ns, host.member_model
        oracle.report("S13", f"{cause} raised {type(error).__name__}: {error}")
        self._processes.crash(host)

    def _arrive(self, host: Host, copy: CopyInFlight, datagram: Datagram | None) -> None:
        if host.member is None:
            self._network.drop(copy)
        elif host.paused:
            size_bytes = len(copy[0])
            if (
                host.buffered_bytes + size_bytes > self._config.receive_buffer_bytes
                and not self._script.fifo
            ):
                self._network.drop(copy)
                self._stream_coverage.on_buffer_overflow()
            else:
                host.buffer.append((copy, datagram))
                host.buffered_bytes += size_bytes
        else:
            self._network.arrive(copy)
            self._receive(host, copy, datagram)

    def inject(self, host: Host, arrived: bytes) -> None:
        """Hand bytes that crossed no link to a running member."""
        if host.member is not None and not host.paused:
            self._receive(host, (arrived, b"", LinkCounters(), FORGED), None)

    def receive_buffered(self, host: Host) -> None:
        """Receive the datagrams that arrived during a pause."""
        while host.buffer and not host.paused:
            copy, datagram = host.buffer.popleft()
            host.buffered_bytes -= len(copy[0])
            self._network.arrive(copy)
            self._receive(host, copy, datagram)

    def _receive(self, host: Host, copy: CopyInFlight, datagram: Datagram | None) -> None:
        """Hand a copy to a member; an intact copy was decoded once for all receivers."""
        arrived, sent = copy[:2]
        member, model = host.member, host.member_model
        if member is None or model is None:
            return
        now_ns = self._scheduler.now_ns
        local_ns = now_ns + host.epoch_ns if host.has_no_drift else host.clock.local_ns(now_ns)
        self.log.append(now_ns)
        self.log.append(crc32(arrived, host.node << 3 | _ARRIVE))
        intact, plain = datagram is not None and arrived is sent, arrived
        if self._sealed_group is not None:
            opened = self._sealed_group.open(host, arrived)
            if opened is None:
                return
            plain = opened
            if not intact:
                datagram, intact = decode(opened, opened=True), True
        before = self._oracle.fingerprint_if_refused(model, datagram)
        try:
            if not intact or datagram is None:
                ready = member.receive(arrived, local_ns)
            else:
                # What the short path does not expect is not decoded again.
                ready = member.receive_expected(plain, local_ns) or member.receive_decoded(
                    datagram, local_ns
                )
        except Exception as error:  # noqa: BLE001 - any exception that leaves the machine is a finding
            self._report_exception(host, "receive", error)
            return
        self._process_ready(host, "receive", datagram, ready, local_ns, before)

    # Timers

    def arm_timer(self, host: Host, due_ns: int | None) -> None:
        """Wake the member at its deadline; a later deadline reuses the planned wake-up."""
        if due_ns == host.due_ns and host.next_wake_ns is not None:
            return
        host.due_ns = due_ns
        if due_ns is None:
            return
        wake_ns = max(self._scheduler.now_ns, host.late_until_ns, host.clock.true_ns(due_ns))
        if host.next_wake_ns is None or wake_ns < host.next_wake_ns:
            host.next_wake_ns = wake_ns
            host.wakes += 1
            self._scheduler.push(wake_ns, self._on_wake_up, host, host.incarnation_name, host.wakes)

    def _on_wake_up(self, host: Host, incarnation: str, wake: int) -> None:
        """Tick at a deadline, or a little later if the timer is late."""
        member = host.member
        if member is None or host.incarnation_name != incarnation or wake != host.wakes:
            return
        host.next_wake_ns = None
        if host.paused or host.due_ns is None:
            return
        now_ns = self._scheduler.now_ns
        if host.clock.true_ns(host.due_ns) > now_ns:
            self.arm_timer(host, host.due_ns)
            return
        if host.late_until_ns != now_ns and (late_ns := self._timer_delay_ns(host)):
            host.late_until_ns = now_ns + late_ns
            self.arm_timer(host, host.due_ns)
            return
        self.log.append(now_ns)
        self.log.append(host.node << 3 | _TICK)
        if not self._processes.install_pending_view(host):
            self.call(host, "tick", member.tick)

    def _timer_delay_ns(self, host: Host) -> int:
        """Return the lateness of the timer that is due now; 0 if punctual."""
        host.ticks += 1
        key, now_ns = (host.incarnation_name, host.ticks), self._scheduler.now_ns
        if self._late_timers is None:
            late_ns = self._script.late_ns.get(key, 0)
        elif now_ns >= self._script.calm_ns:
            return 0
        else:
            late_ns = min(self._late_timers.late_ns(now_ns), self._script.calm_ns - now_ns)
            if late_ns:
                self.late_ticks += 1
                if self._record:
                    self.late_ns[key] = late_ns
        if late_ns and self._tracer is not None:
            self._tracer.late_timer(now_ns, late_ns)
        return late_ns

    # One pump for all members and all causes

    def _process_ready(
        self,
        host: Host,
        cause: str,
        datagram: Datagram | None,
        ready: Ready,
        local_ns: int,
        before: object = None,
    ) -> None:
        model, now_ns = host.member_model, self._scheduler.now_ns
        assert model is not None
        if self._tracer is not None:
            self._tracer.step(now_ns, model, datagram, ready)
        outgoing = []
        transmits = ready.transmits
        sent = (
            [data for _, data in transmits]
            if self._sealed_group is None
            else self._sealed_group.seal(host, transmits)
        )
        for (to, data), on_wire in zip(transmits, sent, strict=True):
            out = self._decoded.get(data)
            if out is None:
                out = self._decode_cached(data)
            outgoing.append((to, out))
            self._transmit(host, to, on_wire, out)
        self._oracle.on_step(model, cause, datagram, ready, outgoing, local_ns, now_ns, before)
        events = ready.events if self._script.membership else None
        if events:
            self._processes.load_state(host, ready)
        if host.stores_deliveries:
            self._processes.queue_for_disk(host, ready)
        if ready.deliveries:
            self._deliver(host, ready)
        if self.on_ready is not None:
            self.on_ready(host, ready)
        if ready.deadline_ns != host.due_ns or host.next_wake_ns is None:
            self.arm_timer(host, ready.deadline_ns)
        if events:
            self._processes.handle_events(host, ready)

    def _decode_cached(self, data: bytes) -> Datagram:
        """Decode an outgoing datagram. Members repeat the same acks and tails, so a cache pays."""
        if len(self._decoded) > _MAX_DECODED:
            self._decoded.clear()
        out = self._decoded[data] = decode(data)
        return out

    # The network

    def _transmit(self, host: Host, to: Address | None, data: bytes, out: Datagram) -> None:
        network, scheduler, source = self._network, self._scheduler, host.incarnation_name
        now_ns = scheduler.now_ns
        network.transmits += 1
        self.log.append(now_ns)
        self.log.append(crc32(data, host.node << 3 | _SEND))
        if to is None or to == ANYONE:
            targets: Iterable[Host] = self._hosts.values()
        else:
            # The answer to a forged datagram goes to a node that does not exist.
            targets = (
                (self._by_node[to.node],)
                if not self._script.membership or to.node in self._by_node
                else ()
            )
        if network.is_fault_free(now_ns) and self._tracer is None:
            for target in targets:
                if target is not host:
                    copy = network.send_without_faults(source, target.name, data)
                    scheduler.push(now_ns + network.delay_ns, self._arrive, target, copy, out)
            return
        label = label_of(out, self._name) if self._names_matter else None
        for target in targets:
            if target is not host:
                copies, reason, crossing = network.send_with_faults(
                    source, target.name, data, label, now_ns
                )
                if reason or self._tracer is not None:
                    self._report_fate(host, crossing, out, len(copies), reason)
                for delay_ns, copy in copies:
                    if reason and delay_ns > network.delay_ns and self._script.membership:
                        # The run has its faults until the last late copy has arrived.
                        self._oracle.last_fault_ns = max(
                            self._oracle.last_fault_ns, now_ns + delay_ns
                        )
                    decoded = out if copy[0] is data else decode_or_none(copy[0])
                    scheduler.push(now_ns + delay_ns, self._arrive, target, copy, decoded)

    def _report_fate(
        self, host: Host, crossing: Crossing, out: Datagram, copies: int, reason: str
    ) -> None:
        """Report the fate of a crossing to coverage and tracer."""
        if reason and not copies:
            label = label_of(out, self._name)
            self._stream_coverage.on_frame_lost(crossing, label)
            if self._membership_coverage is not None:
                self._membership_coverage.on_frame_lost(crossing, label)
        if self._tracer is not None and host.member_model is not None:
            self._tracer.transmit(
                self._scheduler.now_ns, host.member_model, crossing, copies, reason
            )

    def copies_in_flight(self) -> Iterable[bytes]:
        """Return the bytes of every copy on a link or in a socket buffer."""
        for _, _, handler, args in self._scheduler.heap:
            if handler == self._arrive:
                yield args[1][0]
        for host in self._hosts.values():
            yield from (copy[0] for copy, _ in host.buffer)

    def _in_flight(self) -> Iterable[tuple[int, Datagram]]:
        """Return every readable datagram in flight, with its target node."""
        return (
            (args[0].node, args[2])
            for _, _, handler, args in self._scheduler.heap
            if handler == self._arrive and args[2] is not None
        )

    def _name(self, address: Address) -> str:
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = incarnation_name(address)
        return name

    # The application

    def _deliver(self, host: Host, ready: Ready) -> None:
        messages = 0
        for delivery in ready.deliveries:
            content = delivery.content
            payload = content.payload if isinstance(content, Run) else content
            self.log.append(delivery.first)
            self.log.append(crc32(payload, delivery.origin.node << 3 | _DELIVER))
            messages += delivery.message_count
            if self._script.membership:
                host.application.apply(delivery)
            if self._keep_payloads:
                host.received.setdefault(self._name(delivery.origin), []).extend(
                    delivery.messages()
                )
        self.delivered_messages += messages
        if host.member is not None and host.member.config.unread_limit:
            host.unread += messages
            self.schedule_read(host)

    def schedule_read(self, host: Host) -> None:
        """Let the application consume deliveries, after the read delay."""
        if host.unread and not host.reading:
            host.reading = True
            now_ns = self._scheduler.now_ns
            wait_ns = host.per_message_ns if now_ns < self._script.calm_ns else 0
            self._scheduler.push(now_ns + wait_ns, self._consume, host, host.incarnation_name)

    def _consume(self, host: Host, incarnation: str) -> None:
        if host.member is None or host.incarnation_name != incarnation:
            return
        host.reading = False
        if host.paused:
            return
        slow = host.slow and self._scheduler.now_ns < self._script.calm_ns
        messages = 1 if slow else host.unread
        host.unread -= messages
        assert host.member_model is not None
        host.member_model.unconsumed -= messages
        self.call(host, "consume", host.member.consumed, messages)
        self.schedule_read(host)

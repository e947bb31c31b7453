"""The scheduler: hosts, the network between them, and the one pump for every answer of a member.

On every input of a member (a datagram, a timer, a call of its application): transmits go to the
network, deliveries to the application, the deadline to the clock, everything to the oracle.
"""

from __future__ import annotations

from array import array
from heapq import heappush
from typing import TYPE_CHECKING, Any
from zlib import crc32

from gapless.errors import LocalProtocolError
from gapless.faults.faults import FaultChain
from gapless.faults.frame_names import incarnation_name, label_of
from gapless.protocol.buggify import SHED
from gapless.protocol.ready import ANYONE
from gapless.rng import split
from gapless.run import Run
from gapless.sim.checkers.liveness import bounds_ns
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import MembershipCoverage
from gapless.sim.coverage.stream_coverage import StreamCoverage
from gapless.sim.oracle.oracle import Oracle
from gapless.sim.script import (
    CrashProcess,
    Script,
    ScriptedFates,
)
from gapless.sim.world.host import Host
from gapless.sim.world.network import CopyInFlight, SimulatedNetwork, decoded
from gapless.sim.world.tracer import SimulationTracer
from gapless.wire import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.config import Config
    from gapless.faults.faults import Crossing, Fault, LateTimers
    from gapless.identity import Address, Digest
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.checker import InvariantChecker
    from gapless.sim.script import Action, Script
    from gapless.wire import Datagram

_ARRIVE, _TICK, _SEND, _DELIVER = range(4)
_APPLICATION_CAUSES = ("send", "install")
"""The inputs that a script can get wrong; a refusal of one of these is the script's fault."""
_MAX_DECODED = 256


def _fault_chain(script: Script, faults: Iterable[Fault] | None) -> FaultChain:
    if faults is None:
        return FaultChain([ScriptedFates(script.fates)])
    return FaultChain(faults, script.calm_ns)


class Scheduler:
    """Hosts, network, oracle and the event queue; a World runs it."""

    def __init__(
        self,
        config: Config,
        script: Script,
        *,
        faults: Iterable[Fault] | None = None,
        late_timers: LateTimers | None = None,
        checkers: Iterable[type[InvariantChecker]] | None = None,
        record: bool = False,
        trace: bool = False,
        keep_payloads: bool = False,
        fail_fast: bool = False,
    ) -> None:
        self.config = config
        self.script = script
        self.now_ns = 0
        self.events = 0
        self.simulated_messages = 0
        chain = _fault_chain(script, faults)
        self.network = SimulatedNetwork(chain, script.delay_ns, record=record, fifo=script.fifo)
        self._names_matter = record or script.only_loss or chain.names_matter
        self.late_timers = late_timers
        self.late_ns: dict[tuple[str, int], int] = {}
        self.late_ticks = 0
        self.record = record
        self.keep_payloads = keep_payloads
        self.fail_fast = fail_fast
        self._events_in_moment = 0
        self._moment_ns = -1
        self.hosts: dict[str, Host] = {}
        self._by_node: dict[int, Host] = {}
        self.oracle = Oracle(
            config,
            (
                *(CHECKERS if checkers is None else checkers),
                *([MembershipCoverage] if script.membership else []),
                StreamCoverage,
            ),
            calm_ns=script.calm_ns,
            bounds_ns=bounds_ns(config, script.delay_ns),
            membership=script.membership,
        )
        self.oracle.sheds = SHED in script.rare
        observer = self.oracle.checkers[-1]
        assert isinstance(observer, StreamCoverage)
        self.stream_coverage = observer
        self.stream_coverage.in_flight = self._in_flight
        self.membership_coverage = next(
            (check for check in self.oracle.checkers if isinstance(check, MembershipCoverage)), None
        )
        self.tracer: SimulationTracer | None = None
        if trace:
            self.tracer = SimulationTracer(
                script.seed, config, membership=script.membership, clocks=script.clocks
            )
        self.on_ready: Callable[[Host, Ready], None] | None = None
        self.on_event: Callable[[], None] | None = None
        self._heap: list[tuple[Any, ...]] = []
        self._disk_rng = split(script.seed, "disk")
        self._serial = 0
        self._names: dict[Address, str] = {}
        self._saved_digests: dict[str, Digest] = {}
        self._first_view: dict[str, int] = {}
        self._decoded: dict[bytes, Datagram] = {}
        self._pending_actions = 0
        self._log = array("q")
        for action in script.actions:
            self.schedule(action)

    def schedule(self, action: Action) -> None:
        """Let an action of a script happen at its time."""
        self._pending_actions += 1
        self._push(max(action.at_ns, self.now_ns), self._act, action)

    def _act(self, action: Action) -> None:
        """Let an action of the script happen."""
        raise NotImplementedError

    def _push(self, at_ns: int, handler: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, handler, args))

    # Hosts

    def _alive(self) -> Iterable[Host]:
        return (host for host in self.hosts.values() if host.member is not None)

    def host(self, name: str) -> Host:
        """Return the host that a life called ``name`` is or was at."""
        return self.hosts[name.rstrip("'")]

    def _in_flight(self) -> Iterable[tuple[int, Datagram]]:
        """Return what is on its way, with the node it goes to."""
        return (
            (args[0].node, args[2])
            for _, _, handler, args in self._heap
            if handler == self._arrive and args[2] is not None
        )

    def _name(self, address: Address) -> str:
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = incarnation_name(address)
        return name

    def _crash(self, host: Host, action: CrashProcess) -> None:
        assert host.member_model is not None
        self._pending_actions -= len(host.postponed)
        host.next_start = None
        for parcel in host.crash():
            self.network.drop(parcel)
        self.oracle.on_incarnation_end(host.member_model)

    # Inputs of a member

    def _call(
        self, host: Host, cause: str, method: Callable[..., Ready], *args: Any, **options: Any
    ) -> None:
        """Give a member an input, and work through its answer."""
        local_ns = (
            self.now_ns + host.epoch_ns if host.has_no_drift else host.clock.local_ns(self.now_ns)
        )
        try:
            ready = method(*args, now_ns=local_ns, **options)
        except Exception as error:
            if (
                isinstance(error, LocalProtocolError)
                and cause in _APPLICATION_CAUSES
                and not self.script.membership
            ):
                raise
            self._report_exception(host, cause, error)
            return
        if cause == "send":
            host.tickets.append(ready.ticket)
            assert host.member_model is not None
            how = {name: options[name] for name in ("loopback", "to", "mode")}
            self.oracle.on_send(host.member_model, args[0], ready, **how)
        self._process_ready(host, cause, None, ready, local_ns)

    def _report_exception(self, host: Host, cause: str, error: Exception) -> None:
        self.oracle.t_ns, self.oracle.current_member = self.now_ns, host.member_model
        self.oracle.report("S13", f"{cause} raised {type(error).__name__}: {error}")
        self._crash(host, CrashProcess(self.now_ns, host.incarnation_name))

    def _arrive(self, host: Host, parcel: CopyInFlight, said: Datagram | None) -> None:
        if host.member is None:
            self.network.drop(parcel)
        elif host.paused:
            size_bytes = len(parcel[0])
            if (
                host.buffered_bytes + size_bytes > self.config.receive_buffer_bytes
                and not self.script.fifo
            ):
                self.network.drop(parcel)
                self.stream_coverage.on_buffer_overflow()
            else:
                host.buffer.append((parcel, said))
                host.buffered_bytes += size_bytes
        else:
            self.network.arrive(parcel)
            self._receive(host, parcel, said)

    def _receive(self, host: Host, parcel: CopyInFlight, said: Datagram | None) -> None:
        """Hand a datagram to a member; an intact one was decoded once for all receivers."""
        datagram, sent = parcel[:2]
        member, life = host.member, host.member_model
        if member is None or life is None:
            return
        local_ns = (
            self.now_ns + host.epoch_ns if host.has_no_drift else host.clock.local_ns(self.now_ns)
        )
        before = self.oracle.fingerprint_if_refused(life, said)
        self._log.append(self.now_ns)
        self._log.append(crc32(datagram, host.node << 3 | _ARRIVE))
        try:
            intact = said is not None and datagram is sent
            ready = (
                member.receive_decoded(said, local_ns)
                if intact and said
                else member.receive(datagram, local_ns)
            )
        except Exception as error:  # noqa: BLE001 - any exception that leaves the machine is a finding
            self._report_exception(host, "receive", error)
            return
        self._process_ready(host, "receive", said, ready, local_ns, before)

    def _on_wake_up(self, host: Host, life: str, wake: int) -> None:
        """Tick at a deadline, or a little later if the timer is late."""
        member = host.member
        if member is None or host.incarnation_name != life or wake != host.wakes:
            return
        host.next_wake_ns = None
        if host.paused or host.due_ns is None:
            return
        if host.clock.true_ns(host.due_ns) > self.now_ns:
            self._arm_timer(host, host.due_ns)
            return
        if host.late_until_ns != self.now_ns and (late_ns := self._timer_delay_ns(host)):
            host.late_until_ns = self.now_ns + late_ns
            self._arm_timer(host, host.due_ns)
            return
        self._log.append(self.now_ns)
        self._log.append(host.node << 3 | _TICK)
        self._tick(host)

    def _tick(self, host: Host) -> None:
        """Let the time that a member asked for come."""
        assert host.member is not None
        self._call(host, "tick", host.member.tick)

    def _timer_delay_ns(self, host: Host) -> int:
        host.ticks += 1
        key = host.incarnation_name, host.ticks
        if self.late_timers is None:
            return self.script.late_ns.get(key, 0)
        if self.now_ns >= self.script.calm_ns:
            return 0
        late_ns = min(self.late_timers.late_ns(self.now_ns), self.script.calm_ns - self.now_ns)
        if late_ns:
            self.late_ticks += 1
            if self.record:
                self.late_ns[key] = late_ns
        return late_ns

    def _arm_timer(self, host: Host, due_ns: int | None) -> None:
        """Wake the member at its deadline; a later deadline reuses the planned wake-up."""
        if due_ns == host.due_ns and host.next_wake_ns is not None:
            return
        host.due_ns = due_ns
        if due_ns is None:
            return
        wake_ns = max(self.now_ns, host.late_until_ns, host.clock.true_ns(due_ns))
        if host.next_wake_ns is None or wake_ns < host.next_wake_ns:
            host.next_wake_ns = wake_ns
            host.wakes += 1
            self._push(wake_ns, self._on_wake_up, host, host.incarnation_name, host.wakes)

    # The pump: one for all members and all causes

    def _process_ready(
        self,
        host: Host,
        cause: str,
        said: Datagram | None,
        ready: Ready,
        local_ns: int,
        before: object = None,
    ) -> None:
        if self.tracer is not None and host.member_model is not None:
            self.tracer.step(self.now_ns, host.member_model, said, ready)
        outgoing = []
        for to, datagram in ready.transmits:
            out = self._decoded.get(datagram)
            if out is None:
                out = self._decode_cached(datagram)
            outgoing.append((to, out))
            self._transmit(host, to, datagram, out)
        life = host.member_model
        assert life is not None
        self.oracle.on_step(life, cause, said, ready, outgoing, local_ns, self.now_ns, before)
        events = ready.events if self.script.membership else None
        if events:
            self._load_state(host, ready)
        if host.stores_deliveries:
            self._queue_for_disk(host, ready)
        if ready.deliveries:
            self._deliver(host, ready)
        if self.on_ready is not None:
            self.on_ready(host, ready)
        if ready.deadline_ns != host.due_ns or host.next_wake_ns is None:
            self._arm_timer(host, ready.deadline_ns)
        if events:
            self._handle_events(host, ready)

    def _on_delayed_arrival(self, at_ns: int) -> None:
        """Take note of when something arrives that is late."""

    def _load_state(self, host: Host, ready: Ready) -> None:
        """Let the application have what it is told before it is handed anything."""

    def _queue_for_disk(self, host: Host, ready: Ready) -> None:
        """Let an application that has a disk store what it is handed."""

    def _handle_events(self, host: Host, ready: Ready) -> None:
        """Do what the shell of a member does about events."""

    def _decode_cached(self, datagram: bytes) -> Datagram:
        """Decode what goes out; the same acks and tails go out again and again."""
        if len(self._decoded) > _MAX_DECODED:
            self._decoded.clear()
        out = self._decoded[datagram] = decode(datagram)
        return out

    def _transmit(self, host: Host, to: Address | None, datagram: bytes, out: Datagram) -> None:
        network, heap, now_ns, source = self.network, self._heap, self.now_ns, host.incarnation_name
        network.transmits += 1
        self._log.append(now_ns)
        self._log.append(crc32(datagram, host.node << 3 | _SEND))
        if to is None or to == ANYONE:
            targets: Iterable[Host] = self.hosts.values()
        else:
            # Who answers a forged datagram speaks to a node that is nowhere.
            targets = (
                (self._by_node[to.node],)
                if not self.script.membership or to.node in self._by_node
                else ()
            )
        if network.is_fault_free(now_ns) and self.tracer is None:
            for target in targets:
                if target is not host:
                    parcel = network.send_without_faults(source, target.name, datagram)
                    self._serial += 1
                    heappush(
                        heap,
                        (
                            now_ns + network.delay_ns,
                            self._serial,
                            self._arrive,
                            (target, parcel, out),
                        ),
                    )
            return
        label = label_of(out, self._name) if self._names_matter or self.tracer is not None else None
        for target in targets:
            if target is not host:
                parcels, reason, crossing = network.send_with_faults(
                    source, target.name, datagram, label, now_ns
                )
                if reason or self.tracer is not None:
                    self._report_fate(host, crossing, out, len(parcels), reason)
                for delay_ns, parcel in parcels:
                    if reason and delay_ns > network.delay_ns:
                        self._on_delayed_arrival(now_ns + delay_ns)
                    said = out if parcel[0] is datagram else decoded(parcel[0])
                    self._serial += 1
                    heappush(
                        heap,
                        (now_ns + delay_ns, self._serial, self._arrive, (target, parcel, said)),
                    )

    def _report_fate(
        self, host: Host, crossing: Crossing, out: Datagram, copies: int, reason: str
    ) -> None:
        """Tell who looks on what became of a crossing."""
        if reason and not copies:
            self.stream_coverage.on_frame_lost(crossing, label_of(out, self._name))
            if self.membership_coverage is not None:
                self.membership_coverage.on_frame_lost(crossing, label_of(out, self._name))
        if self.tracer is not None and host.member_model is not None:
            self.tracer.transmit(self.now_ns, host.member_model, crossing, copies, reason)

    def _deliver(self, host: Host, ready: Ready) -> None:
        messages = 0
        for delivery in ready.deliveries:
            content = delivery.content
            payload = content.payload if isinstance(content, Run) else content
            self._log.append(delivery.first)
            self._log.append(crc32(payload, delivery.origin.node << 3 | _DELIVER))
            messages += delivery.message_count
            if self.script.membership:
                host.application.apply(delivery)
            if self.keep_payloads:
                host.received.setdefault(self._name(delivery.origin), []).extend(
                    delivery.messages()
                )
        self.simulated_messages += messages
        if self.config.unread_limit:
            host.unread += messages
            self._schedule_read(host)

    # The application that reads

    def _schedule_read(self, host: Host) -> None:
        if host.unread and not host.reading:
            host.reading = True
            wait_ns = host.per_message_ns if self.now_ns < self.script.calm_ns else 0
            self._push(self.now_ns + wait_ns, self._consume, host, host.incarnation_name)

    def _consume(self, host: Host, life: str) -> None:
        if host.member is None or host.incarnation_name != life:
            return
        host.reading = False
        if host.paused:
            return
        slow = host.slow and self.now_ns < self.script.calm_ns
        messages = 1 if slow else host.unread
        host.unread -= messages
        assert host.member_model is not None
        host.member_model.unconsumed -= messages
        self._call(host, "consume", host.member.consumed, messages)
        self._schedule_read(host)

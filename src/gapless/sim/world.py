"""The world: members, network, time and applications in one thread, out of one seed or script.

On every event, in the order of virtual time and then of creation: a datagram arrives, a timer fires, an application
acts, a view comes. The member's answer goes through one ``pump``: transmits to the network, deliveries to the
application, the deadline to the clock, everything to the judge.

The world is perfect but for what the script and the faults say. After ``calm_ns`` no fault strikes; the world runs on
until the group has settled, then for a while more, in which it must be silent.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from hashlib import blake2b
from heapq import heappop, heappush
from sys import byteorder
from typing import TYPE_CHECKING, Any
from zlib import crc32

from gapless.core.rare import never
from gapless.errors import LocalProtocolError
from gapless.identity import Marks, View, group_id
from gapless.modes import Mode
from gapless.run import Run
from gapless.sim.faults import NEVER_NS, Chain, Clock
from gapless.sim.hosts import Host
from gapless.sim.judge import Judge
from gapless.sim.liveness import bounds_ns
from gapless.sim.naming import label_of, life_address, life_name, node_number
from gapless.sim.network import Network, Parcel, decoded
from gapless.sim.observations import Observer
from gapless.sim.script import (
    ZERO,
    Cancel,
    Close,
    Crash,
    Install,
    Learn,
    Mark,
    Note,
    Pause,
    Read,
    Resume,
    Script,
    Scripted,
    Send,
    Start,
    Tune,
)
from gapless.sim.seeds import split
from gapless.sim.tracing import Tracer
from gapless.wire import decode
from gapless.wire.codec import run_room_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.config import Config
    from gapless.core.rare import Rarely
    from gapless.core.ready import Ready
    from gapless.identity import Address, Digest
    from gapless.sim.faults import Crossing, Fault, LateTimers
    from gapless.sim.judge import Check
    from gapless.sim.script import Action
    from gapless.wire import Datagram

GROUP = group_id("gapless.sim")
"""The group that every simulated member belongs to."""

_ARRIVE, _TICK, _SEND, _DELIVER = range(4)
_ASKED_FOR = ("send", "install")
"""The inputs that a script can get wrong; a refusal of one of these is the script's fault."""
_SETTLE_EVERY = 16
_MOST_EVENTS = 300_000
_MOST_AT_ONCE = 20_000
_MOST_DECODED = 256
_RARELY = 0.25


class World:
    """One simulated group. Make it, then :meth:`run` it, or drive it with :meth:`act` and :meth:`run_until`."""

    def __init__(
        self,
        config: Config,
        script: Script,
        *,
        faults: Iterable[Fault] | None = None,
        late: LateTimers | None = None,
        checks: Iterable[type[Check]] | None = None,
        record: bool = False,
        trace: bool = False,
        keep: bool = False,
        hasty: bool = False,
    ) -> None:
        from gapless.sim.checkers import CHECKS

        self.config = config
        self.script = script
        self.now_ns = 0
        self.events = 0
        self.simulated_messages = 0
        chain = Chain([Scripted(script.fates)]) if faults is None else Chain(faults, script.calm_ns)
        self.network = Network(chain, script.delay_ns, record=record, fifo=script.fifo)
        self._names_matter = record or script.only_loss or chain.names_matter
        self.late = late
        self.late_ns: dict[tuple[str, int], int] = {}
        self.late_ticks = 0
        self.record = record
        self.keep = keep
        self.hasty = hasty
        self._at_once = 0
        self.hosts: dict[str, Host] = {}
        self._by_node: dict[int, Host] = {}
        self.judge = Judge(
            config,
            (*(CHECKS if checks is None else checks), Observer),
            calm_ns=script.calm_ns,
            bounds_ns=bounds_ns(config, script.delay_ns),
        )
        observer = self.judge.checks[-1]
        assert isinstance(observer, Observer)
        self.observer = observer
        self.observer.flying = self._flying
        self.tracer = Tracer() if trace else None
        self.on_ready: Callable[[Host, Ready], None] | None = None
        self.on_event: Callable[[], None] | None = None
        self._heap: list[tuple[Any, ...]] = []
        self._serial = 0
        self._names: dict[Address, str] = {}
        self._notes: dict[str, Digest] = {}
        self._first_view: dict[str, int] = {}
        self._decoded: dict[bytes, Datagram] = {}
        self._pending_actions = 0
        self._log = array("q")
        for action in script.actions:
            self.schedule(action)

    # Time

    def _push(self, at_ns: int, handler: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, handler, args))

    def schedule(self, action: Action) -> None:
        """Let an action of a script happen at its time."""
        self._pending_actions += 1
        self._push(max(action.at_ns, self.now_ns), self._act, action)

    def _run(self, until_ns: int, most_events: int = NEVER_NS, *, to_settle: bool = False) -> None:
        """Let events happen that are due up to ``until_ns``, until there were more than ``most_events`` in all."""
        heap, violations = self._heap, self.judge.violations if self.hasty else ()
        leap_ns = self.network.delay_ns
        while heap and self.events <= most_events and not violations:
            at_ns = heap[0][0]
            # Whether the group has settled is looked at only now and then, and always before the time makes a leap.
            if to_settle and (at_ns > self.now_ns + leap_ns or not self.events % _SETTLE_EVERY) and self.is_settled():
                break
            if at_ns > until_ns:
                break
            _, _, handler, args = heappop(heap)
            self.events += 1
            if at_ns != self.now_ns:
                self.now_ns, self._at_once = at_ns, 0
            else:
                self._at_once += 1
                if self._at_once > _MOST_AT_ONCE:
                    self._stop_spinning()
            handler(*args)
            if self.on_event is not None:
                self.on_event()

    def _stop_spinning(self) -> None:
        """Report a group that keeps itself busy without letting time pass, and end the run."""
        self.judge.t_ns, self.judge.life = self.now_ns, None
        self.judge.report("S16", f"more than {_MOST_AT_ONCE} events happen at one time")
        self._heap.clear()
        self._pending_actions = 0

    def run_until(self, until_ns: int) -> None:
        """Let everything happen that is due up to ``until_ns``, and move the time there."""
        self._run(until_ns)
        self.now_ns = max(self.now_ns, until_ns)

    def run(self) -> None:
        """Run the script to its end: the faults, the calm, the settling, the silence."""
        self.run_until(self.script.calm_ns - 1)
        self._allow_for_backlog()
        self.settle()
        if self.judge.settled:
            self.rest()
        self.close()

    def _allow_for_backlog(self) -> None:
        """Where no frame overtakes another, all wait for the last that was late when the calm came, and its reader."""
        backlog_ns = self.network.backlog_ns(self.now_ns)
        if self.script.fifo:
            backlog_ns += max((host.per_message_ns for host in self._alive()), default=0)
        first_ns, second_ns = self.judge.bounds_ns
        self.judge.bounds_ns = first_ns + backlog_ns, second_ns + backlog_ns

    def settle(self, give_up_ns: int | None = None) -> bool:
        """Run until every message is stable everywhere and nobody waits; return whether that came about in time."""
        give_up_ns = self._give_up_ns() if give_up_ns is None else give_up_ns
        self._run(give_up_ns, self.events + _MOST_EVENTS, to_settle=True)
        self.judge.settled = self.is_settled()
        return self.judge.settled

    def _give_up_ns(self) -> int:
        """Return when a group that has not settled never will: in the worst case every piece that waits takes B2."""
        waiting = [entry.payload for host in self._alive() if host.life for entry in host.life.stream.queue]
        last_ns = 0
        if self._pending_actions:
            last_ns = max(action.at_ns for action in self.script.actions)
            sends = (action for action in self.script.actions if isinstance(action, Send))
            waiting += (payload for action in sends for payload in action.payloads)
        room_bytes = run_room_bytes(self.config.max_frame_bytes)
        pieces = sum(2 + len(payload) // room_bytes for payload in waiting)
        pieces += sum(host.member.waiting for host in self._alive() if host.member is not None)
        return max(self.now_ns, self.script.calm_ns, last_ns) + (3 + pieces) * self.judge.bounds_ns[1]

    def is_settled(self) -> bool:
        """Return whether nothing is under way that somebody still needs."""
        if self._pending_actions:
            return False
        return all(host.is_quiet(self._by_node) for host in self._alive())

    def rest(self) -> None:
        """Watch the settled group for a while: it must be silent."""
        self.judge.resting = True
        self.run_until(self.now_ns + 3 * max(self.config.xmit_interval_ns, self.config.tail_delay_ns))
        self.judge.resting = False

    def close(self) -> None:
        """Let the checks look at the whole run."""
        self.judge.books = self.network.books
        if self.script.only_loss:
            self.judge.cost = self.network.data_lost, self.network.data_bursts
        self.judge.close(self.now_ns)

    def digest(self) -> str:
        """Return the determinism digest: equal for equal runs, whatever the process or the Python version."""
        log = array("q", self._log)
        if byteorder == "big":
            log.byteswap()
        return blake2b(log.tobytes(), digest_size=16).hexdigest()

    def recorded(self) -> Script:
        """Return the script of what happened: the same actions, and every decision that was not the default."""
        script = self.script
        clocks, actions = dict(script.clocks), list(script.actions)
        fates, late_ns = dict(self.network.fates), dict(self.late_ns)
        return replace(script, clocks=clocks, actions=actions, fates=fates, late_ns=late_ns)

    # Hosts

    def _alive(self) -> Iterable[Host]:
        return (host for host in self.hosts.values() if host.member is not None)

    def host(self, name: str) -> Host:
        """Return the host that a life called ``name`` is or was at."""
        return self.hosts[name.rstrip("'")]

    def _flying(self) -> Iterable[tuple[int, Datagram]]:
        """Return what is on its way, with the node it goes to."""
        return (
            (args[0].node, args[2])
            for _, _, handler, args in self._heap
            if handler == self._arrive and args[2] is not None
        )

    def _name(self, address: Address) -> str:
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = life_name(address)
        return name

    # Actions

    def _act(self, action: Action) -> None:
        self._pending_actions -= 1
        self.act(action)

    def act(self, action: Action) -> None:
        """Let an action happen now. What a dead life was to do does not happen; a paused one does it later."""
        if self.tracer is not None and not isinstance(action, (Send, Mark, Note, Learn)):
            self.tracer.act(self.now_ns, action)
        if isinstance(action, Start):
            self._start(action)
            return
        if isinstance(action, Mark):
            self.observer.mark(action)
            return
        host = self.hosts.get(action.who.rstrip("'"))
        if host is None or host.member is None or host.life_name != action.who:
            return
        too_early = isinstance(action, Send) and host.member.view is None
        if too_early or (host.paused and not isinstance(action, (Resume, Crash))):
            self._pending_actions += 1
            host.postponed.append(action)
        else:
            _ACTIONS[type(action)](self, host, action)

    def _act_postponed(self, host: Host) -> None:
        actions, host.postponed = host.postponed, []
        for action in actions:
            self._act(action)

    def _start(self, action: Start) -> None:
        node = action.who.rstrip("'")
        host = self.hosts.get(node)
        if host is None:
            host = self.hosts[node] = Host(node, self.script.clocks.get(node, Clock()))
            self._by_node[host.node] = host
        rarely = self._rarely(action.who) if self.script.rare else never
        member = host.start(action.who, GROUP, self.config, self.script.seed, tracing=True, rarely=rarely)
        host.life = self.judge.begin(host.address, host.life_name, member)
        self.observer.started(host.life)

    def _rarely(self, who: str) -> Rarely:
        """Return the switch of the rare branches of one life: those that are on fire one time in four."""
        on, draw = frozenset(self.script.rare), split(self.script.seed, f"rare {who}").random

        def rarely(name: str) -> bool:
            return name in on and self.now_ns < self.script.calm_ns and draw() < _RARELY

        return rarely

    def _install(self, host: Host, action: Install) -> None:
        members = tuple(life_address(name) for name in action.members)
        view = View.of(action.number, *members)
        for name in action.members:
            self._first_view.setdefault(name, action.number)
        digest = self._digest_of(action)
        member = host.member
        assert member is not None
        assert host.life is not None
        if host.address not in members or (member.view is not None and view.id <= member.view.id):
            return
        self.judge.install(host.life, view, digest, self.now_ns, host.clock.local_ns(self.now_ns))
        self._call(host, "install", member.install, view, digest=digest)
        self._act_postponed(host)

    def _digest_of(self, action: Install) -> Digest | None:
        if action.digest == ZERO:
            return {life_address(name): Marks(0, 0, 0) for name in action.members}
        noted = self._notes.get(action.digest)
        if noted is None:
            return None
        new = [life_address(name) for name in action.members if self._first_view[name] == action.number]
        return {**noted, **dict.fromkeys(new, Marks(0, 0, 0))}

    def _note(self, host: Host, action: Note) -> None:
        assert host.member is not None
        self._notes[action.key] = host.member.digest()

    def _learn(self, host: Host, action: Learn) -> None:
        assert host.member is not None
        digest = self._notes.get(action.key)
        if digest is not None:
            self.judge.learn(digest)
            self._call(host, "learn", host.member.set_digest, digest)

    def _send(self, host: Host, action: Send) -> None:
        member = host.member
        assert member is not None
        to = None
        if action.to:
            to = self._peer(host, action.to)
            if to is None:
                return  # the application knows its view, and does not send to one that is not there
        self._call(
            host,
            "send",
            member.send,
            action.payloads,
            wait=action.wait,
            timeout_ns=action.timeout_ns,
            loopback=action.loopback,
            to=to,
            mode=Mode(action.mode),
        )

    @staticmethod
    def _peer(host: Host, node: str) -> Address | None:
        """Return the member of the host's view that lives at ``node``."""
        assert host.life is not None
        return next((peer for peer in host.life.view_members if peer.node == node_number(node)), None)

    def _close(self, host: Host, action: Close) -> None:
        peer = self._peer(host, action.to)
        assert host.member is not None
        if peer is not None:
            self._call(host, "close", host.member.close, peer)

    def _tune(self, host: Host, action: Tune) -> None:
        assert host.member is not None
        self.judge.tuned = True
        self._call(host, "tune", host.member.set_xmit_interval, action.xmit_interval_ns)

    def _cancel(self, host: Host, action: Cancel) -> None:
        assert host.member is not None
        if action.nth <= len(host.ticket_of):
            self._call(host, "cancel", host.member.cancel, host.ticket_of[action.nth - 1])

    def _pause(self, host: Host, action: Pause) -> None:  # noqa: ARG002
        host.paused = True

    def _resume(self, host: Host, action: Resume) -> None:  # noqa: ARG002
        host.paused = False
        while host.buffer and not host.paused:
            parcel, said = host.buffer.popleft()
            host.buffered_bytes -= len(parcel[0])
            self.network.arrive(parcel)
            self._receive(host, parcel[0], said)
        self._act_postponed(host)
        if host.member is not None:
            self._arm(host, host.due_ns)
            self._read_on(host)

    def _crash(self, host: Host, action: Crash) -> None:  # noqa: ARG002
        assert host.life is not None
        self._pending_actions -= len(host.postponed)
        for parcel in host.crash():
            self.network.drop(parcel)
        self.judge.end(host.life)

    def _read(self, host: Host, action: Read) -> None:
        host.slow = action.per_message_ns > 0
        host.per_message_ns = action.per_message_ns
        self._read_on(host)

    # Inputs of a member

    def _call(self, host: Host, cause: str, method: Callable[..., Ready], *args: Any, **options: Any) -> None:
        """Give a member an input, and work through its answer."""
        local_ns = self.now_ns + host.epoch_ns if host.steady else host.clock.local_ns(self.now_ns)
        try:
            ready = method(*args, now_ns=local_ns, **options)
        except Exception as error:
            if isinstance(error, LocalProtocolError) and cause in _ASKED_FOR:
                raise
            self._blame(host, cause, error)
            return
        if cause == "send":
            host.ticket_of.append(ready.ticket)
            assert host.life is not None
            how = {name: options[name] for name in ("loopback", "to", "mode")}
            self.judge.send(host.life, args[0], ready, **how)
        self._pump(host, cause, None, ready, local_ns)

    def _blame(self, host: Host, cause: str, error: Exception) -> None:
        self.judge.t_ns, self.judge.life = self.now_ns, host.life
        self.judge.report("S13", f"{cause} raised {type(error).__name__}: {error}")
        self._crash(host, Crash(self.now_ns, host.life_name))

    def _arrive(self, host: Host, parcel: Parcel, said: Datagram | None) -> None:
        if host.member is None:
            self.network.drop(parcel)
        elif host.paused:
            size_bytes = len(parcel[0])
            if host.buffered_bytes + size_bytes > self.config.receive_buffer_bytes and not self.script.fifo:
                self.network.drop(parcel)
                self.observer.overflowed()
            else:
                host.buffer.append((parcel, said))
                host.buffered_bytes += size_bytes
        else:
            self.network.arrive(parcel)
            self._receive(host, parcel[0], said)

    def _receive(self, host: Host, datagram: bytes, said: Datagram | None) -> None:
        member, life = host.member, host.life
        if member is None or life is None:
            return
        local_ns = self.now_ns + host.epoch_ns if host.steady else host.clock.local_ns(self.now_ns)
        before = self.judge.before(life, said)
        self._log.append(self.now_ns)
        self._log.append(crc32(datagram, host.node << 3 | _ARRIVE))
        try:
            ready = member.receive(datagram, local_ns)
        except Exception as error:  # noqa: BLE001 - any exception that leaves the machine is a finding
            self._blame(host, "receive", error)
            return
        self._pump(host, "receive", said, ready, local_ns, before)

    def _wake(self, host: Host, life: str, wake: int) -> None:
        """Tick at a deadline, or a little later if the timer is late."""
        member = host.member
        if member is None or host.life_name != life or wake != host.wakes:
            return
        host.next_wake_ns = None
        if host.paused or host.due_ns is None:
            return
        if host.clock.true_ns(host.due_ns) > self.now_ns:
            self._arm(host, host.due_ns)
            return
        if host.late_until_ns != self.now_ns and (late_ns := self._lateness(host)):
            host.late_until_ns = self.now_ns + late_ns
            self._arm(host, host.due_ns)
            return
        self._log.append(self.now_ns)
        self._log.append(host.node << 3 | _TICK)
        self._call(host, "tick", member.tick)

    def _lateness(self, host: Host) -> int:
        host.ticks += 1
        key = host.life_name, host.ticks
        if self.late is None:
            return self.script.late_ns.get(key, 0)
        if self.now_ns >= self.script.calm_ns:
            return 0
        late_ns = min(self.late.late_ns(self.now_ns), self.script.calm_ns - self.now_ns)
        if late_ns:
            self.late_ticks += 1
            if self.record:
                self.late_ns[key] = late_ns
        return late_ns

    def _arm(self, host: Host, due_ns: int | None) -> None:
        """Wake the member at its deadline. A later deadline waits for the wake that is planned anyway."""
        if due_ns == host.due_ns and host.next_wake_ns is not None:
            return
        host.due_ns = due_ns
        if due_ns is None:
            return
        wake_ns = max(self.now_ns, host.late_until_ns, host.clock.true_ns(due_ns))
        if host.next_wake_ns is None or wake_ns < host.next_wake_ns:
            host.next_wake_ns = wake_ns
            host.wakes += 1
            self._push(wake_ns, self._wake, host, host.life_name, host.wakes)

    # The pump: one for all members and all causes

    def _pump(
        self,
        host: Host,
        cause: str,
        said: Datagram | None,
        ready: Ready,
        local_ns: int,
        before: object = None,
    ) -> None:
        if self.tracer is not None and host.life is not None:
            self.tracer.step(self.now_ns, host.life, said, ready)
        outgoing = []
        for to, datagram in ready.transmits:
            out = self._decoded.get(datagram)
            if out is None:
                out = self._remember(datagram)
            outgoing.append((to, out))
            self._transmit(host, to, datagram, out)
        life = host.life
        assert life is not None
        self.judge.step(life, cause, said, ready, outgoing, local_ns, self.now_ns, before)
        if ready.deliveries:
            self._deliver(host, ready)
        if self.on_ready is not None:
            self.on_ready(host, ready)
        if ready.deadline_ns != host.due_ns or host.next_wake_ns is None:
            self._arm(host, ready.deadline_ns)

    def _remember(self, datagram: bytes) -> Datagram:
        """Decode what goes out; the same acks and tails go out again and again."""
        if len(self._decoded) > _MOST_DECODED:
            self._decoded.clear()
        out = self._decoded[datagram] = decode(datagram)
        return out

    def _transmit(self, host: Host, to: Address | None, datagram: bytes, out: Datagram) -> None:
        network, heap, now_ns, source = self.network, self._heap, self.now_ns, host.life_name
        network.transmits += 1
        self._log.append(now_ns)
        self._log.append(crc32(datagram, host.node << 3 | _SEND))
        targets = self.hosts.values() if to is None else (self._by_node[to.node],)
        if network.calm(now_ns) and self.tracer is None:
            for target in targets:
                if target is not host:
                    parcel = network.pass_on(source, target.name, datagram)
                    self._serial += 1
                    heappush(heap, (now_ns + network.delay_ns, self._serial, self._arrive, (target, parcel, out)))
            return
        label = label_of(out, self._name) if self._names_matter or self.tracer is not None else None
        for target in targets:
            if target is not host:
                parcels, reason, crossing = network.cross(source, target.name, datagram, label, now_ns)
                if reason or self.tracer is not None:
                    self._note_fate(host, crossing, out, len(parcels), reason)
                for delay_ns, parcel in parcels:
                    said = out if parcel[0] is datagram else decoded(parcel[0])
                    self._serial += 1
                    heappush(heap, (now_ns + delay_ns, self._serial, self._arrive, (target, parcel, said)))

    def _note_fate(self, host: Host, crossing: Crossing, out: Datagram, copies: int, reason: str) -> None:
        """Tell who looks on what became of a crossing."""
        if reason and not copies:
            self.observer.lost(crossing, label_of(out, self._name))
        if self.tracer is not None and host.life is not None:
            self.tracer.transmit(self.now_ns, host.life, crossing, copies, reason)

    def _deliver(self, host: Host, ready: Ready) -> None:
        messages = 0
        for delivery in ready.deliveries:
            content = delivery.content
            payload = content.payload if isinstance(content, Run) else content
            self._log.append(delivery.first)
            self._log.append(crc32(payload, delivery.origin.node << 3 | _DELIVER))
            messages += delivery.message_count
            if self.keep:
                host.received.setdefault(self._name(delivery.origin), []).extend(delivery.messages())
        self.simulated_messages += messages
        if self.config.max_unconsumed:
            host.unread += messages
            self._read_on(host)

    # The application that reads

    def _read_on(self, host: Host) -> None:
        if host.unread and not host.reading:
            host.reading = True
            wait_ns = host.per_message_ns if self.now_ns < self.script.calm_ns else 0
            self._push(self.now_ns + wait_ns, self._consume, host, host.life_name)

    def _consume(self, host: Host, life: str) -> None:
        if host.member is None or host.life_name != life:
            return
        host.reading = False
        if host.paused:
            return
        slow = host.slow and self.now_ns < self.script.calm_ns
        messages = 1 if slow else host.unread
        host.unread -= messages
        assert host.life is not None
        host.life.unconsumed -= messages
        self._call(host, "consume", host.member.consumed, messages)
        self._read_on(host)


_ACTIONS: dict[type, Any] = {
    Install: World._install,
    Note: World._note,
    Learn: World._learn,
    Send: World._send,
    Cancel: World._cancel,
    Close: World._close,
    Tune: World._tune,
    Pause: World._pause,
    Resume: World._resume,
    Crash: World._crash,
    Read: World._read,
}

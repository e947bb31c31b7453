"""A simulated group for tests that read like a story.

::

    group = SimulatedGroup(3, capacity=4)
    group.drop("DATA 1 a->b")
    group.a.send(b"x")
    group.settle()
    assert group.b.received == {"a": [b"x"]}

The network delivers every frame once, after ``delay``, unless a fault is set. Time passes only in
:meth:`SimulatedGroup.run_for` and :meth:`SimulatedGroup.settle`. Every check of the simulator runs
at every step; a violation fails the test and shows the diagram of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.config import Config
from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import DUPLICATE, NEVER_NS, Copy, Partition
from gapless.faults.frame_names import incarnation_name, node_name
from gapless.protocol.endpoint import Endpoint
from gapless.sim.scenario.diagram import DiagramTracer
from gapless.sim.scenario.frame_pattern import FaultRule
from gapless.sim.script import (
    CancelSend,
    CrashProcess,
    InstallView,
    PauseProcess,
    ResumeProcess,
    Script,
    SendMessages,
    SetReadDelay,
    StartProcess,
    initial_actions,
)
from gapless.sim.world.world import World
from gapless.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.faults.faults import Crossing, Fault
    from gapless.identity import Marks
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.oracle import InvariantViolation
    from gapless.sim.script import Action
    from gapless.sim.world.host import Host

DEFAULT_SETTLE_TIMEOUT = "60s"
"""How long a group may take to settle, in its own time."""


class SimulatedNode:
    """One node of a group, and its current incarnation."""

    def __init__(self, group: SimulatedGroup, name: str) -> None:
        self.group = group
        self.name = name
        self.events: list[Event] = []

    @property
    def _host(self) -> Host:
        return self.group.world.hosts[self.name]

    @property
    def incarnation_name(self) -> str:
        """The name of the current incarnation: ``a``, after a restart ``a'``."""
        return self._host.incarnation_name

    @property
    def member(self) -> Endpoint:
        """The machine itself."""
        member = self._host.member
        if member is None:
            raise LookupError(f"{self.name} is not alive")
        assert isinstance(member, Endpoint), "in this group the test gives the views"
        return member

    @property
    def received(self) -> dict[str, list[bytes]]:
        """The messages delivered to this incarnation, by the name of their origin."""
        return self._host.received

    @property
    def marks(self) -> dict[str, Marks]:
        """The marks of every stream at the member, by the name of the origin."""
        return {incarnation_name(origin): marks for origin, marks in self.member.digest().items()}

    def send(
        self,
        *payloads: bytes,
        to: str = "",
        mode: DeliveryMode = DeliveryMode.ORDERED,
        wait: bool = True,
        timeout: str | None = None,
        loopback: bool | None = None,
    ) -> int:
        """Send to the group, or to the node ``to``; return the number of this send, from 1."""
        timeout_ns = None if timeout is None else parse_duration(timeout)
        self.group._perform(
            SendMessages(
                self.group.now_ns,
                self.incarnation_name,
                payloads,
                wait,
                timeout_ns,
                loopback,
                to,
                mode,
            )
        )
        return len(self._host.tickets)

    def cancel(self, nth: int) -> None:
        """Cancel the ``nth`` send of this incarnation."""
        self.group._perform(CancelSend(self.group.now_ns, self.incarnation_name, nth))

    def set_read_delay(self, per_message: str) -> None:
        """Let the application take this long for each message; this needs an ``unread_limit``."""
        self.group._perform(
            SetReadDelay(self.group.now_ns, self.incarnation_name, parse_duration(per_message))
        )


class _FaultRules:
    """The current faults of the group's network."""

    name = "story"

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Ask every fault."""
        for fault in self.faults:
            copies = fault.cross(crossing, copies, now_ns)
            if not copies:
                break
        return copies


class SimulatedGroup:
    """A group in virtual time; its members are ``group.a``, ``group.b`` … or ``group["a"]``."""

    def __init__(
        self,
        members: int | str = 3,
        *,
        delay: str = "1ms",
        seed: int = 0,
        config: Config | None = None,
        **knobs: object,
    ) -> None:
        names = (
            members.split()
            if isinstance(members, str)
            else [node_name(at + 1) for at in range(members)]
        )
        self.config = (config or Config()).replace(**knobs)
        script = Script(
            seed, parse_duration(delay), NEVER_NS, actions=initial_actions(tuple(names))
        )
        self._rules = _FaultRules()
        self._diagram = DiagramTracer(script)
        self.world = World(
            self.config,
            script,
            faults=[self._rules],
            record=True,
            tracer=self._diagram,
            keep_payloads=True,
        )
        self._diagram.fates = self.world.network.fates
        self.world.driver.on_ready = self._on_ready
        self._nodes = {name: SimulatedNode(self, name) for name in names}
        self._view = 1
        self._members = list(names)
        self._partition: Partition | None = None
        self.world.run_until(0)

    def __getattr__(self, name: str) -> SimulatedNode:
        nodes = self.__dict__.get("_nodes", {})
        if name not in nodes:
            raise AttributeError(f"a group has no {name!r}; its members are {', '.join(nodes)}")
        node = nodes[name]
        assert isinstance(node, SimulatedNode)
        return node

    def __getitem__(self, name: str) -> SimulatedNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[SimulatedNode]:
        return iter(self._nodes.values())

    def _on_ready(self, host: Host, ready: Ready) -> None:
        self._nodes[host.name].events += ready.events

    def _perform(self, action: Action) -> None:
        """Perform an action now, and add it to the script."""
        self.world.script.actions.append(action)
        self.world.act(action)

    # Time

    @property
    def now_ns(self) -> int:
        """The time of the group."""
        return self.world.now_ns

    def run_for(self, duration: str) -> None:
        """Let time pass."""
        self.world.run_until(self.now_ns + parse_duration(duration))
        self.verify()

    def settle(self, within: str = DEFAULT_SETTLE_TIMEOUT) -> None:
        """Run until every message is acknowledged by every member; fail if that takes too long."""
        settled = self.world.settle(self.now_ns + parse_duration(within))
        self.verify()
        if not settled:
            raise AssertionError(f"the group did not settle within {within}\n{self.diagram()}")
        unused = [
            rule.text for rule in self._rules.faults if isinstance(rule, FaultRule) and rule.unused
        ]
        if unused:
            raise AssertionError(
                f"no frame was like {', '.join(map(repr, unused))}\n{self.diagram()}"
            )

    # Faults

    def drop(self, frames: str, times: int | None = 1) -> None:
        """Lose the next frame that fits the pattern (or the next ``times``, or with None all)."""
        self._rules.faults.append(FaultRule("drop", frames, lambda _: [], times))

    def duplicate(self, frames: str, after: str = "0s", times: int | None = 1) -> None:
        """Duplicate a frame; the copy arrives ``after`` the first."""
        after_ns = parse_duration(after)
        self._rules.faults.append(
            FaultRule("duplicate", frames, lambda copies: _doubled(copies, after_ns), times)
        )

    def delay(self, frames: str, by: str, times: int | None = 1) -> None:
        """Delay a frame."""
        by_ns = parse_duration(by)
        self._rules.faults.append(
            FaultRule("delay", frames, lambda copies: _delayed(copies, by_ns), times)
        )

    def hold(self, frames: str, until: str) -> None:
        """Hold a frame until a point in the group's time."""
        until_ns = parse_duration(until)
        self._rules.faults.append(
            FaultRule("hold", frames, lambda copies: _held(copies, until_ns - self.now_ns))
        )

    def partition(self, *side: str, symmetric: bool = True) -> None:
        """Cut the members of ``side`` off from the rest, until :meth:`heal`."""
        self.heal()
        self._partition = Partition(side, self.now_ns, NEVER_NS, symmetric=symmetric)
        self._rules.faults.append(self._partition)

    def heal(self) -> None:
        """End the partition."""
        if self._partition is not None:
            self._rules.faults.remove(self._partition)
            self._partition = None

    def pause(self, name: str) -> None:
        """Pause a process: it neither receives nor ticks."""
        self._perform(PauseProcess(self.now_ns, self[name].incarnation_name))

    def resume(self, name: str) -> None:
        """Resume a paused process."""
        self._perform(ResumeProcess(self.now_ns, self[name].incarnation_name))

    # Members

    def crash(self, name: str) -> None:
        """End a process without notice; the others learn of it only from a view."""
        self._perform(CrashProcess(self.now_ns, self[name].incarnation_name))

    def expel(self, name: str) -> None:
        """Install a view without this member at the others, whether it runs or not."""
        incarnation = self[name].incarnation_name
        self._members.remove(incarnation)
        self._install_everywhere()

    def readmit(self, name: str) -> None:
        """Install a view with a member that was expelled and still runs."""
        self._members.append(self[name].incarnation_name)
        self._install_everywhere()

    def leave(self, name: str) -> None:
        """Remove a member: install a view without it at the others, and end its process."""
        self.expel(name)
        self.crash(name)

    def join(self, name: str) -> SimulatedNode:
        """Start a new member, with a view for all; every sender announces its start."""
        self._start_incarnation(name)
        return self[name]

    def restart(self, name: str) -> SimulatedNode:
        """Crash a member and restart its node as a new incarnation, with one view for all."""
        incarnation = self[name].incarnation_name
        self.crash(name)
        if incarnation in self._members:
            self._members.remove(incarnation)
        self._start_incarnation(incarnation + "'")
        return self[name]

    def _start_incarnation(self, incarnation: str) -> None:
        node = incarnation.rstrip("'")
        if node not in self._nodes:
            self._nodes[node] = SimulatedNode(self, node)
            self._diagram.nodes.append(node)
        self._perform(StartProcess(self.now_ns, incarnation))
        self._members.append(incarnation)
        self._install_everywhere()

    def _install_everywhere(self) -> None:
        self._view += 1
        for incarnation in self._members:
            self._perform(InstallView(self.now_ns, incarnation, self._view, tuple(self._members)))

    # Results

    @property
    def violations(self) -> list[InvariantViolation]:
        """Every promise that was broken so far."""
        return self.world.oracle.violations

    def verify(self) -> None:
        """Fail, with the diagram, if a promise was broken."""
        if self.violations:
            broken = "\n".join(map(str, self.violations))
            raise AssertionError(f"{broken}\n{self.diagram()}")

    def diagram(self) -> str:
        """Return what happened, as lines in time."""
        return "\n".join(self._diagram.lines())

    def script(self) -> Script:
        """Return the script of this run so far, for a world to play or a scenario file to keep."""
        script = self.world.recorded()
        script.calm_ns = self.now_ns
        return script


def _doubled(copies: list[Copy], after_ns: int) -> list[Copy]:
    first = copies[0]
    return [*copies, Copy(first.delay_ns + after_ns, first.datagram, DUPLICATE)]


def _delayed(copies: list[Copy], by_ns: int) -> list[Copy]:
    return [Copy(delay_ns + by_ns, datagram, mark) for delay_ns, datagram, mark in copies]


def _held(copies: list[Copy], for_ns: int) -> list[Copy]:
    return [Copy(max(delay_ns, for_ns), datagram, mark) for delay_ns, datagram, mark in copies]

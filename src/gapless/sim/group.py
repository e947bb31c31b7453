"""A simulated group for tests that read like a story.

::

    group = SimulatedGroup(3, capacity=4)
    group.drop("DATA 1 a->b")
    group.a.send(b"x")
    group.settle()
    assert group.b.received == {"a": [b"x"]}

The network delivers every frame once, after ``delay``, unless a fault is set. Time passes only in
``SimulatedGroup.run_for`` and ``SimulatedGroup.settle``. Every check of the simulator runs at every
step; a violation fails the test and shows the diagram of the run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gapless.config import Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ConfigError
from gapless.faults.faults import DUPLICATE, NEVER_NS, Copy, Partition
from gapless.faults.frame_names import incarnation_name, node_name
from gapless.protocol.endpoint import Endpoint
from gapless.sim.scenario.diagram import DiagramTracer
from gapless.sim.scenario.frame_pattern import FaultRule
from gapless.sim.script import (
    CancelSend,
    CloseConnection,
    CrashProcess,
    InstallView,
    PauseProcess,
    ResumeProcess,
    Script,
    SendMessages,
    SetNextMode,
    SetReadDelay,
    SetRetransmitInterval,
    StartProcess,
    initial_actions,
)
from gapless.sim.world.world import World
from gapless.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gapless.faults.faults import Crossing, Fault
    from gapless.identity import Marks
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.oracle import InvariantViolation
    from gapless.sim.script import Action
    from gapless.sim.world.host import Host

MEMBER_SETTINGS = (
    "ack_delay",
    "ack_threshold",
    "conn_close_timeout",
    "conn_expiry_timeout",
    "initial_rtt",
    "jitter_percent",
    "max_batch_size",
    "max_out_of_band",
    "max_run_bytes",
    "max_xmit_req_size",
    "min_ack_interval",
    "slow_receiver_after",
    "stability_interval",
    "sync_min_interval",
    "unread_limit",
    "whole_runs",
)
"""The settings that may differ between the members of a simulated group.

The checks compare every member with the group's value of the other settings (the windows, the
profiles, when a loss is asked for and repaired), or the settings have no effect in this group
because the test gives the views. The bounds of time follow the slowest member.
"""

DEFAULT_SETTLE_TIMEOUT = "60s"
"""How long a group may take to settle, in virtual time."""


class ReceivedMessage(NamedTuple):
    """One message as a member received it."""

    sender: str
    """The incarnation that sent the message, such as ``a``, after a restart ``a'``."""
    payload: bytes
    seqno: int
    """The number of the message in its stream; the last number of a message in fragments."""
    mode: DeliveryMode
    view: int
    """The view in which the message was sent, 0 where the protocol does not record it."""


class SimulatedNode:
    """A node of a simulated group, with its current incarnation."""

    def __init__(self, group: SimulatedGroup, name: str) -> None:
        self.group = group
        self.name = name
        self._has_switched = False
        self.events: list[Event] = []
        self.messages: list[ReceivedMessage] = []
        """The messages delivered to this incarnation, in the order of their delivery."""

    @property
    def _host(self) -> Host:
        return self.group.world.hosts[self.name]

    @property
    def incarnation_name(self) -> str:
        """The name of the current incarnation: ``a``, after a restart ``a'``."""
        return self._host.incarnation_name

    @property
    def member(self) -> Endpoint:
        """The protocol machine of the current incarnation; ``LookupError`` if no process runs."""
        member = self._host.member
        if member is None:
            raise LookupError(
                f"{self.name} is not running: it has crashed or left; start it again with "
                f"group.restart({self.name!r}) or group.join({self.name!r})"
            )
        assert isinstance(member, Endpoint), "in this group the test gives the views"
        return member

    @property
    def received(self) -> dict[str, list[bytes]]:
        """The messages delivered to this incarnation, by the name of the origin."""
        return self._host.received

    @property
    def marks(self) -> dict[str, Marks]:
        """The marks of every stream at the member, by the name of the origin."""
        return {incarnation_name(origin): marks for origin, marks in self.member.digest().items()}

    def send(
        self,
        *payloads: bytes,
        to: str = "",
        mode: DeliveryMode | str | None = None,
        wait: bool = True,
        timeout: str | None = None,
        loopback: bool | None = None,
    ) -> int:
        """Send messages to the group, or to the node ``to``.

        Args:
            payloads: The payloads, in the order of sending.
            to: The name of the receiving node; empty for the group.
            mode: The delivery mode, or its name such as ``"acknowledged"``; None for the mode of
                ``set_next_mode``, else ordered.
            wait: Whether messages beyond the window wait for room.
            timeout: Maximum wait for room, such as ``"2s"``.
            loopback: Whether the sender delivers its own messages; None for the configured value.

        Returns:
            The number of this send among the sends of the incarnation, from 1; ``cancel`` takes it.

        Raises:
            LookupError: This node is not running, or no member of its view is at the node ``to``.
        """
        for payload in payloads:
            if not isinstance(payload, bytes):
                raise TypeError(f"a message is bytes, not {type(payload).__name__}: {payload!r}")
        self._require_running()
        if to:
            self._require_peer(to)
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
                self._mode_of_send(mode),
            )
        )
        return len(self._host.tickets)

    def _mode_of_send(self, mode: DeliveryMode | str | None) -> DeliveryMode | None:
        if mode is not None:
            return DeliveryMode.of(mode)
        return None if self._has_switched else DeliveryMode.ORDERED

    def set_next_mode(self, mode: DeliveryMode | str) -> None:
        """Send only the next message to the group that names no mode in ``mode``.

        The last switch counts. A message to one node, a message that names its mode, and a refused
        message leave the switch in place.
        """
        self._require_running()
        self._has_switched = True
        self.group._perform(
            SetNextMode(self.group.now_ns, self.incarnation_name, DeliveryMode.of(mode))
        )

    def _require_running(self) -> None:
        _ = self.member  # raises LookupError where no process runs

    def _require_peer(self, name: str) -> None:
        """Raise LookupError unless a member of this member's view is at node ``name``."""
        view = self.member.view
        node = self.group[name]._host.node
        if view is not None and node not in [member.node for member in view.members]:
            known = ", ".join(incarnation_name(member) for member in view.members)
            raise LookupError(f"{name} is not in the view of {self.name}, which has {known}")

    def cancel(self, nth: int) -> None:
        """Cancel send number ``nth`` of the current incarnation."""
        if not 1 <= nth <= len(self._host.tickets):
            raise LookupError(
                f"{self.incarnation_name} has made {len(self._host.tickets)} sends; there is no "
                f"send {nth}"
            )
        self.group._perform(CancelSend(self.group.now_ns, self.incarnation_name, nth))

    def set_read_delay(self, per_message: str) -> None:
        """Let the application take ``per_message`` for each message; needs an ``unread_limit``."""
        self._require_running()
        self.group._perform(
            SetReadDelay(self.group.now_ns, self.incarnation_name, parse_duration(per_message))
        )

    def set_xmit_interval(self, interval: str) -> None:
        """Change the retransmission interval of this member; ``"0s"`` ends retransmission."""
        self._require_running()
        self.group._perform(
            SetRetransmitInterval(
                self.group.now_ns, self.incarnation_name, parse_duration(interval)
            )
        )

    def close_connection(self, to: str) -> None:
        """Close the connection to the node ``to`` once every message on it is acknowledged."""
        self._require_running()
        self._require_peer(to)
        self.group._perform(CloseConnection(self.group.now_ns, self.incarnation_name, to))


class FaultHandle:
    """A fault that a test has set: ``undo`` ends it, ``struck`` counts the frames it changed."""

    def __init__(self, rules: _FaultRules, rule: FaultRule) -> None:
        self._rules = rules
        self._rule = rule

    @property
    def struck(self) -> int:
        """The number of frames that the fault has changed so far."""
        return self._rule.struck

    def undo(self) -> None:
        """End the fault; the test no longer expects it to change a frame."""
        if self._rule in self._rules.faults:
            self._rules.faults.remove(self._rule)


class _FaultRules:
    """The current faults of the simulated network."""

    name = "story"

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Apply every fault to the copies of a frame."""
        for fault in self.faults:
            copies = fault.cross(crossing, copies, now_ns)
            if not copies:
                break
        return copies


class SimulatedGroup:
    """A group in virtual time; the members are ``group.a``, ``group.b`` … or ``group["a"]``.

    Time passes only in ``run_for`` and ``settle``, so a test takes milliseconds and always has the
    same result.

    Args:
        members: The number of members (named ``a``, ``b`` …), or their names separated by spaces.
        delay: How long the network takes to deliver a frame.
        seed: The seed of all random choices.
        config: The settings of all members; by default ``Config()``.
        member_settings: Settings of single members, such as ``{"b": {"unread_limit": 8}}``. Only
            ``MEMBER_SETTINGS`` can differ: settings of how a member acknowledges, reads, batches
            and keeps connections. The checks hold all members to one value of the others.
        settings: Changed settings of all members, such as ``capacity=4``.

    Examples:
        A test that loses the first copy of message 3 on the way from ``a`` to ``b``:

        >>> from gapless.sim import SimulatedGroup
        >>> group = SimulatedGroup(3)
        >>> dropped = group.drop("DATA 3 a->b")
        >>> group.a.send(b"tea", b"milk", b"sugar")
        1
        >>> group.settle()
        >>> group.b.received["a"]
        [b'tea', b'milk', b'sugar']
    """

    def __init__(
        self,
        members: int | str = 3,
        *,
        delay: str = "1ms",
        seed: int = 0,
        config: Config | None = None,
        member_settings: Mapping[str, Mapping[str, object]] | None = None,
        **settings: object,
    ) -> None:
        names = _member_names(members)
        self.config = (config or Config()).replace(**settings)
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
            member_configs=self._member_configs(names, member_settings or {}),
        )
        self._diagram.fates = self.world.network.fates
        self.world.driver.on_ready = self._on_ready
        self._nodes = {name: SimulatedNode(self, name) for name in names}
        self._view = 1
        self._members = list(names)
        self._partition: Partition | None = None
        self._expulsions: dict[str, int] = {}
        self.world.run_until(0)

    def _member_configs(
        self, names: list[str], settings: Mapping[str, Mapping[str, object]]
    ) -> dict[str, Config]:
        for name, changed in settings.items():
            if name not in names:
                raise LookupError(_no_member(name, names))
            if shared := set(changed) - set(MEMBER_SETTINGS):
                raise ConfigError(
                    f"{', '.join(sorted(shared))} of {name}: members of a simulated group share "
                    f"every setting but {', '.join(MEMBER_SETTINGS)}; give it to all members"
                )
        return {name: self.config.replace(**changed) for name, changed in settings.items()}

    def __getattr__(self, name: str) -> SimulatedNode:
        nodes = self.__dict__.get("_nodes", {})
        if name not in nodes:
            raise AttributeError(_no_member(name, nodes))
        node = nodes[name]
        assert isinstance(node, SimulatedNode)
        return node

    def __getitem__(self, name: str) -> SimulatedNode:
        if name not in self._nodes:
            raise LookupError(_no_member(name, self._nodes))
        return self._nodes[name]

    def __iter__(self) -> Iterator[SimulatedNode]:
        return iter(self._nodes.values())

    def _on_ready(self, host: Host, ready: Ready) -> None:
        node = self._nodes[host.name]
        node.events += ready.events
        for delivery in ready.deliveries:
            sender, messages = incarnation_name(delivery.origin), delivery.messages()
            first = delivery.last - len(messages) + 1  # a message in fragments has its last seqno
            node.messages += [
                ReceivedMessage(sender, payload, first + at, delivery.mode, delivery.sent_in_view)
                for at, payload in enumerate(messages)
            ]

    def _perform(self, action: Action) -> None:
        """Perform an action now, and append the action to the script."""
        self.world.script.actions.append(action)
        self.world.act(action)

    # Time

    @property
    def now_ns(self) -> int:
        """The virtual time of the group."""
        return self.world.now_ns

    def run_for(self, duration: str) -> None:
        """Let virtual time pass, and verify the run."""
        self.world.run_until(self.now_ns + parse_duration(duration))
        self.verify()

    def settle(self, within: str = DEFAULT_SETTLE_TIMEOUT) -> None:
        """Run until every member has acknowledged every message, and verify the run.

        Args:
            within: Maximum virtual time until the group has settled.

        Raises:
            AssertionError: A check failed, the group did not settle, or a fault matched no frame.
        """
        give_up_ns = self.now_ns + parse_duration(within)
        settled = self.world.settle(give_up_ns)
        while self._expulsions and min(self._expulsions.values()) <= give_up_ns:
            self.world.run_until(max(self.now_ns, min(self._expulsions.values())))
            settled = self.world.settle(give_up_ns)
        self.verify()
        if not settled:
            raise AssertionError(f"the group did not settle within {within}\n{self.diagram()}")
        self.verify_faults()

    # Faults

    def drop(self, frames: str, times: int | None = 1) -> FaultHandle:
        """Drop the next frames that match the pattern, such as ``"DATA 1 a->b"``.

        Args:
            frames: The pattern of the frames.
            times: The number of frames to drop; None drops every matching frame.

        Returns:
            A handle: ``undo`` ends the fault, ``struck`` counts the dropped frames.
        """
        return self._add_rule(FaultRule("drop", frames, lambda _: [], times))

    def duplicate(self, frames: str, after: str = "0s", times: int | None = 1) -> FaultHandle:
        """Duplicate a matching frame; the copy arrives ``after`` the original."""
        after_ns = parse_duration(after)
        return self._add_rule(
            FaultRule("duplicate", frames, lambda copies: _doubled(copies, after_ns), times)
        )

    def delay(self, frames: str, by: str, times: int | None = 1) -> FaultHandle:
        """Delay a matching frame by the duration ``by``."""
        by_ns = parse_duration(by)
        return self._add_rule(
            FaultRule("delay", frames, lambda copies: _delayed(copies, by_ns), times)
        )

    def hold(self, frames: str, until: str) -> FaultHandle:
        """Hold a matching frame until a point in virtual time."""
        until_ns = parse_duration(until)
        return self._add_rule(
            FaultRule("hold", frames, lambda copies: _held(copies, until_ns - self.now_ns))
        )

    def _add_rule(self, rule: FaultRule) -> FaultHandle:
        if rule.times is not None and rule.times < 1:
            raise ValueError(f"times={rule.times} changes no frame; use 1 or more, or None for all")
        self._rules.faults.append(rule)
        return FaultHandle(self._rules, rule)

    def verify_faults(self) -> None:
        """Fail, with the diagram, if a fault has not changed as many frames as it was set for."""
        rules = [rule for rule in self._rules.faults if isinstance(rule, FaultRule)]
        unused = [
            f"{rule.name}({rule.text!r}) changed {rule.struck} of {rule.times} frames"
            for rule in rules
            if rule.unused
        ]
        if unused:
            self._rules.faults = [rule for rule in self._rules.faults if rule not in rules]
            raise AssertionError(
                f"{'; '.join(unused)}: no other frame matched; the diagram shows the frames that "
                f"were sent, and undo() ends a fault that is no longer wanted\n{self.diagram()}"
            )

    def partition(self, *side: str, symmetric: bool = True) -> None:
        """Cut the members of ``side`` off from the rest, until ``heal``."""
        for name in side:
            _ = self[name]  # raises LookupError if the name is unknown
        self.heal()
        self._partition = Partition(side, self.now_ns, NEVER_NS, symmetric=symmetric)
        self._rules.faults.append(self._partition)

    def heal(self) -> None:
        """End the partition."""
        if self._partition is not None:
            self._rules.faults.remove(self._partition)
            self._partition = None

    def pause(self, name: str) -> None:
        """Pause a process: a paused process receives no datagrams and runs no timers."""
        self._perform(PauseProcess(self.now_ns, self[name].incarnation_name))

    def resume(self, name: str) -> None:
        """Resume a paused process."""
        self._perform(ResumeProcess(self.now_ns, self[name].incarnation_name))

    # Members

    def crash(self, name: str, *, expel_after: str | None = None) -> None:
        """End a process without notice.

        The others learn of the crash from a view without the member: from ``expel``, or with
        ``expel_after`` by themselves after that time, as a failure detector would.
        """
        node = self[name]
        node._require_running()
        incarnation = node.incarnation_name
        self._perform(CrashProcess(self.now_ns, incarnation))
        if expel_after is not None:
            due_ns = self._expulsions[incarnation] = self.now_ns + parse_duration(expel_after)
            self.world.scheduler.push(due_ns, self._expel_crashed, incarnation)

    def _expel_crashed(self, incarnation: str) -> None:
        self._expulsions.pop(incarnation, None)
        if incarnation in self._members:  # the test may have expelled it meanwhile
            self._members.remove(incarnation)
            self._install_everywhere()

    def expel(self, name: str) -> None:
        """Install a view without the member at all others, whether the member runs or not."""
        incarnation = self[name].incarnation_name
        if incarnation not in self._members:
            raise LookupError(f"{name} is not in the view, which has {', '.join(self._members)}")
        self._members.remove(incarnation)
        self._install_everywhere()

    def readmit(self, name: str) -> None:
        """Install a view with a member that was expelled and still runs."""
        self[name]._require_running()
        incarnation = self[name].incarnation_name
        if incarnation in self._members:
            raise LookupError(f"{name} is in the view already; expel it first")
        self._members.append(incarnation)
        self._install_everywhere()

    def install_view(self, *members: str, only: tuple[str, ...] = ()) -> None:
        """Install a view with ``members`` at all of them, or at the nodes ``only``.

        The next change of the group installs a later view at every member.
        """
        self._members = [self[name].incarnation_name for name in members]
        self._install_at([self[name].incarnation_name for name in only] or self._members)

    def leave(self, name: str) -> None:
        """Remove a member: install a view without the member, then end its process."""
        self.expel(name)
        self.crash(name)

    def join(self, name: str) -> SimulatedNode:
        """Start a new member, with a view for all; every sender announces its start.

        A node that has left or crashed joins as a new incarnation.
        """
        node = self._nodes.get(name)
        if node is None:
            self._start_incarnation(*_member_names(name))
            return self[name]
        if node._host.member is not None:
            raise LookupError(f"{name} is running; restart({name!r}) replaces its process")
        self._start_incarnation(node._host.next_incarnation_name())
        return node

    def restart(self, name: str) -> SimulatedNode:
        """Restart the node of a member as a new incarnation, with a single view for all."""
        node = self[name]
        incarnation = node.incarnation_name
        if node._host.member is not None:
            self.crash(name)
        if incarnation in self._members:
            self._members.remove(incarnation)
        self._start_incarnation(node._host.next_incarnation_name())
        return node

    def _start_incarnation(self, incarnation: str) -> None:
        node = incarnation.rstrip("'")
        if node not in self._nodes:
            self._nodes[node] = SimulatedNode(self, node)
            self._diagram.nodes.append(node)
        self._nodes[node].messages = []
        self._perform(StartProcess(self.now_ns, incarnation))
        self._members.append(incarnation)
        self._install_everywhere()

    def _install_everywhere(self) -> None:
        self._install_at(self._members)

    def _install_at(self, incarnations: list[str]) -> None:
        self._view += 1
        for incarnation in incarnations:
            self._perform(InstallView(self.now_ns, incarnation, self._view, tuple(self._members)))

    # Results

    @property
    def violations(self) -> list[InvariantViolation]:
        """Every invariant violation so far."""
        return self.world.oracle.violations

    def verify(self) -> None:
        """Fail, with the diagram, if an invariant was violated."""
        if self.violations:
            broken = "\n".join(map(str, self.violations))
            raise AssertionError(f"{broken}\n{self.diagram()}")

    def diagram(self) -> str:
        """Return the diagram of the run, as lines in time."""
        return "\n".join(self._diagram.lines())

    def script(self) -> Script:
        """Return the script of the run so far, for a world to play or a scenario file to store."""
        script = self.world.recorded()
        script.calm_ns = self.now_ns
        return script


def _member_names(members: int | str) -> list[str]:
    """Return the names of the first members, from their number or from their names."""
    if isinstance(members, int):
        names = [node_name(at + 1) for at in range(members)]
    elif isinstance(members, str):
        names = members.split()
    else:
        raise TypeError(f"members are a number or names, not {type(members).__name__}")
    if not names:
        raise ValueError(f"a group needs a member, not {members!r}: write 3, or 'a b c'")
    wrong = [name for name in names if not re.fullmatch("[a-z]+", name)]
    if wrong or len(names) != len(set(names)):
        raise ValueError(f"{members!r}: names of members are distinct, of letters from a to z")
    return names


def _no_member(name: str, names: Iterable[str]) -> str:
    return f"no member {name!r} in this group; the members are {', '.join(names)}"


def _doubled(copies: list[Copy], after_ns: int) -> list[Copy]:
    first = copies[0]
    return [*copies, Copy(first.delay_ns + after_ns, first.datagram, DUPLICATE)]


def _delayed(copies: list[Copy], by_ns: int) -> list[Copy]:
    return [Copy(delay_ns + by_ns, datagram, mark) for delay_ns, datagram, mark in copies]


def _held(copies: list[Copy], for_ns: int) -> list[Copy]:
    return [Copy(max(delay_ns, for_ns), datagram, mark) for delay_ns, datagram, mark in copies]

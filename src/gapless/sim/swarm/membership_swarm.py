"""The swarm of groups that make their own views: a seed draws a whole run.

A run is a row of *incidents*: a crash, a restart, a leave, a pause, a partition, the absence of a
durable member, several incidents at once. Each incident has its own stretch of time, long enough
for the group to notice, or shorter, so that incidents overlap. The applications send all the time.

Three characters, as in ``gapless.sim.swarm.stream_swarm``: *calm* runs only have joins, leaves and
crashes (no running member may be suspected), *gentle* runs also have pauses too short for an
expulsion, *swarm* runs may have everything. The profile ``ordered`` needs lossless links: ordered
runs are calm, with FIFO links.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gapless.config import UNICAST_PROFILE_NAMES
from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import (
    NEVER_NS,
    Delay,
    DriftingClock,
    Duplicate,
    LateTimers,
    LongHold,
    Partition,
    Targeted,
)
from gapless.faults.frame_names import node_name
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.rng import per_mille, split
from gapless.sim.script import (
    HEAL,
    ONE_WAY,
    PARTITION,
    ChangePartition,
    CrashProcess,
    LeaveGroup,
    NoteEvidence,
    PauseProcess,
    ResumeProcess,
    Script,
    SendMessages,
    SetReadDelay,
    StartProcess,
    payload,
)
from gapless.sim.swarm.profile_draw import assign_destinations, rare_branches, with_profile
from gapless.sim.swarm.stream_swarm import _SIMPLE, SwarmPlan, draw_config
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gapless.config import Config
    from gapless.faults.faults import Copy, Crossing, Fault
    from gapless.sim.script import Action

MESSAGES = 40
"""Number of messages of each node over the whole run."""

CHARACTERS = ("calm", "gentle", "swarm")
"""The characters of runs."""

FAULTS = (
    "refuse",
    "loss",
    "burst",
    "targeted",
    "corrupt",
    "truncate",
    "garbage",
    "foreign",
    "stranger",
    "duplicate",
    "hold",
    "delay",
    "late timers",
    "clocks",
    "slow reader",
)
"""Every class of fault of networks and processes; incidents come on top."""

_PROFILES = ("nakack4", "nakack", "classic", "ordered", "unicast3")
_WEIGHTS = (14, 2, 2, 1, 2)
_MAX_NODES = 8
_SILENT_CRASHES = 0.4
_FALSE_HINTS = (DeathEvidence.REFUSED, DeathEvidence.CLOSED, DeathEvidence.EXITED)
"""The hints that a run may draw; another one would change the draws of every seed."""


def draw_membership(
    seed: int,
    *,
    members: int | None = None,
    messages: int = MESSAGES,
    character: str | None = None,
    profile: str | None = None,
    config: Config | None = None,
) -> SwarmPlan:
    """Draw the run of ``seed``.

    Args:
        seed: The seed of every draw.
        members: The number of members instead of the drawn number.
        messages: The number of messages of each node.
        character: ``calm``, ``gentle`` or ``swarm`` instead of the drawn character.
        profile: The profile of every member instead of the drawn profile.
        config: The settings instead of the drawn settings.
    """
    rng = split(seed, "gathering")
    character = character or rng.choices(CHARACTERS, weights=(2, 2, 16))[0]
    drawn = split(seed, "gathering profile").choices(_PROFILES, weights=_WEIGHTS)[0]
    profile = profile or (drawn if config is None else config.profile)
    character = "calm" if profile == "ordered" else character
    members = members or rng.choices(range(2, _MAX_NODES + 1), weights=(1, 3, 4, 4, 3, 2, 1))[0]
    names = tuple(node_name(node) for node in range(1, members + 1))
    on = _draw_fault_classes(split(seed, "gathering classes"), character)
    pace = config or draw_settings(split(seed, "gathering config"), slow_reader="slow reader" in on)
    delay_ns = split(seed, "gathering link").choice((50_000, NS_PER_MS, NS_PER_MS, 5 * NS_PER_MS))
    durable = profile in {"nakack4", *UNICAST_PROFILE_NAMES}
    story = _IncidentPlan(
        split(seed, "story"), names, pace, delay_ns, character, durable, split(seed, "disks")
    )
    story.draw()
    work = _work(split(seed, "gathering work"), names, messages, story, pace)
    story.actions += _evidence(split(seed, "gathering evidence"), story)
    story.crash_in_silence(split(seed, "gathering silence"))
    script = Script(
        seed,
        delay_ns,
        story.now_ns + pace.heartbeat_interval_ns,
        actions=story.actions,
        fifo=profile == "ordered",
        rare=rare_branches(seed, character),
        membership=True,
    )
    script.actions += assign_destinations(
        seed, work, names, profile, "swarm" if character == "swarm" else "calm"
    )
    _machines(seed, on, names, script)
    script.actions = _drop_before_start(script.actions)
    faults = _faults(seed, on, story)
    late = _late(split(seed, "gathering late"), on, pace)
    whole = config or with_profile(seed, pace, profile)
    whole = replace(whole, xmit_from_random_member=False) if profile == "nakack" else whole
    return SwarmPlan(seed, character, profile, whole, script, faults, late, on)


def _drop_before_start(actions: list[Action]) -> list[Action]:
    """Return the actions in order, without the actions of nodes before their start."""
    actions = sorted(actions, key=lambda action: action.at_ns)
    first_ns: dict[str, int] = {}
    for action in actions:
        if isinstance(action, StartProcess):
            first_ns.setdefault(action.who, action.at_ns)
    left: list[Action] = []
    for action in actions:
        start_ns = first_ns.get(action.who, NEVER_NS)
        if isinstance(action, ChangePartition) or start_ns <= action.at_ns:
            left.append(action)
        elif isinstance(action, SetReadDelay) and start_ns < NEVER_NS:
            left.append(action._replace(at_ns=start_ns))
    return sorted(left, key=lambda action: (action.at_ns, isinstance(action, SetReadDelay)))


def _draw_fault_classes(rng: Random, character: str) -> tuple[str, ...]:
    if character != "swarm":
        return ()
    share = rng.choice((0.0, 0.1, 0.25, 0.4))
    return tuple(name for name in FAULTS if rng.random() < share)


def draw_settings(rng: Random, *, slow_reader: bool) -> Config:
    """Draw the settings: of streams as ever, of membership short, for many view changes."""
    config = draw_config(rng, slow_reader=slow_reader, only_loss=False)
    beat_ns = rng.choice((50, 100, 200)) * NS_PER_MS
    xmit_ns = rng.choice((20, 50, 100, 250)) * NS_PER_MS
    knobs: dict[str, Any] = {
        "xmit_interval_ns": xmit_ns,
        "ack_delay_ns": min(xmit_ns, config.ack_delay_ns),
        "min_grace_ns": min(xmit_ns, config.min_grace_ns),
        "min_retry_ns": min(xmit_ns, config.min_retry_ns),
        "tail_delay_ns": min(xmit_ns, config.tail_delay_ns),
        "heartbeat_interval_ns": beat_ns,
        "suspect_after_ns": rng.choice((3, 4, 6)) * beat_ns,
        "verify_timeout_ns": rng.choice((1, 2, 3)) * beat_ns,
        "monitors": rng.choice((1, 2, 2, 3)),
        "found_after_ns": rng.choice((50, 100, 300)) * NS_PER_MS,
        "join_interval_ns": rng.choice((20, 50, 100)) * NS_PER_MS,
        "join_confirm_timeout_ns": rng.choice((50, 200, 400)) * NS_PER_MS,
        "view_bundle_delay_ns": rng.choice((0, 5, 20, 50)) * NS_PER_MS,
        "merge_interval_ns": rng.choice((150, 300, 600)) * NS_PER_MS,
        "leave_timeout_ns": rng.choice((200, 1000, 3000)) * NS_PER_MS,
        "retention_timeout_ns": rng.choice((300, 1000, 4000)) * NS_PER_MS,
        "on_retention_full": rng.choice(("wait", "wait", "release")),
        "slow_receiver_after_ns": rng.choice((200, 500, 2000)) * NS_PER_MS,
        "on_slow_receiver": rng.choice(("warn", "wait", "expel")),
        "state_timeout_ns": rng.choice((100, 300, 1000)) * NS_PER_MS,
        "state_window_bytes": rng.choice((1 << 10, 4 << 10, 16 << 10)),
        "state_backlog_bytes": rng.choice((1 << 10, 16 << 10, 64 << 20)),
        "loopback": True,
    }
    if knobs["on_slow_receiver"] == "expel":
        knobs["slow_receiver_after_ns"] = max(knobs["slow_receiver_after_ns"], 2 * xmit_ns)
    return replace(config, **knobs)


# The story


@dataclass(slots=True)
class _IncidentPlan:
    """The incidents of a run during the draw: running nodes, current time, actions."""

    rng: Random
    names: tuple[str, ...]
    config: Config
    delay_ns: int
    character: str
    durable: bool
    disks: Random
    now_ns: int = 0
    actions: list[Action] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    bursts_ns: list[int] = field(default_factory=list)
    durable_nodes: set[str] = field(default_factory=set)
    storing: set[str] = field(default_factory=set)

    def draw(self) -> None:
        """Draw everything: the beginning, the incidents, and the end, when every pause is over."""
        self._begin()
        for _ in range(self.rng.choice((1, 2, 3, 4))):
            choices = self._choices()
            self.rng.choice(choices)()
            self._pass(self.rng.choice((0, 0, 1, 2)))
        if not self.running:
            self._start(self.names[0], self.now_ns)
        self._pass(1)

    @property
    def notice_ns(self) -> int:
        """How long a crash takes, roughly, until noticed and followed by a view."""
        config = self.config
        silence_ns = config.suspect_after_ns + 2 * config.verify_timeout_ns
        return (
            silence_ns
            + config.join_confirm_timeout_ns
            + config.view_bundle_delay_ns
            + config.heartbeat_interval_ns
        )

    def _pass(self, notices: int) -> None:
        """Let time pass: hardly any, or some multiple of the time to detect a crash."""
        self.now_ns += notices * self.notice_ns + self.rng.randrange(self.notice_ns // 4)

    def _soon_ns(self, most_ns: int) -> int:
        return self.now_ns + self.rng.randrange(max(1, most_ns))

    def _choices(self) -> list[Callable[[], None]]:
        down = [name for name in self.names if name not in self.running]
        found: list[Callable[[], None]] = [self._restart, self._leave]
        if len(self.running) > 1:
            found += [self._crash, self._coordinator_dies]
        if len(self.running) > 3:
            found += [self._two_crash, self._two_crash]
        if down:
            found += [self._join_some]
        if down and len(self.running) > 1:
            found += [
                self._change_at_once,
                self._change_at_once,
                self._provider_dies,
                self._provider_dies,
            ]
        if self.durable and len(self.running) > 1:
            found += [self._durable_restart, self._durable_restart]
        if self.character != "calm" and self.running:
            found.append(self._pause_briefly)
        if self.character == "gentle" and len(self.running) > 2:
            found += [self._pause_for_suspicion, self._pause_for_suspicion]
        if self.character == "swarm" and len(self.running) > 1:
            found += [
                self._pause_beyond_suspicion,
                self._partition_group,
                self._partition_group,
                self._partition_group,
            ]
            found += (
                [self._block_windows, self._block_windows]
                if self.config.on_slow_receiver == "expel"
                else []
            )
        return found

    # The beginning

    def _begin(self) -> None:
        """Start some of the nodes, or all: at once, or one after the other."""
        count = self.rng.choice((1, 2, len(self.names), len(self.names)))
        spread_ns = self.rng.choice(
            (0, 0, self.config.found_after_ns, 4 * self.config.found_after_ns)
        )
        if self.durable:
            self.durable_nodes = {name for name in self.names if self.rng.random() < 0.4}
            self.storing = {
                name for name in sorted(self.durable_nodes) if self.disks.random() < 0.5
            }
        for name in self.names[:count]:
            self._start(name, self.rng.randrange(spread_ns + 1))
        self.now_ns = spread_ns + self.config.found_after_ns
        self._pass(self.rng.choice((0, 1)))

    def _start(self, name: str, at_ns: int) -> None:
        state, stores = self.rng.random() < 0.3, name in self.storing
        durable = f"name-{name}" if name in self.durable_nodes else ""
        self.actions.append(StartProcess(at_ns, name, durable, state and not stores, stores))
        if name not in self.running:
            self.running.append(name)

    # Incidents

    def _join_some(self) -> None:
        """Let a node or several nodes join, at once."""
        down = [name for name in self.names if name not in self.running]
        for name in self.rng.sample(down, self.rng.randint(1, len(down))):
            self._start(
                name, self._soon_ns(self.rng.choice((1, self.config.view_bundle_delay_ns + 1)))
            )
        self._send_burst()

    def _stop(self, name: str) -> None:
        self.running.remove(name)

    def _crash(self) -> None:
        name = self.rng.choice(self.running)
        self._send_burst()
        self.actions.append(CrashProcess(self.now_ns, name))
        self._stop(name)

    def _two_crash(self) -> None:
        """Crash two members at the same time while the windows are full."""
        self._send_burst()
        for name in self.rng.sample(self.running, 2):
            self.actions.append(
                CrashProcess(self._soon_ns(self.config.heartbeat_interval_ns), name)
            )
            self._stop(name)
        self._pass(1)

    def _coordinator_dies(self) -> None:
        """A node joins, and a moment later the most likely coordinator crashes."""
        down = [name for name in self.names if name not in self.running]
        oldest = self.running[0]
        if down:
            self._start(self.rng.choice(down), self.now_ns)
        config = self.config
        moments_ns = (
            config.view_bundle_delay_ns + 10 * NS_PER_MS,
            config.join_confirm_timeout_ns,
            config.join_interval_ns,
        )
        moment_ns = self.rng.choice(moments_ns)
        self.actions.append(CrashProcess(self._soon_ns(moment_ns), oldest))
        self._stop(oldest)
        self._pass(1)

    def _restart(self) -> None:
        """Crash a process and restart it at the same address, before or after the notice."""
        name = self.rng.choice(self.running) if self.running else self.names[0]
        away_ns = self.rng.choice(
            (NS_PER_MS, self.config.heartbeat_interval_ns, 2 * self.notice_ns)
        )
        if name in self.running:
            self.actions.append(CrashProcess(self.now_ns, name))
            self._stop(name)
        self._start(name, self.now_ns + away_ns)
        self.now_ns += away_ns

    def _leave(self) -> None:
        """Let a member leave, often the oldest; sometimes the member returns."""
        if not self.running:
            return
        name = self.running[0] if self.rng.random() < 0.5 else self.rng.choice(self.running)
        self._send_burst()
        self.actions.append(LeaveGroup(self._soon_ns(10 * NS_PER_MS), name))
        self._stop(name)
        if self.character == "swarm" and self.running and self.rng.random() < 0.4:
            self._leave_unheard(name)
        if self.rng.random() < 0.3:
            self._pass(2)
            self.now_ns += self.config.leave_timeout_ns
            self._start(name, self.now_ns)

    def _leave_unheard(self, name: str) -> None:
        """A leave without an answer: the member is alone, or another acknowledges too late."""
        length_ns = 2 * self.config.leave_timeout_ns + self.notice_ns
        if self.rng.random() < 0.5:
            self._pause(length_ns)
            return
        self._partition(Partition([name], self.now_ns, self.now_ns + length_ns))
        self.now_ns += length_ns

    def _change_at_once(self) -> None:
        """Let members leave while joined members are about to confirm their view."""
        leaving = self.rng.sample(
            self.running[1:] or self.running, min(2, len(self.running[1:] or self.running))
        )
        for name in [name for name in self.names if name not in self.running][:2]:
            self._start(name, self.now_ns)
        for name in leaving:
            at_ns = (
                self.now_ns
                + self.config.view_bundle_delay_ns
                + self.rng.randrange(2 * self.delay_ns)
            )
            self.actions.append(LeaveGroup(at_ns, name))
            self._stop(name)

    def _provider_dies(self) -> None:
        """Let a node join with state transfer, and crash the most likely provider."""
        down = [name for name in self.names if name not in self.running]
        name, oldest = self.rng.choice(down), self.running[0]
        self._send_burst()
        self.actions.append(
            StartProcess(
                self.now_ns, name, f"name-{name}" if name in self.durable_nodes else "", True
            )
        )
        self.running.append(name)
        at_ns = (
            self.now_ns
            + self.config.view_bundle_delay_ns
            + self.rng.randrange(6 * self.delay_ns, 20 * self.delay_ns)
        )
        self.actions.append(CrashProcess(at_ns, oldest))
        self._stop(oldest)
        self._pass(1)

    def _block_windows(self) -> None:
        """Pause a member under load until the windows of senders are full."""
        self.bursts_ns += (self.now_ns,) * 3
        self._pause(self.config.slow_receiver_after_ns * 3 // 2 + self.config.view_bundle_delay_ns)

    def _durable_restart(self) -> None:
        """A durable member crashes under load and returns, in time or too late."""
        named = [name for name in self.running if name in self.durable_nodes]
        if not named:
            self._crash()
            return
        name = self.rng.choice(named)
        self._send_burst()
        self.actions.append(CrashProcess(self.now_ns, name))
        self._stop(name)
        hold_ns = self.config.retention_timeout_ns
        away_ns = self.rng.choice(
            (NS_PER_MS, self.notice_ns, hold_ns // 2, self.notice_ns + hold_ns // 2, 3 * hold_ns)
        )
        self._send_burst(self.now_ns + min(away_ns, self.notice_ns))
        self.now_ns += away_ns
        self._start(name, self.now_ns)

    def _pause_briefly(self) -> None:
        """Pause a member or two, too short for an expulsion, and often only just."""
        longest_ns = self.config.suspect_after_ns * 94 // 100
        shortest_ns = self.rng.choice((longest_ns // 4, longest_ns * 19 // 20))
        self._pause(self.rng.randrange(shortest_ns, longest_ns))

    def _pause_for_suspicion(self) -> None:
        """Pause a member or two for so long that some members, or all, count them as dead."""
        config = self.config
        shortest_ns = config.suspect_after_ns + config.verify_timeout_ns
        self._pause(shortest_ns + self.rng.randrange(2 * config.verify_timeout_ns))

    def _pause_beyond_suspicion(self) -> None:
        """Pause a member or two, long enough for an expulsion."""
        self._send_burst()
        self._pause(self.notice_ns + self.rng.randrange(2 * self.notice_ns))

    def _pause(self, length_ns: int) -> None:
        for name in self.rng.sample(
            self.running, min(len(self.running), self.rng.choice((1, 1, 2)))
        ):
            self.actions += (
                PauseProcess(self.now_ns, name),
                ResumeProcess(self.now_ns + length_ns, name),
            )
        self.now_ns += length_ns

    def _partition_group(self) -> None:
        """Cut the network: in halves, in thirds, a lone member; one-way or not; perhaps twice."""
        rng = self.rng
        self._send_burst()
        start_ns, end_ns = self.now_ns, self.now_ns + rng.choice((1, 2, 3)) * self.notice_ns
        if len(self.running) > 2 and rng.random() < 0.4:
            members = rng.sample(self.running, len(self.running))
            third = max(1, len(members) // 3)
            for side in (members[:third], members[third : 2 * third]):
                self._partition(Partition(side, start_ns, end_ns))
        else:
            self._partition(Partition.draw(rng, self.running, start_ns, end_ns))
        self.now_ns = end_ns
        self._send_burst(rng.randrange(start_ns, end_ns))
        if len(self.running) > 1 and rng.random() < 0.4:
            # Just when the parts have found each other.
            start_ns = end_ns + rng.randrange(2 * self.config.merge_interval_ns)
            end_ns = start_ns + self.notice_ns
            self._partition(Partition.draw(rng, self.running, start_ns, end_ns))
            self.now_ns = end_ns
        elif len(self.running) > 1 and rng.random() < 0.3:
            name = rng.choice(self.running)
            self.actions.append(
                CrashProcess(end_ns + rng.randrange(2 * self.config.merge_interval_ns), name)
            )
            self._stop(name)
            self.now_ns += 2 * self.config.merge_interval_ns

    def _partition(self, partition: Partition) -> None:
        side = ",".join(sorted(partition.side))
        kind = PARTITION if partition.symmetric else ONE_WAY
        self.actions += (
            ChangePartition(partition.start_ns, side, kind),
            ChangePartition(partition.end_ns, side, HEAL),
        )

    def crash_in_silence(self, rng: Random) -> None:
        """Crash a member when no application sends any more: only heartbeats show its death."""
        if len(self.running) < 3 or rng.random() >= _SILENT_CRASHES:
            return
        self.now_ns += 2 * self.notice_ns
        # The coordinator watches the youngest members itself.
        name = rng.choice(self.running[:-1])
        self.actions.append(CrashProcess(self.now_ns, name))
        self._stop(name)

    def _send_burst(self, at_ns: int | None = None) -> None:
        """Let all members send a burst at this time."""
        if self.rng.random() < 0.6:
            self.bursts_ns.append(self.now_ns if at_ns is None else at_ns)


def _evidence(rng: Random, story: _IncidentPlan) -> list[Action]:
    """Draw the hints of death: true ones after most crashes, and false ones at any time."""
    if rng.random() < 0.5:
        return []
    hints: list[Action] = []
    for crash in [action for action in story.actions if isinstance(action, CrashProcess)]:
        for name in story.names:
            if name != crash.who and rng.random() < 0.7:
                at_ns = crash.at_ns + rng.randrange(5 * NS_PER_MS)
                first = rng.choice((DeathEvidence.EXITED, DeathEvidence.CLOSED))
                hints.append(NoteEvidence(at_ns, name, crash.who, first))
                # The answer to the question that the hint has caused, or to one much later.
                at_ns += rng.choice((2 * story.delay_ns, rng.randrange(story.notice_ns)))
                hints.append(NoteEvidence(at_ns, name, crash.who, DeathEvidence.REFUSED))
    for _ in range(rng.choice((0, 4, 12))):
        who, about = rng.choice(story.names), rng.choice(story.names)
        if who != about:
            at_ns = rng.randrange(story.now_ns)
            hints += (
                NoteEvidence(at_ns, who, about, evidence)
                for evidence in rng.sample(_FALSE_HINTS, 2)
            )
    return hints


# Load


def _work(
    rng: Random, names: tuple[str, ...], messages: int, story: _IncidentPlan, config: Config
) -> list[Action]:
    """Draw the sends: some over the whole time, some in bursts around the incidents."""
    sizes = rng.choice(
        ((0, 1, 10), (20, 20, 40), (0, 50, 200), (1, 30, 30, 2 * config.max_frame_bytes))
    )
    most_at_once = rng.choice((1, 4, 8))
    actions: list[Action] = []
    for name in names:
        number = 0
        while number < messages:
            count = min(rng.randint(1, most_at_once), messages - number)
            payloads = tuple(payload(name, number + at, rng.choice(sizes)) for at in range(count))
            number += count
            if story.bursts_ns and rng.random() < 0.6:
                at_ns = rng.choice(story.bursts_ns) + rng.randrange(config.suspect_after_ns)
            else:
                at_ns = rng.randrange(story.now_ns)
            acknowledged = story.durable and story.disks.random() < 0.2
            mode = DeliveryMode.ACKNOWLEDGED if acknowledged else DeliveryMode.ORDERED
            actions.append(SendMessages(min(at_ns, story.now_ns), name, payloads, mode=mode))
    return actions


# Faults of network and processes


def _faults(seed: int, on: tuple[str, ...], story: _IncidentPlan) -> list[Fault]:
    made: list[Fault] = []
    for name in on:
        rng = split(seed, f"gathering {name}")
        if name == "targeted":
            made.append(_target(rng, story))
        elif name == "duplicate":
            made.append(
                Duplicate(
                    rng, per_mille(rng, (10, 100, 300)), rng.choice((0, 100, 1000)) * NS_PER_MS
                )
            )
        elif name == "hold":
            made.append(
                LongHold(
                    rng,
                    per_mille(rng, (2, 20)),
                    rng.choice((200, 2000)) * NS_PER_MS,
                    rng.randint(1, 5),
                )
            )
        elif name == "delay":
            made.append(
                Delay(rng, rng.choice((0, 0, 5)) * NS_PER_MS, rng.choice((1, 5, 10)) * NS_PER_MS)
            )
        elif name in _SIMPLE:
            made.append(_SIMPLE[name](rng))
    return made


def _target(rng: Random, story: _IncidentPlan) -> Fault:
    """Draw targeted losses: frames of membership, once or for a while."""
    kind = rng.choice(
        (
            "VIEW",
            "VIEW",
            "JOIN",
            "ALIVE",
            "SUSPECT",
            "LEAVE",
            "BEACON",
            "MERGE",
            "AGREE",
            "OFFER",
            "CHUNK",
        )
    )
    if rng.random() < 0.5:
        victim = rng.choice(story.names)
        return Targeted(
            "about", lambda crossing: crossing.label.kind == kind and crossing.target == victim
        )
    start_ns = rng.randrange(story.now_ns)
    return _KindLoss(kind, start_ns, start_ns + rng.randrange(1, 2 * story.notice_ns))


class _KindLoss:
    """Loses every frame of a kind for a while."""

    name = "target-about"

    def __init__(self, kind: str, start_ns: int, end_ns: int) -> None:
        self.kind = kind
        self.start_ns = start_ns
        self.end_ns = end_ns

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Drop the crossing if kind and time match."""
        return (
            []
            if crossing.label.kind == self.kind and self.start_ns <= now_ns < self.end_ns
            else copies
        )


def _late(rng: Random, on: tuple[str, ...], config: Config) -> LateTimers | None:
    if "late timers" not in on:
        return None
    longest_ns = rng.choice((config.heartbeat_interval_ns // 2, config.suspect_after_ns // 2))
    return LateTimers(rng, per_mille(rng, (50, 300)), longest_ns, rng.choice((0, 0, NS_PER_MS)))


def _machines(seed: int, on: tuple[str, ...], names: tuple[str, ...], script: Script) -> None:
    rng = split(seed, "gathering clocks")
    for name in names:
        drift_ppm = rng.choice((-50_000, -1000, 0, 1000, 50_000)) if "clocks" in on else 0
        script.clocks[name] = DriftingClock(rng.randrange(1000) * NS_PER_S, drift_ppm)
    if "slow reader" in on:
        rng = split(seed, "gathering reader")
        per_message_ns = rng.choice((1, 10, 50)) * NS_PER_MS
        script.actions += (
            SetReadDelay(0, name, per_message_ns) for name in names if rng.random() < 0.5
        )

"""Rotations of the keys of a simulated group, under load and in the usual steps.

For each new key: every keyring file gets the key (*open*), then the key seals (*seal*), then the
former key is retired (*retire*). The files change at different times. The next step begins once
every file has changed, and every running process has read its file; a paused process reads its file
after the pause. The last step waits until the former key is not needed any more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.rng import split
from gapless.units import NS_PER_MS
from gapless.wire.seal_keys import KeyState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gapless.sim.sealing.sealed_group import SealedGroup
    from gapless.sim.world.host import Host
    from gapless.wire.seal_keys import SealKey

_POLL_NS = 5 * NS_PER_MS


class Rotation:
    """The operator of the keyring files; ``in_flight`` returns the datagrams on the network."""

    def __init__(
        self,
        group: SealedGroup,
        hosts: Mapping[str, Host],
        in_flight: Callable[[], Iterable[bytes]],
    ) -> None:
        self._group = group
        self._hosts = hosts
        self._in_flight = in_flight
        self._rng = split(group.plan.seed, "rotation")
        self._steps: deque[tuple[KeyState, int]] = deque()
        self._unwritten = 0
        self._ready_ns = 0
        former = [key.key_id for key in group.plan.first_keys()][-1]
        for successor, at_ns in zip(group.plan.successors, group.plan.rotations_ns, strict=True):
            group.scheduler.push(at_ns, self._begin, successor, former)
            former = successor

    def _begin(self, successor: int, former: int) -> None:
        """Add the steps of a rotation, after the steps of the rotation before."""
        idle = not self._steps and not self._unwritten
        self._steps += (
            (KeyState.OPEN, successor),
            (KeyState.SEAL, successor),
            (KeyState.RETIRED, former),
        )
        if idle:
            self._poll()

    def _poll(self) -> None:
        """Let processes read changed files; begin the next step once the last step is done."""
        group, now_ns = self._group, self._group.scheduler.now_ns
        for node, host in self._hosts.items():
            if host.member is not None and not host.paused:
                group.reload(node)
        waits = self._unwritten or any(map(self._is_stale, self._hosts.values()))
        if not waits and self._steps and self._may_begin():
            self._begin_step(*self._steps.popleft())
        elif not waits and not self._steps:
            return
        group.scheduler.push(now_ns + _POLL_NS, self._poll)

    def _is_stale(self, host: Host) -> bool:
        """Return whether the running process has not read the present file."""
        process = self._group.processes.get(host.name)
        return (
            host.member is not None
            and process is not None
            and process.ring is not self._group.files[host.name]
        )

    def _may_begin(self) -> bool:
        """Return whether the next step may begin: a retired key is not needed any more."""
        state, key_id = self._steps[0]
        if state is not KeyState.RETIRED:
            return True
        if self._group.scheduler.now_ns < self._ready_ns:
            return False
        mark = key_id.to_bytes(4, "little")
        return not self._group.plan.waits_for_network or not any(
            datagram[4:8] == mark for datagram in self._in_flight()
        )

    def _begin_step(self, state: KeyState, key_id: int) -> None:
        plan, scheduler = self._group.plan, self._group.scheduler
        self._unwritten = len(plan.nodes)
        for node in plan.nodes:
            at_ns = scheduler.now_ns + self._rng.randrange(plan.pace_ns + 1)
            scheduler.push(at_ns, self._write, node, state, key_id)
        self._ready_ns = scheduler.now_ns + plan.pace_ns + plan.hold_ns
        self._group.counts[f"rotation-{state}"] += 1

    def _write(self, node: str, state: KeyState, key_id: int) -> None:
        self._unwritten -= 1
        group = self._group
        group.write_file(node, _changed(group, node, state, key_id))
        host = self._hosts.get(node)
        if host is not None and host.member is not None and not host.paused:
            group.reload(node)


def _changed(group: SealedGroup, node: str, state: KeyState, key_id: int) -> tuple[SealKey, ...]:
    """Return the keys of a file after a step; two keys never seal."""
    keys = {key.key_id: key for key in group.files[node].keys}
    if state is KeyState.SEAL:
        keys = {
            number: key._replace(state=KeyState.OPEN) if key.state is KeyState.SEAL else key
            for number, key in keys.items()
        }
    keys[key_id] = keys.get(key_id, group.plan.key(key_id))._replace(state=state)
    return tuple(keys.values())

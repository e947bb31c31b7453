"""Datagrams at the edges of a replay window, which a short run would never reach.

A member seals many datagrams that its socket refuses. The first, the second and the last of them
arrive later at another member: the last moves the window, the second is the oldest datagram that
must open, and the first is too old. Each is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.rng import split
from gapless.wire.seal import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.sim.sealing.sealed_group import SealedGroup
    from gapless.sim.world.host import Host


class WindowEdge:
    """The fault; ``inject`` gives a datagram to the socket of a host."""

    def __init__(
        self,
        group: SealedGroup,
        hosts: Mapping[str, Host],
        inject: Callable[[Host, bytes], None],
    ) -> None:
        self._group = group
        self._hosts = hosts
        self._inject = inject
        self._rng = split(group.plan.seed, "window edge")
        for at_ns in group.plan.edges_ns:
            group.scheduler.push(at_ns, self._strike)

    def _strike(self) -> None:
        group = self._group
        awake = [host for host in self._hosts.values() if host.member and not host.paused]
        sealing = [host for host in awake if group.processes[host.name].last_sent]
        if not sealing or len(awake) < 2:
            return
        source = self._rng.choice(sealing)
        target = self._rng.choice([host for host in awake if host is not source])
        group.counts["window-edge"] += 1
        first, second, last = group.seal_refused(source, WINDOW)
        for datagram in (last, second, second, first, last):
            self._inject(target, datagram)

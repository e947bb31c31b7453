"""Nodes behind a broken link: the coordinator does not admit such a node for a while.

On an expulsion because of a broken link: the node is kept out for four times ``suspect_after``. If
the node is expelled again soon after the return, the time doubles, up to sixteen times
``suspect_after``. Every return over a still broken link stops the senders for the time of a
detection; longer times make such returns rare.

On a joiner heard only by relay, without a confirmation of the view: the coordinator does not hear
the joiner. The node is kept out for ``suspect_after``, then for twice as long each time. A frame
received directly from the joiner shows a repaired link, and ends the time at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gapless.config import Config

_PERIODS = 4
"""How long a node is kept out for the first time, in units of ``suspect_after``."""
_MAX_PERIODS = 16
"""Maximum time for which a node is kept out, in units of ``suspect_after``."""
_MAX_NODES = 4096
"""Maximum number of nodes that are remembered."""


class _Stay(NamedTuple):
    """The latest period of a node outside the group."""

    until_ns: int
    periods: int
    until_heard: bool


class KeptOut:
    """The nodes not admitted now, and the length of the latest period of each node."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stays: dict[int, _Stay] = {}
        self._expelled_ns: dict[int, int] = {}

    def add(self, node: int, now_ns: int, *, until_heard: bool = False) -> None:
        """Admit no incarnation of ``node`` for a while: the link may still be broken."""
        last = self._stays.pop(node, None)
        periods = 1 if until_heard else _PERIODS
        if last is not None and now_ns - last.until_ns <= self._soon_ns:
            periods = min(max(periods, 2 * last.periods), _MAX_PERIODS)
        while len(self._stays) >= _MAX_NODES:
            del self._stays[next(iter(self._stays))]
        until_ns = now_ns + periods * self.config.suspect_after_ns
        self._stays[node] = _Stay(until_ns, periods, until_heard)

    def on_expelled(self, node: int, now_ns: int) -> None:
        """Note that ``node`` is expelled; keep ``node`` out after a recent return."""
        stay, expelled_ns = self._stays.get(node), self._expelled_ns.pop(node, None)
        returned_ns = [] if stay is None else [stay.until_ns]
        returned_ns += [] if expelled_ns is None else [expelled_ns]
        if not self.holds(node, now_ns) and any(
            now_ns - at_ns <= self._soon_ns for at_ns in returned_ns
        ):
            self.add(node, now_ns)
        while len(self._expelled_ns) >= _MAX_NODES:
            del self._expelled_ns[next(iter(self._expelled_ns))]
        self._expelled_ns[node] = now_ns

    def on_heard(self, node: int, now_ns: int) -> None:
        """Note that a frame of ``node`` has arrived directly."""
        stay = self._stays.get(node)
        if stay is not None and stay.until_heard and stay.until_ns > now_ns:
            self._stays[node] = stay._replace(until_ns=now_ns)

    def holds(self, node: int, now_ns: int) -> bool:
        """Return whether ``node`` has to wait before another join."""
        stay = self._stays.get(node)
        return stay is not None and stay.until_ns > now_ns

    @property
    def _soon_ns(self) -> int:
        """How soon after a return the reason of the last expulsion counts as still there."""
        return 2 * _PERIODS * self.config.suspect_after_ns

    def check_invariants(self) -> None:
        """Raise AssertionError if a node may be kept out for too long."""
        assert len(self._stays) <= _MAX_NODES, f"{len(self._stays)} nodes are kept out"
        assert len(self._expelled_ns) <= _MAX_NODES, f"{len(self._expelled_ns)} nodes expelled"
        assert all(1 <= stay.periods <= _MAX_PERIODS for stay in self._stays.values())

"""Several sources at once: what any of them knows counts, and none of them can stop the others.

On starting:   the transport opens the multicast groups, and announces its place. While running:
what goes to WORLD goes to every multicast group and to every locator of ``locate``: the union of
the sources and of whoever was met, without repeats and without the own one. On leaving:
``withdraw``, then ``close``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from gapless.discovery.multicast import Multicast
from gapless.discovery.source import DiscoveryProblem, DiscoveryProblems
from gapless.discovery.uri import parse_sources
from gapless.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from gapless.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from gapless.discovery.source import DiscoverySource
    from gapless.identity import RosterEntry

_T = TypeVar("_T")

MAX_REMEMBERED = 1024
"""How many places of members that were once met are remembered; the ones met longest ago go first."""


class Discovery:
    """The sources of one member; ``Discovery([...])`` or ``Discovery.parse("seeds://a:7800", group="orders")``.

    Every method but ``wait`` and ``close`` returns at once, so that the thread of the protocol may
    call it. One thread calls them.
    """

    def __init__(self, sources: Iterable[DiscoverySource] = ()) -> None:
        self.sources = tuple(sources)
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"{', '.join(twice)} is there more than once; leave the others out")
        self._own: Locator | None = None
        self._remembered: dict[Locator, None] = {}
        self._failures = {source.name: DiscoveryProblems() for source in self.sources}

    @classmethod
    def parse(cls, text: str, *, group: str) -> Self:
        """Return the discovery of a Gapless group that ``text`` describes; docs/discovery.md has the grammar."""
        return cls(parse_sources(text, group=group))

    @property
    def multicasts(self) -> tuple[Multicast, ...]:
        """The multicast groups among the sources, for the transport to open."""
        return tuple(source for source in self.sources if isinstance(source, Multicast))

    def announce(self, place: RosterEntry) -> None:
        """Let others find this member, wherever a source can tell them."""
        try:
            self._own = Locator.decode(place.locator)
        except RemoteProtocolError as error:
            raise LocalProtocolError(
                f"a place that is announced needs a locator that others reach: {error}"
            ) from error
        for source in self.sources:
            self._call_guarded(source, None, source.announce, place)

    def withdraw(self) -> None:
        """Take back what was announced."""
        for source in self.sources:
            self._call_guarded(source, None, source.withdraw)

    def remember(self, locator: Locator) -> None:
        """Remember where a member was: after a partition it may be there, though no source knows."""
        self._remembered.pop(locator, None)
        self._remembered[locator] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def locate(self, now_ns: int) -> list[Locator]:
        """Return every place where a member could be, as far as is known now: no repeats, not the own one."""
        found: dict[Locator, None] = {}
        for source in self.sources:
            nothing: list[Locator] = []
            found.update(dict.fromkeys(self._call_guarded(source, nothing, source.locate, now_ns)))
        found.update(self._remembered)
        if self._own is not None:
            found.pop(self._own, None)
        return list(found)

    def wait(self, timeout_s: float) -> bool:
        """Wait until every source has looked once more, or ``timeout_s`` are over; tell whether all have."""
        deadline_s = time.monotonic() + timeout_s
        waited = [
            self._call_guarded(source, False, source.wait, max(0.0, deadline_s - time.monotonic()))
            for source in self.sources
        ]
        return all(waited)

    def problems(self) -> list[DiscoveryProblem]:
        """Return what has gone wrong so far, by source and reason."""
        return [
            problem
            for source in self.sources
            for problems in (source.problems, self._failures[source.name])
            for problem in problems.of(source.name)
        ]

    def close(self) -> None:
        """Withdraw and let go of everything."""
        for source in self.sources:
            self._call_guarded(source, None, source.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_guarded(
        self, source: DiscoverySource, otherwise: _T, call: Callable[..., _T], *arguments: object
    ) -> _T:
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - a source may be anybody's code
            self._failures[source.name].add("failed", f"{type(error).__name__}: {error}")
            return otherwise

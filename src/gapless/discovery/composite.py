"""Several sources as one: locators are united, and a failing source does not stop the others.

On start: the transport opens the multicast groups, and announces its locator.

While running: a frame to all is sent to every multicast group and to every locator of ``locate``:
the locators of all sources and of members met before, without repeats and without the own locator.

On leaving: ``withdraw``, then ``close``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from gapless.discovery.directory import SharedPathSource
from gapless.discovery.entry_seal import EntrySeal
from gapless.discovery.multicast import Multicast
from gapless.discovery.seeds import Seeds
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
"""Maximum number of remembered locators of members; the oldest are dropped first."""


class Discovery:
    """The sources of one member, such as ``Discovery.parse("seeds://a:7800", group="orders")``.

    Only ``wait`` and ``close`` block; the protocol thread may call the other methods. All calls
    come from one thread.
    """

    def __init__(self, sources: Iterable[DiscoverySource] = ()) -> None:
        self.sources = tuple(sources)
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"{', '.join(twice)} is given more than once; keep one")
        self.confined = ""
        """Why no member on another machine can be found; empty if one can."""
        self._own: Locator | None = None
        self._remembered: dict[Locator, None] = {}
        self._failures = {source.name: DiscoveryProblems() for source in self.sources}

    @classmethod
    def parse(cls, text: str, *, group: str) -> Self:
        """Return the discovery of ``group`` from a discovery URL (docs/guides/discovery.md).

        Raises:
            ConfigError: The URL is malformed, or an option has an impossible value.
        """
        return cls(parse_sources(text, group=group))

    @property
    def multicasts(self) -> tuple[Multicast, ...]:
        """The multicast groups among the sources, for the transport to open."""
        return tuple(source for source in self.sources if isinstance(source, Multicast))

    def seal_entries(self, key: bytes, ring: str) -> None:
        """Write and accept only entries of members with the same ring; before the first use.

        ``key`` is the ring's key for entries, and ``ring`` its public label.
        """
        for source in self.sources:
            if isinstance(source, SharedPathSource):
                source.seal_entries(EntrySeal(key, ring))

    def seed_locators(self, timeout_s: float) -> list[Locator]:
        """Return the locators of seeds; names are looked up, for at most ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        found: list[Locator] = []
        for source in self.sources:
            if isinstance(source, Seeds):
                found += source.locate(time.monotonic_ns())
                if not found:
                    source.wait(max(0.0, deadline_s - time.monotonic()))
                    found += source.locate(time.monotonic_ns())
        return found

    def announce(self, member: RosterEntry) -> None:
        """Announce this member at every source with announcements."""
        try:
            self._own = Locator.decode(member.locator)
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"the member cannot be announced: {error}") from error
        for source in self.sources:
            self._call_guarded(source, None, source.announce, member)

    def withdraw(self) -> None:
        """Withdraw the announcement."""
        for source in self.sources:
            self._call_guarded(source, None, source.withdraw)

    def remember(self, locator: Locator) -> None:
        """Remember a locator of a member: after a partition no source may know the member."""
        self._remembered.pop(locator, None)
        self._remembered[locator] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def locate(self, now_ns: int) -> list[Locator]:
        """Return the known locators, without repeats and without the own locator."""
        found: dict[Locator, None] = {}
        for source in self.sources:
            none: list[Locator] = []
            found.update(dict.fromkeys(self._call_guarded(source, none, source.locate, now_ns)))
        found.update(self._remembered)
        if self._own is not None:
            found.pop(self._own, None)
        return list(found)

    def wait(self, timeout_s: float) -> bool:
        """Wait until every source has refreshed once more; return whether all have in time."""
        deadline_s = time.monotonic() + timeout_s
        waited = [
            self._call_guarded(source, False, source.wait, max(0.0, deadline_s - time.monotonic()))
            for source in self.sources
        ]
        return all(waited)

    def problems(self) -> list[DiscoveryProblem]:
        """Return the problems so far, by source and reason."""
        return [
            problem
            for source in self.sources
            for problems in (source.problems, self._failures[source.name])
            for problem in problems.of(source.name)
        ]

    def close(self) -> None:
        """Withdraw, and release all resources."""
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
        except Exception as error:  # noqa: BLE001 - a source may be code of the application
            self._failures[source.name].add("failed", f"{type(error).__name__}: {error}")
            return otherwise

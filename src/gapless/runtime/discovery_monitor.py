"""Discovery that fails is reported: a log line, an event and a part of the member's health.

While running: ``check`` compares the counted problems of the sources with those reported before. A
problem of a source is reported once.

A member that is alone, and hears datagrams that it cannot open, reports that once for each reason:
its keys are not those of the others.

A member that stays alone although seeds were given is reported once too, with an answer for every
seed. The seeds are probed in a thread, because a probe waits for an answer. A lone member whose
group cannot leave this machine only logs why: perhaps no other machine was meant.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gapless.discovery.seeds import Seeds
from gapless.events import DiscoveryFailed, KeyMismatch, NoPeersFound
from gapless.logger import log
from gapless.transport.reachability import probe_locator
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.discovery import Discovery
    from gapless.transport.base import Transport

CHECK_ALONE_NS = 100 * NS_PER_MS
"""Minimum time between two checks while no other member is known."""
CHECK_NS = 2 * NS_PER_S
"""Minimum time between two checks in a group."""
ALONE_AFTER_NS = 3 * NS_PER_S
"""How long a member with seeds may be alone before this is reported."""
RECENT_NS = 15 * NS_PER_S
"""How long a problem that does not repeat belongs to the health of a member in a group."""
MAX_PROBED = 16
"""Maximum number of seeds that are probed for one report."""


class DiscoveryMonitor:
    """The reported problems of the discovery of one member."""

    def __init__(self, group: str, transport: Transport) -> None:
        self.due_ns = 0
        """When the next check is due."""
        self._group = group
        self._transport = transport
        self._times: dict[tuple[str, str], int] = {}
        self._recent: dict[tuple[str, str], tuple[int, str]] = {}
        self._mismatches: Mapping[str, str] = {}
        self._reported_mismatches: set[str] = set()
        self._alone_since_ns: int | None = None
        self._alone_reported = False
        self._diagnosis: list[str] = []
        self._diagnosing: threading.Thread | None = None
        self._checked_ns = 0

    def check(
        self, now_ns: int, members: int, mismatches: Mapping[str, str]
    ) -> list[DiscoveryFailed | NoPeersFound | KeyMismatch]:
        """Return the new problems; ``members`` is the size of the view, 0 without a view.

        ``mismatches`` are sentences about datagrams that do not fit the keys, by reason.
        """
        alone = members <= 1
        self._checked_ns = now_ns
        self.due_ns = now_ns + (CHECK_ALONE_NS if alone else CHECK_NS)
        found: list[DiscoveryFailed | NoPeersFound | KeyMismatch] = []
        self._mismatches = mismatches if alone else {}
        for reason in self._mismatches.keys() - self._reported_mismatches:
            self._reported_mismatches.add(reason)
            found.append(KeyMismatch(reason, self._mismatches[reason]))
        for problem in self._transport.book.discovery.problems():
            key = problem.source, problem.reason
            if self._times.get(key) == problem.times:
                continue
            first = key not in self._times
            self._times[key] = problem.times
            self._recent[key] = now_ns, f"discovery {problem.source}: {problem.last}"
            if first:
                found.append(DiscoveryFailed(problem.source, problem.reason, problem.last))
        if not alone:
            self._alone_since_ns, self._alone_reported, self._diagnosis = None, False, []
        elif self._alone_since_ns is None:
            self._alone_since_ns = now_ns
        elif now_ns - self._alone_since_ns >= ALONE_AFTER_NS and not self._alone_reported:
            found += self._report_alone()
        for event in found:
            log.warning("%s: %s", self._group, event)
        return found

    def _report_alone(self) -> list[NoPeersFound]:
        """Return the report of a lone member once every seed was probed."""
        if not has_other_seeds(self._transport):
            self._alone_reported = True
            if confined := self._transport.book.discovery.confined:
                log.warning("%s: no other member yet: %s", self._group, confined)
        elif self._diagnosing is None:
            self._diagnosing = threading.Thread(
                target=self._diagnose, name="gapless seeds", daemon=True
            )
            self._diagnosing.start()
        elif not self._diagnosing.is_alive():
            self._diagnosing, self._alone_reported = None, True
            return [NoPeersFound(tuple(self._diagnosis))]
        return []

    def _diagnose(self) -> None:
        self._diagnosis = describe_sources(self._transport)

    def problems(self, members: int) -> tuple[str, ...]:
        """Return the problems that belong to the health of a member in a view of ``members``."""
        alone = members <= 1
        since_ns = self._checked_ns - RECENT_NS
        found = [text for at_ns, text in self._recent.values() if alone or at_ns >= since_ns]
        if alone:
            found += self._mismatches.values()
        if alone and self._alone_reported and self._diagnosis:
            found.append(str(NoPeersFound(tuple(self._diagnosis))))
        return tuple(found)


def has_other_seeds(transport: Transport) -> bool:
    """Return whether the discovery of ``transport`` has seeds other than its own locator."""
    for source in transport.book.discovery.sources:
        if isinstance(source, Seeds):
            found = source.locate(time.monotonic_ns())
            if not found or any(one != transport.locator for one in found):
                return True
    return False


def describe_sources(transport: Transport) -> list[str]:
    """Return a sentence for each source: what was found there; seeds are probed, which blocks."""
    discovery: Discovery = transport.book.discovery
    found: list[str] = []
    for source in discovery.sources:
        others = [one for one in source.locate(time.monotonic_ns()) if one != transport.locator]
        if isinstance(source, Seeds):
            found += [probe_locator(one, transport) for one in others[:MAX_PROBED]]
            if len(others) > MAX_PROBED:
                found.append(f"{len(others) - MAX_PROBED} more seeds")
        elif others:
            found.append(f"{source.name} has {', '.join(map(str, others[:MAX_PROBED]))}")
        problems = source.problems.of(source.name)
        found += [f"{source.name}: {problem.last}" for problem in problems]
        if not others and not problems:
            found.append(f"{source.name}: nobody answered")
    if discovery.confined:
        found.append(discovery.confined)
    return found

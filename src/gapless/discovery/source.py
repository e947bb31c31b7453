"""Sources of discovery: the interface, problems, and a thread for blocking work.

On start: ``announce(member)`` once the own locator is known, and ``locate(now_ns)`` before each
frame to all.

While running: ``locate`` returns the known locators at once. Blocking work (a name server, a file
server) runs in a thread of the source; a later ``locate`` returns the result. A failure is counted
as a ``DiscoveryProblem`` and the work is repeated after the interval; the last result remains
valid.

On leaving: ``withdraw()`` withdraws the announcement. ``close()`` does so too, and ends the thread
within a second, even during hanging work.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from gapless.identity import RosterEntry
    from gapless.locator import Locator

CLOSE_S = 1.0
"""How long ``close`` waits for the thread."""

MAX_LOCATORS = 4096
"""Maximum number of locators of one source; more are the problem ``crowded``."""


class DiscoveryProblem(NamedTuple):
    """A problem of one source: ``reason``, number of occurrences, and the last text."""

    source: str
    reason: str
    times: int
    last: str


class DiscoveryProblems:
    """The problems of one source, counted by reason; any thread may add problems."""

    __slots__ = ("_counted", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, text: str) -> None:
        """Count a problem."""
        with self._lock:
            times, _ = self._counted.get(reason, (0, ""))
            self._counted[reason] = (times + 1, text)

    def of(self, source: str) -> list[DiscoveryProblem]:
        """Return the counted problems, under the name of the source."""
        with self._lock:
            return [
                DiscoveryProblem(source, reason, times, last)
                for reason, (times, last) in sorted(self._counted.items())
            ]


class DiscoverySource(Protocol):
    """A way to find the locators of other members."""

    name: str
    problems: DiscoveryProblems

    def announce(self, member: RosterEntry) -> None:
        """Announce this member; a later call replaces the announcement."""

    def withdraw(self) -> None:
        """Withdraw the announcement."""

    def locate(self, now_ns: int) -> list[Locator]:
        """Return the known locators, without waiting."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until the source has refreshed once more; return whether the refresh was in time.

        The protocol thread must not call ``wait``.
        """

    def close(self) -> None:
        """Withdraw, and release threads and sockets."""


class BackgroundSource:
    """A source with blocking work: ``_refresh`` runs in a thread, one call at a time.

    A refresh is requested by ``announce``, ``withdraw`` and ``wait``; by ``locate`` if ``rest_ns``
    of the caller's time have passed since the last; and every ``rest_ns`` while a member is
    announced, because an announcement must stay fresh. Otherwise the thread is idle.
    """

    def __init__(self, name: str, rest_ns: int) -> None:
        self.name = name
        self.problems = DiscoveryProblems()
        self._rest_ns = rest_ns
        self._announced: RosterEntry | None = None
        self._found: tuple[Locator, ...] = ()
        self._changed = threading.Condition()
        self._wanted = self._begun = self._done = 0
        self._rests_since_ns: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, member: RosterEntry) -> None:
        """Announce this member."""
        with self._changed:
            self._announced = member
            self._request_refresh()

    def withdraw(self) -> None:
        """Withdraw the announcement."""
        with self._changed:
            if self._announced is not None:
                self._announced = None
                self._request_refresh()

    def locate(self, now_ns: int) -> list[Locator]:
        """Return the result of the last refresh; request another if too old."""
        with self._changed:
            busy = self._done < self._wanted
            if self._wanted and (busy or self._rests_since_ns is None):
                self._rests_since_ns = now_ns
            elif self._rests_since_ns is None or (
                self._announced is None and now_ns - self._rests_since_ns >= self._rest_ns
            ):
                self._rests_since_ns = now_ns
                self._request_refresh()
            return list(self._found)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a refresh that begins after this call; return whether it ended in time."""
        with self._changed:
            requested = self._request_refresh()
            return self._changed.wait_for(lambda: self._done >= requested, timeout_s)

    def close(self) -> None:
        """Withdraw, and end the thread; a hanging daemon thread is abandoned."""
        self.withdraw()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _refresh(self, member: RosterEntry | None) -> tuple[Locator, ...] | None:
        """Refresh, possibly blocking; return the locators, or None after a failure."""
        raise NotImplementedError

    def _request_refresh(self) -> int:
        if not self._closed:
            self._wanted += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"gapless {self.name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return self._wanted

    def _run(self) -> None:
        while True:
            with self._changed:
                rest_s = None if self._announced is None else self._rest_ns / NS_PER_S
                self._changed.wait_for(lambda: self._closed or self._begun < self._wanted, rest_s)
                if self._closed and self._begun == self._wanted:
                    return
                self._begun = self._wanted
                member = self._announced
            found = self._run_once(member)
            with self._changed:
                if found is not None:
                    self._found = found[:MAX_LOCATORS]
                self._done = self._begun
                self._changed.notify_all()

    def _run_once(self, member: RosterEntry | None) -> tuple[Locator, ...] | None:
        try:
            found = self._refresh(member)
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread silently
            self.problems.add("failed", f"{type(error).__name__}: {error}")
            return None
        if found is not None and len(found) > MAX_LOCATORS:
            self.problems.add(
                "crowded", f"{len(found)} locators found; only {MAX_LOCATORS} are used"
            )
        return found

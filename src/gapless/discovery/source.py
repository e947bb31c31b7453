"""What every source of discovery is, what it says of its troubles, and a thread for work that may block.

On starting:   ``announce(place)`` once the own locator is known; ``locate(now_ns)`` whenever
something goes to WORLD. While running: ``locate`` says at once what is known. Work that may block
(a name server, a file server) is done in a thread of the source; what it finds is there at a later
``locate``. What goes wrong is counted as a :class:`DiscoveryProblem` and tried again after the rest; what
was found before still counts. On leaving:    ``withdraw()`` takes back what ``announce`` said;
``close()`` does so too and ends the thread, within a second even if the work hangs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from gapless.identity import RosterEntry
    from gapless.locator import Locator

CLOSE_S = 1.0
"""How long ``close`` waits for work that is under way."""

MAX_LOCATORS = 4096
"""Locators that one source gives at most; what is more is a problem, not a flood."""


class DiscoveryProblem(NamedTuple):
    """What went wrong at one source: so many ``times`` for one ``reason`` (a short word), ``last`` like this."""

    source: str
    reason: str
    times: int
    last: str


class DiscoveryProblems:
    """The problems of one source, counted by reason; any thread may add to them."""

    __slots__ = ("_counted", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, text: str) -> None:
        """Count one more."""
        with self._lock:
            times, _ = self._counted.get(reason, (0, ""))
            self._counted[reason] = (times + 1, text)

    def of(self, source: str) -> list[DiscoveryProblem]:
        """Return what was counted, under the name of the source."""
        with self._lock:
            return [
                DiscoveryProblem(source, reason, times, last)
                for reason, (times, last) in sorted(self._counted.items())
            ]


class DiscoverySource(Protocol):
    """One way to learn where other members could be."""

    name: str
    problems: DiscoveryProblems

    def announce(self, place: RosterEntry) -> None:
        """Let others find this member at ``place``; a later call takes the place of an earlier one."""

    def withdraw(self) -> None:
        """Take back what was announced."""

    def locate(self, now_ns: int) -> list[Locator]:
        """Return what is known now, without waiting for anything."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until the source has looked once more; tell whether it has. Not for the thread of the protocol."""

    def close(self) -> None:
        """Withdraw, and let go of threads and sockets."""


class BackgroundSource:
    """A source whose work may block: ``_refresh`` runs in a thread of its own, one round at a time.

    A round is wanted by ``announce``, ``withdraw`` and ``wait``; by ``locate`` when ``rest_ns`` of
    the caller's time have passed since the last one; and by itself every ``rest_ns`` as long as a
    place is announced, which has to be kept fresh even if nobody asks. A member that neither looks
    nor announces costs nothing.
    """

    def __init__(self, name: str, rest_ns: int) -> None:
        self.name = name
        self.problems = DiscoveryProblems()
        self._rest_ns = rest_ns
        self._place: RosterEntry | None = None
        self._found: tuple[Locator, ...] = ()
        self._changed = threading.Condition()
        self._wanted = self._begun = self._done = 0
        self._rests_since_ns: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, place: RosterEntry) -> None:
        """Let others find this member at ``place``."""
        with self._changed:
            self._place = place
            self._request_refresh()

    def withdraw(self) -> None:
        """Take back what was announced."""
        with self._changed:
            if self._place is not None:
                self._place = None
                self._request_refresh()

    def locate(self, now_ns: int) -> list[Locator]:
        """Return what the last round found; if that was long ago, another one begins."""
        with self._changed:
            busy = self._done < self._wanted
            if self._wanted and (busy or self._rests_since_ns is None):
                self._rests_since_ns = now_ns
            elif self._rests_since_ns is None or (
                self._place is None and now_ns - self._rests_since_ns >= self._rest_ns
            ):
                self._rests_since_ns = now_ns
                self._request_refresh()
            return list(self._found)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a round that begins after this call; tell whether it came in time."""
        with self._changed:
            mine = self._request_refresh()
            return self._changed.wait_for(lambda: self._done >= mine, timeout_s)

    def close(self) -> None:
        """Withdraw and end the thread; one that hangs is left behind and does not keep the process alive."""
        self.withdraw()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _refresh(self, place: RosterEntry | None) -> tuple[Locator, ...] | None:
        """Do one round, which may block; return what it found, None if it could not look."""
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
                rest_s = None if self._place is None else self._rest_ns / NS_PER_S
                self._changed.wait_for(lambda: self._closed or self._begun < self._wanted, rest_s)
                if self._closed and self._begun == self._wanted:
                    return
                self._begun = self._wanted
                place = self._place
            found = self._run_once(place)
            with self._changed:
                if found is not None:
                    self._found = found[:MAX_LOCATORS]
                self._done = self._begun
                self._changed.notify_all()

    def _run_once(self, place: RosterEntry | None) -> tuple[Locator, ...] | None:
        try:
            found = self._refresh(place)
        except Exception as error:  # noqa: BLE001 - a bug in one source must not end its thread in silence
            self.problems.add("failed", f"{type(error).__name__}: {error}")
            return None
        if found is not None and len(found) > MAX_LOCATORS:
            self.problems.add(
                "crowded", f"{len(found)} places, of which only {MAX_LOCATORS} are used"
            )
        return found

"""Release: telling the spool what Spark has committed, so that it may be let go.

``start`` of ``latestOffset(start, limit)`` is in Spark's commit log, so a query never asks for it
again. But Spark does not force its logs to disk: after a power failure the last commits may be
gone. So by default the kernel is asked to write everything out (``sync``) between hearing of a
start and releasing it. That happens in a thread of its own and at most once in :data:`PAUSE_S`, so
a trigger never waits for it, and a bounded spool still gets its room back without new data.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from gapless.errors import GaplessError
from pyspark_gapless.source.offsets import Digest

log = logging.getLogger("gapless.spark")

PAUSE_S: Final = 1.0


class Releaser:
    """Releases digests in the order that they are offered; a later one makes an earlier one needless.

    ``tell`` is called with each digest, in the thread of the releaser or in that of :meth:`flush`,
    never in both at once.
    """

    def __init__(
        self, tell: Callable[[Digest], None], *, sync: bool, pause_s: float = PAUSE_S
    ) -> None:
        self._tell = tell
        self._sync = sync
        self._pause_s = pause_s
        self._next: Digest | None = None
        self._last: Digest | None = None
        self._error: Exception | None = None
        self._told = threading.Lock()
        self._changed = threading.Condition()
        self._over = False
        self._thread: threading.Thread | None = None

    def offer(self, digest: Digest) -> None:
        """Take in a digest that is committed; raises what went wrong with an earlier one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if digest in (self._last, self._next):
            return
        if not self._sync:
            self._release(digest)
            return
        with self._changed:
            self._next = digest
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gapless-release", daemon=True)
            self._thread.start()

    def repeat(self) -> None:
        """Release the next digest even if it is the last one again: there is somebody new to tell it to."""
        with self._told:
            self._last = None

    def flush(self) -> None:
        """Release what is offered, now."""
        digest = self._next
        if digest is not None and digest != self._last:
            self._release(digest)

    def stop(self) -> None:
        """End the thread; what is offered and not released yet stays for the next life of the query."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _release(self, digest: Digest) -> None:
        with self._told:
            if self._sync:
                os.sync()
            self._tell(digest)
            self._last = digest

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._next != self._last)
                if self._over:
                    return
                digest = self._next
            assert digest is not None, "only a digest is offered"
            try:
                if digest != self._last:
                    self._release(digest)
            except (GaplessError, OSError) as error:
                log.warning("what is read cannot be released: %s", error)
                self._error = error
            with self._changed:
                self._changed.wait_for(lambda: self._over, timeout=self._pause_s)

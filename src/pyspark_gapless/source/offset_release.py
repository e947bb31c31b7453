"""Release: registering Spark's committed position in the spool, so that the spool can be trimmed.

``start`` of ``latestOffset(start, limit)`` is in Spark's commit log, so a query never asks for
``start`` again. But Spark does not force its logs to disk: after a power failure the last commits
may be gone. So by default the kernel writes all files out (``sync``) before the release of a start.
A thread releases at most once in ``RELEASE_INTERVAL_S``, so that a trigger never waits for a
release, and a bounded spool still gets its room back without new data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from gapless.errors import GaplessError
from gapless.logger import logger_of
from pyspark_gapless.source.offsets import Digest

log = logger_of("spark")

RELEASE_INTERVAL_S: Final = 1.0


class OffsetReleaser:
    """Releases digests in the order of their offers; a later digest supersedes an earlier digest.

    ``tell`` is called with each digest, in the thread of the releaser or in the thread of
    ``flush``, never in both at once.
    """

    def __init__(
        self, tell: Callable[[Digest], None], *, sync: bool, interval_s: float = RELEASE_INTERVAL_S
    ) -> None:
        self._register = tell
        self._sync = sync
        self._interval_s = interval_s
        self._pending: Digest | None = None
        self._released: Digest | None = None
        self._error: Exception | None = None
        self._release_lock = threading.Lock()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def submit(self, digest: Digest) -> None:
        """Release a committed digest soon; raise the error of an earlier release."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if digest in (self._released, self._pending):
            return
        if not self._sync:
            self._release(digest)
            return
        with self._changed:
            self._pending = digest
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gapless-release", daemon=True)
            self._thread.start()

    def force_next(self) -> None:
        """Release the next digest even if equal to the last digest: a replica is new."""
        with self._release_lock:
            self._released = None

    def flush(self) -> None:
        """Release the offered digest now."""
        digest = self._pending
        if digest is not None and digest != self._released:
            self._release(digest)

    def stop(self) -> None:
        """End the thread; an offered digest without release is left to the next query."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _release(self, digest: Digest) -> None:
        with self._release_lock:
            if self._sync:
                os.sync()
            self._register(digest)
            self._released = digest

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._pending != self._released)
                if self._stopped:
                    return
                digest = self._pending
            assert digest is not None, "only a digest is offered"
            try:
                if digest != self._released:
                    self._release(digest)
            except (GaplessError, OSError) as error:
                log.warning("cannot release the read position: %s", error)
                self._error = error
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=self._interval_s)

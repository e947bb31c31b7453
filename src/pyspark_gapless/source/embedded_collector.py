"""The embedded collector: with the option ``group`` the source fills the spool by itself.

The collector runs as long as the query, in the process that Spark keeps for the query beside the
driver. While another collector holds the spool, the embedded collector waits, and takes over when
the other collector has gone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gapless.logger import logger_of
from gapless.output.private_files import make_private_folder
from gapless.spool import SpoolLocked
from gapless.spool.collector import Collector

log = logger_of("spark")

RETRY_S: Final = 2.0


class EmbeddedCollector:
    """A collector for the time of a query; ``start`` never waits for the group."""

    def __init__(self, spool: str, group: str, options: Mapping[str, Any]) -> None:
        self._spool = Path(spool)
        self._group = group
        self._options: Any = dict(options)
        self._collector: Collector | None = None
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to collect, or wait until the spool is free; raises if the options are wrong."""
        make_private_folder(self._spool.parent)
        if not self._try_start():
            self._thread = threading.Thread(
                target=self._retry_until_started, name="gapless-collector-wait", daemon=True
            )
            self._thread.start()

    def check(self) -> None:
        """Raise the error of the collector, if any."""
        if self._error is not None:
            raise self._error
        if self._collector is not None:
            self._collector.check()

    def stop(self) -> None:
        """Stop collecting; collected messages stay in the spool."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._collector is not None:
            self._collector.stop()
            self._collector = None

    def _try_start(self) -> bool:
        collector = Collector(self._spool, self._group, **self._options)
        try:
            collector.start()
        except SpoolLocked as error:
            log.info("another collector holds the spool: %s", error)
            return False
        self._collector = collector
        return True

    def _retry_until_started(self) -> None:
        try:
            while not self._stopped.wait(RETRY_S):
                if self._try_start():
                    return
        except Exception as error:  # noqa: BLE001 - told to the query by check()
            self._error = error

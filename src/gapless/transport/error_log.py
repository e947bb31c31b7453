"""Errors of the network, counted by reason. Each reason is logged now and then, not every time."""

from __future__ import annotations

import logging
import time
from collections import Counter

from gapless.logger import log
from gapless.units import NS_PER_S

LOG_INTERVAL_NS = 10 * NS_PER_S
"""Minimum time between two log lines about one reason; the next line has the number of errors."""


class ErrorLog:
    """Counts errors by reason, and logs each reason at most once per ``quiet_ns``."""

    def __init__(self, level: int = logging.WARNING, quiet_ns: int = LOG_INTERVAL_NS) -> None:
        self.counters: Counter[str] = Counter()
        self._level, self._quiet_ns = level, quiet_ns
        self._logged: dict[str, tuple[int, int]] = {}

    def add(self, reason: str, detail: object, times: int = 1) -> None:
        """Count ``reason``; ``detail`` is the text for people."""
        assert times > 0
        self.counters[reason] += times
        now_ns, total = time.monotonic_ns(), self.counters[reason]
        logged_ns, logged_total = self._logged.get(reason, (now_ns - self._quiet_ns, 0))
        if now_ns - logged_ns >= self._quiet_ns:
            self._logged[reason] = now_ns, total
            since = total - logged_total
            repeated = f", {since} times" if since > 1 else ""
            log.log(self._level, "%s [%s%s]", detail, reason, repeated)

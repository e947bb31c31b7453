"""The collector: a durable member of a group that writes every delivered message to a spool."""

from __future__ import annotations

from gapless.spool.collector.collector import Collector
from gapless.spool.collector.options import CollectorOptions
from gapless.spool.collector.status import CollectorStatus

__all__ = ["Collector", "CollectorOptions", "CollectorStatus"]

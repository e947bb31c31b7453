"""Traces on Spark: the rows of a whole group as one DataFrame, however many files and lives they come from."""

from __future__ import annotations

from pyspark_gapless.trace.trace import Trace, TraceError

__all__ = ["Trace", "TraceError"]

"""Traces on Spark: the rows of a whole group as a DataFrame, from any number of files."""

from __future__ import annotations

from pyspark_gapless.trace.trace import Trace, TraceError

__all__ = ["Trace", "TraceError"]

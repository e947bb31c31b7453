"""Figures of a run from its trace: latency, goodput, overhead, windows, repairs, clocks.

Each figure is a function from rows to a small table (a ``Dataset``); the driver collects only
tables of bounded size. docs/reference/figures.md defines every figure with its precision.
"""

from __future__ import annotations

from pyspark_gapless.analytics.clock_offsets import clocks
from pyspark_gapless.analytics.trace_summary import figures

__all__ = ["clocks", "figures"]

"""Figures of a run from its trace: latency, goodput, overhead, windows, repairs, clocks.

Each figure is a function from rows to a small table (a :class:`~pyspark_gapless.tables.Dataset`);
only tables of a bounded size are brought to the driver. docs/figures.md defines every figure and
its precision.
"""

from __future__ import annotations

from pyspark_gapless.analytics.clock_offsets import clocks
from pyspark_gapless.analytics.trace_summary import figures

__all__ = ["clocks", "figures"]

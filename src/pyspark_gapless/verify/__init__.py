"""The invariants, checked on traces with Spark: a function from a trace to violations each."""

from __future__ import annotations

from pyspark_gapless.verify.context_rows import context_rows
from pyspark_gapless.verify.registry import CHECKS, NOT_CHECKABLE, TraceCheck
from pyspark_gapless.verify.runner import verify
from pyspark_gapless.verify.verdict import CheckResult, TraceVerdict

__all__ = [
    "CHECKS",
    "NOT_CHECKABLE",
    "CheckResult",
    "TraceCheck",
    "TraceVerdict",
    "context_rows",
    "verify",
]

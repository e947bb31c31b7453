"""The invariants, checked on traces with Spark: each is one function from a trace to its violations."""

from __future__ import annotations

from pyspark_gapless.verify.context_rows import around
from pyspark_gapless.verify.registry import CHECKS, NOT_SHOWN, Check
from pyspark_gapless.verify.runner import verify
from pyspark_gapless.verify.verdict import Finding, Verdict

__all__ = ["CHECKS", "NOT_SHOWN", "Check", "Finding", "Verdict", "around", "verify"]

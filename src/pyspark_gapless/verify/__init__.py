"""The invariants, checked on traces with Spark: each is one function from a trace to its violations."""

from __future__ import annotations

from pyspark_gapless.verify.around import around
from pyspark_gapless.verify.checks import CHECKS, NOT_SHOWN, Check
from pyspark_gapless.verify.verdict import Finding, Verdict
from pyspark_gapless.verify.verify import verify

__all__ = ["CHECKS", "NOT_SHOWN", "Check", "Finding", "Verdict", "around", "verify"]

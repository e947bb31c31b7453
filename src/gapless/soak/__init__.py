"""Soaking: groups of real processes under load and faults, whose traces are checked afterwards."""

from gapless.soak.plan import Plan, Report
from gapless.soak.run import soak

__all__ = ["Plan", "Report", "soak"]

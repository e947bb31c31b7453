"""Soaking: groups of real processes under load and faults, whose traces are checked afterwards."""

from gapless.soak.plan import Plan, Report
from gapless.soak.run import Network, soak

__all__ = ["Network", "Plan", "Report", "soak"]

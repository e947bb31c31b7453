"""Soaking: groups of real processes under load and faults, whose traces are checked afterwards."""

from gapless_lab.soak.plan import Plan, Report
from gapless_lab.soak.runner import Network, soak

__all__ = ["Network", "Plan", "Report", "soak"]

"""Groups of real processes under load and faults, checked by traces: ``gapless soak``."""

from gapless_lab.soak.plan import SoakPlan, SoakReport
from gapless_lab.soak.runner import SoakNetwork, soak

__all__ = ["SoakNetwork", "SoakPlan", "SoakReport", "soak"]

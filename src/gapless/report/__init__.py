"""The report of a run or a sweep: pure functions from figures to a single HTML page."""

from gapless.report.input_schema import validate_figures
from gapless.report.page import render

__all__ = ["render", "validate_figures"]

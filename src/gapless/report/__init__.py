"""A run or a sweep as one page: pure functions from figures to HTML, without any dependency."""

from gapless.report.input_schema import validate_figures
from gapless.report.page import render

__all__ = ["render", "validate_figures"]

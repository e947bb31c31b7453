"""A run or a sweep as one page: pure functions from figures to HTML, without any dependency."""

from gapless.report.input_schema import shaped
from gapless.report.page import render

__all__ = ["render", "shaped"]

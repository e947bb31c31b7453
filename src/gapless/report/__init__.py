"""A run or a sweep as one page: pure functions from figures to HTML, without any dependency."""

from gapless.report.page import render
from gapless.report.shape import shaped

__all__ = ["render", "shaped"]

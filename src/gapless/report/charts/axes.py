"""Axes: an axis maps a value to a position between 0 and 1, and has ticks at round values.

The time axis of a run also carries membership changes, which every chart on the axis marks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from gapless.report import formatting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINEAR, LOG, NINES = "linear", "log", "nines"


class AxisEvent(NamedTuple):
    """A change marked on the time axis: ``what`` happened to the member ``name`` at ``at``."""

    at: float
    what: str
    name: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart.

    ``format_value`` formats ticks in Python, ``kind`` selects the format in the page's script, and
    ``events`` are marked by vertical lines.
    """

    low: float
    high: float
    format_value: Callable[[float], str]
    kind: str = "count"
    scale: str = LINEAR
    name: str = ""
    ticks: Sequence[float] = field(default_factory=tuple)
    events: Sequence[AxisEvent] = ()

    def position(self, value: float) -> float:
        """Return the position of a value, from 0 to 1; a value outside is on the border."""
        low, high = _transform(self.low, self.scale), _transform(self.high, self.scale)
        place = (_transform(value, self.scale) - low) / (high - low) if high > low else 0.5
        return min(1.0, max(0.0, place))


def _transform(value: float, scale: str) -> float:
    if scale == LOG:
        return log10(max(value, 1e-9))
    if scale == NINES:
        return -log10(max(1 - value, 1e-12))
    return value


def time_axis(low_ns: int, high_ns: int, events: Sequence[AxisEvent] = ()) -> Axis:
    """Return the time axis of a run, with times relative to ``low_ns``."""
    high_ns = max(high_ns, low_ns + 1)
    span_ns = high_ns - low_ns
    steps = _round_steps(span_ns, 6, _TIME_STEPS if span_ns > 60e9 else None)
    # Integers: a float holds a time of day only to some hundred nanoseconds.
    ticks = [low_ns + round(step) for step in steps]

    def form(value: float) -> str:
        return formatting.duration(value - low_ns)

    return Axis(
        low_ns, high_ns, form, "time", LINEAR, "time since the start of the traffic", ticks, events
    )


_TIME_STEPS = tuple(
    base * 10**9
    for base in (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
)


def _round_steps(span: float, most: int, allowed: Sequence[float] | None = None) -> list[float]:
    """Return about ``most`` multiples of a round step, from 0 to ``span``."""
    if span <= 0:
        return [0.0]
    rough = span / most
    if allowed:
        step = next(
            (one for one in allowed if one >= rough), allowed[-1] * ceil(rough / allowed[-1])
        )
    else:
        power = 10.0 ** floor(log10(rough))
        step = next(base * power for base in (1, 2, 2.5, 5, 10) if base * power >= rough * 0.999)
    return [nth * step for nth in range(int(span / step + 1e-9) + 1)]


def count_axis(
    high: float,
    form: Callable[[float], str] = formatting.compact,
    kind: str = "count",
    name: str = "",
    most: int = 4,
) -> Axis:
    """Return an axis from 0 to a round value at or above ``high``."""
    high = high if high > 0 else 1
    whole = kind == "count" and high <= most
    ticks = [float(nth) for nth in range(ceil(high) + 1)] if whole else _round_steps(high, most)
    if ticks[-1] < high * 0.9999 and len(ticks) > 1:
        ticks.append(ticks[-1] + ticks[1])
    return Axis(0, max(ticks[-1], high), form, kind, LINEAR, name, ticks)


def log_axis(
    low: float, high: float, form: Callable[[float], str] = formatting.duration, kind: str = "ns"
) -> Axis:
    """Return an axis of powers of ten around two values, with more ticks for a short range."""
    low, high = max(low, 1.0), max(high, low, 1.0)
    first, last = floor(log10(low)), ceil(log10(high * 1.0001))
    fine = [base * 10.0**power for power in range(first, last + 1) for base in (1, 2, 5)]
    below = max(mark for mark in fine if mark <= low)
    above = min((mark for mark in fine if mark >= high), default=fine[-1])
    above = above if above > below else below * 10
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [mark for mark in (fine if above / below <= 50 else powers) if below <= mark <= above]
    return Axis(below, above, form, kind, LOG, "", ticks)


def nines_axis(total: int) -> Axis:
    """Return the axis of shares with a stretched end: 90 %, 99 %, 99.9 % at equal distances."""
    most = min(5, max(1, ceil(log10(max(total, 2)))))
    ticks = [0.0, 0.5, *(1 - 10.0**-power for power in range(1, most + 1))]

    def form(value: float) -> str:
        return f"{100 * value:.10g}\N{NO-BREAK SPACE}%" if value < 1 else "100\N{NO-BREAK SPACE}%"

    return Axis(
        0.0,
        ticks[-1],
        form,
        "share",
        NINES,
        "share of the deliveries at most as slow",
        ticks,
    )

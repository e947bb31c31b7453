"""The charts of the experiment ``scale`` as an HTML page: costs and times over the group size.

Both axes are logarithmic. ``gapless.report.charts.lines`` draws the charts, with the stylesheet of
the report; the page needs no script.
"""

from __future__ import annotations

from importlib.resources import files
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from experiments.scale import IDLE_NS
from gapless.report.charts import palette
from gapless.report.charts.axes import LOG, Axis
from gapless.report.charts.lines import ChartPanel, ChartTable, Curve, line_chart, marker_defs
from gapless.report.html import Html, tag
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.scale import GroupSizeResult

    Values = Callable[[GroupSizeResult], float | None]


def growth_page(found: Sequence[GroupSizeResult]) -> str:
    """Return the page of all charts."""
    styles = palette.css() + files("gapless.report").joinpath("style.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", "Growth of a group"),
        Html(f"<style>{styles}</style>"),
    )
    body = tag("body", marker_defs(), tag("main", *growth_charts(found)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def growth_charts(found: Sequence[GroupSizeResult]) -> list[Html]:
    """Return a chart for each group of figures."""
    return [
        _chart(
            found,
            "Control traffic per delivered message",
            ("bytes", lambda size: size.control_bytes_per_message),
            ("frames", lambda size: size.control_frames_per_message),
        ),
        _chart(
            found,
            "Control frames per sent message",
            ("frames", lambda size: size.control_frames_per_send),
        ),
        _chart(
            found,
            "Time in ms",
            ("all at once", lambda size: _ms(size.form.total_ns)),
            ("join", lambda size: _ms(size.join_ns)),
            ("join, all streams", lambda size: _ms(size.started_ns)),
            ("view", lambda size: _ms(size.view_ns)),
        ),
        _chart(
            found,
            "Control bytes in total",
            ("all at once", lambda size: size.form.cost.control_bytes),
            ("one join", lambda size: size.changes["join"].cost.control_bytes),
            ("one idle second", lambda size: size.idle.control_bytes * NS_PER_S / IDLE_NS),
        ),
    ]


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_MS


def _chart(found: Sequence[GroupSizeResult], title: str, *lines: tuple[str, Values]) -> Html:
    xs = [float(size.members) for size in found]
    curves = [
        Curve(name, [value(size) for size in found], colour, marked=True)
        for colour, (name, value) in enumerate(lines, 1)
    ]
    values = [value for curve in curves for value in curve.values if value]
    rows = [
        (
            f"{x:g}",
            *("" if curve.values[at] is None else f"{curve.values[at]:g}" for curve in curves),
        )
        for at, x in enumerate(xs)
    ]
    across = Axis(min(xs), max(xs), _number, "count", LOG, "members", xs)
    return line_chart(
        title.lower().replace(" ", "-"),
        title,
        across,
        xs,
        [ChartPanel(title, _powers_of_ten(values), curves)],
        data_table=ChartTable(("members", *(name for name, _ in lines)), rows),
    )


def _powers_of_ten(values: Sequence[float]) -> Axis:
    first = floor(log10(min(values, default=1.0)))
    last = max(first + 1, ceil(log10(max(values, default=1.0))))
    ticks = [10.0**power for power in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], _number, "count", LOG, "", ticks)


def _number(value: float) -> str:
    return f"{value:,g}" if value < 1e6 else f"{value / 1e6:,g} M"

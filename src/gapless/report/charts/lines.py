"""Line charts and the parts common to all charts: title, legend, canvas, readout and table.

A chart is an SVG that stretches: horizontal positions are in per cent of the width, while text,
marks and heights keep their size. The same chart fits a phone, a wide screen and paper, without a
script.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gapless.report import formatting
from gapless.report.html import Html, join_markup, json_script, shorten, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.report.charts.axes import Axis

PATH_WIDTH, PATH_UNITS_PER_PIXEL = 10_000, 10
"""Units of a path per plot width and per pixel of height: integers make short paths."""
MAX_TABLE_ROWS, MANY_FIGURES = 40, 8
"""Maximum number of rows of the table behind a curve; half as many if there are many figures."""
_PANEL_GAP, _PANEL_HEAD = 30, 18
_AXIS_FOOT = 22
_EVENT_ROWS, _EVENT_ROW = 4, 15
# Shares of the width: events closer than the first share a label, a letter takes the second, and
# a label right of the third is left of its line.
_EVENT_MERGE, _EVENT_LETTER, _EVENT_FLIP = 0.015, 0.0078, 0.85

COLOURS = 8
"""Number of colours for curves, bars and marks."""
MARKERS = ("dot", "triangle", "square", "diamond", "cross", "ring", "plus", "star")
"""Shapes of marks, by colour: marks of different colours also differ in shape."""

_SHAPES = {
    "dot": '<circle r="4"/>',
    "triangle": '<path d="M0-5.2 5 3.6H-5Z"/>',
    "square": '<path d="M-3.8-3.8H3.8V3.8H-3.8Z"/>',
    "diamond": '<path d="M0-5.4 5.4 0 0 5.4-5.4 0Z"/>',
    "cross": '<path class="thin" d="M-4-4 4 4M4-4-4 4"/>',
    "ring": '<circle class="thin" r="3.6"/>',
    "plus": '<path class="thin" d="M-5 0H5M0-5V5"/>',
    "star": '<path d="M0-5.5 1.5-1.8 5.5-1.6 2.4 1 3.5 5 0 2.7-3.5 5-2.4 1-5.5-1.6-1.5-1.8Z"/>',
}


def marker_defs() -> Html:
    """Return the definitions of marks and fills for all charts of a page."""
    marks = "".join(f'<g id="m-{name}">{shape}</g>' for name, shape in _SHAPES.items())
    fills = "".join(
        f'<pattern id="hatch{nth}" class="c{nth}" width="6" height="6" '
        f'patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="under" width="6" height="6"/>'
        '<rect class="ink" width="2.6" height="6"/></pattern>'
        f'<pattern id="dots{nth}" class="c{nth}" width="5" height="5" '
        f'patternUnits="userSpaceOnUse">'
        '<rect class="under" width="5" height="5"/><circle class="ink" cx="2.5" cy="2.5" '
        'r="1.3"/></pattern>'
        for nth in range(1, COLOURS + 1)
    )
    return Html(
        f'<svg class="defs" width="0" height="0" '
        f'aria-hidden="true"><defs>{marks}{fills}</defs></svg>'
    )


@dataclass(slots=True)
class Curve:
    """A curve: a value, or None, for each x of the chart.

    ``minus`` holds the indexes of two other curves if the curve is their difference; the page then
    omits the values.
    """

    name: str
    values: Sequence[float | None]
    colour: int = 1
    step: bool = False
    marked: bool = False
    heavy: bool = False
    dash: int = 0
    minus: tuple[int, int] | None = None

    @property
    def style(self) -> str:
        """The CSS classes of the curve: colour, dashes and weight."""
        return f"line c{self.colour} d{self.dash or self.colour}" + (" heavy" if self.heavy else "")


@dataclass(slots=True)
class ChartPanel:
    """A panel of a chart: curves, bands between curves, and level lines."""

    name: str
    axis: Axis
    curves: Sequence[Curve]
    height: int = 150
    bands: Sequence[tuple[int, int]] = ()
    levels: Sequence[tuple[float, str]] = ()


@dataclass(slots=True)
class ChartTable:
    """The numbers behind a chart. ``note`` tells how many rows are left out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    numeric: frozenset[int] = field(default_factory=frozenset)


def table(content: ChartTable, label: str, *, scroll: bool = True) -> Html:
    """Return a table; a table wider than the page scrolls within a frame."""
    numeric = content.numeric or frozenset(range(1, len(content.columns)))
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col", class_=_side(at, numeric))
            for at, name in enumerate(content.columns)
        ),
    )
    rows = [
        tag("tr", *(_cell(at, cell, numeric) for at, cell in enumerate(row)))
        for row in content.rows
    ]
    if not rows:
        rows = [tag("tr", tag("td", "no rows", colspan=len(content.columns), class_="soft"))]
    whole = tag("table", tag("thead", head), tag("tbody", *rows))
    note = tag("p", content.note, class_="note") if content.note else Html("")
    if not scroll:
        return join_markup((whole, note))
    return join_markup(
        (tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=label), note)
    )


def _cell(at: int, cell: object, numeric: frozenset[int]) -> Html:
    if at == 0:
        return tag("th", cell, scope="row", class_=_side(at, numeric))
    return tag("td", cell, class_=_side(at, numeric))


def _side(at: int, numeric: frozenset[int]) -> str | None:
    return None if at in numeric else "t"


def figure(
    ident: str,
    title: str,
    picture: Html,
    data_table: ChartTable,
    *,
    note: object = "",
    summary: str = "",
    legend: Iterable[Html] = (),
    points: object = None,
    style: str = "",
) -> Html:
    """Return a figure around an SVG; ``summary`` is for screen readers."""
    keys = list(legend)
    label = f"{title}. {summary}".strip()
    stage = tag(
        "div",
        picture,
        class_="stage",
        tabindex=0,
        role="img",
        aria_label=label,
        aria_describedby=f"{ident}-say",
    )
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", note, class_="note") if note else ""),
        tag("ul", *keys, class_="legend") if keys else "",
        stage,
        tag("p", class_="say", id=f"{ident}-say", aria_live="polite"),
        tag(
            "details",
            tag("summary", "Table: ", title),
            table(data_table, f"Table: {title}"),
            class_="behind",
        ),
        "" if points is None else json_script(points),
        class_=f"plot card {style}".strip(),
        id=ident,
    )


def switcher(
    ident: str, label: str, names: Sequence[str], bodies: Sequence[Html], *, start: int = 0
) -> Html:
    """Return several bodies; a script shows a single body at a time, first ``start``."""
    if len(bodies) == 1:
        return bodies[0]
    options = [
        tag("option", name, value=nth, selected=nth == start) for nth, name in enumerate(names)
    ]
    control = tag(
        "div",
        tag("label", label, for_=f"{ident}-choose"),
        tag("select", *options, id=f"{ident}-choose"),
        tag(
            "button",
            "\N{LEFTWARDS ARROW}",
            type="button",
            class_="step",
            data_by=-1,
            aria_label=f"{label}: previous",
        ),
        tag(
            "button",
            "\N{RIGHTWARDS ARROW}",
            type="button",
            class_="step",
            data_by=1,
            aria_label=f"{label}: next",
        ),
        class_="control",
    )
    parts = [
        tag("div", body, class_="option shown" if nth == start else "option")
        for nth, body in enumerate(bodies)
    ]
    return tag("div", control, *parts, class_="choice", id=ident)


def legend_entry(
    name: object, colour: int, *, shape: str = "line", marked: bool = False, dash: int = 0
) -> Html:
    """Return an entry of a legend with a ``line``, a ``block`` or a mark of the given name."""
    if shape == "line":
        parts = [tag("line", class_=f"line c{colour} d{dash or colour}", x1=0, x2=28, y1=6, y2=6)]
        if marked:
            parts.append(
                tag(
                    "use",
                    class_=f"mark c{colour}",
                    href=f"#m-{MARKERS[(colour - 1) % len(MARKERS)]}",
                    x=14,
                    y=6,
                )
            )
    elif shape in MARKERS:
        parts = [tag("use", class_=f"mark c{colour}", href=f"#m-{shape}", x=14, y=6)]
    else:
        parts = [tag("rect", class_=f"{shape} c{colour}", x=6, y=1, width=16, height=10, rx=2)]
    return tag(
        "li",
        tag("svg", *parts, class_="sample", width=28, height=12, aria_hidden="true"),
        " ",
        name,
    )


def line_chart(
    ident: str,
    title: str,
    across: Axis,
    xs: Sequence[float],
    panels: Sequence[ChartPanel],
    *,
    data_table: ChartTable,
    note: object = "",
    summary: str = "",
) -> Html:
    """Return a figure of curves over a common axis, with one or more panels above each other."""
    xs, panels = _clipped(across, xs, panels)
    tops = _tops(panels, event_head(across))
    foot = tops[-1] + panels[-1].height
    parts = [
        part
        for top, panel in zip(tops, panels, strict=True)
        for part in _panel(top, panel, across, xs)
    ]
    parts += x_axis(across, foot, tops[0])
    picture = svg_canvas(parts, foot + _AXIS_FOOT)
    lines = [line for panel in panels for line in panel.curves]
    return figure(
        ident,
        title,
        picture,
        data_table,
        note=note,
        summary=summary,
        legend=[
            legend_entry(line.name, line.colour, marked=line.marked, dash=line.dash)
            for line in lines
        ]
        if len(lines) > 1
        else (),
        points=_points(across, xs, panels, tops),
    )


def _clipped(
    across: Axis, xs: Sequence[float], panels: Sequence[ChartPanel]
) -> tuple[Sequence[float], Sequence[ChartPanel]]:
    """Return the points at and after the start of a time axis.

    A step curve that changes before the axis begins starts with its last value from then.
    """
    if across.kind != "time" or not xs or xs[0] >= across.low:
        return xs, panels
    first = bisect_left(xs, across.low)
    held = any(line.step for panel in panels for line in panel.curves)
    if first == len(xs) or (held and xs[first] > across.low):
        first -= 1
    clipped = [
        replace(panel, curves=[replace(line, values=line.values[first:]) for line in panel.curves])
        for panel in panels
    ]
    return [max(x, across.low) for x in xs[first:]], clipped


def svg_canvas(parts: Iterable[Html], height: float) -> Html:
    """Return an SVG of a fixed height and the full width of the page."""
    return tag(
        "svg", *parts, class_="canvas", width="100%", height=round(height), aria_hidden="true"
    )


def _tops(panels: Sequence[ChartPanel], top: int) -> list[int]:
    tops = []
    for panel in panels:
        top += _PANEL_HEAD
        tops.append(top)
        top += panel.height + _PANEL_GAP - _PANEL_HEAD
    return tops


def x_axis(across: Axis, foot: float, head: float) -> list[Html]:
    """Return the ticks below ``foot``, grid lines from ``head`` to ``foot``, and event lines."""
    parts = []
    for nth, tick in enumerate(across.ticks):
        place = across.position(tick)
        x = percent_position(place)
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=round(head, 1), y2=foot))
        side = " first" if place < 0.02 else " last" if place > 0.96 else ""
        odd = " odd" if nth % 2 else ""
        parts.append(
            tag("text", across.format_value(tick), class_=f"tick x{side}{odd}", x=x, y=foot + 16)
        )
    parts.append(tag("line", class_="base", x1=0, x2="100%", y1=foot, y2=foot))
    return parts + _event_lines(across, foot)


def event_head(across: Axis) -> int:
    """Return the height of the event labels above a chart; 0 for an axis without events."""
    labels = _event_labels(across)
    return _EVENT_ROW * (1 + max(row for *_, row in labels)) + 2 if labels else 0


def _event_labels(across: Axis) -> list[tuple[float, str, str, int]]:
    """Return position, label, members and row of each event; close events share a label.

    A label without room in the last row is hidden: its row is -1, and only its line is drawn.
    """
    groups: list[tuple[float, str, list[str]]] = []
    for event in across.events:
        place = across.position(event.at)
        last = groups[-1] if groups else None
        if last is not None and last[1] == event.what and place - last[0] < _EVENT_MERGE:
            last[2].append(event.name)
        else:
            groups.append((place, event.what, [event.name]))
    found = []
    ends = [-1.0] * _EVENT_ROWS
    for place, what, names in groups:
        who = shorten(names[0], 16) if len(names) == 1 else formatting.plural(len(names), "member")
        label = f"{who} {what}"
        width = _EVENT_LETTER * (len(label) + 2)
        left = place - width if place > _EVENT_FLIP else place
        row = next((row for row, end in enumerate(ends) if end <= left), -1)
        if row >= 0:
            ends[row] = left + width
        found.append((place, label, ", ".join(names), row))
    return found


def _event_lines(across: Axis, foot: float) -> list[Html]:
    """Return a labelled vertical line for each event of the axis."""
    parts = []
    for place, label, names, row in _event_labels(across):
        x = percent_position(place)
        y = _EVENT_ROW * max(row, 0)
        parts.append(tag("line", class_="event-line", x1=x, x2=x, y1=y, y2=foot))
        if row >= 0:
            side = " flip" if place > _EVENT_FLIP else ""
            parts.append(
                tag(
                    "text",
                    tag("title", f"{names}: {label}"),
                    label,
                    class_=f"event-name{side}",
                    x=x,
                    dx=-4 if side else 4,
                    y=y + 10,
                )
            )
    return parts


def percent_position(place: float) -> str:
    """Return a position between 0 and 1 in per cent of the width."""
    return f"{100 * place:.2f}".rstrip("0").rstrip(".") + "%"


def _panel(top: int, panel: ChartPanel, across: Axis, xs: Sequence[float]) -> Iterable[Html]:
    yield tag("text", panel.name, class_="panel-name", x=0, y=top - 6)
    for tick in panel.axis.ticks:
        y = round(top + panel.height * (1 - panel.axis.position(tick)), 1)
        yield tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y)
        yield tag("text", panel.axis.format_value(tick), class_="tick y", x=-8, y=round(y + 4, 1))
    places = [round(PATH_WIDTH * across.position(x)) for x in xs]
    curves = [_heights(panel, line) for line in panel.curves]
    stretched = [
        _band(places, curves[low], curves[high], panel.curves[low]) for low, high in panel.bands
    ]
    for line, curve in zip(panel.curves, curves, strict=True):
        stretched.append(
            tag(
                "path",
                class_=line.style,
                d=_path(places, curve, step=line.step),
                vector_effect="non-scaling-stroke",
            )
        )
    for level, _ in panel.levels:
        y = round(PATH_UNITS_PER_PIXEL * panel.height * (1 - panel.axis.position(level)))
        stretched.append(
            tag(
                "line",
                class_="level",
                x1=0,
                x2=PATH_WIDTH,
                y1=y,
                y2=y,
                vector_effect="non-scaling-stroke",
            )
        )
    yield tag(
        "svg",
        *stretched,
        x=0,
        y=top,
        width="100%",
        height=panel.height,
        viewBox=f"0 0 {PATH_WIDTH} {PATH_UNITS_PER_PIXEL * panel.height}",
        preserveAspectRatio="none",
        overflow="visible",
    )
    for level, name in panel.levels:
        y = round(top + panel.height * (1 - panel.axis.position(level)) - 5, 1)
        yield tag("text", name, class_="level-name", x="100%", y=y)
    for line, curve in zip(panel.curves, curves, strict=True):
        if line.marked or sum(value is not None for value in curve) == 1:
            shape = MARKERS[(line.colour - 1) % len(MARKERS)]
            for place, height in zip(places, curve, strict=True):
                if height is not None:
                    yield tag(
                        "use",
                        class_=f"mark c{line.colour}",
                        href=f"#m-{shape}",
                        x=percent_position(place / PATH_WIDTH),
                        y=round(top + height / PATH_UNITS_PER_PIXEL, 1),
                    )


def _heights(panel: ChartPanel, line: Curve) -> list[int | None]:
    full = PATH_UNITS_PER_PIXEL * panel.height
    return [
        None if value is None else round(full * (1 - panel.axis.position(value)))
        for value in line.values
    ]


def _path(places: Sequence[int], heights: Sequence[int | None], *, step: bool) -> str:
    """Return a path with a hole at each missing value, without redundant points."""
    parts: list[str] = []
    x = y = last = 0
    drawing = False
    for place, height in zip(places, heights, strict=True):
        if height is None:
            if step and drawing and place > x:
                parts.append(f"h{place - x}")
            drawing = False
            continue
        if not drawing:
            parts.append(f"M{place} {height}")
        elif step:
            if height == y:
                last = place
                continue
            parts.append(f"h{place - x}v{height - y}")
        elif height != y or place != x:
            parts.append(f"l{place - x} {height - y}")
        x, y, last, drawing = place, height, place, True
    if step and drawing and last > x:
        parts.append(f"h{last - x}")
    return "".join(parts) or "M0 0"


def _band(
    places: Sequence[int], low: Sequence[int | None], high: Sequence[int | None], line: Curve
) -> Html:
    """Return the area between two curves: along the upper curve, and back along the lower."""
    there = [at for at in range(len(places)) if low[at] is not None and high[at] is not None]
    if not there:
        return Html("")
    upper = _path([places[at] for at in there], [high[at] for at in there], step=line.step)
    parts: list[str] = []
    x, y = -1, -1
    for at in reversed(there):
        place, height = places[at], low[at] or 0
        if line.step and height != y:
            parts.append(f"V{height}" if x in {-1, place} else f"H{x}V{height}")
        elif not line.step:
            parts.append(f"L{place} {height}")
        x, y = place, height
    return tag("path", class_="band", d=f"{upper}{''.join(parts)}{f'H{x}' if line.step else ''}Z")


def _points(
    across: Axis, xs: Sequence[float], panels: Sequence[ChartPanel], tops: Sequence[int]
) -> dict[str, Any]:
    """Return the data of the cursor script: positions and values, as differences."""
    series = [
        {
            # The legend explains a difference; the cursor only names it.
            "name": line.name if line.minus is None else line.name.partition(":")[0],
            "kind": panel.axis.kind,
            "colour": line.colour,
            "box": [top, panel.height],
            "axis": [panel.axis.low, panel.axis.high, panel.axis.scale],
            **({"values": _deltas(line.values)} if line.minus is None else {"minus": line.minus}),
        }
        for top, panel in zip(tops, panels, strict=True)
        for line in panel.curves
    ]
    found: dict[str, Any] = {"series": series}
    if across.kind == "time":
        span_ns = max(across.high - across.low, 1)
        found["time"] = _deltas([round((x - across.low) / 1000) for x in xs])
        found["span"] = span_ns / 1000
    else:
        found["at"] = [round(across.position(x), 4) for x in xs]
        found["label"] = [across.format_value(x) for x in xs]
        found["name"] = across.name
    return found


def _deltas(values: Iterable[float | None]) -> list[float | None]:
    """Return the differences between consecutive values: small numbers make a small page."""
    found: list[float | None] = []
    before: float = 0
    for value in values:
        if value is None:
            found.append(None)
            continue
        whole = round(value) if abs(value) >= 1000 or value == int(value) else round(value, 3)
        step = whole - before
        found.append(step if isinstance(step, int) else round(step, 3))
        before = whole
    return found


def downsample(rows: Sequence[Any], most: int = MAX_TABLE_ROWS) -> list[Any]:
    """Return at most ``most`` rows, evenly spaced, with the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[at * (len(rows) - 1) // (most - 1)] for at in range(most)]


def table_rows(figures: int) -> int:
    """Return the number of table rows per figure for ``figures`` figures of a kind."""
    return MAX_TABLE_ROWS if figures <= MANY_FIGURES else MAX_TABLE_ROWS // 2


def downsample_note(shown: int, of: int, what: str = "points") -> str:
    """Return the note below an incomplete table."""
    return (
        ""
        if shown >= of
        else f"{formatting.count(shown)} of {formatting.count(of)} {what}; the chart shows all."
    )

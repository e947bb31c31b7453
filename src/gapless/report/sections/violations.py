"""Violations: each with a sequence diagram of the rows and frames around the violation.

Time runs down. A row of the diagram is an event, in order of time; distances have no meaning, the
times on the left do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from gapless.invariants import sentence_of
from gapless.report import formatting
from gapless.report.charts.axes import Axis
from gapless.report.charts.lines import ChartTable, table
from gapless.report.html import Html, join_markup, name_markup, shorten, tag

UNFOLDED = 3
"""Number of violations unfolded when the page opens."""
MAX_DIAGRAMS = 20
"""Maximum number of violations with a diagram; the others have a message, a place and a time."""
_NOT_DRAWN = (
    f"Only the first {MAX_DIAGRAMS} violations are drawn; "
    "gapless verify shows the rows around the others."
)
_NEVER, _UNKNOWN = "lost", "arrival not recorded here"
_LEFT, _HEAD, _ROW, _RIGHT = 70, 40, 26, 30
_LANES = {1: 240, 2: 228, 3: 210}
_MANY_LANES = 180
_PER_LETTER = 7.3
_MAX_LANES = 12


def section(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return all violations in the figures."""
    found = figures["violations"]
    total = int(figures["verdict"]["violations"])
    if not found:
        if total:
            return tag(
                "p", "The figures do not include the rows around the violations.", class_="note"
            )
        return None
    counts = Counter(one["check"] for one in found)
    by_check = ", ".join(f"{check}: {number}" for check, number in sorted(counts.items()))
    everything = formatting.count(max(total, len(found)))
    intro = f"Shown: {formatting.count(len(found))} of {everything} ({by_check})."
    return join_markup(
        (
            tag("p", intro, class_="note"),
            *(_violation(nth, one, across) for nth, one in enumerate(found)),
        )
    )


def _violation(nth: int, one: dict[str, Any], across: Axis) -> Html:
    where = tag("span", f" at {across.format_value(one['t_ns'])}", class_="soft")
    seed = tag("span", f", seed {one['seed']}", class_="soft") if one["seed"] else ""
    head = tag(
        "summary",
        tag("span", one["check"], class_="check-id bad"),
        " ",
        tag("span", one["message"], class_="message"),
        where,
        seed,
    )
    meaning = sentence_of(one["check"])
    body = [tag("p", f"Violated guarantee: {meaning}", class_="note")] if meaning else []
    body.append(_picture(nth, one) if nth < MAX_DIAGRAMS else tag("p", _NOT_DRAWN, class_="note"))
    return tag(
        "details", head, *body, class_="violation card", id=f"violation-{nth}", open=nth < UNFOLDED
    )


class _RelativeTime(NamedTuple):
    """Times relative to the violation."""

    zero_ns: float

    def format_time(self, t_ns: float) -> str:
        """Return the time before or after the violation."""
        away_ns = t_ns - self.zero_ns
        return (
            "0"
            if not away_ns
            else formatting.duration(away_ns)
            if away_ns < 0
            else f"+{formatting.duration(away_ns)}"
        )


class _DiagramEvent(NamedTuple):
    """An event of the diagram: a row of the trace, or the send or arrival of a frame."""

    t_ns: float
    rank: int
    incarnation: str
    text: str
    is_violation: bool
    frame: int
    until_ns: float = 0
    times: int = 1

    @property
    def label(self) -> str:
        """The text beside the line."""
        return self.text if self.times == 1 else f"{self.text} \N{MULTIPLICATION SIGN}{self.times}"


def _events(one: dict[str, Any]) -> list[_DiagramEvent]:
    """Return all events in order; at equal times arrivals first, then rows, then sends."""
    events = [
        _DiagramEvent(row["t_ns"], 1, row["member"], _row_text(row), row["here"], -1)
        for row in one["rows"]
    ]
    for nth, frame in enumerate(one["frames"]):
        events.append(_DiagramEvent(frame["sent_ns"], 2, frame["from"], "", False, nth))
        if frame["got_ns"] is not None:
            events.append(_DiagramEvent(frame["got_ns"], 0, frame["to"], "", False, nth))
    return sorted(events, key=lambda event: event[:2])


def _folded(events: list[_DiagramEvent]) -> list[_DiagramEvent]:
    """Return events, with repetitions folded into the first occurrence."""
    found: list[_DiagramEvent] = []
    for event in events:
        same = found and event.frame < 0 and not event.is_violation and not found[-1].is_violation
        if same and (event.incarnation, event.text, event.frame) == (
            found[-1].incarnation,
            found[-1].text,
            found[-1].frame,
        ):
            found[-1] = found[-1]._replace(until_ns=event.t_ns, times=found[-1].times + 1)
        else:
            found.append(event)
    return found


def _is_drawn(one: dict[str, Any], event: _DiagramEvent, lanes: list[str]) -> bool:
    """Return whether all incarnations of an event have a line."""
    if event.frame < 0:
        return event.incarnation in lanes
    return one["frames"][event.frame]["from"] in lanes and one["frames"][event.frame]["to"] in lanes


def _marks(row: dict[str, Any]) -> str:
    return " / ".join(str(row[mark]) for mark in ("low", "delivered", "high"))


def _row_text(row: dict[str, Any]) -> str:
    parts = [row["event"]]
    if row["event"] == "STATE":
        parts.append(_marks(row))
    elif row["seqno"] or row["seqno_last"]:
        parts.append(formatting.seqnos(row["seqno"], row["seqno_last"]))
    if row["origin"] and row["origin"] != row["member"]:
        parts.append(f"of {shorten(row['origin'], 8)}")
    if row["reason"] and row["event"] != "MEMBERS":
        parts.append(shorten(row["reason"], 14))
    return " ".join(parts)


def _lanes(one: dict[str, Any]) -> list[str]:
    """Return the incarnations with a line: origin and subject first, the others in order."""
    names = [one["origin"], one["member"]]
    names += [row["member"] for row in one["rows"]]
    names += [name for frame in one["frames"] for name in (frame["from"], frame["to"])]
    return [name for name in dict.fromkeys(names) if name][:_MAX_LANES]


def _picture(nth: int, one: dict[str, Any]) -> Html:
    lanes, everything = _lanes(one), _events(one)
    drawn = [event for event in everything if _is_drawn(one, event, lanes)]
    events = _folded(drawn)
    title = f"Around violation {nth + 1}: {one['check']} at {one['member'] or 'the group'}"
    if not lanes or not events:
        return tag("p", "No row around the violation is recorded.", class_="note")
    apart = _LANES.get(len(lanes), _MANY_LANES)
    xs: dict[str, float] = {life: _LEFT + 12 + apart * nth for nth, life in enumerate(lanes)}
    width = _LEFT + 12 + apart * max(1, len(lanes) - 1) + _RIGHT
    height = _HEAD + _ROW * len(events) + 14
    since = _RelativeTime(one["t_ns"])
    parts = [
        *_life_lines(xs, height, one["member"]),
        *_arrows(one, events, xs, since),
        *_rows(events, xs, since),
    ]
    picture = tag(
        "svg",
        *parts,
        class_="sequence",
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        aria_hidden="true",
    )
    ident = f"sequence-{nth}"
    scroll = tag(
        "div",
        picture,
        class_="stage scroll wide",
        tabindex=0,
        role="img",
        aria_label=f"{title}. {one['message']}. {formatting.plural(len(events), 'event')}.",
        aria_describedby=f"{ident}-say",
    )
    summary = f"Table: {title}"
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("h3", title),
            tag("p", _how_to_read(one, len(everything) - len(drawn)), class_="note"),
        ),
        scroll,
        tag("p", class_="say", id=f"{ident}-say", aria_live="polite"),
        tag(
            "details",
            tag("summary", summary),
            table(_rows_table(one, since), summary),
            class_="behind",
        ),
        class_="plot",
        id=ident,
    )


def _how_to_read(one: dict[str, Any], left_out: int) -> Html:
    parts: list[object] = ["Time runs down and counts from the violation. "]
    if one["frames"]:
        parts.append(
            "An arrow is a frame; a cross marks a lost frame, a ring a frame whose arrival is not "
            "recorded here. "
        )
    parts.append("A box frames the violating row. STATE shows low / delivered / high.")
    if left_out:
        more = formatting.plural(left_out, "event")
        parts.append(f" The table has {more} more, of other incarnations.")
    return join_markup(parts)


def _life_lines(xs: dict[str, float], height: float, concerned: str) -> list[Html]:
    parts = []
    for life, x in xs.items():
        style = "life concerned" if life == concerned else "life"
        parts.append(tag("line", class_=style, x1=x, x2=x, y1=_HEAD - 8, y2=height))
        parts.append(
            tag("text", tag("title", life), shorten(life, 16), class_="life-name", x=x, y=18)
        )
    return parts


def _middle(nth: int) -> float:
    return _HEAD + _ROW * nth + _ROW / 2


def _rows(events: list[_DiagramEvent], xs: dict[str, float], since: _RelativeTime) -> list[Html]:
    """Return the rows: right of the line of the incarnation, for the last incarnation left."""
    parts, before = [], None
    last = list(xs)[-1] if len(xs) > 1 else None
    for nth, event in enumerate(events):
        y = _middle(nth)
        if event.t_ns != before:
            parts.append(tag("text", since.format_time(event.t_ns), class_="moment", x=2, y=y + 4))
            before = event.t_ns
        if event.frame >= 0:
            continue
        x, here = xs[event.incarnation], event.is_violation
        say = f"{since.format_time(event.t_ns)}, {event.incarnation}: {event.text}" + (
            ", the violation" if here else ""
        )
        if event.times > 1:
            say += f", {event.times} times until {since.format_time(event.until_ns)}"
        width = round(_PER_LETTER * len(event.label) + 14)
        left = x - 6 - width if event.incarnation == last else x + 6
        box = tag(
            "rect",
            class_="here" if here else "said",
            x=left,
            y=y - 10,
            width=width,
            height=20,
            rx=4,
        )
        dot = tag(
            "use",
            class_=f"mark c{2 if here else 1}",
            href=f"#m-{'diamond' if here else 'dot'}",
            x=x,
            y=y,
        )
        label = tag("text", event.label, class_="event", x=left + 7, y=y + 4)
        parts.append(tag("g", box, dot, label, data_say=say))
    return parts


def _arrows(
    one: dict[str, Any], events: list[_DiagramEvent], xs: dict[str, float], since: _RelativeTime
) -> list[Html]:
    starts = {
        event.frame: nth for nth, event in enumerate(events) if event.frame >= 0 and event.rank == 2
    }
    ends = {
        event.frame: nth for nth, event in enumerate(events) if event.frame >= 0 and event.rank == 0
    }
    parts = []
    for nth, frame in enumerate(one["frames"]):
        if nth not in starts:
            continue
        came = nth in ends
        x1, x2, y1 = xs[frame["from"]], xs[frame["to"]], _middle(starts[nth])
        when = (
            f"arrives at {since.format_time(frame['got_ns'])}"
            if came
            else _NEVER
            if frame["lost"]
            else _UNKNOWN
        )
        sent = f"{since.format_time(frame['sent_ns'])}, frame from {frame['from']} to {frame['to']}"
        say = f"{sent}: {frame['what']}, {when}"
        way = 1 if x2 >= x1 else -1
        if came:
            y2, end, style = _middle(ends[nth]), x2 - 6 * way, "arrow"
            tip = tag("path", class_="tip", d=f"M{x2:g} {y2:g}l{-9 * way} -4v8Z")
        else:
            y2, end = y1 + _ROW / 2, x1 + (x2 - x1) * 0.6
            style, mark = (
                ("arrow lost", "mark c8") if frame["lost"] else ("arrow unknown", "mark c7")
            )
            tip = tag(
                "use", class_=mark, href="#m-cross" if frame["lost"] else "#m-ring", x=end, y=y2
            )
        line = tag("line", class_=style, x1=x1, y1=y1, x2=end, y2=y2)
        style = "frame-name" + (" back" if way < 0 else "")
        name = tag(
            "text", shorten(frame["what"], 18), class_=style, x=x1 + 12 * way, y=round(y1 - 4, 1)
        )
        parts.append(tag("g", line, tip, name, data_say=say))
    return parts


def _rows_table(one: dict[str, Any], since: _RelativeTime) -> ChartTable:
    rows: list[tuple[Any, ...]] = [
        (
            row["t_ns"],
            name_markup(row["member"]),
            join_markup((tag("strong", row["event"]), " ← here")) if row["here"] else row["event"],
            name_markup(row["origin"]),
            formatting.seqnos(row["seqno"], row["seqno_last"])
            if row["seqno"] or row["seqno_last"]
            else "",
            name_markup(row["peer"]),
            _marks(row) if row["event"] == "STATE" else row["reason"],
        )
        for row in one["rows"]
    ]
    for frame in one["frames"]:
        never = _NEVER if frame["lost"] else _UNKNOWN
        got = (
            never if frame["got_ns"] is None else f"arrived at {since.format_time(frame['got_ns'])}"
        )
        rows.append(
            (
                frame["sent_ns"],
                name_markup(frame["from"]),
                "frame",
                "",
                frame["what"],
                name_markup(frame["to"]),
                got,
            )
        )
    rows.sort(key=lambda row: row[0])
    shown = [(since.format_time(row[0]), *row[1:]) for row in rows]
    return ChartTable(
        ("time", "incarnation", "event", "origin", "messages", "peer", "marks or reason"),
        shown,
        numeric=frozenset({0}),
    )

"""The report of a sweep: profiles by loss and group size, coverage of hunts, failed runs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.invariants import INVARIANTS, NOT_CLAIMED, sentence_of
from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import LOG, Axis
from gapless.report.charts.bars import BarRow, BarSegment, bar_chart
from gapless.report.charts.lines import (
    COLOURS,
    ChartPanel,
    ChartTable,
    Curve,
    figure,
    line_chart,
    switcher,
    table,
)
from gapless.report.html import Html, join_markup, name_markup, tag
from gapless.report.sections import verdict
from gapless.report.sections.verdict import BAD, GOOD, UNSURE, Judgement, tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.report.page import PageSection

MAX_FAILURES = 60
"""Maximum number of failed runs in the list."""
MAX_CELLS = 600
"""Maximum number of cells in the table."""
MAX_CONDITIONS = 40
"""Maximum number of conditions to choose from in a comparison."""
_FAILURES = "Each failed run with the commands to replay and to shrink it."
_LOSS = "The same load on networks with increasing loss."
_SIZE = "The same load per member in groups of increasing size."
_SIMULATED = (
    "The simulator runs the real protocol code with virtual time and a simulated network. "
    "A sweep tests no operating system, socket, disk or Spark job."
)


class SweepMetric(NamedTuple):
    """A metric for the comparison of profiles."""

    ident: str
    name: str
    note: str
    value: Callable[[dict[str, Any]], float | None]
    format_value: Callable[[float | None], str]
    kind: str
    logarithmic: bool = False


def _share(cell: dict[str, Any]) -> float | None:
    return cell["delivered"] / cell["expected"] if cell["expected"] else None


def _bytes(cell: dict[str, Any]) -> float | None:
    sizes = cell["bytes"] if isinstance(cell["bytes"], dict) else {}
    return sum(sizes.values()) / cell["delivered"] if cell["delivered"] else None


METRICS = (
    SweepMetric(
        "p99",
        "p99 latency",
        "Lower is better.",
        lambda cell: cell["p99_ns"],
        formatting.duration,
        "ns",
        True,
    ),
    SweepMetric(
        "p50",
        "Median latency",
        "Lower is better.",
        lambda cell: cell["p50_ns"],
        formatting.duration,
        "ns",
        True,
    ),
    SweepMetric(
        "rate",
        "Deliveries per second",
        "Higher is better. Per second of virtual time.",
        lambda cell: cell["deliveries_per_s"],
        formatting.compact,
        "rate",
    ),
    SweepMetric(
        "frames",
        "Frames per delivery",
        "Lower is better. Counts data, repairs, acks, naks and all other frames.",
        lambda cell: cell["frames_per_message"],
        formatting.compact,
        "number",
    ),
    SweepMetric(
        "bytes",
        "Bytes per delivery",
        "Lower is better. Includes headers.",
        _bytes,
        formatting.compact,
        "number",
    ),
    SweepMetric(
        "repairs",
        "Repairs per lost frame",
        "A lost data frame needs 1 repair, a lost ack none.",
        lambda cell: cell["repairs_per_lost_frame"],
        formatting.compact,
        "number",
    ),
)
"""The metrics of a comparison."""


# The verdict


def card(figures: dict[str, Any]) -> tuple[Judgement, Html]:
    """Return the judgement of a sweep and its card."""
    judgement = judge_sweep(figures)
    simulated_ns = sum(part["simulated_ns"] for part in figures["cells"]) + sum(
        1e9 * hunt["simulated_seconds"] for hunt in figures["hunts"]
    )
    delivered = sum(cell["delivered"] for cell in figures["cells"])
    promises = [
        tile(
            "Failed runs",
            formatting.count(figures["failed"]),
            tone=BAD if figures["failed"] else GOOD,
        ),
        tile(
            "Violations",
            formatting.count(figures["violations"]),
            tone=BAD if figures["violations"] else GOOD,
        ),
        tile("Runs done", formatting.count(figures["runs"]), detail=_to_do(figures)),
        tile(
            "Cells",
            formatting.count(len(figures["cells"]) + len(figures["hunts"])),
            detail="combinations and hunts",
        ),
    ]
    work = [
        tile(
            "Steps checked",
            formatting.compact(_sum(figures, "steps")),
            detail="every check after every step",
        ),
        tile("Events", formatting.compact(_sum(figures, "events"))),
        tile("Deliveries", formatting.compact(delivered), detail="in cells of the grid")
        if delivered
        else "",
        tile("Virtual time", formatting.duration(simulated_ns)),
        tile("CPU time", formatting.duration(1e9 * _sum(figures, "cpu_s"))),
    ]
    tiles = join_markup(
        (tag("dl", *promises, class_="tiles promises"), tag("dl", *work, class_="tiles"))
    )
    return judgement, verdict.card(judgement, tiles, _limits(figures))


def _sum(figures: dict[str, Any], part: str) -> float:
    return float(sum(one[part] for one in (*figures["cells"], *figures["hunts"])))


def _to_do(figures: dict[str, Any]) -> str:
    return f"{formatting.count(figures['missing'])} still to do" if figures["missing"] else "all"


def judge_sweep(figures: dict[str, Any]) -> Judgement:
    """Return the judgement: a sweep passes if all runs are done and passed, with full coverage."""
    runs = formatting.plural(figures["runs"], "run")
    looked = f"Every invariant was checked after every step of {runs}."
    planted = sorted({cell["mutant"] for cell in figures["cells"] if cell["mutant"]})
    notes = (f"Planted bug: {', '.join(planted)}.",) if planted else ()
    if figures["failed"] or figures["violations"]:
        failed = formatting.count(figures["failed"])
        found = f"{formatting.plural(figures['violations'], 'violation')} in total."
        return Judgement(BAD, f"{failed} of {runs} failed", (*notes, looked, found))
    if not figures["runs"]:
        return Judgement(UNSURE, "Nothing to check", ("No run of the sweep is done yet.",))
    if figures["missing"]:
        left = formatting.count(figures["missing"])
        return Judgement(
            UNSURE, f"No violation so far; {left} runs are still to do", (*notes, looked)
        )
    unseen = [
        what
        for hunt in figures["hunts"]
        for what in hunt["must_happen_missing"]
        if hunt["thorough"]
    ]
    if unseen:
        never = f"A hunt of this length must include, but did not: {', '.join(unseen)}."
        return Judgement(UNSURE, "No violation, but the hunt was not thorough", (looked, never))
    return Judgement(GOOD, f"No violation in {runs}", (*notes, looked, *_bounds(figures)))


def _bounds(figures: dict[str, Any]) -> list[str]:
    return [
        f"For {_groups(hunt)}: with 95 % confidence, any bug shows in fewer than "
        f"{formatting.percent(hunt['a_bug_shows_in_less_than'])} of the runs."
        for hunt in figures["hunts"]
        if hunt["a_bug_shows_in_less_than"]
    ]


def _limits(figures: dict[str, Any]) -> Html:
    items = [tag("li", _SIMULATED), tag("li", NOT_CLAIMED)]
    if figures["other_runs"]:
        other = formatting.plural(figures["other_runs"], "run")
        items.append(tag("li", f"Not counted: {other} of other code in the same folder."))
    return tag("div", tag("h3", "Not checked"), tag("ul", *items), class_="not-checked")


# The sections


def sections(figures: dict[str, Any]) -> list[PageSection]:
    """Return the sections of a sweep."""
    from gapless.report.page import PageSection

    cells = figures["cells"]
    made = [
        PageSection("failures", "Failures", "Failed runs", _FAILURES, _failures(figures)),
        PageSection(
            "loss",
            "By loss",
            "Profiles by loss",
            _LOSS,
            _comparison(cells, "loss", "members", "loss"),
        ),
        PageSection(
            "size",
            "By size",
            "Profiles by group size",
            _SIZE,
            _comparison(cells, "members", "loss", "size"),
        ),
        PageSection("cost", "Overhead", "Protocol overhead", "", _cost(cells)),
        PageSection("cells", "Cells", "All cells", "", _cells(cells)),
        PageSection(
            "hunts", "Hunts", "Hunts: groups drawn from seeds", "", _hunts(figures["hunts"])
        ),
    ]
    return [part for part in made if part.body is not None]


def _failures(figures: dict[str, Any]) -> Html | None:
    failures = figures["failures"]
    if not failures:
        return None
    shown = failures[:MAX_FAILURES]
    counted = f"Shown: {len(shown)} of {formatting.count(max(figures['failed'], len(failures)))}."
    return join_markup(
        (tag("p", counted, class_="note"), *(_failure(nth, one) for nth, one in enumerate(shown)))
    )


def _failure(nth: int, one: dict[str, Any]) -> Html:
    first = one["violations"][0] if one["violations"] else None
    check = first["check"] if first else "aborted"
    what = first["message"] if first else one["error"]
    more = f" and {len(one['violations']) - 1} more" if len(one["violations"]) > 1 else ""
    head = tag(
        "summary",
        tag("span", check, class_="check-id bad"),
        " ",
        tag("span", what, class_="message"),
        tag("span", f"{more}, seed {one['seed']}, {one['profile'] or 'no profile'}", class_="soft"),
    )
    parts = (
        [tag("p", f"Violated guarantee: {sentence_of(check)}", class_="note")]
        if check in INVARIANTS
        else []
    )
    parts += [_command(name, one[name]) for name in ("replay", "shrink") if one[name]]
    if len(one["violations"]) > 1:
        rows = [
            (v["check"], formatting.duration(v["t_ns"]), name_markup(v["member"], 40), v["message"])
            for v in one["violations"][:50]
        ]
        content = ChartTable(("check", "time", "member", "violation"), rows, numeric=frozenset({1}))
        label = f"All {len(one['violations'])} violations of seed {one['seed']}"
        parts.append(tag("details", tag("summary", label), table(content, label), class_="behind"))
    return tag("details", head, *parts, class_="violation card", id=f"failure-{nth}", open=nth < 5)


def _command(name: str, command: str) -> Html:
    return tag(
        "div",
        tag("span", name, class_="soft"),
        tag("code", command, tabindex=0),
        tag("button", "Copy", type="button", class_="copy", aria_label=f"Copy the command: {name}"),
        class_="command",
    )


# The comparison


def _comparison(
    cells: Sequence[dict[str, Any]], across: str, other: str, ident: str
) -> Html | None:
    """Return curves of each profile over a parameter, for each condition of the other one."""
    conditions: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell[across] is not None and cell["profile"]:
            conditions[cell[other], _setting(cell)].append(cell)
    wide = {
        legend_entry: found
        for legend_entry, found in conditions.items()
        if len({cell[across] for cell in found}) > 1
    }
    if not wide:
        return None
    profiles = list(dict.fromkeys(cell["profile"] for cell in cells if cell["profile"]))
    several = len({setting for _, setting in wide}) > 1
    names, bodies = [], []
    ranked = sorted(wide.items(), key=lambda item: (item[0][1], item[0][0] or 0))[:MAX_CONDITIONS]
    for nth, ((fixed, setting), found) in enumerate(ranked):
        condition = f"{_fixed(other, fixed)}{', ' + setting if several else ''}"
        names.append(condition)
        figures = [
            _curves(f"{ident}-{nth}-{metric.ident}", metric, across, condition, found, profiles)
            for metric in METRICS
        ]
        bodies.append(tag("div", *filter(None, figures), class_="pair"))
    label = {"members": "Group", "loss": "Loss"}[other]
    work = (
        Html("") if several else tag("p", f"Load of each member: {ranked[0][0][1]}.", class_="note")
    )
    # Start with the hardest condition, where profiles differ most.
    return join_markup((work, switcher(f"{ident}-of", label, names, bodies, start=len(names) - 1)))


def _fixed(name: str, value: float | None) -> str:
    if value is None:
        return "drawn"
    return f"{value:g} members" if name == "members" else f"{value:g} % loss"


def _setting(cell: dict[str, Any]) -> str:
    knobs = cell["knobs"] if isinstance(cell["knobs"], dict) else {}
    parts = [f"{name} {value}" for name, value in sorted(knobs.items())]
    parts.append(f"{cell['messages']} messages of {formatting.size(cell['size_bytes'] or 0)}")
    return ", ".join(parts)


def _curves(
    ident: str,
    metric: SweepMetric,
    across: str,
    condition: str,
    cells: list[dict[str, Any]],
    profiles: list[str],
) -> Html | None:
    xs = sorted({cell[across] for cell in cells})
    found: dict[tuple[str, float], float | None] = {
        (cell["profile"], cell[across]): metric.value(cell) for cell in cells
    }
    known = [value for value in found.values() if value is not None]
    if not known:
        return None
    lines = [
        Curve(profile, [found.get((profile, x)) for x in xs], nth % COLOURS + 1, marked=True)
        for nth, profile in enumerate(profiles)
        if any(found.get((profile, x)) is not None for x in xs)
    ]
    up = (
        axes.log_axis(max(1, min(known)), max(known))
        if metric.logarithmic
        else axes.count_axis(max(known), metric.format_value, metric.kind)
    )
    behind = ChartTable(
        ("profile", *(_fixed(across, x) for x in xs)),
        [
            (
                line.name,
                *(
                    formatting.NO_VALUE if value is None else metric.format_value(value)
                    for value in line.values
                ),
            )
            for line in lines
        ],
    )
    best = _best(metric, lines)
    return line_chart(
        ident,
        metric.name,
        _parameter(across, xs),
        xs,
        [ChartPanel(condition, up, lines, height=180)],
        data_table=behind,
        note=metric.note,
        summary=best,
    )


def _best(metric: SweepMetric, lines: list[Curve]) -> str:
    """Return a sentence with the range of the curves at the right end."""
    ends = [(line.values[-1], line.name) for line in lines if line.values[-1] is not None]
    if not ends:
        return ""
    low, high = min(ends), max(ends)
    least = f"{metric.format_value(low[0])} ({low[1]})"
    return f"At the right end: from {least} to {metric.format_value(high[0])} ({high[1]})."


def _parameter(across: str, xs: list[float]) -> Axis:
    if across == "loss":
        return Axis(
            min(xs), max(xs), lambda x: f"{x:g}\N{NO-BREAK SPACE}%", "loss", name="loss", ticks=xs
        )
    return Axis(min(xs), max(xs), lambda x: f"{x:g}", "members", LOG, "members", xs)


_KINDS = (
    ("data", 1, "block"),
    ("repair", 2, "hatch"),
    ("ack", 3, "block"),
    ("nak", 8, "block"),
    ("tail", 5, "dots"),
    ("stability", 4, "hatch"),
    ("other", 7, "block"),
)


def _cost(cells: Sequence[dict[str, Any]]) -> Html | None:
    """Return the frames of every profile by kind, for each condition."""
    conditions: dict[tuple[float, float], list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell["profile"] and cell["delivered"] and isinstance(cell["frames"], dict):
            conditions[cell["members"] or 0, cell["loss"] or 0].append(cell)
    if not conditions:
        return None
    names, bodies = [], []
    for nth, ((members, loss), found) in enumerate(sorted(conditions.items())[:MAX_CONDITIONS]):
        names.append(f"{members:g} members, {loss:g} % loss")
        bodies.append(_cost_bars(nth, names[-1], found))
    return switcher("cost-of", "Condition", names, bodies, start=len(names) - 1)


def _cost_bars(nth: int, condition: str, cells: list[dict[str, Any]]) -> Html:
    from gapless.report.charts.lines import legend_entry

    totals = [sum(cell["frames"].values()) / cell["delivered"] for cell in cells]
    across = axes.count_axis(max(totals), kind="number", most=5)
    several = len({cell["profile"] for cell in cells}) < len(cells)
    rows = []
    for cell, total in zip(cells, totals, strict=True):
        parts, before = [], 0.0
        name = cell["profile"] + (f", {_setting(cell)}" if several else "")
        for kind, colour, fill in _KINDS:
            each = cell["frames"].get(kind, 0) / cell["delivered"]
            if each:
                parts.append(
                    BarSegment(
                        before,
                        before + each,
                        colour,
                        f"{name}: {kind}, {formatting.compact(each)} frames per delivery",
                        fill,
                    )
                )
            before += each
        rows.append(BarRow(name, parts, value=f"{formatting.compact(total)} frames"))
    behind = ChartTable(
        ("profile", *(kind for kind, *_ in _KINDS), "all"),
        [
            (
                cell["profile"],
                *(
                    formatting.compact(cell["frames"].get(kind, 0) / cell["delivered"])
                    for kind, *_ in _KINDS
                ),
                formatting.compact(total),
            )
            for cell, total in zip(cells, totals, strict=True)
        ],
    )
    legend = [
        legend_entry(kind, colour, shape=fill)
        for kind, colour, fill in _KINDS
        if any(cell["frames"].get(kind) for cell in cells)
    ]
    note = "Frames on all links, divided by the number of deliveries."
    return figure(
        f"cost-{nth}",
        f"Frames per delivery: {condition}",
        bar_chart(rows, across),
        behind,
        note=note,
        summary=f"{len(cells)} bars.",
        legend=legend,
        style="flush",
    )


def _cells(cells: Sequence[dict[str, Any]]) -> Html | None:
    if not cells:
        return None
    rows = [
        (
            cell["profile"],
            formatting.count(cell["members"]),
            f"{cell['loss'] or 0:g} %",
            _setting(cell),
            formatting.count(cell["runs"]),
            tag(
                "span",
                formatting.count(cell["failed"]),
                class_="state bad" if cell["failed"] else None,
            ),
            formatting.percent(_share(cell)),
            *(
                formatting.NO_VALUE
                if (value := metric.value(cell)) is None
                else metric.format_value(value)
                for metric in METRICS
            ),
        )
        for cell in cells[:MAX_CELLS]
    ]
    columns = (
        "profile",
        "members",
        "loss",
        "settings",
        "runs",
        "failed",
        "delivered",
        *(metric.name for metric in METRICS),
    )
    note = (
        ""
        if len(cells) <= MAX_CELLS
        else f"The first {MAX_CELLS} of {formatting.count(len(cells))} cells."
    )
    content = ChartTable(columns, rows, note, frozenset(range(len(columns))) - {0, 3})
    summary = f"All {formatting.plural(len(cells), 'cell')} in numbers"
    return tag(
        "details",
        tag("summary", summary),
        table(content, summary),
        class_="behind card",
        open=len(cells) <= 30,
    )


# Hunts


def _groups(hunt: dict[str, Any]) -> str:
    known = {
        "told": "groups with given views",
        "membership": "groups with membership",
    }
    return known.get(hunt["groups"], str(hunt["groups"]))


def _hunts(hunts: Sequence[dict[str, Any]]) -> Html | None:
    return join_markup(_hunt(nth, hunt) for nth, hunt in enumerate(hunts)) if hunts else None


def _hunt(nth: int, hunt: dict[str, Any]) -> Html:
    tiles = [
        tile("Seeds", formatting.count(hunt["seeds"]), detail=_groups(hunt)),
        tile("Failed", formatting.count(hunt["failed"])),
        tile("Messages", formatting.compact(hunt["messages"])),
        tile("Steps", formatting.compact(hunt["steps"])),
        tile("Virtual time", formatting.duration(1e9 * hunt["simulated_seconds"])),
    ]
    parts = [tag("dl", *tiles, class_="tiles small")]
    for ident, title, note, counted in (
        (
            "faults",
            "Injected faults",
            "How often each kind of fault occurred in the runs of the hunt.",
            hunt["faults"],
        ),
        (
            "seen",
            "Required situations",
            "Number of seeds in which each situation occurred.",
            hunt["must_happen"],
        ),
    ):
        if isinstance(counted, dict) and counted:
            parts.append(_counted(f"{ident}-{nth}", f"{title}: {_groups(hunt)}", note, counted))
    return join_markup(parts)


def _counted(ident: str, title: str, note: str, counted: dict[str, float]) -> Html:
    ranked = sorted(counted.items(), key=lambda item: -item[1])
    across = axes.count_axis(ranked[0][1], most=4)
    rows = [
        BarRow(
            name,
            [BarSegment(0, number, 1, f"{name}: {formatting.count(number)}")] if number else [],
            value=formatting.count(number) if number else "never",
        )
        for name, number in ranked
    ]
    never = [name for name, number in ranked if not number]
    summary = f"Never: {', '.join(never)}." if never else "All occurred."
    behind = ChartTable(
        ("situation", "times"), [(name, formatting.count(number)) for name, number in ranked]
    )
    return figure(
        ident, title, bar_chart(rows, across), behind, note=note, summary=summary, style="flush"
    )

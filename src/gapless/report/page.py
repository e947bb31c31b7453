"""The page of a report: one HTML file with its own style and scripts.

A content security policy forbids every other script, every style sheet and every connection, so a
page can be mailed and opened without a network. Equal figures give an equal page, byte for byte.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.report.charts import palette
from gapless.report.charts.lines import marker_defs
from gapless.report.html import Html, name_markup, tag
from gapless.report.input_schema import validate_figures
from gapless.report.labels import with_display_names
from gapless.report.sections import (
    latency,
    membership,
    pipeline,
    retransmissions,
    throughput,
    verdict,
    violations,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.report.sections.verdict import Judgement

_GROUP = "The incarnations of each member, and the views they installed."
_LATENCY = "Time from a send to the delivery at another member."
_REPAIRS = "How receivers noticed gaps, and how long the repairs took."
_WINDOWS = "The messages a member keeps until every receiver has acknowledged them."


class PageSection(NamedTuple):
    """A section of the page: its anchor, its name in the navigation bar, its heading and body."""

    anchor: str
    name: str
    heading: str
    lead: str
    body: Html | None


def render(figures: object) -> str:
    """Return the page for the figures of a run or a sweep."""
    whole = validate_figures(figures)
    if whole["kind"] == "sweep":
        from gapless.report.sections import sweep

        judgement, card = sweep.card(whole)
        parts = sweep.sections(whole)
        what = "sweep"
    else:
        whole = with_display_names(whole)
        judgement, card = verdict.run_card(whole)
        parts = _run_sections(whole)
        what = "run"
    return _page(whole, what, judgement, card, parts)


def judgement(figures: object) -> Judgement:
    """Return the headline of the page: whether the run is sound."""
    whole = validate_figures(figures)
    if whole["kind"] == "sweep":
        from gapless.report.sections import sweep

        return sweep.judge_sweep(whole)
    return verdict.judge_run(whole)


def _run_sections(figures: dict[str, Any]) -> list[PageSection]:
    across = membership.run_time_axis(figures)
    made = [
        PageSection(
            "violations", "Violations", "Violations", "", violations.section(figures, across)
        ),
        PageSection(
            "group", "Group", "Group membership", _GROUP, membership.section(figures, across)
        ),
        PageSection(
            "traffic", "Traffic", "Messages over time", "", throughput.traffic(figures, across)
        ),
        PageSection("latency", "Latency", "Latency", _LATENCY, latency.section(figures, across)),
        PageSection(
            "repairs",
            "Repairs",
            "Losses and repairs",
            _REPAIRS,
            retransmissions.section(figures, across),
        ),
        PageSection("windows", "Windows", "Windows", _WINDOWS, windows.section(figures, across)),
        PageSection(
            "waiting", "Back-pressure", "Back-pressure", "", throughput.back_pressure(figures)
        ),
        PageSection("overhead", "Overhead", "Protocol overhead", "", throughput.overhead(figures)),
        PageSection("pipeline", "Pipeline", "Pipeline", "", pipeline.section(figures["pipeline"])),
    ]
    return [part for part in made if part.body is not None]


def _page(
    figures: dict[str, Any],
    what: str,
    judgement: Judgement,
    card: Html,
    parts: Sequence[PageSection],
) -> str:
    title = figures["title"] or f"Gapless {what}"
    rules, early, late = (_package_file(name) for name in ("style.css", "early.js", "page.js"))
    styles = palette.css() + rules
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(styles, early, late)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"gapless {figures['version']}".strip()),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} · {judgement.headline}"),
        tag("link", rel="icon", href="data:,"),
        _raw("style", styles),
        _raw("script", early),
    )
    body = tag(
        "body",
        tag("a", "Skip to the verdict", class_="skip", href="#main"),
        _top(judgement, parts),
        marker_defs(),
        tag(
            "main",
            tag(
                "div",
                tag("p", f"Report of a {what}", class_="kicker"),
                tag("h1", name_markup(title)),
                class_="title",
            ),
            card,
            *(_section(part) for part in parts),
            _foot(figures),
            id="main",
            tabindex=-1,
        ),
        _raw("script", late),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _package_file(name: str) -> str:
    """Return the text of a file of this package, also from an archive."""
    return files("gapless.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, *scripts: str) -> str:
    """Return the content security policy that allows only the given scripts and style."""
    run = " ".join(_hash(script) for script in scripts)
    ours = f"style-src {_hash(style)}; script-src {run}; img-src data:"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def _hash(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _raw(name: str, content: str) -> Html:
    """Return a script or style of this package, unescaped."""
    assert f"</{name}" not in content
    return Html(f"<{name}>{content}</{name}>")


def _top(judgement: Judgement, parts: Sequence[PageSection]) -> Html:
    links = [tag("li", tag("a", part.name, href=f"#{part.anchor}")) for part in parts]
    return tag(
        "header",
        tag(
            "a",
            tag("span", "gapless", class_="brand"),
            tag("span", judgement.word, class_=f"chip {judgement.tone}"),
            href="#main",
            class_="home",
        ),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag(
            "button",
            tag("span", "Theme: ", class_="word"),
            tag("span", "system", class_="chosen"),
            type="button",
            id="theme",
            class_="theme",
        ),
        class_="top",
    )


def _section(part: PageSection) -> Html:
    return tag(
        "section",
        tag("h2", part.heading, id=f"{part.anchor}-title"),
        tag("p", part.lead, class_="lead") if part.lead else "",
        part.body,
        id=part.anchor,
        aria_labelledby=f"{part.anchor}-title",
    )


def _foot(figures: dict[str, Any]) -> Html:
    made = f" on {figures['made_at']}" if figures["made_at"] else ""
    version = f" {figures['version']}" if figures["version"] else ""
    keys = (
        "In a plot, ← and → move from point to point, Home and End jump to the first and last "
        "point, Esc closes the readout."
    )
    return tag(
        "footer",
        tag(
            "p",
            f"Made by gapless{version}{made}. This page is one file; it loads nothing and sends "
            f"nothing.",
        ),
        tag("p", keys, class_="keys"),
    )


__all__ = ["PageSection", "render"]

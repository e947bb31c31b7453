"""The page as text: what comes first, what is escaped, its size, and how its parts fit together."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from gapless.errors import GaplessError
from gapless.report import formatting, render, validate_figures
from gapless.report.charts import axes
from gapless.report.charts.axes import AxisEvent
from gapless.report.charts.lines import event_head, x_axis
from gapless.report.charts.palette import DARK, LIGHT
from gapless.report.html import (
    Html,
    json_script,
    name_markup,
    natural_sort_key,
    shorten,
    tag,
    to_markup,
)
from gapless.report.page import judgement
from gapless.report.sections import membership
from tests.report import cases
from tests.report.conftest import figures_of, page_of

EVERY = (
    "story",
    "broken",
    "crowd",
    "nothing",
    "alone",
    "sampled",
    "hostile",
    "unjudged",
    "sweep",
    "failed sweep",
)
VOID = {"br", "link", "meta"}


class Reader(HTMLParser):
    """Checks that every element is closed, and gathers ids, references and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.references: set[str] = set()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        self._look(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._look(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _look(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            elif name in {"aria-labelledby", "aria-describedby", "for"}:
                self.references.add(value or "")
            elif name == "href" and (value or "").startswith("#"):
                self.references.add((value or "")[1:])
            elif name.startswith("on") or name == "style":
                self.handlers.append(name)


# The whole page


@pytest.mark.parametrize("name", EVERY)
def test_the_page_hangs_together(name: str) -> None:
    page = page_of(name)
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert [ident for ident, times in reader.ids.items() if times > 1] == []
    assert reader.references - reader.ids.keys() == set()
    assert reader.handlers == [], "the policy of the page allows no such attributes"
    assert reader.tags["script"] - page.count('<script type="application/json">') == 2
    assert not re.search(r'(?:src|href)="(?!#|data:,)', page), "nothing is loaded"
    page.encode("utf-8")


def test_a_normal_run_is_a_small_page_and_a_crowd_is_no_huge_one() -> None:
    assert len(page_of("story").encode()) < 1_000_000
    assert len(render(cases.crowd(violations=200)).encode()) < 4_000_000


def test_the_same_figures_are_the_same_page() -> None:
    assert render(figures_of("story")) == render(json.loads(json.dumps(figures_of("story"))))


def test_all_sections_are_there() -> None:
    sections = re.findall(r'<section[^>]* id="(\w+)"', page_of("crowd"))
    assert sections == [
        *(
            "verdict",
            "violations",
            "group",
            "traffic",
            "latency",
            "repairs",
            "windows",
            "waiting",
            "overhead",
        ),
        "pipeline",
    ]
    assert re.findall(r'<section[^>]* id="(\w+)"', page_of("failed sweep")) == [
        *("verdict", "failures", "loss", "size", "cost", "cells", "hunts"),
    ]


def test_names_cannot_become_markup() -> None:
    page = page_of("hostile")
    for name in ("<script>window", "<img", "<b>", 'onerror=window.hacked=1>"'):
        assert name not in re.sub(
            r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL
        )
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in page


# The verdict


@pytest.mark.parametrize(
    ("name", "tone", "headline"),
    [
        ("story", "good", "All 15 applicable checks passed (1 not applicable)"),
        (
            "broken",
            "bad",
            "3 of 15 applicable checks failed: S3, S8, S12 (1 not applicable)",
        ),
        ("crowd", "bad", "1 of 15 applicable checks failed: S3 (1 not applicable)"),
        ("nothing", "warn", "Nothing to check"),
        ("alone", "good", "All 16 checks passed"),
        ("sampled", "good", "All 7 applicable checks passed (9 not applicable)"),
        ("unjudged", "warn", "Not checked"),
        ("sweep", "good", "No violation in 360 runs"),
        ("failed sweep", "bad", "3 of 360 runs failed"),
    ],
)
def test_the_headline(name: str, tone: str, headline: str) -> None:
    said = judgement(figures_of(name))
    assert (said.tone, said.headline.replace("\N{NO-BREAK SPACE}", " ")) == (tone, headline)


def text_of(page: str) -> str:
    body = re.sub(r"<style>.*?</style>|<script.*?</script>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", body)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_verdict_says_how_much_was_looked_at_and_what_was_not() -> None:
    story = text_of(page_of("story"))
    events = f"{figures_of('story')['verdict']['events']:,}"
    assert (
        f"15 checks examined {events} events recorded by 5 incarnations of a simulated group over"
        in story
    )
    assert "L3 quiet: the trace has no row that tells when the group was settled" in story
    assert "A total order between different senders" in story
    sampled = text_of(page_of("sampled"))
    assert "The trace is a sample" in sampled
    assert "S6 window, S7 marks, S8 acks are true, S9 purge is safe" in sampled
    assert ": the trace is sampled" in sampled
    assert "of real processes" in sampled


def test_missing_rows_take_the_certainty_away() -> None:
    figures = cases.crowd(3, points=5)
    figures["verdict"]["incomplete"] = [
        {"life": f"life {at}", "missing_rows": at + 1} for at in range(20)
    ]
    said = judgement(figures)
    assert (said.tone, said.headline) == ("warn", "No violation found, but rows are missing")
    page = text_of(render(figures))
    assert "20 incarnations have rows missing" in page
    assert "life 7: 8 rows missing" in page
    assert "and 12 more incarnations" in page


def test_what_nobody_has_judged_stays_so() -> None:
    twice = validate_figures(validate_figures(figures_of("unjudged")))
    assert twice["judged"] is False
    assert judgement(twice).headline == "Not checked"
    assert "Violations\N{EN DASH}not counted" in text_of(render(twice)), (
        "not looked for is not zero"
    )


def test_ok_alone_convinces_nobody() -> None:
    """A verdict that names no check, or whose checks were all left out, is no verdict."""
    for checks in ([], cases.checks("not checked", "no reason")):
        figures = {
            "kind": "run",
            "verdict": {"ok": True, "violations": 0, "events": 5, "checks": checks},
        }
        assert judgement(figures).tone == "warn"
    broken = {
        "kind": "run",
        "verdict": {"ok": False, "violations": 0, "events": 5, "checks": cases.checks()},
    }
    assert judgement(broken).tone == "bad"


def test_a_sweep_that_is_not_done_or_not_thorough_is_not_sound() -> None:
    assert (
        judgement(cases.sweep(missing=40)).headline
        == "No violation so far; 40 runs are still to do"
    )
    hunt = cases.sweep()
    hunt["hunts"][0]["must_happen_missing"] = ["a merge"]
    assert judgement(hunt).tone == "warn"
    assert "a merge" in text_of(render(hunt))
    hunt["hunts"][0]["thorough"] = False
    assert judgement(hunt).tone == "good"
    assert (
        judgement({**cases.sweep(), "runs": 0, "cells": [], "hunts": []}).headline
        == "Nothing to check"
    )


# Time


def test_charts_begin_with_the_traffic_and_mark_membership_changes() -> None:
    figures = validate_figures(figures_of("story"))
    across = membership.run_time_axis(figures)
    began_ns = min(one["began_ns"] for one in figures["lives"])
    steps = [p["t_ns"] for p in figures["over_time"]["points"] if p["sent"] or p["delivered"]]
    assert across.low == min(steps) > began_ns
    assert [event.what for event in across.events[:-3]] == ["joined"] * 4
    assert [(event.what, event.name) for event in across.events[-3:]] == [
        ("killed", "c"),
        ("joined", "c'"),
        ("left", "d"),
    ]
    page = page_of("story")
    for label in ("4\N{NO-BREAK SPACE}members joined", "c killed", "c' joined", "d left"):
        assert re.search(rf'class="event-name[^>]*>.{{0,60}}{to_markup(label)}</text>', page), label
    assert f"{formatting.duration(began_ns - across.low)}" in page, "the table has the real start"


def test_a_few_messages_before_a_long_pause_are_not_the_traffic() -> None:
    points = [
        {"t_ns": t_ns, "member": "a", "sent": sent}
        for t_ns, sent in ((1, 1), (900, 500), (1000, 500))
    ]
    figures = validate_figures({"kind": "run", "over_time": {"points": points, "step_ns": 1}})
    assert membership.run_time_axis(figures).low == 900
    figures["lives"] = [
        {"name": "b", "member": "b", "began_ns": 0, "ended_ns": 700, "end": "killed"}
    ]
    across = membership.run_time_axis(figures)
    assert (across.low, [event.what for event in across.events]) == (700, ["killed"])


def test_the_start_of_the_axis_is_exact() -> None:
    """A time of day in nanoseconds does not fit a float."""
    t_ns = 1_795_006_426_916_203_985
    points = [{"t_ns": t_ns + at, "member": "a", "sent": 1} for at in range(3)]
    figures = validate_figures({"kind": "run", "over_time": {"points": points, "step_ns": 1}})
    assert membership.run_time_axis(figures).low == t_ns


def test_events_close_together_share_a_label() -> None:
    events = [AxisEvent(at, "joined", name) for at, name in ((10, "a"), (11, "b"), (500, "c"))]
    axis = axes.time_axis(0, 1000, events)
    drawn = "".join(x_axis(axis, 100, event_head(axis)))
    assert drawn.count("event-line") == 2
    assert "2\N{NO-BREAK SPACE}members joined" in drawn
    assert "a, b: " in drawn
    assert event_head(axes.time_axis(0, 1000)) == 0


# What figures have to look like


def test_what_is_no_figures_is_refused_with_its_place() -> None:
    wrong: dict[str, Any] = {
        "expected the figures": [1, 2],
        "\"kind\" is 'walk'": {"kind": "walk"},
        '"kind" is [1]': {"kind": [1]},
        "run.lives is 'many', but should be a list": {"kind": "run", "lives": "many"},
        "run.lives[1] is 3, but should be an object": {"kind": "run", "lives": [{}, 3]},
        "run.lives[0].name is 3, but should be a text": {"kind": "run", "lives": [{"name": 3}]},
        "run.windows[0].points[1][2] is 'x', but should be a number": {
            "kind": "run",
            "windows": [{"points": [[1, 2, 3, 4], [1, 2, "x", 4]]}],
        },
        "run.verdict.ok is 1, but should be true or false": {"kind": "run", "verdict": {"ok": 1}},
        "sweep.cells[0].loss is True": {"kind": "sweep", "cells": [{"loss": True}]},
    }
    for message, figures in wrong.items():
        with pytest.raises(GaplessError, match=re.escape(message)):
            validate_figures(figures)


def test_what_is_missing_is_empty_and_nothing_is_infinite() -> None:
    for kind in ("run", "sweep"):
        assert "<h1>" in render({"kind": kind})
    run = validate_figures(
        {
            "kind": "run",
            "summary": {"latency_p50_ns": float("nan")},
            "verdict": {"seconds": float("inf")},
        }
    )
    assert run["summary"]["latency_p50_ns"] is None
    assert run["verdict"]["seconds"] == 0


@pytest.mark.parametrize(
    "part",
    ["windows", "latency", "repair_log", "lives", "views", "over_time", "overhead", "blocked"],
)
def test_a_part_may_be_empty_or_have_empty_entries(part: str) -> None:
    figures = cases.crowd(3, violations=1, points=5)
    entry: Any = {"points": [{}], "step_ns": 5} if part == "over_time" else [{}, {}]
    render({**figures, part: entry})
    render({**figures, part: None})


def test_whatever_a_pipeline_has_is_shown_with_its_units() -> None:
    pipeline = {
        "rows": 1200,
        "rows_per_s": 512.4,
        "whole_s": 2.5,
        "complete": True,
        "table": {"path": "/x", "size_bytes": 2048},
        "latency_s": {"p50": 0.021},
        "watermark": "2026-01-05",
        "batches": [
            {"batch": 0, "took_ns": 1_500_000, "late": None},
            {"batch": 1, "took_ns": 2_000_000, "why": "<b>"},
        ],
        "layers": {"raw": {"rows": 3}, "clean": {"rows": 2}},
        "empty": [],
    }
    text = text_of(render({"kind": "run", "pipeline": pipeline}))
    for told in (
        "rows1,200",
        "rows per second512",
        "whole2.5 s",
        "completeyes",
        "size2 KiB",
        "p5021 ms",
        "path/x",
        "watermark2026-01-05",
        "01.5 ms",
        "clean2",
        "&lt;b&gt;",
    ):
        assert told in text, told
    assert "The pipeline" not in text_of(render({"kind": "run", "pipeline": {}}))


# Markup, words and colours


def test_only_markup_is_markup() -> None:
    assert tag("b", "<i>", Html("<i>"), title='"&') == '<b title="&quot;&amp;">&lt;i&gt;<i></b>'
    assert tag("use", href="#x", hidden=True, open=False, id=None) == '<use href="#x" hidden/>'
    assert "\x00" not in tag("b", "a\x00b")
    assert tag("b", "\ud800").encode("utf-8")
    assert "</script" not in json_script({"name": "</script><script>"})[30:-9]
    assert json.loads(re.sub(r"<.?script.*?>", "", json_script({"name": "</script>&"}))) == {
        "name": "</script>&"
    }


def test_long_names_lose_their_middle_and_keep_both_ends() -> None:
    assert shorten("producer-12.example.com:7000", 13) == "produc…m:7000"
    assert len(shorten("x" * 99, 13)) == 13
    assert shorten("short", 13) == "short"
    assert name_markup("x" * 20, 9) == f'<bdi class="name" title="{"x" * 20}">xxxx…xxxx</bdi>'
    assert sorted(["node 10", "node 2", "a", "node 1"], key=natural_sort_key) == [
        "a",
        "node 1",
        "node 2",
        "node 10",
    ]


def test_numbers_read_well() -> None:
    said = {
        formatting.duration(0): "0 s",
        formatting.duration(999): "999 ns",
        formatting.duration(999_999): "1 ms",
        formatting.duration(1_234_567): "1.23 ms",
        formatting.duration(-1_500): "\N{MINUS SIGN}1.5 µs",
        formatting.duration(200e9): "3 min 20 s",
        formatting.duration(7300e9): "2 h 1 min",
        formatting.compact(1_653_333.3): "1.65 M",
        formatting.compact(0.0512): "0.05",
        formatting.count(1234567): "1,234,567",
        formatting.count(None): "\N{EN DASH}",
        formatting.size(1536): "1.5 KiB",
        formatting.percent(0.125): "12.5 %",
        formatting.plural(1, "gap"): "1 gap",
        formatting.seqnos(3, 9): "3..9",
        formatting.seqnos(3, 3): "3",
    }
    assert {key.replace("\N{NO-BREAK SPACE}", " "): value for key, value in said.items()} == {
        value: value for value in said.values()
    }


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out(theme: dict[str, str]) -> None:
    for ground in ("card", "ground", "raised"):
        for text in ("text", "soft", "link"):
            assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
    for tone in ("good", "bad", "warn"):
        assert contrast(theme["text"], theme[f"{tone}-ground"]) >= 4.5
        assert contrast(theme[tone], theme[f"{tone}-ground"]) >= 4.5
        assert contrast(theme[tone], theme["card"]) >= 4.5
    for colour in (f"c{nth}" for nth in range(1, 9)):
        assert contrast(theme[colour], theme["card"]) >= 3, colour
    for view in ("view-a", "view-b"):
        assert contrast(theme["text"], theme[view]) >= 4.5, view
    assert LIGHT.keys() == DARK.keys()


@pytest.mark.parametrize("number", [1e300, -1e300, 10**400, float("nan")])
def test_a_number_beyond_all_measure_is_not_drawn(number: float) -> None:
    verdict = {
        "ok": True,
        "violations": 0,
        "events": 5,
        "seconds": number,
        "span_ns": number,
        "checks": cases.checks(),
    }
    run = {"kind": "run", "verdict": verdict, "summary": {"latency_p99_ns": number, "lost": number}}
    assert validate_figures(run)["summary"]["lost"] is None
    assert "checks passed" in text_of(render(run))

"""The page in a real browser: eyes, fingers, keys and screen readers; no network, no scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import Browser, Page
from tests.report.conftest import figures_of

pytestmark = pytest.mark.xdist_group("browser")

Pages = Callable[[str], Path]
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
VISIBLE = "e => e.checkVisibility({contentVisibilityAuto: true}) && e.getClientRects().length > 0"
FOCUSABLE = "a[href], button, select, summary, [tabindex='0']"


@contextmanager
def opened(browser: Browser, path: Path, **how: Any) -> Iterator[Page]:
    page = browser.open(path, **how)
    try:
        yield page
    finally:
        page.close()


@pytest.mark.parametrize("name", EVERY)
def test_every_page_is_quiet_and_fits_a_phone(browser: Browser, pages: Pages, name: str) -> None:
    with opened(browser, pages(name), width=390, height=844) as page:
        assert page.complaints() == []
        assert [address for address in page.requests() if not address.startswith("data:")] == [
            pages(name).as_uri()
        ]
        for width in (390, 320):
            page.resize(width, 844)
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("document.body.scrollWidth") <= width
        small = page.run(
            "[...document.querySelectorAll('main p, main td, main li, .tick, .row-name')]"
            f".filter({VISIBLE}).filter(e => parseFloat(getComputedStyle(e).fontSize) < 11).length"
        )
        assert small == 0, "nothing is too small to be read"


@pytest.mark.parametrize("name", ["story", "broken", "failed sweep"])
def test_every_plot_has_a_name_a_table_and_words(browser: Browser, pages: Pages, name: str) -> None:
    with opened(browser, pages(name)) as page:
        plots = page.run(
            "[...document.querySelectorAll('figure.plot')].map(f => ({id: f.id,"
            " label: f.querySelector('.stage').getAttribute('aria-label'),"
            " rows: f.querySelectorAll('details table tbody tr').length,"
            " heads: f.querySelectorAll('details table thead th[scope=col]').length,"
            " live: f.querySelector('.say').getAttribute('aria-live'),"
            " said: f.querySelector('.stage').getAttribute('aria-describedby') === "
            "f.querySelector('.say').id}))"
        )
        assert len(plots) >= 8
        for plot in plots:
            assert len(plot["label"]) > 20, plot
            assert plot["rows"], plot
            assert plot["heads"] >= 2, plot
            assert plot["live"] == "polite"
            assert plot["said"]
        assert page.run("document.querySelectorAll('h1').length") == 1
        levels = page.run(
            "[...document.querySelectorAll('main h1, main h2, main h3')].map(h => "
            "Number(h.tagName[1]))"
        )
        assert all(after - before <= 1 for before, after in pairwise(levels))


def test_what_a_screen_reader_is_told(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("story")) as page:
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named: dict[str, list[str]] = {}
    for node in tree:
        if not node.get("ignored") and "role" in node:
            named.setdefault(node["role"]["value"], []).append(
                node.get("name", {}).get("value", "")
            )
    assert "Sections" in named["navigation"]
    assert len(named["main"]) == 1
    assert any("passed" in name for name in named["heading"])
    for role in ("button", "combobox", "link", "application"):
        assert named[role], role
        assert all(named[role]), role


def test_the_tab_key_reaches_everything_in_order(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("broken"), height=2000) as page:
        page.run(
            f"document.querySelectorAll({FOCUSABLE!r}).forEach((e, at) => {{ e.dataset.nth = at }})"
        )
        wanted = page.run(
            f"[...document.querySelectorAll({FOCUSABLE!r})].filter({VISIBLE}).map(e => "
            f"Number(e.dataset.nth))"
        )
        reached = []
        for _ in range(len(wanted)):
            page.press("Tab")
            reached.append(page.run("Number(document.activeElement.dataset.nth)"))
        assert reached[0] == 0
        assert page.run("document.querySelector('.skip').dataset.nth") == "0"
        assert reached == wanted
        assert len(reached) > 30


def test_the_skip_link_leads_to_the_verdict_and_focus_can_be_seen(
    browser: Browser, pages: Pages
) -> None:
    with opened(browser, pages("story")) as page:
        page.press("Tab")
        assert page.run("document.activeElement.textContent") == "Skip to the verdict"
        assert page.run("document.activeElement.getBoundingClientRect().top") >= 0
        page.press("Enter")
        assert page.run("document.activeElement.id") == "main"
        page.run("document.querySelector('#lives .stage').focus()")
        page.press("Tab")
        page.press("Tab", shift=True)
        assert page.run("document.activeElement.className") == "stage"
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_arrow_keys_read_out_the_points_of_a_curve(browser: Browser, pages: Pages) -> None:
    window = figures_of("story")["windows"][0]
    with opened(browser, pages("story")) as page:
        say = "document.querySelector('#window-0 .say').textContent"
        page.run("document.querySelector('#window-0 .stage').focus()")
        page.press("ArrowRight")
        for at in (0, 1, 2):
            _, low, delivered, high = window["points"][at]
            told = page.run(say)
            assert f"high {high:,}, delivered {delivered:,}, low {low:,}" in told
            assert f"{high - low:,}, not delivered yet" in told
            page.press("ArrowRight")
        page.press("End")
        _, low, delivered, high = window["points"][-1]
        assert f"high {high:,}, delivered {delivered:,}, low {low:,}" in page.run(say)
        assert page.run("document.querySelectorAll('#window-0 .cursor-dot').length") == 5
        page.press("ArrowRight")
        assert f"high {high:,}," in page.run(say), "the last point is the last"
        page.press("Home")
        page.press("ArrowLeft")
        assert f"high {window['points'][0][3]:,}," in page.run(say)
        page.press("Escape")
        assert page.run(say) == ""
        assert page.run("document.querySelectorAll('.cursor, .cursor-dot').length") == 0


def test_arrow_keys_read_out_bars_and_marks(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("story")) as page:
        for plot, words in {
            "lives": ("a begins at", "joins its first view at"),
            "gaps": ("misses", "delivered after"),
            "phases": ("median of", "grace"),
            "overhead-bars": ("All members: data", "%"),
            "latency-streams": ("median", "slowest"),
        }.items():
            page.run(f"document.querySelector('#{plot} .stage').focus()")
            page.press("ArrowRight")
            told = page.run(f"document.querySelector('#{plot} .say').textContent")
            assert all(word in told for word in words), told
            assert page.run(f"document.querySelectorAll('#{plot} .at').length") == 1
            page.press("End")
            assert page.run(f"document.querySelector('#{plot} .say').textContent") != told


def test_pointing_moves_the_cursor_and_nothing_else(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("story")) as page:
        page.run("document.querySelector('#traffic-0').scrollIntoView({behavior: 'instant'})")
        box = page.run(
            "(() => { const b = document.querySelector('#traffic-0 "
            ".canvas').getBoundingClientRect();"
            " return [b.x, b.y, b.width]; })()"
        )
        before = page.box("#traffic-0"), page.run("document.documentElement.scrollHeight")
        page.point(box[0] + box[2] * 0.25, box[1] + 60)
        first = page.run("document.querySelector('#traffic-0 .say').textContent")
        page.point(box[0] + box[2] * 0.5, box[1] + 60)
        second = page.run("document.querySelector('#traffic-0 .say').textContent")
        assert "delivered" in first
        assert "repairs" in first
        assert first != second
        assert (page.box("#traffic-0"), page.run("document.documentElement.scrollHeight")) == before


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_moves_while_the_page_loads(browser: Browser, pages: Pages, width: int) -> None:
    shifts = """new Promise(done => { let sum = 0;
      new PerformanceObserver(list => { for (const one of list.getEntries()) sum += one.value; })
        .observe({type: 'layout-shift', buffered: true});
      const frame = requestAnimationFrame;
      frame(() => frame(() => setTimeout(() => done(sum), 0))); })"""
    # The class that hides all but one of many figures: if it came when some of them had been laid
    # out, all would jump.
    look = """new MutationObserver(() => {
      const root = document.documentElement;
      if (root?.classList.contains('js')) window.late ??= document.body !== null; })
        .observe(document, {subtree: true, childList: true, attributes: true});"""
    with opened(browser, pages("story"), width=width, first=look) as page:
        assert page.run(shifts) == 0
        assert page.run("window.late") is False


def test_dark_and_light(browser: Browser, pages: Pages) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('#traffic-0 .line')).stroke"
    with opened(browser, pages("story")) as page:
        light = page.run(ground), page.run(line)
        page.media(dark=True)
        dark = page.run(ground), page.run(line)
        assert light[0] == "rgb(246, 247, 249)"
        assert dark[0] == "rgb(14, 19, 25)"
        assert light[1] != dark[1]
        name = "document.getElementById('theme').getAttribute('aria-label')"
        assert page.run(name) == "Theme: system"
        page.run("document.getElementById('theme').focus()")
        page.press("Enter")
        assert (page.run(name), page.run(ground)) == ("Theme: light", light[0]), (
            "the switch wins over the system"
        )
        page.press(" ")
        page.media(dark=False)
        assert (page.run(name), page.run(ground)) == ("Theme: dark", dark[0])
        page.media(printed=True)
        assert page.run(line) == light[1], "paper is always light"
        page.media()
        page.call("Page.reload")
        browser.wait("Page.loadEventFired", page.session)
        assert (page.run(name), page.run(ground)) == ("Theme: dark", dark[0]), "it is remembered"


def test_one_stream_at_a_time(browser: Browser, pages: Pages) -> None:
    shown = f"[...document.querySelectorAll('#windows-of figure')].filter({VISIBLE}).map(f => f.id)"
    with opened(browser, pages("story")) as page:
        assert page.run(shown) == ["window-0"]
        page.run("document.querySelector('#windows-of .step[data-by=\"1\"]').click()")
        assert page.run(shown) == ["window-1"]
        page.run("document.querySelector('#windows-of .step[data-by=\"-1\"]').click()")
        page.run("document.querySelector('#windows-of .step[data-by=\"-1\"]').click()")
        last = len(figures_of("story")["windows"]) - 1
        assert page.run(shown) == [f"window-{last}"]
        assert page.run("document.querySelector('#windows-of select').selectedIndex") == last
        page.run(
            "(() => { const s = document.querySelector('#windows-of select'); s.value = '2';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        assert page.run(shown) == ["window-2"]


def test_without_scripts_everything_is_there(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("story"), scripts=False) as page:
        whole = page.run("document.querySelectorAll('figure.plot').length")
        assert (
            page.run(f"[...document.querySelectorAll('figure.plot')].filter({VISIBLE}).length")
            == whole
            > 20
        )
        assert (
            page.run(f"[...document.querySelectorAll('button, select')].filter({VISIBLE}).length")
            == 0
        )
        assert page.run("document.querySelector('.say').textContent") == ""
        page.click("#lives details summary")
        page.until(f"[...document.querySelectorAll('#lives table')].filter({VISIBLE}).length === 1")
        assert page.run("document.documentElement.className") == ""


def test_a_violation_is_drawn_as_a_sequence(browser: Browser, pages: Pages) -> None:
    (first, *_) = figures_of("broken")["violations"]
    with opened(browser, pages("broken")) as page:
        assert "checks failed: S3" in page.run("document.querySelector('#verdict h2').textContent")
        assert (
            page.run("document.querySelector('#violations summary').textContent").find(
                first["message"]
            )
            > 0
        )
        drawn = page.run(
            "(() => { const s = document.querySelector('#sequence-0 svg');"
            " return {here: [...s.querySelectorAll('.here')].length, arrows: "
            "s.querySelectorAll('.arrow').length,"
            " events: s.querySelectorAll('.event').length,"
            " times: [...s.querySelectorAll('.event')].map(e => "
            "Number(e.textContent.split('\u00d7')[1] || 1)),"
            " lives: [...s.querySelectorAll('.life-name')].map(e => e.lastChild.textContent)}; })()"
        )
        assert drawn["here"] == 1
        assert sum(drawn["times"]) == len(first["rows"]), "rows that repeat are folded"
        assert drawn["arrows"] == len(first["frames"]) > 3
        assert drawn["lives"][:2] == [first["origin"], first["member"]]
        page.run("document.querySelector('#sequence-0 .stage').focus()")
        told = []
        for _ in range(drawn["arrows"] + drawn["events"]):
            page.press("ArrowRight")
            told.append(page.run("document.querySelector('#sequence-0 .say').textContent"))
        assert any("frame from" in one for one in told)
        assert sum(", the violation" in one for one in told) == 1
        assert len(set(told)) > len(told) // 2


def test_names_stay_names(browser: Browser, pages: Pages) -> None:
    for name in ("hostile", "failed sweep"):
        with opened(browser, pages(name)) as page:
            assert page.run("window.hacked") is None
            assert page.run("document.querySelectorAll('img, b, iframe, object').length") == 0
            assert (
                page.run(
                    "document.querySelectorAll('script').length - "
                    "document.querySelectorAll('script[type]').length"
                )
                == 2
            )
    with opened(browser, pages("hostile")) as page:
        assert (
            page.run("document.querySelector('h1').textContent")
            == "<script>window.hacked=1</script>"
        )


def test_the_page_may_not_talk_to_anybody(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("story")) as page:
        page.run(
            "document.addEventListener('securitypolicyviolation', e => { window.refused = "
            "e.effectiveDirective; })"
        )
        assert (
            page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
            == "refused"
        )
        assert page.run("window.refused") == "connect-src"
        page.run(
            "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked "
            "= 1';"
            " document.body.append(s); })()"
        )
        assert page.run("window.hacked") is None


def test_on_paper(browser: Browser, pages: Pages) -> None:
    with opened(browser, pages("broken"), dark=True) as page:
        page.media(printed=True, dark=True)
        controls = "document.querySelectorAll('.top, .skip, .control, .say')"
        hidden = f"[...{controls}].filter({VISIBLE}).length"
        assert page.run(hidden) == 0
        assert page.run("getComputedStyle(document.body).color") == "rgb(23, 32, 43)"
        assert len(page.call("Page.printToPDF", {"printBackground": True})["data"]) > 10_000


def test_a_sweep_is_compared_and_failing_seeds_have_commands(
    browser: Browser, pages: Pages
) -> None:
    with opened(browser, pages("failed sweep")) as page:
        assert (
            page.run("document.querySelector('#verdict h2').textContent").replace(
                "\N{NO-BREAK SPACE}", " "
            )
            == "3 of 360 runs failed"
        )
        commands = page.run(
            "[...document.querySelectorAll('#failures code')].map(e => e.textContent)"
        )
        assert commands[:2] == [
            f"gapless {word} {2**62} --profile nakack4" for word in ("sim", "shrink")
        ]
        shown = page.run(
            f"[...document.querySelectorAll('#loss figure, #size "
            f"figure')].filter({VISIBLE}).map(f => f.id)"
        )
        assert shown[0] == "loss-2-p99", "the largest group comes first: there profiles differ most"
        page.run("document.querySelector('#loss-2-p99 .stage').focus()")
        page.press("End")
        told = page.run("document.querySelector('#loss-2-p99 .say').textContent").replace(
            "\N{NO-BREAK SPACE}", " "
        )
        assert told == "5 %: nakack4 26 ms, nakack 31 ms, classic 36 ms, unicast3 41 ms"

"""The verdict at the top of the page: the result of the checks, and what was not checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gapless.invariants import NOT_CLAIMED, sentence_of
from gapless.report import formatting
from gapless.report.charts.lines import ChartTable, table
from gapless.report.html import Html, join_markup, name_markup, tag

GOOD, BAD, UNSURE = "good", "bad", "warn"
HELD, VIOLATED = "held", "violated"
_ICONS = {
    GOOD: '<path d="M7 17.5 13.5 24 26 10.5"/>',
    BAD: '<path d="M9.5 9.5 23.5 23.5M23.5 9.5 9.5 23.5"/>',
    UNSURE: '<path d="M16.5 8V19M16.5 24.2V24.4"/>',
}
_WORD = {GOOD: "passed", BAD: "failed", UNSURE: "inconclusive"}
_MAX_INCOMPLETE = 8


@dataclass(frozen=True, slots=True)
class Judgement:
    """The top of the page: a tone, a headline, and the sentences below the headline."""

    tone: str
    headline: str
    sentences: tuple[object, ...]

    @property
    def word(self) -> str:
        """The verdict in one word, for the navigation bar."""
        return _WORD[self.tone]


def judge_run(figures: dict[str, Any]) -> Judgement:
    """Return the judgement of a run. Only a completely checked run gets the tone ``good``."""
    verdict = figures["verdict"]
    checks = verdict["checks"]
    made = [check for check in checks if check["state"] != "not checked"]
    scope = _scope(figures, len(made))
    if not figures["judged"] or not made:
        why = (
            "These figures have no verdict."
            if not figures["judged"]
            else "No check could be made on this trace."
        )
        advice = ("Run ", tag("code", "gapless verify"), " on the trace to check the run.")
        return Judgement(UNSURE, "Not checked", (why, join_markup(advice)))
    left_out = len(checks) - len(made)
    if verdict["violations"] or not verdict["ok"]:
        return _failed(verdict, made, left_out, scope)
    if not verdict["events"]:
        return Judgement(
            UNSURE, "Nothing to check", ("The trace has no events, so no check could fail.", scope)
        )
    if verdict["incomplete"]:
        incomplete = len(verdict["incomplete"])
        lacking = formatting.plural(incomplete, "incarnation has rows", "incarnations have rows")
        return Judgement(
            UNSURE,
            "No violation found, but rows are missing",
            (f"{lacking} missing, so the missing part of the run could not be checked.", scope),
        )
    applicable, omitted = _applicable(left_out)
    return Judgement(GOOD, f"All {len(made)} {applicable} passed{omitted}", (scope,))


def _applicable(left_out: int) -> tuple[str, str]:
    """Return the noun of the headline, and the number of omitted checks in brackets."""
    return ("applicable checks", f" ({left_out} not applicable)") if left_out else ("checks", "")


def _failed(
    verdict: dict[str, Any], made: list[dict[str, Any]], left_out: int, scope: str
) -> Judgement:
    """Return the judgement of a run with failed checks, or with violations of no listed check."""
    failed = [check for check in made if check["state"] == VIOLATED]
    found = formatting.plural(verdict["violations"], "violation")
    if not failed:
        return Judgement(BAD, f"{found} found", ("No listed check accounts for the result.", scope))
    applicable, omitted = _applicable(left_out)
    ids = ", ".join(check["id"] for check in failed)
    names = ", ".join(f"{check['id']} {check['name']}".strip() for check in failed)
    headline = f"{len(failed)} of {len(made)} {applicable} failed: {ids}{omitted}"
    return Judgement(BAD, headline, (f"{found} of {names}.", scope))


def _scope(figures: dict[str, Any], made: int) -> str:
    verdict = figures["verdict"]
    source = "a simulated group" if figures["simulated"] else "real processes"
    seeds = f" in {formatting.count(verdict['seeds'])} seeds" if verdict["seeds"] > 1 else ""
    span = f" over {formatting.duration(verdict['span_ns'])}" if verdict["span_ns"] else ""
    took = (
        f" Checking took {formatting.duration(verdict['seconds'] * 1e9)}."
        if verdict["seconds"]
        else ""
    )
    sampled = (
        " The trace is a sample, so checks that need every row are not applicable."
        if figures["mode"] == "sampled"
        else ""
    )
    return (
        f"{formatting.plural(made, 'check')} examined "
        f"{formatting.plural(verdict['events'], 'event')} recorded by "
        f"{formatting.plural(verdict['lives'], 'incarnation')} of "
        f"{source}{seeds}{span}.{took}{sampled}"
    )


def icon(tone: str) -> Html:
    """Return the icon of a tone."""
    return Html(
        f'<svg class="sign {tone}" viewBox="0 0 33 33" width="44" height="44" '
        f'aria-hidden="true">{_ICONS[tone]}</svg>'
    )


def card(judgement: Judgement, tiles: Html, *rest: object) -> Html:
    """Return the card at the top of the page."""
    head = tag(
        "div",
        icon(judgement.tone),
        tag(
            "div",
            tag("h2", judgement.headline, id="verdict-title"),
            *(tag("p", sentence) for sentence in judgement.sentences),
        ),
        class_="verdict-head",
    )
    return tag(
        "section",
        head,
        tiles,
        *rest,
        class_=f"verdict card {judgement.tone}",
        id="verdict",
        aria_labelledby="verdict-title",
    )


def tile(label: str, value: object, *, detail: object = "", tone: str = "") -> Html:
    """Return a tile: a number below the label of the number."""
    return tag(
        "div",
        tag("dt", label),
        tag("dd", value, tag("span", detail, class_="detail") if detail else ""),
        class_=f"tile {tone}".strip(),
    )


def run_card(figures: dict[str, Any]) -> tuple[Judgement, Html]:
    """Return the judgement of a run and its card."""
    judgement = judge_run(figures)
    return judgement, card(
        judgement,
        _run_tiles(figures),
        _not_checked(figures),
        _incomplete(figures),
        _checks(figures),
    )


def _promise_tile(label: str, number: float | None) -> Html:
    if number is None:
        return tile(label, formatting.NO_VALUE, detail="not counted")
    return tile(label, formatting.count(number), tone=GOOD if number == 0 else BAD)


def _lost_tile(number: float | None, *, sound: bool) -> Html:
    """Return the tile of lost messages.

    A loss may be within the guarantees: the sender crashed, or the receiver was notified.
    """
    if number and sound:
        return tile(
            "Lost",
            formatting.count(number),
            detail="within the guarantees: all checks passed",
            tone=UNSURE,
        )
    return _promise_tile("Lost", number)


def _run_tiles(figures: dict[str, Any]) -> Html:
    verdict, summary = figures["verdict"], figures["summary"]
    promises = [
        _lost_tile(summary["lost"], sound=judge_run(figures).tone == GOOD),
        _promise_tile("Duplicated", summary["duplicates"]),
        _promise_tile("Out of order", summary["out_of_order"]),
        _promise_tile("Violations", verdict["violations"] if figures["judged"] else None),
    ]
    expected = summary["expected"]
    of = f"of {formatting.count(expected)} expected" if expected is not None else ""
    rate = summary["messages_per_s"]
    volume = summary["bytes_per_s"]
    work = [
        tile("Sent", formatting.count(summary["sent"]), detail="messages"),
        tile("Delivered", formatting.count(summary["delivered"]), detail=of),
        tile("Repaired", formatting.count(summary["repaired"]), detail=_repair_detail(summary)),
        tile(
            "Median latency",
            formatting.duration(summary["latency_p50_ns"]),
            detail=_slowest(summary),
        ),
        tile(
            "p99 latency",
            formatting.duration(summary["latency_p99_ns"]),
            detail="99 % of deliveries took less",
        ),
        tile(
            "Rate",
            f"{formatting.compact(rate)}/s",
            detail=f"{formatting.size(volume)}/s" if volume else "deliveries",
        ),
    ]
    return join_markup(
        (tag("dl", *promises, class_="tiles promises"), tag("dl", *work, class_="tiles"))
    )


def _repair_detail(summary: dict[str, Any]) -> str:
    lost = summary["frames_lost"]
    return f"{formatting.count(lost)} frames were lost" if lost else "messages sent again"


def _slowest(summary: dict[str, Any]) -> str:
    return (
        f"slowest {formatting.duration(summary['latency_max_ns'])}"
        if summary["latency_max_ns"]
        else ""
    )


def _not_checked(figures: dict[str, Any]) -> Html:
    """Return the invariants without a check, so that no reader takes silence for a proof."""
    left_out = [check for check in figures["verdict"]["checks"] if check["state"] == "not checked"]
    reasons: dict[str, list[str]] = {}
    for check in left_out:
        reasons.setdefault(check["why"] or "no reason was recorded", []).append(
            f"{check['id']} {check['name']}".strip()
        )
    items = [
        tag("li", tag("strong", ", ".join(names)), f": {why}") for why, names in reasons.items()
    ]
    partly = [
        check
        for check in figures["verdict"]["checks"]
        if check["state"] != "not checked" and check["why"]
    ]
    items += [
        tag("li", tag("strong", f"{one['id']} {one['name']}"), f" (checked in part): {one['why']}")
        for one in partly
    ]
    if figures["mode"] == "sampled":
        items.append(
            tag(
                "li",
                "Events between the sampled rows are unknown and may hide a violation.",
            )
        )
    items.append(tag("li", NOT_CLAIMED))
    return tag(
        "div",
        tag("h3", "Not checked"),
        tag("ul", *items),
        _outside_scope(figures),
        class_="not-checked",
    )


def _outside_scope(figures: dict[str, Any]) -> Html:
    """Return the invariants that no trace can show, folded: the list is the same for all runs."""
    listed = figures["verdict"]["not_shown"]
    if not listed:
        return Html("")
    items = [
        tag(
            "li",
            tag("strong", one["id"]),
            f" {sentence_of(one['id'])} {_capital(one['why'])}.",
        )
        for one in listed
    ]
    summary = f"{len(listed)} guarantees that no trace can show; the simulator checks them"
    return tag("details", tag("summary", summary), tag("ul", *items))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _incomplete(figures: dict[str, Any]) -> Html:
    missing = figures["verdict"]["incomplete"]
    if not missing:
        return Html("")
    shown = missing[:_MAX_INCOMPLETE]
    items = [
        tag(
            "li",
            name_markup(one["life"], 60),
            f": {one['why'] or formatting.plural(one['missing_rows'], 'row') + ' missing'}",
        )
        for one in shown
    ]
    if len(missing) > len(shown):
        more = formatting.count(len(missing) - len(shown))
        items.append(tag("li", f"and {more} more incarnations"))
    return tag("div", tag("h3", "Missing rows"), tag("ul", *items), class_="not-checked")


def _checks(figures: dict[str, Any]) -> Html:
    checks = figures["verdict"]["checks"]
    if not checks:
        return Html("")
    return checks_table(checks, open_=any(check["state"] == VIOLATED for check in checks))


def checks_table(checks: list[dict[str, Any]], *, open_: bool) -> Html:
    """Return the list of all checks, violated ones first."""
    order = {VIOLATED: 0, HELD: 1}
    ranked = sorted(checks, key=lambda check: order.get(check["state"], 2))
    rows = [
        (
            join_markup((tag("span", check["id"], class_="check-id"), " ", check["name"])),
            _state(check["state"]),
            formatting.count(check["rows"]),
            formatting.count(check["violations"]),
            check["why"] or sentence_of(check["id"]),
        )
        for check in ranked
    ]
    content = ChartTable(
        ("check", "result", "rows examined", "violations", "meaning"),
        rows,
        numeric=frozenset({2, 3}),
    )
    summary = f"All {len(checks)} checks"
    return tag(
        "details",
        tag("summary", summary),
        table(content, summary),
        class_="behind checks",
        open=open_,
    )


def _state(state: str) -> Html:
    tone = {HELD: GOOD, VIOLATED: BAD}.get(state, UNSURE)
    shown = {HELD: "✓ passed", VIOLATED: "✕ failed"}.get(
        state, f"{formatting.NO_VALUE} not applicable"
    )
    return tag("span", shown, class_=f"state {tone}")

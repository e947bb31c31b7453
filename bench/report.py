"""Outcomes as tables for a person, JSON for a program, a page for the docs. Ratios come first.

A ratio says how many times better Gapless is than the other in the same round; above 1 Gapless is
ahead, for every kind of figure. The median of the rounds stands first, then the lowest and the
highest.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from bench.contenders import CONTENDERS
from bench.measuring import Spread, spread
from bench.plans import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from bench.environment import Peer
    from bench.goals import Line
    from bench.workloads import Case, Metric, Outcome

MARKERS = re.compile(r"(<!-- measured -->\n).*?(<!-- end measured -->)", re.DOTALL)


def reference(case: Case, outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the reference of a comparison: the first Gapless contender in the case."""
    ours = [
        one
        for one in outcomes
        if one.case == case and CONTENDERS[one.contender].is_ours and one.rounds
    ]
    return min(ours, key=lambda one: case.contenders.index(one.contender)) if ours else None


def ratio(ours: Outcome, theirs: Outcome, metric: Metric) -> Spread | None:
    """Return the advantage of Gapless, round by round; None without a comparison."""
    found = []
    for mine, other in zip(ours.rounds, theirs.rounds, strict=False):
        if metric.key not in mine or metric.key not in other:
            continue
        top, bottom = (mine, other) if metric.more_is_better else (other, mine)
        if bottom[metric.key] > 0:
            found.append(top[metric.key] / bottom[metric.key])
        elif top[metric.key] > 0:
            found.append(math.inf)
    return spread(found) if found else None


def figures(outcome: Outcome, metric: Metric) -> Spread | None:
    """Return the median and the spread of a figure."""
    found = [each[metric.key] for each in outcome.rounds if metric.key in each]
    return spread(found) if found else None


def total(outcome: Outcome, key: str) -> int:
    """Return the sum of a counter over all rounds."""
    return int(sum(each.get(key, 0) for each in outcome.rounds))


def verdict(outcome: Outcome) -> str:
    """Return the faults in the messages, in words."""
    if not outcome.rounds or "lost" not in outcome.rounds[0]:
        return ""
    wrong = {"lost": "lost", "duplicated": "twice", "out_of_order": "out of order"}
    found = [
        f"{total(outcome, key):,} {word}" for key, word in wrong.items() if total(outcome, key)
    ]
    return ", ".join(found) or "all, in order"


def broken(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the contenders that lost messages against their guarantee."""
    return [
        one
        for one in outcomes
        if "none lost" in one.promises and verdict(one) not in ("", "all, in order")
    ]


def repairs(outcome: Outcome) -> str:
    """Return the repairs, and the share of all data frames if known."""
    if not any("repairs" in each for each in outcome.rounds):
        return ""
    found, frames = total(outcome, "repairs"), total(outcome, "frames")
    return f"{found:,}" + (f" ({found / frames:.2%})" if frames else "")


def cases(outcomes: Sequence[Outcome]) -> list[Case]:
    """Return the cases, in order."""
    return list(dict.fromkeys(one.case for one in outcomes))


def show_number(value: float, digits: int) -> str:
    """Return a number as a person reads it."""
    return "∞" if math.isinf(value) else f"{value:,.{digits}f}"


def show_spread(found: Spread | None, digits: int) -> str:
    """Return a median with its range."""
    if found is None:
        return ""
    middle, lowest, highest = (show_number(value, digits) for value in found)
    return middle if lowest == highest else f"{middle} ({lowest} … {highest})"


def header(case: Case) -> list[str]:
    """Return the titles of the columns."""
    ratios = [f"ratio {metric.title}" for metric in case.metrics[:2]]
    return ["", *ratios, *(metric.title for metric in case.metrics), "came", "repairs"]


def rows(case: Case, outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    """Return a row for each contender: ratios, figures, faults."""
    ours = reference(case, outcomes)
    for one in (each for each in outcomes if each.case == case):
        if not one.rounds:
            why = f"missing: {one.missing}" if one.missing else f"failed: {one.failed}"
            yield [one.contender, why, *[""] * (len(header(case)) - 2)]
            continue
        ratios = [
            "" if ours is None or one is ours else show_spread(ratio(ours, one, metric), 2)
            for metric in case.metrics[:2]
        ]
        values = [show_spread(figures(one, metric), metric.digits) for metric in case.metrics]
        note = verdict(one) + (f"; later failed: {one.failed}" if one.failed else "")
        yield [one.contender, *ratios, *values, note, repairs(one)]


def print_tables(screen: Console, outcomes: Sequence[Outcome]) -> None:
    """Print all tables."""
    from rich.table import Table

    for case in cases(outcomes):
        table = Table(title=f"{WORKLOADS[case.workload]}: {case.title}", title_justify="left")
        for number, title in enumerate(header(case)):
            table.add_column(title, justify="left" if number == 0 else "right", overflow="fold")
        for row in rows(case, outcomes):
            table.add_row(*row)
        screen.print(table)


def answer(reached: bool | None) -> str:
    """Return whether a goal is reached, in a word."""
    return "" if reached is None else "yes" if reached else "no"


def print_goals(screen: Console, goals: Sequence[Line]) -> None:
    """Print the measured goals."""
    from rich.table import Table

    table = Table(title="Goals", title_justify="left")
    for title in ("goal", "asked", "measured", "reached"):
        table.add_column(title, overflow="fold")
    for line in goals:
        if line.reached is not None:
            table.add_row(line.goal, line.asked, line.measured, answer(line.reached))
    if table.row_count:
        screen.print(table)


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return all outcomes for a program."""
    found = []
    for case in cases(outcomes):
        ours = reference(case, outcomes)
        for one in (each for each in outcomes if each.case == case):
            contender = CONTENDERS[one.contender]
            line: dict[str, Any] = {
                "workload": case.workload,
                "case": case.title,
                "contender": one.contender,
                "members": case.shape.members,
                "senders": case.shape.senders,
                "size_bytes": case.size_bytes,
                "loss": case.loss,
                "transport": contender.transport,
                "options": contender.options,
                "promises": one.promises,
                "missing": one.missing,
                "failed": one.failed,
                "rounds": one.rounds,
                "compared_with": ours.contender if ours else "",
            }
            for metric in case.metrics:
                if (found_figures := figures(one, metric)) is not None:
                    line[metric.key] = found_figures._asdict()
                found_ratio = ratio(ours, one, metric) if ours and one is not ours else None
                if found_ratio is not None:
                    line[f"ratio_{metric.key}"] = {
                        key: finite(value) for key, value in found_ratio._asdict().items()
                    }
            found.append(line)
    return found


def finite(value: float) -> float | None:
    """Return a number that JSON has."""
    return value if math.isfinite(value) else None


# The page


def page_part(
    about: dict[str, Any],
    peers: Sequence[Peer],
    outcomes: Sequence[Outcome],
    goals: Sequence[Line] = (),
) -> str:
    """Return the generated part of the page."""
    lines = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in about.items()), ""]
    lines += ["| library | version | beside it | |", "|---|---|---|---|"]
    lines += [
        "| {} | {} | {} | {} |".format(
            peer.name,
            peer.version,
            peer.server,
            escaped(peer.reason and "missing: " + peer.reason),
        )
        for peer in peers
    ]
    if goals:
        lines += ["", "### Goals", "", "| goal | asked | measured | reached |", "|---|---|---|---|"]
        lines += [
            f"| {line.goal} | {line.asked} | {line.measured} | {answer(line.reached)} |"
            for line in goals
        ]
    for workload, title in WORKLOADS.items():
        mine = [case for case in cases(outcomes) if case.workload == workload]
        if mine:
            lines += ["", f"### {title[0].upper()}{title[1:]}"]
        for case in mine:
            titles = header(case)
            lines += [
                "",
                f"**{case.title}**",
                "",
                f"| {' | '.join(titles)} |",
                f"|---|{'---:|' * (len(titles) - 1)}",
            ]
            lines += [
                f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows(case, outcomes)
            ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text that does not end a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def write_page(path: Path, part: str) -> None:
    """Write the generated part between its markers."""
    text = path.read_text(encoding="utf-8")
    if not MARKERS.search(text):
        raise ValueError(f"{path.name} has no markers <!-- measured --> and <!-- end measured -->")
    path.write_text(
        MARKERS.sub(lambda match: f"{match[1]}{part}{match[2]}", text), encoding="utf-8"
    )

"""The arithmetic of the harness: medians, ratios, missing figures, broken guarantees."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import report
from bench.environment import Peer
from bench.groups import FailedError, Shape
from bench.workloads import CPU, SPEED, STOPPED, Case, Outcome, suffering, windows

CASE = Case(
    "fan",
    "1 → 3, 100 B",
    ("gapless-udp", "pyzmq", "redis", "nats"),
    shape=Shape(4, 1),
    size_bytes=100,
)
FINE = {"lost": 0, "duplicated": 0, "out_of_order": 0}
KEEPS = "each sender's messages once, in order, none lost"


def rounds(*speeds: float) -> list[dict[str, float]]:
    return [
        {"messages_per_s": speed, "cpu_s_per_million": 1e6 / speed, "mb_per_s": speed / 1e4, **FINE}
        for speed in speeds
    ]


@pytest.fixture
def outcomes() -> list[Outcome]:
    return [
        Outcome(CASE, "gapless-udp", rounds(300, 100, 200), promises=KEEPS),
        Outcome(CASE, "pyzmq", rounds(100, 100, 50), promises=KEEPS),
        Outcome(CASE, "redis", missing="there is no redis-server"),
        Outcome(CASE, "nats", failed="it was cut off | by its server"),
    ]


def test_ratios_are_made_round_by_round(outcomes: list[Outcome]) -> None:
    ours, pyzmq = outcomes[:2]
    assert report.reference(CASE, outcomes) is ours
    assert report.ratio(ours, pyzmq, SPEED) == (3, 1, 4)
    assert report.ratio(ours, pyzmq, CPU) == (3, 1, 4), (
        "of CPU time less is better, and above 1 is still ahead"
    )
    assert report.figures(ours, SPEED) == (200, 100, 300)


def test_ratios_where_somebody_stands_still() -> None:
    ours, other = (
        Outcome(CASE, "gapless-udp", rounds(10)),
        Outcome(CASE, "pyzmq", [{"messages_per_s": 0.0}]),
    )
    assert report.ratio(ours, other, SPEED) == (math.inf,) * 3
    assert report.ratio(other, other, SPEED) is None
    assert report.ratio(ours, Outcome(CASE, "nats"), SPEED) is None
    assert report.show_spread(report.ratio(ours, other, SPEED), 2) == "∞"


def test_nobody_is_left_out_of_the_table(outcomes: list[Outcome]) -> None:
    found = {row[0]: row for row in report.rows(CASE, outcomes)}
    assert list(found) == list(CASE.contenders)
    assert found["redis"][1] == "missing: there is no redis-server"
    assert found["nats"][1].startswith("failed: it was cut off")
    assert found["pyzmq"][1] == "3.00 (1.00 … 4.00)"
    assert found["gapless-udp"][1] == ""
    assert all(len(row) == len(report.header(CASE)) for row in found.values())


def test_nobody_is_left_out_of_the_document(outcomes: list[Outcome]) -> None:
    found = {line["contender"]: line for line in json.loads(json.dumps(report.as_json(outcomes)))}
    assert list(found) == list(CASE.contenders)
    assert found["redis"]["missing"] == "there is no redis-server"
    assert found["pyzmq"]["ratio_messages_per_s"] == {"middle": 3, "lowest": 1, "highest": 4}
    assert found["pyzmq"]["compared_with"] == "gapless-udp"
    assert "ratio_messages_per_s" not in found["gapless-udp"]
    assert len(found["pyzmq"]["rounds"]) == 3


def test_a_promise_that_was_not_kept(outcomes: list[Outcome]) -> None:
    assert report.broken(outcomes) == []
    outcomes[1].rounds[2]["lost"] = 3
    outcomes[1].rounds[0]["duplicated"] = 1
    assert report.verdict(outcomes[1]) == "3 lost, 1 twice"
    assert report.broken(outcomes) == [outcomes[1]]
    outcomes[1].promises = "at most once"
    assert report.broken(outcomes) == [], "what is not promised is counted, and not judged"


def test_the_page_has_everything_between_its_markers(
    outcomes: list[Outcome], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n<!-- end measured -->\nafter\n")
    peers = [Peer("pyzmq", "27"), Peer("redis", reason="there is no redis-server")]
    report.write_page(page, report.page_part({"cores": 2}, peers, outcomes))
    text = page.read_text()
    assert text.startswith("before\n<!-- measured -->\n| | |")
    assert text.endswith("<!-- end measured -->\nafter\n")
    assert "old" not in text
    for words in (
        "| cores | 2 |",
        "| pyzmq | 27 |",
        "missing: there is no redis-server",
        "cut off \\| by",
        "**1 → 3, 100 B**",
    ):
        assert words in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no markers"):
        report.write_page(page, "")


def test_how_long_the_others_suffer() -> None:
    ms = 1_000_000
    steady = [(at * 10 * ms, at * 100) for at in range(100)]
    silent = [(1000 * ms + at * 10 * ms, 9900) for at in range(100)]
    again = [(2000 * ms + at * 10 * ms, 9900 + at * 100) for at in range(100)]
    felt = suffering([*steady, *silent, *again], 990 * ms + 1, 1900 * ms)
    assert felt["silence_s"] == pytest.approx(1.01, abs=0.03)
    assert felt["suffered_s"] == pytest.approx(1.01, abs=0.11)
    assert felt["recovered_s"] == pytest.approx(0.1, abs=0.06)
    calm = suffering(
        [*steady, *[(1000 * ms + at * 10 * ms, 10_000 + at * 100) for at in range(100)]],
        990 * ms + 1,
        1900 * ms,
    )
    assert calm == {"suffered_s": 0, "silence_s": 0, "recovered_s": 0}
    assert {metric.key for metric in STOPPED} == set(calm)
    with pytest.raises(FailedError, match="nothing had come"):
        suffering(silent, 0, 1)


def test_windows_of_samples() -> None:
    samples = [(0, 0), (10, 1), (60, 2), (70, 3), (200, 4)]
    assert windows(samples, 50) == [((0, 0), (60, 2)), ((60, 2), (200, 4))]

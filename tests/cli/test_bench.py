"""``gapless bench``: real processes on loopback, for a moment; and the checker of every message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gapless.cli.app import run
from gapless_lab.bench.matrix import percentile
from gapless_lab.exactness import ExactnessChecker
from gapless_lab.workload import numbered_messages

QUICK = ["bench", "--seconds", "0.2", "--members", "2"]


def measured(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, list[dict[str, Any]]]:
    assert run([*QUICK, *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    found: dict[str, list[dict[str, Any]]] = json.loads(out)
    return found


def test_a_group_is_measured_and_every_message_checked(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "--size", "1000", "--transport", "udp,pigeon")
    (figure,) = found["figures"]
    assert (figure["transport"], figure["size_bytes"], figure["loss"]) == ("udp", 1000, 0)
    assert (figure["lost"], figure["duplicated"], figure["out_of_order"]) == (0, 0, 0)
    assert figure["cpu_s_per_million"] > 0
    (skipped,) = found["skipped"]
    assert skipped["transport"] == "pigeon"
    assert "auto, udp" in skipped["reason"]


def test_tcp_is_measured_too_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "--size", "1000", "--transport", "tcp", "--loss", "0,0.1")
    (figure,), (skipped,) = found["figures"], found["skipped"]
    assert (figure["transport"], figure["lost"], figure["duplicated"], figure["out_of_order"]) == (
        "tcp",
        0,
        0,
        0,
    )
    assert (skipped["transport"], skipped["loss"]) == ("tcp", 0.1)
    assert "loses nothing" in skipped["reason"]


def test_loss_costs_repairs_and_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "--size", "30000", "--loss", "0.2", "--senders", "1", "--seconds", "1")
    (figure,) = found["figures"]
    assert (figure["lost"], figure["duplicated"], figure["out_of_order"]) == (0, 0, 0)
    assert figure["repairs"] > 0


def test_unicast_and_round_trips(capsys: pytest.CaptureFixture[str]) -> None:
    (figure,) = measured(capsys, "--size", "102", "--mode", "unicast", "--members", "3")["figures"]
    assert (figure["lost"], figure["duplicated"], figure["out_of_order"]) == (0, 0, 0)
    (trips,) = measured(capsys, "--size", "100", "--rtt")["figures"]
    assert trips["requests"] > 0
    assert 0 < trips["p50_us"] <= trips["p99_us"] <= trips["p99_9_us"]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--size", "100", "--transport", "pigeon"]) == 0
    assert "skipped 1 of pigeon" in capsys.readouterr().out


@pytest.mark.parametrize("size_bytes", [4, 100, 101])
def test_the_checker_sees_what_is_wrong(size_bytes: int) -> None:
    one, two, three, four, five = numbered_messages(0, 5, size_bytes)
    checker = ExactnessChecker(size_bytes)
    checker.add(one + two)
    assert (checker.count, checker.lost(2), checker.lost(5)) == (2, 0, 3)
    checker.add(five)
    assert (checker.lost(5), checker.out_of_order, checker.duplicated) == (2, 0, 0)
    checker.add(three + three)
    assert (checker.lost(5), checker.out_of_order, checker.duplicated) == (1, 1, 1)
    checker.add(four)
    assert (checker.lost(5), checker.out_of_order, checker.duplicated, checker.count) == (
        0,
        2,
        1,
        6,
    )


def test_percentiles() -> None:
    values = list(range(1, 1001))
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999)] == [500, 990, 999]
    assert percentile([7], 0.999) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--members", "1"], "2 or more"),
        (["--senders", "4"], "--senders"),
        (["--size", "3"], "--size 3"),
        (["--size", "many"], "--size"),
        (["--loss", "0.9"], "--loss"),
        (["--seconds", "0"], "--seconds"),
        (["--mode", "broadcast"], "unicast"),
    ],
)
def test_wrong_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert words in err

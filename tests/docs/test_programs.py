"""The programs of the pages run, and their figures and names are those of real groups."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.utils.yaml import yaml_load

from gapless import blocking
from gapless.config import SETTINGS
from gapless.metrics import prometheus as metrics
from gapless.metrics.prometheus import prometheus
from gapless.protocol.events import EVENT_NAMES
from gapless.sim import SimulatedGroup
from gapless.spool.collector import Collector
from gapless.transport import InProcessNetwork

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "docs" / "quickstart.md"
TESTING = ROOT / "docs" / "testing-your-service.md"
OPERATIONS = ROOT / "docs" / "operations.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def programs(page: Path) -> dict[str, str]:
    """The blocks of a page that are files: their first line is a comment with the name."""
    found = (re.match(r"# (\w+\.py)\n", text) for text in blocks(page, "python"))
    return {match[1]: match.string for match in found if match}


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shown_beside(page: Path, program: str) -> list[str]:
    """The lines of output that a page shows behind a program."""
    behind = page.read_text("utf-8").partition(program)[2]
    match = re.match(r"```\n\n```text\n(.*?)^```$", behind, re.DOTALL | re.MULTILINE)
    assert match, "the output stands right behind the program"
    return match[1].splitlines()


# Programs


def test_the_pages_have_the_programs() -> None:
    assert list(programs(QUICKSTART)) == ["orders.py", "slow.py", "test_orders.py"]
    assert list(programs(TESTING)) == ["stock.py", "test_stock.py", "test_shop.py"]


@pytest.mark.parametrize("name", ["orders.py", "slow.py"])
def test_a_program_of_the_quickstart_says_what_the_page_shows(name: str, tmp_path: Path) -> None:
    program = programs(QUICKSTART)[name]
    alone = program.replace('"quickstart', f'"quickstart-{os.getpid()}')  # nobody else's group
    (tmp_path / name).write_text(alone)
    said = run(tmp_path, name).splitlines()

    def plain(
        lines: list[str],
    ) -> list[str]:  # addresses, times and the name of the group differ from run to run
        return sorted(
            re.sub(r"[\w.:-]+ \([0-9a-f]{8}\)|\d+m?s|quickstart-[\w-]+", "…", line)
            for line in lines
        )

    assert plain(said) == plain(shown_beside(QUICKSTART, program))


def test_the_tests_that_the_pages_show_pass(tmp_path: Path) -> None:
    for page in (QUICKSTART, TESTING):
        for name, text in programs(page).items():
            (tmp_path / name).write_text(text)
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^6 passed", said, re.MULTILINE), said


def test_a_test_that_the_page_shows_can_fail(tmp_path: Path) -> None:
    """A service that counts a repeat twice, or loses one, is found out."""
    for name, text in programs(TESTING).items():
        (tmp_path / name).write_text(
            text.replace("self.count[article] += by", "self.count[article] += by + (by == -1)")
        )
    with pytest.raises(AssertionError, match="test_lost_frames_change_nothing"):
        run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_stock.py")


def test_the_first_program_is_that_of_the_readme() -> None:
    (first, *_) = blocks(ROOT / "README.md", "python")
    assert blocks(ROOT / "docs" / "index.md", "python") == [first]


# Operations


def test_every_figure_of_the_alerts_is_one_that_members_serve(tmp_path: Path) -> None:
    (text,) = blocks(OPERATIONS, "yaml")
    rules = [rule for group in yaml_load(text)["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in re.findall(r"gapless_\w+", rule["expr"])}
    assert len(rules) > 10
    network, quick = (
        InProcessNetwork(),
        {"found_after": "50ms", "join_interval": "20ms", "capacity": 4},
    )
    with (
        blocking.join("x", transport=network.open(), config=quick) as group,
        Collector(tmp_path / "spool", "x", transport=network.open(), config=quick) as collector,
    ):
        group.wait_for_member("collector", timeout=20)
        group.send_many([b"more than the window takes"] * 50, timeout=20)
        served = prometheus([group.snapshot(), collector.snapshot()])
    known = set(re.findall(r"^(gapless_\w+)", served, re.MULTILINE)) | {
        f"gapless_{name}" for name in metrics._HELP
    }
    assert named - known == set()


def test_every_event_of_the_alerts_exists() -> None:
    kinds = re.findall(r'gapless_events_total\{kind=~"([^"]+)"\}', OPERATIONS.read_text("utf-8"))
    assert kinds
    assert {kind for found in kinds for kind in found.split("|")} <= set(EVENT_NAMES.values())


def test_every_setting_of_the_page_exists() -> None:
    table = (
        OPERATIONS.read_text("utf-8")
        .partition("## Settings worth changing")[2]
        .partition("## When")[0]
    )
    turned = {
        name
        for cell in re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)", cell)
    }
    assert turned - {"rmem_max", "MALLOC_TRIM_THRESHOLD_"} <= set(SETTINGS)
    assert len(turned) > 15


@pytest.mark.parametrize("senders", [1, 2])
def test_what_is_in_flight_over_the_round_trip_is_the_rate(senders: int) -> None:
    """The formula of the page, for a round trip of 10 ms and the default buffers of the kernel."""
    buffer_bytes, round_trip_s = 208 << 10, 0.010
    group = SimulatedGroup(3, delay="5ms", receive_buffer_bytes=buffer_bytes)
    for name in "ab"[:senders]:
        group[name].send(*[bytes(1000)] * (12_000 // senders))
    group.settle()
    rate = 12_000_000 / (group.now_ns / 1e9)
    most = buffer_bytes / round_trip_s
    assert 0.75 * most < rate < most, (
        "less by what it takes to begin: the first round trips have a part of the share"
    )

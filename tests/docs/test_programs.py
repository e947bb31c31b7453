"""The programs of the pages run, and their figures and names are those of real groups."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.utils.yaml import yaml_load

from gapless import blocking, errors
from gapless.config import SETTINGS
from gapless.metrics import prometheus as metrics
from gapless.metrics.prometheus import prometheus
from gapless.protocol.events import EVENT_NAMES
from gapless.sim import SimulatedGroup
from gapless.spool.collector import Collector
from gapless.transport import InProcessNetwork
from tests.support.collectors import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = ROOT / "docs" / "guides"
QUICKSTART = ROOT / "docs" / "start/tutorial.md"
TESTING = ROOT / "docs" / "guides/testing-your-service.md"
ALERTS = ROOT / "docs" / "guides/operating/alerts.md"
TROUBLESHOOTING = ROOT / "docs" / "guides/operating/troubleshooting.md"
TUNING = ROOT / "docs" / "guides/operating/tuning.md"


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
    assert list(programs(TESTING)) == [
        *("stock.py", "test_third_message.py", "test_stock.py", "test_shop.py"),
        "test_lost_change.py",
    ]


def alone(program: str) -> str:
    """Give a program a group of its own, apart from those of other tests."""
    return re.sub(r'"((?:quickstart|guide)[\w-]*)"', rf'"\1-{os.getpid()}"', program)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("start/tutorial.md", "orders.py"),
        ("start/tutorial.md", "slow.py"),
        ("guides/joining.md", "joining.py"),
        ("guides/sending.md", "sender.py"),
        ("guides/receiving.md", "reader.py"),
        ("guides/requests.md", "squares.py"),
        ("guides/state.md", "counters.py"),
        ("guides/threads.md", "reading_thread.py"),
    ],
)
def test_a_program_prints_what_its_page_shows(page: str, name: str, tmp_path: Path) -> None:
    path = ROOT / "docs" / page
    program = programs(path)[name]
    (tmp_path / name).write_text(alone(program))
    printed = run(tmp_path, name).splitlines()

    def plain(lines: list[str]) -> list[str]:
        """Drop addresses, times and names of groups, which differ from run to run."""
        changing = r"[\w.:-]+ \([0-9a-f]{8}\)|[0-9a-f]+\.[0-9a-f]{16}|\d+m?s|quickstart-[\w-]+"
        return sorted(re.sub(changing, "…", line) for line in lines)

    assert plain(printed) == plain(shown_beside(path, program))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_a_program_of_a_page_compiles(page: Path) -> None:
    for name, text in programs(page).items():
        compile(text, f"{page.name}: {name}", "exec")


def start(folder: Path, name: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_ledger_has_every_sale_once_after_a_kill(tmp_path: Path) -> None:
    """The steps of the page about durable members, with ``kill -9``."""
    for name, text in programs(GUIDES / "durable-members.md").items():
        (tmp_path / name).write_text(alone(text))
    processes = [start(tmp_path, "ledger.py")]
    try:
        assert processes[0].stdout is not None
        assert processes[0].stdout.readline() == "ledger: joined\n"
        processes.append(start(tmp_path, "till.py"))
        wait_until(lambda: sales(tmp_path / "ledger.db"), "the first sale is stored")
        processes[0].kill()
        processes[0].wait()
        processes.append(start(tmp_path, "ledger.py"))
        printed, _ = processes[1].communicate(timeout=90)
        assert "till: the ledger has stored every sale" in printed
        assert sales(tmp_path / "ledger.db") == [b"sale %d" % number for number in range(1, 101)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def sales(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    with sqlite3.connect(path, timeout=20) as ledger:
        try:
            return [row[0] for row in ledger.execute("SELECT payload FROM sales ORDER BY seqno")]
        except sqlite3.OperationalError:  # the table is not there yet
            return []


def test_the_service_is_ready_when_it_has_joined_and_leaves_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(alone(programs(GUIDES / "systemd.md")["service.py"]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        service = start(tmp_path, "service.py", NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            assert systemd.recv(100) == b"READY=1"
            service.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            printed, _ = service.communicate(timeout=60)
        finally:
            service.kill()
            service.communicate()
    assert service.returncode == 0
    assert "joined: 1 member(s)" in printed
    assert "left the group" in printed


def test_the_pod_is_ready_when_it_has_joined_and_leaves_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "pod.py").write_text(alone(programs(GUIDES / "kubernetes.md")["pod.py"]))
    joined = tmp_path / "joined"
    pod = start(tmp_path, "pod.py", JOINED_FILE=str(joined))
    try:
        wait_until(joined.exists, "the pod is ready")
        pod.send_signal(signal.SIGTERM)
        pod.communicate(timeout=60)
    finally:
        pod.kill()
        pod.communicate()
    assert pod.returncode == 0
    assert not joined.exists()


def test_two_workers_of_the_web_application_share_prices(tmp_path: Path) -> None:
    """The part of the page that needs no web framework."""
    (tmp_path / "prices.py").write_text(alone(programs(GUIDES / "web-apps.md")["prices.py"]))
    (tmp_path / "workers.py").write_text(
        "import asyncio\n"
        "from prices import Prices\n"
        "async def main():\n"
        "    async with Prices().running() as one:\n"
        "        await one.put('apple', 1.5)\n"
        "        async with Prices().running() as two:\n"
        "            print(two.values, await two.is_healthy())\n"
        "            await two.put('pear', 2)\n"
        "        print(one.values)\n"
        "asyncio.run(main())\n"
    )
    printed = run(tmp_path, "workers.py")
    assert printed == "{'apple': 1.5} True\n{'apple': 1.5, 'pear': 2}\n"


def test_the_tests_that_the_pages_show_pass(tmp_path: Path) -> None:
    for page in (QUICKSTART, TESTING):
        for name, text in programs(page).items():
            (tmp_path / name).write_text(text)
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^8 passed", said, re.MULTILINE), said


def test_a_test_that_the_page_shows_can_fail(tmp_path: Path) -> None:
    """A service that counts a repeat twice, or loses one, is found out."""
    for name, text in programs(TESTING).items():
        (tmp_path / name).write_text(
            text.replace("self.count[article] += by", "self.count[article] += by + (by == -1)")
        )
    for name, failing in (
        ("test_stock.py", "test_lost_frames_change_nothing"),
        ("test_third_message.py", "test_the_stock_is_right_although_the_third_message_was_lost"),
    ):
        with pytest.raises(AssertionError, match=failing):
            run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)


def test_a_pattern_matches_a_frame_with_more_messages() -> None:
    """What the page says about ``DATA 3``, and about ``#2``."""
    group = SimulatedGroup(3)
    group.drop("DATA 3 a->b")
    group.drop("REPAIR 3 a->b")
    second = group.drop("REPAIR 3 a->b #2")
    messages = [b"%d" % number for number in range(1, 6)]
    group.a.send(*messages)
    group.settle()
    assert group.b.received["a"] == messages
    assert re.search(r"✗.* DATA a1\.\.5", group.diagram())
    assert second.struck == 1


def test_the_first_program_is_that_of_the_readme() -> None:
    (first, *_) = blocks(ROOT / "README.md", "python")
    assert blocks(ROOT / "docs" / "index.md", "python") == [first]
    hello = programs(ROOT / "docs" / "start/first-group.md")["hello.py"]
    without_comments = re.sub(r"  # .*", "", first)
    assert hello == f"# hello.py\n{without_comments}"


# Errors


def test_no_page_and_no_example_waits_for_members_without_a_timeout() -> None:
    """A member that never starts would leave a copy of the program in the dark."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    calls = [
        (page.name, call)
        for page in pages
        for call in re.findall(r"wait_for_members\([^)]*\)", page.read_text(encoding="utf-8"))
    ]
    assert len(calls) > 8
    assert [call for call in calls if "timeout=" not in call[1]] == []


def test_the_page_of_errors_says_what_to_do_about_each() -> None:
    page = (ROOT / "docs" / "reference/errors.md").read_text("utf-8")
    described = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    assert described == set(errors.__all__) - {"GaplessError"}


# Operations


def test_every_figure_of_the_alerts_is_one_that_members_serve(tmp_path: Path) -> None:
    (text,) = blocks(ALERTS, "yaml")
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
    kinds = re.findall(r'gapless_events_total\{kind=~"([^"]+)"\}', ALERTS.read_text("utf-8"))
    assert kinds
    assert {kind for found in kinds for kind in found.split("|")} <= set(EVENT_NAMES.values())


def test_every_setting_of_the_page_exists() -> None:
    table = TUNING.read_text("utf-8").partition("## Settings worth changing")[2]
    turned = {
        name
        for cell in re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)", cell)
    }
    assert turned - {"rmem_max", "MALLOC_TRIM_THRESHOLD_"} <= set(SETTINGS)
    assert len(turned) > 15


def test_the_first_symptom_is_quoted_as_members_report_it() -> None:
    network, small = InProcessNetwork(), {"capacity": 4, "unread_limit": 1, "found_after": "50ms"}
    with blocking.join("x", transport=network.open(), config=small) as group:
        while group.try_send(b"payload") is not None:
            pass  # the member never reads, not even its own messages
        with pytest.raises(errors.TimedOutError) as caught:
            group.send(b"payload", timeout=0.2)
    quoted = re.search(r"^TimedOutError: (.+)$", TROUBLESHOOTING.read_text("utf-8"), re.MULTILINE)
    assert quoted
    assert re.sub(r"\d+m?s\b", "…", quoted[1]) == re.sub(r"\d+m?s\b", "…", str(caught.value))


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

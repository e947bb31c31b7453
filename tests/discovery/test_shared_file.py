import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from gapless.discovery import Discovery, Seeds, SharedFile
from gapless.units import NS_PER_S
from tests.support.announcements import announced, at, crash, texts
from tests.support.announcers import announcers

DAY_NS = 24 * 3600 * NS_PER_S


def member(
    path: Path,
    node: int,
    incarnation: int = 1,
    *,
    stale_ns: int = 2 * DAY_NS,
    group: str = "orders",
) -> SharedFile:
    source = SharedFile(path, group=group, refresh_ns=stale_ns // 2, stale_ns=stale_ns)
    announced(source, at(f"127.0.0.1:{7000 + node}", node, incarnation))
    return source


def reasons(source: SharedFile) -> dict[str, int]:
    return {problem.reason: problem.times for problem in source.problems.of("")}


def members(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["members"]
    return found


def nodes(path: Path) -> list[str]:
    return [f"{entry['node']}.{entry['incarnation']}" for entry in members(path)]


def age(path: Path, node: str, seconds: float) -> None:
    content = json.loads(path.read_text())
    for entry in content["members"]:
        if entry["node"] == node:
            entry["written_ns"] -= int(seconds * NS_PER_S)
    path.write_text(json.dumps(content))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.json"


def test_members_find_each_other_and_a_leaver_is_gone(path: Path) -> None:
    a, b = member(path, 1), member(path, 2)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    assert a.wait(10)
    assert texts(a.locate(0)) == ["127.0.0.1:7002"]
    assert nodes(path) == ["2.1", "1.1"]
    b.close()
    assert a.wait(10)
    assert a.locate(0) == []
    a.close()
    assert members(path) == []
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "orders.json",
        "orders.json.lock",
    ]
    assert reasons(a) == reasons(b) == {}


def test_who_only_looks_needs_no_file_no_lock_and_writes_nothing(path: Path) -> None:
    watcher = SharedFile(path, group="orders")
    assert watcher.wait(10)
    assert watcher.locate(0) == []
    assert reasons(watcher) == {}
    assert list(path.parent.iterdir()) == []
    a = member(path, 1)
    assert watcher.wait(10)
    assert texts(watcher.locate(0)) == ["127.0.0.1:7001"]
    for source in (a, watcher):
        source.close()


def test_stale_entries_are_ignored_and_removed(path: Path) -> None:
    for node in (1, 2):
        crash(member(path, node))
    age(path, "1", 21)
    age(path, "2", 10)
    watcher = SharedFile(path, group="orders", stale_ns=20 * NS_PER_S)
    assert watcher.wait(10)
    assert texts(watcher.locate(0)) == ["127.0.0.1:7002"]
    assert nodes(path) == ["1.1", "2.1"]
    c = member(path, 3, stale_ns=20 * NS_PER_S)
    assert texts(c.locate(0)) == ["127.0.0.1:7002"]
    assert nodes(path) == ["2.1", "3.1"]
    for source in (c, watcher):
        source.close()


def test_age_is_told_by_the_file_system_not_by_the_clock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = member(path, 1)
    monkeypatch.setattr("gapless.discovery.shared_file.time.time_ns", lambda: 7)
    b = member(path, 2, stale_ns=20 * NS_PER_S)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    for source in (a, b):
        source.close()


def test_other_groups_in_the_file_are_left_alone(path: Path) -> None:
    other = member(path, 1, group="bills")
    age(path, "1", 3600)
    a = member(path, 1, stale_ns=20 * NS_PER_S)
    assert a.locate(0) == []
    assert [entry["group"] for entry in members(path)] == ["bills", "orders"]
    assert nodes(path) == ["1.1", "1.1"]
    for source in (a, other):
        source.close()


def test_a_later_life_of_the_node_takes_over_and_the_former_leaves_it_alone(path: Path) -> None:
    former, later = member(path, 1, 1), member(path, 1, 2)
    assert nodes(path) == ["1.2"]
    assert former.wait(10)
    assert reasons(former) == {"superseded": 1}
    former.close()
    assert nodes(path) == ["1.2"]
    later.close()
    assert members(path) == []


def test_a_new_place_replaces_the_old_one(path: Path) -> None:
    a = member(path, 1)
    a.announce(at("127.0.0.1:7100", 8))
    assert a.wait(10)
    assert nodes(path) == ["8.1"]
    a.close()
    assert members(path) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b'{"gapless": 1, "members": 7}', b'{"gapless": 9, "members": []}'],
)
def test_garbage_is_counted_and_begun_anew(path: Path, content: bytes) -> None:
    a = member(path, 1)
    path.write_bytes(content)
    b = member(path, 2)
    assert reasons(b) == {"garbage": 1}
    assert nodes(path) == ["2.1"]
    assert a.wait(10)
    assert nodes(path) == ["2.1", "1.1"]
    assert texts(a.locate(0)) == ["127.0.0.1:7002"]
    for source in (a, b):
        source.close()


def test_an_entry_that_is_none_is_left_out(path: Path) -> None:
    a = member(path, 1)
    content = json.loads(path.read_text())
    good = content["members"][0]
    bad = [7, {}, {**good, "locator": "here"}, {**good, "written_ns": "now"}]
    path.write_text(json.dumps({**content, "members": [*bad, good]}))
    b = member(path, 2)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    assert reasons(b) == {"garbage": len(bad)}
    assert nodes(path) == ["1.1", "2.1"]
    for source in (a, b):
        source.close()


def test_a_lock_that_is_held_is_a_problem_and_reading_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.discovery.shared_file.LOCK_S", 0.02)
    a = member(path, 1)
    with path.with_name("orders.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        b = member(path, 2)
        assert texts(b.locate(0)) == ["127.0.0.1:7001"]
        assert nodes(path) == ["1.1"]
        (problem,) = b.problems.of("file")
        assert (problem.reason, problem.times) == ("locked", 1)
        assert "orders.json.lock for more than 0.02 s" in problem.last
    assert b.wait(10)
    assert nodes(path) == ["1.1", "2.1"]
    for source in (a, b):
        source.close()


def test_a_missing_directory_is_a_problem_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "share" / "orders.json"
    with Discovery([SharedFile(path, group="orders"), Seeds(["127.0.0.1:1"])]) as found:
        found.announce(at("127.0.0.1:7001"))
        assert found.wait(10)
        assert texts(found.locate(0)) == ["127.0.0.1:1"]
        problems = {problem.reason: problem for problem in found.problems()}
        assert set(problems) == {"read", "write"}
        assert "No such file or directory" in problems["read"].last
        path.parent.mkdir()
        assert found.wait(10)
        assert nodes(path) == ["1.1"]


def test_a_file_that_cannot_be_read_is_not_begun_anew(path: Path) -> None:
    path.mkdir()
    a = member(path, 1)
    assert path.is_dir()
    assert sum(reasons(a).values()) >= 1
    a.close()


def test_processes_that_write_at_once_lose_no_entry(path: Path) -> None:
    with announcers(f"file://{path}?refresh=20ms&stale=1min", 4, 3) as processes:
        answers = [process.read_json() for process in processes]
        watcher = SharedFile(path, group="orders")
        for _ in range(100):
            # Without the lock, one that read before another wrote would write that one's entry
            # away.
            assert watcher.wait(10)
            assert sorted(texts(watcher.locate(0))) == [
                f"127.0.0.1:{port}" for port in range(7001, 7005)
            ]
    assert [answer["seen"] for answer in answers] == [[2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 2, 3]]
    assert [answer["problems"] for answer in answers] == [[], [], [], []]
    assert reasons(watcher) == {}
    assert members(path) == []
    watcher.close()

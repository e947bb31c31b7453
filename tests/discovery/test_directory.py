import json
import os
import stat
from pathlib import Path

import pytest

from gapless.discovery import Directory, Discovery, DiscoveryProblem, Seeds
from gapless.errors import ConfigError
from gapless.identity import group_id
from gapless.units import NS_PER_S
from tests.support.announcements import announced, at, crash, settled, texts
from tests.support.announcers import announcers
from tests.support.processes import in_namespace

DAY_NS = 24 * 3600 * NS_PER_S


def looker(path: Path, group: str = "orders") -> Directory:
    """A member that only looks; its own timer never comes into play."""
    return Directory(path, group=group, refresh_ns=DAY_NS, stale_ns=2 * DAY_NS)


def member(path: Path, node: int, incarnation: int = 1, *, stale_ns: int = 2 * DAY_NS) -> Directory:
    source = Directory(path, group="orders", refresh_ns=stale_ns // 2, stale_ns=stale_ns)
    announced(source, at(f"127.0.0.1:{7000 + node}", node, incarnation))
    return source


def reasons(source: Directory) -> dict[str, int]:
    return {problem.reason: problem.times for problem in source.problems.of("")}


def age(path: Path, seconds: float) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - int(seconds * NS_PER_S)))


def entry(path: Path, node: int) -> Path:
    return path / f"{group_id('orders'):016x}-{node:016x}.member.json"


def test_members_find_each_other_and_a_leaver_is_gone(tmp_path: Path) -> None:
    a, b = member(tmp_path, 1), member(tmp_path, 2)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    assert a.wait(10)
    assert texts(a.locate(0)) == ["127.0.0.1:7002"]
    b.close()
    assert a.wait(10)
    assert a.locate(0) == []
    a.close()
    assert list(tmp_path.iterdir()) == []
    assert reasons(a) == reasons(b) == {}


def test_the_entry_says_who_where(tmp_path: Path) -> None:
    a = member(tmp_path, 0x5F, 3)
    assert json.loads(entry(tmp_path, 0x5F).read_text()) == {
        "gapless": 1,
        "group": "orders",
        "node": "5f",
        "incarnation": "3",
        "locator": "127.0.0.1:7095",
    }
    a.close()


@pytest.mark.parametrize(
    ("folder_mode", "umask", "entry_mode"),
    [(0o700, 0, 0o600), (0o755, 0o022, 0o644), (0o770, 0o022, 0o640), (0o1777, 0, 0o644)],
)
def test_others_may_read_the_entry_as_far_as_the_folder_and_the_umask_allow(
    tmp_path: Path, folder_mode: int, umask: int, entry_mode: int
) -> None:
    tmp_path.chmod(folder_mode)
    before = os.umask(umask)
    try:
        a = member(tmp_path, 1)
        assert stat.S_IMODE(entry(tmp_path, 1).stat().st_mode) == entry_mode
        a.close()
    finally:
        os.umask(before)


def test_an_announced_entry_is_kept_fresh_though_nobody_looks(tmp_path: Path) -> None:
    a = member(tmp_path, 1, stale_ns=NS_PER_S // 20)
    path = entry(tmp_path, 1)
    first = path.stat().st_ino, path.stat().st_mtime_ns
    with a._changed:
        rounds = a._done
    # The rounds that follow are begun by the timer alone: nothing here asks for one.
    with a._changed:
        assert a._changed.wait_for(
            lambda: a._done == a._wanted and (path.stat().st_ino, path.stat().st_mtime_ns) != first,
            10,
        )
        assert a._done == rounds
    a.close()


def test_of_two_that_start_at_once_one_sees_the_other(tmp_path: Path) -> None:
    # Whatever the order of their two writes and two reads, the one that wrote last reads both.
    for _ in range(20):
        pair = [
            Directory(tmp_path, group="orders", refresh_ns=DAY_NS, stale_ns=2 * DAY_NS)
            for _ in range(2)
        ]
        for node, source in enumerate(pair, 1):
            source.announce(at(f"127.0.0.1:{7000 + node}", node))
        for source in pair:
            settled(source)
        assert pair[0].locate(0) or pair[1].locate(0)
        for source in pair:
            source.close()


def test_stale_entries_are_ignored_and_removed_by_a_member(tmp_path: Path) -> None:
    for node in (1, 2):
        crash(member(tmp_path, node))
    age(entry(tmp_path, 1), 21)
    age(entry(tmp_path, 2), 10)
    c = member(tmp_path, 3, stale_ns=20 * NS_PER_S)
    assert texts(c.locate(0)) == ["127.0.0.1:7002"]
    assert not entry(tmp_path, 1).exists()
    assert entry(tmp_path, 2).exists()
    c.close()


def test_an_entry_from_the_future_is_stale_too(tmp_path: Path) -> None:
    crash(member(tmp_path, 1))
    age(entry(tmp_path, 1), -3600)
    b = member(tmp_path, 2, stale_ns=20 * NS_PER_S)
    assert b.locate(0) == []
    assert not entry(tmp_path, 1).exists()
    b.close()


def test_who_only_looks_removes_nothing(tmp_path: Path) -> None:
    crash(member(tmp_path, 1))
    age(entry(tmp_path, 1), 3600)
    watcher = Directory(tmp_path, group="orders", refresh_ns=NS_PER_S, stale_ns=20 * NS_PER_S)
    assert watcher.wait(10)
    assert watcher.locate(0) == []
    assert entry(tmp_path, 1).exists()
    watcher.close()


def test_age_is_told_by_the_file_system_not_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = member(tmp_path, 1)
    monkeypatch.setattr("gapless.discovery.directory.time.time_ns", lambda: 7)
    b = member(tmp_path, 2, stale_ns=20 * NS_PER_S)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    for source in (a, b):
        source.close()


def test_what_a_crashed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, young = (tmp_path / f".{entry(tmp_path, node).name}.00.tmp" for node in (1, 2))
    for path in (old, young):
        path.write_text("{")
    age(old, 60)
    foreign = tmp_path / ".something.tmp"
    foreign.write_text("")
    age(foreign, 60)
    a = member(tmp_path, 3, stale_ns=20 * NS_PER_S)
    assert [path.exists() for path in (old, young, foreign)] == [False, True, True]
    assert reasons(a) == {}
    a.close()


def test_other_groups_and_other_files_are_left_alone(tmp_path: Path) -> None:
    other = Directory(tmp_path, group="bills", refresh_ns=DAY_NS, stale_ns=2 * DAY_NS)
    other.announce(at("127.0.0.1:7009", 9))
    assert other.wait(10)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    for path in tmp_path.iterdir():
        age(path, 3600)
    a = member(tmp_path, 1, stale_ns=20 * NS_PER_S)
    assert a.locate(0) == []
    assert len(list(tmp_path.iterdir())) == 4
    assert reasons(a) == {}
    for source in (a, other):
        source.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"[" * 4000,
        b'{"gapless": 2}',
        b'{"gapless": 1, "group": "orders", "node": 1, "incarnation": "1", "locator": "[::1]:1"}',
        b'{"gapless": 1, "group": "orders", "node": "1", "incarnation": "-", "locator": "[::1]:1"}',
        b'{"gapless": 1, "group": "orders", "node": "1", "incarnation": "1", "locator": "here"}',
        b'{"gapless": 1, "group": "orders", "node": "1", "incarnation": "1", "locator": "[::]:1"}',
        b'{"gapless": 1, "group": 7, "node": "1", "incarnation": "1", "locator": "127.0.0.1:1"}',
        b" " * 5000,
        b"9" * 4095,
    ],
)
def test_garbage_is_counted_and_stops_nobody(tmp_path: Path, content: bytes) -> None:
    entry(tmp_path, 1).write_bytes(content)
    b, c = member(tmp_path, 2), member(tmp_path, 3)
    assert texts(c.locate(0)) == ["127.0.0.1:7002"]
    assert reasons(c) == {"garbage": 1}
    (problem,) = c.problems.of("dir")
    assert problem.last.startswith(f"{entry(tmp_path, 1)} is not a discovery entry: ")
    age(entry(tmp_path, 1), 3 * DAY_NS / NS_PER_S)
    assert c.wait(10)
    assert not entry(tmp_path, 1).exists()
    for source in (b, c):
        source.close()


def test_a_pipe_and_a_folder_in_the_place_of_an_entry_block_nobody(tmp_path: Path) -> None:
    os.mkfifo(entry(tmp_path, 1))
    entry(tmp_path, 2).mkdir()
    a = member(tmp_path, 3)
    assert a.locate(0) == []
    assert sum(reasons(a).values()) == 2
    a.close()


def test_a_missing_directory_is_a_problem_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "share"
    with Discovery([looker(path), Seeds(["127.0.0.1:1"])]) as found:
        found.announce(at("127.0.0.1:7001"))
        assert found.wait(10)
        assert texts(found.locate(0)) == ["127.0.0.1:1"]
        problems = {problem.reason: problem for problem in found.problems()}
        assert set(problems) == {"read", "write"}
        assert all(problem.source == f"dir://{path}" for problem in problems.values())
        assert "No such file or directory" in problems["read"].last
        assert not path.exists()
        path.mkdir()
        b = member(path, 2)
        assert found.wait(10)
        assert texts(found.locate(0)) == ["127.0.0.1:7002", "127.0.0.1:1"]
        assert entry(path, 1).exists()
        b.close()


def test_what_was_found_still_counts_when_the_directory_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "share"
    path.mkdir()
    a = member(path, 1)
    watcher = looker(path)
    assert watcher.wait(10)
    path.rename(tmp_path / "elsewhere")
    assert watcher.wait(10)
    assert texts(watcher.locate(0)) == ["127.0.0.1:7001"]
    assert reasons(watcher) == {"read": 1}
    for source in (a, watcher):
        source.close()


def test_a_later_life_of_the_node_takes_over_and_the_former_leaves_it_alone(tmp_path: Path) -> None:
    former, later = member(tmp_path, 1, 1), member(tmp_path, 1, 2)
    assert json.loads(entry(tmp_path, 1).read_text())["incarnation"] == "2"
    assert later.locate(0) == []
    assert former.wait(10)
    assert reasons(former) == {"superseded": 1}
    assert json.loads(entry(tmp_path, 1).read_text())["incarnation"] == "2"
    former.close()
    assert json.loads(entry(tmp_path, 1).read_text())["incarnation"] == "2"
    later.close()
    assert not entry(tmp_path, 1).exists()


def test_a_new_place_replaces_the_old_one(tmp_path: Path) -> None:
    a = member(tmp_path, 1)
    a.announce(at("127.0.0.1:7100", 8))
    assert a.wait(10)
    assert [path.name for path in tmp_path.iterdir()] == [entry(tmp_path, 8).name]
    a.withdraw()
    assert a.wait(10)
    assert list(tmp_path.iterdir()) == []
    a.close()


def test_processes_that_write_at_once_find_each_other(tmp_path: Path) -> None:
    with announcers(f"dir://{tmp_path}?refresh=20ms&stale=1min", 4, 3) as processes:
        answers = [process.read_json() for process in processes]
    assert [answer["seen"] for answer in answers] == [[2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 2, 3]]
    assert [answer["problems"] for answer in answers] == [[], [], [], []]
    assert list(tmp_path.iterdir()) == []


def test_readers_never_see_half_an_entry(tmp_path: Path) -> None:
    with announcers(f"dir://{tmp_path}?refresh=10ms&stale=1min", 2, 1) as processes:
        watcher = looker(tmp_path)
        for process in processes:
            process.read_json()
        for _ in range(200):
            assert watcher.wait(10)
            assert texts(watcher.locate(0)) == ["127.0.0.1:7001", "127.0.0.1:7002"]
    assert reasons(watcher) == {}
    watcher.close()


@pytest.mark.parametrize("scheme", ["dir", "file"])
def test_a_full_disk_is_a_problem_until_there_is_room(tmp_path: Path, scheme: str) -> None:
    share = tmp_path / "share"
    share.mkdir()
    answer = in_namespace(
        f"mount -t tmpfs -o size=16k none {share}", "inside_full_disk.py", scheme, str(share)
    )
    assert answer["found_while_full"] == ["127.0.0.1:1"]
    (problem,) = [DiscoveryProblem(*problem) for problem in answer["problems_while_full"]]
    assert problem.reason == "write"
    assert problem.source.startswith(f"{scheme}://{share}")
    assert "No space left on device" in problem.last
    assert answer["left_over"] == []
    assert answer["seen_later"] == ["127.0.0.1:7001"]
    assert answer["problems_later"] == answer["problems_while_full"]


def test_a_path_must_be_absolute() -> None:
    with pytest.raises(ConfigError, match="'shared' is not an absolute path"):
        Directory("shared", group="orders")

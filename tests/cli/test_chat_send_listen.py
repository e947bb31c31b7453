"""``gapless chat``, ``send`` and ``listen``: real processes of one group on loopback."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from gapless.cli.app import run
from tests.support.commands import command_group

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_go_from_one_process_to_the_others() -> None:
    with command_group(3) as group:
        listener = group.start("listen", "--json", "--count", "3", "--timeout", "50")
        reader = group.start("listen", "--count", "3", "--timeout", "50")
        sender = group.start("send", "--json", "--members", "3", "--timeout", "50")
        sender.write("one\ntwo\r\nthrée")
        code, out, err = sender.end()
        assert (code, err) == (0, "")
        said = json.loads(out)
        assert (said["messages"], said["size_bytes"], said["members"]) == (3, 12, 3)
        code, out, err = listener.end()
        assert (code, err) == (0, "")
        rows = [json.loads(line) for line in out.splitlines()]
        assert [(row["text"], row["seqno"], row["kind"]) for row in rows] == [
            ("one", 1, "message"),
            ("two", 2, "message"),
            ("thrée", 3, "message"),
        ]
        code, out, err = reader.end()
        assert code == 0
        assert [line.split(": ")[1] for line in out.decode().splitlines()] == [
            "one",
            "two",
            "thrée",
        ]
        assert "Ctrl-C" in err


def test_a_file_comes_out_as_it_went_in(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(1_234_567)
    (tmp_path / "file").write_bytes(content)
    with command_group(2) as group:
        listener = group.start("listen", "--raw", "--count", "13", "--timeout", "50")
        sender = group.start("send", str(tmp_path / "file"), "--chunk", "100kB", "--timeout", "50")
        code, out, err = sender.end()
        assert (code, out) == (0, b"")
        assert "13 messages, 1,234,567 bytes" in err
        code, out, err = listener.end()
        assert code == 0
        assert out == content


def test_a_listener_that_gets_too_little_says_so() -> None:
    with command_group(1) as group:
        code, out, _ = group.start("listen", "--count", "1", "--timeout", "100ms").end()
    assert (code, out) == (1, b"")


def test_a_sender_does_not_send_to_nobody() -> None:
    with command_group(1) as group:
        sender = group.start("send", "--timeout", "300ms")
        sender.write("hello\n")
        code, out, err = sender.end()
    assert (code, out) == (2, b"")
    assert "1 of 2 members" in err
    assert "--members 1" in err
    assert "Traceback" not in err


def test_two_people_talk_and_see_each_other_come_and_go() -> None:
    with command_group(2) as group:
        ann = group.start("chat", "--nick", "ann")
        ann.next_line("with 1 member;")
        bob = group.start("chat", "--nick", "bob")
        ann.next_line("2 members")
        bob.next_line("2 members")
        ann.write("hello\n")
        assert bob.next_line("hello") == "ann: hello\n"
        bob.write("how are you?\n")
        assert ann.next_line("how") == "bob: how are you?\n"
        assert bob.end()[0] == 0
        ann.next_line("left: ")
        ann.interrupt()
        code, out, err = ann.end()
    assert (code, err) == (0, "")
    assert b"Traceback" not in out


def test_ctrl_c_leaves_and_does_not_vanish() -> None:
    with command_group(2) as group:
        watcher = group.start("listen", "--json", "--events")
        watcher.next_line('"kind": "view_changed"')
        other = group.start("listen")
        watcher.next_line('"joined"')
        other.next_line("Ctrl-C", "stderr")
        other.interrupt()
        code, out, _ = other.end()
        assert (code, out) == (0, b"")
        row = json.loads(watcher.next_line('"left": ["'))
        assert len(row["members"]) == 1
        watcher.process.terminate()
        assert watcher.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["listen", "talk", "--raw", "--json"], "--raw"),
        (["listen", "talk", "--timeout", "soon"], "duration"),
        (["listen", "talk", "--timeout", "-1"], "seconds"),
        (["listen", "talk", "--ports", "first"], "7800"),
        (["listen", "talk", "--transport", "pigeon"], "pigeon"),
        (["listen", "talk", "--discover", "nowhere://"], "nowhere"),
        (["listen", "talk", "--host", "somewhere"], "somewhere"),
        (["listen", "talk", "--properties", "capacty=4"], "capacity"),
        (["listen", ""], "name"),
        (["send", "talk", "no such file"], "no such file"),
        (["send", "talk", "/"], "directory"),
        (["send", "talk", "--lines", "--chunk", "1"], "--chunk"),
        (["send", "talk", "--chunk", "0"], "one byte"),
        (["chat", "talk", "--host", "203.0.113.7"], "203.0.113.7"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert words in err

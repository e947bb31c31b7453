"""``gapless collect`` as a person starts it."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from gapless.cli.app import cli, run
from gapless.cli.data.collect import rates, status_line
from gapless.cli.rendering import short_size
from gapless.keys.keyring import Keyring
from gapless.spool import SpoolReader
from gapless.spool.collector.status import CollectorStatus
from tests.support.commands import command_group

if TYPE_CHECKING:
    from pathlib import Path


def test_it_keeps_what_is_sent_and_says_so(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with command_group(2) as place:
        collector = place.start(
            "collect", "--spool", str(spool), "--max-bytes", "1GiB", "--name", "store"
        )
        words = collector.next_line("collecting into", "stderr")
        assert str(spool) in words
        assert "'store'" in words
        assert "1min" in words, "how long its place is kept"
        sender = place.start("send")
        sender.write("one\ntwo\nthree\n")
        assert sender.end()[0] == 0
        collector.interrupt()
        code, said, complaints = collector.end()
    assert (code, said) == (0, b"")
    assert "talk: 3 messages" in complaints
    view = SpoolReader(spool)
    view.refresh()
    assert [
        message
        for record in view.records(view.slices({}, view.high()))
        for message in record.messages()
    ] == [
        b"one",
        b"two",
        b"three",
    ]


def test_it_encrypts_the_spool_and_goes_on_with_the_keys_only(tmp_path: Path) -> None:
    spool, keys = tmp_path / "spool", tmp_path / "keys.toml"
    Keyring.new(cipher="aes-256-gcm").create(keys)
    with command_group(2) as place:
        collector = place.start("collect", "--spool", str(spool), "--spool-keys", str(keys))
        collector.next_line("collecting into", "stderr")
        sender = place.start("send")
        sender.write("one\ntwo\n")
        assert sender.end()[0] == 0
        collector.interrupt()
        assert collector.end()[0] == 0
        refused = place.start("collect", "--spool", str(spool))
        code, said, complaints = refused.end()
    assert (code, said) == (2, b"")
    assert f"encrypted with the key {Keyring.read(keys).sealing_key.label}" in complaints
    assert b"one" not in b"".join(path.read_bytes() for path in spool.rglob("*.run"))
    view = SpoolReader(spool, keys=keys)
    records = view.records(view.slices({}, view.high()))
    assert [message for each in records for message in each.messages()] == [b"one", b"two"]


def test_for_a_program_there_is_an_object_a_second_and_one_at_the_end(tmp_path: Path) -> None:
    with command_group(1) as place:
        collector = place.start(
            "collect", "--spool", str(tmp_path / "spool"), "--json", "--serve", "0"
        )
        first = json.loads(collector.next_line("collecting"))
        assert first["members"] == 1
        where = collector.next_line("serving", "stderr").split()[-1]
        SpoolReader(tmp_path / "spool").register("spark", {})
        json.loads(collector.next_line("spark"))
        with urlopen(where, timeout=30) as answer:
            figures = answer.read().decode()
        assert 'reader="spark"} 0' in figures
        assert "gapless_spool_used_bytes{" in figures
        assert "gapless_spool_commits_total{" in figures
        collector.signal(signal.SIGTERM)
        code, said, complaints = collector.end()
    assert (code, len(complaints.splitlines())) == (0, 1)
    statuses = [json.loads(text) for text in said.splitlines()]
    assert {*CollectorStatus.__annotations__, "messages_per_s", "mb_per_s"} == set(statuses[-1])
    assert statuses[-1]["state"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--spool", "SPOOL", "--max-bytes", "many"), "--max-bytes"),
        (("--spool", "SPOOL", "--max-age", "old"), "--max-age"),
        (("--spool", "SPOOL", "--on-full", "explode"), "drop-oldest"),
        (("--spool", "SPOOL", "--segment-bytes", "0"), "segment_bytes = 0: expected at least 1"),
        (("--spool", "SPOOL", "--discover", "nowhere"), "nowhere"),
        (("--spool", "SPOOL", "--transport", "pigeon"), "pigeon"),
        (("--spool", "SPOOL", "--ports", "x"), "--ports x: expected a port"),
        ((), "--spool"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    told = [str(tmp_path / "spool") if argument == "SPOOL" else argument for argument in arguments]
    code = run(["collect", "talk", *told])
    said, complaints = capsys.readouterr()
    assert (code, said) == (2, "")
    assert words in complaints
    assert len(complaints.strip().splitlines()) == 1


def test_a_file_in_the_place_of_the_spool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool").write_text("no folder")
    assert run(["collect", "talk", "--spool", str(tmp_path / "spool")]) == 2
    assert str(tmp_path / "spool") in capsys.readouterr().err


def test_a_spool_that_has_a_collector(tmp_path: Path) -> None:
    with command_group(2) as place:
        first = place.start("collect", "--spool", str(tmp_path / "spool"))
        first.next_line("collecting into", "stderr")
        second = place.start("collect", "--spool", str(tmp_path / "spool"))
        code, _, complaints = second.end()
        assert code == 2
        assert f"pid {first.process.pid}" in complaints


def test_the_line_for_a_person() -> None:
    before = CollectorStatus(
        group="orders",
        spool="s",
        name="n",
        state="collecting",
        at_s=10.0,
        messages=100,
        size_bytes=0,
    )
    now = CollectorStatus(
        group="orders",
        spool="s",
        name="n",
        state="waiting",
        at_s=12.0,
        messages=5100,
        size_bytes=5_000_000,
        used_bytes=3 * 1024**2,
        room_bytes=7 * 1024**2,
        segments=2,
        lag={"spark": 1200, "copy": 0},
        waits_for="the disk",
    )
    assert rates(now, before) == {"messages_per_s": 2500.0, "mb_per_s": 2.5}
    text = status_line(now, before).plain
    assert "2,500 messages/s" in text
    assert "2.5 MB/s" in text
    assert "spool 3 MiB of 10 MiB in 2 segments" in text
    assert "spark 1,200 behind; copy has all" in text
    assert "waiting: the disk" in text
    assert [short_size(size) for size in (0, 1023, 1536, 5 * 1024**3)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5 GiB",
    ]


def test_help_names_the_options() -> None:
    said = CliRunner().invoke(cli, ["collect", "--help"]).output
    assert all(
        option in said
        for option in ("--spool", "--max-bytes", "--on-full", "--no-sync", "--discover", "--json")
    )

"""What strangers write reaches a terminal as letters: no control character, no style of theirs."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any
from unicodedata import category

import pytest
from rich.live import Live
from rich.text import Text

from gapless import doctor
from gapless.cli.app import run
from gapless.cli.data import verify
from gapless.cli.data.collect import status_line
from gapless.cli.group_options import note
from gapless.cli.rendering import console, echo, make_table
from gapless.logger import logger_of
from gapless.output.printable import printable
from gapless.spool.collector.status import CollectorStatus
from pyspark_gapless.verify.verdict import CheckResult, TraceVerdict
from tests.support.commands import command_group

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    "[bold]x[/] :cat: \x1b[2J\x1b]0;t\x07\x08\r\t\x7f\x9b1m\xad\u202e\u2066\u2028\u200b\U000e0041"
)
"""Markup, an emoji of Rich, sequences of a terminal, and characters that hide or turn a text."""
SHOWN = (
    r"[bold]x[/] :cat: \x1b[2J\x1b]0;t\x07\x08\r\t\x7f\x9b1m\xad\u202e\u2066\u2028\u200b\U000e0041"
)
NAME = "[bold]d\u202e\u2066"
"""A durable name that the wire format allows."""
STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""A style of Rich."""


def controls(text: str) -> set[str]:
    """Return the characters of a text that a terminal may obey, but newlines."""
    found = {one for one in text if category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    return found - {"\n"}


def squeezed(text: str) -> str:
    """Return a text without the white space and the frames of tables."""
    return re.sub(r"[\s│┃]", "", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, thrée 日本 ☕", "plain, thrée 日本 ☕"),
        (HOSTILE, SHOWN),
        ("two\nlines", r"two\nlines"),
        ("a path \udcff", r"a path \udcff"),
        ("\0", r"\x00"),
    ],
)
def test_a_character_that_is_not_for_reading_is_a_visible_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text, keep_newlines=True) == shown.replace(r"\n", "\n")


def test_every_control_and_format_character_of_unicode_is_escaped() -> None:
    assert controls(printable("".join(map(chr, range(0x110000))), keep_newlines=True)) == set()


def test_messages_and_names_of_a_hostile_member() -> None:
    with command_group(5) as group:
        listener = group.start("listen", "--events")
        listener.next_line("view")
        reader = group.start("chat", "--nick", "bob")
        exact = group.start("listen", "--json", "--count", "1", "--timeout", "50")
        raw = group.start("listen", "--raw", "--count", "1", "--timeout", "50")
        reader.next_line("4 members")
        sender = group.start(
            *("chat", "--json", "--nick", HOSTILE, "--display-name", HOSTILE),
            *("--durable-name", NAME),
        )
        reader.next_line("5 members")
        sender.write(f"{HOSTILE}\n")
        payload = f"{HOSTILE}: {HOSTILE}"
        words = f"{printable(NAME)}: {SHOWN}: {SHOWN}"
        assert listener.next_line(words) == f"{words}\n"
        assert reader.next_line(": ".join([SHOWN] * 2)) == f"{': '.join([SHOWN] * 2)}\n"
        assert raw.end()[1] == payload.encode()
        row = json.loads(exact.end()[1])
        assert (row["text"], row["name"]) == (payload, NAME)
        watcher = group.start("top", "--once", "--interval", "10ms")
        code, top_out, top_err = watcher.end()
        assert code == 0
        assert SHOWN in top_out.decode()
        assert sender.end()[0] == 0
        listener.next_line("left")
        for command in (listener, reader):
            command.interrupt()
        outputs = [listener.end(), reader.end(), (code, top_out, top_err)]
    for code, out, err in outputs:
        assert code == 0
        assert controls(out.decode()) == set()
        assert controls(err) == set()


def test_a_message_of_several_lines_is_a_single_line_of_output() -> None:
    with command_group(3) as group:
        listener = group.start("listen", "--count", "1", "--timeout", "50")
        reader = group.start("chat", "--nick", "ann")
        reader.next_line("2 members")
        sender = group.start("send", "--chunk", "60000", "--members", "3", "--timeout", "50")
        sender.write("first\nann: forged\n* view 7")
        assert sender.end()[0] == 0
        code, out, _ = listener.end()
        assert code == 0
        assert out.decode().endswith(r": first\nann: forged\n* view 7" + "\n")
        assert out.count(b"\n") == 1
        assert reader.next_line("first") == r"first\nann: forged\n* view 7" + "\n"


def test_errors_about_hostile_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (
        ["listen", "talk", "--host", HOSTILE],
        ["send", "talk", str(tmp_path / HOSTILE)],
        ["spool", "ls", str(tmp_path / HOSTILE)],
        [HOSTILE],
    ):
        assert run(arguments) == 2
        out, err = capsys.readouterr()
        assert controls(out + err) == set()
        assert "\\x1b[2J" in err


def test_the_doctor_repeats_a_hostile_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = doctor.DoctorFinding("check", "warning", HOSTILE, HOSTILE)
    monkeypatch.setattr(doctor, "run_checks", lambda *_: [finding])
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert controls(out) == set()
    assert squeezed(out).count(squeezed(SHOWN)) == 2


def test_a_verdict_with_hostile_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    row: dict[str, Any] = dict.fromkeys(("member", "origin", "peer", "reason"), HOSTILE)
    row |= dict.fromkeys(("t_ns", "seqno", "seqno_last", "low", "delivered", "high"), 0)
    row |= {"event": "DELIVER", "here": True}
    verdict = TraceVerdict(
        events=1, incarnations=1, seeds=1, span_ns=9, mode="full", simulated=False, seconds=1.0
    )
    verdict.checks = [CheckResult("S3", "gapless prefix", "violated", 7, 1)]
    verdict.incomplete = [{"life": HOSTILE, "missing_rows": 3, "why": HOSTILE}]
    found = {"check": "S3", "seed": 0, "member": HOSTILE, "origin": HOSTILE, "message": HOSTILE}
    verdict.violations = [{**found, "rows": [row]}]
    verify.show(verdict)
    out = capsys.readouterr().out
    assert controls(out) == set()
    assert squeezed(out).count(squeezed(SHOWN)) >= 9


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_console_prints(terminal: bool) -> None:
    """Tables, texts and live displays: only the styles of the command itself are sequences."""
    file = io.StringIO()
    screen = console(file=file, force_terminal=terminal, width=200)
    screen.print(HOSTILE)
    screen.print(HOSTILE, style="red")
    screen.print(Text("\x1b[2J\u202e", "bold"))
    screen.print(make_table(HOSTILE, (HOSTILE,), [(HOSTILE,), (Text("own", "green"),)]))
    styled = file.getvalue()
    assert controls(STYLE.sub("", styled)) == set()
    assert (STYLE.search(styled) is not None) is terminal
    lines = STYLE.sub("", styled).split("\n")
    assert lines[:3] == [SHOWN, SHOWN, r"\x1b[2J\u202e"]
    assert squeezed(STYLE.sub("", styled)).count(squeezed(SHOWN)) == 5
    shown = io.StringIO()
    with Live(Text("a\x1b[2Jb"), console=console(file=shown, width=80), auto_refresh=False) as live:
        live.update(Text("c\x1b[2Jd"), refresh=True)
    assert r"c\x1b[2Jd" in shown.getvalue()
    assert controls(shown.getvalue()) == set()


def test_the_status_of_a_collector() -> None:
    status = CollectorStatus(
        group=HOSTILE, spool="", name="", state="", waits_for=HOSTILE, lag={HOSTILE: 3}
    )
    assert controls(status_line(status, None).plain) == set()
    assert status_line(status, None).plain.count(SHOWN) == 3


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"{HOSTILE}\nnext")
    note(f"{HOSTILE}\nnext")
    assert capsys.readouterr() == (f"{SHOWN}\nnext\n", f"{SHOWN}\nnext\n")


@pytest.mark.parametrize("part", ["", "spark", "collector"])
def test_log_lines_and_tracebacks(part: str) -> None:
    """Every handler gets an escaped record, also the handlers of the application."""
    file = io.StringIO()
    handler, log = logging.StreamHandler(file), logger_of(part)
    log.addHandler(handler)
    try:
        log.warning("%s said %s", HOSTILE, f"{HOSTILE}\n2026 ERROR forged")
        try:
            raise ValueError(f"{HOSTILE}\nnext")
        except ValueError:
            log.exception("%s failed", HOSTILE)
    finally:
        log.removeHandler(handler)
    said = file.getvalue()
    assert controls(said) == set()
    assert said.split("\n")[0] == rf"{SHOWN} said {SHOWN}\n2026 ERROR forged"
    assert f"ValueError: {SHOWN}\nnext\n" in said


def test_a_harmless_log_record_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gapless"):
        logger_of().warning("%d messages of %s", 3, "ann")
    assert caplog.records[0].args == (3, "ann")

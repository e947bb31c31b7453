"""``gapless keys identity|allow|disallow``: the identities of members and of groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.app import run
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.wire.identities import Certificate, Role
from tests.support.commands import command_group

GROUP = "talk"
"""The group of ``command_group``."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A keyring without identities."""
    path = tmp_path / "keys.toml"
    Keyring.new().create(path)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert run(["keys", *map(str, arguments), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_identity_makes_a_file_once_and_shows_it_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder" / "one.toml"
    made = answer(capsys, "identity", path)
    again = answer(capsys, "identity", path)
    assert (made["made"], again["made"]) == (True, False)
    assert made["public_key"] == again["public_key"] == Identity.read(path).public_key.hex()
    assert run(["keys", "identity", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"gapless keys allow NAME {made['public_key']} --group GROUP" in out
    secret = path.read_text().split('"')[1]
    assert secret not in out


def test_allow_and_disallow_change_the_keyring(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [Identity.new().public_key.hex() for _ in range(2)]
    target = "--group", "orders", "--keys", file
    answer(capsys, "allow", "store", keys[0], "--role", "collector", *target)
    rows = answer(capsys, "allow", "anna", keys[1], *target)["identities"]
    assert rows == [
        {"group": "orders", "name": "store", "role": "collector", "public_key": keys[0]},
        {"group": "orders", "name": "anna", "role": "member", "public_key": keys[1]},
    ]
    assert answer(capsys, "show", file)["identities"] == rows
    assert run(["keys", "show", str(file)]) == 0
    assert "collector" in capsys.readouterr().out
    answer(capsys, "disallow", "store", *target)
    (left,) = Keyring.read(file).identities
    assert (left.certificate.name, left.certificate.role) == ("anna", Role.MEMBER)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("allow", "anna", "zz"), "PUBLIC_KEY"),
        (("allow", 'a"b', "0" * 64), "expected printable text"),
        (("disallow", "anna"), "no identity 'anna'"),
    ],
)
def test_a_mistake_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    before = file.read_bytes()
    assert run(["keys", *arguments, "--group", "orders", "--keys", str(file)]) == 2
    assert words in capsys.readouterr().err
    assert file.read_bytes() == before


def test_check_names_files_with_other_identities(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = file.with_name("other.toml")
    Keyring.read(file).create(other)
    key = Identity.new().public_key.hex()
    answer(capsys, "allow", "anna", key, "--group", "orders", "--keys", file)
    found = answer(capsys, "check", file, other, code=1)
    assert any("different identities" in problem for problem in found["problems"])


# Members with identities


@pytest.fixture
def identities(tmp_path: Path) -> Path:
    """A folder with a keyring, and with an identity for each role of the group of commands."""
    tmp_path.chmod(0o700)
    ring = Keyring.new()
    for role in Role:
        one = Identity.new()
        one.create(tmp_path / f"{role}.toml")
        ring = ring.allow(GROUP, Certificate(role.value, role, one.public_key))
    ring.create(tmp_path / "keys.toml")
    return tmp_path


def given(folder: Path, role: Role) -> list[str]:
    return ["--keys", str(folder / "keys.toml"), "--identity", str(folder / f"{role}.toml")]


@pytest.mark.parametrize(
    ("role", "command", "words"),
    [
        (Role.OBSERVER, ["send"], "the role observer"),
        (Role.OBSERVER, ["chat"], "the role observer"),
        (Role.PUBLISHER, ["collect", "--name", "publisher"], "only a collector"),
        (Role.PUBLISHER, ["listen"], "only sends"),
    ],
)
def test_a_command_that_a_role_does_not_permit_leaves_the_running_member_alone(
    identities: Path, role: Role, command: list[str], words: str
) -> None:
    """A member that joined first would replace the running member with this identity."""
    permitted = ["send"] if role is Role.PUBLISHER else ["listen", "--events", "--json"]
    with command_group(3) as group:
        other = group.start("listen", "--events", "--json", *given(identities, Role.MEMBER))
        other.next_line('"view_changed"')
        running = group.start(permitted[0], *permitted[1:], *given(identities, role))
        other.next_line('"joined"')
        spool = ["--spool", str(identities / "spool")] if command[0] == "collect" else []
        refused = group.start(command[0], *command[1:], *spool, *given(identities, role))
        code, _, err = refused.end()
        assert code == 2
        assert words in err
        asked = group.start("top", "--once", "--json", *given(identities, Role.COLLECTOR))
        code, out, err = asked.end()
        assert (code, len(json.loads(out)["members"])) == (0, 3), err
        running.interrupt()
        running.end()
        assert not any("identity" in line for line in running.errors)


def test_a_replaced_and_a_removed_member_say_why_once(identities: Path) -> None:
    with command_group(4) as group:
        third = group.start("listen", "--events", "--json", *given(identities, Role.COLLECTOR))
        third.next_line('"view_changed"')
        # Without --events nobody reads the event of the expulsion, so it would be logged.
        first = group.start("listen", "--json", *given(identities, Role.MEMBER))
        third.next_line('"joined"')
        removed = group.start("listen", "--json", *given(identities, Role.OBSERVER))
        third.next_line('"joined"')
        second = group.start("listen", "--events", "--json", *given(identities, Role.MEMBER))
        assert first.wait() == 2
        assert len(first.errors) == 1, first.errors
        assert "another member has joined talk with the identity" in first.errors[0]
        Keyring.read(identities / "keys.toml").disallow(GROUP, "observer").write(
            identities / "keys.toml"
        )
        assert removed.wait() == 2
        assert len(removed.errors) == 1, removed.errors
        assert "may not join talk any more" in removed.errors[0]
        for running in (second, third):
            running.interrupt()
            assert running.end()[0] == 0

"""``gapless keys identity|allow|disallow``: the identities of members and of groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.app import run
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.wire.identities import Role


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

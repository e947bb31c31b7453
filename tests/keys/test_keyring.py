"""The keyring file: permissions, damage, rotation, atomic writes, and no secret in any text."""

from __future__ import annotations

import os
import re
import signal
import stat
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gapless.errors import ConfigError
from gapless.keys import keyring
from gapless.keys.ciphers import SUITE_NAMES
from gapless.keys.keyring import (
    MAX_KEYS,
    AllowedIdentity,
    Keyring,
    KeyringExistsError,
    RotationStep,
    StoredKey,
    default_path,
    load_or_create,
    local_path,
    parse_key_id,
)
from gapless.keys.secret_files import MAX_FILE_BYTES
from gapless.wire.identities import Certificate, Role
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey
from tests.support.processes import ChildProcess

NOW = datetime(2026, 11, 18, 20, 0, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a keyring with a sealing key and a new open key."""
    path = tmp_path / "keys.toml"
    Keyring.new(now=NOW).add(now=NOW).create(path)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any keyring."""
    monkeypatch.delenv("GAPLESS_KEYS", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Without a umask, every permission is the choice of the program."""
    before = os.umask(0)
    yield
    os.umask(before)


def secrets_of(ring: Keyring) -> list[str]:
    return [ring.secret.hex(), *(stored.key.secret.hex() for stored in ring.keys)]


def states(ring: Keyring) -> list[str]:
    return [stored.state.value for stored in ring.keys]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path) -> str:
    """Return the error of reading a file: one line that names the file."""
    with pytest.raises(ConfigError) as caught:
        Keyring.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The ring and its keys


def test_a_new_ring_has_one_key_that_seals() -> None:
    ring = Keyring.new(now=NOW)
    assert states(ring) == ["seal"]
    assert ring.sealing_key.created == NOW
    assert isinstance(ring.ring, KeyRing)
    assert ring.ring.sealing_key == ring.sealing_key.key


def test_two_new_rings_share_nothing() -> None:
    one, two = Keyring.new(), Keyring.new()
    assert not set(secrets_of(one)) & set(secrets_of(two))


def test_every_key_id_begins_with_the_label_of_the_ring() -> None:
    ring = Keyring.new()
    for _ in range(20):
        ring = ring.add()
    assert {stored.label[:4] for stored in ring.keys} == {ring.ring.label[:4]}
    assert len({stored.key.key_id for stored in ring.keys}) == 21


def test_a_key_id_in_use_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([5, 5, 5, 6])
    monkeypatch.setattr("gapless.keys.keyring.secrets.randbelow", lambda _: next(draws))
    ring = Keyring.new().add()
    assert [stored.key.key_id & 0xFFFF for stored in ring.keys] == [5, 6]


def test_fingerprints_differ_and_reveal_nothing() -> None:
    ring = Keyring.new().add()
    one, two = (stored.fingerprint for stored in ring.keys)
    assert one != two
    assert not any(part in secret for part in (one, two) for secret in secrets_of(ring))


def test_keys_with_the_same_secret_are_refused() -> None:
    """The same secret under two ids would seal two datagrams with the same nonce."""
    ring = Keyring.new().add()
    first, second = ring.keys
    twin = second._replace(key=second.key._replace(secret=first.key.secret))
    with pytest.raises(ConfigError, match="the same"):
        Keyring(ring.secret, (first, twin))
    with pytest.raises(ConfigError, match="the same"):
        Keyring(first.key.secret, ring.keys)


def test_the_number_of_keys_has_a_limit() -> None:
    ring = Keyring.new()
    for _ in range(MAX_KEYS - 1):
        ring = ring.add()
    with pytest.raises(ConfigError, match="delete"):
        ring.add()


# Rotation


def test_a_rotation() -> None:
    ring = Keyring.new()
    steps = []
    for _ in range(2):
        steps.append(ring.next_step)
        ring = ring.rotate()
    assert steps == [RotationStep.ADD, RotationStep.SEAL]
    assert states(ring) == ["open", "seal"]
    assert ring.next_step is RotationStep.RETIRE
    ring = ring.retire(ring.former_keys[0].key.key_id)
    assert states(ring) == ["retired", "seal"]
    assert ring.next_step is RotationStep.ADD


def test_after_each_step_every_member_opens_what_another_seals() -> None:
    """Members load the file at different times, so a step and the next one meet."""
    versions = [Keyring.new()]
    for _ in range(3):
        versions += [versions[-1].rotate()]
        versions += [versions[-1].rotate()]
        versions += [versions[-1].retire(versions[-1].former_keys[0].key.key_id)]
    for before, after in pairwise(versions):
        assert before.ring.sealing_key.key_id in after.ring.opening_keys
        assert after.ring.sealing_key.key_id in before.ring.opening_keys
        assert before.ring.group_id("orders") == after.ring.group_id("orders")


def test_the_newest_open_key_is_promoted() -> None:
    ring = Keyring.new().add().add()
    newest = ring.keys[-1].label
    assert ring.promote().sealing_key.label == newest
    assert states(ring.promote()) == ["open", "open", "seal"]


def test_a_former_key_is_never_promoted() -> None:
    ring = Keyring.new().add().promote()
    with pytest.raises(ConfigError, match="--step add"):
        ring.promote()
    with pytest.raises(ConfigError, match="--step add"):
        ring.rotate("seal")


def test_steps_that_are_not_possible_name_the_one_that_is() -> None:
    ring = Keyring.new().add()
    with pytest.raises(ConfigError, match="--step seal"):
        ring.rotate("add")
    ring = ring.promote()
    with pytest.raises(ConfigError, match=f"{ring.keys[0].label} is still open.*retire"):
        ring.rotate()
    assert states(ring.rotate("add")) == ["open", "seal", "open"]
    with pytest.raises(ConfigError, match="expected add or seal"):
        ring.rotate("retire")


def test_the_sealing_key_and_unknown_keys_are_not_retired() -> None:
    ring = Keyring.new().add()
    with pytest.raises(ConfigError, match="seals, and cannot be retired"):
        ring.retire(ring.sealing_key.key.key_id)
    with pytest.raises(ConfigError, match=f"its keys are .*{ring.keys[1].label}"):
        ring.retire(ring.keys[0].key.key_id ^ 0xFFFFFFFF)
    ring = ring.retire(ring.keys[1].key.key_id)
    with pytest.raises(ConfigError, match="is retired"):
        ring.retire(ring.keys[1].key.key_id)


def test_a_rotation_can_be_given_up() -> None:
    ring = Keyring.new().add()
    ring = ring.retire(ring.keys[1].key.key_id)
    assert states(ring) == ["seal", "retired"]
    assert ring.next_step is RotationStep.ADD


@pytest.mark.parametrize("text", ["", "1234567", "123456789", "1234567g", "a" * 64, "0x123456"])
def test_text_that_is_no_key_id(text: str) -> None:
    with pytest.raises(ConfigError, match="8 hexadecimal digits") as caught:
        parse_key_id(text)
    assert "aaaa" not in str(caught.value)
    assert parse_key_id("3F9A00ff") == 0x3F9A00FF


# The text of the file


@st.composite
def keyrings(draw: st.DrawFn) -> Keyring:
    count = draw(st.integers(1, 8))
    secret, *rest = draw(
        st.lists(
            st.binary(min_size=32, max_size=32),
            min_size=count + 1,
            max_size=count + 1,
            unique=True,
        )
    )
    ids = draw(st.lists(st.integers(0, 0xFFFF), min_size=count, max_size=count, unique=True))
    sealing = draw(st.integers(0, count - 1))
    mark = int(KeyRing(secret, (SealKey(0, secret, KeyState.SEAL),)).label[:4], 16)
    others = st.sampled_from([KeyState.OPEN, KeyState.RETIRED])
    stored = [
        StoredKey(
            SealKey(
                mark << 16 | ids[at],
                rest[at],
                KeyState.SEAL if at == sealing else draw(others),
                draw(st.sampled_from(SUITE_NAMES)),
            ),
            draw(st.datetimes(timezones=st.just(UTC))).replace(microsecond=0),
        )
        for at in range(count)
    ]
    return Keyring(secret, tuple(stored))


@given(keyrings())
def test_text_reads_back(ring: Keyring) -> None:
    assert Keyring.from_toml(ring.to_toml()) == ring


@given(keyrings(), st.data())
def test_any_damage_is_refused_or_read_without_a_word_of_a_secret(
    ring: Keyring, data: st.DataObject
) -> None:
    text = ring.to_toml()
    at = data.draw(st.integers(0, len(text) - 1))
    size = data.draw(st.integers(0, 80))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + size :]
    try:
        Keyring.from_toml(damaged)
    except ConfigError as error:
        shown = str(error)
        assert not re.search(r"[0-9a-f]{9}", shown), shown


def test_a_time_of_another_zone_and_parts_of_a_second_become_utc(path: Path) -> None:
    text = path.read_text().replace("2026-11-18T20:00:00Z", "2026-11-18T22:00:00.75+02:00")
    path.write_text(text)
    assert {stored.created for stored in Keyring.read(path).keys} == {NOW}


def changed(old: str, new: str, count: int = 1) -> Callable[[str], str]:
    return lambda text: re.sub(old, new, text, count=count)


RING = r'ring = "[0-9a-f]*"'
ID = r'id = "([0-9a-f]{4})([0-9a-f]{4})"'
SECRET = r'secret = "([0-9a-f]*)"'
CREATED = r"created = \S+"
STATE = r'state = "\w+"'
CIPHER = r'cipher = "[\w-]+"'
DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda _: "", "no ring"),
    "not TOML": (lambda text: text + "= =\n", "not TOML (at line"),
    "torn": (lambda text: text[:-30], "not TOML"),
    "nested too deep": (lambda text: text + "x = " + "[" * 5000, "not TOML"),
    "a number too long": (lambda text: "x = " + "9" * 6000 + "\n" + text, "not TOML"),
    "no ring": (changed(RING + "\n", ""), "has no ring"),
    "ring too short": (changed(RING, 'ring = "ab"'), "ring: expected 64"),
    "ring is a number": (changed(RING, "ring = 5"), "ring: expected 64"),
    "ring in upper case": (changed(RING, 'ring = "' + "AB" * 32 + '"'), "ring: expected 64"),
    "ring with spaces": (changed(RING, 'ring = "' + "ab " * 32 + '"'), "ring: expected 64"),
    "another ring": (changed(RING, 'ring = "' + "ab" * 32 + '"'), "does not belong to the ring"),
    "no keys": (lambda text: text[: text.index("[[keys]]")], "has no keys"),
    "keys is empty": (
        lambda text: text[: text.index("[[keys]]")] + "keys = []",
        "exactly one key",
    ),
    "keys is a text": (
        lambda text: text[: text.index("[[keys]]")] + 'keys = "x"',
        "[[keys]] tables",
    ),
    "keys is a table": (lambda text: text[: text.index("[[keys]]")] + "keys = {}", "[[keys]]"),
    "keys is a list": (lambda text: text[: text.index("[[keys]]")] + "keys = [1]", "[[keys]]"),
    "no id": (changed(ID + "\n", ""), "key 1 has no id"),
    "id is short": (changed(ID, 'id = "1234"'), "id of key 1"),
    "id is a number": (changed(ID, "id = 12345678"), "id of key 1"),
    "id of another ring": (changed(ID, 'id = "0000\\2"', 2), "does not belong to the ring"),
    "id is the same": (changed(ID, 'id = "\\g<1>0000"', 2), "the same id"),
    "no secret": (changed(SECRET + "\n", ""), "key 1 has no secret"),
    "secret too short": (changed(SECRET, 'secret = "ab"'), "secret of key"),
    "secret too long": (changed(SECRET, 'secret = "\\g<1>ab"'), "secret of key"),
    "secret not hexadecimal": (changed(SECRET, 'secret = "' + "g" * 64 + '"'), "secret of key"),
    "secret is the same": (changed(SECRET, 'secret = "' + "ab" * 32 + '"', 2), "the same"),
    "no created": (changed(CREATED + "\n", ""), "has no created"),
    "created is a text": (changed(CREATED, 'created = "today"'), "created of key"),
    "created without a zone": (changed(CREATED, "created = 2026-11-18T20:00:00"), "created of"),
    "created is a date": (changed(CREATED, "created = 2026-11-18"), "created of key"),
    "created out of range": (
        changed(CREATED, "created = 0001-01-01T00:00:00+14:00"),
        "out of range",
    ),
    "no state": (changed(STATE, ""), "has no state"),
    "state unknown": (changed(STATE, 'state = "sealed"'), "expected open, seal, retired"),
    "cipher unknown": (changed(CIPHER, 'cipher = "rot13"'), "expected aes-256-gcm, chacha20"),
    "cipher is a number": (changed(CIPHER, "cipher = 1"), "expected aes-256-gcm, chacha20"),
    "cipher missing": (changed(CIPHER, ""), "cipher"),
    "state is a list": (changed(STATE, "state = []"), "expected open, seal, retired"),
    "no key seals": (changed('"seal"', '"open"'), "exactly one key"),
    "two keys seal": (changed('"open"', '"seal"'), "exactly one key"),
    "unknown field": (lambda text: text + "x = 1\n", "key 2 has 1 unknown fields"),
    "unknown field of the ring": (lambda text: "x = 1\n" + text, "has 1 unknown fields"),
    "a secret in the place of a name": (changed("ring = (.*)", "\\1 = 1"), "has no ring"),
    "a secret in the place of a state": (
        lambda text: re.sub(STATE, f'state = "{re.findall(SECRET, text)[0]}"', text),
        "state of key",
    ),
    "a secret in the place of an id": (
        lambda text: re.sub(ID, f'id = "{re.findall(SECRET, text)[0]}"', text),
        "id of key 1",
    ),
    "a secret as an unknown field": (
        lambda text: f"{text}{re.findall(SECRET, text)[0]} = 1\n",
        "unknown fields",
    ),
    "a secret twice as a field": (
        lambda text: f"{text}{f'{re.findall(SECRET, text)[0]} = 1{chr(10)}' * 2}",
        "not TOML",
    ),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_with_its_place_and_without_a_secret(
    path: Path, damage: Callable[[str], str], problem: str
) -> None:
    ring, text = Keyring.read(path), path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    shown = refusal(path)
    assert problem in shown
    assert "copy the file" in shown
    assert not [secret for secret in secrets_of(ring) if secret[:16] in shown]


def test_bytes_that_are_no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xff")
    assert "not UTF-8" in refusal(path)


def test_a_file_that_is_too_large(path: Path) -> None:
    with path.open("a") as file:
        file.write("#" * MAX_FILE_BYTES)
    assert "more than" in refusal(path)


@pytest.mark.parametrize("write", [Keyring.write, Keyring.create])
def test_a_keyring_that_no_member_would_read_is_not_written(
    path: Path, write: Callable[[Keyring, Path], None]
) -> None:
    before = Keyring.read(path)
    target = path if write is Keyring.write else path.with_name("new.toml")
    identities = [
        AllowedIdentity("orders", Certificate(f"member {at}", Role.MEMBER, os.urandom(32)))
        for at in range(4000)
    ]
    write(replace(before, identities=tuple(identities[:2000])), target)
    assert len(Keyring.read(target).identities) == 2000
    other = target if write is Keyring.write else path.with_name("other.toml")
    with pytest.raises(ConfigError, match=r"more than \d+ bytes with 4000 identities; .*disallow"):
        write(replace(before, identities=tuple(identities)), other)
    assert len(Keyring.read(target).identities) == 2000
    assert not path.with_name("other.toml").exists()


def test_no_text_of_a_ring_and_no_traceback_contains_a_secret(path: Path) -> None:
    ring = Keyring.read(path)
    text = path.read_text()
    path.write_text(text + f"{secrets_of(ring)[1]} = = 1\n")
    shown = [repr(ring), str(ring), f"{ring}", repr(ring.keys), repr(ring.ring), str([ring])]
    try:
        Keyring.read(path)
    except ConfigError as error:
        shown += [str(error), repr(error), *traceback.format_exception(error)]
    path.write_bytes(text.encode() + b"\xff")
    try:
        Keyring.read(path)
    except ConfigError as error:
        shown += [*traceback.format_exception(error)]
    assert len(shown) > 8
    for secret in secrets_of(ring):
        raw = repr(bytes.fromhex(secret))[2:-1]
        assert not [each for each in shown if secret[:16] in each or raw in each]


# Permissions


def test_files_and_folders_are_for_this_user_only(tmp_path: Path, no_umask: None) -> None:
    path = tmp_path / "new" / "folder" / "keys.toml"
    ring = Keyring.new()
    ring.create(path)
    assert [mode_of(each) for each in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    ring.add().write(path)
    assert mode_of(path) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666])
def test_a_file_that_others_can_access_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    shown = refusal(path)
    assert f"mode {mode:04o}" in shown
    assert f"chmod 600 {path}" in shown


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_private_file_is_read(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert len(Keyring.read(path).keys) == 2


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(path: Path, mode: int) -> None:
    ring = Keyring.read(path)
    path.parent.chmod(mode)
    shown = refusal(path)
    assert f"chmod go-w {path.parent}" in shown
    with pytest.raises(ConfigError, match="chmod go-w"):
        ring.write(path)
    with pytest.raises(ConfigError, match="chmod go-w"):
        ring.create(path.with_name("other.toml"))
    assert list(path.parent.iterdir()) == [path]
    path.parent.chmod(0o755)
    Keyring.read(path)


def test_the_folder_behind_a_symbolic_link_counts(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    path.rename(folder / "keys.toml")
    path.symlink_to(folder / "keys.toml")
    Keyring.read(path)
    folder.chmod(0o777)
    assert f"chmod go-w {folder}" in refusal(path)
    folder.chmod(0o700)
    tmp_path.chmod(0o777)
    assert f"chmod go-w {tmp_path}" in refusal(path)


def other_user(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Make ``path`` belong to a user who is neither this user nor root."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        uid = os.geteuid() + 1
        monkeypatch.setattr("gapless.keys.secret_files.os.geteuid", lambda: uid)


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_user(monkeypatch, path)
    assert "belongs to another user" in refusal(path)


def test_a_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives away a folder and keeps the file")
    other_user(monkeypatch, path.parent)
    assert "folder belongs to another user" in refusal(path)


def test_a_file_of_root_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes files of root")
    monkeypatch.setattr("gapless.keys.secret_files.os.geteuid", lambda: 54321)
    Keyring.read(path)


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path in (fifo, tmp_path):
        assert "not a regular file" in refusal(path)
    missing = tmp_path / "missing"
    assert f"gapless keys new {missing}" in refusal(missing)
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))


# Writing


def test_a_new_file_never_replaces_a_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(KeyringExistsError, match="the file exists") as caught:
        Keyring.new().create(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_write_keeps_a_symbolic_link(path: Path) -> None:
    link = path.with_name("link.toml")
    link.symlink_to(path)
    Keyring.read(link).promote().write(link)
    assert link.is_symlink()
    assert states(Keyring.read(path)) == ["open", "seal"]


def test_a_folder_that_cannot_be_written_is_named(path: Path) -> None:
    wrong = path / "keys.toml"
    for write in (Keyring.new().create, Keyring.new().write):
        with pytest.raises(ConfigError, match="cannot be written") as caught:
            write(wrong)
        assert str(wrong) in str(caught.value)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gapless.keys.secret_files.os.fsync", fail)
    with pytest.raises(ConfigError, match="No space left"):
        Keyring.read(path).promote().write(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from gapless.keys.keyring import Keyring

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, point = sys.argv[1:]
ring = Keyring.read(path).promote()
if point == "rename":
    Path.replace = os.replace = os.rename = die
else:
    os.fsync = die
ring.write(path)
"""


@pytest.mark.parametrize("point", ["rename", "fsync"])
def test_a_writer_killed_before_the_rename_leaves_the_old_file(path: Path, point: str) -> None:
    before = path.read_bytes()
    with ChildProcess("-c", KILLED, str(path), point) as writer:
        assert writer.wait() == -signal.SIGKILL
    assert path.read_bytes() == before
    (left,) = set(path.parent.iterdir()) - {path}
    assert mode_of(left) == 0o600
    Keyring.read(path).promote().write(path)
    assert states(Keyring.read(path)) == ["open", "seal"]


def test_the_content_is_on_disk_before_the_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync, rename = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        calls.append(f"fsync {kind} {os.fstat(descriptor).st_size > 0}")
        fsync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr("gapless.keys.secret_files.os.fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_rename)
    Keyring.read(path).promote().write(path)
    assert calls == ["fsync file True", "rename", "fsync folder True"]


# The keyring of this user


def test_the_default_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_path() == home / ".config" / "gapless" / "keys.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert default_path() == home / ".config" / "gapless" / "keys.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert default_path() == home / "xdg" / "gapless" / "keys.toml"
    monkeypatch.setenv("GAPLESS_KEYS", "~/named.toml")
    assert default_path() == home / "named.toml"
    monkeypatch.setenv("GAPLESS_KEYS", "")
    assert default_path() == home / "xdg" / "gapless" / "keys.toml"


def test_without_a_home_the_variable_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="GAPLESS_KEYS=FILE"):
        default_path()


def test_the_first_call_makes_the_keyring_and_the_second_reads_the_same(
    home: Path, no_umask: None
) -> None:
    made = load_or_create(local_path())
    assert load_or_create(local_path()) == made
    path = local_path()
    assert [mode_of(each) for each in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]


def test_a_bad_keyring_of_this_user_is_never_replaced(home: Path) -> None:
    load_or_create(local_path())
    path = local_path()
    path.write_text("ring = 5\n")
    with pytest.raises(ConfigError, match="has no keys"):
        load_or_create(local_path())
    assert path.read_text() == "ring = 5\n"
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(ConfigError, match="no such keyring"):
        load_or_create(local_path())


def test_the_loser_of_a_race_reads_the_file_of_the_winner(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the file after this process has found none."""
    winner = Keyring.new()
    new = Keyring.new

    def lose() -> Keyring:
        with suppress(KeyringExistsError):
            winner.create(local_path())
        return new()

    monkeypatch.setattr(Keyring, "new", lose)
    assert load_or_create(local_path()) == winner


RACER = """
import sys
from gapless.keys.keyring import load_or_create, local_path
for line in sys.stdin:
    print(load_or_create(local_path()).sealing_key.fingerprint, flush=True)
"""


def test_processes_that_start_at_once_have_one_ring(home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(keyring.__file__).parents[1])}
    path = local_path()
    racers = [ChildProcess("-c", RACER, environment=environment) for _ in range(4)]
    try:
        found: list[str] = []
        for _ in range(25):
            for racer in racers:
                racer.write("go\n")
            prints = {racer.read_line() for racer in racers}
            assert len(prints) == 1, "two processes have different rings"
            found += prints
            path.unlink()
            path.parent.rmdir()
        assert len(set(found)) == 25
    finally:
        for racer in racers:
            racer.close()

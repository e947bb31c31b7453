"""The followed keyring file: every change is noticed, and an unusable file changes nothing."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.runtime.keyring_watch import CHECK_NS, KeyringWatch
from gapless.wire.seal import Seal


class Watched:
    """A keyring file in a private folder, and a member that follows the file."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.path = folder / "keys.toml"
        self.first = Keyring.new(cipher="blake2b")
        self.first.create(self.path)
        self.second = self.first.add().promote()
        self.seal = Seal(self.first.ring, suites_of(self.first.ring))
        self.watch = KeyringWatch("orders", self.path, self.seal)
        self._caplog = caplog
        caplog.set_level(logging.INFO, logger="gapless")
        assert not self.check(), "the member has joined with these keys"

    def check(self) -> bool:
        """Check the file; return whether the keys of the member have changed."""
        now_ns = self.watch.due_ns
        changed = self.watch.check(now_ns)
        assert self.watch.due_ns == now_ns + CHECK_NS
        return changed

    def has(self, ring: Keyring) -> bool:
        """Return whether the member has the keys of ``ring``."""
        return self.seal.ring.keys == ring.ring.keys

    def errors(self) -> list[str]:
        """Return the errors that were logged since the last call."""
        found = [one.getMessage() for one in self._caplog.records if one.levelno >= logging.ERROR]
        self._caplog.clear()
        return found


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Watched:
    tmp_path.chmod(0o700)
    return Watched(tmp_path, caplog)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list that gets the path of every read from now on."""
    reads: list[Path] = []
    read = Keyring.read

    def counted(path: Path) -> Keyring:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Keyring, "read", counted)
    return reads


def test_a_file_without_a_change_is_not_read_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(monkeypatch)
    for _ in range(5):
        assert not watched.check()
    assert reads == []
    watched.second.write(watched.path)
    assert watched.check()
    assert not watched.check()
    assert reads == [watched.path]
    assert watched.has(watched.second)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Keyring.read
    third = watched.second.add()

    def replaced_after_reading(path: Path) -> Keyring:
        found = read(path)
        third.write(path)
        monkeypatch.setattr(Keyring, "read", read)
        return found

    watched.second.write(watched.path)
    monkeypatch.setattr(Keyring, "read", replaced_after_reading)
    assert watched.check()
    assert watched.has(watched.second)
    assert watched.check()
    assert watched.has(third)


@pytest.mark.parametrize("how", ["replaced", "written in place"])
def test_a_file_with_the_same_size_and_time_is_noticed(watched: Watched, how: str) -> None:
    before = watched.path.stat()
    # Only the state of a key changes, so the size is the same.
    other = watched.first.add()
    other.write(watched.path)
    assert watched.check()
    before = watched.path.stat()
    swapped = other.promote()
    if how == "replaced":
        swapped.write(watched.path)
    else:
        watched.path.write_text(swapped.to_toml())
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = watched.path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert watched.check()
    assert watched.has(swapped)


def test_a_link_that_leads_to_another_file_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A mounted secret is a link that is replaced.
    watched = Watched(tmp_path, caplog)
    real, other = tmp_path / "1.toml", tmp_path / "2.toml"
    watched.path.rename(real)
    watched.path.symlink_to(real)
    assert not watched.check()
    watched.second.create(other)
    link = tmp_path / "link"
    link.symlink_to(other)
    link.replace(watched.path)
    assert watched.check()
    assert watched.has(watched.second)


def test_a_file_that_others_can_read_is_an_error_once_and_changes_nothing(watched: Watched) -> None:
    watched.path.chmod(0o640)
    assert not watched.check()
    assert not watched.check()
    (error,) = watched.errors()
    assert "the keys stay as they are" in error
    assert "chmod 600" in error
    # New keys in such a file do not count either.
    watched.second.write(watched.path)
    watched.path.chmod(0o604)
    assert not watched.check()
    assert watched.has(watched.first)
    (error,) = watched.errors()
    assert "0604" in error
    # A corrected mode alone is noticed, although content, size and time are the same.
    before = watched.path.stat()
    watched.path.chmod(0o600)
    assert watched.path.stat().st_mtime_ns == before.st_mtime_ns
    assert watched.check()
    assert watched.has(watched.second)
    assert watched.errors() == []


def test_a_file_is_read_again_once_its_folder_is_private(watched: Watched) -> None:
    # The file itself does not change with its folder.
    folder = watched.path.parent
    watched.second.write(watched.path)
    folder.chmod(0o777)
    assert not watched.check()
    (error,) = watched.errors()
    assert "chmod go-w" in error
    folder.chmod(0o700)
    assert watched.check()
    assert watched.has(watched.second)


def test_the_same_problem_is_told_again_after_it_was_solved(watched: Watched) -> None:
    for _ in range(2):
        watched.path.chmod(0o644)
        assert not watched.check()
        assert len(watched.errors()) == 1
        watched.path.chmod(0o600)
        assert not watched.check()
        assert watched.errors() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_changes_nothing_until_it_is_given_back(watched: Watched) -> None:
    watched.second.write(watched.path)
    os.chown(watched.path, 12345, -1)
    assert not watched.check()
    (error,) = watched.errors()
    assert "belongs to another user" in error
    assert watched.has(watched.first)
    os.chown(watched.path, os.geteuid(), -1)
    assert watched.check()
    assert watched.has(watched.second)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "no such keyring"),
        (lambda path: path.write_text(path.read_text()[:-40]), "not TOML"),
        (lambda path: path.write_text(""), "has no ring"),
        (lambda path: Keyring.new(cipher="blake2b").write(path), "join again"),
    ],
    ids=["missing", "cut short", "empty", "another ring"],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    watched: Watched, spoil: object, words: str, tmp_path: Path
) -> None:
    good = tmp_path / "good.toml"
    shutil.copy2(watched.path, good)
    assert callable(spoil)
    spoil(watched.path)
    for _ in range(3):
        assert not watched.check()
    (error,) = watched.errors()
    assert words in error
    assert watched.has(watched.first)
    # The former file returns, and the next rotation works.
    good.replace(watched.path)
    assert not watched.check()
    watched.second.write(watched.path)
    assert watched.check()
    assert watched.has(watched.second)

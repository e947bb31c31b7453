"""A shared file with one entry for each member, where a shared directory is not available.

On start: the member takes the lock ``<file>.lock``, adds its entry, and reads the others.

While running: every ``refresh`` the member does the same, and removes stale entries of the group.
The file is replaced atomically, so readers need no lock. Times are those of the file system.

On leaving: the member takes the lock and removes its entry, unless a later incarnation of the node
has replaced the entry.

Problems: ``write``, ``read``, ``garbage`` (the file is started again; other members add their
entries within ``refresh``), ``locked`` (another process holds the lock for too long),
``superseded``. A missing directory is not created.

In a sealed group an entry has a tag (``entry_seal``). Problems: ``seal``, ``unsealed``, ``sealed``
as in a shared directory. Entries of other groups stay as they are: only their members know the key.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.discovery.directory import REFRESH_NS, STALE_NS, SharedPathSource
from gapless.discovery.entry_file import (
    FORMAT_VERSION,
    DiscoveryEntry,
    InvalidEntryError,
    parse_json,
    read_file,
    replace_file,
)
from gapless.discovery.entry_seal import ForgedEntryError
from gapless.output.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gapless.identity import RosterEntry
    from gapless.locator import Locator

MAX_FILE_BYTES = 1024 * 1024
"""Maximum size of the file; a larger one is garbage."""

LOCK_S = 2.0
"""How long to wait for the lock, which is normally held for a few milliseconds."""

_PAUSE_S = 0.005


class TimedEntry(NamedTuple):
    """An entry, and the time of writing."""

    entry: DiscoveryEntry
    written_ns: int
    sealed: dict[str, Any] | None = None
    """The fields of an entry of a sealed group, which are written again without a change."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON fields."""
        return self.sealed or {**self.entry.to_json(), "written_ns": self.written_ns}


class SharedFile(SharedPathSource):
    """A shared file as a source: ``SharedFile("/shared/orders.json", group="orders")``.

    Args:
        path: The absolute path of the file, in an existing directory.
        group: The name of the group; several groups may share a file.
        refresh_ns: Time between two writes of the own entry.
        stale_ns: Age at which an entry is ignored, at least twice ``refresh_ns``.

    Raises:
        ConfigError: The path is not absolute, or ``stale_ns`` is too short.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        group: str,
        refresh_ns: int = REFRESH_NS,
        stale_ns: int = STALE_NS,
    ) -> None:
        super().__init__("file", path, group=group, refresh_ns=refresh_ns, stale_ns=stale_ns)

    def _refresh(self, member: RosterEntry | None) -> tuple[Locator, ...] | None:
        if member is None and self._written is None:
            return self._read_unlocked()
        try:
            with self._lock():
                return self._exchange(member)
        except TimeoutError as error:
            self.problems.add("locked", str(error))
        except OSError as error:
            self.problems.add(
                "write",
                f"cannot write {self._path}: {error}; other members cannot find this member here",
            )
        return self._read_unlocked()

    def _read_unlocked(self) -> tuple[Locator, ...] | None:
        try:
            return self._peer_locators(self._read_entries(), None, time.time_ns())
        except OSError as error:
            self.problems.add(
                "read",
                f"cannot read {self._path}: {error}; mount or create the directory",
            )
            return None

    def _exchange(self, member: RosterEntry | None) -> tuple[Locator, ...]:
        """Read the file, replace the own entry, and write; the lock is held."""
        mine = member or self._written
        rows = self._read_entries()
        later = (
            [
                row
                for row in rows
                if self._is_same_node(row, mine) and row.entry.address > mine.address
            ]
            if mine
            else []
        )
        if later:
            self.problems.add(
                "superseded",
                f"{self._path} has an entry of a later incarnation of this node, which is kept",
            )
            self._written = None
            return self._peer_locators(rows, mine, time.time_ns())
        others = [
            row
            for row in rows
            if not self._is_same_node(row, mine) and not self._is_same_node(row, self._written)
        ]
        read: list[tuple[Locator, ...]] = []

        def content(now_ns: int) -> bytes:
            fresh = [
                row
                for row in others
                if not self._is_of_group(row.entry) or not self._is_stale(row.written_ns, now_ns)
            ]
            read.append(self._peer_locators(fresh, mine, now_ns))
            members = [row.to_json() for row in fresh]
            if member is not None:
                members.append(self._encode(member, written_ns=now_ns))
            return _to_bytes(members)

        replace_file(self._path, content)
        self._written = member
        return read[0]

    def _is_same_node(self, row: TimedEntry, member: RosterEntry | None) -> bool:
        return (
            member is not None
            and self._is_of_group(row.entry)
            and row.entry.address.node == member.address.node
        )

    def _peer_locators(
        self, rows: list[TimedEntry], mine: RosterEntry | None, now_ns: int
    ) -> tuple[Locator, ...]:
        fresh = [row for row in rows if not self._is_stale(row.written_ns, now_ns)]
        found = dict.fromkeys(
            row.entry.locator
            for row in fresh
            if self._is_of_group(row.entry) and not self._is_same_node(row, mine)
        )
        other_rings = sum(bool(row.entry.ring) and row.entry.ring != self._ring for row in fresh)
        if other_rings and not found:
            self._report_other_rings(other_rings)
        if self._seal is not None and any(
            not row.entry.ring and row.entry.group == self._group_name for row in fresh
        ):
            self._report_unsealed(f"an entry of {self._path}")
        return tuple(found)

    def _read_entries(self) -> list[TimedEntry]:
        """Return the entries of the file; none for a missing file or garbage."""
        try:
            fields = parse_json(read_file(self._path, MAX_FILE_BYTES)[0])
            if (
                not isinstance(fields, dict)
                or fields.get("gapless") != FORMAT_VERSION
                or not isinstance(fields.get("members"), list)
            ):
                raise InvalidEntryError(f"not a list of members of format {FORMAT_VERSION}")
        except FileNotFoundError:
            if not self._path.parent.is_dir():
                raise
            return []
        except InvalidEntryError as error:
            self.problems.add("garbage", f"{self._path}: {error}; the next write replaces the file")
            return []
        return [
            row for member in fields["members"] if (row := self._parse_entry(member)) is not None
        ]

    def _parse_entry(self, fields: object) -> TimedEntry | None:
        try:
            entry = DiscoveryEntry.from_json(fields)
            assert isinstance(fields, dict), "an entry has fields"
            written_ns = fields.get("written_ns")
            if not isinstance(written_ns, int):
                raise InvalidEntryError("an entry needs the time of writing")
            if self._seal is not None and self._is_of_group(entry):
                self._seal.check(fields)
        except ForgedEntryError as error:
            self.problems.add(
                "seal",
                f"{self._path} has an entry that is ignored: {error}; check who can write to the"
                " file",
            )
            return None
        except InvalidEntryError as error:
            self.problems.add(
                "garbage", f"{self._path} has an invalid entry, which is ignored: {error}"
            )
            return None
        return TimedEntry(entry, written_ns, fields if entry.ring else None)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        path = self._path.with_name(self._path.name + ".lock")
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            deadline_s = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        raise TimeoutError(
                            f"another process has held the lock {path} for more than {LOCK_S:g} s"
                        ) from None
                time.sleep(_PAUSE_S)
            yield
        finally:
            os.close(descriptor)


def _to_bytes(members: list[dict[str, Any]]) -> bytes:
    return json.dumps({"gapless": FORMAT_VERSION, "members": members}, indent=1).encode() + b"\n"

"""A shared directory: each member writes a small entry file, and reads the files of the others.

On start: the member writes its entry, *then* reads the others. Of two members that start at the
same time, at least one finds the other.

While running: every ``refresh`` the member replaces its entry atomically, and reads the others. An
entry older than ``stale`` is ignored, and removed by the first member that finds the entry, like
the temporary files of crashed writers. Times are those of the file system of the directory; clocks
of members are not compared.

On leaving: the member removes its entry, unless a later incarnation of the node has replaced the
entry.

A missing directory is not created: creating it would hide an unmounted share. Problems are counted:
``write`` (a full disk, no permission), ``read`` (no directory, no permission), ``garbage`` (a file
without an entry), ``remove`` (a stale file cannot be removed), ``superseded`` (the entry of a later
incarnation of this node exists).

In a sealed group an entry has a tag (``entry_seal``), and another file name. Problems: ``seal`` (a
forged, changed or copied entry), ``unsealed`` (a member of a group of the same name has no keys),
``sealed`` (this member finds nobody, and others have keys of another ring).
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.discovery.entry_file import (
    MAX_ENTRY_BYTES,
    TEMPORARY,
    DiscoveryEntry,
    InvalidEntryError,
    parse_json,
    read_file,
    replace_file,
)
from gapless.discovery.entry_seal import EntrySeal, ForgedEntryError
from gapless.discovery.source import BackgroundSource
from gapless.errors import ConfigError
from gapless.identity import group_id
from gapless.locator import Locator
from gapless.units import format_duration, parse_duration

if TYPE_CHECKING:
    from gapless.identity import RosterEntry

REFRESH_NS = parse_duration("2s")
"""Time between two writes of the own entry; the others are read at the same time."""

STALE_NS = parse_duration("20s")
"""Age at which an entry is ignored."""

_ENDING = ".member.json"
_SEALED_ENDING = ".sealed.json"
_SEALED_NAME = re.compile(rf"([0-9a-f]{{8}})-[0-9a-f]{{16}}-[0-9a-f]{{16}}{_SEALED_ENDING}")
_ADVICE = "give every member a copy of one keyring file, with keys= or GAPLESS_KEYS"


class SharedPathSource(BackgroundSource):
    """The common part of a shared directory and a shared file: path, group, refresh and stale."""

    def __init__(
        self, scheme: str, path: str | Path, *, group: str, refresh_ns: int, stale_ns: int
    ) -> None:
        self._path = Path(path)
        if not self._path.is_absolute():
            raise ConfigError(
                f"{str(path)!r} is not an absolute path; write a path such as /{path}, the same"
                " for all members"
            )
        if stale_ns < 2 * refresh_ns:
            raise ConfigError(
                f"stale={format_duration(stale_ns)} is too short for"
                f" refresh={format_duration(refresh_ns)}; stale must be at least twice refresh"
            )
        super().__init__(f"{scheme}://{self._path}", refresh_ns)
        self._group_name = group
        self._group = group
        """The group of this member's entries: the name, or in a sealed group the label."""
        self._stale_ns = stale_ns
        self._written: RosterEntry | None = None
        self._seal: EntrySeal | None = None

    def seal_entries(self, seal: EntrySeal) -> None:
        """Write and accept only entries of members with the same ring; before the first use."""
        self._seal, self._group = seal, seal.label(self._group_name)

    @property
    def _ring(self) -> str:
        return "" if self._seal is None else self._seal.ring

    def _encode(self, member: RosterEntry, **more: int) -> dict[str, Any]:
        """Return the fields of the entry of ``member``, with the tag in a sealed group."""
        locator = Locator.decode(member.locator)
        entry = DiscoveryEntry(self._group, member.address, locator, self._ring)
        fields = {**entry.to_json(), **more}
        return fields if self._seal is None else self._seal.seal(fields)

    def _is_of_group(self, entry: DiscoveryEntry) -> bool:
        return (entry.group, entry.ring) == (self._group, self._ring)

    def _report_other_rings(self, others: int) -> None:
        """Say why this member may find nobody: ``others`` entries are those of other rings."""
        mine = "has no keys" if self._seal is None else f"has the ring {self._ring}"
        self.problems.add(
            "sealed",
            f"nobody of the group is here, and {others} entries are those of sealed groups with"
            f" other keys; this member {mine}. To meet members of these groups, {_ADVICE}",
        )

    def _report_unsealed(self, where: str) -> None:
        """Say that a member of a group with the same name has no keys."""
        self.problems.add(
            "unsealed",
            f"{where} is the entry of a member without keys, which is ignored; {_ADVICE}",
        )

    def _is_stale(self, written_ns: int, now_ns: int) -> bool:
        # An entry from the future is stale too: it would never be removed otherwise.
        return abs(now_ns - written_ns) >= self._stale_ns


class Directory(SharedPathSource):
    """A shared directory as a source: ``Directory("/shared/orders", group="orders")``.

    Args:
        path: The absolute path of an existing directory, writable for all members.
        group: The name of the group; several groups may share a directory.
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
        super().__init__("dir", path, group=group, refresh_ns=refresh_ns, stale_ns=stale_ns)
        self._unsealed_prefix = self._file_prefix = f"{group_id(group):016x}-"
        self._ending = _ENDING
        self._may_remove = False

    def seal_entries(self, seal: EntrySeal) -> None:
        """Write and accept only entries of members with the same ring; before the first use."""
        super().seal_entries(seal)
        self._file_prefix = f"{seal.ring}-{self._group[:16]}-"
        self._ending = _SEALED_ENDING

    def _refresh(self, member: RosterEntry | None) -> tuple[Locator, ...] | None:
        if self._written is not None and (
            member is None or member.address.node != self._written.address.node
        ):
            self._remove_mine(self._written)
        now_ns = None if member is None else self._write(member)
        # A member that has just written knows the time of the file system, and may remove stale
        # entries. A member that only reads has its own clock: good enough to ignore an entry.
        self._may_remove = now_ns is not None
        return self._read(
            now_ns or time.time_ns(), None if member is None else self._file(member).name
        )

    def _file(self, member: RosterEntry) -> Path:
        return self._path / f"{self._file_prefix}{member.address.node:016x}{self._ending}"

    def _write(self, member: RosterEntry) -> int | None:
        path = self._file(member)
        fields = self._encode(member)
        present = self._entry_at(path)
        if present is not None and present.address.incarnation > member.address.incarnation:
            self.problems.add(
                "superseded", f"{path} belongs to a later incarnation of this node and is kept"
            )
            return None
        try:
            now_ns = replace_file(path, lambda _: json.dumps(fields).encode() + b"\n")
        except OSError as error:
            self.problems.add(
                "write", f"cannot write {path}: {error}; other members cannot find this member here"
            )
            return None
        self._written = member
        return now_ns

    def _remove_mine(self, member: RosterEntry) -> None:
        path = self._file(member)
        present = self._entry_at(path)
        if present is None or present.address == member.address:
            self._remove(path)
        self._written = None

    def _entry_at(self, path: Path) -> DiscoveryEntry | None:
        try:
            return self._decode(read_file(path, MAX_ENTRY_BYTES)[0])
        except (OSError, InvalidEntryError):
            return None

    def _decode(self, data: bytes) -> DiscoveryEntry:
        """Return the entry of a file; in a sealed group only one with a valid tag."""
        fields = parse_json(data)
        entry = DiscoveryEntry.from_json(fields)
        if self._seal is not None:
            self._seal.check(fields)
            if not self._is_of_group(entry):
                raise ForgedEntryError("the entry was copied from another group")
        return entry

    def _read(self, now_ns: int, mine: str | None) -> tuple[Locator, ...] | None:
        try:
            paths = sorted(self._path.iterdir())
        except OSError as error:
            self.problems.add(
                "read",
                f"cannot read {self._path}: {error}; mount or create the directory, writable for"
                " all members",
            )
            return None
        found: dict[Locator, None] = {}
        other_rings = 0
        for path in paths:
            if path.name.startswith("." + self._file_prefix) and path.name.endswith(TEMPORARY):
                self._remove_if_stale(path, now_ns)
            elif (
                path.name.startswith(self._file_prefix)
                and path.name.endswith(self._ending)
                and path.name != mine
            ):
                locator = self._read_one(path, now_ns)
                if locator is not None:
                    found[locator] = None
            elif (name := _SEALED_NAME.fullmatch(path.name)) is not None:
                other_rings += name[1] != self._ring and self._is_fresh(path, now_ns)
            elif (
                self._seal is not None
                and path.name.startswith(self._unsealed_prefix)
                and path.name.endswith(_ENDING)
                and self._is_fresh(path, now_ns)
            ):
                self._report_unsealed(str(path))
        if other_rings and not found:
            self._report_other_rings(other_rings)
        return tuple(found)

    def _is_fresh(self, path: Path, now_ns: int) -> bool:
        try:
            return not self._is_stale(path.lstat().st_mtime_ns, now_ns)
        except OSError:
            return False  # its member left after the directory was listed

    def _read_one(self, path: Path, now_ns: int) -> Locator | None:
        try:
            data, written_ns = read_file(path, MAX_ENTRY_BYTES)
            if self._is_stale(written_ns, now_ns):
                self._remove_if_stale(path, now_ns)
                return None
            return self._decode(data).locator
        except FileNotFoundError:
            return None  # its member left after the directory was listed
        except OSError as error:
            self.problems.add("read", f"cannot read {path}: {error}")
        except ForgedEntryError as error:
            self.problems.add(
                "seal", f"{path} is ignored: {error}; check who can write to the directory"
            )
            self._remove_if_stale(path, now_ns)
        except InvalidEntryError as error:
            self.problems.add(
                "garbage",
                f"{path} is not a discovery entry: {error}; remove the file if no program needs it",
            )
            self._remove_if_stale(path, now_ns)
        return None

    def _remove_if_stale(self, path: Path, now_ns: int) -> None:
        """Remove a file if still stale."""
        try:
            stale = self._is_stale(path.lstat().st_mtime_ns, now_ns)
        except OSError:
            return  # another member removed it, or its writer renamed it
        if stale and self._may_remove:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self.problems.add(
                "remove", f"cannot remove the stale entry {path}: {error}; remove the file by hand"
            )

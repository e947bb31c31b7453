"""A shared directory: each member keeps a small file of its own there, and reads those of the others.

On starting:   the member writes its entry, *then* reads the others'. Of two that start at once, at
               least one sees the other. While running: every ``refresh`` the entry is written anew,
               in one step, and the others are read. An entry that was not written for ``stale`` is
               ignored, and removed by the first member that finds it, as is what a crashed writer
               left. Times are those of the file system that holds the directory; clocks of members
               are not compared. On leaving:    the member removes its entry, unless a later life of
               its node has taken it over.

The directory is not made: where a share is not mounted, one of the same name would hide that.
Whatever goes wrong is a problem that is counted: ``write`` (a full disk, no permission), ``read``
(no directory, no permission), ``garbage`` (a file that is no entry), ``remove`` (a stale file that
stays), ``superseded`` (a later life of this node is there).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.discovery.entry_file import (
    MAX_ENTRY_BYTES,
    TEMPORARY,
    DiscoveryEntry,
    InvalidEntryError,
    parse_json,
    read_file,
    replace_file,
)
from gapless.discovery.source import BackgroundSource
from gapless.errors import ConfigError
from gapless.identity import group_id
from gapless.locator import Locator
from gapless.units import format_duration, parse_duration

if TYPE_CHECKING:
    from gapless.identity import RosterEntry

REFRESH_NS = parse_duration("2s")
"""Time after which a member writes its entry again and reads the others'."""

STALE_NS = parse_duration("20s")
"""Age at which an entry does not count any more."""

_ENDING = ".member.json"


class SharedPathSource(BackgroundSource):
    """What a shared directory and a shared file have in common: a path, a group, how often, how old."""

    def __init__(
        self, scheme: str, path: str | Path, *, group: str, refresh_ns: int, stale_ns: int
    ) -> None:
        self._path = Path(path)
        if not self._path.is_absolute():
            raise ConfigError(
                f"{str(path)!r} is not absolute, and members may run in different folders; write /{path}"
            )
        if stale_ns < 2 * refresh_ns:
            raise ConfigError(
                f"entries that are written every {format_duration(refresh_ns)} cannot be stale after"
                f" {format_duration(stale_ns)}; let stale be at least twice as long as refresh"
            )
        super().__init__(f"{scheme}://{self._path}", refresh_ns)
        self._group = group
        self._stale_ns = stale_ns
        self._written: RosterEntry | None = None

    def _is_stale(self, written_ns: int, now_ns: int) -> bool:
        # A time far ahead is no time either: such an entry would never be removed.
        return abs(now_ns - written_ns) >= self._stale_ns


class Directory(SharedPathSource):
    """``Directory("/shared/orders", group="orders")``."""

    def __init__(
        self,
        path: str | Path,
        *,
        group: str,
        refresh_ns: int = REFRESH_NS,
        stale_ns: int = STALE_NS,
    ) -> None:
        super().__init__("dir", path, group=group, refresh_ns=refresh_ns, stale_ns=stale_ns)
        self._file_prefix = f"{group_id(group):016x}-"
        self._may_remove = False

    def _refresh(self, place: RosterEntry | None) -> tuple[Locator, ...] | None:
        if self._written is not None and (
            place is None or place.address.node != self._written.address.node
        ):
            self._remove_mine(self._written)
        now_ns = None if place is None else self._write(place)
        # Who has just written knows the time of the file system, and may judge for all. Who only
        # looks has nothing but its own clock: good enough to ignore an entry, not to remove it.
        self._may_remove = now_ns is not None
        return self._read(
            now_ns or time.time_ns(), None if place is None else self._file(place).name
        )

    def _file(self, place: RosterEntry) -> Path:
        return self._path / f"{self._file_prefix}{place.address.node:016x}{_ENDING}"

    def _write(self, place: RosterEntry) -> int | None:
        path = self._file(place)
        entry = DiscoveryEntry(self._group, place.address, Locator.decode(place.locator))
        there = self._entry_at(path)
        if there is not None and there.address.incarnation > place.address.incarnation:
            self.problems.add(
                "superseded", f"{path} is of life {there.address}, after {place.address}; it stays"
            )
            return None
        try:
            now_ns = replace_file(path, lambda _: json.dumps(entry.to_json()).encode() + b"\n")
        except OSError as error:
            self.problems.add(
                "write", f"cannot write {path}: {error}; others do not find this member here"
            )
            return None
        self._written = place
        return now_ns

    def _remove_mine(self, place: RosterEntry) -> None:
        path = self._file(place)
        there = self._entry_at(path)
        if there is None or there.address == place.address:
            self._remove(path)
        self._written = None

    def _entry_at(self, path: Path) -> DiscoveryEntry | None:
        try:
            return DiscoveryEntry.from_json(parse_json(read_file(path, MAX_ENTRY_BYTES)[0]))
        except (OSError, InvalidEntryError):
            return None

    def _read(self, now_ns: int, mine: str | None) -> tuple[Locator, ...] | None:
        try:
            paths = sorted(self._path.iterdir())
        except OSError as error:
            self.problems.add(
                "read",
                f"cannot read {self._path}: {error}; mount or make it, and let members write there",
            )
            return None
        found: dict[Locator, None] = {}
        for path in paths:
            if path.name.startswith("." + self._file_prefix) and path.name.endswith(TEMPORARY):
                self._remove_if_stale(path, now_ns)
            elif (
                path.name.startswith(self._file_prefix)
                and path.name.endswith(_ENDING)
                and path.name != mine
            ):
                locator = self._read_one(path, now_ns)
                if locator is not None:
                    found[locator] = None
        return tuple(found)

    def _read_one(self, path: Path, now_ns: int) -> Locator | None:
        try:
            data, written_ns = read_file(path, MAX_ENTRY_BYTES)
            if self._is_stale(written_ns, now_ns):
                self._remove_if_stale(path, now_ns)
                return None
            return DiscoveryEntry.from_json(parse_json(data)).locator
        except FileNotFoundError:
            return None  # its member has left since the directory was read
        except OSError as error:
            self.problems.add("read", f"cannot read {path}: {error}")
        except InvalidEntryError as error:
            self.problems.add(
                "garbage", f"{path} holds no entry: {error}; remove it if nobody needs it"
            )
            self._remove_if_stale(path, now_ns)
        return None

    def _remove_if_stale(self, path: Path, now_ns: int) -> None:
        """Remove a file, if it is still stale when looked at once more."""
        try:
            stale = self._is_stale(path.lstat().st_mtime_ns, now_ns)
        except OSError:
            return  # somebody else has removed it, or finished writing it
        if stale and self._may_remove:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self.problems.add(
                "remove", f"cannot remove the stale {path}: {error}; remove it by hand"
            )

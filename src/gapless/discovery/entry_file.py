"""Entries that members share through files, and functions to read and replace the files safely.

An entry holds the locator of one incarnation of a node of a group, as JSON:

    {"gapless": 1, "group": "orders", "node": "5f", "incarnation": "3", "locator": "192.0.2.1:7800"}

``entry_seal`` has the form of an entry in a sealed group.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import ConfigError
from gapless.identity import U64_MAX, Address
from gapless.locator import Locator
from gapless.output.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT_VERSION = 1
"""The version of the format; a reader of another version treats the entry as garbage."""

MAX_ENTRY_BYTES = 4096
"""Maximum size of a file with one entry; a larger file is garbage."""

TEMPORARY = ".tmp"
"""The suffix of a file during writing, which also marks the files of crashed writers."""


class InvalidEntryError(ValueError):
    """A file or an entry has the wrong content."""


class DiscoveryEntry(NamedTuple):
    """One incarnation of a node of a group, and the locator."""

    group: str
    """The name of the group; in a sealed group the label in place of the name."""
    address: Address
    locator: Locator
    ring: str = ""
    """The public label of the ring of a sealed group; empty in a group without keys."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON fields; ``EntrySeal`` adds the tag of a sealed entry."""
        group = {"sealed_group": self.group, "ring": self.ring} if self.ring else None
        return {
            "gapless": FORMAT_VERSION,
            **(group or {"group": self.group}),
            "node": f"{self.address.node:x}",
            "incarnation": f"{self.address.incarnation:x}",
            "locator": str(self.locator),
        }

    @classmethod
    def from_json(cls, fields: object) -> DiscoveryEntry:
        """Return the entry of JSON fields.

        Raises:
            InvalidEntryError: the fields are not an entry.
        """
        if not isinstance(fields, dict) or fields.get("gapless") != FORMAT_VERSION:
            raise InvalidEntryError(f"not an entry of format {FORMAT_VERSION}")
        sealed = "sealed_group" in fields
        group, ring, node, incarnation, locator = (
            fields.get(key)
            for key in (
                "sealed_group" if sealed else "group",
                "ring",
                "node",
                "incarnation",
                "locator",
            )
        )
        if not isinstance(group, str) or not isinstance(locator, str):
            raise InvalidEntryError("an entry needs a group and a locator as text")
        if not sealed:
            ring = ""
        elif not all(isinstance(value, (str, int)) for value in fields.values()):
            # Sealed fields are hashed and written as they are; deep nesting would raise there.
            raise InvalidEntryError("an entry of a sealed group has text and numbers only")
        elif not isinstance(ring, str) or not ring:
            raise InvalidEntryError("an entry of a sealed group needs a ring as text")
        address = Address(_number(node), _number(incarnation))
        try:
            return cls(group, address, Locator.parse(locator), ring)
        except ConfigError as error:
            raise InvalidEntryError(str(error)) from error


def _number(text: object) -> int:
    if (
        not isinstance(text, str)
        or not 1 <= len(text) <= 16
        or not set(text) <= set("0123456789abcdef")
    ):
        raise InvalidEntryError(
            f"expected a node and an incarnation in hexadecimal, up to {U64_MAX:x}, got"
            f" {text!r:.40}"
        )
    return int(text, 16)


def parse_json(data: bytes) -> Any:
    """Return the JSON value in ``data``.

    Raises:
        InvalidEntryError: ``data`` is not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"not JSON: {error}") from error


def read_file(path: Path, limit_bytes: int) -> tuple[bytes, int]:
    """Return the content of a regular file, and the modification time in the file system's clock.

    Reading never blocks on a pipe.

    Raises:
        InvalidEntryError: The file is not regular, or larger than ``limit_bytes``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by its descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidEntryError("not a regular file")
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise InvalidEntryError(f"the file has more than {limit_bytes} bytes")
    return data, status.st_mtime_ns


def replace_file(path: Path, content: Callable[[int], bytes]) -> int:
    """Replace a file atomically: readers see the old content or the new content, never a part.

    ``content`` gets the present time of the file system, which is also returned. Members on several
    machines share this clock, and need no other common clock.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - by its descriptor
            now_ns = os.fstat(descriptor).st_mtime_ns
            file.write(content(now_ns))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return now_ns

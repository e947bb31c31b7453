"""What members write where others read it: entries as text, and the few ways to touch a file that may go wrong.

An entry says: this life of this node, of this group, is reached here. It is JSON, for people read it too::

    {"gapless": 1, "group": "orders", "node": "5f", "incarnation": "3", "locator": "192.0.2.1:7800"}
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMAT_VERSION = 1
"""The version of the form; to a reader of another one it is garbage."""

MAX_ENTRY_BYTES = 4096
"""A file with one entry is never larger; one that is holds something else."""

TEMPORARY = ".tmp"
"""How the name of a file ends while it is written; what a crashed writer left behind is known by it."""


class InvalidEntryError(ValueError):
    """A file or an entry does not hold what it should."""


class DiscoveryEntry(NamedTuple):
    """One life of one node of one group, and where it is reached."""

    group: str
    address: Address
    locator: Locator

    def to_json(self) -> dict[str, Any]:
        """Return the fields as they are written."""
        return {
            "gapless": FORMAT_VERSION,
            "group": self.group,
            "node": f"{self.address.node:x}",
            "incarnation": f"{self.address.incarnation:x}",
            "locator": str(self.locator),
        }

    @classmethod
    def from_json(cls, fields: object) -> DiscoveryEntry:
        """Return the entry that ``fields`` hold; anything else is a GarbageError."""
        if not isinstance(fields, dict) or fields.get("gapless") != FORMAT_VERSION:
            raise InvalidEntryError(f"this is no entry of form {FORMAT_VERSION}")
        group, node, incarnation, locator = (
            fields.get(key) for key in ("group", "node", "incarnation", "locator")
        )
        if not isinstance(group, str) or not isinstance(locator, str):
            raise InvalidEntryError("an entry needs a group and a locator, each a text")
        try:
            return cls(group, Address(_number(node), _number(incarnation)), Locator.parse(locator))
        except ConfigError as error:
            raise InvalidEntryError(str(error)) from error


def _number(text: object) -> int:
    if (
        not isinstance(text, str)
        or not 1 <= len(text) <= 16
        or not set(text) <= set("0123456789abcdef")
    ):
        raise InvalidEntryError(
            f"a node and an incarnation are hexadecimal, up to {U64_MAX:x}, this is {text!r:.40}"
        )
    return int(text, 16)


def parse_json(data: bytes) -> Any:
    """Return what ``data`` holds as JSON; anything else is a GarbageError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"this is not JSON: {error}") from error


def read_file(path: Path, limit_bytes: int) -> tuple[bytes, int]:
    """Return the content of a plain file and the time it was last written, in the clock of its file system.

    What is no plain file, or larger than ``limit_bytes``, is a GarbageError; a pipe by that name
    blocks nobody.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by its descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidEntryError("this is no plain file")
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise InvalidEntryError(f"the file has more than {limit_bytes} bytes")
    return data, status.st_mtime_ns


def replace_file(path: Path, content: Callable[[int], bytes]) -> int:
    """Write a file in one step: readers see the old content or the new one, never a part.

    ``content`` is given the present time in the clock of the file system, which is also what is
    returned. Members on several machines share that clock, and need not agree on any other.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - by its descriptor
            now_ns = os.fstat(descriptor).st_mtime_ns
            file.write(content(now_ns))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return now_ns

"""Registered readers. Each reader writes a small file; the writer only reads the files.

A reader without a position in a stream needs the whole stream. Without any reader, no message is
trimmed.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gapless.output.private_files import make_inner_folder
from gapless.spool.errors import SpoolMismatch, from_os_error
from gapless.spool.format import is_stream_key
from gapless.spool.segment_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

CONSUMER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""The pattern of the name of a reader."""


class Consumer(NamedTuple):
    """A registered reader: a position in each stream (by key), and the time of registration."""

    name: str
    digest: dict[str, int]
    when_ns: int


def consumer_path(root: Path, name: str) -> Path:
    """Return the file of a reader; the name must be valid as a file name."""
    if not CONSUMER_NAME.fullmatch(name):
        raise SpoolMismatch(
            f"reader = {name!r}: expected 1 to 100 letters, digits, '_', '-' or '.', not "
            f"beginning with '-' or '.'"
        )
    return root / "readers" / f"{name}.json"


def validate_digest(digest: Mapping[str, object]) -> dict[str, int]:
    """Return ``digest`` if all keys are stream keys and all values seqnos; raise otherwise."""
    found: dict[str, int] = {}
    for key, seqno in sorted(digest.items()):
        if is_stream_key(key) and isinstance(seqno, int) and seqno >= 0:
            found[key] = seqno
        else:
            raise SpoolMismatch(
                f"{key!r}: {seqno!r} is not an entry of a digest; expected the key of a stream "
                f'such as "a1.5f" '
                "and the number of a message, 0 or more"
            )
    return found


def register(root: Path, name: str, digest: Mapping[str, int]) -> Consumer:
    """Register that the reader ``name`` no longer needs messages at or below the digest."""
    path = consumer_path(root, name)
    reader = Consumer(name, validate_digest(digest), time.time_ns())
    try:
        make_inner_folder(path.parent)
        write_atomically(path, json.dumps(reader._asdict()).encode() + b"\n")
    except OSError as error:
        raise from_os_error(error, path, "registering the reader") from error
    return reader


def unregister(root: Path, name: str) -> bool:
    """Remove a reader from the registry; return False if the reader was not registered."""
    path = consumer_path(root, name)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise from_os_error(error, path, "forgetting the reader") from error
    return True


def read_consumers(root: Path) -> list[Consumer]:
    """Return the registered readers by name.

    A reader with an unreadable file needs all messages: the positions count as 0, so that no
    message is trimmed.
    """
    found = []
    try:
        paths = sorted((root / "readers").glob("*.json"))
    except OSError as error:
        raise from_os_error(error, root / "readers", "listing the readers") from error
    for path in paths:
        if not CONSUMER_NAME.fullmatch(path.stem):
            continue
        try:
            content = json.loads(path.read_bytes())
            found.append(
                Consumer(path.stem, validate_digest(content["digest"]), int(content["when_ns"]))
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SpoolMismatch):
            found.append(Consumer(path.stem, {}, 0))
    return found

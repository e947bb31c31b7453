"""Errors of a spool; each names the file and the remedy.

After a ``SpoolFull``, ``SpoolReadOnly``, ``SpoolGone`` or ``SpoolFailed`` of a commit no message is
lost: records that are not durable stay in memory, and the commit can be retried.
"""

from __future__ import annotations

import errno
from pathlib import Path

from gapless.errors import GaplessError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_PATH_CONFLICT = frozenset({errno.EEXIST, errno.EISDIR})
_GONE = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR})


class SpoolError(GaplessError):
    """Base of all errors of a spool; ``path`` is the file or folder concerned."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class SpoolFull(SpoolError):  # noqa: N818 - the word says what is wrong
    """A limit of the spool is reached, or the disk is full."""


class SpoolReadOnly(SpoolError):  # noqa: N818
    """The spool cannot be written to: a read-only disk, or missing permission."""


class SpoolGone(SpoolError):  # noqa: N818
    """The folder or the segment was deleted, moved or replaced while in use."""


class SpoolFailed(SpoolError):  # noqa: N818
    """The disk has failed to write or to read."""


class SpoolLocked(SpoolError):  # noqa: N818
    """Another process writes to the spool; the message names the process."""


class SpoolCorrupt(SpoolError):  # noqa: N818
    """The checksum, the offset or the form of a record is wrong; ``offset`` says where."""

    def __init__(self, message: str, path: Path | None = None, offset: int = 0) -> None:
        super().__init__(message, path)
        self.offset = offset


class SpoolTrimmed(SpoolError):  # noqa: N818
    """The messages were deleted: all readers had passed them, or a limit dropped them."""


class SpoolVersion(SpoolError):  # noqa: N818
    """The spool was written by a later version of Gapless."""


class SpoolKeyError(SpoolError):
    """The spool is encrypted, and a key is missing or wrong; ``key_id`` names the key."""

    def __init__(self, message: str, path: Path | None = None, key_id: str = "") -> None:
        super().__init__(message, path)
        self.key_id = key_id


class SpoolMismatch(SpoolError):  # noqa: N818
    """The folder is no spool or belongs to another group or collector, or an argument is wrong."""


class SpoolGap(SpoolError):  # noqa: N818
    """Earlier messages are missing; ``append_lost`` records messages that will never arrive."""


def damaged_record_error(path: Path, offset: int, reason: str = "") -> SpoolCorrupt:
    """Return the error for a record whose bytes differ from the written bytes.

    Args:
        path: The segment.
        offset: The offset of the record.
        reason: The broken rule, if known.
    """
    root = path.parent.parent
    detail = f": {reason}" if reason else ""
    return SpoolCorrupt(
        f"{path}: the record at {offset} is damaged{detail}. `gapless spool check {root}` lists "
        f"all damage; to continue without these messages, stop the collector and run "
        f"`gapless spool repair {root}`, or read from a replica",
        path,
        offset,
    )


def plain_record_error(path: Path, encrypted_from: int) -> SpoolCorrupt:
    """Return the error for a record in plain in or behind an encrypted segment."""
    return SpoolCorrupt(
        f"{path}: has messages that are not encrypted, although segment {encrypted_from} is: no"
        " collector has written them; find out who can write to the folder, and restore the"
        " segment or read from a replica",
        path,
    )


def segment_trimmed_error(path: Path) -> SpoolTrimmed:
    """Return the error for a trimmed segment."""
    return SpoolTrimmed(
        f"{path}: the segment was deleted, because all registered readers had passed it or a "
        "limit dropped it; register a reader to keep unread messages, or raise the limit",
        path,
    )


def from_os_error(error: OSError, path: Path, doing: str) -> SpoolError:
    """Return the spool error for a system error about ``path``."""
    text = error.strerror or str(error)
    if error.errno in _FULL:
        return SpoolFull(
            f"{path}: {doing} failed: {text}; free space on the disk or raise the quota, and the "
            f"spool continues",
            path,
        )
    if error.errno in _READ_ONLY:
        return SpoolReadOnly(
            f"{path}: {doing} failed: {text}; make the path writable for this user (mount -o "
            "remount,rw, chown, chmod), and the spool continues",
            path,
        )
    if error.errno in _GONE:
        return SpoolGone(
            f"{path}: {doing} failed: {text}; restore the folder at the same path (mount it, move "
            f"it back)",
            path,
        )
    if error.errno in _PATH_CONFLICT:
        return SpoolMismatch(
            f"{path}: {doing} failed: {text}; the path is taken: use another path",
            path,
        )
    return SpoolFailed(
        f"{path}: {doing} failed: {text}; check the disk (dmesg, smartctl); uncommitted messages "
        f"stay in memory",
        path,
    )

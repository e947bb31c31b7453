"""The writer's files: the active segment, the sealed segments, and the ``committed`` file.

A failed write leaves the spool unchanged: bytes of the failed write are cut off again. After a
failed fdatasync the content on disk is unknown, so the file is never written again: the segment
ends with the last good commit, and the next segment records the end in its first record
(``previous``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.output.private_files import (
    make_inner_folder,
    make_private_folder,
    open_private,
    unsafe_folder,
)
from gapless.spool.encryption import IndexCipher, SpoolKeys, encrypt_records
from gapless.spool.errors import SpoolGone, SpoolMismatch, from_os_error
from gapless.spool.format import (
    ENCRYPTED_FORMAT,
    FORMAT,
    KEY_RECORD_BYTES,
    PREAMBLE_BYTES,
    TAG_BYTES,
    RecordDraft,
    checksum_seed,
    encode_records,
    pack_preamble,
)
from gapless.spool.index import CorruptIndex, SegmentIndex
from gapless.spool.segment_file import (
    CommittedOffset,
    SpoolInfo,
    fsync_directory,
    index_path,
    info_path,
    segment_path,
    write_atomically,
)
from gapless.spool.segment_scan import rebuild_index

if TYPE_CHECKING:
    from collections.abc import Sequence

JOIN_BELOW_BYTES = 256 * 1024
"""Total size below which buffers are joined before a write."""
MAX_IOVECS = 1024
"""Maximum number of buffers per write, a limit of the system."""


@dataclass
class ActiveSegment:
    """The segment open for writing; ``index.end`` is the end of the last good commit."""

    path: Path
    descriptor: int
    index: SegmentIndex
    seed: int

    def __post_init__(self) -> None:
        found = os.fstat(self.descriptor)
        self.identity = (found.st_dev, found.st_ino)

    @property
    def number(self) -> int:
        """The number of the segment."""
        return self.index.number


class SegmentStore:
    """The files of a spool, for the writer; with ``keys`` every commit is encrypted.

    An encrypted commit is larger: ``tag_bytes`` for each record, and ``key_record_bytes``.
    """

    def __init__(
        self, root: Path, info: SpoolInfo, *, sync: bool, keys: SpoolKeys | None = None
    ) -> None:
        self.root = root
        self.info = info
        self.sync = sync
        self.keys = keys
        self.tag_bytes = TAG_BYTES if keys else 0
        self.key_record_bytes = KEY_RECORD_BYTES if keys else 0
        self.active: ActiveSegment | None = None
        self.sealed: dict[int, SegmentIndex] = {}
        self.previous = (0, 0)
        self.next_number = 1
        self.lost_segments: list[SegmentIndex] = []
        self._committed_fd = -1
        self._publish_due = False

    @property
    def used_bytes(self) -> int:
        """The size of all segments."""
        active_bytes = 0 if self.active is None else self.active.index.end
        return active_bytes + sum(index.end for index in self.sealed.values())

    def check_active_segment(self) -> None:
        """Raise if the active segment was moved or changed since the last write."""
        active = self.active
        if active is None:
            self._check_identity()
            return
        try:
            found = active.path.stat()
        except OSError as error:
            self._check_identity()
            self._abandon_active(lost=True)
            raise SpoolGone(
                f"{active.path}: {error.strerror or error}; the segment was deleted while in use; "
                "its messages are recorded as lost, and the spool continues in a new segment",
                active.path,
            ) from error
        if (found.st_dev, found.st_ino) != active.identity:
            self._check_identity()
            self._abandon_active(lost=False)
            raise SpoolGone(
                f"{active.path}: the segment was replaced while in use; the spool continues in a "
                f"new segment; run `gapless spool check {self.root}`",
                active.path,
            )
        if found.st_size != active.index.end:
            end = active.index.end
            self._abandon_active(lost=False)
            raise SpoolGone(
                f"{active.path}: the segment was changed while in use: {found.st_size} bytes, "
                f"expected {end}; the spool continues in a new segment; run "
                f"`gapless spool check {self.root}`",
                active.path,
            )

    def _check_identity(self) -> None:
        try:
            found = SpoolInfo.read(self.root)
        except FileNotFoundError as error:
            raise SpoolGone(
                f"{self.root}: the folder of the spool was deleted or moved while in use; restore "
                "the folder at the same path (mount it, move it back) and the spool continues; "
                "before creating a new spool, stop the collector",
                self.root,
            ) from error
        if found.spool_id != self.info.spool_id:
            raise SpoolGone(
                f"{self.root}: the folder now has another spool (id {found.spool_id.hex()}, "
                f"expected {self.info.spool_id.hex()}); restore the old folder, or stop the "
                "collector",
                self.root,
            )

    def begin_segment(self, drafts: Sequence[RecordDraft], created_ns: int) -> list[int]:
        """Begin a segment with a first commit, whose first record is a STATE; return offsets."""
        assert self.active is None
        self._check_identity()
        number = self.next_number
        path = segment_path(self.root, number)
        seed = checksum_seed(self.info.spool_id, number)
        pieces, offsets, key_id = self._encode(drafts, number, PREAMBLE_BYTES, seed)
        end = offsets[-1] + drafts[-1].size_bytes + self.tag_bytes
        version = FORMAT if key_id is None else ENCRYPTED_FORMAT
        preamble = pack_preamble(self.info.spool_id, number, created_ns, version=version)
        descriptor = -1
        try:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
            write_all(descriptor, [preamble, *pieces], end)
            if self.sync:
                os.fdatasync(descriptor)
                fsync_directory(path.parent)
        except OSError as error:
            if descriptor >= 0:
                self.next_number += 1
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    path.unlink()
            raise from_os_error(error, path, "beginning a segment") from error
        self.next_number += 1
        index = SegmentIndex(number, end)
        index.created_ns = created_ns
        _note_key(index, key_id)
        self.active = ActiveSegment(path, descriptor, index, seed)
        return offsets

    def append_commit(self, drafts: Sequence[RecordDraft]) -> list[int]:
        """Append a commit to the active segment; return the offsets of the records."""
        active = self.active
        assert active is not None
        start = active.index.end
        pieces, offsets, key_id = self._encode(drafts, active.number, start, active.seed)
        end = offsets[-1] + drafts[-1].size_bytes + self.tag_bytes
        try:
            write_all(active.descriptor, pieces, end - start)
        except OSError as error:
            self._truncate(active, start)
            raise from_os_error(error, active.path, "writing") from error
        if self.sync:
            try:
                os.fdatasync(active.descriptor)
            except OSError as error:
                self._truncate(active, start)
                self._abandon_active(lost=False)
                raise from_os_error(error, active.path, "making it durable (fdatasync)") from error
        active.index.end = end
        _note_key(active.index, key_id)
        return offsets

    def _encode(
        self, drafts: Sequence[RecordDraft], number: int, offset: int, seed: int
    ) -> tuple[list[bytes], list[int], int | None]:
        """Return the buffers of a commit, the offset of each draft, and the id of the key."""
        if self.keys is None:
            return *encode_records(drafts, offset, seed), None
        # A new cipher for every attempt: a failed commit leaves bytes behind, at the same offsets.
        self.keys.follow()
        cipher = self.keys.new_cipher(self.info.spool_id, number)
        return *encrypt_records(drafts, offset, seed, cipher), cipher.table.key_id

    def _truncate(self, active: ActiveSegment, end: int) -> None:
        try:
            os.ftruncate(active.descriptor, end)
        except OSError:
            self._abandon_active(lost=False)

    def _abandon_active(self, *, lost: bool) -> None:
        """Never write to the active segment again; with ``lost`` the file is gone."""
        active, self.active = self.active, None
        if active is None:
            return
        with contextlib.suppress(OSError):
            os.close(active.descriptor)
        if lost:
            self.lost_segments.append(active.index)
        else:
            self._add_sealed(active.index)

    def seal(self) -> None:
        """End the active segment; the next commit begins another."""
        active, self.active = self.active, None
        if active is not None:
            os.close(active.descriptor)
            self._add_sealed(active.index)

    def _add_sealed(self, index: SegmentIndex) -> None:
        """Write the index of a sealed segment, and drop entries that can be read again.

        The index is a cache: if the disk refuses the index file, writing continues.
        """
        self.sealed[index.number] = index
        self.previous = (index.number, index.end)
        path = index_path(self.root, index.number)
        again = partial(rebuild_index, self.root, self.info, index.number, self.keys)
        cipher = IndexCipher(self.keys, path, self.info.spool_id, index.number)
        with contextlib.suppress(OSError, CorruptIndex):
            data = index.pack(cipher if index.is_encrypted else None)
            write_atomically(path, data, sync=self.sync)
            self.sealed[index.number] = SegmentIndex.load(path, index.number, again, cipher)

    def delete(self, number: int) -> int:
        """Delete a sealed segment; return the number of freed bytes."""
        path = segment_path(self.root, number)
        index = self.sealed[number]
        try:
            path.unlink(missing_ok=True)
            index_path(self.root, number).unlink(missing_ok=True)
        except OSError as error:
            raise from_os_error(error, path, "deleting it") from error
        del self.sealed[number]
        return index.end

    def publish_committed(self) -> None:
        """Publish in ``committed`` how far readers may read; retry a failure at the next commit."""
        if self.active is None:
            return
        data = CommittedOffset(self.active.number, self.active.index.end).pack()
        try:
            if self._committed_fd >= 0 and os.fstat(self._committed_fd).st_nlink == 0:
                os.close(self._committed_fd)
                self._committed_fd = -1
            if self._committed_fd < 0:
                self._committed_fd = open_private(self.root / "committed", os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._committed_fd, data, 0)
            self._publish_due = False
        except OSError:
            self._publish_due = True

    def retry_publish(self) -> None:
        """Publish the committed positions now if the last attempt failed."""
        if self._publish_due:
            self.publish_committed()

    def close(self) -> None:
        """Close the files."""
        for descriptor in (
            self._committed_fd,
            -1 if self.active is None else self.active.descriptor,
        ):
            if descriptor >= 0:
                os.close(descriptor)
        self._committed_fd, self.active = -1, None


def _note_key(index: SegmentIndex, key_id: int | None) -> None:
    if key_id is None:
        index.has_plain = True
    else:
        index.add_key(key_id)


def write_all(descriptor: int, buffers: list[bytes], size_bytes: int) -> None:
    """Write buffers with a single call if possible; small or many buffers are joined first."""
    if size_bytes <= JOIN_BELOW_BYTES or len(buffers) > MAX_IOVECS:
        buffers = [b"".join(buffers)]
    written = os.writev(descriptor, buffers)
    if written == size_bytes:
        return
    rest = memoryview(b"".join(buffers))[written:]
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def create_directories(root: Path) -> None:
    """Create the missing folders of a spool; refuse a folder that is not safe."""
    try:
        make_private_folder(root)
        check_safe(root)
        for folder in (root / "segments", root / "readers"):
            make_inner_folder(folder)
    except OSError as error:
        raise from_os_error(error, root, "making the folders of the spool") from error


def check_safe(root: Path) -> None:
    """Raise SpoolMismatch if other users could replace the files of a spool."""
    if reason := unsafe_folder(root):
        raise SpoolMismatch(reason, root)


def read_or_create_info(
    root: Path, group: str, name: str, node: int | None, *, create: bool
) -> SpoolInfo:
    """Return or create the description of the spool, which must fit group and collector."""
    try:
        info = SpoolInfo.read(root)
    except FileNotFoundError:
        if not create:
            raise SpoolMismatch(f"{root}: there is no spool here (no spool.json)", root) from None
        drawn = secrets.randbits(63) + 1 if node is None else node
        info = SpoolInfo(group, secrets.token_bytes(16), name, drawn, time.time_ns())
        try:
            info.write(root)
        except OSError as error:
            raise from_os_error(error, info_path(root), "writing it") from error
        return info
    if info.group != group:
        raise SpoolMismatch(
            f"{root}: this is the spool of the group {info.group!r}, not of {group!r}; use "
            f"another folder",
            root,
        )
    if name and info.name != name:
        raise SpoolMismatch(
            f"{root}: this is the spool of the collector {info.name!r}, not of {name!r}; use "
            f"another folder or name",
            root,
        )
    return info

"""Staged rows, on a disk visible to the driver and all executors.

On writing: each task writes its rows into a file with a unique name, and reports the name to the
driver. A retried task writes another file.

On commit: the manifest of a batch lists the files with the rows, in order. The manifest is written
once: a batch committed again, after a crash, has the rows of the manifest, even if Spark has
computed other rows the second time.

On the end: a mark names the last published batch, and the files of the batch are deleted. A lock
keeps the process of a dead driver from publishing beside the process of a successor.

    <staging>/<query>/lock                 held during the commit of a batch
    <staging>/<query>/published.json       the last published batch
    <staging>/<query>/batch-<number>.json  the manifest of an unpublished batch
    <staging>/<query>/rows/<number>-<partition>-<random>.arrow
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from zlib import crc32

from gapless.errors import GaplessError
from gapless.output.private_files import (
    make_inner_folder,
    make_private_folder,
    open_private,
    unsafe_folder,
)

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
PAYLOAD: Final = "payload"
HEADERS: Final = "headers"
_POLL_INTERVAL_S = 0.05
_LOCK_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class SinkError(GaplessError):
    """A batch cannot be published: the reason and the remedy. No row is lost or sent twice."""


@dataclass(frozen=True)
class StagedPartition:
    """The rows of a partition, in the file ``name`` written by ``host``."""

    partition: int
    name: str
    rows: int
    size_bytes: int
    crc: int
    host: str = ""


@dataclass(frozen=True)
class Manifest:
    """The contents of a batch, partition by partition."""

    query: str
    batch: int
    parts: tuple[StagedPartition, ...]

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return sum(part.rows for part in self.parts)


class Staging:
    """The staged, unpublished rows of a query."""

    def __init__(self, root: str | Path, query: str) -> None:
        self.query = query
        self.root = Path(root)
        self.path = self.root / query
        self._rows = self.path / "rows"
        self._mark = self.path / "published.json"

    # On writing

    def stage(
        self, batch: int, partition: int, batches: Iterable[pa.RecordBatch]
    ) -> StagedPartition:
        """Write the rows of a partition, and sync the file to the disk."""
        import pyarrow as pa

        name = f"{batch}-{partition}-{secrets.token_hex(8)}.arrow"
        path = self._rows / name
        host = socket.gethostname()
        rows = 0
        try:
            self._make_folder(self._rows)
            file = open(path, "xb", opener=open_private)  # noqa: SIM115 - closed below
        except OSError as error:
            raise self._write_error(error, host) from error
        try:
            with file, _ChecksumFile(file) as summing:
                writer: pa.RecordBatchStreamWriter | None = None
                for each in batches:
                    if writer is None:
                        writer = pa.ipc.new_stream(summing, each.schema)
                    writer.write_batch(each)
                    rows += each.num_rows
                if writer is not None:
                    writer.close()
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self._rows)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError) and not isinstance(error, GaplessError):
                raise self._write_error(error, host) from error
            raise
        return StagedPartition(partition, name, rows, summing.size_bytes, summing.crc, host)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder of the staging; refuse a root that is not safe."""
        make_private_folder(self.root)
        if reason := unsafe_folder(self.root):
            raise SinkError(f"rows cannot be staged: {reason} (the option staging)")
        make_inner_folder(folder)

    def _write_error(self, error: OSError, host: str) -> SinkError:
        return SinkError(
            f"rows cannot be staged in {self._rows} on {host}: "
            f"{error.strerror or error}. Set the option staging to a folder "
            "that the driver and all executors can write to, with room for a "
            "batch"
        )

    # On commit

    @contextlib.contextmanager
    def locked(self, timeout_ns: int) -> Iterator[None]:
        """Keep others from committing batches of this query in the meantime."""
        try:
            self._make_folder(self.path)
            file = open(self.path / "lock", "a+", opener=open_private)  # noqa: SIM115
        except OSError as error:
            raise self._write_error(error, socket.gethostname()) from error
        with file:
            self._lock(file, time.monotonic_ns() + timeout_ns)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def _lock(self, file: IO[str], until_ns: int) -> None:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic_ns() > until_ns:
                    file.seek(0)
                    raise SinkError(
                        "another process publishes the batches of this query: "
                        f"{file.read() or 'an unknown process'} holds {file.name}. Two "
                        "queries cannot share a checkpoint; if the process is left from a "
                        "dead driver, end the process and start the query again"
                    ) from None
                time.sleep(_POLL_INTERVAL_S)
            except OSError as error:
                if error.errno not in _LOCK_UNSUPPORTED:
                    raise
                return  # without locks on this file system, only receivers remove duplicates
            else:
                return

    def last_published_batch(self) -> int:
        """Return the last published batch, -1 if there is none."""
        try:
            return int(_read(self._mark)["batch"])
        except FileNotFoundError:
            return -1

    def read_manifest(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, if any."""
        try:
            told = _read(self._manifest_path(batch))
            return Manifest(
                told["query"],
                told["batch"],
                tuple(StagedPartition(**part) for part in told["parts"]),
            )
        except FileNotFoundError:
            return None

    def commit_manifest(self, batch: int, parts: Iterable[StagedPartition]) -> Manifest:
        """Return the manifest of a batch: the existing manifest, or a new manifest of ``parts``."""
        found = self.read_manifest(batch)
        given = tuple(sorted(parts, key=lambda part: part.partition))
        if found is None:
            found = Manifest(self.query, batch, given)
            _write(self._manifest_path(batch), {"version": VERSION, **asdict(found)})
        else:
            self.discard(batch, given)
        return found

    def discard(self, batch: int, parts: Iterable[StagedPartition]) -> None:
        """Delete staged files, except the files in the manifest of the batch."""
        found = self.read_manifest(batch)
        named = set() if found is None else {part.name for part in found.parts}
        for part in parts:
            if part.name not in named:
                with contextlib.suppress(OSError):
                    (self._rows / part.name).unlink(missing_ok=True)

    def mark_published(self, batch: int) -> None:
        """Mark a batch, and all earlier batches, as published, and delete the files."""
        _write(self._mark, {"version": VERSION, "query": self.query, "batch": batch})
        for path in [*self._rows.glob("*.arrow"), *self.path.glob("batch-*.json")]:
            number = path.name.removeprefix("batch-").partition("-")[0].partition(".")[0]
            if number.isdigit() and int(number) <= batch:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete everything: there will be no other batch."""
        for path in [*self._rows.glob("*"), *self.path.glob("*.json"), self.path / "lock"]:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in (self._rows, self.path):
            with contextlib.suppress(OSError):
                folder.rmdir()

    # On publishing

    def rows(self, manifest: Manifest) -> Iterator[tuple[StagedPartition, pa.RecordBatch]]:
        """Return the rows of a batch in order; each file is checked before its first row."""
        import pyarrow as pa

        for part in manifest.parts:
            if not part.rows:
                continue
            path = self._rows / part.name
            try:
                with pa.memory_map(str(path)) as source:
                    whole = source.read_buffer()
                    if whole.size != part.size_bytes or crc32(whole) != part.crc:
                        raise self._corruption_error(part, "does not match its checksum")
                    with pa.ipc.open_stream(whole) as stream:
                        for each in stream:
                            yield part, each
            except FileNotFoundError as error:
                raise self._corruption_error(part, "is missing") from error
            except (OSError, pa.ArrowInvalid) as error:
                raise self._corruption_error(part, f"cannot be read: {error}") from error

    def _corruption_error(self, part: StagedPartition, what: str) -> SinkError:
        here = socket.gethostname()
        if part.host and part.host != here:
            hint = (
                f"the file was written on {part.host}, and this is {here}; set the option staging "
                "to a folder that the driver and all executors see under the same path"
            )
        else:
            hint = (
                f"restore the file; or, if rows may be sent twice, delete the manifest "
                f"batch-*.json in {self.path}, and"
                " the batch is computed and published again"
            )
        return SinkError(f"the staged file {self._rows / part.name} {what}: {hint}")

    def _manifest_path(self, batch: int) -> Path:
        return self.path / f"batch-{batch}.json"


class _ChecksumFile(io.RawIOBase):
    """A file that computes a checksum of the written bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.crc = self.size_bytes = 0

    def writable(self) -> bool:
        """Return True: the file can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write."""
        self.crc = crc32(data, self.crc)
        size_bytes = self._file.write(data)
        self.size_bytes += size_bytes
        return size_bytes


def _read(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        version = told["version"]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SinkError(
            f"{path} cannot be read: {error}. Restore the file from a copy, or delete the file"
        ) from error
    if version != VERSION:
        raise SinkError(
            f"{path} has version {version}, and this Gapless reads version "
            f"{VERSION}; use a later Gapless"
        )
    return told


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file completely or not at all, and sync the file to the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_private_folder(path.parent.parent)
        # Tasks on other machines may have made their folders somewhere else.
        make_inner_folder(path.parent)
        with open(temporary, "xb", opener=open_private) as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SinkError(
            f"{path} cannot be written: {error.strerror or error}. Free some "
            "space, or correct the permissions"
        ) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_unfinished_query(root: Path, batch: int) -> str | None:
    """Return the only query below ``root`` with a settled, unfinished batch, or None."""
    found = [path.parent.name for path in root.glob(f"*/batch-{batch}.json")]
    return found[0] if len(found) == 1 else None


def default_root(checkpoint: str, given: str) -> Path:
    """Return the staging directory: from the option, or beside the checkpoint."""
    text = given or (f"{checkpoint.rstrip('/')}/gapless-sink" if checkpoint else "")
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if not text or "://" in text:
        what = (
            f"{text!r} is not a folder of a file system"
            if text
            else "the query has no option checkpointLocation"
        )
        raise SinkError(
            f"{what}, so rows cannot be staged there; set the option staging to "
            "a folder that the driver and all executors see under the same path"
        )
    return Path(text).expanduser().absolute()


def split_batch(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Return a batch in parts of about ``most_bytes`` and ``most_rows``, at least a row each."""
    count = batch.num_rows
    each = max(1, min(most_rows, count * most_bytes // max(1, batch.nbytes)))
    for start in range(0, count, each):
        yield batch.slice(start, each)


def payloads_of(batch: pa.RecordBatch) -> tuple[Sequence[bytes], Sequence[Any] | None]:
    """Return the payloads of a staged batch and, if present, the headers of each payload."""
    headers = batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else None
    return batch.column(PAYLOAD).to_pylist(), headers

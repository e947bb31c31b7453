"""Staged rows, on a disk that the driver and all executors see.

On writing: each task writes its rows into a file with a unique name, and reports the name to the
driver. A task that is retried writes another file.

On commit: the manifest of a batch lists the files of its rows, in order. The manifest is written
once: a batch that is committed again, after a crash, has the rows of the manifest, whatever Spark
has computed the second time.

On the end: a mark says up to which batch everything is published, and the files of that batch are
deleted. One process at a time: a lock keeps the process of a dead driver from publishing beside
that of its successor.

    <staging>/<query>/lock                 held while a batch is committed
    <staging>/<query>/published.json       the last batch that is published
    <staging>/<query>/batch-<number>.json  the manifest of a batch that is not published yet
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

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
PAYLOAD: Final = "payload"
HEADERS: Final = "headers"
_POLL_INTERVAL_S = 0.05
_LOCK_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class SinkError(GaplessError):
    """A batch cannot be published: why, and what to do. No row is lost or published twice."""


@dataclass(frozen=True)
class StagedPartition:
    """The rows of one partition, in the file ``name`` that ``host`` wrote."""

    partition: int
    name: str
    rows: int
    size_bytes: int
    crc: int
    host: str = ""


@dataclass(frozen=True)
class Manifest:
    """What a batch consists of, partition by partition."""

    query: str
    batch: int
    parts: tuple[StagedPartition, ...]

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return sum(part.rows for part in self.parts)


class Staging:
    """The staged rows of one query that are not published yet."""

    def __init__(self, root: str | Path, query: str) -> None:
        self.query = query
        self.path = Path(root) / query
        self._rows = self.path / "rows"
        self._mark = self.path / "published.json"

    # On writing

    def stage(
        self, batch: int, partition: int, batches: Iterable[pa.RecordBatch]
    ) -> StagedPartition:
        """Write the rows of one partition, and sync them to the disk."""
        import pyarrow as pa

        name = f"{batch}-{partition}-{secrets.token_hex(8)}.arrow"
        path = self._rows / name
        host = socket.gethostname()
        rows = 0
        try:
            self._rows.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
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

    def _write_error(self, error: OSError, host: str) -> SinkError:
        return SinkError(
            f"rows cannot be staged in {self._rows} on {host}: {error.strerror or error}. Give "
            f"the option staging: a"
            " folder that the driver and all executors can write to, with room for a batch"
        )

    # On commit

    @contextlib.contextmanager
    def locked(self, timeout_ns: int) -> Iterator[None]:
        """Keep others from committing batches of this query meanwhile."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("a+")
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
                        f"another process publishes the batches of this query: "
                        f"{file.read() or 'it has not said which'}"
                        f" holds {file.name}. Two queries cannot share a checkpoint; if it is "
                        f"left from a driver that"
                        " died, end it and start the query again"
                    ) from None
                time.sleep(_POLL_INTERVAL_S)
            except OSError as error:
                if error.errno not in _LOCK_UNSUPPORTED:
                    raise
                return  # without locks on this file system, only receivers remove duplicates
            else:
                return

    def last_published_batch(self) -> int:
        """Return the last batch that is published, -1 if there is none."""
        try:
            return int(_read(self._mark)["batch"])
        except FileNotFoundError:
            return -1

    def read_manifest(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, if it has one."""
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
        """Return the manifest of a batch: the existing one, otherwise a new one of these parts."""
        found = self.read_manifest(batch)
        given = tuple(sorted(parts, key=lambda part: part.partition))
        if found is None:
            found = Manifest(self.query, batch, given)
            _write(self._manifest_path(batch), {"version": VERSION, **asdict(found)})
        else:
            self.discard(batch, given)
        return found

    def discard(self, batch: int, parts: Iterable[StagedPartition]) -> None:
        """Delete staged files, except those in the manifest of the batch."""
        found = self.read_manifest(batch)
        named = set() if found is None else {part.name for part in found.parts}
        for part in parts:
            if part.name not in named:
                with contextlib.suppress(OSError):
                    (self._rows / part.name).unlink(missing_ok=True)

    def mark_published(self, batch: int) -> None:
        """Mark a batch, and all before it, as published, and delete their files."""
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
                        raise self._corruption_error(part, "is not what was written")
                    with pa.ipc.open_stream(whole) as stream:
                        for each in stream:
                            yield part, each
            except FileNotFoundError as error:
                raise self._corruption_error(part, "is not there") from error
            except (OSError, pa.ArrowInvalid) as error:
                raise self._corruption_error(part, f"cannot be read: {error}") from error

    def _corruption_error(self, part: StagedPartition, what: str) -> SinkError:
        here = socket.gethostname()
        if part.host and part.host != here:
            hint = (
                f"it was written on {part.host}, and this is {here}: give the option staging, a "
                f"folder that the driver"
                " and all executors see under the same path"
            )
        else:
            hint = (
                f"bring it back; or, if some rows may come twice, delete the manifest "
                f"batch-*.json in {self.path}, and"
                " the batch is published as it is computed anew"
            )
        return SinkError(f"the staged file {self._rows / part.name} {what}: {hint}")

    def _manifest_path(self, batch: int) -> Path:
        return self.path / f"batch-{batch}.json"


class _ChecksumFile(io.RawIOBase):
    """A file that computes a checksum of the bytes written to it."""

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
            f"{path} cannot be read: {error}. Bring it back from a copy, or delete it"
        ) from error
    if version != VERSION:
        raise SinkError(
            f"{path} is of version {version}, and this code knows {VERSION}: use a later Gapless"
        )
    return told


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file completely or not at all, and sync it to the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(
            parents=True, exist_ok=True
        )  # tasks on other machines may have made theirs somewhere else
        with temporary.open("xb") as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SinkError(
            f"{path} cannot be written: {error.strerror or error}. Make room there, or allow it"
        ) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_unfinished_query(root: Path, batch: int) -> str | None:
    """Return the one query below ``root`` with a settled, unfinished batch, or None."""
    found = [path.parent.name for path in root.glob(f"*/batch-{batch}.json")]
    return found[0] if len(found) == 1 else None


def default_root(checkpoint: str, given: str) -> Path:
    """Return the staging directory: that of the option, or the one beside the checkpoint."""
    text = given or (f"{checkpoint.rstrip('/')}/gapless-sink" if checkpoint else "")
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if not text or "://" in text:
        what = (
            f"{text!r} is no folder of a file system"
            if text
            else "the query has no option checkpointLocation"
        )
        raise SinkError(
            f"{what}, so rows cannot be staged there: give the option staging, a folder that the "
            f"driver and all"
            " executors see under the same path"
        )
    return Path(text).expanduser().absolute()


def split_batch(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Return a batch in parts of about ``most_bytes`` and ``most_rows``, at least a row each."""
    count = batch.num_rows
    each = max(1, min(most_rows, count * most_bytes // max(1, batch.nbytes)))
    for start in range(0, count, each):
        yield batch.slice(start, each)


def payloads_of(batch: pa.RecordBatch) -> tuple[Sequence[bytes], Sequence[Any] | None]:
    """Return the payloads of a staged batch and, if it has them, the headers of each."""
    headers = batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else None
    return batch.column(PAYLOAD).to_pylist(), headers

"""The journal: the trace of a running process, in rows of fixed width, without dependencies.

    <set>/00003.rows      rows, one after the other; a torn last row does not count
    <set>/texts.jsonl     reasons: line 7 is the reason with the number 7
    <set>/lives.jsonl     names of incarnations by number
    <set>/whole           renamed to ``stopped`` as soon as a write fails

On writing: texts and names first, then all rows of an input with one system call. Written rows
survive when the process is killed. A journal is locked while its process runs, so that a reader
knows which journals are complete.

On a full disk or another error: nothing more is written, and ``whole`` is renamed, which needs no
space.
"""

from __future__ import annotations

import fcntl
import json
import os
from struct import Struct
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.output.private_files import (
    make_inner_folder,
    make_private_folder,
    open_private,
    unsafe_folder,
)
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gapless.trace.incarnations import IncarnationRecord

FIELDS = tuple(name for name in COLUMNS if name not in {"seed", "frame_id"})
"""The columns of a journal, in the order of the schema; a reason is the number of its text."""
_KINDS = {"int64": ("q", "<i8"), "int32": ("i", "<i4"), "int8": ("b", "i1"), "string": ("i", "<i4")}
ROW_STRUCT = Struct("<" + "".join(_KINDS[COLUMNS[name].type][0] for name in FIELDS))
"""The packed form of a row."""
DTYPE = [(name, _KINDS[COLUMNS[name].type][1]) for name in FIELDS]
"""The packed form of a row for numpy."""

TEXTS, WHOLE, STOPPED = "texts.jsonl", "whole", "stopped"
ROWS_PER_FILE = 1_000_000
"""Maximum number of rows in a journal; then the next one begins."""


class TraceJournal:
    """The files of a file set while the process runs; ``stopped`` is the error, if any."""

    def __init__(self, folder: Path, rows_per_file: int = ROWS_PER_FILE) -> None:
        """Create a file set in ``folder``, which must not exist yet."""
        self.folder = folder
        self.stopped = ""
        self.full_files: list[Path] = []
        self._rows_per_file = rows_per_file
        self._rows = 0
        self._number = 0
        self._texts: dict[str, int] = {"": 0}
        self._rows_fd = self._texts_fd = self._incarnations_fd = -1
        try:
            if not folder.parent.exists():
                make_private_folder(folder.parent)
            if reason := unsafe_folder(folder.parent):
                raise GaplessError(f"cannot record a trace there: {reason}")
            make_inner_folder(folder, is_new=True)
            os.close(_open_append(folder / WHOLE))
            self._texts_fd = _open_append(folder / TEXTS)
            self._incarnations_fd = _open_append(folder / INCARNATIONS_FILE)
            self._open_next_file()
        except OSError as error:
            self._close_files()
            raise GaplessError(
                f"cannot record a trace in {folder}: {error.strerror or error}; name a folder "
                f"with write permission"
            ) from None

    @property
    def path(self) -> Path:
        """The current file for rows."""
        return self.folder / f"{self._number:05d}.rows"

    def _open_next_file(self) -> None:
        self._number += 1
        self._rows = 0
        while True:
            self._rows_fd = _open_append(self.path)
            fcntl.flock(self._rows_fd, fcntl.LOCK_EX)
            if self._is_linked():
                return
            # Another process sealed the empty file before it was locked.
            os.close(self._rows_fd)

    def _is_linked(self) -> bool:
        """Return whether the open file is still in the folder."""
        try:
            return os.path.samestat(os.fstat(self._rows_fd), self.path.stat())
        except FileNotFoundError:
            return False

    def intern_text(self, text: str) -> int:
        """Return the number of a text; a new text is written first."""
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self._texts)
            self._write(self._texts_fd, (json.dumps(text) + "\n").encode())
        return number

    def write_incarnation(self, record: IncarnationRecord) -> None:
        """Write the line of an incarnation, before the first row with its number."""
        self._write(self._incarnations_fd, record.to_json_line().encode())

    def write_rows(self, rows: list[bytes]) -> None:
        """Write packed rows with a single call."""
        self._write(self._rows_fd, b"".join(rows))
        self._rows += len(rows)
        if self._rows >= self._rows_per_file and not self.stopped:
            self.full_files.append(self.path)
            os.close(self._rows_fd)
            self._rows_fd = -1
            try:
                self._open_next_file()
            except OSError as error:
                self._stop(error)

    def _write(self, descriptor: int, data: bytes) -> None:
        if self.stopped:
            return
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        self.stop(error.strerror or str(error))

    def stop(self, reason: str) -> None:
        """Stop writing, and mark the trace as incomplete."""
        self.stopped = reason
        try:
            (self.folder / WHOLE).rename(self.folder / STOPPED)
        except OSError as another:
            self.stopped += f" ({another.strerror})"
        self._close_files()

    def close(self) -> None:
        """Stop writing; the files can be sealed."""
        self._close_files()

    def _close_files(self) -> None:
        for descriptor in (self._rows_fd, self._texts_fd, self._incarnations_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._rows_fd = self._texts_fd = self._incarnations_fd = -1


def _open_append(path: Path) -> int:
    return open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def read_texts(folder: Path) -> list[str]:
    """Return the texts of a file set, by number."""
    path = folder / TEXTS
    texts = [""]
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                texts.append(str(json.loads(line)))
            except ValueError as error:
                where = f"{path}:{len(texts)}"
                raise GaplessError(
                    f"{where}: expected a text of a trace as a line of JSON: {error}"
                ) from None
    return texts


def read_packed_rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Return the packed rows of a journal, without a torn last row."""
    data = path.read_bytes()
    return ROW_STRUCT.iter_unpack(
        memoryview(data)[: len(data) // ROW_STRUCT.size * ROW_STRUCT.size]
    )

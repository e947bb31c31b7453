"""Sealing: journals become Parquet files, column by column, without a loop over rows.

A journal of a running process is left alone. Of a killed process every row is kept, except for a
torn last row. A Parquet file exists completely or not at all, and only then the journal is removed.
Sealing can therefore be interrupted and repeated at any time, by any process.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import GaplessError
from gapless.output.private_files import open_private
from gapless.trace.incarnations import INCARNATIONS_FILE, read_incarnations
from gapless.trace.journal import DTYPE, ROW_STRUCT, STOPPED, read_texts
from gapless.trace.schema import COLUMNS, EVENT_CODES, incarnation_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gapless.trace.schema import TraceRow

ROWS_PER_TABLE = 131_072
"""How many rows are converted to columns at a time, and form a row group."""


class SealResult(NamedTuple):
    """The result of sealing a folder: the new files, and the journals still in use."""

    files: list[Path]
    live: list[Path]


def can_seal() -> bool:
    """Whether Parquet can be written here."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyarrow", "numpy"))


def seal(folder: Path | str) -> SealResult:
    """Seal every journal in ``folder`` that is not in use, and mark incomplete traces."""
    from pathlib import Path

    folder = Path(folder)
    if not folder.is_dir():
        raise GaplessError(
            f"there is no trace at {folder}: expected a folder recorded with --trace"
        )
    found = SealResult([], [])
    for path in sorted(folder.rglob("*.rows")):
        with contextlib.suppress(FileNotFoundError):  # another one was quicker
            sealed = seal_journal(path)
            if sealed is None:
                found.live.append(path)
            elif sealed.exists():
                found.files.append(sealed)
    for marker in folder.rglob(STOPPED):
        _mark_incomplete(marker.parent)
    return found


def seal_journal(path: Path) -> Path | None:
    """Seal a journal and return the Parquet file; None if the journal is in use."""
    with path.open("rb") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        goal = path.with_suffix(".parquet")
        if not goal.exists() and path.stat().st_size >= ROW_STRUCT.size:
            try:
                write_tables(_tables(path), goal)
            except OSError as error:
                raise GaplessError(
                    f"cannot seal {path}: {error}; free some disk space and retry"
                ) from None
        path.unlink()
    return goal


def _tables(path: Path) -> Iterator[Any]:
    """Yield the rows of a journal as tables, so that memory never holds all rows."""
    pa = import_pyarrow()
    import numpy as np

    count = path.stat().st_size // ROW_STRUCT.size
    rows = np.memmap(path, np.dtype(DTYPE), mode="r", shape=(count,))
    texts = pa.array(read_texts(path.parent), pa.string())
    for at in range(0, count, ROWS_PER_TABLE):
        yield _table(rows[at : at + ROWS_PER_TABLE], texts)


def _table(rows: Any, texts: Any) -> Any:
    pa = import_pyarrow()
    import numpy as np

    arrays = []
    for name, column in COLUMNS.items():
        if name == "seed":
            arrays.append(pa.array(np.zeros(len(rows), np.int64)))
        elif name == "frame_id":
            arrays.append(pa.repeat(pa.scalar("", pa.string()), len(rows)))
        elif name == "reason":
            # A text that is not there was lost with the power; its row is still a row.
            numbers = np.where((rows[name] >= 0) & (rows[name] < len(texts)), rows[name], 0)
            arrays.append(texts.take(pa.array(numbers)))
        else:
            arrays.append(pa.array(np.ascontiguousarray(rows[name]), getattr(pa, column.type)()))
    return pa.Table.from_arrays(arrays, schema=arrow_schema())


def _mark_incomplete(folder: Path) -> None:
    """Record in the side file that recording stopped early."""
    path = folder / INCARNATIONS_FILE
    records = [
        record._replace(whole=False) if record.own else record for record in read_incarnations(path)
    ]
    fresh = path.with_suffix(".part")
    try:
        with open(fresh, "w", encoding="utf-8", opener=open_private) as file:
            file.writelines(record.to_json_line() for record in records)
        fresh.replace(path)
        (folder / STOPPED).rename(folder / "not-whole")
    except OSError as error:
        raise GaplessError(
            f"cannot seal {folder}: {error}; free some disk space and retry"
        ) from None


ROW_GROUP = 1_000_000
"""Maximum number of rows in a row group."""
_INT64_MAX = 2**63 - 1
_DICTIONARY_COLUMNS = ("seed", "event", "view", "epoch", "part", "reason", "frame_id")
"""Columns with few different values, beside those that name incarnations.

Rising numbers stay plain: zstd compresses them as well as differences, and they are read faster.
"""


def import_pyarrow() -> Any:
    """Return pyarrow, or raise an error with the command to install it."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise GaplessError(
            "a trace as Parquet needs pyarrow: pip install 'gapless[spark]' (recording needs "
            "nothing; "
            "`gapless.trace.read` reads what a recorder has written without it)"
        ) from None
    return pa


def arrow_schema() -> Any:
    """Return the schema of the files: the columns of a trace, all of them non-null."""
    pa = import_pyarrow()
    return pa.schema(
        [
            pa.field(name, getattr(pa, column.type)(), nullable=False)
            for name, column in COLUMNS.items()
        ]
    )


def write_tables(tables: Iterable[Any], path: Path) -> None:
    """Write tables as a file of a trace, a row group each, atomically."""
    fresh = path.with_suffix(".part")
    # pyarrow itself would create the file with the permissions of the umask.
    os.close(open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    writer = import_pyarrow().parquet.ParquetWriter(
        fresh,
        arrow_schema(),
        compression="zstd",
        use_dictionary=[
            name
            for name, column in COLUMNS.items()
            if column.is_incarnation or name in _DICTIONARY_COLUMNS
        ],
        store_schema=False,
    )
    with writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP)
    fresh.replace(path)


def write_table(table: Any, path: Path) -> None:
    """Write a table as a file of a trace."""
    write_tables([table], path)


def rows_to_table(rows: Sequence[TraceRow]) -> Any:
    """Return rows as a table, with numbers for incarnations and events."""
    pa = import_pyarrow()
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [() for _ in COLUMNS]
    arrays = []
    for (name, column), values in zip(COLUMNS.items(), columns, strict=True):
        found: Sequence[Any] = values
        if column.is_incarnation:
            found = [incarnation_id(value) for value in values]
        elif name == "event":
            found = [EVENT_CODES[value] for value in values]
        try:
            arrays.append(pa.array(found, getattr(pa, column.type)()))
        except OverflowError:  # a number from a stranger may have any size
            arrays.append(
                pa.array([min(value, _INT64_MAX) for value in found], getattr(pa, column.type)())
            )
    return pa.Table.from_arrays(arrays, schema=arrow_schema())

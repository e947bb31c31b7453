"""Sealing: what a process has written row by row becomes Parquet, by column and without a loop over rows.

A journal whose process lives is left alone. Of one that was killed everything is kept, but for a last row that is torn.
A file of Parquet is there as a whole or not at all, and only then its journal goes away, so this can be cut off and
done again at any time, by anybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import GaplessError
from gapless.trace.journal import DTYPE, ROW, STOPPED, read_texts
from gapless.trace.lives import LIVES, read_lives
from gapless.trace.parquet import arrow, schema, write_tables
from gapless.trace.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS_AT_ONCE = 131_072
"""So many rows are turned into columns at a time, and become a row group."""


class Sealed(NamedTuple):
    """What became of a folder: the files that were made, and the journals of processes that still write."""

    files: list[Path]
    live: list[Path]


def can_seal() -> bool:
    """Whether Parquet can be written here."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyarrow", "numpy"))


def seal(folder: Path | str) -> Sealed:
    """Seal everything in ``folder`` that nobody writes to any more, and take note of traces that are not whole."""
    from pathlib import Path

    folder = Path(folder)
    if not folder.is_dir():
        raise GaplessError(f"there is no trace at {folder}: expected a folder that was recorded with --trace")
    found = Sealed([], [])
    for path in sorted(folder.rglob("*.rows")):
        with contextlib.suppress(FileNotFoundError):  # another one was quicker
            sealed = seal_journal(path)
            if sealed is None:
                found.live.append(path)
            elif sealed.exists():
                found.files.append(sealed)
    for marker in folder.rglob(STOPPED):
        _mark(marker.parent)
    return found


def seal_journal(path: Path) -> Path | None:
    """Seal one journal and return its file of Parquet, which is not there if it has no rows; None if it is in use."""
    with path.open("rb") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        goal = path.with_suffix(".parquet")
        if not goal.exists() and path.stat().st_size >= ROW.size:
            try:
                write_tables(_tables(path), goal)
            except OSError as error:
                raise GaplessError(f"cannot seal {path}: {error}; make room and try again") from None
        path.unlink()
    return goal


def _tables(path: Path) -> Iterator[Any]:
    """Return the rows of a journal as tables, one after the other, so that a producer need not have room for all."""
    pa = arrow()
    import numpy as np

    count = path.stat().st_size // ROW.size
    rows = np.memmap(path, np.dtype(DTYPE), mode="r", shape=(count,))
    texts = pa.array(read_texts(path.parent), pa.string())
    for at in range(0, count, ROWS_AT_ONCE):
        yield _table(rows[at : at + ROWS_AT_ONCE], texts)


def _table(rows: Any, texts: Any) -> Any:
    pa = arrow()
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
    return pa.Table.from_arrays(arrays, schema=schema())


def _mark(folder: Path) -> None:
    """Let the side file say that recording had to stop here."""
    path = folder / LIVES
    lives = [life._replace(whole=False) if life.own else life for life in read_lives(path)]
    fresh = path.with_suffix(".part")
    try:
        fresh.write_text("".join(life.line() for life in lives), encoding="utf-8")
        fresh.replace(path)
        (folder / STOPPED).rename(folder / "not-whole")
    except OSError as error:
        raise GaplessError(f"cannot seal {folder}: {error}; make room and try again") from None

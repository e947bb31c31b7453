"""Read traces: one file, or the files of a whole group in the order of time."""

from __future__ import annotations

import json
from heapq import merge
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.trace.schema import COLUMNS, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_KNOWN = frozenset(COLUMNS)


def read(path: Path) -> Iterator[Row]:
    """Return the rows of a file. A last line without an end is what a killed process was writing: it is left out."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                yield _row(line, f"{path}:{number}")


def _row(line: str, where: str) -> Row:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise GaplessError(f"{where}: expected a row of a trace as one line of JSON: {error}") from None
    try:
        return Row(**values)
    except TypeError:
        unknown = sorted(set(values) - _KNOWN) if isinstance(values, dict) else []
        why = f"no column is called {', '.join(unknown)}" if unknown else "columns are missing"
        raise GaplessError(f"{where}: expected a row of a trace: {why}") from None


def merged(paths: Iterable[Path]) -> Iterator[Row]:
    """Return the rows of several files of one machine, in the order in which they were written."""
    return merge(*map(read, paths), key=lambda row: row.t_ns)

"""Read traces as rows, from sealed files and journals, a whole group in the order of time."""

from __future__ import annotations

from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.trace.incarnations import INCARNATIONS_FILE, read_incarnations
from gapless.trace.journal import FIELDS, read_packed_rows, read_texts
from gapless.trace.parquet import import_pyarrow
from gapless.trace.schema import COLUMNS, EVENT_NAMES, TraceRow, incarnation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.trace.incarnations import IncarnationRecord

_BATCH = 65_536
_INCARNATION_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.is_incarnation)


def read(folder: Path | str) -> Iterator[TraceRow]:
    """Return the rows of a trace by seed and time; rows of an incarnation keep their order."""
    folder = Path(folder)
    sets = file_sets(folder)
    names = {incarnation_id(record.name): record.name for record in incarnations_of(folder)}
    return merge(*(_read_set(one, names) for one in sets), key=lambda row: (row.seed, row.t_ns))


def incarnations_of(folder: Path | str) -> list[IncarnationRecord]:
    """Return the incarnations mentioned in a trace."""
    return [
        record
        for path in sorted(Path(folder).rglob(INCARNATIONS_FILE))
        for record in read_incarnations(path)
    ]


def file_sets(folder: Path) -> list[Path]:
    """Return the file sets of a trace, at least one."""
    found = sorted(
        {path.parent for end in ("parquet", "rows") for path in folder.rglob(f"*.{end}")}
    )
    found = [one for one in found if (one / INCARNATIONS_FILE).exists()]
    if not found:
        raise GaplessError(
            f"there is no trace at {folder}: expected a folder recorded with --trace"
        )
    return found


def _read_set(folder: Path, names: dict[int, str]) -> Iterator[TraceRow]:
    """Yield the rows of a file set, in order."""
    called = _name_resolver(names)
    for path in _files_of_set(folder):
        yield from (
            _read_parquet(path, called)
            if path.suffix == ".parquet"
            else _read_journal(path, called)
        )


def _files_of_set(folder: Path) -> list[Path]:
    """Return the files of a set in order; a sealed file replaces its journal."""
    found = {path.stem: path for path in sorted(folder.glob("*.rows"))}
    found.update({path.stem: path for path in folder.glob("*.parquet")})
    return [found[stem] for stem in sorted(found)]


def _name_resolver(names: dict[int, str]) -> Callable[[int], str]:
    return lambda number: names.get(number) or (f"?{number:x}" if number else "")


def _read_journal(path: Path, called: Callable[[int], str]) -> Iterator[TraceRow]:
    texts = read_texts(path.parent)
    for values in read_packed_rows(path):
        row = dict(zip(FIELDS, values, strict=True))
        row["reason"] = texts[row["reason"]] if row["reason"] < len(texts) else ""
        yield _row(row, called)


def _read_parquet(path: Path, called: Callable[[int], str]) -> Iterator[TraceRow]:
    parquet = import_pyarrow().parquet
    file = parquet.ParquetFile(path)
    if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
        raise GaplessError(
            f"{path}: expected the file of a trace: there is no column {', '.join(missing)}"
        )
    for batch in file.iter_batches(_BATCH, columns=list(COLUMNS)):
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for values in zip(*columns, strict=True):
            yield _row(dict(zip(COLUMNS, values, strict=True)), called)


def _row(values: dict[str, Any], called: Callable[[int], str]) -> TraceRow:
    for name in _INCARNATION_COLUMNS:
        values[name] = called(values[name])
    values["event"] = EVENT_NAMES.get(values["event"], f"?{values['event']}")
    values.setdefault("seed", 0)
    return TraceRow(**values)

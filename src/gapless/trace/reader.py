"""Read traces back as rows: sealed files and journals alike, those of a whole group in the order of time."""

from __future__ import annotations

from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.trace.incarnations import LIVES, read_lives
from gapless.trace.journal import FIELDS, read_texts, unpacked
from gapless.trace.parquet import arrow
from gapless.trace.schema import COLUMNS, NAMES, Row, life_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.trace.incarnations import Life

_BATCH = 65_536
_LIVES_AT = tuple(name for name, column in COLUMNS.items() if column.is_life)


def read(folder: Path | str) -> Iterator[Row]:
    """Return the rows of a trace: seed after seed, each in the order of time; those of one life in their own order."""
    folder = Path(folder)
    sets = file_sets(folder)
    names = {life_id(life.name): life.name for life in lives_of(folder)}
    return merge(*(_read_set(one, names) for one in sets), key=lambda row: (row.seed, row.t_ns))


def lives_of(folder: Path | str) -> list[Life]:
    """Return the lives that a trace speaks of."""
    return [life for path in sorted(Path(folder).rglob(LIVES)) for life in read_lives(path)]


def file_sets(folder: Path) -> list[Path]:
    """Return the file sets of a trace; there is at least one."""
    found = sorted(
        {path.parent for end in ("parquet", "rows") for path in folder.rglob(f"*.{end}")}
    )
    found = [one for one in found if (one / LIVES).exists()]
    if not found:
        raise GaplessError(
            f"there is no trace at {folder}: expected a folder that was recorded with --trace"
        )
    return found


def _read_set(folder: Path, names: dict[int, str]) -> Iterator[Row]:
    called = _caller(names)
    for path in _files(folder):
        yield from (
            _read_parquet(path, called)
            if path.suffix == ".parquet"
            else _read_journal(path, called)
        )


def _files(folder: Path) -> list[Path]:
    """Return the files of a set in their order; of a journal that has just been sealed only the sealed one."""
    found = {path.stem: path for path in sorted(folder.glob("*.rows"))}
    found.update({path.stem: path for path in folder.glob("*.parquet")})
    return [found[stem] for stem in sorted(found)]


def _caller(names: dict[int, str]) -> Callable[[int], str]:
    return lambda number: names.get(number) or (f"?{number:x}" if number else "")


def _read_journal(path: Path, called: Callable[[int], str]) -> Iterator[Row]:
    texts = read_texts(path.parent)
    for values in unpacked(path):
        row = dict(zip(FIELDS, values, strict=True))
        row["reason"] = texts[row["reason"]] if row["reason"] < len(texts) else ""
        yield _row(row, called)


def _read_parquet(path: Path, called: Callable[[int], str]) -> Iterator[Row]:
    parquet = arrow().parquet
    file = parquet.ParquetFile(path)
    if missing := [name for name in COLUMNS if name not in file.schema_arrow.names]:
        raise GaplessError(
            f"{path}: expected the file of a trace: there is no column {', '.join(missing)}"
        )
    for batch in file.iter_batches(_BATCH, columns=list(COLUMNS)):
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for values in zip(*columns, strict=True):
            yield _row(dict(zip(COLUMNS, values, strict=True)), called)


def _row(values: dict[str, Any], called: Callable[[int], str]) -> Row:
    for name in _LIVES_AT:
        values[name] = called(values[name])
    values["event"] = NAMES.get(values["event"], f"?{values['event']}")
    values.setdefault("seed", 0)
    return Row(**values)

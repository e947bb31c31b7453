"""Traces as Parquet: rows in local order, zstd, columns of few values by dictionaries. Needs pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.trace.schema import CODES, COLUMNS, life_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gapless.trace.schema import Row

ROW_GROUP = 1_000_000
"""So many rows are one row group at most."""
_MOST = 2**63 - 1
_FEW = ("seed", "event", "view", "epoch", "part", "reason", "frame_id")
"""Columns that hold few different values, beside those that name lives. Numbers that rise are kept as they are: zstd
makes them as small as differences would be, and they are read faster."""


def arrow() -> Any:
    """Return pyarrow, or say what is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise GaplessError(
            "a trace as Parquet needs pyarrow: pip install 'gapless[spark]' (recording needs nothing; "
            "`gapless.trace.read` reads what a recorder has written without it)"
        ) from None
    return pa


def schema() -> Any:
    """Return the schema of the files: the columns of a trace, none of them ever null."""
    pa = arrow()
    return pa.schema([pa.field(name, getattr(pa, column.type)(), nullable=False) for name, column in COLUMNS.items()])


def write_tables(tables: Iterable[Any], path: Path) -> None:
    """Write tables as one file of a trace, a row group each; it is there as a whole or not at all."""
    fresh = path.with_suffix(".part")
    writer = arrow().parquet.ParquetWriter(
        fresh,
        schema(),
        compression="zstd",
        use_dictionary=[name for name, column in COLUMNS.items() if column.is_life or name in _FEW],
        store_schema=False,
    )
    with writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP)
    fresh.replace(path)


def write_table(table: Any, path: Path) -> None:
    """Write one table as one file of a trace."""
    write_tables([table], path)


def table_of(rows: Sequence[Row]) -> Any:
    """Return rows as a table, with numbers for lives and events."""
    pa = arrow()
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [() for _ in COLUMNS]
    arrays = []
    for (name, column), values in zip(COLUMNS.items(), columns, strict=True):
        found: Sequence[Any] = values
        if column.is_life:
            found = [life_id(value) for value in values]
        elif name == "event":
            found = [CODES[value] for value in values]
        try:
            arrays.append(pa.array(found, getattr(pa, column.type)()))
        except OverflowError:  # what a stranger says may have any size
            arrays.append(pa.array([min(value, _MOST) for value in found], getattr(pa, column.type)()))
    return pa.Table.from_arrays(arrays, schema=schema())

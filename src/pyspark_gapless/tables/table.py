"""A table of Parquet files that has every micro-batch once, even after crashes.

On publishing: the rows of a batch are written into a folder beside the table, and a rename moves
the folder into the table, as ``batch=<id>``. So a batch is in the table with all its rows or not at
all, and files of a failed attempt never are. A batch already in the table is left alone: Spark
repeats a batch after a crash, with the same rows.

The table has no log of valid files. Spark, DuckDB, pandas or ``pyarrow`` read the folder and see
every row once.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gapless.errors import ConfigError
from gapless.output.private_files import make_inner_folder, make_private_folder
from pyspark_gapless.tables import Dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

D = TypeVar("D", bound=Dataset)

BATCH: Final = "batch"
"""The partition column of a table: the micro-batch of a row."""
AGE: Final = "36500d"
"""Files count as new until read, regardless of age."""
_SPECIAL = re.compile(r"[][{}*?\\,:\n]")


class ParquetTable(Generic[D]):
    """The folder ``tables/<name>`` under ``root``, with rows of a single kind of dataset."""

    def __init__(self, root: Path, kind: type[D]) -> None:
        check_path(root)
        self.kind = kind
        self.root = root
        self.folder = root / "tables" / kind.name
        self._staging = root / "staging" / kind.name
        self.batches = self.rows = 0
        """How many batches and rows there are."""

    def prepare(self) -> None:
        """Create the folder, delete leftovers of failed attempts, and count the rows."""
        make_private_folder(self.root)
        make_inner_folder(self.folder)
        shutil.rmtree(self._staging, ignore_errors=True)
        make_inner_folder(self._staging)
        there = self.published()
        self.batches, self.rows = len(there), sum(map(_rows_of, there.values()))

    def publish(self, frame: DataFrame, batch: int) -> None:
        """Add a micro-batch, unless the table has the batch; made for ``foreachBatch``."""
        target = self.folder / f"{BATCH}={batch}"
        if target.exists():
            return
        staged = self._staging / f"{batch}-{secrets.token_hex(4)}"
        # Not Spark's own old form of a time, which others take for something else or refuse.
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        frame.write.parquet(uri(staged))
        rows = _rows_of(staged)
        if not rows:
            shutil.rmtree(staged)
            return
        (staged / "_SUCCESS").unlink(missing_ok=True)
        # The time at which the rows became available, by which a reader measures their delay.
        os.utime(staged)
        staged.rename(target)
        self.batches += 1
        self.rows += rows

    def published(self) -> dict[int, Path]:
        """Return the folders of the published batches, in order."""
        found = {int(path.name.partition("=")[2]): path for path in self.folder.glob(f"{BATCH}=*")}
        return dict(sorted(found.items()))

    def read(self, spark: SparkSession) -> D:
        """Return all rows."""
        return self.kind(spark.read.schema(self._ddl()).parquet(uri(self.folder)).drop(BATCH))

    def stream(self, spark: SparkSession) -> D:
        """Return the rows as a stream: the existing rows, then the rows of later batches."""
        reader = spark.readStream.schema(self._ddl()).option("maxFileAge", AGE)
        return self.kind(reader.parquet(uri(self.folder)).drop(BATCH))

    def _ddl(self) -> str:
        return f"{self.kind.ddl()}, {BATCH} bigint"


def uri(path: Path) -> str:
    """Return a path that Spark resolves on this machine under any default file system."""
    return f"file:{path.absolute()}"


def check_path(path: Path) -> None:
    """Refuse a path that Spark would take for a pattern or for several paths."""
    found = _SPECIAL.search(str(path.absolute()))
    if found is not None:
        raise ConfigError(
            f"{path}: Spark treats {found[0]!r} in a path as a pattern or a "
            "list; use another folder"
        )


def _rows_of(folder: Path) -> int:
    """Return the number of rows in the files of a batch, from the footers."""
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(path).num_rows) for path in folder.glob("*.parquet"))

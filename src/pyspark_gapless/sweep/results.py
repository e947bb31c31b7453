"""The files of results: ``DIR/runs/*.parquet``; files are added and never changed.

A file is written under a name that readers ignore, and renamed when complete. So every file is
complete, even if a process is killed at any time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gapless import __version__
from gapless.errors import ConfigError
from pyspark_gapless.sweep.cell import SweepCell
from pyspark_gapless.sweep.schema import COLUMNS, KEY, arrow_schema
from pyspark_gapless.tables.table import check_path, uri

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from pyspark_gapless.sweep.schema import SweepRuns

    Flags = NDArray[np.bool_]

RUNS_DIR: Final = "runs"
"""The folder of the files."""
_UNFINISHED: Final = ".unfinished"


def read_runs(spark: SparkSession, folder: str | Path) -> SweepRuns:
    """Return the results in a folder as a dataset, each run once."""
    from pyspark_gapless.sweep.schema import SweepRuns

    frame = spark.read.schema(SweepRuns.ddl()).parquet(uri(Path(folder) / RUNS_DIR))
    return SweepRuns(frame.dropDuplicates(list(KEY)))


class RequestedRuns:
    """The requested runs: every cell with every seed. A run has a number, seeds first."""

    def __init__(self, cells: Sequence[SweepCell], seeds: range, code: str) -> None:
        self.cells = list(cells)
        self.seeds = seeds
        self.code = code
        self.version = __version__
        self._index = {cell.key: number for number, cell in enumerate(self.cells)}

    def __len__(self) -> int:
        return len(self.cells) * len(self.seeds)

    def cell_of(self, key: str) -> SweepCell:
        """Return the cell with the given key."""
        return self.cells[self._index[key]]

    def run_numbers(
        self, batch: pa.RecordBatch, *, of_other_code: bool = False
    ) -> NDArray[np.int64]:
        """Return the number of each row; -1 for rows that are not requested."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = pa.array(self._index, pa.string())
        at = (
            pc.fill_null(pc.index_in(batch["key"], keys), -1)
            .to_numpy(zero_copy_only=False)
            .astype(np.int64)
        )
        seeds = batch["seed"].to_numpy(zero_copy_only=False).astype(np.int64) - self.seeds.start
        same = pc.and_(pc.equal(batch["version"], self.version), pc.equal(batch["code"], self.code))
        fits = (at >= 0) & (seeds >= 0) & (seeds < len(self.seeds))
        fits &= same.to_numpy(zero_copy_only=False) != of_other_code
        return np.where(fits, seeds * len(self.cells) + at, -1)


class SweepResults:
    """The results in a folder."""

    def __init__(self, folder: Path) -> None:
        check_path(folder)
        self.folder = folder
        self.files = folder / RUNS_DIR
        self._pending: list[pa.Table] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the results for adding; pending rows are written when the block ends."""
        self.files.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.folder}: another sweep is writing here; wait for its end, "
                    "or use another --output"
                ) from None
            for left in self.files.glob(f"{_UNFINISHED}*"):
                left.unlink()
            try:
                yield
            finally:
                self.write()

    def add(self, table: pa.Table) -> None:
        """Add rows to be written with the next ``write``."""
        self._pending.append(table)

    def write(self) -> int:
        """Write the collected rows into a file; return the number of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._pending:
            return 0
        table = pa.concat_tables(self._pending).cast(arrow_schema())
        name = f"{secrets.token_hex(8)}.parquet"
        unfinished = self.files / f"{_UNFINISHED}-{name}"
        with unfinished.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self.files / name)
        self._pending = []
        return int(table.num_rows)

    def completed(self, wanted: RequestedRuns, *, of_other_code: bool = False) -> Flags:
        """Return a flag for each requested run: present in the results, of this or other code."""
        import numpy as np

        found = np.zeros(len(wanted), bool)
        for batch in self._batches(list(KEY)):
            numbers = wanted.run_numbers(batch, of_other_code=of_other_code)
            found[numbers[numbers >= 0]] = True
        return found

    def scan(
        self, wanted: RequestedRuns, columns: Sequence[str] = tuple(COLUMNS)
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the wanted runs, each run once."""
        import numpy as np
        import pyarrow as pa

        given = np.zeros(len(wanted), bool)
        for batch in self._batches(list(dict.fromkeys([*KEY, *columns]))):
            numbers = wanted.run_numbers(batch)
            _, first = np.unique(numbers, return_index=True)
            fresh = np.sort(first[(numbers[first] >= 0) & ~given[numbers[first]]])
            given[numbers[fresh]] = True
            if len(fresh):
                yield batch.take(pa.array(fresh))

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = arrow_schema()
        for path in sorted(self.files.glob("[!.]*.parquet")):
            try:
                with pq.ParquetFile(path) as file:
                    if not file.schema_arrow.equals(schema):
                        raise ConfigError(
                            f"{path} is not a result file of this version: the columns differ; "
                            "use another --output"
                        )
                    yield from file.iter_batches(columns=columns)
            except pa.ArrowException as error:
                raise ConfigError(
                    f"{path} cannot be read: {error}; move the file away to repeat its runs"
                ) from error

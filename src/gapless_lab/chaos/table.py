"""The table as a reader of it sees it: the files that Spark has committed, batch by batch.

A killed sink leaves files that belong to no batch; the log beside them lists those that do. Spark
compacts the log now and then; a file that only a compacted log lists gets the batch of that log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gapless_lab.exactness import FileRows

LOG = "_spark_metadata"
"""The folder of the log, in that of the table."""


def committed_files(table: Path) -> list[tuple[int, Path]]:
    """Return the files of the table with their batches, by batch and name."""
    logs = sorted((int(path.name.partition(".")[0]), path) for path in (table / LOG).glob("[0-9]*"))
    found: dict[Path, int] = {}
    for batch, path in logs:
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            file = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            found.setdefault(table / file.name, batch)
    return sorted((batch, file) for file, batch in found.items())


def read_rows(table: Path) -> Iterator[FileRows]:
    """Return the rows of the table, in the order of the batches."""
    import pyarrow.parquet as pq

    for batch, file in committed_files(table):
        content = pq.ParquetFile(file).read(["origin", "seqno", "payload"]).to_pydict()
        yield FileRows(batch, file, content["origin"], content["seqno"], content["payload"])

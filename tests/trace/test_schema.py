"""A field of a trace has one name from the machine to Spark, and one value."""

import inspect
from pathlib import Path

import pytest

from gapless.config import Config
from gapless.identity import Address
from gapless.protocol.ready import Ready, TraceEntry
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.trace import Recorder, read, seal
from gapless.trace.journal import FIELDS
from gapless.trace.schema import COLUMNS, TraceRow

ME, OTHER, THIRD = Address(1, 5), Address(2, 6), Address(3, 7)
NOT_COLUMNS = {"run"}
"""What the machine hands over beside the columns."""
SIMULATED_ONLY = ("seed", "frame_id")
ENTRY = TraceEntry(
    "STATE",
    OTHER,
    seqno=11,
    seqno_last=12,
    peer=THIRD,
    k=13,
    size_bytes=14,
    low=15,
    delivered=16,
    high=17,
    reason="why",
    epoch=18,
    to=ME,
    sent_ns=19,
)


def test_the_machine_uses_the_names_of_the_columns() -> None:
    assert set(TraceEntry._fields) - NOT_COLUMNS <= set(COLUMNS)
    parameters = set(inspect.signature(ReadyBuilder.trace).parameters) - {"self"}
    # The size of a row is that of its run.
    assert parameters == set(TraceEntry._fields) - {"size_bytes"}


def test_a_row_the_journal_and_parquet_have_the_columns_in_their_order() -> None:
    assert TraceRow._fields == tuple(COLUMNS)
    assert tuple(name for name in COLUMNS if name not in SIMULATED_ONLY) == FIELDS
    pytest.importorskip("pyarrow")
    from gapless.trace.parquet import arrow_schema

    assert arrow_schema().names == list(COLUMNS)


def test_spark_has_the_same_columns() -> None:
    pytest.importorskip("pyspark")
    from pyspark_gapless.trace.schema import COLUMNS as SPARK_COLUMNS, STREAM_AT_MEMBER

    assert tuple(SPARK_COLUMNS) == tuple(COLUMNS)
    assert set(STREAM_AT_MEMBER) <= set(COLUMNS)


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "parquet"])
def test_every_field_of_the_machine_is_read_back_under_its_name(
    tmp_path: Path, sealed: bool
) -> None:
    recorder = Recorder(tmp_path)
    recorder.begin_incarnation(ME, Config(), 10**18, member="me", stores=False)
    recorder.record_ready(Ready(trace=[ENTRY]))
    recorder.flush(())
    recorder.abandon()
    if sealed:
        pytest.importorskip("pyarrow")
        assert seal(tmp_path).files
    rows = list(read(tmp_path))
    name_of_me = rows[0].member
    (row,) = [row for row in rows if row.event == "STATE"]
    names = {ME: name_of_me, OTHER: row.origin, THIRD: row.peer}
    assert len(set(names.values())) == 3
    for field in set(TraceEntry._fields) - NOT_COLUMNS:
        written = getattr(ENTRY, field)
        assert getattr(row, field) == (
            names[written] if isinstance(written, Address) else written
        ), field

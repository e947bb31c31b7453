"""Records into rows: every column, cuts to the message, small runs and large messages, damage."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from gapless.group import headers
from gapless.run import ACKED
from gapless.spool import SpoolCorrupt, SpoolTrimmed, columnar
from gapless.spool.format import HEADER_BYTES, MAGIC
from gapless.spool.segment_file import segment_path
from pyspark_gapless.source.stream_reader import GaplessStreamReader
from tests.support.spools import (
    NOW_NS,
    A,
    B,
    C,
    Writer,
    batch_reader,
    latest,
    numbers,
    read,
    read_batch,
    schema_of,
    stream_reader,
)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "spool")


def everything(reader: GaplessStreamReader) -> list[dict[str, object]]:
    start = reader.initialOffset()
    return read(reader, start, latest(reader, start))


def test_every_column_of_a_message(writer: Writer) -> None:
    writer.run(A, [b"one", b""], flags=ACKED, view=3)
    writer.run(C, [b"three"])
    writer.commit()
    first, second, third = everything(stream_reader(writer.path))
    assert first == {
        "group": "plant",
        "origin": "a.1",
        "name": "anna",
        "node": "a",
        "incarnation": 1,
        "seqno": 1,
        "mode": "acknowledged",
        "view": 3,
        "sent": datetime.fromtimestamp(NOW_NS / 1e9, tz=UTC),
        "collected": datetime.fromtimestamp(NOW_NS / 1e9 + 5e-6, tz=UTC),
        "headers": None,
        "payload": b"one",
    }
    assert (second["seqno"], second["payload"], second["mode"]) == (2, b"", "acknowledged")
    assert (third["origin"], third["name"], third["mode"], third["view"]) == (
        "c.1",
        "",
        "ordered",
        7,
    )


def test_batches_have_exactly_the_schema_that_spark_checks(writer: Writer) -> None:
    writer.run(A, [b'{"id": 1}', b"bad"])
    writer.commit()
    for options in (
        {},
        {"columns": "payload,seqno"},
        {"payload_schema": "id long, day date, tags array<string>"},
        {"payload_schema": "id long", "payload_format": "arrow"},
        {"payload_schema": "id long", "columns": "payload_error"},
    ):
        reader = stream_reader(writer.path, **options)
        start = reader.initialOffset()
        (part,) = reader.partitions(start, latest(reader, start))
        expected = to_arrow_schema(schema_of(spool=str(writer.path), **options), timezone="UTC")
        for batch in reader.read(part):
            assert batch.schema.equals(expected)
            batch.validate(full=True)


def test_headers_are_taken_off_and_shown(writer: Writer) -> None:
    marked = headers.MARK + b"looks like a wrapper"
    plain = [
        b"a",
        headers.attach_headers(b"b", {"kind": b"order", "n": b"1"}),
        headers.attach_headers(marked, {}),
        b"",
        headers.MARK + b"x",
    ]
    writer.run(A, plain)
    writer.large(A, headers.attach_headers(b"c" * 200_000, {"big": b"yes"}), 4)
    writer.commit()
    rows = everything(stream_reader(writer.path, columns="seqno,headers,payload"))
    assert [row["payload"] for row in rows] == [
        b"a",
        b"b",
        marked,
        b"",
        headers.MARK + b"x",
        b"c" * 200_000,
    ]
    told = [None, [("kind", b"order"), ("n", b"1")], None, None, None, [("big", b"yes")]]
    assert [row["headers"] for row in rows] == told


def test_a_message_in_pieces_is_one_row_under_its_last_number(writer: Writer) -> None:
    writer.runs(A, 3)
    writer.large(A, b"L" * 100_000, 5, flags=ACKED)
    writer.runs(A, 2)
    writer.commit()
    reader = stream_reader(writer.path)
    rows = everything(reader)
    assert numbers(rows, A) == [1, 2, 3, 8, 9, 10]
    assert rows[3]["payload"] == b"L" * 100_000
    assert rows[3]["mode"] == "acknowledged"
    for cut in range(11):
        middle = {"a.1": cut}
        halves = read(reader, {"a.1": 0}, middle) + read(reader, middle, {"a.1": 10})
        assert halves == rows, "wherever an offset points, nothing is lost and nothing comes twice"


@pytest.mark.parametrize("size", [1, 2, 9, 500])
@pytest.mark.parametrize("block_bytes", [200, 4096, 1 << 22])
def test_runs_of_any_size_are_cut_to_the_message(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, size: int, block_bytes: int
) -> None:
    monkeypatch.setattr(columnar, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(columnar, "BATCH_ROWS", 50)
    for _ in range(4):
        writer.runs(A, 50, size)
        writer.runs(B, 20, size)
        writer.lost(B, 3)
    writer.commit()
    reader = stream_reader(writer.path)
    rows = read(reader, {"a.1": 13, "b.1": 5}, {"a.1": 187, "b.1": 70})
    assert numbers(rows, A) == list(range(14, 188))
    assert numbers(rows, B) == [n for n in range(6, 71) if (n - 1) % 23 < 20]
    assert all(row["payload"] == f"{row['origin']}-{row['seqno']}".encode() for row in rows)


def test_a_record_larger_than_a_block(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "BLOCK_BYTES", 1000)
    writer.runs(A, 5)
    writer.large(A, b"x" * 50_000, 2)
    writer.runs(A, 5)
    writer.commit()
    rows = everything(stream_reader(writer.path))
    assert [len(row["payload"]) for row in rows] == [5] * 5 + [50_000, 5, 5] + [6] * 3  # type: ignore[arg-type]


def damage(path: Path, text: bytes) -> None:
    """Change one byte of a segment where ``text`` stands."""
    segment = segment_path(path, 1)
    data = segment.read_bytes()
    at = data.index(text)
    descriptor = os.open(segment, os.O_WRONLY)
    os.pwrite(descriptor, bytes([data[at] ^ 1]), at)
    os.close(descriptor)


def test_damage_is_told_with_file_place_and_remedy(writer: Writer) -> None:
    writer.runs(A, 30)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    parts = reader.partitions(start, latest(reader, start))
    damage(writer.path, b"a.1-15")
    with pytest.raises(SpoolCorrupt, match=r"\.run: the record at \d+ is damaged.*spool repair"):
        list(reader.read(parts[0]))


def test_a_damaged_header_is_told_and_what_is_before_it_comes(writer: Writer) -> None:
    writer.runs(A, 30)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    (part,) = reader.partitions(start, latest(reader, start))
    segment = segment_path(writer.path, 1)
    data = bytearray(segment.read_bytes())
    at = data.index(b"a.1-11") - 2 * 10 - HEADER_BYTES
    assert data[at : at + 4] == MAGIC
    data[at + HEADER_BYTES - 1] ^= 1
    segment.write_bytes(data)
    batches = reader.read(part)
    assert next(batches).num_rows == 10
    with pytest.raises(
        SpoolCorrupt, match=f"the record at {at} is damaged: the checksum of the header"
    ):
        next(batches)


def test_a_segment_that_went_away_after_planning(writer: Writer) -> None:
    writer.runs(A, 30)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    parts = reader.partitions(start, latest(reader, start))
    segment_path(writer.path, 1).unlink()
    with pytest.raises(SpoolTrimmed, match="is not mounted on this machine"):
        list(reader.read(parts[0]))


def test_undecodable_rows_are_flagged_in_their_place(writer: Writer) -> None:
    writer.run(A, [b'{"id": 1}', b"?", b'{"id": 3}'])
    writer.commit()
    options = {"payload_schema": "id long", "columns": "seqno,id,payload_error,payload"}
    rows = read_batch(batch_reader(writer.path, **options))
    assert [
        (row["seqno"], row["id"], row["payload_error"] is None, row["payload"]) for row in rows
    ] == [
        (1, 1, True, b'{"id": 1}'),
        (2, None, False, b"?"),
        (3, 3, True, b'{"id": 3}'),
    ]


def test_arrow_payloads_give_a_row_for_each_of_theirs(writer: Writer) -> None:
    import pyarrow as pa

    def ipc(ids: list[int]) -> bytes:
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_pydict({"id": ids})
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return bytes(sink.getvalue())

    writer.run(A, [ipc([1, 2, 3]), b"?", ipc([4])])
    writer.commit()
    options = {
        "payload_schema": "id long",
        "payload_format": "arrow",
        "columns": "seqno,payload_row,id",
    }
    rows = read_batch(batch_reader(writer.path, **options))
    assert [tuple(row.values()) for row in rows] == [
        (1, 0, 1),
        (1, 1, 2),
        (1, 2, 3),
        (2, 0, None),
        (3, 0, 4),
    ]

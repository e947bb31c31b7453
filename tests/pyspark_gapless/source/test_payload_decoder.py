"""Payloads into columns: three formats, and one bad payload among good ones."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from pyspark_gapless.source.payload_decoder import DecodedPayloads, make_decoder

FIELDS = pa.schema([("id", pa.int64()), ("text", pa.string())])


def decode(form: str, fields: pa.Schema, *payloads: bytes) -> DecodedPayloads:
    return make_decoder(form, fields)(pa.array(payloads, pa.binary()))


def ipc(**columns: Any) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


GOOD = {
    "json": json.dumps({"id": 1, "text": "é", "more": [1]}).encode(),
    "msgpack": msgpack.packb({"id": 1, "text": "é", "more": [1]}),
    "arrow": ipc(id=[1], text=["é"], more=[2.5]),
}
WRONG_TYPE = {
    "json": b'{"id": "one", "text": "x"}',
    "msgpack": msgpack.packb({"id": "one", "text": "x"}),
    "arrow": ipc(id=["one"], text=["x"]),
}


@pytest.mark.parametrize("form", ["json", "msgpack", "arrow"])
def test_a_bad_payload_is_flagged_and_its_neighbours_are_not(form: str) -> None:
    good = GOOD[form]
    found = decode(form, FIELDS, good, b"\xc1nonsense", good, b"", WRONG_TYPE[form], good)
    row = {"id": 1, "text": "é"}
    assert found.values.to_pylist() == [row, None, row, None, None, row]
    reasons = found.errors.to_pylist()
    assert [reason is None for reason in reasons] == [True, False, True, False, False, True]
    assert all(reason for reason in reasons if reason is not None)


@pytest.mark.parametrize("form", ["json", "msgpack", "arrow"])
def test_what_is_missing_is_null_and_nothing_gives_nothing(form: str) -> None:
    payload = {"json": b"{}", "msgpack": msgpack.packb({}), "arrow": ipc(more=[1])}[form]
    assert decode(form, FIELDS, payload).values.to_pylist() == [{"id": None, "text": None}]
    assert len(decode(form, FIELDS).values) == len(decode(form, FIELDS).errors) == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"{}{}",
        b"{} {}",
        b'{}}\n{"v":{}',
        b"null",
        b"[]",
        b"5",
        b'{"id": 1',
        b'{"text": "\xff"}',
        b'{"text": "a\nb"}',
        b"  ",
    ],
)
def test_json_that_is_not_one_object_never_shifts_rows(payload: bytes) -> None:
    good = b'{"id": 7}'
    for payloads in ([payload, good], [good, payload], [good, payload, payload, good]):
        found = decode("json", FIELDS, *payloads)
        assert [row and row["id"] for row in found.values.to_pylist()] == [
            7 if each == good else None for each in payloads
        ]
        assert [reason is None for reason in found.errors.to_pylist()] == [
            each == good for each in payloads
        ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.just(b'{"id":3}'),
            st.binary(max_size=6),
            st.sampled_from([b'{"id":', b"3}", b"{}\n{}"]),
        )
    )
)
def test_any_bytes_give_one_row_each(payloads: list[bytes]) -> None:
    found = decode("json", FIELDS, *payloads)
    alone = [decode("json", FIELDS, payload) for payload in payloads]
    assert found.values.to_pylist() == [each.values[0].as_py() for each in alone], (
        "neighbours do not matter"
    )
    assert [error is None for error in found.errors.to_pylist()] == [
        not each.errors[0].is_valid for each in alone
    ]


def test_json_that_spans_lines_is_fine() -> None:
    found = decode("json", FIELDS, b'{\n  "id": 1,\n  "text": "a"\n}\n', b'\n{"id": 2}')
    assert [row["id"] for row in found.values.to_pylist()] == [1, 2]


def test_json_has_the_types_of_spark() -> None:
    fields = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("sum", pa.decimal128(10, 2)),
            ("where", pa.struct([("x", pa.float64()), ("since", pa.date32())])),
            ("tags", pa.list_(pa.string())),
        ]
    )
    text = (
        '{"at":"2026-01-02T03:04:05Z","day":"2026-01-02","sum":12.34,'
        '"where":{"x":1,"since":"2020-02-03"},"tags":["a"]}'
    )
    (row,) = decode("json", fields, text.encode()).values.to_pylist()
    assert row == {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "sum": Decimal("12.34"),
        "where": {"x": 1.0, "since": date(2020, 2, 3)},
        "tags": ["a"],
    }


def test_json_with_maps_and_bytes_is_decoded_one_by_one() -> None:
    fields = pa.schema(
        [("counts", pa.map_(pa.string(), pa.int64())), ("raw", pa.binary()), ("day", pa.date32())]
    )
    found = decode(
        "json",
        fields,
        b'{"counts":{"a":1},"raw":"aGk=","day":"2026-01-02"}',
        b'{"raw":"%%%"}',
        b'{"counts":[1]}',
    )
    assert found.values.to_pylist() == [
        {"counts": [("a", 1)], "raw": b"hi", "day": date(2026, 1, 2)},
        None,
        None,
    ]


def test_msgpack_takes_maps_arrays_bytes_and_times() -> None:
    fields = pa.schema(
        [("id", pa.int64()), ("raw", pa.binary()), ("at", pa.timestamp("us", "UTC"))]
    )
    at = datetime(2026, 1, 2, tzinfo=UTC)
    found = decode(
        "msgpack",
        fields,
        msgpack.packb({"id": 1, "raw": b"hi", "at": at}, datetime=True),
        msgpack.packb([2, b"ho", at], datetime=True),
        msgpack.packb([2, b"ho"]),
        msgpack.packb("text"),
    )
    assert found.values.to_pylist() == [
        {"id": 1, "raw": b"hi", "at": at},
        {"id": 2, "raw": b"ho", "at": at},
        None,
        None,
    ]
    assert "array of 3 values, found 2" in found.errors[2].as_py()


def test_an_arrow_message_may_hold_many_rows() -> None:
    found = decode("arrow", FIELDS, ipc(id=[1, 2], text=["a", "b"]), b"bad", ipc(id=[3]))
    assert found.parents == [0, 0, 1, 2]
    assert [row and row["id"] for row in found.values.to_pylist()] == [1, 2, None, 3]


def test_a_long_reason_is_cut() -> None:
    found = decode("json", FIELDS, b'{"id": "%s"}' % (b"x" * 10_000))
    assert len(found.errors[0].as_py()) <= 300

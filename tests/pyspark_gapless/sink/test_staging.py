"""Staged rows, manifests, encodings and options: all that needs no Spark."""

from __future__ import annotations

import json
import os
import re
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from gapless.errors import ConfigError
from pyspark_gapless.sink import options as sink_options, publisher as publishing, writer as sink
from pyspark_gapless.sink.publisher import publish
from pyspark_gapless.sink.publisher_process import PublisherProcess
from pyspark_gapless.sink.row_encoder import choose_encoding, make_encoder
from pyspark_gapless.sink.staging import (
    SinkError,
    StagedPartition,
    Staging,
    default_root,
    payloads_of,
    split_batch,
)
from pyspark_gapless.source.payload_decoder import make_decoder
from tests.support.sink_receiver import receiver, sink_options as options_for

SECOND_NS = 1_000_000_000


def batch(*payloads: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": pa.array(payloads, pa.binary())})


def read(staging: Staging, number: int) -> list[bytes]:
    manifest = staging.read_manifest(number)
    assert manifest is not None
    return [payload for _, each in staging.rows(manifest) for payload in payloads_of(each)[0]]


def test_a_batch_is_settled_once_and_its_files_go_when_it_is_published(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "q")
    first = [
        staging.stage(4, 1, [batch(b"c"), batch(b"d")]),
        staging.stage(4, 0, [batch(b"a", b"b")]),
    ]
    empty = staging.stage(4, 2, [])
    assert staging.commit_manifest(4, [*first, empty]).rows == 4
    assert read(staging, 4) == [b"a", b"b", b"c", b"d"], "partitions in their order"

    # The batch is computed again, with another result: what was settled holds, and the new files
    # go.
    again = [staging.stage(4, 0, [batch(b"x")])]
    assert (
        Staging(tmp_path, "q").commit_manifest(4, again).parts
        == staging.commit_manifest(4, first).parts
    )
    assert read(staging, 4) == [b"a", b"b", b"c", b"d"]
    assert not (staging.path / "rows" / again[0].name).exists()
    staging.discard(4, first)
    assert read(staging, 4) == [b"a", b"b", b"c", b"d"], "what is settled is not discarded"

    left = staging.stage(3, 0, [batch(b"of a task that nobody waited for")])
    later = staging.stage(5, 0, [batch(b"e")])
    assert staging.last_published_batch() == -1
    staging.mark_published(4)
    assert Staging(tmp_path, "q").last_published_batch() == 4
    assert staging.read_manifest(4) is None
    assert [path.name for path in (staging.path / "rows").iterdir()] == [later.name]
    assert not (staging.path / "rows" / left.name).exists()
    staging.discard(5, [later])
    staging.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_that_was_changed_or_lost_is_not_published(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "q")
    part = staging.stage(0, 0, [batch(b"a" * 1000)])
    staging.commit_manifest(0, [part])
    path = staging.path / "rows" / part.name
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + b"?" + whole[501:])
    with pytest.raises(SinkError, match=r"does not match its checksum: restore the file"):
        read(staging, 0)
    path.write_bytes(whole[:-8])
    with pytest.raises(SinkError, match="does not match its checksum"):
        read(staging, 0)
    path.unlink()
    with pytest.raises(SinkError, match="is missing"):
        read(staging, 0)
    far = StagedPartition(0, part.name, 1, part.size_bytes, part.crc, "another-machine")
    staging.commit_manifest(1, [far])
    with pytest.raises(SinkError, match=r"written on another-machine.*set the option staging"):
        read(staging, 1)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        SinkError, match=r"rows cannot be staged in .*file/q/rows on .*Set the option staging"
    ):
        Staging(tmp_path / "file", "q").stage(0, 0, [batch(b"a")])
    with (
        pytest.raises(SinkError, match="Set the option staging"),
        Staging(tmp_path / "file", "q").locked(0),
    ):
        pass
    staging = Staging(tmp_path, "q")
    staging.stage(0, 0, [batch(b"a")])
    (staging.path / "published.json").write_text("{")
    with pytest.raises(SinkError, match=r"published.json cannot be read"):
        staging.last_published_batch()
    (staging.path / "published.json").write_text('{"version": 9}')
    with pytest.raises(SinkError, match="version 9"):
        staging.last_published_batch()


def test_one_process_commits_at_a_time(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with Staging(tmp_path, "q").locked(SECOND_NS):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with (
        pytest.raises(SinkError, match=rf"another process.*process {os.getpid()} on"),
        Staging(tmp_path, "q").locked(SECOND_NS // 10),
    ):
        pass
    threading.Timer(0.2, leave.set).start()
    with Staging(tmp_path, "q").locked(30 * SECOND_NS):
        assert leave.is_set()
    thread.join()


@pytest.mark.parametrize(
    ("checkpoint", "given", "expected"),
    [
        ("/a/b", "", "/a/b/gapless-sink"),
        ("file:/a/b/", "", "/a/b/gapless-sink"),
        ("file:///a/b", "", "/a/b/gapless-sink"),
        ("hdfs://x/a", "/shared", "/shared"),
    ],
)
def test_where_rows_are_staged(checkpoint: str, given: str, expected: str) -> None:
    assert str(default_root(checkpoint, given)) == expected


@pytest.mark.parametrize("checkpoint", ["", "hdfs://x/a", "s3a://bucket/a"])
def test_where_rows_cannot_be_staged(checkpoint: str) -> None:
    with pytest.raises(SinkError, match="set the option staging"):
        default_root(checkpoint, "")


@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 10), st.integers(1, 200))
def test_slices_are_the_batch(payloads: list[bytes], most_rows: int, most_bytes: int) -> None:
    whole = batch(*payloads)
    parts = list(split_batch(whole, most_rows, most_bytes))
    assert [payload for part in parts for payload in payloads_of(part)[0]] == payloads
    assert all(0 < part.num_rows <= most_rows for part in parts)


# Encoding


MAP = pa.map_(pa.string(), pa.binary())


def schema(**kinds: pa.DataType) -> StructType:
    return from_arrow_schema(pa.schema(kinds))


def test_which_columns_are_the_messages() -> None:
    text, number = pa.string(), pa.int32()
    assert choose_encoding(schema(payload=pa.binary())).payload == "payload"
    assert choose_encoding(schema(value=text)).payload == "value"
    assert choose_encoding(schema(headers=MAP, payload=text)).headers == "headers"
    assert choose_encoding(schema(a=number, b=text), "json").columns == ("a", "b")
    assert choose_encoding(schema(a=number, headers=MAP), "msgpack").headers == "headers"
    for wrong in (
        schema(a=number),
        schema(a=number, b=text),
        schema(payload=text, key=text),
        schema(headers=pa.map_(text, text), payload=text),
    ):
        with pytest.raises(
            ConfigError, match=r"the message column is not clear.*option\(.format., .json.\)"
        ):
            choose_encoding(wrong)
    with pytest.raises(ConfigError, match="expected one of json, msgpack"):
        choose_encoding(schema(a=number), "avro")


def convert(rows: pa.RecordBatch, form: str = "", most_bytes: int = 10_000) -> pa.RecordBatch:
    return make_encoder(choose_encoding(from_arrow_schema(rows.schema), form), most_bytes)(rows)


def test_text_becomes_bytes_and_bad_rows_are_told() -> None:
    text = pa.RecordBatch.from_pydict({"value": ["ä", ""]})
    assert convert(text).column("payload").to_pylist() == ["ä".encode(), b""]
    with pytest.raises(SinkError, match="1 rows have a null payload"):
        convert(pa.RecordBatch.from_pydict({"value": ["a", None]}))
    with pytest.raises(SinkError, match=r"a message of 10001 bytes.*config.max_message_bytes"):
        convert(pa.RecordBatch.from_pydict({"value": ["a" * 10_001]}))
    wrong: list[tuple[list[tuple[str, bytes | None]], str]] = [
        ([("k", None)], "has a null value"),
        ([("", b"v")], "is empty"),
        ([("k" * 256, b"v")], "longer"),
    ]
    for headers, said in wrong:
        with pytest.raises(SinkError, match=said):
            convert(
                pa.RecordBatch.from_pydict({"payload": ["a"], "headers": pa.array([headers], MAP)})
            )


MANY = {
    "flag": pa.array([True, None]),
    "number": pa.array([2**60, -1]),
    "real": pa.array([0.5, None]),
    "text": pa.array(['ä"', None]),
    "raw": pa.array([b"\x00\xff", None]),
    "day": pa.array([date(2026, 1, 31), None]),
    "at": pa.array([datetime(2026, 1, 31, 12, 0, 0, 5, UTC), None], pa.timestamp("us", "UTC")),
    "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
    "tags": pa.array([["a", "b"], None]),
    "inner": pa.array([{"x": 1, "when": date(2026, 2, 1)}, None]),
    "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_whole_rows_are_read_back_by_the_source(form: str) -> None:
    rows = pa.RecordBatch.from_pydict(MANY)
    encoded = convert(rows, form).column("payload")
    read_back = make_decoder(form, rows.schema)(encoded)
    assert read_back.errors.null_count == 2, read_back.errors
    assert read_back.values.to_pylist() == rows.to_pylist()
    first: Any = (
        json.loads(encoded[0].as_py())
        if form == "json"
        else msgpack.unpackb(encoded[0].as_py(), timestamp=3)
    )
    assert first["number"] == 2**60


def test_what_json_does_not_have_is_told() -> None:
    with pytest.raises(SinkError, match="cannot be encoded as json"):
        convert(pa.RecordBatch.from_pydict({"real": [float("nan")], "x": [1]}), "json")


# Options


def test_options_are_read() -> None:
    given_options = {
        "group": "g",
        "minMembers": "3",
        "waitFor": "store, other",
        "joinTimeout": "5",
        "deliverTimeout": "200ms",
        "ports": "7800-7802,7900",
        "config.capacity": "64",
        "config.suspect_after": "1s",
    }
    options = sink_options.parse({name.lower(): value for name, value in given_options.items()})
    assert (options.min_members, options.wait_for, options.ports) == (
        3,
        ("store", "other"),
        (7800, 7801, 7802, 7900),
    )
    assert (options.join_timeout_ns, options.deliver_timeout_ns) == (5 * SECOND_NS, SECOND_NS // 5)
    assert (options.config.capacity, options.config.suspect_after_ns) == (64, SECOND_NS)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"group": ""}, 'the option "group" is missing'),
        ({"grop": "x"}, 'did you mean "group"'),
        ({"path": "/x"}, "rows go to a group"),
        ({"minMembers": "0"}, "whole number above zero"),
        ({"joinTimeout": "soon"}, 'option "joinTimeout"'),
        ({"transport": "pigeon"}, "expected one of auto"),
        ({"ports": "x"}, "expected ports"),
        ({"discover": "dir:/x"}, "is not a discovery URL"),
        ({"config.capacty": "1"}, "capacity"),
        ({"config": "/no/such/file.toml"}, "cannot read"),
    ],
)
def test_options_that_are_wrong_are_told(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sink_options.parse({"group": "g", **more})


# Publishing


def test_batches_are_published_by_one_member_that_stays_and_then_leaves(tmp_path: Path) -> None:
    with receiver() as (reader, ports):
        options = sink_options.parse(options_for(ports, stay="1s"))
        staging = Staging(tmp_path, "q")
        expected = []
        for number in range(3):
            rows = [b"%d-%d" % (number, row) for row in range(5000)]
            parts = [
                staging.stage(number, at, [batch(*rows[at * 2500 : (at + 1) * 2500])])
                for at in range(2)
            ]
            publish(staging, staging.commit_manifest(number, parts), options)
            expected += rows
        assert reader.until(15_000) == expected
        assert [(row.batch, row.row) for row in reader.rows()] == [
            (n, r) for n in range(3) for r in range(5000)
        ]
        assert {row.partition for row in reader.rows()} == {0, 1}
        assert publishing.member_for(options).joins == 1
        # It begins again, as after a crash: nobody sees a thing.
        manifest = staging.read_manifest(2)
        assert manifest is not None
        publish(staging, manifest, options)
        assert reader.all() == expected
        while reader.group.view is not None and len(reader.group.view.members) > 1:
            reader.group.wait_for_members(1)
            assert threading.Event().wait(0.05) is False
    publishing.leave_all()


def test_the_process_that_publishes_leaves_when_it_is_left_alone(tmp_path: Path) -> None:
    """A member that vanished would block the group for ``suspect_after``, a minute here."""
    staging = Staging(tmp_path, "q")
    rows = [b"%d" % row for row in range(3000)]
    knobs = {"suspect_after": "60s", "capacity": 64, "unread_limit": 64}
    with receiver(slow_after=500, **knobs) as (reader, ports):
        options = sink_options.parse(
            options_for(ports, **{f"config.{name}": value for name, value in knobs.items()})
        )
        publisher = PublisherProcess()
        failing = Staging(tmp_path, "other")
        lost = failing.commit_manifest(0, [StagedPartition(0, "nothing.arrow", 1, 1, 1)])
        with pytest.raises(SinkError, match="is missing"):
            publisher.publish(failing, lost, options)
        manifest = staging.commit_manifest(0, [staging.stage(0, 0, [batch(*rows)])])
        caught: list[SinkError] = []

        def publish_all() -> None:
            try:
                publisher.publish(staging, manifest, options)
            except SinkError as error:
                caught.append(error)

        thread = threading.Thread(target=publish_all)
        thread.start()
        reader.until(500)
        publisher._process.stdin.close()  # type: ignore[union-attr]  # as if its worker had been killed
        reader.go_on()
        thread.join(30)
        assert re.search(
            r"stopped in the middle of batch 0|has ended \(exit code 0\)", str(caught[0])
        )
        publisher.close()
        assert reader.group.view is not None
        assert len(reader.group.view.members) == 1
        again = PublisherProcess()
        again.publish(staging, manifest, options)
        again.close()
        assert reader.all() == rows


def test_nobody_there_or_nobody_of_that_name_is_told(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "q")
    manifest = staging.commit_manifest(0, [staging.stage(0, 0, [batch(b"a")])])
    with receiver() as (reader, ports):
        few = sink_options.parse(options_for(ports, joinTimeout="2s", minMembers=3))
        with pytest.raises(
            SinkError, match=r"'tests' was not joined within 2s: .*2 of 3 members.*minMembers"
        ):
            publish(staging, manifest, few)
        named = sink_options.parse(options_for(ports, joinTimeout="2s", waitFor="store"))
        with pytest.raises(SinkError, match=r"no member of .* has the durable name 'store'"):
            publish(staging, manifest, named)
        assert reader.found == []


def test_a_receiver_that_does_not_read_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    rows = [b"%d" % row for row in range(2000)]
    staging = Staging(tmp_path, "q")
    manifest = staging.commit_manifest(0, [staging.stage(0, 0, [batch(*rows)])])
    knobs = {"capacity": 64, "unread_limit": 64}
    with receiver(slow_after=1, **knobs) as (reader, ports):
        more = {f"config.{name}": value for name, value in knobs.items()}
        options = sink_options.parse(options_for(ports, deliverTimeout="1s", **more))
        with pytest.raises(SinkError, match=r"no progress for 1s.*of 2000 rows.*deliverTimeout"):
            publish(staging, manifest, options)
        reader.go_on()
        publish(staging, manifest, sink_options.parse(options_for(ports, **more)))
        assert reader.all() == rows
    publishing.leave_all()


def test_a_batch_that_was_begun_is_published_though_it_is_computed_again_without_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(tmp_path, "q")
    settled = staging.commit_manifest(
        7, [staging.stage(7, 0, [pa.record_batch({"payload": [b"a"]})])]
    )
    published: list[Any] = []
    monkeypatch.setattr(
        sink,
        "publish_out_of_process",
        lambda _staging, manifest, _options: published.append(manifest),
    )
    options = sink_options.parse({"group": "g"})
    writer = sink.GaplessStreamWriter(options, None, tmp_path)  # type: ignore[arg-type]
    writer.commit([], 7)
    assert published == [settled]
    assert staging.last_published_batch() == 7
    writer.commit([], 8)
    assert published == [settled]


class Unreadable:
    """Something that can be sent to another process and not be understood there."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


def test_a_publisher_that_understands_nothing_ends_and_says_so() -> None:
    publisher = PublisherProcess()
    with pytest.raises(SinkError, match="has ended"):
        publisher.publish(Unreadable(), Unreadable(), Unreadable())  # type: ignore[arg-type]
    publisher.close()

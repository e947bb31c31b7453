"""Options: what is read from them, and what is said about a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapless.errors import ConfigError
from pyspark_gapless.message_columns import COLUMNS
from pyspark_gapless.option_error import OptionError
from pyspark_gapless.sink import options as sink_options
from pyspark_gapless.source import schema as columns
from pyspark_gapless.source.options import (
    AT_DIGEST,
    AT_TIME,
    EARLIEST,
    LATEST,
    ReadPosition,
    parse,
)


def test_the_defaults(tmp_path: Path) -> None:
    options = parse({"spool": str(tmp_path)})
    assert options.spools == (str(tmp_path),)
    assert options.starting_position == ReadPosition(EARLIEST)
    assert options.end == ReadPosition(LATEST)
    assert options.fail_on_data_loss
    assert options.max_rows is options.max_bytes is None
    assert options.min_partitions == 1 <= options.max_partitions


def test_names_are_not_case_sensitive_and_replicas_have_commas() -> None:
    options = parse(
        {
            "SPOOL": "/a, /b",
            "maxrowspertrigger": "5",
            "MaxBytesPerTrigger": "2MiB",
            "failondataloss": "False",
        }
    )
    assert options.spools == ("/a", "/b")
    assert (options.max_rows, options.max_bytes, options.fail_on_data_loss) == (5, 2 << 20, False)


def test_a_path_is_a_spool_and_a_file_address_a_path() -> None:
    assert parse({"path": "file:///a/b"}).spools == ("/a/b",)


@pytest.mark.parametrize(
    ("text", "kind", "time_ns"),
    [
        ("2026-01-31T12:00:00Z", AT_TIME, 1769860800 * 10**9),
        ("1769860800000", AT_TIME, 1769860800 * 10**9),
    ],
)
def test_a_start_by_time(text: str, kind: str, time_ns: int) -> None:
    assert parse({"spool": "/a", "startingTimestamp": text}).starting_position == ReadPosition(
        kind, time_ns=time_ns
    )
    assert parse({"spool": "/a", "from": text}, streaming=False).begin == ReadPosition(
        kind, time_ns=time_ns
    )


def test_a_start_by_digest() -> None:
    options = parse({"spool": "/a", "startingOffsets": '{"b.1": 5, "a.1": 2}'})
    assert options.starting_position == ReadPosition(AT_DIGEST, {"a.1": 2, "b.1": 5})
    assert parse({"spool": "/a", "startingOffsets": "Latest"}).starting_position == ReadPosition(
        LATEST
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no spool and no group given"),
        ({"spool": " "}, "no spool and no group given"),
        ({"spool": "/a", "maxRowsPerTriger": "1"}, 'did you mean "maxRowsPerTrigger"'),
        ({"spool": "/a", "qqqqqqqq": "1"}, "the options are spool"),
        ({"spool": "/a", "path": "/b"}, "both"),
        ({"spool": "/a,/a"}, "twice"),
        ({"spool": "s3://bucket/x"}, "mount the storage"),
        ({"spool": "~nobody-of-this-name/x"}, "the user does not exist"),
        ({"spool": "/a\0b"}, "zero byte"),
        ({"spool": "/a", "startingOffsets": '{"01.6": 1}'}, "is not a stream"),
        ({"spool": "/a", "maxRowsPerTrigger": "0"}, "above zero"),
        ({"spool": "/a", "maxRowsPerTrigger": "many"}, "whole number"),
        ({"spool": "/a", "maxBytesPerTrigger": "1 parsec"}, "unknown unit"),
        ({"spool": "/a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"spool": "/a", "startingOffsets": "begin"}, "earliest, latest, or a digest"),
        ({"spool": "/a", "startingOffsets": '{"x": 1}'}, "not a stream"),
        ({"spool": "/a", "startingTimestamp": "2026-01-31T12:00:00"}, "no zone"),
        ({"spool": "/a", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"spool": "/a", "startingTimestamp": "1", "startingOffsets": "latest"}, "use only one"),
        ({"spool": "/a", "from": "soon"}, "earliest, latest, a digest or a time"),
        ({"spool": "/a", "reader": "a/b"}, "expected a name"),
        ({"spool": "/a", "minPartitions": "5", "maxPartitions": "2"}, "must not exceed"),
        ({"spool": "/a", "columns": "seqno,seqno"}, "named twice"),
        ({"spool": "/a", "columns": " , "}, "at least one name"),
        ({"spool": "/a", "release": "never"}, "one of sync, start"),
        ({"spool": "/a", "payload_format": "json"}, "payload_schema"),
        (
            {"spool": "/a", "payload_schema": "x int", "payload_format": "xml"},
            "one of json, msgpack, arrow",
        ),
        ({"spool": "/a", "payload_schema": ""}, "is empty"),
        ({"spool": "/a", "collector.name": "x"}, 'option "group"'),
        ({"spool": "/a,/b", "group": "g"}, "one spool"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_write(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse(given)


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    with pytest.raises(OptionError, match=r"belongs to spark.read; .* startingOffsets"):
        parse({"spool": "/a", "from": "earliest"}, streaming=True)
    with pytest.raises(OptionError, match=r"belongs to spark.readStream; .* from and to"):
        parse({"spool": "/a", "startingOffsets": "earliest"}, streaming=False)


def test_an_embedded_collector_has_a_spool_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    options = parse({"group": "plant/7", "collector.name": "store"})
    assert options.spools == (str(tmp_path / "gapless" / "spool" / "plant_7"),)
    assert options.collector == {"name": "store"}


# Columns

JSON_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in [("id", "long"), ("where", "string"), ("a b", "string")]
        ],
    }
)


def names(**options: str) -> list[str]:
    return [name for name, _ in columns.selected_columns(parse({"spool": "/a"} | options))]


def test_columns_are_all_unless_some_are_named() -> None:
    assert names() == list(COLUMNS)
    assert names(columns="seqno, origin") == ["seqno", "origin"]


def test_decoded_columns_take_the_place_of_the_payload() -> None:
    found = names(payload_schema="id long, tags array<string>")
    assert found == [*list(COLUMNS)[:-1], "id", "tags", "payload_error"]
    assert names(payload_schema="id long", columns="payload,id") == ["payload", "id"]
    assert names(payload_schema="id long", payload_format="arrow")[-2:] == [
        "payload_error",
        "payload_row",
    ]
    assert names(payload_schema="name string", payload_prefix="p_")[-2:] == [
        "p_name",
        "payload_error",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "id long, where struct<x:double,y:decimal(10, 2)>, `a b` string COMMENT 'x, y'",
        "struct<id:bigint,where:struct<x:double,y:decimal(10,2)>,`a b`:string>",
        JSON_SCHEMA,
    ],
)
def test_a_payload_schema_in_three_spellings(schema: str) -> None:
    assert names(payload_schema=schema)[-4:] == ["id", "where", "a b", "payload_error"]
    assert "`a b` string" in columns.ddl(parse({"spool": "/a", "payload_schema": schema}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": "nope"}, "there are group, origin"),
        ({"payload_schema": "name string"}, "payload_prefix"),
        ({"payload_schema": "id long, ID string"}, "twice"),
        ({"payload_schema": "id"}, "a name and a type"),
        ({"payload_schema": "id array<string"}, "close it"),
        ({"payload_schema": "id long not null"}, "remove NOT NULL"),
        ({"payload_schema": '{"type": 1}'}, "schema.json"),
        ({"payload_schema": ","}, "names no column"),
    ],
)
def test_wrong_columns_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        names(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ports": "9-3"}, "expected ports"),
        ({"config.capacity": "9" * 5000}, "expected a whole number"),
    ],
)
def test_wrong_options_of_a_sink_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sink_options.parse({"group": "g"} | given)

"""Reading an encrypted spool in Spark: the executors read the keyring, no secret travels."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gapless.keys.keyring import Keyring
from gapless.spool import SpoolCorrupt, SpoolKeyError
from gapless.spool.segment_file import segment_path
from pyspark_gapless.option_error import OptionError
from pyspark_gapless.source.options import parse
from tests.support.encrypted_spools import is_encrypted, put, raw_records
from tests.support.spools import (
    A,
    B,
    Writer,
    batch_reader,
    digest,
    latest,
    numbers,
    read,
    read_batch,
    stream_reader,
)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    Keyring.new(cipher="aes-256-gcm").create(path)
    return path


@pytest.fixture
def writer(tmp_path: Path, keys: Path) -> Writer:
    """A spool that begins in plain and goes on encrypted, with messages of every size."""
    made = Writer(tmp_path / "spool")
    made.runs(A, 100)
    made.commit()
    made.keys = keys
    made.restart()
    made.runs(A, 100)
    made.runs(B, 60, size=3)
    made.commit()
    made.runs(A, 100, size=50)
    made.large(B, b"large" * 20_000, 4)
    made.commit()
    assert is_encrypted(made.path, 2)
    return made


@pytest.mark.parametrize("partitions", ["1", "7"])
def test_a_batch_reads_everything(writer: Writer, keys: Path, partitions: str) -> None:
    """Also where a partition begins in the middle of a commit."""
    reader = batch_reader(writer.path, spoolKeys=str(keys), minPartitions=partitions)
    rows = read_batch(reader)
    assert sorted(numbers(rows, A)) == [*range(1, 301)]
    assert sorted(numbers(rows, B)) == [*range(1, 61), 64]
    for row in rows:
        if row["origin"] == "a.1":
            assert row["payload"] == b"a.1-%d" % row["seqno"]
    assert {row["payload"] for row in rows if row["seqno"] == 64 and row["origin"] == "b.1"} == {
        b"large" * 20_000
    }
    assert {row["name"] for row in rows} == {"anna", "ben"}


def test_a_stream_goes_on_after_a_rotation(writer: Writer, keys: Path) -> None:
    reader = stream_reader(writer.path, spoolKeys=str(keys))
    middle = latest(reader, reader.initialOffset())
    assert digest(middle) == {"a.1": 300, "b.1": 64}
    Keyring.read(keys).add().promote().write(keys)
    writer.restart()
    writer.runs(A, 50)
    writer.commit()
    end = latest(reader, middle)
    assert numbers(read(reader, middle, end), A) == [*range(301, 351)]


def test_no_secret_is_in_a_partition(writer: Writer, keys: Path) -> None:
    parts = batch_reader(writer.path, spoolKeys=str(keys)).partitions()
    assert {part.keys_path for part in parts} == {str(keys)}
    ring = Keyring.read(keys)
    packed = pickle.dumps(parts)
    assert packed
    for secret in (ring.secret, ring.sealing_key.key.secret):
        assert secret not in packed
        assert secret.hex().encode() not in packed


def test_missing_keys_are_named_on_the_driver_and_on_executors(writer: Writer, keys: Path) -> None:
    label = Keyring.read(keys).sealing_key.label
    with pytest.raises(SpoolKeyError, match=f"with the key {label}.*option spoolKeys"):
        batch_reader(writer.path).partitions()
    reader = batch_reader(writer.path, spoolKeys=str(keys))
    parts = reader.partitions()
    keys.chmod(0o644)
    with pytest.raises(SpoolKeyError, match="other users can access the file"):
        [*reader.read(parts[0])]
    keys.unlink()
    with pytest.raises(SpoolKeyError, match="every machine that reads the spool needs a copy"):
        [*reader.read(parts[0])]
    with pytest.raises(SpoolKeyError, match="no such keyring"):
        batch_reader(writer.path, spoolKeys=str(keys)).partitions()


def test_a_record_in_plain_is_refused_after_the_plan_was_made(writer: Writer, keys: Path) -> None:
    """A user who can write to the folder may wait for the plan."""
    reader = batch_reader(writer.path, spoolKeys=str(keys), maxPartitions="1")
    (part,) = reader.partitions()
    record = [each for each in raw_records(writer.path, 2) if each.header.rows == 10][4]
    put(writer.path, 2, [record._replace(header=record.header._replace(marks=0))])
    with pytest.raises(SpoolCorrupt, match="not encrypted, in an encrypted segment"):
        [*reader.read(part)]


def test_a_changed_record_is_read_from_a_replica(tmp_path: Path, keys: Path) -> None:
    paths = []
    for name in ("one", "two"):
        made = Writer(tmp_path / name, keys=keys)
        made.runs(A, 100)
        made.commit()
        made.close()
        paths.append(made.path)
    options = {"spool": ",".join(map(str, paths)), "spoolKeys": str(keys)}
    reader = batch_reader(paths[0], **options)
    parts = reader.partitions()
    path = segment_path(paths[0], 1)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"\xf1GLR") + 104] ^= 1
    path.write_bytes(data)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert numbers(rows, A) == [*range(1, 101)]


def test_the_option_is_a_path() -> None:
    assert parse({"spool": "s", "spoolKeys": "file:/etc/k.toml"}).spool_keys == "/etc/k.toml"
    with pytest.raises(OptionError, match="spoolKeys"):
        parse({"spool": "s", "spoolKeys": "s3://bucket/k.toml"})

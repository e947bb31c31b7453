"""An encrypted spool: nobody reads, moves or adds messages without the keys; keys rotate."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from pathlib import Path

import pytest

from gapless.errors import ConfigError
from gapless.identity import Address
from gapless.keys.keyring import Keyring, StoredKey
from gapless.spool import (
    SpoolCorrupt,
    SpoolFull,
    SpoolKeyError,
    SpoolKeys,
    SpoolLimits,
    SpoolReader,
    SpoolWriter,
)
from gapless.spool.columnar import scan
from gapless.spool.encryption import WrongBodyError, encrypt_records
from gapless.spool.format import (
    BLOB,
    HEADER_BYTES,
    HEADER_START_BYTES,
    KEY,
    KEY_RECORD_BYTES,
    LOST,
    OPTIONAL_KIND,
    PREAMBLE_BYTES,
    RUN,
    STATE,
    TAG_BYTES,
    KeyTable,
    RecordDraft,
    encode_records,
    pack_preamble,
    parse_preamble,
)
from gapless.spool.fsck import check, repair
from gapless.spool.index import SegmentIndex
from gapless.spool.segment_file import index_path, list_segments, segment_path
from gapless.wire.seal_keys import KeyState, SealKey
from tests.support.deliveries import GROUP, A, B, Rows, expected, pieces, rows_of, run
from tests.support.encrypted_spools import (
    RawRecord,
    is_encrypted,
    key_tables,
    put,
    raw_commits,
    raw_records,
)

ROOT = Path(__file__).resolve().parents[2]
RING = Keyring.new(cipher="aes-256-gcm")
ROTATED = RING.add().promote()
OTHER = Keyring.new(cipher="aes-256-gcm")


def opened(path: Path, keys: Keyring | Path | None = RING, **limits: object) -> SpoolWriter:
    return SpoolWriter.open(
        path,
        group=GROUP,
        limits=SpoolLimits(**limits),  # type: ignore[arg-type]
        sync=False,
        keys=keys,
    )


def reader(path: Path, keys: Keyring | Path | None = RING) -> SpoolReader:
    return SpoolReader(path, keys=keys)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Several segments of two streams, with a message in pieces, a loss, names and a blob."""
    root = tmp_path / "spool"
    with opened(root, segment_bytes=4000) as writer:
        for at in range(20):
            writer.append(run(A, 1 + at * 5, 5 + at * 5), name="alpha")
            writer.append(run(B, 1 + at * 3, 3 + at * 3))
            writer.blob = b"kept %d" % at
            writer.commit()
        writer.append(pieces(A, 101, 104, 500))
        writer.append_lost(A, 105, 110)
        writer.append(run(A, 111, 120))
        writer.commit()
    assert len(list_segments(root)) >= 3
    return root


ROWS = {
    "a1.5": [*expected(A, 1, 100), *expected(A, 104, 104, 500), *expected(A, 111, 120)],
    "b2.7": expected(B, 1, 60),
}


def scanned(root: Path, keys: SpoolKeys | None) -> Rows:
    """Every message, read as Spark reads: from each record of each stream to the end."""
    found: Rows = {}
    view = SpoolReader(root, keys=keys)
    for index in view.segments():
        for at, key in enumerate(index.streams):
            origin = Address(*(int(part, 16) for part in key.split(".")))
            stream = index.streams[key]
            offsets = stream.column(2)
            wanted: dict[tuple[int, int], tuple[int, int, int]] = {
                origin: (at, stream.first - 1, stream.last)
            }
            chunks = scan(
                root,
                view.info.spool_id,
                index.number,
                offsets[0],
                index.end,
                wanted,
                keys,
                encrypted=index.is_encrypted,
            )
            for chunk in chunks:
                lengths, begin = iter(chunk.lengths.tolist()), 0
                for first, rows in zip(chunk.first.tolist(), chunk.rows.tolist(), strict=True):
                    for seqno in range(first, first + rows):
                        end = begin + next(lengths)
                        found.setdefault(key, []).append((seqno, chunk.payload[begin:end]))
                        begin = end
    return found


# Writing and reading


def test_everything_written_is_read_back(spool: Path) -> None:
    view = reader(spool)
    assert rows_of(view) == ROWS
    assert scanned(spool, SpoolKeys(RING)) == ROWS
    assert view.names() == {"a1.5": "alpha"}
    assert [tuple(hole) for hole in view.lost()] == [("a1.5", 105, 110, "lost")]
    assert all(is_encrypted(spool, number) for number in list_segments(spool))
    report = check(spool, keys=RING)
    assert (report.problems, report.notes, report.messages) == ([], [], 171)
    with opened(spool) as writer:
        assert (writer.blob, writer.marks) == (b"kept 19", {A: 120, B: 60})
        writer.append(run(A, 121, 130))
        writer.commit()
    assert rows_of(reader(spool))["a1.5"][-10:] == expected(A, 121, 130)


@pytest.mark.parametrize("budget_bytes", [1, 20, 300, 5000])
def test_limits_of_a_read_count_messages_and_not_tags(spool: Path, budget_bytes: int) -> None:
    """A position that cuts a run is found from its lengths, which are encrypted, too."""
    view = reader(spool)
    position: dict[str, int] = {}
    rows: Rows = {}
    while position != view.high():
        end = view.admit(position, view.high(), max_bytes=budget_bytes)
        assert end != position
        for key, more in rows_of(view, position, end).items():
            size_bytes = sum(len(message) for _, message in more)
            assert len(more) == 1 or size_bytes <= budget_bytes
            rows.setdefault(key, []).extend(more)
        position = end
    assert rows == ROWS


def test_no_file_shows_a_message_a_name_or_what_the_collector_keeps(spool: Path) -> None:
    shown = b"".join(path.read_bytes() for path in (spool / "segments").iterdir())
    assert list((spool / "segments").glob("*.idx"))
    for secret in (b"a1.5:1", b"b2.7:", b"alpha", b"kept", GROUP.encode(), b'"streams"'):
        assert secret not in shown


def test_equal_messages_are_not_seen_to_be_equal(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        for first in (1, 2, 3):
            writer.append(run(A, first, first)._replace(content=run(A, 1, 1).content))
            if first > 1:
                writer.commit()
    bodies = [record.body for record in raw_records(tmp_path, 1) if record.header.kind == RUN]
    assert len({body[:-TAG_BYTES] for body in bodies}) == len(bodies) == 3


def test_a_spool_without_keys_has_the_bytes_of_version_1() -> None:
    """The digest was made with the writer of 0.1."""
    drafts = [
        RecordDraft(STATE, Address(0, 0), 0, 0, 1, b"{}", b"blob"),
        RecordDraft(RUN, A, 1, 2, 2, b"\x01\0\x01\0", b"ab", 16, 3, 4, 5),
    ]
    buffers, offsets = encode_records(drafts, PREAMBLE_BYTES, 7)
    data = pack_preamble(bytes(16), 1, 9) + b"".join(buffers)
    index = SegmentIndex(1, len(data))
    index.add_record(RUN, "a1.5", 1, 2, 2, 2, (offsets[1], 110, 5))
    assert sha256(data + index.pack()).hexdigest() == PLAIN_DIGEST


PLAIN_DIGEST = "644fec398b2ddd006fe3ced1aad288abbe4f1a4a7dd655f3d865a348fd9229d1"


def test_an_older_reader_refuses_the_segment_and_its_index(spool: Path) -> None:
    """0.1 refuses a higher format, an unknown kind, and takes an index of another magic for bad."""
    data = segment_path(spool, 1).read_bytes()
    preamble = parse_preamble(data)
    assert preamble is not None
    assert preamble.format == 2
    assert not KEY & OPTIONAL_KIND
    assert index_path(spool, 1).read_bytes()[:8] == b"\xf1GLIDX\x02\n"


# Keys


def test_a_spool_is_readable_throughout_when_encrypted_later_and_rotated(tmp_path: Path) -> None:
    retired = ROTATED.retire(RING.sealing_key.key.key_id)
    for at, keys in enumerate((None, RING, ROTATED, retired)):
        with opened(tmp_path, keys, segment_bytes=4096) as writer:
            for first in range(1 + at * 20, 20 + at * 20, 10):
                writer.append(run(A, first, first + 9), name="alpha")
                writer.commit()
    for keys in (ROTATED, retired):
        assert rows_of(reader(tmp_path, keys)) == {"a1.5": expected(A, 1, 80)}
        assert check(tmp_path, keys=keys).problems == []
    assert not is_encrypted(tmp_path, 1)
    old, new = RING.sealing_key.key.key_id, ROTATED.sealing_key.key.key_id
    used = [table.key_id for table in key_tables(tmp_path)]
    assert used == sorted(used, key=[old, new].index)
    assert set(used) == {old, new}, "each commit says its key"
    assert reader(tmp_path, retired).segments()[0].key_ids == []


@pytest.mark.parametrize("keys", [None, OTHER])
def test_a_missing_key_is_named_with_the_remedy(spool: Path, keys: Keyring | None) -> None:
    label = RING.sealing_key.label
    before = {path: path.read_bytes() for path in spool.rglob("*.*")}
    for attempt in (
        lambda: reader(spool, keys).high(),
        lambda: opened(spool, keys),
        lambda: check(spool, keys=keys),
        lambda: repair(spool, keys=keys),
    ):
        with pytest.raises(SpoolKeyError, match=rf"with the key {label}.*--spool-keys") as error:
            attempt()
        assert error.value.key_id == label
        assert error.value.path is not None
        assert error.value.path.suffix == ".run"
    assert {path: path.read_bytes() for path in spool.rglob("*.*")} == before
    opened(spool).close()  # nothing keeps the lock


def test_a_key_with_another_secret_is_no_damage(spool: Path) -> None:
    text = RING.to_toml()
    secret = RING.sealing_key.key.secret.hex()
    wrong = Keyring.from_toml(text.replace(secret, "7" * 64))
    told = f"another secret or cipher than the key {RING.sealing_key.label}"
    with pytest.raises(SpoolKeyError, match=told):
        reader(spool, wrong).high()
    other = Keyring.from_toml(text.replace("aes-256-gcm", "chacha20-poly1305"))
    with pytest.raises(SpoolKeyError, match="another secret or cipher"):
        reader(spool, other).high()


def test_the_keys_of_the_spool_are_not_those_of_datagrams(tmp_path: Path) -> None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    with opened(tmp_path) as writer:
        writer.append(run(A, 1, 1))
        writer.commit()
    record = raw_records(tmp_path, 1)[-1]
    nonce = record.header.offset.to_bytes(8, "little") + bytes(4)
    with pytest.raises(InvalidTag):
        AESGCM(RING.sealing_key.key.secret).decrypt(nonce, record.body, None)


def test_running_writers_and_readers_follow_the_file(tmp_path: Path) -> None:
    path, root = tmp_path / "keys.toml", tmp_path / "spool"
    RING.create(path)
    keys = SpoolKeys(path)
    with SpoolWriter.open(root, group=GROUP, sync=False, keys=keys) as writer:
        writer.append(run(A, 1, 5))
        writer.commit()
        view = reader(root, path)
        assert len(rows_of(view)["a1.5"]) == 5
        ROTATED.write(path)
        keys._look_at_s = 0.0  # a second later
        writer.append(run(A, 6, 10))
        writer.commit()
        view.refresh()
        assert rows_of(view) == {"a1.5": expected(A, 1, 10)}
        assert key_tables(root)[-1].key_id == ROTATED.sealing_key.key.key_id
        for at, text in enumerate(
            ("damaged", OTHER.to_toml(), ROTATED.to_toml().replace("aes-256-gcm", "blake2b"))
        ):
            path.write_text(text)
            keys._look_at_s = 0.0
            writer.append(run(A, 11 + at, 11 + at))
            writer.commit()
    assert key_tables(root)[-1].key_id == ROTATED.sealing_key.key.key_id


def test_a_key_that_does_not_encrypt_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'blake2b' does not encrypt.*gapless keys new"):
        opened(tmp_path / "spool", Keyring.new(cipher="blake2b"))
    assert not (tmp_path / "spool").exists()


def test_a_keyring_that_others_can_read_is_refused(spool: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    RING.create(path)
    path.chmod(0o644)
    with pytest.raises(
        SpoolKeyError, match=r"keys of the spool: .*other users can access the file"
    ):
        reader(spool, path)
    with pytest.raises(SpoolKeyError, match="no such keyring"):
        reader(spool, tmp_path / "none.toml")


# A nonce is never used twice


def test_every_commit_has_a_salt_of_its_own(spool: Path) -> None:
    salts = [table.salt for table in key_tables(spool)]
    assert len(set(salts)) == len(salts) > 20


def test_a_commit_written_again_at_the_same_offset_has_another_key(tmp_path: Path) -> None:
    """After a crash, bytes of the lost commit may still be on the disk, or in a snapshot of it."""
    with opened(tmp_path) as writer:
        writer.append(run(A, 1, 5))
        writer.commit()
    before = segment_path(tmp_path, 1).read_bytes()
    written = []
    for _ in range(2):
        segment_path(tmp_path, 1).write_bytes(before)
        (tmp_path / "committed").unlink()
        with opened(tmp_path) as writer:
            writer.append(run(A, 6, 9), collected_ns=7)
            writer.commit()
        written.append(raw_commits(tmp_path, 1)[-1])
    (key, lost), (key_again, again) = written
    assert lost.header._replace(body_crc=0) == again.header._replace(body_crc=0)
    assert key.header.offset == key_again.header.offset
    assert key.body != key_again.body
    assert lost.body != again.body


def test_a_failed_commit_is_encrypted_anew(small_disk: Path) -> None:
    root = small_disk / "spool"
    writer = opened(root, max_bytes=0)
    writer.append(run(A, 1, 1, size_bytes=1000))
    writer.commit()
    ballast = small_disk / "ballast"
    free_bytes = shutil.disk_usage(small_disk).free
    ballast.write_bytes(bytes(free_bytes - 8192))
    writer.append(run(A, 2, 50, size_bytes=1000))
    seen: list[bytes] = []
    places: list[object] = []
    encode = writer._store._encode

    def listened(*arguments: object) -> object:
        result = encode(*arguments)  # type: ignore[arg-type]
        seen.append(result[0][1])
        places.append(arguments[1:3])
        return result

    writer._store._encode = listened  # type: ignore[method-assign, assignment]
    with pytest.raises(SpoolFull):
        writer.commit()
    ballast.unlink()
    writer.commit()
    writer.close()
    assert len(places) == 2
    assert places[0] == places[1], "the same segment and offset"
    assert len(set(seen)) == len(seen)
    assert rows_of(reader(root)) == {"a1.5": expected(A, 1, 50, 1000)}


def test_repair_encrypts_anew(spool: Path) -> None:
    before = {table.salt for table in key_tables(spool)}
    damage(spool, 2)
    repair(spool, keys=RING)
    changed = [record for record in raw_records(spool, 2) if record.header.kind == KEY]
    assert changed
    assert not {record.body[4:20] for record in changed} & before


# Nothing passes in another place


def damage(root: Path, number: int) -> RawRecord:
    """Flip a bit of the body of a run, and leave the checksums as they were."""
    record = [each for each in raw_records(root, number) if each.header.kind == RUN][1]
    path = segment_path(root, number)
    data = bytearray(path.read_bytes())
    data[record.header.offset + HEADER_BYTES + 3] ^= 4
    path.write_bytes(data)
    return record


def refused(root: Path, at_least: int = 1) -> None:
    """Everything that reads a message of a changed record calls it damage."""
    assert len(check(root, keys=RING).problems) >= at_least
    reads: list[Callable[[], Rows]] = [
        lambda: rows_of(reader(root)),
        lambda: scanned(root, SpoolKeys(RING)),
    ]
    for read in reads:
        with pytest.raises(SpoolCorrupt, match=r"gapless spool check|not encrypted"):
            read()


def runs_of(root: Path, number: int) -> list[RawRecord]:
    return [record for record in raw_records(root, number) if record.header.kind == RUN]


def test_a_changed_body_with_new_checksums_is_damage(spool: Path) -> None:
    record = runs_of(spool, 2)[2]
    put(spool, 2, [record._replace(body=bytes([record.body[0] ^ 1]) + record.body[1:])])
    refused(spool)


@pytest.mark.parametrize(
    "change",
    [
        {"sent_ns": 1},
        {"view": 9},
        {"flags": 16},
        {"collected_ns": 1},
        {"marks": 3},
        {"kind": BLOB},
    ],
)
def test_a_changed_header_with_new_checksums_is_damage(spool: Path, change: dict[str, int]) -> None:
    record = runs_of(spool, 2)[2]
    assert any(getattr(record.header, name) != value for name, value in change.items())
    put(spool, 2, [record._replace(header=record.header._replace(**change))])
    assert check(spool, keys=RING).problems
    with pytest.raises(SpoolCorrupt):
        rows_of(reader(spool))


def test_a_message_cannot_be_declared_lost(spool: Path) -> None:
    """Readers skip what is lost without reading it, so the index believes no forged loss."""
    number = list_segments(spool)[-1]
    record = runs_of(spool, number)[0]
    put(spool, number, [record._replace(header=record.header._replace(kind=LOST))])
    assert check(spool, keys=RING).problems
    view = reader(spool)
    assert {tuple(hole)[3] for hole in view.lost() if hole.first == record.header.first} == {
        "missing"
    }
    with pytest.raises(SpoolCorrupt, match="are missing"):
        rows_of(view)


def test_messages_cannot_change_their_seqnos_or_their_sender(spool: Path) -> None:
    a, b = (record.header for record in runs_of(spool, 2)[2:4])
    assert (a.rows, b.rows) == (5, 3)
    again = runs_of(spool, 2)[4]
    put(spool, 2, [again._replace(header=again.header._replace(first=a.first, last=a.last))])
    with pytest.raises(SpoolCorrupt):
        rows_of(reader(spool))
    put(spool, 2, [again, again._replace(header=again.header._replace(node=0xC3))])
    with pytest.raises(SpoolCorrupt):
        rows_of(reader(spool))


def equal_commits(root: Path) -> None:
    """A spool of two segments, with commits of one size at the same offsets."""
    with opened(root, segment_bytes=4096) as writer:
        for first in (101, 106, 111):
            writer.append(run(A, first, first + 4))
            writer.commit()
        writer._store.seal()
        for first in (116, 121, 126):
            writer.append(run(A, first, first + 4))
            writer.commit()
    assert list_segments(root) == [1, 2]


def with_fields_of(commit: list[RawRecord], place: list[RawRecord]) -> list[RawRecord]:
    """A whole commit, with the headers of another place: what no key is needed for."""
    return [theirs._replace(body=ours.body) for ours, theirs in zip(commit, place, strict=True)]


def test_a_commit_in_the_place_of_another_is_damage(tmp_path: Path) -> None:
    equal_commits(tmp_path)
    _, second, third = raw_commits(tmp_path, 1)
    put(tmp_path, 1, with_fields_of(second, third))
    refused(tmp_path)


def test_a_commit_moved_with_its_own_headers_is_damage(tmp_path: Path) -> None:
    """Also with the seqnos that it had: an old commit does not come back at another offset."""
    equal_commits(tmp_path)
    _, second, third = raw_commits(tmp_path, 1)
    by_bytes = third[0].header.offset - second[0].header.offset
    put(tmp_path, 1, [record.moved(by_bytes) for record in second])
    assert check(tmp_path, keys=RING).problems
    with pytest.raises(SpoolCorrupt):
        rows_of(reader(tmp_path))


@pytest.mark.parametrize(("spool_id", "segment"), [(bytes(16), 2), (bytes([*range(16)]), 1)])
def test_the_tag_covers_the_segment_and_the_spool(spool_id: bytes, segment: int) -> None:
    """A commit of the same offset with its own KEY record opens nowhere else."""
    keys, draft = SpoolKeys(RING), RecordDraft(RUN, A, 1, 1, 1, b"\x01\0", b"a")
    cipher = keys.new_cipher(bytes(16), 1)
    (_, table, header, body), _ = encrypt_records([draft], 1000, 7, cipher)
    place = (KeyTable.unpack(table), Path("segment"), 1000)
    packed = header[HEADER_START_BYTES:]
    assert keys.cipher_of(*place, bytes(16), 1).decrypt(packed, body) == b"\x01\0a"
    with pytest.raises(WrongBodyError):
        keys.cipher_of(*place, spool_id, segment).decrypt(packed, body)


def test_a_commit_of_another_spool_is_damage(tmp_path: Path) -> None:
    """With the same ring, group, number and offsets, and all checksums made anew."""
    for name in ("one", "two"):
        with SpoolWriter.open(
            tmp_path / name, group=GROUP, sync=False, keys=RING, node=7
        ) as writer:
            for first in (1, 6):
                writer.append(run(A, first, first + 4), collected_ns=5)
                writer.commit()
    ours, theirs = (raw_commits(tmp_path / name, 1)[1] for name in ("one", "two"))
    assert [each.header.offset for each in ours] == [each.header.offset for each in theirs]
    put(tmp_path / "one", 1, theirs)
    refused(tmp_path / "one")


def test_a_record_in_plain_behind_encrypted_ones_is_refused(spool: Path) -> None:
    """Otherwise whoever can write to the folder could add messages without any key."""
    record = runs_of(spool, 2)[2]
    header = record.header._replace(marks=record.header.marks & 1)
    put(spool, 2, [record._replace(header=header)])
    refused(spool)


def test_a_writer_reports_a_record_in_plain_and_believes_nothing_of_it(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        for first in (1, 6, 11):
            writer.append(run(A, first, first + 4))
            writer.commit()
    record = runs_of(tmp_path, 1)[-1]
    header = record.header._replace(marks=1, last=1000)
    put(tmp_path, 1, [record._replace(header=header)])
    with opened(tmp_path) as writer:
        assert writer.marks == {A: 10}
        assert len(writer.recovered.damage) == 1


def test_a_segment_in_plain_behind_encrypted_ones_is_refused(spool: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(spool, forged)
    for path in (forged / "segments").iterdir():
        path.unlink()
    (forged / "committed").unlink()
    with opened(forged, None) as writer:
        writer.append(run(A, 1, 1))
        writer.commit()
    last = list_segments(spool)[-1]
    (number,) = list_segments(forged)
    records = raw_records(forged, number)
    path = segment_path(spool, last + 1)
    path.write_bytes(pack_preamble(reader(spool).info.spool_id, last + 1, 0) + bytes(4096))
    put(spool, last + 1, records)
    (spool / "committed").unlink()
    with pytest.raises(SpoolCorrupt, match="not encrypted, although segment 1 is"):
        reader(spool).high()
    assert check(spool, keys=RING).problems
    repair(spool, keys=RING)
    assert check(spool, keys=RING).problems == []
    assert rows_of(reader(spool)) == ROWS


def test_an_index_in_plain_is_not_believed(spool: Path) -> None:
    """Positions in it could hide messages, and marks in it could make a writer skip some."""
    forged = SegmentIndex(1, PREAMBLE_BYTES)
    index_path(spool, 1).write_bytes(forged.pack())
    assert rows_of(reader(spool)) == ROWS


@pytest.mark.parametrize("damaged", ["head", "entries", "torn"])
def test_a_bad_index_is_made_again(spool: Path, damaged: str) -> None:
    path = index_path(spool, 2)
    data = bytearray(path.read_bytes())
    data[{"head": 60, "entries": -3, "torn": 0}[damaged]] ^= 1
    path.write_bytes(data[:-5] if damaged == "torn" else data)
    assert len(check(spool, keys=RING).notes) == 1
    assert rows_of(reader(spool)) == ROWS
    repair(spool, keys=RING)
    assert check(spool, keys=RING).notes == []
    assert index_path(spool, 2).read_bytes()[:8] == b"\xf1GLIDX\x02\n"


# Damage and crashes


def test_damage_costs_its_messages_and_no_other(spool: Path) -> None:
    record = damage(spool, 2)
    key = str(record.header.origin)
    report = check(spool, keys=RING)
    (problem,) = [each for each in report.problems if each.stream]
    told = (problem.offset, problem.stream, problem.first, problem.last)
    assert told == (record.header.offset, key, record.header.first, record.header.last)
    refused(spool)
    repair(spool, keys=ROTATED)
    assert check(spool, keys=ROTATED).problems == []
    wanted = {name: list(rows) for name, rows in ROWS.items()}
    wanted[key] = [
        row for row in wanted[key] if not record.header.first <= row[0] <= record.header.last
    ]
    assert rows_of(reader(spool, ROTATED)) == wanted
    assert is_encrypted(spool, 2), "what was encrypted stays so"
    kept = (spool / "damaged" / f"{2:020d}-{record.header.offset}.bytes").read_bytes()
    assert len(kept) == record.header.size_bytes


def test_a_damaged_key_record_costs_its_commit_and_no_other(spool: Path) -> None:
    commit = raw_commits(spool, 2)[1]
    path = segment_path(spool, 2)
    data = bytearray(path.read_bytes())
    data[commit[0].header.offset + HEADER_BYTES + 7] ^= 4
    path.write_bytes(data)
    lost = {
        (str(each.header.origin), each.header.first, each.header.last)
        for each in commit
        if each.header.kind == RUN
    }
    assert len(lost) == 2
    problems = check(spool, keys=RING).problems
    assert {(each.stream, each.first, each.last) for each in problems if each.stream} == lost
    repair(spool, keys=RING)
    assert check(spool, keys=RING).problems == []
    assert {tuple(hole)[:3] for hole in reader(spool).lost()} == {*lost, ("a1.5", 105, 110)}


def test_a_segment_without_any_good_record_stays_encrypted(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.append(run(A, 1, 5), name="alpha")
        writer.commit()
    path = segment_path(tmp_path, 1)
    data = path.read_bytes()
    path.write_bytes(data[:PREAMBLE_BYTES] + bytes(len(data) - PREAMBLE_BYTES))
    repair(tmp_path, keys=RING)
    assert is_encrypted(tmp_path, 1)
    assert check(tmp_path, keys=RING).problems == []


def test_a_spool_goes_on_without_the_segments_of_a_lost_key(tmp_path: Path) -> None:
    root, taken = tmp_path / "spool", tmp_path / "taken"
    for at, keys in enumerate((RING, RING, ROTATED, ROTATED)):
        with opened(root, keys) as writer:
            writer.append(run(A, 1 + at * 10, 10 + at * 10))
            writer.commit()
            writer._store.seal()
            writer._begin_segment([])
            writer._store.publish_committed()
    left = Keyring(ROTATED.secret, (ROTATED.sealing_key,))
    taken.mkdir()
    lost, found = RING.sealing_key, reader(root, ROTATED).segments()
    numbers = {index.number for index in found if lost.key.key_id in index.key_ids}
    while numbers:
        with pytest.raises(SpoolKeyError, match=f"with the key {lost.label}") as error:
            repair(root, keys=left)
        assert error.value.path is not None
        numbers.remove(int(error.value.path.stem))
        error.value.path.rename(taken / error.value.path.name)
    repair(root, keys=left)
    assert check(root, keys=left).problems == []
    assert rows_of(reader(root, left)) == {"a1.5": expected(A, 31, 40)}
    with opened(root, left) as writer:
        assert writer.marks == {A: 40}


def test_a_torn_commit_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    root, copy = tmp_path / "spool", tmp_path / "copy"
    with opened(root) as writer:
        writer.append(run(A, 1, 5))
        writer.commit()
        end = segment_path(root, 1).stat().st_size
        writer.append(run(A, 6, 8))
        writer.append(run(B, 1, 3))
        writer.commit()
    data = segment_path(root, 1).read_bytes()
    (root / "committed").unlink()
    for size_bytes in (*range(end, len(data), 29), end + KEY_RECORD_BYTES, len(data) - 1):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        segment_path(copy, 1).write_bytes(data[:size_bytes])
        with opened(copy) as writer:
            assert writer.recovered.truncated_bytes == size_bytes - end
            assert writer.recovered.damage == ()
            writer.append(run(A, 6, 7))
            writer.commit()
        assert rows_of(reader(copy)) == {"a1.5": expected(A, 1, 7)}
    segment_path(root, 1).write_bytes(data)
    with opened(root) as writer:
        assert writer.marks == {A: 8, B: 3}


def test_pending_bytes_are_those_that_a_commit_writes(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.append(run(A, 1, 1))
        writer.commit()
        before_bytes = writer.usage().used_bytes
        for first in (2, 3, 4):
            writer.append(run(A, first, first))
        writer.append_lost(A, 5, 9)
        pending_bytes = writer.pending_bytes
        writer.commit()
        grown_bytes = writer.usage().used_bytes - before_bytes
    assert grown_bytes == pending_bytes + KEY_RECORD_BYTES


def test_limits_count_what_encryption_adds(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=64 * 1024, policy="drop-oldest") as writer:
        for first in range(1, 3000, 3):
            writer.append(run(A, first, first + 2))
            if first % 7 == 0:
                writer.commit()
                assert writer.usage().used_bytes <= 64 * 1024
    files = sum(path.stat().st_size for path in (tmp_path / "segments").glob("*.run"))
    assert files <= 64 * 1024


def test_the_vector_of_the_reference() -> None:
    """Another implementation, from docs/reference/spool.md alone."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    secret, salt = bytes(range(32)), bytes(range(32, 48))
    spool_id, segment, offset = bytes(range(48, 64)), 3, 1000
    key = SealKey(0x15930001, secret, KeyState.SEAL)
    keys = SpoolKeys(Keyring(bytes(32), (StoredKey(key, datetime.now(UTC)),)))
    keys_table = KeyTable(
        key.key_id, salt, blake2b_of(salt + b"aes-256-gcm", secret, b"spchk-1", 8)
    )
    cipher = keys.cipher_of(keys_table, Path("segment"), offset, spool_id, segment)
    draft = RecordDraft(RUN, A, 1, 2, 2, b"\x01\0\x02\0", b"abb", 16, 3, 4, 5)
    (_, table, header, body), (at,) = encrypt_records([draft], offset, 0, cipher)
    assert at == offset + 104 + 28
    commit_key = blake2b_of(salt, secret, b"spool-1", 32)
    nonce = at.to_bytes(8, "little") + bytes(4)
    associated = spool_id + segment.to_bytes(8, "little") + header[12:]
    assert AESGCM(commit_key).decrypt(nonce, body, associated) == b"\x01\0\x02\0abb"
    page = (ROOT / "docs" / "reference" / "spool.md").read_text()
    for value in (table, commit_key, nonce, associated, body):
        assert f"`{value.hex()}`" in page, value.hex()


def blake2b_of(data: bytes, secret: bytes, person: bytes, size_bytes: int) -> bytes:
    person = b"gapless-" + person
    return blake2b(data, key=secret, person=person, digest_size=size_bytes).digest()

"""What Gapless writes is for its user alone, no matter the umask; unsafe folders are refused."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from gapless.discovery import SharedFile
from gapless.errors import ConfigError, GaplessError
from gapless.output.private_files import (
    make_inner_folder,
    make_private_folder,
    open_private,
    unsafe_folder,
)
from gapless.spool import SpoolMismatch, SpoolReader, SpoolWriter
from gapless.spool.fsck import repair
from gapless.trace import seal
from gapless.trace.journal import ROW_STRUCT, TraceJournal
from gapless.units import NS_PER_S
from gapless_lab.demo.plan import DemoPlan
from gapless_lab.sensor_pipeline.plan import locked
from pyspark_gapless.runtime.cache_dir import CacheError, cache_directory
from pyspark_gapless.sink import options as sink_options, writer as sink
from pyspark_gapless.sink.row_encoder import choose_encoding
from pyspark_gapless.sink.staging import SinkError, Staging
from tests.support.announcements import announced, at
from tests.support.commands import command_group
from tests.support.deliveries import GROUP, A, opened, run

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    """Create with every permission that a program asks for."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(root: Path) -> set[tuple[str, int]]:
    """Return the kinds and modes of a folder and of everything inside."""
    return {
        ("folder" if path.is_dir() else "file", mode(path)) for path in [root, *root.rglob("*")]
    }


PRIVATE = {("folder", 0o700), ("file", 0o600)}


def planted(tmp_path: Path, name: str = "planted") -> Path:
    """Return a folder that another user made where every user can write."""
    shared = tmp_path / "shared"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o1777)
    folder = shared / name
    folder.mkdir(0o700)
    os.chown(folder, OTHER_USER, OTHER_USER)
    return folder


def write_spool(path: Path) -> None:
    with opened(path, segment_bytes=1) as spool:
        spool.append(run(A, 1, 10))
        spool.commit()
        spool.append(run(A, 11, 20))
        spool.commit()
        (path / "readers").rmdir()
        SpoolReader(path).register("spark", {})


def write_journal(path: Path) -> None:
    journal = TraceJournal(path / "a.1")
    journal.intern_text("why")
    journal.write_rows([bytes(ROW_STRUCT.size)])
    journal.close()


def stage(path: Path) -> None:
    staging = Staging(path, "q")
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"a"], pa.binary())})
    with staging.locked(NS_PER_S):
        staging.commit_manifest(1, [staging.stage(1, 0, [batch])])


# Folders and files


def test_new_folders_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_inner_folder(tmp_path / "a" / "b" / "c")
    os.close(open_private(tmp_path / "a" / "b" / "file", os.O_WRONLY | os.O_CREAT))
    assert modes(tmp_path / "a") == PRIVATE


@pytest.mark.parametrize(
    ("folder", "inner", "file"),
    [
        (0o700, 0o700, 0o600),
        (0o711, 0o711, 0o600),
        (0o750, 0o750, 0o640),
        (0o755, 0o755, 0o644),
        (0o2770, 0o770, 0o660),
        (0o777, 0o755, 0o644),
        (0o1777, 0o755, 0o644),
    ],
)
def test_a_prepared_folder_says_who_may_read(
    tmp_path: Path, folder: int, inner: int, file: int
) -> None:
    place = tmp_path / "prepared"
    place.mkdir()
    place.chmod(folder)
    make_private_folder(place)
    make_inner_folder(place / "inner")
    os.close(open_private(place / "file", os.O_WRONLY | os.O_CREAT))
    make_private_folder(place / "own")
    assert mode(place) == folder, "an existing folder keeps its mode"
    assert mode(place / "inner") & 0o777 == inner
    assert mode(place / "file") == file
    assert mode(place / "own") & 0o777 == 0o700


def test_the_umask_narrows_what_a_prepared_folder_allows(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    os.umask(0o077)
    make_inner_folder(tmp_path / "inner")
    os.close(open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    assert (mode(tmp_path / "inner"), mode(tmp_path / "file")) == (0o700, 0o600)


def test_what_exists_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o664)
    os.close(open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    assert mode(tmp_path / "file") == 0o664
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "inner")
    with pytest.raises(FileExistsError):
        make_inner_folder(tmp_path, is_new=True)


def test_a_folder_that_every_user_can_write_to_is_refused(tmp_path: Path) -> None:
    for allowed in (0o700, 0o750, 0o755, 0o775, 0o2770):
        tmp_path.chmod(allowed)
        assert unsafe_folder(tmp_path) == ""
    for refused in (0o777, 0o1777, 0o702):
        tmp_path.chmod(refused)
        assert f"chmod o-w {tmp_path}" in unsafe_folder(tmp_path)
        assert unsafe_folder(tmp_path / "missing") == ""
        (tmp_path / f"own-{refused}").mkdir(0o700)
        assert unsafe_folder(tmp_path / f"own-{refused}") == "", "a private folder inside is safe"


@needs_root
def test_a_folder_of_another_user_is_refused_where_every_user_can_write(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    assert f"{folder} belongs to another user (uid {OTHER_USER})" in unsafe_folder(folder)
    (folder / "inner").mkdir(0o700)
    assert "another user" in unsafe_folder(folder / "inner"), "its owner can replace the inner one"
    link = folder.with_name("link")
    link.symlink_to(tmp_path)
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    assert "another user" in unsafe_folder(link), "a link to a folder of this user"
    prepared = tmp_path / "prepared"
    prepared.mkdir(0o770)
    os.chown(prepared, OTHER_USER, OTHER_USER)
    assert unsafe_folder(prepared) == "", "nobody but this user could put it there"


@needs_root
def test_a_new_file_of_root_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    """A repair by root leaves a spool that its collector can read."""
    spool = tmp_path / "spool"
    write_spool(spool)
    for path in (spool, *spool.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    segment = min((spool / "segments").glob("*.run"))
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    assert repair(spool).problems
    assert modes(spool) == PRIVATE, "also what was cut out, in damaged"
    assert {path.stat().st_uid for path in (spool / "segments").iterdir()} == {OTHER_USER}
    existing = spool / "kept"
    existing.touch()
    os.close(open_private(existing, os.O_WRONLY | os.O_CREAT))
    assert existing.stat().st_uid == 0, "an existing file is never given away"


# Every writer


@pytest.mark.parametrize("write", [write_spool, write_journal, stage])
def test_spool_trace_and_staging_are_private(tmp_path: Path, write: object) -> None:
    assert callable(write)
    write(tmp_path / "new" / "place")
    assert modes(tmp_path / "new") == PRIVATE
    wide = tmp_path / "wide"
    wide.mkdir(0o750)
    write(wide)
    assert modes(wide) == {("folder", 0o750), ("file", 0o640)}, "prepared for a group"


@pytest.mark.parametrize(
    ("write", "error"),
    [(write_spool, SpoolMismatch), (write_journal, GaplessError), (stage, SinkError)],
)
def test_spool_trace_and_staging_refuse_an_unsafe_folder(
    tmp_path: Path, write: object, error: type[Exception]
) -> None:
    assert callable(write)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(0o777)
    with pytest.raises(error, match="use a new folder inside"):
        write(open_to_all)
    assert list(open_to_all.iterdir()) == []
    write(open_to_all / "inside")
    assert modes(open_to_all / "inside") == PRIVATE
    if os.geteuid() == 0:
        with pytest.raises(error, match="belongs to another user"):
            write(planted(tmp_path))


def test_a_spool_that_became_open_to_all_is_refused(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool")
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(SpoolMismatch, match="chmod o-w"):
        SpoolWriter.open(tmp_path / "spool", group=GROUP, create=False)
    assert SpoolReader(tmp_path / "spool").high(), "reading stays possible"


def test_a_sealed_trace_is_private(tmp_path: Path) -> None:
    write_journal(tmp_path / "trace")
    journal = TraceJournal(tmp_path / "trace" / "b.1")
    journal.write_rows([bytes(ROW_STRUCT.size)])
    journal.stop("disk full")
    assert len(seal(tmp_path / "trace").files) == 2
    assert modes(tmp_path / "trace") == PRIVATE


def test_a_shared_file_and_its_lock_are_private_in_a_private_folder(tmp_path: Path) -> None:
    source = SharedFile(tmp_path / "orders.json", group="orders")
    announced(source, at("127.0.0.1:7001", 1))
    assert {path.name for path in tmp_path.iterdir()} == {"orders.json", "orders.json.lock"}
    assert modes(tmp_path) == PRIVATE
    source.close()


def test_the_lock_of_a_shared_file_is_not_followed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "orders.json.lock").symlink_to(tmp_path / "elsewhere")
    source = SharedFile(tmp_path / "orders.json", group="orders")
    announced(source, at("127.0.0.1:7001", 1))
    assert not (tmp_path / "elsewhere").exists()
    assert [problem.reason for problem in source.problems.of("")] == ["write"]
    source.close()


def test_a_write_of_a_data_frame_stages_in_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = sink_options.parse({"group": "orders"})
    schema = pa.schema([("payload", pa.binary())])
    encoding = choose_encoding(from_arrow_schema(schema), options.payload_format)
    staging = sink.GaplessBatchWriter(options, encoding).staging
    assert staging.root == tmp_path / f"gapless-sink-{os.getuid()}"
    staging.stage(0, 0, [])
    assert modes(staging.root) == PRIVATE
    if os.geteuid() == 0:
        os.chown(staging.root, OTHER_USER, OTHER_USER)
        with pytest.raises(SinkError, match="belongs to another user"):
            staging.stage(0, 1, [])


def test_the_cache_of_spark_is_private_and_refused_if_open_to_all(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert cache_directory("a", "b", environ=environ) == tmp_path / "cache" / "gapless" / "a" / "b"
    assert modes(tmp_path / "cache") == {("folder", 0o700)}
    (tmp_path / "cache" / "gapless").chmod(0o777)
    with pytest.raises(CacheError, match="every user of this machine can write"):
        cache_directory("a", "b", environ=environ)


@needs_root
def test_the_cache_of_spark_is_not_reached_through_a_link_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o700)
    link = tmp_path / "gapless"
    link.symlink_to(tmp_path / "mine")
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(CacheError, match="belongs to another user"):
        cache_directory(environ={"XDG_CACHE_HOME": str(tmp_path)})


def test_outputs_of_demo_and_pipeline_are_private(tmp_path: Path) -> None:
    plan = DemoPlan(output=tmp_path / "demo" / "one")
    with plan.locked_output():
        assert modes(tmp_path / "demo") == PRIVATE
    with locked(tmp_path / "pipeline"):
        assert modes(tmp_path / "pipeline") == PRIVATE
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(0o777)
    with (
        pytest.raises(ConfigError, match="use a new folder inside"),
        DemoPlan(output=open_to_all).locked_output(),
    ):
        pass
    with pytest.raises(ConfigError, match="use a new folder inside"), locked(open_to_all):
        pass


def test_a_real_collector_writes_private_files(tmp_path: Path) -> None:
    spool, trace = tmp_path / "data" / "spool", tmp_path / "data" / "trace"
    with command_group(2) as group:
        collector = group.start("collect", "--spool", str(spool), "--trace", str(trace))
        collector.next_line("collecting into", "stderr")
        sender = group.start("send", "--timeout", "50")
        sender.write("secret\n")
        assert sender.end()[0] == 0
        collector.interrupt()
        assert collector.end()[0] == 0
    assert len(list(spool.rglob("*.run"))) == 1
    assert len(list(trace.rglob("lives.jsonl"))) == 1
    assert modes(tmp_path / "data") == PRIVATE


def test_a_collector_refuses_an_unsafe_folder_with_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with command_group(1) as group:
        code, out, err = group.start("collect", "--spool", str(tmp_path)).end()
    assert (code, out) == (2, b"")
    assert err == f"gapless: {unsafe_folder(tmp_path)}\n"

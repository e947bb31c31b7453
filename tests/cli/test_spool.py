"""``gapless spool``: tables, JSON output, and one line with exit code 2 for wrong input."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gapless.cli.app import run as gapless
from gapless.group.headers import attach_headers
from gapless.keys.keyring import Keyring
from gapless.protocol.ready import Delivery
from gapless.run import ACKED, Run
from gapless.spool import SpoolReader, SpoolWriter
from gapless.spool.segment_file import segment_path
from tests.support.deliveries import A, B, expected, opened, pieces, rows_of, run
from tests.support.missing_packages import without


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    root = tmp_path / "spool"
    with opened(root, segment_bytes=2000) as writer:
        for at in range(10):
            writer.append(
                run(A, 1 + at * 10, 10 + at * 10, flags=ACKED, view=3, sent_ns=10**18), name="alpha"
            )
            writer.commit()
        headed = attach_headers(b"\xff\xfe", {"kind": b"order"})
        writer.append(Delivery(B, 1, 1, Run.of(B, 1, [headed])))
        writer.append(pieces(B, 2, 4, 70_000))
        writer.append_lost(B, 5, 7)
        writer.append_lost(B, 8, 9, repeated=True)
        writer.commit()
    SpoolReader(root).register("spark", {"a1.5": 60, "b2.7": 4})
    return root


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert gapless(["spool", *map(str, arguments), "--json"]) == code
    out, err = capsys.readouterr()
    assert not err
    result: dict[str, Any] = json.loads(out)
    return result


def test_ls(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, "ls", spool)
    assert (told["group"], told["writer"]) == ("orders", "")
    assert [stream["messages"] for stream in told["streams"]] == [100, 2]
    assert told["streams"][1] == {
        "stream": "b2.7",
        "name": "",
        "low": 0,
        "high": 9,
        "messages": 2,
        "lost": 3,
        "dropped": 0,
    }
    assert [(reader["reader"], reader["lag"]) for reader in told["readers"]] == [("spark", 40)]
    assert sum(segment["messages"] for segment in told["segments"]) == 102
    assert gapless(["spool", "ls", str(spool)]) == 0
    assert "alpha" in capsys.readouterr().out


def test_ls_names_the_writer(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(spool):
        assert f"pid {os.getpid()}" in answer(capsys, "ls", spool)["writer"]


def test_check_and_repair(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "check", spool)["problems"] == []
    path = segment_path(spool, 1)
    data = bytearray(path.read_bytes())
    data[data.index(b"a1.5:13")] ^= 1
    path.write_bytes(bytes(data))
    told = answer(capsys, "check", spool, code=1)
    (problem,) = told["problems"]
    assert (problem["path"], problem["stream"], problem["first"], problem["last"]) == (
        str(path),
        "a1.5",
        11,
        20,
    )
    assert gapless(["spool", "check", str(spool)]) == 1
    assert f"gapless spool repair {spool}" in " ".join(capsys.readouterr().out.split())
    assert answer(capsys, "repair", spool)["repaired"]
    assert answer(capsys, "check", spool)["lost"] == 13
    assert not answer(capsys, "repair", spool)["repaired"]
    assert gapless(["spool", "repair", str(spool)]) == 0
    assert "No damage" in capsys.readouterr().out


def test_export_as_json_lines(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.jsonl"
    assert answer(capsys, "export", spool, "-o", target)["messages"] == 102
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["seqno"], row["text"].encode()) for row in rows[:100]] == expected(A, 1, 100)
    assert rows[0] == {
        "group": "orders",
        "origin": "a1.5",
        "name": "alpha",
        "mode": "acknowledged",
        "view": 3,
        "sent_ns": 10**18,
        "collected_ns": rows[0]["collected_ns"],
        "seqno": 1,
        "text": "a1.5:1",
    }
    assert base64.b64decode(rows[100]["base64"]) == b"\xff\xfe"
    assert base64.b64decode(rows[100]["headers"]["kind"]) == b"order"
    assert rows[101]["seqno"] == 4
    assert list(tmp_path.glob(".*")) == [], "nothing is left beside the file"


def test_export_of_a_range_to_standard_output(
    spool: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    digest = tmp_path / "to.json"
    digest.write_text('{"a1.5": 52}')
    assert (
        gapless(["spool", "export", str(spool), "--from", '{"a1.5": 47}', "--to", str(digest)]) == 0
    )
    out = capsys.readouterr().out
    assert [json.loads(line)["seqno"] for line in out.splitlines()] == [48, 49, 50, 51, 52]


def test_export_as_parquet(spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "out.parquet"
    assert answer(capsys, "export", spool, "-o", target)["format"] == "parquet"
    table = parquet.read_table(target)
    assert table.num_rows == 102
    assert table["payload"].to_pylist()[:100] == [payload for _, payload in expected(A, 1, 100)]
    assert table["seqno"].to_pylist()[100:] == [1, 4]
    assert table["headers"].to_pylist()[100] == [("kind", b"order")]
    assert table["sent"].cast("int64").to_pylist()[0] == 10**18


def test_export_of_a_spool_whose_collector_died_has_all_whole_commits(
    tmp_path: Path, capsys: Any
) -> None:
    root = tmp_path / "spool"
    with opened(root) as writer:
        writer.append(run(A, 1, 5))
        writer.commit()
        hint = (root / "committed").read_bytes()
        writer.append(run(A, 6, 9))
        writer.commit()
    (root / "committed").write_bytes(hint)
    assert answer(capsys, "export", root, "-o", tmp_path / "x.jsonl")["messages"] == 9


def test_forget(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "forget", spool, "spark")["forgotten"]
    assert not answer(capsys, "forget", spool, "spark", code=1)["forgotten"]
    assert gapless(["spool", "forget", str(spool), "spark"]) == 1
    assert "registered readers: none" in capsys.readouterr().out


WRONG = {
    "no such folder": (["ls", "nowhere"], "nowhere: there is no spool here"),
    "no spool": (["check", "."], "there is no spool here"),
    "repair of nothing": (["repair", "nowhere"], "there is no spool here"),
    "unknown format": (
        ["export", "SPOOL", "--format", "csv", "-o", "x"],
        "expected one of jsonl, parquet",
    ),
    "parquet to a terminal": (["export", "SPOOL", "--format", "parquet"], "name a file"),
    "no digest": (["export", "SPOOL", "--from", "[3"], "--from"),
    "a list": (["export", "SPOOL", "--from", '{"a1.5": [3]}'], "not an entry of a digest"),
    "not JSON": (["export", "SPOOL", "--to", '{"a1.5"'], "not JSON"),
    "no folder to write to": (["export", "SPOOL", "-o", "no/where/x.jsonl"], "no/where/x.jsonl"),
    "json without a file": (["export", "SPOOL", "--json"], "-o"),
    "an impossible reader": (["forget", "SPOOL", "../x"], "expected 1 to 100 letters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gets_one_line(
    case: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, said = WRONG[case]
    assert gapless(["spool", *(str(spool) if each == "SPOOL" else each for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    assert err.count("\n") == 1


def test_repair_beside_a_collector_is_refused(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(spool):
        assert gapless(["spool", "repair", str(spool)]) == 2
    assert "another process writes to this spool: pid" in capsys.readouterr().err


def test_reading_a_spool_needs_neither_pyarrow_nor_numpy(spool: Path) -> None:
    code = (
        "import sys; from gapless.spool import SpoolReader; v = SpoolReader(sys.argv[1]); "
        "n = sum(r.rows for r in v.records(v.slices({}, v.high()))); "
        "print(n, sorted({'pyarrow', 'numpy', 'pyspark', 'click'} & set(sys.modules)))"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code, str(spool)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "102 []"
    assert rows_of(SpoolReader(spool))["a1.5"] == expected(A, 1, 100)


def test_the_bench_runs() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "bench" / "spool.py"), "--json", "--mb", "1", "--rounds", "1"],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)["figures"]
    assert len(figures) == 3
    for figure in figures:
        assert all(figure[f"append_{kind}_mb_s"] > 0 for kind in ("no_sync", "fdatasync"))
        assert figure["read_rows_s"] > 0


# Encrypted spools


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, Path]:
    """An encrypted spool, and its keyring."""
    root, keys = tmp_path / "sealed", tmp_path / "keys.toml"
    Keyring.new(cipher="aes-256-gcm").create(keys)
    with SpoolWriter.open(root, group="orders", sync=False, keys=keys) as writer:
        for first in (1, 11, 21):
            writer.append(run(A, first, first + 9), name="alpha")
            writer.commit()
    return root, keys


def test_commands_read_an_encrypted_spool(
    sealed: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, keys = sealed
    label = Keyring.read(keys).sealing_key.label
    told = answer(capsys, "ls", root, "--spool-keys", keys)
    assert [segment["keys"] for segment in told["segments"]] == [[label]]
    assert gapless(["spool", "ls", str(root), "--spool-keys", str(keys)]) == 0
    assert label in capsys.readouterr().out
    assert answer(capsys, "check", root, "--spool-keys", keys)["problems"] == []
    lines = tmp_path / "lines.jsonl"
    assert answer(capsys, "export", root, "-o", lines, "--spool-keys", keys)["messages"] == 30
    assert "a1.5:30" in lines.read_text()
    data = bytearray(segment_path(root, 1).read_bytes())
    data[data.rindex(b"\xf1GLR") + 104] ^= 1
    segment_path(root, 1).write_bytes(data)
    (problem,) = answer(capsys, "check", root, "--spool-keys", keys, code=1)["problems"]
    assert (problem["stream"], problem["first"], problem["last"]) == ("a1.5", 21, 30)
    assert answer(capsys, "repair", root, "--spool-keys", keys)["repaired"]
    assert answer(capsys, "check", root, "--spool-keys", keys)["lost"] == 10


@pytest.mark.parametrize("command", ["ls", "check", "repair", "export"])
@pytest.mark.parametrize("given", ["none", "other", "missing"])
def test_a_key_that_is_not_there_is_one_line_and_code_2(
    sealed: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    given: str,
) -> None:
    root, keys = sealed
    other = tmp_path / "other.toml"
    if given == "other":
        Keyring.new(cipher="aes-256-gcm").create(other)
    option = [] if given == "none" else ["--spool-keys", str(other)]
    assert gapless(["spool", command, str(root), *option]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    if given == "missing":
        assert f"{other}: no such keyring; every machine that reads the spool needs a copy" in err
    else:
        assert f"encrypted with the key {Keyring.read(keys).sealing_key.label}" in err
        assert "--spool-keys FILE" in err


def test_a_table_of_a_spool_in_plain_has_no_column_for_keys(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gapless(["spool", "ls", str(spool)]) == 0
    assert "keys" not in capsys.readouterr().out
    assert {tuple(each["keys"]) for each in answer(capsys, "ls", spool)["segments"]} == {()}


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_an_export_into_a_private_folder_is_private(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    answer(capsys, "export", spool, "-o", folder / name)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {name: 0o600}


def test_a_machine_without_the_package_is_told_what_to_install(sealed: tuple[Path, Path]) -> None:
    root, keys = map(str, sealed)
    done = without("cryptography", arguments=["spool", "ls", root, "--spool-keys", keys])
    assert done.returncode == 2
    assert "pip install 'gapless[secure]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1

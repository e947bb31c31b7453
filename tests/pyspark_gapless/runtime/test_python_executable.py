"""The Python of Spark imports the installed PySpark, not a zip file of its sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pyspark_gapless.runtime.python_executable import interpreter, is_ours

HOME = Path(pyspark.__file__).parent
ZIPS = sorted(map(str, (HOME / "python" / "lib").glob("*.zip")))
SAY = (
    "import json, sys, pyspark, py4j;"
    "print(json.dumps([pyspark.__file__, py4j.__file__, sys.path, sys.executable]))"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


def say(python: str, path: list[str], folder: Path) -> list[object]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [python, "-c", SAY], env=environ, cwd=folder, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_the_zip_files_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    assert len(ZIPS) == 2, "PySpark brings itself and Py4J"
    first, second = tmp_path / "first", tmp_path / "second"
    spark_file, py4j_file, path, executable = say(
        interpreter(HOME), [*ZIPS, str(first), *ZIPS, ZIPS[0], str(second)], tmp_path
    )
    assert spark_file == pyspark.__file__
    assert not any(str(py4j_file).startswith(zip_file) for zip_file in ZIPS)
    assert isinstance(path, list)
    assert path[1:3] == [str(first), str(second)]
    assert executable == sys.executable


def test_nothing_but_zip_files_leaves_nothing(tmp_path: Path) -> None:
    bare = say(sys.executable, [], tmp_path)
    assert say(interpreter(HOME), ZIPS, tmp_path) == bare


def test_another_spark_keeps_its_zip_files(tmp_path: Path) -> None:
    assert interpreter(tmp_path) == sys.executable


def test_a_cache_that_cannot_be_had_is_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert interpreter(HOME) == sys.executable
    assert not is_ours("/usr/bin/python3")


def test_only_what_nobody_asked_for_is_replaced() -> None:
    assert is_ours("")
    assert is_ours(sys.executable)
    assert is_ours(interpreter(HOME))
    assert not is_ours("/opt/python/bin/python3")

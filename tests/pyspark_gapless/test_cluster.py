"""One program on a standalone cluster and through Spark Connect reads a spool and runs a sweep.

The Python of the executors has everything but this package: they run the code that the session
has sent them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gapless_lab.spark_cluster import SparkCluster
from pyspark_gapless.runtime.package_zip import package_root, package_zip
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from tests.support.small_sweep import SMALL, rows_in_process, small
from tests.support.spark_connect import connect_server
from tests.support.spools import A, B, Writer

pytestmark = pytest.mark.xdist_group("cluster")

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "programs" / "spark_program.py"
BOTH = {
    "spark.cores.max": 2,
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS,
    "spark.executor.extraJavaOptions": FAST_START_JVM_OPTIONS,
}
"""Settings by which no task starts before both executors are there, and these start fast."""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all installed packages but those of this project."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "packages").mkdir()
    for entry in Path(str(find_spec("pyspark").origin)).parent.parent.iterdir():  # type: ignore[union-attr]
        if "gapless" not in entry.name and entry.suffix != ".pth":
            (folder / "packages" / entry.name).symlink_to(entry)
    base = shlex.quote(sys._base_executable)  # type: ignore[attr-defined]
    program = folder / "python"
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{shlex.quote(str(folder / 'packages'))} exec {base} "
        f'"$@"\n'
    )
    program.chmod(0o755)
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    check = (
        "import importlib.util as u;"
        "print(bool(u.find_spec('pyarrow')), bool(u.find_spec('gapless')))"
    )
    said = subprocess.run(
        [program, "-c", check], env=environ, cwd=folder, capture_output=True, text=True, check=True
    )
    assert said.stdout == "True False\n"
    return program


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = Writer(tmp_path_factory.mktemp("spool") / "spool")
    writer.runs(A, 3000)
    writer.runs(B, 200)
    writer.commit()
    writer.close()
    return writer.path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def run_program(
    master: str, python: Path, spool: Path, folder: Path, settings: Mapping[str, object]
) -> dict[str, Any]:
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_"))
    }
    environ |= {
        "PYTHONPATH": str(package_root()),
        "GAPLESS_MASTER": master,
        "PYSPARK_PYTHON": str(python),
    }
    places = {name: str(folder / name) for name in ("table", "checkpoint", "sweep")}
    places |= {"spool": str(spool), "grid": SMALL}
    command = [sys.executable, str(PROGRAM), json.dumps({"settings": settings} | places)]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(task["rows"] for task in found["tasks"]) == 1000
    assert found["counts"] == [143, 143, 143, 143, 143, 143, 142]
    every = [
        {"origin": str(A), "rows": 3000, "last": 3000, "total": 3000 * 3001 // 2},
        {"origin": str(B), "rows": 200, "last": 200, "total": 200 * 201 // 2},
    ]
    assert found["batch"] == every
    assert found["stream"] == every
    alone = [[row["key"], row["seed"], row["digest"]] for row in rows_in_process(small(2))]
    assert sorted(found["sweep"]) == alone, (
        "the results have come to this machine, and are those of single runs"
    )
    shipped = package_zip().name
    for task in found["tasks"]:
        assert Path(task["gapless"]).parts[-3:] == (shipped, "gapless", "__init__.py")
        assert Path(task["spark"]).parts[-3:] == (shipped, "pyspark_gapless", "__init__.py")
    return found


def test_on_a_standalone_cluster(
    cluster: SparkCluster, bare_python: Path, spool: Path, tmp_path: Path
) -> None:
    found = run_program(cluster.url, bare_python, spool, tmp_path, BOTH)
    assert found["master"] == cluster.url
    workers = {Path(task["cwd"]).relative_to(cluster.folder).parts[0] for task in found["tasks"]}
    assert workers == {"worker0", "worker1"}


@pytest.mark.skipif(
    find_spec("grpc") is None, reason="grpcio is not installed: pip install 'gapless[connect]'"
)
def test_through_spark_connect(spool: Path, tmp_path: Path) -> None:
    """The package is installed at the server: Spark sends no code to the planner of offsets."""
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server", {"PYTHONPATH": str(package_root())}) as url:
        found = run_program(
            url, Path(sys.executable), spool, tmp_path, {"spark.sql.shuffle.partitions": 3}
        )
    assert found["master"] == "connect"

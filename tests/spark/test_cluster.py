"""One program, unchanged, on this machine, on a standalone cluster and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pyspark_gapless.shipping import package_root, package_zip
from tests.spark.cluster import QUICK, Cluster, connect_server

pytestmark = pytest.mark.xdist_group("spark")

PROGRAM = Path(__file__).with_name("program.py")
BOTH = {
    "spark.cores.max": 2,
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
}
"""Settings by which no task starts before both executors are there, and these start fast."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def run_program(master: str, folder: Path, settings: Mapping[str, object]) -> dict[str, Any]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environ |= {"PYTHONPATH": str(package_root()), "GAPLESS_MASTER": master}
    command = [sys.executable, str(PROGRAM), json.dumps(settings)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(task["rows"] for task in found["tasks"]) == 1000
    assert found["counts"] == [143, 143, 143, 143, 143, 143, 142]
    return found


def test_on_a_standalone_cluster_both_workers_get_the_package(cluster: Cluster, tmp_path: Path) -> None:
    found = run_program(cluster.url, tmp_path, BOTH)
    assert found["master"] == cluster.url
    workers = {Path(task["cwd"]).relative_to(cluster.folder).parts[0] for task in found["tasks"]}
    assert workers == {"worker0", "worker1"}
    shipped = package_zip().name
    for task in found["tasks"]:
        assert Path(task["gapless"]).parts[-3:] == (shipped, "gapless", "__init__.py")
        assert Path(task["spark"]).parts[-3:] == (shipped, "pyspark_gapless", "__init__.py")


@pytest.mark.skipif(find_spec("grpc") is None, reason="grpcio is not installed: pip install 'gapless[connect]'")
def test_through_spark_connect(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server") as url:
        found = run_program(url, tmp_path, {"spark.sql.shuffle.partitions": 3})
    assert found["master"] == "connect"
    assert {Path(task["gapless"]).parts[-3] for task in found["tasks"]} == {package_zip().name}

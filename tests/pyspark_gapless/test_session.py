"""The session on this machine, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.errors import ConfigError, GaplessError
from pyspark_gapless.runtime.package_zip import package_root
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.session import SessionError, session
from tests.support.programs.spark_program import SCHEMA, whereabouts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_a_local_session_runs_python(spark: SparkSession) -> None:
    tasks = spark.range(100, numPartitions=2).mapInArrow(whereabouts, SCHEMA).collect()
    assert sum(row.rows for row in tasks) == 100
    assert {row.gapless for row in tasks} == {str(package_root() / "gapless" / "__init__.py")}


def test_the_defaults_are_in_force(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,3]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert spark.sparkContext._jvm is not None
    assert spark.sparkContext._jvm.java.lang.Class.forName(manager) is not None, (
        "this Spark has it elsewhere"
    )


def test_a_session_that_runs_is_taken_and_can_be_set(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert session(settings={"spark.sql.shuffle.partitions": 5}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    assert session(master="local[2,3]", settings={"spark.sql.shuffle.partitions": before}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            {"master": "local[7]"},
            r"the session runs on local\[2,3\], not on local\[7\]; stop the session",
        ),
        ({"settings": {"spark.master": "yarn"}}, r"not on yarn"),
        ({"settings": {"spark.driver.memory": "9g"}}, r"spark.driver.memory is .*, not 9g"),
        ({"master": "local[x]"}, r"'local\[x\]' is not a Spark master"),
        ({"log_level": "loud"}, r"log_level is 'loud'; expected one of ALL, TRACE"),
        ({"settings": {"driver.memory": "9g"}}, r"'driver.memory' is not a Spark setting"),
        (
            {"settings": {"spark.driver.memory": None}},
            r"spark.driver.memory is None; expected text, a number",
        ),
    ],
)
def test_what_a_session_refuses(spark: SparkSession, asked: dict[str, object], reason: str) -> None:
    with pytest.raises(GaplessError, match=reason) as caught:
        session(**asked)  # type: ignore[arg-type]
    assert isinstance(caught.value, SessionError | ConfigError)
    assert spark.range(3).count() == 3


PROGRAM = """
import sys
from pyspark_gapless.session import session
try:
    session()
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "form",
    ["spark://127.0.0.1:{port}", "sc://127.0.0.1:{port}", "sc://127.0.0.1:{port}/;user_id=a"],
)
def test_a_server_that_is_not_there_is_named_at_once(form: str) -> None:
    if form.startswith("sc:") and not find_installation().has_connect:
        pytest.skip("grpcio is not installed: pip install 'gapless[connect]'")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = form.format(port=port)
        environ = os.environ | {"GAPLESS_MASTER": url, "PYTHONPATH": str(package_root())}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True
        )
    assert done.stdout.startswith(
        f"SessionError no Spark listens at 127.0.0.1:{port} (Connection refused); start Spark there"
    )


def test_spark_submit_says_where_and_how(tmp_path: Path) -> None:
    """As on YARN and Kubernetes: the JVM is there first, and its settings are left alone."""
    environ = {
        key: value
        for key, value in os.environ.items()
        if "SPARK" not in key and key != "GAPLESS_MASTER"
    }
    environ |= {
        "PYTHONPATH": str(package_root()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": FAST_START_JVM_OPTIONS,
    }
    told = [
        "--master",
        "local[1]",
        "--conf",
        "spark.sql.shuffle.partitions=5",
        "--conf",
        "spark.ui.enabled=false",
    ]
    program = Path(__file__).resolve().parents[1] / "support" / "programs" / "spark_program.py"
    command = [
        str(find_installation({}).home / "bin" / "spark-submit"),
        *told,
        str(program),
        '{"settings": {"spark.sql.session.timeZone": "CET"}}',
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["master"] == "local[1]"
    assert found["counts"] == [143, 143, 143, 143, 143, 143, 142]
    assert found["settings"]["spark.sql.shuffle.partitions"] == "5"
    assert found["settings"]["spark.sql.session.timeZone"] == "CET"
    assert found["settings"]["spark.sql.execution.arrow.maxRecordsPerBatch"] == "100000"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

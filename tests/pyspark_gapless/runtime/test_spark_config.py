"""Where Spark runs and with which settings, without a Spark."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gapless.errors import ConfigError
from pyspark_gapless.runtime import spark_config
from pyspark_gapless.runtime.package_zip import package_root, package_zip
from pyspark_gapless.runtime.spark_install import (
    SparkMissingError,
    find_installation,
    version_of_jars,
)


@pytest.mark.parametrize(
    ("url", "kind", "here"),
    [
        ("local", "local", True),
        ("local[2]", "local", True),
        ("local[*]", "local", True),
        (" local[ 2 , 3 ] ", "local", True),
        ("local-cluster[2,1,1024]", "local-cluster", True),
        ("spark://127.0.0.1:7077", "standalone", True),
        ("spark://localhost:7077", "standalone", True),
        ("spark://[::1]:7077", "standalone", True),
        ("spark://one:7077,two:7077", "standalone", False),
        ("sc://localhost:15002", "connect", False),
        ("sc://there:443/;use_ssl=true;token=x", "connect", False),
        ("yarn", "yarn", False),
        ("k8s://https://there:6443", "k8s", False),
    ],
)
def test_masters_that_are_known(url: str, kind: str, here: bool) -> None:
    found = spark_config.parse_master(url)
    assert (found.url, found.kind, found.on_this_machine) == (url.strip(), kind, here)


@pytest.mark.parametrize(
    "url",
    ["", "mesos://x:1", "local[0]", "local[-1]", "local[", "spark://there", "SPARK://a:1", "7077"],
)
def test_masters_that_are_not(url: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{re.escape(repr(url))} is not a Spark master; expected local"
    ):
        spark_config.parse_master(url)


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("local[2]", []),
        ("yarn", []),
        ("spark://one:7077,[::1]:7078", [("one", 7077), ("::1", 7078)]),
        ("sc://there", [("there", 15002)]),
        ("sc://there:443/;use_ssl=true", [("there", 443)]),
    ],
)
def test_where_somebody_has_to_listen(url: str, places: list[tuple[str, int]]) -> None:
    assert spark_config.parse_master(url).endpoints == places


def test_who_says_where_it_runs() -> None:
    told = {"spark.master": "yarn"}
    every = {"GAPLESS_MASTER": "local[3]", "SPARK_REMOTE": "sc://a", "SPARK_MASTER": "spark://b:1"}
    assert spark_config.choose_master("local[7]", told, every).url == "local[7]"
    assert spark_config.choose_master(None, told, every).url == "local[3]"
    del every["GAPLESS_MASTER"]
    assert spark_config.choose_master(None, told, every).url == "sc://a"
    del every["SPARK_REMOTE"]
    assert spark_config.choose_master(None, told, every).url == "spark://b:1"
    assert spark_config.choose_master(None, told, {"SPARK_MASTER": ""}).url == "yarn"
    assert spark_config.choose_master(None, {}, {}).url == "local[*]"


def test_a_variable_that_is_wrong_is_named() -> None:
    with pytest.raises(ConfigError, match="SPARK_MASTER: 'here' is not a Spark master"):
        spark_config.choose_master(None, {}, {"SPARK_MASTER": "here"})


def test_what_is_safe_on_one_machine_only_stays_there() -> None:
    alone = {
        "spark.sql.streaming.checkpointFileManagerClass",
        "spark.hadoop.fs.file.impl",
        "spark.ui.enabled",
    }
    loopback = {"spark.driver.host", "spark.driver.bindAddress"}
    local = spark_config.default_settings(spark_config.parse_master("local[3]"))
    assert alone | loopback <= set(local)
    assert local["spark.sql.shuffle.partitions"] == "3"
    near = set(spark_config.default_settings(spark_config.parse_master("spark://127.0.0.1:7077")))
    assert (near & alone, near & loopback) == (set(), loopback)
    for url in ("spark://there:7077", "yarn", "k8s://https://there"):
        assert (
            set(spark_config.default_settings(spark_config.parse_master(url))) & (alone | loopback)
            == set()
        )
    connect = spark_config.default_settings(spark_config.parse_master("sc://there"))
    assert all(key.startswith("spark.sql.") for key in connect), "a client can set nothing else"


def test_what_spark_was_told_by_its_own_means(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "spark-defaults.conf"
    file.parent.mkdir()
    file.write_text(
        "# words\nspark.master  yarn\nspark.a=1\n\n  spark.b : two words  \n! no\nspark.c\tx=y\n"
    )
    read = {"spark.master": "yarn", "spark.a": "1", "spark.b": "two words", "spark.c": "x=y"}
    assert spark_config.external_settings(tmp_path, {}) == read
    assert (
        spark_config.external_settings(Path("/nowhere"), {"SPARK_CONF_DIR": str(file.parent)})
        == read
    )
    assert spark_config.external_settings(Path("/nowhere"), {}) == {}
    words = "--master local[2] --conf spark.a=2 --conf 'spark.d=p q' --jars x.jar pyspark-shell"
    told = spark_config.external_settings(tmp_path, {"PYSPARK_SUBMIT_ARGS": words})
    assert told == read | {"spark.master": "local[2]", "spark.a": "2", "spark.d": "p q"}


def test_words_for_spark_submit_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="cannot be parsed: No closing quotation"):
        spark_config.external_settings(Path("/nowhere"), {"PYSPARK_SUBMIT_ARGS": "--conf 'x"})


# What is installed


def test_what_is_installed_fits_together() -> None:
    here = find_installation({})
    assert here.has_jars
    assert version_of_jars(here.home) == here.version
    assert {"pyarrow", "numpy", "pandas", "msgpack"} <= set(here.packages)


def test_a_spark_home_of_another_version_or_of_none(tmp_path: Path) -> None:
    with pytest.raises(
        SparkMissingError, match=r"has no Spark and PySpark is .*: unset SPARK_HOME"
    ):
        find_installation({"SPARK_HOME": str(tmp_path)})
    assert find_installation({"SPARK_HOME": str(find_installation({}).home)}).has_jars


# What executors are sent


def test_the_zip_holds_both_packages_and_works_alone(tmp_path: Path) -> None:
    path = package_zip()
    assert package_zip() == path, "the same content has the same name"
    with zipfile.ZipFile(path) as bundle:
        names = set(bundle.namelist())
    assert {
        "gapless/__init__.py",
        "gapless/protocol/stream/window.py",
        "pyspark_gapless/__init__.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    program = (
        "import gapless.blocking, pyspark_gapless.runtime.java, gapless; print(gapless.__file__)"
    )
    command = [
        sys.executable,
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(path)!r}); {program}",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (f"{path}/gapless/__init__.py", "")


def test_where_the_packages_of_this_process_are() -> None:
    assert (package_root() / "pyspark_gapless" / "datasource.py").is_file()

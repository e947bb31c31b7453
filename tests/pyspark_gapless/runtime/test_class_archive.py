"""The archive of classes: only one that fits, and that is whole, is ever given to a JVM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_config import DRIVER_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation
from tests.pyspark_gapless.runtime.test_java import plant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gapless" / "classes"


def homes(folder: Path) -> tuple[java.Java, Path]:
    """Return a Java and a Spark with one jar, to be changed at will."""
    program = plant(folder / "jvm", "17")
    (folder / "spark" / "jars").mkdir(parents=True)
    (folder / "spark" / "jars" / "spark-core_2.13-4.3.0.jar").write_bytes(b"classes")
    return java.Java(folder / "jvm", 17, "JAVA_HOME", program), folder / "spark"


def put(cache: Path, found: java.Java, spark_home: Path, content: bytes = b"archive") -> Path:
    where, made_from = class_archive._cache_names(found, spark_home)
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{where}-{made_from}-{len(content)}.jsa"
    path.write_bytes(content)
    return path


def test_one_that_fits_is_used(tmp_path: Path, cache: Path) -> None:
    found, spark_home = homes(tmp_path)
    assert class_archive.jvm_options(found, spark_home) == ""
    path = put(cache, found, spark_home)
    assert class_archive.jvm_options(found, spark_home).startswith(f"-XX:SharedArchiveFile={path} ")
    assert class_archive.build_archive(found, spark_home) == path, "what is there is not made again"


def test_one_that_was_cut_short_is_not_used_because_it_would_kill_the_jvm(
    tmp_path: Path, cache: Path
) -> None:
    found, spark_home = homes(tmp_path)
    path = put(cache, found, spark_home)
    os.truncate(path, 3)
    assert class_archive.jvm_options(found, spark_home) == ""


@pytest.mark.parametrize("change", ["a jar is replaced", "a jar is added", "java is updated"])
def test_one_for_something_else_is_not_used(tmp_path: Path, cache: Path, change: str) -> None:
    found, spark_home = homes(tmp_path)
    put(cache, found, spark_home)
    if change == "a jar is replaced":
        (spark_home / "jars" / "spark-core_2.13-4.3.0.jar").write_bytes(b"other classes")
    elif change == "a jar is added":
        (spark_home / "jars" / "more.jar").touch()
    else:
        (tmp_path / "jvm" / "release").write_text('JAVA_VERSION="17.0.99"')
    assert class_archive.jvm_options(found, spark_home) == ""


@pytest.mark.xdist_group("spark")
def test_a_session_starts_from_one_where_there_is_one(
    spark: SparkSession, archive_options: str
) -> None:
    told = spark.sparkContext.getConf().get(DRIVER_OPTIONS, "")
    assert archive_options in told
    assert ("SharedArchiveFile" in told) == bool(archive_options)


@pytest.mark.skipif(
    os.environ.get("GAPLESS_HYPOTHESIS") != "nightly", reason="takes a minute: only at night"
)
def test_one_is_made_and_the_jvm_takes_it(cache: Path) -> None:
    found = java.find_java()
    path = class_archive.build_archive(found, find_installation().home)
    assert list(cache.iterdir()) == [path]
    assert str(path.stat().st_size) in path.name
    class_archive._verify_archive(
        found, path, f"{find_installation().home}/conf:{find_installation().home}/jars/*"
    )

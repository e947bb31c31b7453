"""One Spark session for all tests that need a session in their own process.

These tests share the xdist group ``spark``, so that only one worker starts a JVM. Tests that start
Spark in processes of their own are in the group ``cluster``, which another worker runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def archive_options() -> str:
    """The options for the class archive when the session starts; chaos tests may build it later."""
    return class_archive.jvm_options(java.find_java(), find_installation().home)


@pytest.fixture(scope="session")
def spark(archive_options: str) -> Iterator[SparkSession]:
    del archive_options  # only to be read before the start
    running = session(
        "tests",
        master="local[2,3]",
        settings={"spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS},
    )
    yield running
    running.stop()

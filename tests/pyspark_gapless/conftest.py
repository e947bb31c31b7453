"""One Spark for all tests that need one.

They share an xdist group, so that one worker starts a JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    running = session(
        "tests",
        master="local[2,3]",
        settings={"spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS},
    )
    yield running
    running.stop()

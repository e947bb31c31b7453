"""One Spark for all tests that need one; they share an xdist group, so that only one worker starts a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pyspark_gapless import archive, java
from pyspark_gapless.installed import look
from pyspark_gapless.session import session
from tests.spark.cluster import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def classes() -> None:
    """Let everything that starts a JVM start it from an archive of classes, where Java can do that."""
    with suppress(archive.ArchiveError):
        archive.make(java.find(), look().home)


@pytest.fixture(scope="session")
def spark(classes: None) -> Iterator[SparkSession]:
    running = session("tests", master="local[2,3]", settings={"spark.driver.extraJavaOptions": QUICK})
    yield running
    running.stop()

"""A session for a command that draws its progress: the JVM writes to a file, Ctrl-C stays ours."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_gapless.session import active_session, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def quiet_session(
    master: str | None, log_path: Path, name: str, settings: Mapping[str, object] | None = None
) -> Iterator[SparkSession]:
    """Yield a session, and stop it unless it existed before; the JVM's log goes to ``log_path``.

    ``settings`` apply to a session that is started here; an existing session keeps its own.
    """
    from py4j.protocol import Py4JNetworkError

    before = active_session()
    with _errors_into(log_path), _own_interrupts():
        spark = session(
            name, master=master, settings=None if before else settings, log_level="WARN"
        )
    try:
        yield spark
    finally:
        if before is None:
            # A JVM that died cannot be stopped; the code that was using it reports the death.
            with suppress(ConnectionError, Py4JNetworkError):
                spark.stop()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the handler of Ctrl-C: a new session would make it cancel every job."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Send the standard error of processes started in this block to a file."""
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)

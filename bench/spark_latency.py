"""The time from ``send`` to a row, beside a line read by Spark's own socket source.

A sender and a collector run in separate processes, and a query runs micro-batches without a pause.
A row counts when visible: in the hands of a function (``foreachBatch``), or in a Parquet table,
when the log of the table lists the file of the row. The same lines go over a bare socket to a query
with the same sink: without group, disk and replay, the socket source shows the cost of a
micro-batch of Spark by itself.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.spark_children import STAMP, command
from gapless_lab.bench.matrix import percentile
from gapless_lab.bench.worker import TIMEOUT_S
from gapless_lab.ports import free_ports
from gapless_lab.process import ProcessGroup, lab_environ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZE_BYTES = 100
SINKS = ("foreachBatch", "parquet")
SOURCES = ("gapless", "socket")


class Pace(NamedTuple):
    """The number of messages, and the mean seconds between messages; the first are a warm-up."""

    warm_up: int
    messages: int
    interval_s: float


@dataclass(frozen=True)
class Figure:
    """A line of the result, in milliseconds; ``ratio_*``: to the socket source with this sink."""

    sink: str
    source: str
    ratio_p50: float
    ratio_p99: float
    p50_ms: float
    p99_ms: float
    spooled_p50_ms: float | None
    spooled_p99_ms: float | None
    messages: int
    batches: int


class Times(NamedTuple):
    """Nanoseconds from send to row of each message, and from send to the spool, if any."""

    rows_ns: list[int]
    spooled_ns: list[int]
    batches: int


class Sink:
    """Records the age of the rows of a query: in a function called by Spark, or from a table."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.rows_ns: list[int] = []
        self.spooled_ns: list[int] = []
        self.batches = 0

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Start the query, with micro-batches in sequence."""
        writer = frame.writeStream.trigger(processingTime="0 seconds")
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if self.kind == "parquet":
            return writer.format("parquet").start(str(self.folder / "table"))
        return writer.foreachBatch(self._take).start()

    def _take(self, frame: DataFrame, _: int) -> None:
        rows = frame.toArrow()
        self._note(rows, time.time_ns())

    def _note(self, rows: Any, now_ns: int) -> None:
        stamps = [stamp_of(payload) for payload in rows["payload"].to_pylist()]
        if not any(stamps):
            return
        self.batches += 1
        self.rows_ns += [now_ns - stamp for stamp in stamps if stamp]
        if "collected" in rows.column_names:
            # Parquet gives nanoseconds back where Spark has microseconds.
            collected = rows["collected"].cast("timestamp[us]").cast("int64").to_pylist()
            self.spooled_ns += [
                us * 1000 - stamp for us, stamp in zip(collected, stamps, strict=True) if stamp
            ]

    def times(self) -> Times:
        """Return the recorded ages."""
        if self.kind == "parquet":
            import pyarrow.parquet as pq

            for file, seen_ns in seen_files(self.folder / "table"):
                self._note(pq.ParquetFile(file).read(), seen_ns)
        return Times(self.rows_ns, self.spooled_ns, self.batches)


def seen_files(table: Path) -> Iterator[tuple[str, int]]:
    """Return each file of a table written by a stream, with the time of its log entry."""
    known: set[str] = set()
    for entry in sorted(
        (table / "_spark_metadata").glob("[0-9]*"),
        key=lambda path: int(path.name.partition(".")[0]),
    ):
        seen_ns = entry.stat().st_ctime_ns
        for line in entry.read_text().splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            if path not in known:
                known.add(path)
                yield path, seen_ns


def stamp_of(payload: bytes | str) -> int:
    """Return the send time of a message, 0 in the warm-up."""
    if isinstance(payload, str):
        return int(payload.split()[0])
    stamp: int = STAMP.unpack_from(payload)[0]
    return stamp


def over_gapless(spark: SparkSession, sink: Sink, pace: Pace) -> None:
    """Send by a group, with a collector, a spool and the source ``gapless``."""
    spool = sink.folder / "spool"
    ports = free_ports(2)
    sending = {
        "size_bytes": SIZE_BYTES,
        "interval_s": pace.interval_s,
        "warm_up": pace.warm_up,
        "count": pace.messages,
    }
    commands = [
        command("collect", spool=str(spool), ports=ports, at=0, sync=True),
        command("produce", ports=ports, at=1, **sending),
    ]
    here = Path(__file__).resolve().parent.parent
    limit_s = (pace.warm_up + pace.messages) * pace.interval_s + 3 * TIMEOUT_S
    with ProcessGroup(commands, lab_environ(here)) as processes:
        processes.wait_for_event("ready", TIMEOUT_S)
        frame = (
            spark.readStream.format("gapless")
            .option("spool", str(spool))
            .option("columns", "collected,payload")
        )
        with running(sink.start(frame.load())) as query:
            work = processes.ask("run", limit_s)
            check, _ = processes.ask("check", limit_s, sent=[answer["sent"] for answer in work])
            assert not check["lost"]
            query.processAllAvailable()


def over_socket(spark: SparkSession, sink: Sink, pace: Pace) -> None:
    """Send lines over a bare socket to Spark's own source ``socket``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        frame = (
            spark.readStream.format("socket")
            .option("host", "127.0.0.1")
            .option("port", port)
            .load()
        )
        feeder = threading.Thread(target=_feed, args=(server, pace), daemon=True)
        feeder.start()
        with running(sink.start(frame.withColumnRenamed("value", "payload"))) as query:
            feeder.join()
            query.processAllAvailable()


def _feed(server: socket.socket, pace: Pace) -> None:
    random = Random(0)
    connection = server.accept()[0]
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(-pace.warm_up, pace.messages):
            time.sleep(random.uniform(0, 2 * pace.interval_s))
            stamp = time.time_ns() if number >= 0 else 0
            connection.sendall(f"{stamp} ".encode().ljust(SIZE_BYTES, b"x") + b"\n")


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop a query in any case."""
    try:
        yield query
    finally:
        query.stop()


def measure(
    spark: SparkSession,
    folder: Path,
    pace: Pace,
    rounds: int,
    warm_ups: int,
    tick: Callable[[], None],
) -> list[Figure]:
    """Measure all sinks, both sources in turns, over all messages except the warm-up."""
    found: dict[tuple[str, str], list[Times]] = {}
    for number in range(-warm_ups, rounds):
        for kind in SINKS:
            for source in SOURCES:
                here = folder / f"latency-{number}-{kind}-{source}"
                here.mkdir()
                sink = Sink(kind, here)
                (over_gapless if source == "gapless" else over_socket)(spark, sink, pace)
                if number >= 0:
                    found.setdefault((kind, source), []).append(sink.times())
                shutil.rmtree(here)
                tick()
    return [_figure(kind, source, found) for kind in SINKS for source in SOURCES]


def _figure(kind: str, source: str, found: dict[tuple[str, str], list[Times]]) -> Figure:
    rows_ns = sorted(value for times in found[kind, source] for value in times.rows_ns)
    beside_ns = sorted(value for times in found[kind, "socket"] for value in times.rows_ns)
    spooled_ns = sorted(value for times in found[kind, source] for value in times.spooled_ns)
    p50, p99 = (percentile(rows_ns, share) for share in (0.5, 0.99))
    return Figure(
        sink=kind,
        source=source,
        ratio_p50=round(p50 / max(1, percentile(beside_ns, 0.5)), 2),
        ratio_p99=round(p99 / max(1, percentile(beside_ns, 0.99)), 2),
        p50_ms=round(p50 / 1e6, 1),
        p99_ms=round(p99 / 1e6, 1),
        spooled_p50_ms=round(percentile(spooled_ns, 0.5) / 1e6, 1) if spooled_ns else None,
        spooled_p99_ms=round(percentile(spooled_ns, 0.99) / 1e6, 1) if spooled_ns else None,
        messages=len(rows_ns),
        batches=sum(times.batches for times in found[kind, source]),
    )

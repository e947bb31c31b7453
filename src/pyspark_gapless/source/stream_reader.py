"""The streaming read: ``spark.readStream.format("gapless")``.

Spark creates two reader objects: the first runs beside the driver for as long as the query and
returns offsets and partitions, the second is sent to executors and reads. So files are opened on
first use, and no open file is sent.

On each trigger: ``start`` is committed, so the reader releases ``start``, looks up the available
messages, and applies the limits. A restarted query gets the same partitions for the same offsets,
because nothing above ``start`` is released.
"""

from __future__ import annotations

import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from gapless.errors import GaplessError
from pyspark_gapless.source import partition_reader, schema as columns
from pyspark_gapless.source.offset_release import OffsetReleaser, log
from pyspark_gapless.source.offsets import (
    DataLossError,
    Digest,
    advance,
    digest_of,
    merge_digests,
    offset_of,
    reader_of,
    rows_of,
    with_floor,
)
from pyspark_gapless.source.options import AT_DIGEST, AT_TIME, LATEST, ReadPosition, SourceOptions
from pyspark_gapless.source.partition_planner import seqnos_between
from pyspark_gapless.source.replica_set import ReplicaSet
from pyspark_gapless.source.sink_rows import ReadRows, SinkRowFilter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_gapless.source.embedded_collector import EmbeddedCollector

MAX_RIVALS: Final = 3
"""Maximum number of overwritten registrations in a row before a query gives up."""


class ReaderTakenError(GaplessError):
    """Another query uses the same reader name; either query needs another name."""


def position_digest(replicas: ReplicaSet, position: ReadPosition) -> Digest:
    """Return the digest of a position in the present contents of the replicas."""
    low = replicas.low()
    if position.kind == LATEST:
        return replicas.high()
    if position.kind == AT_DIGEST:
        return dict(sorted((low | position.digest).items()))
    if position.kind == AT_TIME:
        return with_floor(replicas.at_time(position.time_ns), low)
    return low


class GaplessStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a spool as a stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema, options)
        self.options = options
        self.schema = schema
        self._session: _QuerySession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "_session": None}

    # Beside the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        """Return the start of a new query.

        Spark also calls this method to repeat the very first batch after a crash, without having
        kept the answer; then ``partitions`` finds the start in the registration of the reader.
        """
        session = self._open_session()
        if session.initial is None:
            digest = position_digest(session.replicas, self.options.starting_position)
            digest = {key: seqno for key, seqno in digest.items() if session.is_selected(key)}
            session.initial = offset_of(
                digest, self.options.reader or f"spark-{secrets.token_hex(6)}"
            )
        return session.initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; a byte limit beside a row limit is applied later."""
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the available messages: a query with ``availableNow`` ends there."""
        session = self._open_session()
        session.available_now_end = session.available()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Release ``start``, which is committed, and return the end of the next batch."""
        session = self._open_session()
        digest = digest_of(start)
        session.release(self.options.reader or reader_of(start), digest, reader_of(start))
        available = session.available()
        goal = with_floor(
            available, {key: seqno for key, seqno in digest.items() if key in available}
        )
        max_rows, max_bytes = self._limits(limit)
        if (
            isinstance(limit, ReadMinRows)
            and session.available_now_end is None
            and seqnos_between(goal, digest) < limit.min_rows
        ):
            goal = {}
        wanted = goal
        if goal != digest:
            wanted = session.replicas.admit(digest, goal, max_rows, max_bytes)
        known = session.replicas.high() if session.replicas.is_complete else None
        end = advance(digest, wanted, known)
        if end == digest and session.available_now_end is not None:
            session.releaser.flush()
        session.has_reported_latest = True
        rows = rows_of(start)
        if end != digest:
            _, rows = session.sink_rows.find_repeated(
                digest, end, rows, fail_on_data_loss=self.options.fail_on_data_loss
            )
        return offset_of(end, reader_of(start), rows)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows, size_bytes = self.options.max_rows, self.options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size_bytes = limit.max_bytes
        return rows, size_bytes

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the newest position, so that the progress of the query shows the lag."""
        return offset_of(self._open_session(refresh=False).all_available())

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[partition_reader.GaplessInputPartition]:
        """Return the partitions between two offsets: always the same rows."""
        session = self._open_session()
        digest = digest_of(start)
        if start == session.initial and not session.has_reported_latest:
            digest = session.recovered_start(reader_of(end), digest)
        plan = session.replicas.plan(
            digest,
            digest_of(end),
            partitions=(self.options.min_partitions, self.options.max_partitions),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        repeated, rows = session.sink_rows.find_repeated(
            digest,
            digest_of(end),
            rows_of(start),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        # A recovered start omits rows that an earlier batch has read.
        if session.sink_rows.is_needed and digest == digest_of(start):
            self._check_rows(ReadRows(rows).lacks(rows_of(end)))
        return partition_reader.make_partitions(
            session.replicas,
            plan,
            fail_on_data_loss=self.options.fail_on_data_loss,
            repeated=repeated,
        )

    def _check_rows(self, missing: int) -> None:
        """Raise DataLossError if rows of the end offset are gone, or log that."""
        if not missing:
            return
        message = (
            f"{missing} sink rows of this batch are in no spool any more: a replica that had them "
            "is gone. Add the replica to the option spool, or set failOnDataLoss to false to go on "
            "without them"
        )
        if self.options.fail_on_data_loss:
            raise DataLossError(message)
        log.warning("%s", message)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark commits only with new data, and ``latestOffset`` releases before."""

    def stop(self) -> None:
        """Stop the embedded collector and the releaser."""
        if self._session is not None:
            self._session.close()
            self._session = None

    # On executors

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        schema = columns.arrow_schema(self.schema)
        pairs = columns.decoded_pairs(self.options, schema.names)
        return partition_reader.read_partition(
            partition, schema, pairs, self.options.payload_format
        )

    def _open_session(self, *, refresh: bool = True) -> _QuerySession:
        fresh = self._session is None
        if self._session is None:
            self._session = _QuerySession(self.options)
        if fresh or refresh:
            self._session.refresh()
        return self._session


class _QuerySession:
    """The open resources beside the driver while a query runs."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.replicas = ReplicaSet(options.spools, options.spool_keys)
        self.sink_rows = SinkRowFilter(self.replicas)
        self.available_now_end: Digest | None = None
        self.initial: dict[str, Any] | None = None
        self.has_reported_latest = False
        self.releaser = OffsetReleaser(self._register, sync=options.release == "sync")
        self.is_selected = self.replicas.origin_filter(options.origins)
        self._reader = ""
        self._registered_at_ns: dict[int, int] = {}
        self._rivals = 0
        self._previous_handler = _exit_on_term()
        self.embedded: EmbeddedCollector | None = None
        if options.group:
            from pyspark_gapless.source.embedded_collector import EmbeddedCollector

            chosen = dict(options.collector)
            if options.spool_keys:
                chosen.setdefault("spool_keys", options.spool_keys)
            self.embedded = EmbeddedCollector(options.spools[0], options.group, chosen)
            self.embedded.start()

    def refresh(self) -> None:
        """Look for new messages."""
        if self.embedded is not None:
            self.embedded.check()
        self.replicas.refresh()
        self.is_selected = self.replicas.origin_filter(self.options.origins)

    def all_available(self) -> Digest:
        """Return the newest position of every selected stream."""
        return {key: seqno for key, seqno in self.replicas.high().items() if self.is_selected(key)}

    def available(self) -> Digest:
        """Return the end of the available messages for this query."""
        found = self.all_available()
        if self.available_now_end is None:
            return found
        return {
            key: min(seqno, found[key])
            for key, seqno in self.available_now_end.items()
            if key in found
        }

    def release(self, reader: str, digest: Digest, former: str) -> None:
        """Register the committed digest; a new query registers at once, to retain the rest."""
        self._reader = reader
        registered = self._with_others(digest)
        there = {at for at, view in enumerate(self.replicas.spool_readers) if view is not None}
        self._registered_at_ns = {
            at: stamp for at, stamp in self._registered_at_ns.items() if at in there
        }
        new = there - self._registered_at_ns.keys()
        if new:
            self.releaser.force_next()
            known = (
                {}
                if self.initial == offset_of(digest, former)
                else self.replicas.registrations(reader)
            )
            self._registered_at_ns |= {at: known[at].when_ns for at in new if at in known}
            self._registered_at_ns |= self.replicas.register(
                reader, registered, sorted(new - known.keys())
            )
            if former not in {"", reader}:
                self.replicas.unregister(former)
        self.releaser.submit(registered)

    def recovered_start(self, reader: str, default: Digest) -> Digest:
        """Return where the first batch of an earlier run of the query began, as registered."""
        found = [known.digest for known in self.replicas.registrations(reader).values()]
        if not found:
            log.warning(
                (
                    "no spool has a registration of the reader %s; the repeated first "
                    "batch begins at %s"
                ),
                reader,
                default,
            )
            return default
        return {
            key: seqno
            for key, seqno in merge_digests(found, highest=False).items()
            if self.is_selected(key)
        }

    def _with_others(self, digest: Mapping[str, int]) -> Digest:
        """Return the digest with all unread streams as passed, so that spools retain none."""
        if not self.options.origins:
            return dict(digest)
        others = {
            key: seqno for key, seqno in self.replicas.high().items() if not self.is_selected(key)
        }
        return dict(sorted((others | dict(digest)).items()))

    def _register(self, digest: Digest) -> None:
        known = self.replicas.registrations(self._reader)
        foreign = [
            at
            for at, found in known.items()
            if self._registered_at_ns.get(at, found.when_ns) != found.when_ns
        ]
        # The previous run of this query may still be ending, and register once more; a live rival
        # continues.
        self._rivals = self._rivals + 1 if foreign else 0
        if self._rivals > MAX_RIVALS:
            raise ReaderTakenError(
                f"{self.replicas.paths[foreign[0]]}: another query reads as "
                f"{self._reader!r}, so the spool cannot retain messages for both; "
                'give each query its own name with the option "reader", or remove '
                "the option"
            )
        self._registered_at_ns |= self.replicas.register(self._reader, digest)

    def close(self) -> None:
        """Close all open resources."""
        self.releaser.stop()
        try:
            self.releaser.flush()
        except (GaplessError, OSError) as error:
            log.warning("cannot release the read position: %s", error)
        if self.embedded is not None:
            try:
                self.embedded.stop()
            except GaplessError as error:
                log.warning("the embedded collector: %s", error)
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)


def _exit_on_term() -> Any:
    """Make SIGTERM end this process cleanly: Spark stops a query by SIGTERM alone."""
    if threading.current_thread() is not threading.main_thread():
        return None
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        return None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return before

"""The recorder: writes the trace of a member, through all incarnations, while the member runs.

On every Ready of the machine: the rows are packed. The rows of a turn are written, with one call,
before the datagrams leave and before the application gets the deliveries. Every effect of a killed
process on others is therefore in the file, and the application takes no part in recording.

Rows have the time of building, from a wall clock that never goes back within an incarnation.

On an error of the disk: recording stops, and the group continues. The error is logged once, and the
trace is marked as incomplete.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING, TypedDict

from gapless.errors import ConfigError, GaplessError, LocalProtocolError
from gapless.logger import log
from gapless.profiles import NumberingScope
from gapless.trace.incarnations import TIME_OF_DAY, IncarnationRecord, own_incarnation
from gapless.trace.journal import ROW_STRUCT, ROWS_PER_FILE, TraceJournal
from gapless.trace.parquet import can_seal, seal_journal
from gapless.trace.row_builder import RowBuilder
from gapless.trace.schema import EVENT_CODES, incarnation_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready import Ready, Transmit
    from gapless.trace.row_builder import RowValues

MODES = ("full", "sampled")
"""How much is recorded."""
SAMPLE_EVERY = 1024
"""A sample has the rows of one message in this many."""
_INT64_MAX = 2**63 - 1


class Recorder:
    """The trace of a member: ``join(…, trace=Recorder(folder, mode="sampled"))``.

    Any thread may call the recorder.

    Args:
        folder: The folder of the trace.
        member: The display name of the member; the default is the durable name, or the locator.
        mode: ``full`` for every row, ``sampled`` for a sample.
        every: The sampling interval: runs with a multiple of this number have rows.
        rows_per_file: Number of rows after which a journal is full.
        seals: Whether to seal full journals to Parquet while recording, if pyarrow is installed.
            Without it the reader of the trace seals the journals.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        member: str = "",
        mode: str = "full",
        every: int = SAMPLE_EVERY,
        rows_per_file: int = ROWS_PER_FILE,
        seals: bool = True,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"trace mode {mode!r}: expected one of {', '.join(MODES)}")
        if type(every) is not int or every < 2:
            raise ConfigError(f"every = {every!r}: expected an integer of at least 2")
        self.folder = Path(folder).absolute()
        self.member = member
        self.mode = mode
        self.every = every if mode == "sampled" else 1
        self.rows = 0
        self._rows_per_file = rows_per_file
        self._seals = seals
        self._lock = threading.Lock()
        self._journal: TraceJournal | None = None
        self._row_builder: RowBuilder | None = None
        self._incarnation_id = self._wall_ns = 0
        self._row_index = self._step = 0
        self._packed: list[bytes] = []
        self._sealer: threading.Thread | None = None
        self._claimed = self._finished = False

    @property
    def stopped(self) -> str:
        """The error that stopped the recording; empty without an error."""
        return "" if self._journal is None else self._journal.stopped

    @property
    def file_set(self) -> Path | None:
        """The folder of the file set; None before the first incarnation."""
        return None if self._journal is None else self._journal.folder

    # For the shell of a member

    def claim(self) -> None:
        """Bind the recorder to a member; a second member is an error."""
        with self._lock:
            if self._claimed:
                raise LocalProtocolError(
                    "a recorder records a single member: create a Recorder for each join"
                )
            self._claimed = True

    def begin_incarnation(
        self, me: Address, config: Config, wall_ns: int, *, member: str, stores: bool
    ) -> None:
        """Begin an incarnation whose wall clock is ``wall_ns`` ahead of the monotonic clock."""
        with self._lock:
            if self._finished:
                return  # the application has closed the recorder, and the member continues
            name = str(me)
            if self._journal is None:
                self._journal = TraceJournal(self.folder / name, self._rows_per_file)
            about = own_incarnation(
                0,
                name,
                config,
                {},
                member=self.member or member,
                mode=self.mode,
                every=self.every,
                clock=TIME_OF_DAY,
                stores=stores,
            )
            self._journal.write_incarnation(about)
            self._incarnation_id = incarnation_id(name)
            self._wall_ns, self._row_index = wall_ns, 0
            by_view = config.group_profile.numbering is NumberingScope.VIEW
            self._row_builder = RowBuilder(
                me,
                self._intern_incarnation,
                str,
                EVENT_CODES,
                self._journal.intern_text,
                by_view=by_view,
                every=self.every,
            )
            self._pack((self._row_builder.row("BEGIN", high=config.reach),))
            self._flush()

    def record_ready(self, ready: Ready) -> None:
        """Record a Ready of the machine; an error here never affects the group."""
        with self._lock:
            if self._row_builder is None or self._finished:
                return
            self._step += 1
            try:
                self._pack(self._row_builder.rows_of_ready(ready))
            # A bug of the recorder must not end a healthy group.
            except Exception as error:  # noqa: BLE001
                self._abort(error)

    def record_dropped(self, sender: Address) -> None:
        """Record that a received datagram of ``sender`` was dropped on purpose."""
        with self._lock:
            if self._row_builder is not None and not self._finished:
                self._pack((self._row_builder.row("NET_DROP", peer=sender),))

    def flush(self, transmits: Sequence[Transmit]) -> None:
        """Write the rows of the turn; ``transmits`` are about to leave."""
        with self._lock:
            if self._row_builder is None or self._finished:
                return
            if transmits:
                size_bytes = sum([len(transmit.datagram) for transmit in transmits])
                if (row := self._row_builder.transmit_row(len(transmits), size_bytes)) is not None:
                    self._pack((row,))
            if self._packed:
                self._flush()

    def finish(self, *, whole: bool = True) -> None:
        """Stop recording: the member has ended. The trace is complete if ``whole``."""
        with self._lock:
            if self._finished:
                return
            if self._row_builder is not None and whole:
                self._pack((self._row_builder.row("END"),))
                self._flush()
            self._finished = True
            if self._journal is not None:
                self._journal.close()

    def abandon(self) -> None:
        """Close the files without writing: after a fork the parent process owns the files."""
        self._finished = True
        if self._journal is not None:
            self._journal.close()

    # For the application

    def mark_end_of_load(self) -> None:
        """Record that the load has ended and this incarnation is present: silence follows."""
        with self._lock:
            if self._row_builder is not None and not self._finished:
                self._step += 1
                self._pack((self._row_builder.row("REST"),))
                self._flush()

    def close(self, *, seal: bool = True) -> None:
        """Stop writing, and seal the files if requested and possible."""
        self.finish()
        if seal and self._seals and self._journal is not None and can_seal():
            if self._sealer is not None:
                self._sealer.join()
            for path in sorted(self._journal.folder.glob("*.rows")):
                _seal(path)

    # Rows

    def _intern_incarnation(self, address: Address | None) -> int:
        """Return the number of an incarnation, and write the name on the first call."""
        if address is None:
            return 0
        name = str(address)
        number = incarnation_id(name)
        if number != self._incarnation_id:
            assert self._journal is not None
            self._journal.write_incarnation(IncarnationRecord(0, name))
        return number

    def _pack(self, rows: Sequence[RowValues]) -> None:
        journal = self._journal
        assert journal is not None
        if journal.stopped or not rows:
            return
        pack, life, step, idx, packed = (
            ROW_STRUCT.pack,
            self._incarnation_id,
            self._step,
            self._row_index,
            self._packed,
        )
        t_ns = time.monotonic_ns() + self._wall_ns
        for row in rows:
            try:
                packed.append(pack(life, idx, step, t_ns, *row))
            except StructError:  # a number from a stranger may have any size
                packed.append(pack(life, idx, step, t_ns, *map(_clamped, row)))
            idx += 1
        self.rows += len(rows)
        self._row_index = idx

    def _abort(self, error: Exception) -> None:
        log.error("a bug of the recorder", exc_info=error)
        assert self._journal is not None
        self._journal.stop(f"{type(error).__name__}: {error}")

    def _flush(self) -> None:
        packed, self._packed = self._packed, []
        journal = self._journal
        assert journal is not None
        journal.write_rows(packed)
        if (
            self._seals
            and journal.full_files
            and (self._sealer is None or not self._sealer.is_alive())
            and can_seal()
        ):
            full, journal.full_files = journal.full_files, []
            self._sealer = threading.Thread(
                target=partial(_seal_all, full), name="gapless-trace", daemon=True
            )
            self._sealer.start()


def _clamped(value: int) -> int:
    return min(value, _INT64_MAX)


def _seal_all(paths: list[Path]) -> None:
    for path in paths:
        _seal(path)


def _seal(path: Path) -> None:
    """Seal a journal; after a failure the journal stays for a reader to seal."""
    try:
        seal_journal(path)
    except (GaplessError, FileNotFoundError) as error:
        log.warning("could not seal the trace, the journal stays: %s", error)


class RecordingMode(TypedDict, total=False):
    """How much is recorded, as options of a recorder."""

    mode: str
    every: int


def parse_recording_mode(text: str) -> RecordingMode:
    """Parse ``full``, ``sampled`` or ``sampled:100`` into options of a recorder."""
    mode, colon, every = text.partition(":")
    if mode not in MODES or (
        colon and (mode != "sampled" or not every.isdecimal() or int(every) < 2)
    ):
        raise ConfigError(
            f"trace mode {text!r}: expected full, sampled, or sampled:N for one message in N"
        )
    return {"mode": mode, "every": int(every)} if colon else {"mode": mode}

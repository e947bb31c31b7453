"""A spool against a simple model: append, commit, crash, reopen, trim and read, in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gapless.identity import Address
from gapless.spool import SpoolLimits, SpoolReader, SpoolWriter
from gapless.spool.segment_file import list_segments, segment_path
from tests.support.deliveries import GROUP, A, B, C, expected, pieces, rows_of, run, text

ORIGINS = st.sampled_from([A, B, C])


class SpoolMachine(RuleBasedStateMachine):
    """The model of each stream: what was appended and committed, and the reader's position."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="gapless-spool-"))
        self.rows: dict[str, list[tuple[int, bytes]]] = {}
        self.high: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.passed: dict[str, int] = {}
        self.registered = self.turn = False
        self.blob = self.durable_blob = b""

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.root)

    @initialize(segment_bytes=st.sampled_from([600, 2000, 100_000]))
    def begin(self, segment_bytes: int) -> None:
        self.limits = SpoolLimits(segment_bytes=segment_bytes)
        self.open()
        self.view = SpoolReader(self.root)
        self.early = SpoolReader(self.root)

    def open(self) -> None:
        self.spool = SpoolWriter.open(self.root, group=GROUP, limits=self.limits, sync=False)

    @rule(origin=ORIGINS, count=st.integers(1, 8), back=st.integers(0, 3))
    def append(self, origin: Address, count: int, back: int) -> None:
        key = str(origin)
        high = self.high.get(key, 0)
        first = max(1, high + 1 - back)
        self.spool.append(run(origin, first, high + count), name="alpha" if origin == A else "")
        self.rows.setdefault(key, []).extend(expected(origin, high + 1, high + count))
        self.high[key] = high + count

    @rule(origin=ORIGINS, count=st.integers(1, 4))
    def append_in_pieces(self, origin: Address, count: int) -> None:
        key = str(origin)
        last = self.high.get(key, 0) + count
        self.spool.append(pieces(origin, last - count + 1, last, 300))
        self.rows.setdefault(key, []).append((last, text(origin, last, 300)))
        self.high[key] = last

    @rule(origin=ORIGINS, count=st.integers(1, 4))
    def lose(self, origin: Address, count: int) -> None:
        key = str(origin)
        high = self.high.get(key, 0)
        self.spool.append_lost(origin, high + 1, high + count)
        self.rows.setdefault(key, [])
        self.high[key] = high + count

    @rule(value=st.binary(max_size=20))
    def keep(self, value: bytes) -> None:
        self.spool.blob = self.blob = value

    @rule()
    def commit(self) -> None:
        marks = self.spool.commit()
        self.committed = dict(self.high)
        self.durable_blob = self.blob
        assert {str(origin): seqno for origin, seqno in marks.items()} == self.committed

    def forget_uncommitted(self) -> None:
        self.high = dict(self.committed)
        self.blob = self.durable_blob
        for key, rows in self.rows.items():
            self.rows[key] = [row for row in rows if row[0] <= self.high.get(key, 0)]

    @rule(junk=st.binary(max_size=300), cut_index=st.booleans())
    def crash(self, junk: bytes, cut_index: bool) -> None:
        """The process dies; what it was writing may be there in part."""
        self.spool._store.close()
        self.spool._lock.release()
        numbers = list_segments(self.root)
        if numbers:
            with segment_path(self.root, numbers[-1]).open("ab") as file:
                file.write(junk)
        if cut_index:
            for path in (self.root / "segments").glob("*.idx"):
                path.unlink()
            (self.root / "committed").unlink(missing_ok=True)
        self.open()
        self.forget_uncommitted()
        assert {str(origin): seqno for origin, seqno in self.spool.marks.items()} == self.committed
        assert self.spool.blob == self.durable_blob
        assert self.spool.recovered.damage == ()

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def read_on(self, data: st.DataObject) -> None:
        self.view.refresh()
        end = {
            key: data.draw(st.integers(self.passed.get(key, 0), high))
            for key, high in self.committed.items()
        }
        found = rows_of(self.view, self.passed, end)
        for key, upto in end.items():
            wanted = [row for row in self.rows[key] if self.passed.get(key, 0) < row[0] <= upto]
            assert found.get(key, []) == wanted
        self.passed = end
        self.view.register("spark", end)
        self.registered = True

    @precondition(lambda self: self.committed)
    @rule(rows=st.integers(1, 30), size_bytes=st.one_of(st.none(), st.integers(1, 2000)))
    def admit(self, rows: int, size_bytes: int | None) -> None:
        self.view.refresh()
        end = self.view.admit(self.passed, self.view.high(), max_rows=rows, max_bytes=size_bytes)
        taken = 0
        for key, high in self.committed.items():
            assert self.passed.get(key, 0) <= end[key] <= high
            waiting = [
                row for row in self.rows[key] if row[0] > self.passed.get(key, 0) and row[0] <= high
            ]
            got = [row for row in waiting if row[0] <= end[key]]
            assert bool(got) == bool(waiting)
            assert got or end[key] == high
            taken += max(0, len(got) - 1)
        assert taken <= rows

    @rule()
    def trim(self) -> None:
        before = list_segments(self.root)
        self.spool.trim()
        after = list_segments(self.root)
        assert after[-1:] >= before[-1:]
        if not self.registered:
            assert set(after) >= set(before)

    @invariant()
    def everything_committed_and_not_passed_is_there(self) -> None:
        if not hasattr(self, "spool"):
            return
        self.turn = not self.turn
        for view in (SpoolReader(self.root) if self.turn else self.early,):
            view.refresh()
            assert view.high() == self.committed
            found = rows_of(view, self.passed)
            for key, high in self.committed.items():
                wanted = [row for row in self.rows[key] if self.passed.get(key, 0) < row[0] <= high]
                assert found.get(key, []) == wanted
            low = view.low()
            assert all(
                low[key] <= self.passed.get(key, 0) for key in self.committed if self.rows[key]
            )


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)

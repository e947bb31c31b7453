"""The results of a task, their files, the sizes of chunks, and the progress, without Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gapless.errors import ConfigError
from gapless.sim.profile_cost import KINDS, ProfileWorkload, run_cell
from gapless.sim.runner import simulate, sweep as sweep_in_process
from pyspark_gapless.runtime.package_zip import package_root
from pyspark_gapless.sweep import runner as running, task
from pyspark_gapless.sweep.executors import SweepError, SweepExecutor
from pyspark_gapless.sweep.grid_file import read_grid
from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
from pyspark_gapless.sweep.runner import ChunkSizer, SweepPlan, run, sweep
from pyspark_gapless.sweep.schema import COLUMNS, arrow_schema
from pyspark_gapless.sweep.summary import CellSummary, summarise
from pyspark_gapless.sweep.task import (
    BATCH_ROWS,
    SweepRun,
    histogram,
    record_batches,
    rounded_up,
    run_row,
    run_table,
)
from tests.support.small_sweep import rows_in_process, rows_of, small


class Here(SweepExecutor):
    """Does everything at once and in this process; can be told to fail."""

    slots = 2

    def __init__(self, fail_at: int | None = None) -> None:
        self.chunks: list[list[SweepRun]] = []
        self.fail_at = fail_at

    def submit(self, runs: list[SweepRun], code: str) -> Future[pa.Table]:  # type: ignore[override]
        future: Future[pa.Table] = Future()
        if len(self.chunks) == self.fail_at:
            future.set_exception(OSError("pulled the plug"))
            return future
        self.chunks.append(runs)
        future.set_result(run_table(runs, code))
        return future

    def explain_failure(self, error: BaseException) -> SweepError | None:
        return SweepError(str(error)) if isinstance(error, OSError) else None


def swept(wanted: RequestedRuns, folder: Path) -> SweepResults:
    results = SweepResults(folder)
    with results.locked():
        sweep(wanted, Here(), results)
    return results


# Rows


def test_a_row_of_a_grid_is_the_cell_of_compare() -> None:
    (cell,) = read_grid(
        "[grid]\nloss = 20\nmembers = 2\ncapacity = 4\nxmit_interval = '50ms'\n[work]\nmessages = 9"
    )
    row = run_row(SweepRun(cell, 5), "code")
    found = run_cell("nakack4", 20.0, ProfileWorkload(2, 9, 100, 1_000_000, 5), cell.config())
    assert list(row) == list(COLUMNS)
    assert (row["key"], row["seed"], row["code"], row["kind"]) == (cell.key, 5, "code", "grid")
    assert (row["capacity"], row["knobs"]) == (4, [("capacity", "4"), ("xmit_interval", "50ms")])
    assert (row["frames"], row["bytes"]) == (found.frames, found.sizes_bytes)
    assert (row["p50_ns"], row["p99_ns"], row["max_ns"]) == (
        found.p50_ns,
        found.p99_ns,
        found.max_ns,
    )
    assert row["frames_lost"] == found.frames_lost > 0
    assert row["delivered"] == row["expected"] == 18 == sum(count for _, count in row["latency"])
    assert dict(row["faults"]) == {"loss": found.frames_lost}
    assert row["character"] is row["seen"] is row["error"] is None


def test_a_row_of_a_hunt_is_the_outcome_of_its_seed() -> None:
    cell = read_grid("[hunt]\ngroups = 'membership'\nmessages = 3\nmembers = 2")[0]
    row = run_row(SweepRun(cell, 5), "code")
    outcome = simulate(5, members=2, messages=3, membership=True)
    assert (row["digest"], row["events"], row["steps"]) == (
        outcome.digest,
        outcome.events,
        outcome.steps,
    )
    assert (row["profile"], row["character"]) == (outcome.profile, outcome.character)
    assert dict(row["faults"]) == outcome.faults
    assert set(row["seen"]) <= outcome.seen
    assert row["capacity"] is row["loss"] is row["frames"] is row["error"] is None


def test_a_run_that_breaks_off_is_a_row_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a key")

    monkeypatch.setattr(task, "simulate", fail)
    cell = read_grid("[hunt]")[0]
    row = run_row(SweepRun(cell, 5), "code")
    assert row["error"].startswith("KeyError: 'a key' (test_results.py, line ")
    assert row["digest"] is row["events"] is None
    assert pa.RecordBatch.from_pylist([row], schema=arrow_schema()).num_rows == 1


def test_rows_come_a_few_at_a_time() -> None:
    cell = small(1).cells[0]
    begun = []

    def runs() -> object:
        for seed in range(BATCH_ROWS + 3):
            begun.append(seed)
            yield SweepRun(cell, seed)

    batches = record_batches(runs(), "code")  # type: ignore[arg-type]
    first = next(batches)
    assert (first.num_rows, len(begun)) == (BATCH_ROWS, BATCH_ROWS), "nobody waits for the others"
    assert [batch.num_rows for batch in batches] == [3]
    assert first.schema.equals(arrow_schema())


def test_times_are_rounded_up_by_little() -> None:
    for value in (*range(2000), 10**6, 10**6 + 1, 123_456_789, 2**40 - 1):
        rounded = rounded_up(value)
        assert value <= rounded <= value * (1 + 1 / 64)
        assert rounded_up(rounded) == rounded
    assert histogram({1001: 2, 1008: 3, 5: 1}) == {5: 1, 1008: 5}


# Files


def test_results_of_a_sweep_are_those_of_single_runs_and_are_not_done_again(tmp_path: Path) -> None:
    wanted, engine = small(4), Here()
    results = SweepResults(tmp_path)
    with results.locked():
        progress = sweep(wanted, engine, results)
    assert (progress.total, progress.before, progress.done) == (24, 0, 24)
    assert rows_of(tmp_path, wanted) == rows_in_process(wanted)
    assert not list(results.files.glob(".*"))
    again = Here()
    with results.locked():
        progress = sweep(wanted, again, results)
    assert (progress.before, progress.done, again.chunks) == (24, 24, [])
    more = small(5)
    with results.locked():
        sweep(more, again, results)
    assert sorted(run.seed for chunk in again.chunks for run in chunk) == [4] * 6
    assert rows_of(tmp_path, more) == rows_in_process(more)


def test_results_of_other_code_or_another_version_do_not_count(tmp_path: Path) -> None:
    wanted = small(2)
    results = swept(wanted, tmp_path)
    other = RequestedRuns(wanted.cells, wanted.seeds, "other code")
    assert results.completed(wanted).all()
    assert not results.completed(other).any()
    assert results.completed(other, of_other_code=True).all()
    assert not results.completed(wanted, of_other_code=True).any()
    wanted.version = "0.0.9"
    assert not results.completed(wanted).any()


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    wanted = small(2)
    results = swept(wanted, tmp_path)
    for path in list(results.files.iterdir()):
        table = pq.read_table(path)
        pq.write_table(pa.concat_tables([table, table]), results.files / f"copy-{path.name}")
    assert rows_of(tmp_path, wanted) == rows_in_process(wanted)
    assert summarise(results, wanted).runs == 12


def test_a_chunk_that_fails_ends_the_sweep_and_what_was_done_stays(tmp_path: Path) -> None:
    wanted, results = small(4), SweepResults(tmp_path)
    with pytest.raises(SweepError, match="pulled the plug"), results.locked():
        sweep(wanted, Here(fail_at=3), results)
    assert results.completed(wanted).sum() == 3, "the first chunks are of one run each"


def test_more_runs_than_can_be_kept_account_of_are_refused(tmp_path: Path) -> None:
    plan = SweepPlan(small(1).cells, range(10**8), tmp_path / "out", None, 1)
    with pytest.raises(ConfigError, match="6 cells with 100,000,000 seeds are 600,000,000 runs"):
        run(plan, lambda _: None, threading.Event())
    assert not (tmp_path / "out").exists()


def test_one_who_is_stopped_keeps_what_is_under_way(tmp_path: Path) -> None:
    wanted, results, stop, engine = small(4), SweepResults(tmp_path), threading.Event(), Here()
    with results.locked():
        progress = sweep(
            wanted,
            engine,
            results,
            stop=stop,
            on_progress=lambda stand: stop.set() if stand.done else None,
        )
    assert 0 < progress.done < 24
    assert results.completed(wanted).sum() == progress.done == sum(map(len, engine.chunks))
    assert summarise(results, wanted).missing == 24 - progress.done


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    second = SweepResults(tmp_path).locked()
    with (
        SweepResults(tmp_path).locked(),
        pytest.raises(ConfigError, match="another sweep is writing here"),
    ):
        second.__enter__()


def test_what_was_not_finished_is_swept_away(tmp_path: Path) -> None:
    wanted = small(1)
    results = swept(wanted, tmp_path)
    (results.files / ".unfinished-x.parquet").write_bytes(b"half a fi")
    assert results.completed(wanted).all(), "nobody reads it"
    with results.locked():
        assert not list(results.files.glob(".*"))


@pytest.mark.parametrize("content", [b"not a table", b""])
def test_a_file_that_is_no_result_is_named(content: bytes, tmp_path: Path) -> None:
    wanted = small(1)
    results = swept(wanted, tmp_path)
    (results.files / "zzz.parquet").write_bytes(content)
    with pytest.raises(ConfigError, match=r"zzz\.parquet cannot be read: .*move the file away"):
        results.completed(wanted)
    pq.write_table(pa.table({"key": ["x"]}), results.files / "zzz.parquet")
    with pytest.raises(ConfigError, match=r"zzz\.parquet is not a result file"):
        results.completed(wanted)


# Chunks


def paced(slots: int, parts: int, runs: int, each_s: float) -> ChunkSizer:
    engine = Here()
    engine.slots, engine.parts = slots, parts
    pace = ChunkSizer(engine)
    pace.record(runs, runs * each_s)
    return pace


def test_chunks_begin_small_grow_and_shrink_towards_the_end() -> None:
    assert ChunkSizer(Here()).next_size(1000) == 1, "nothing is known"
    assert paced(2, 1, 2, 0.1).next_size(1000) == 2, "little is known"
    assert paced(2, 1, 1000, 0.1).next_size(1000) == 30, "three seconds"
    assert paced(2, 1, 1000, 0.1).next_size(80) == 20, "all cores are to end together"
    assert paced(2, 1, 1000, 0.1).next_size(4) == 8, "but a task is not made for nothing"
    assert paced(2, 1, 1000, 60.0).next_size(1000) == 1
    assert paced(100, 25, 10_000, 0.1).next_size(10**6) == 25 * 30


def test_an_engine_has_one_chunk_more_than_it_can_take() -> None:
    engine = Here()
    assert engine.max_in_flight == 3
    engine.slots, engine.parts = 10, 3
    assert engine.max_in_flight == 5


def test_cells_are_mixed_in_every_chunk() -> None:
    wanted = small(50)
    runs = running._shuffled(
        iter([SweepRun(cell, seed) for cell in wanted.cells for seed in wanted.seeds])
    )
    for part in (runs[0::3], runs[1::3], runs[2::3]):
        keys = [run.cell.key for run in part]
        assert min(keys.count(cell.key) for cell in wanted.cells) > 8


# What is told


def test_a_hunt_sums_up_to_what_gapless_sim_says(tmp_path: Path) -> None:
    wanted = small(12, text="[hunt]\ngroups = 'told'\nmessages = 3\nmembers = 2")
    summary = summarise(swept(wanted, tmp_path), wanted)
    alone = sweep_in_process(range(12), members=2, messages=3)
    (hunt,) = summary.hunts
    assert (hunt.digest, hunt.runs) == (alone.digest, 12)
    assert (hunt.faults, hunt.seen) == (alone.faults, alone.seen)
    assert (hunt.profiles, hunt.characters) == (alone.profiles, alone.characters)
    assert (hunt.sums["events"], hunt.sums["sent"]) == (alone.events, alone.messages)
    assert hunt.never_seen == alone.never_seen
    assert hunt.failure_rate_bound == 3 / 12
    assert summary.ok, "so short a hunt need not have seen everything"
    assert not hunt.drawn, "the number of members was given"
    assert replace(summary, hunts=[replace(hunt, runs=300)]).ok
    assert not replace(summary, hunts=[replace(hunt, runs=300, drawn=True)]).ok


def test_a_cell_sums_up_all_its_runs(tmp_path: Path) -> None:
    wanted = small(3)
    summary = summarise(swept(wanted, tmp_path), wanted)
    rows = rows_in_process(wanted)
    for part in summary.cells:
        own = [row for row in rows if row["key"] == part.cell.key]
        assert (part.runs, part.failed) == (3, 0)
        for name in ("sent", "expected", "delivered", "frames_lost", "stalls"):
            assert part.sums[name] == sum(row[name] for row in own)
        assert part.frames == {kind: sum(row["frames"][kind] for row in own) for kind in KINDS}
        assert part.latency.total() == part.sums["delivered"]
        assert part.maxima["max_ns"] == max(row["max_ns"] or 0 for row in own)
        assert part.percentile_ns(100) == part.maxima["max_ns"]
        one = summarise(
            SweepResults(tmp_path), RequestedRuns([part.cell], range(1), wanted.code)
        ).cells[0]
        exact = next(row for row in own if row["seed"] == 0)
        for percent in (50, 99):
            exact_ns, told_ns = exact[f"p{percent}_ns"], one.percentile_ns(percent)
            assert (exact_ns is None) == (told_ns is None)
            assert told_ns is None or exact_ns <= told_ns <= exact_ns * 65 / 64


def test_nothing_delivered_and_nothing_lost_divide_nothing() -> None:
    part = CellSummary(small(1).cells[0])
    assert (part.percentile_ns(99), part.repairs_per_loss(), part.per_second()) == (None, None, 0.0)
    assert part.as_dict()["frames_per_message"] == 0


# Killed


KILLED = """
import sys, threading
from pathlib import Path
from pyspark_gapless.sweep import runner as running
from pyspark_gapless.sweep.grid_file import read_grid

running.MIN_WRITE_INTERVAL_S = 0.0

def tell(progress):
    print(progress.done, progress.written_s > 0, flush=True)

if __name__ == "__main__":
    cells = read_grid(Path(sys.argv[1]).read_text())
    plan = running.SweepPlan(cells, range(100_000), Path(sys.argv[2]), None, 1)
    running.run(plan, tell, threading.Event())
"""


def test_a_sweep_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    text = "[hunt]\ngroups = 'told'\nmessages = 3\nmembers = 2"
    (tmp_path / "grid.toml").write_text(text)
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    command = [sys.executable, str(program), str(tmp_path / "grid.toml"), str(tmp_path / "out")]
    with subprocess.Popen(
        command, env={"PYTHONPATH": str(package_root())}, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        written = next(line for line in child.stdout if line.endswith("True\n"))
        child.send_signal(signal.SIGKILL)
        child.communicate(
            timeout=60
        )  # standard output comes to its end when the worker has gone too
        assert child.returncode == -signal.SIGKILL
    results = SweepResults(tmp_path / "out")
    kept = int(results.completed(small(100_000, text=text)).sum())
    assert kept >= int(written.split()[0]) > 0
    wanted = small(kept + 5, text=text)
    done = run(
        SweepPlan(wanted.cells, wanted.seeds, tmp_path / "out", None, 1),
        lambda _: None,
        threading.Event(),
    )
    assert done.progress.before >= kept - 5, "a few may have been done out of turn"
    assert done.progress.done == kept + 5
    assert done.summary.missing == 0
    sample = [row for row in rows_of(tmp_path / "out", wanted) if row["seed"] < 5]
    assert sample == rows_in_process(small(5, text=text))

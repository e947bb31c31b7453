"""Summary of a sweep: a line for each cell of a grid, the counts of a hunt, and every failure.

Whole columns are added up batch by batch, so a sweep of millions of runs needs no more memory than
a sweep of thousands, except for the digests of a hunt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from gapless.sim.coverage.membership_coverage import REQUIRED_MEMBERSHIP_COVERAGE
from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE
from gapless.sim.profile_cost import KINDS
from gapless.sim.runner import thorough_seeds
from gapless.sim.seed_result import FAULT_KINDS
from gapless.units import NS_PER_S
from pyspark_gapless.sweep.cell import SweepCell
from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
from pyspark_gapless.sweep.schema import GRID, HUNTS, MEMBERSHIP

if TYPE_CHECKING:
    import pyarrow as pa

MAX_FAILURES: Final = 1000
"""Maximum number of failures with violations; further failures are only counted."""
_SUMS: Final = (
    *("sent", "expected", "delivered", "span_ns", "frames_lost", "stalls"),
    *("repairs", "events", "steps", "simulated_ns", "cpu_s"),
)
_MAXIMA: Final = ("max_ns", "peak_window")


@dataclass(slots=True)
class RunFailure:
    """A run with violations, or with an error."""

    cell: SweepCell
    seed: int
    profile: str | None
    violations: list[dict[str, Any]]
    error: str | None

    @property
    def description(self) -> str:
        """The fault of the run, in a line."""
        if self.error is not None:
            return f"broke off: {self.error}"
        first = self.violations[0]
        more = f" (and {len(self.violations) - 1} more)" if len(self.violations) > 1 else ""
        where = f"{first['t_ns'] / NS_PER_S:.6f} s, member {first['member']}"
        return f"{first['check']} at {where}: {first['message']}{more}"

    @property
    def replay(self) -> str:
        """The command to repeat the run."""
        return self.cell.replay(self.seed)

    @property
    def shrink(self) -> str | None:
        """The command to shrink the run to a scenario; a run with an error cannot be shrunk."""
        return None if self.error is not None else self.cell.shrink(self.seed)

    def as_dict(self) -> dict[str, Any]:
        """Return the failure for a program."""
        return {
            "key": self.cell.key,
            "seed": self.seed,
            "profile": self.profile,
            "violations": self.violations,
            "error": self.error,
            "replay": self.replay,
            "shrink": self.shrink,
        }


@dataclass(slots=True)
class CellSummary:
    """All runs of a cell. ``frames`` and ``sizes_bytes`` are by kind, latencies by delivery."""

    cell: SweepCell
    runs: int = 0
    failed: int = 0
    violations: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    maxima: dict[str, int] = field(default_factory=dict)
    frames: Counter[str] = field(default_factory=Counter)
    sizes_bytes: Counter[str] = field(default_factory=Counter)
    latency: Counter[int] = field(default_factory=Counter)

    def per_second(self) -> float:
        """Return the deliveries in a second of virtual time."""
        return (
            self.sums["delivered"] * NS_PER_S / self.sums["span_ns"]
            if self.sums["span_ns"]
            else 0.0
        )

    def percentile_ns(self, percent: float) -> int | None:
        """Return the latency not exceeded by ``percent`` of all deliveries, or None."""
        left = self.latency.total() * percent / 100
        for value_ns in sorted(self.latency):
            left -= self.latency[value_ns]
            if left <= 0:
                return min(value_ns, self.maxima.get("max_ns", value_ns))
        return None

    def per_message(self, kind: str) -> float:
        """Return the frames of a kind for each delivered message."""
        return self.frames[kind] / max(1, self.sums["delivered"])

    def repairs_per_loss(self) -> float | None:
        """Return the repair frames per lost frame; None without losses."""
        return (
            self.frames["repair"] / self.sums["frames_lost"] if self.sums["frames_lost"] else None
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for a program."""
        cell = self.cell
        return {
            "key": cell.key,
            "profile": cell.profile,
            "members": cell.members,
            "loss": cell.loss_percent,
            "knobs": dict(cell.knobs),
            "messages": cell.messages,
            "size_bytes": cell.size_bytes,
            "pace_ns": cell.pace_ns,
            "mutant": cell.mutant or None,
            "runs": self.runs,
            "failed": self.failed,
            "violations": self.violations,
            **{name: self.sums[name] for name in _SUMS if name != "cpu_s"},
            "cpu_s": round(self.sums["cpu_s"], 3),
            **{name: self.maxima.get(name) for name in _MAXIMA},
            "p50_ns": self.percentile_ns(50),
            "p99_ns": self.percentile_ns(99),
            "deliveries_per_s": round(self.per_second(), 1),
            "frames": {kind: self.frames[kind] for kind in KINDS},
            "bytes": {kind: self.sizes_bytes[kind] for kind in KINDS},
            "repairs_per_lost_frame": _rounded(self.repairs_per_loss()),
            "acks_per_message": _rounded(self.per_message("ack")),
            "frames_per_message": _rounded(self.frames.total() / max(1, self.sums["delivered"])),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


@dataclass(slots=True)
class HuntSummary:
    """All runs of a kind of hunt; ``drawn`` if the seeds draw the profiles."""

    kind: str
    drawn: bool
    runs: int = 0
    failed: int = 0
    violations: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAULT_KINDS, 0)))
    seen: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)
    digests: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def must_happen(self) -> tuple[str, ...]:
        """The required situations of the hunt."""
        return REQUIRED_MEMBERSHIP_COVERAGE if self.kind == MEMBERSHIP else REQUIRED_STREAM_COVERAGE

    @property
    def never_seen(self) -> list[str]:
        """The required situations without an occurrence."""
        return [what for what in self.must_happen if not self.seen[what]]

    @property
    def is_thorough(self) -> bool:
        """Whether there are enough runs to require every situation."""
        return self.drawn and self.runs >= thorough_seeds(membership=self.kind == MEMBERSHIP)

    @property
    def failure_rate_bound(self) -> float:
        """Maximum share of runs with an unseen bug, at 95 % confidence."""
        return min(1.0, 3 / max(1, self.runs))

    @property
    def digest(self) -> str:
        """The digest over all seeds in order, the same as from ``gapless sim --seeds``."""
        whole = "".join(digest for _, _, digest in sorted(self.digests))
        return blake2b(whole.encode(), digest_size=16).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for a program."""
        return {
            "groups": self.kind,
            "seeds": self.runs,
            "failed": self.failed,
            "violations": self.violations,
            "events": self.sums["events"],
            "steps": self.sums["steps"],
            "messages": self.sums["sent"],
            "simulated_seconds": round(self.sums["simulated_ns"] / NS_PER_S, 3),
            "cpu_s": round(self.sums["cpu_s"], 3),
            "profiles": dict(sorted(self.profiles.items())),
            "characters": dict(sorted(self.characters.items())),
            "faults": dict(sorted(self.faults.items())),
            "must_happen": {what: self.seen[what] for what in self.must_happen},
            "must_happen_missing": self.never_seen,
            "thorough": self.is_thorough,
            "a_bug_shows_in_less_than": None if self.failed else self.failure_rate_bound,
            "digest": self.digest,
        }


@dataclass(slots=True)
class SweepSummary:
    """The summary of a sweep; ``missing`` runs are not done yet."""

    cells: list[CellSummary]
    hunts: list[HuntSummary]
    failures: list[RunFailure]
    runs: int
    missing: int

    @property
    def _parts(self) -> list[CellSummary | HuntSummary]:
        return [*self.cells, *self.hunts]

    @property
    def failed(self) -> int:
        """How many runs failed, listed or not."""
        return sum(part.failed for part in self._parts)

    @property
    def violations(self) -> int:
        """How many violations there are."""
        return sum(part.violations for part in self._parts)

    @property
    def ok(self) -> bool:
        """Whether no run failed, and every thorough hunt has seen all required events."""
        return not self.failed and not any(
            hunt.is_thorough and hunt.never_seen for hunt in self.hunts
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for a program."""
        return {
            "runs": self.runs,
            "missing": self.missing,
            "failed": self.failed,
            "violations": self.violations,
            "cells": [cell.as_dict() for cell in self.cells],
            "hunts": [hunt.as_dict() for hunt in self.hunts],
            "failures": [failure.as_dict() for failure in self.failures],
        }


def summarise(results: SweepResults, wanted: RequestedRuns) -> SweepSummary:
    """Return the summary of the finished requested runs."""
    cells = {cell.key: CellSummary(cell) for cell in wanted.cells if cell.kind == GRID}
    kinds = dict.fromkeys(cell.kind for cell in wanted.cells if cell.kind != GRID)
    hunts = {
        kind: HuntSummary(kind, all(_is_drawn(cell) for cell in wanted.cells if cell.kind == kind))
        for kind in kinds
    }
    failures: list[RunFailure] = []
    runs = 0
    for batch in results.scan(wanted):
        runs += batch.num_rows
        _add_grid(batch, cells)
        _add_hunts(batch, hunts)
        failures += _failures(batch, wanted, MAX_FAILURES - len(failures))
    failures.sort(key=lambda failure: (wanted.cells.index(failure.cell), failure.seed))
    return SweepSummary(
        list(cells.values()), list(hunts.values()), failures, runs, len(wanted) - runs
    )


def _is_drawn(cell: SweepCell) -> bool:
    return cell.profile is None and cell.members is None and not cell.mutant


def _grouped(
    batch: pa.RecordBatch, by: str, columns: dict[str, Any], most: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return the sums (of some the most) of columns for each value of ``by``."""
    import pyarrow as pa

    ways = [(name, "max" if name in most else "sum") for name in columns]
    table = pa.table({by: batch[by], **columns}).group_by(by).aggregate(ways)
    renamed = table.rename_columns(
        [name.removesuffix("_sum").removesuffix("_max") for name in table.column_names]
    )
    found: list[dict[str, Any]] = renamed.to_pylist()
    return found


def _failure_counts(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return for each row a count of 1, whether the run failed, and the number of violations."""
    import pyarrow as pa
    import pyarrow.compute as pc

    violations = pc.list_value_length(batch["violations"])
    failed = pc.or_(pc.is_valid(batch["error"]), pc.greater(violations, 0))
    ones = pa.array([1] * batch.num_rows)
    return {"runs": ones, "failed": pc.cast(failed, pa.int64()), "violations": violations}


def _add_grid(batch: pa.RecordBatch, cells: dict[str, CellSummary]) -> None:
    import pyarrow.compute as pc

    batch = batch.filter(pc.equal(batch["kind"], GRID))
    if not batch.num_rows:
        return
    columns = {name: batch[name] for name in (*_SUMS, *_MAXIMA)} | _failure_counts(batch)
    for prefix in ("frames", "bytes"):
        columns |= {f"{prefix}.{kind}": pc.struct_field(batch[prefix], kind) for kind in KINDS}
    for row in _grouped(batch, "key", columns, _MAXIMA):
        cell = cells[row["key"]]
        cell.runs += row["runs"]
        cell.failed += row["failed"]
        cell.violations += row["violations"]
        cell.sums.update({name: row[name] or 0 for name in _SUMS})
        cell.frames.update({kind: row[f"frames.{kind}"] or 0 for kind in KINDS})
        cell.sizes_bytes.update({kind: row[f"bytes.{kind}"] or 0 for kind in KINDS})
        for name in _MAXIMA:
            if row[name] is not None:
                cell.maxima[name] = max(row[name], cell.maxima.get(name, 0))
    for key, value_ns, count in _entries(batch, "key", "latency"):
        cells[key].latency[value_ns] += count


def _add_hunts(batch: pa.RecordBatch, hunts: dict[str, HuntSummary]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    batch = batch.filter(pc.is_in(batch["kind"], pa.array(HUNTS)))
    if not batch.num_rows:
        return
    summed = ("sent", "events", "steps", "simulated_ns", "cpu_s")
    for row in _grouped(
        batch, "kind", {name: batch[name] for name in summed} | _failure_counts(batch)
    ):
        hunt = hunts[row["kind"]]
        hunt.runs += row["runs"]
        hunt.failed += row["failed"]
        hunt.violations += row["violations"]
        hunt.sums.update({name: row[name] or 0 for name in summed})
    for kind, fault, count in _entries(batch, "kind", "faults"):
        hunts[kind].faults[fault] += count
    kinds, keys, seeds = (batch[name].to_pylist() for name in ("kind", "key", "seed"))
    for kind, key, seed, digest in zip(
        kinds, keys, seeds, batch["digest"].to_pylist(), strict=True
    ):
        hunts[kind].digests.append((key, seed, digest or ""))
    for kind, profile, character in zip(
        kinds, batch["profile"].to_pylist(), batch["character"].to_pylist(), strict=True
    ):
        hunts[kind].profiles[profile or "not drawn"] += 1
        hunts[kind].characters[character or "broke off"] += 1
    rows = pc.list_parent_indices(batch["seen"])
    for kind, what in zip(
        batch["kind"].take(rows).to_pylist(),
        pc.list_flatten(batch["seen"]).to_pylist(),
        strict=True,
    ):
        hunts[kind].seen[what] += 1


def _entries(batch: pa.RecordBatch, by: str, column: str) -> list[tuple[Any, Any, int]]:
    """Return the sums of the values of a map for each key, and each value of ``by``."""
    import numpy as np
    import pyarrow as pa

    maps = batch[column]
    offsets = maps.offsets.to_numpy()
    rows = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
    inside = slice(int(offsets[0]), int(offsets[-1]))
    keys, items = maps.keys[inside], maps.items[inside]
    table = pa.table({"by": batch[by].take(pa.array(rows)), "key": keys, "item": items})
    sums = table.group_by(["by", "key"]).aggregate([("item", "sum")])
    return list(zip(*(sums[name].to_pylist() for name in ("by", "key", "item_sum")), strict=True))


def _failures(batch: pa.RecordBatch, wanted: RequestedRuns, most: int) -> list[RunFailure]:
    import pyarrow.compute as pc

    bad = batch.filter(pc.greater(_failure_counts(batch)["failed"], 0)).slice(0, max(0, most))
    columns = ("key", "seed", "profile", "violations", "error")
    return [
        RunFailure(wanted.cell_of(key), seed, profile, violations, error)
        for key, seed, profile, violations, error in zip(
            *(bad[name].to_pylist() for name in columns), strict=True
        )
    ]

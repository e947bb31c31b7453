"""Strangers flood a group of three that keeps sending: memory, views, throughput, drops.

Every flood gets a fresh group of real processes. The group sends alone for a while, then during the
flood, then alone again. A flood is harmless if no view changed, no process grew, the messages kept
flowing, and every rejected datagram was counted with a reason.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.failures.attacker import AttackTask
from experiments.failures.processes import (
    ROOT,
    MemberGroup,
    MemberHandle,
    load_average,
    mesh_options,
)
from gapless_lab.process import LabError, LabProcess, lab_environ, worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMBERS = 3
LOAD_RATE = 500
"""Messages a second of each member."""
SIZE_BYTES = 500
CALM_S = 3.0
"""How long the group sends alone before and after a flood."""
MAX_GROWTH_MB = 48.0
"""How much a process may grow in a flood: budgets in bytes fill, the allocator keeps as much."""
_SAMPLE_S = 0.25


class Flood(NamedTuple):
    """A kind of flood, and the options of the flooded group."""

    kind: str
    rate: int = 10_000
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed
    transport: str = "mesh"

    @property
    def title(self) -> str:
        """The kind, with any profile other than the default."""
        profile = self.config.get("profile", "")
        return f"{self.kind}, {profile}" if profile else self.kind


FLOODS = (
    Flood("none", 0),
    Flood("garbage"),
    Flood("truncated"),
    Flood("join", 1_000),
    Flood("join"),
    Flood("taken name"),
    Flood("beacon"),
    Flood("alive"),
    Flood("new view"),
    Flood("vote", config={"profile": "nakack"}),
    Flood("nak"),
    Flood("data"),
    Flood("data", config={"profile": "ordered"}, options={"allow_lossy": True}),
    Flood("data", config={"profile": "classic"}),
    Flood("tcp hello", 1_000, transport="tcp"),
    Flood("tcp half open", 1_000, transport="tcp"),
)


@dataclass
class FloodResult:
    """The effect of a flood on the group."""

    kind: str
    rate: int
    sent: int = 0
    """Datagrams or connections of the attacker."""
    before_mb: float = 0.0
    """The resident memory of the largest member before the flood."""
    half_mb: float = 0.0
    """The same at the end of the first half of the flood, when every bounded table is full."""
    peak_mb: float = 0.0
    after_mb: float = 0.0
    calm_rate: float = 0.0
    """Messages a second that each member received before the flood."""
    flood_rate: float = 0.0
    longest_send_s: float = 0.0
    views: int = 0
    """How many views the group had from the flood on; none is due."""
    expelled: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    """Counters of rejected datagrams that rose, the largest first."""
    problems: list[str] = field(default_factory=list)

    @property
    def kept_share(self) -> float:
        """The remaining share of the throughput during the flood."""
        return round(self.flood_rate / max(1.0, self.calm_rate), 3)

    @property
    def ok(self) -> bool:
        """Whether the flood did no harm."""
        return self.is_flat and not self.expelled and not self.problems

    @property
    def is_flat(self) -> bool:
        """Whether the memory is bounded, and did not grow in the second half of the flood."""
        bounded = self.peak_mb - self.before_mb <= MAX_GROWTH_MB
        return bounded and self.peak_mb <= self.half_mb * 1.1 + 4

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {**asdict(self), "kept_share": self.kept_share, "flat": self.is_flat, "ok": self.ok}


def floods(
    seconds: float = 60.0,
    kinds: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[list[FloodResult], float]:
    """Run every flood, or only ``kinds``; return the results and the load of the machine."""
    chosen = [flood for flood in FLOODS if not kinds or flood.kind in kinds]
    found = []
    for done, each in enumerate(chosen, 1):
        found.append(_run_flood(each, seconds))
        progress(done)
    return found, load_average()


def _run_flood(flood: Flood, seconds: float) -> FloodResult:
    row = FloodResult(flood.title, flood.rate)
    options = {
        **mesh_options(MEMBERS, flood.transport),
        **flood.options,
        "config": flood.config,
        "insecure": True,  # with keys the datagrams of strangers are rejected before they count
    }
    with MemberGroup("flood", options) as group:
        try:
            group.add(options={"name": "taken"} if flood.kind == "taken name" else {})
            group.add(MEMBERS - 1)
            group.wait_for_size(MEMBERS)
            group.ask("go", rate=LOAD_RATE, size_bytes=SIZE_BYTES)
            time.sleep(CALM_S)
            _measure(group, flood, seconds, row)
        except LabError as error:
            row.problems.append(str(error))
    return row


def _measure(group: MemberGroup, flood: Flood, seconds: float, row: FloodResult) -> None:
    members = list(group.processes.values())
    first, row.calm_rate = _rate(group, CALM_S)
    row.before_mb = row.peak_mb = _largest_mb(members)
    views = [len(member.views) for member in members]
    task = AttackTask(
        flood.kind,
        [one["locator"] for one in first],
        group.group,
        [one["me"] for one in first],
        first[0]["number"],
        seconds,
        flood.rate,
    )
    attacker = _start_attacker(task, group.folder)
    began_s, before = time.monotonic(), group.ask("look")
    while not attacker.has_exited and "done" not in attacker.latest:
        time.sleep(_SAMPLE_S)
        row.peak_mb = max(row.peak_mb, _largest_mb(members))
        if time.monotonic() < began_s + seconds / 2:
            row.half_mb = row.peak_mb
        group.check()
        if time.monotonic() > began_s + 2 * seconds + 30:
            row.problems.append("the attacker did not end")
            break
    flooded = group.ask("look")
    row.flood_rate = _between(before, flooded, time.monotonic() - began_s)
    row.sent = attacker.latest.get("done", {}).get("sent", 0)
    attacker.kill()
    time.sleep(CALM_S)
    after = group.ask("look")
    row.after_mb = _largest_mb(members)
    row.longest_send_s = max(one["longest_send_s"] for one in after)
    row.views = max(len(m.views) - seen for m, seen in zip(members, views, strict=True))
    row.expelled = sum(one["me"] != was["me"] for one, was in zip(after, first, strict=True))
    row.drops = _risen(first, after)
    if len({tuple(one["members"]) for one in after}) != 1 or len(after[0]["members"]) != MEMBERS:
        row.problems.append(f"the last view has {len(after[0]['members'])} members")
    if any(end["stuck"] for end in group.ask("halt")):
        row.problems.append("a sender is stuck")


def _start_attacker(task: AttackTask, folder: Path) -> LabProcess:
    command = worker_command("experiments.failures.attacker", task)
    return LabProcess("attacker", command, folder, lab_environ(ROOT))


def _rate(group: MemberGroup, for_s: float) -> tuple[list[dict[str, Any]], float]:
    """Return the members after a while, and the messages a second received on average."""
    before, began_s = group.ask("look"), time.monotonic()
    time.sleep(for_s)
    after = group.ask("look")
    return after, _between(before, after, time.monotonic() - began_s)


def _between(before: list[dict[str, Any]], after: list[dict[str, Any]], seconds: float) -> float:
    total = sum(one["received"] for one in after) - sum(one["received"] for one in before)
    return round(float(total) / len(after) / seconds, 1)


def _largest_mb(members: list[MemberHandle]) -> float:
    return round(max(member.rss_bytes() for member in members) / 1e6, 1)


def _risen(first: list[dict[str, Any]], last: list[dict[str, Any]]) -> dict[str, int]:
    """Return the risen counters of rejected input, over all members."""
    risen: Counter[str] = Counter()
    for before, after in zip(first, last, strict=True):
        for name, count in after["counters"].items():
            if name.startswith(("dropped.", "transport.")):
                risen[name] += count - before["counters"].get(name, 0)
    return {name: count for name, count in risen.most_common(8) if count > 0}

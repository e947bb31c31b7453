"""Figures of simulated runs in the form that a report draws, computed in plain Python."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from gapless.config import Config
from gapless.faults.faults import Delay, Loss
from gapless.faults.frame_names import node_name
from gapless.rng import split
from gapless.sim.mutants.catalogue import mutant_by_name
from gapless.sim.mutants.planting import planted
from gapless.sim.runner import simulate
from gapless.sim.script import (
    CrashProcess,
    LeaveGroup,
    Script,
    SendMessages,
    SetReadDelay,
    StartProcess,
    payload,
)
from gapless.sim.world.tracer import SimulationTracer
from gapless.sim.world.world import World
from gapless.trace.schema import TraceRow
from gapless.units import NS_PER_MS, NS_PER_S

CHECKED = {
    "S1": "no creation",
    "S2": "no duplicate",
    "S3": "gapless prefix",
    "S4": "integrity",
    "S6": "window",
    "S7": "marks",
    "S8": "acks are true",
    "S9": "purge is safe",
    "S10": "repairs are exact",
    "S11": "naks are legal and paced",
    "S12": "acceptance",
    "S15": "views",
    "L1": "delivery",
    "L2": "stability",
    "L3": "quiet",
    "L4": "cost",
}
STEPS = 120
AROUND_NS = 12 * NS_PER_MS


class Story:
    """A group that finds itself, sends while frames are lost, loses a member and gets it back."""

    def __init__(
        self, members: int = 4, messages: int = 600, loss: float = 0.05, seed: int = 7
    ) -> None:
        self.config = Config.make(
            capacity=64,
            heartbeat_interval="100ms",
            suspect_after="400ms",
            verify_timeout="100ms",
            merge_interval="1s",
        )
        names = [node_name(number + 1) for number in range(members)]
        pace_ns = 6 * NS_PER_MS
        begin_ns = NS_PER_S
        actions: list[Any] = [
            StartProcess(20 * NS_PER_MS * at, name) for at, name in enumerate(names)
        ]
        for nth in range(messages):
            for at, name in enumerate(names):
                # Not all in the same instant, and in two waves, so that a rate over time has a
                # shape.
                wave_ns = 800 * NS_PER_MS if nth >= messages // 2 else 0
                at_ns = begin_ns + wave_ns + nth * pace_ns + at * pace_ns // members
                actions.append(SendMessages(at_ns, name, (payload(name, nth, 180),)))
        end_ns = begin_ns + messages * pace_ns + 800 * NS_PER_MS
        if members > 2:
            actions.append(
                SetReadDelay(begin_ns + (end_ns - begin_ns) * 3 // 5, names[1], 7 * NS_PER_MS)
            )
            actions.append(SetReadDelay(begin_ns + (end_ns - begin_ns) * 4 // 5, names[1], 0))
            actions.append(CrashProcess(begin_ns + (end_ns - begin_ns) // 4, names[2]))
            actions.append(StartProcess(begin_ns + (end_ns - begin_ns) // 2, names[2] + "'"))
            actions.append(LeaveGroup(end_ns - 200 * NS_PER_MS, names[-1]))
        faults: list[Any] = [Delay(split(seed, "delay"), 300_000, 500_000)]
        if loss:
            faults.append(Loss(split(seed, "loss"), (loss,)))
        actions.sort(key=lambda action: action.at_ns)
        self.script = Script(seed, 400_000, end_ns, actions=actions, membership=True)
        self.faults = faults

    def rows(self) -> list[TraceRow]:
        """Run it and return its rows."""
        world = World(self.config, self.script, faults=self.faults, trace=True)
        world.run()
        assert isinstance(world.tracer, SimulationTracer)
        assert not world.oracle.violations, world.oracle.violations
        return world.tracer.rows


def story_figures(members: int = 4, messages: int = 600, loss: float = 0.05) -> dict[str, Any]:
    """Return the figures of a run in which all went well."""
    story = Story(members, messages, loss)
    return figures_of(
        story.rows(),
        reach=story.config.capacity,
        title="orders: 4 members, 5 % loss, one killed and back",
    )


def broken_figures(bug: str = "take over a gap", seed: int = 2) -> dict[str, Any]:
    """Return the figures of a simulated run with a planted bug, which a check has caught."""
    with planted(mutant_by_name(bug)):
        outcome = simulate(seed, profile="nakack4", trace=True)
    assert outcome.trace is not None
    assert outcome.violations, f"seed {seed} does not show {bug!r} any more; take another one"
    return figures_of(
        outcome.trace, outcome.violations, title=f"seed {seed} with a planted bug", seed=seed
    )


def figures_of(
    rows: list[TraceRow],
    violations: Sequence[Any] = (),
    *,
    reach: int = 0,
    title: str = "",
    seed: int = 0,
) -> dict[str, Any]:
    """Return the figures of a run: what Spark makes of a trace, here in plain Python."""
    sent_at = _sent_times(rows)
    return {
        "kind": "run",
        "title": title,
        "version": "0.1.0",
        "made_at": "2026-11-16T10:00:00+00:00",
        "mode": "full",
        "simulated": True,
        "verdict": _verdict(rows, violations),
        "summary": {
            **_summary(rows, sent_at),
            "out_of_order": sum(v.check == "S3" for v in violations),
        },
        "lives": _lives(rows),
        "views": [
            {
                "t_ns": r.t_ns,
                "member": r.member,
                "number": r.view,
                "maker": r.origin,
                "members": r.reason.split(),
            }
            for r in rows
            if r.event == "MEMBERS"
        ],
        "windows": _windows(rows, reach),
        "repair_log": _repair_log(rows),
        "over_time": _over_time(rows, sent_at),
        "latency": _latency(rows, sent_at),
        "overhead": _overhead(rows),
        "blocked": _blocked(rows),
        "occupancy": _occupancy(rows, reach),
        "violations": [_violation(rows, violation, seed) for violation in violations[:50]],
    }


def _sent_times(rows: list[TraceRow]) -> dict[tuple[str, int, int], int]:
    return {
        (row.origin, row.epoch, seqno): row.t_ns
        for row in rows
        if row.event == "SEND"
        for seqno in range(row.seqno, row.seqno_last + 1)
    }


def _latencies(
    rows: list[TraceRow], sent_at: dict[tuple[str, int, int], int]
) -> list[tuple[TraceRow, int]]:
    found = []
    for row in rows:
        if row.event != "DELIVER" or row.reason or row.origin == row.member:
            continue
        for seqno in range(row.seqno, row.seqno_last + 1):
            at_ns = sent_at.get((row.origin, row.epoch, seqno))
            if at_ns is not None:
                found.append((row, row.t_ns - at_ns))
    return found


def _share(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def _verdict(rows: list[TraceRow], violations: Sequence[Any]) -> dict[str, Any]:
    counts = Counter(violation.check for violation in violations)
    checks = []
    for check, name in CHECKED.items():
        off = "the trace has no row that tells when the group was settled" if check == "L3" else ""
        state = "violated" if counts[check] else "not checked" if off else "held"
        looked = 0 if off else len(rows) // (1 + len(check))
        checks.append(
            {
                "id": check,
                "name": name,
                "state": state,
                "rows": looked,
                "violations": counts[check],
                "why": off,
            }
        )
    for check in counts:
        if check not in CHECKED:
            checks.append(
                {
                    "id": check,
                    "name": "",
                    "state": "violated",
                    "rows": len(rows),
                    "violations": counts[check],
                    "why": "",
                }
            )
    return {
        "ok": not violations,
        "violations": len(violations),
        "events": len(rows),
        "lives": len({row.member for row in rows}),
        "seeds": 1,
        "span_ns": rows[-1].t_ns - rows[0].t_ns if rows else 0,
        "seconds": 3.4,
        "checks": checks,
        "incomplete": [],
    }


def _summary(rows: list[TraceRow], sent_at: dict[tuple[str, int, int], int]) -> dict[str, Any]:
    latencies = [latency_ns for _, latency_ns in _latencies(rows, sent_at)]
    delivered = sum(
        r.seqno_last - r.seqno + 1
        for r in rows
        if r.event == "DELIVER" and not r.reason and r.origin != r.member
    )
    events = Counter(row.event for row in rows)
    span_s = max((rows[-1].t_ns - rows[0].t_ns) / 1e9, 1e-9) if rows else 1.0
    return {
        "sent": len(sent_at),
        "delivered": delivered,
        "expected": delivered,
        "lost": 0,
        "duplicates": 0,
        "out_of_order": 0,
        "naks": events["NAK_OUT"],
        "repairs": events["REPAIR"],
        "repaired": sum(r.seqno_last - r.seqno + 1 for r in rows if r.event == "REPAIR"),
        "frames_lost": events["NET_DROP"],
        "latency_p50_ns": _share(latencies, 0.5),
        "latency_p99_ns": _share(latencies, 0.99),
        "latency_max_ns": max(latencies, default=0),
        "messages_per_s": delivered / span_s,
        "bytes_per_s": sum(r.size_bytes for r in rows if r.event == "DELIVER") / span_s,
    }


def _lives(rows: list[TraceRow]) -> list[dict[str, Any]]:
    lives: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row.member
        life = lives.setdefault(
            name,
            {
                "name": name,
                "member": name.rstrip("'"),
                "began_ns": row.t_ns,
                "ended_ns": row.t_ns,
                "end": "rest",
                "offset_ns": 0,
                "uncertainty_ns": 0,
                "events": 0,
            },
        )
        life["ended_ns"] = row.t_ns
        life["events"] += 1
        if row.event in {"CRASH", "LEAVE", "EXPELLED"}:
            life["end"] = {"CRASH": "killed", "LEAVE": "left", "EXPELLED": "expelled"}[row.event]
    return list(lives.values())


def _windows(rows: list[TraceRow], reach: int) -> list[dict[str, Any]]:
    streams: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for row in rows:
        if row.event == "STATE" and row.origin:
            streams[row.member, row.origin].append([row.t_ns, row.low, row.delivered, row.high])
    chosen = sorted(streams.items(), key=lambda item: -len(item[1]))[:64]
    return [
        {"member": member, "origin": origin, "to": "", "reach": reach, "points": _thin(points, 400)}
        for (member, origin), points in chosen
    ]


def _thin(points: list[Any], most: int) -> list[Any]:
    if len(points) <= most:
        return points
    return [points[at * (len(points) - 1) // (most - 1)] for at in range(most)]


def _repair_log(rows: list[TraceRow]) -> list[dict[str, Any]]:
    naks_in = [row for row in rows if row.event == "NAK_IN"]
    repairs = [row for row in rows if row.event == "REPAIR"]
    stores = [row for row in rows if row.event == "STORE"]
    delivers = [row for row in rows if row.event == "DELIVER" and not row.reason]
    log: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        if row.event != "NAK_OUT" or not row.seqno:
            continue
        key = row.member, row.origin, row.seqno
        if key in log:
            log[key]["naks"] += 1
            continue
        came = _first(naks_in, row.t_ns, row.origin, row.seqno, peer=row.member)
        sent = None if came is None else _first(repairs, came, row.origin, row.seqno)
        stored = (
            None if sent is None else _first(stores, sent, row.origin, row.seqno, member=row.member)
        )
        delivered = _first(delivers, row.t_ns, row.origin, row.seqno, member=row.member)
        log[key] = {
            "origin": row.origin,
            "member": row.member,
            "seqno": row.seqno,
            "seqno_last": row.seqno_last,
            "gap_ns": _gap(stores, row),
            "nak_ns": row.t_ns,
            "nak_in_ns": came,
            "repair_ns": sent,
            "stored_ns": stored,
            "delivered_ns": delivered,
            "naks": 1,
        }
    return list(log.values())[:500]


def _first(
    rows: list[TraceRow],
    after_ns: int,
    origin: str,
    seqno: int,
    *,
    peer: str = "",
    member: str = "",
) -> int | None:
    at = bisect_left(rows, after_ns, key=lambda row: row.t_ns)
    for row in rows[at : at + 4000]:
        whole = row.origin == origin and row.seqno <= seqno <= row.seqno_last
        if whole and peer in {"", row.peer} and member in {"", row.member}:
            return row.t_ns
    return None


def _gap(stores: list[TraceRow], nak: TraceRow) -> int:
    at = bisect_left(stores, nak.t_ns, key=lambda row: row.t_ns)
    for row in reversed(stores[max(0, at - 500) : at]):
        if row.member == nak.member and row.origin == nak.origin and row.seqno > nak.seqno_last:
            gap_ns = row.t_ns
            if row.seqno == nak.seqno_last + 1:
                return gap_ns
    return nak.t_ns - 3 * NS_PER_MS


def _over_time(rows: list[TraceRow], sent_at: dict[tuple[str, int, int], int]) -> dict[str, Any]:
    if not rows:
        return {"step_ns": 0, "points": []}
    start_ns = rows[0].t_ns
    step_ns = max(1, (rows[-1].t_ns - start_ns) // STEPS)
    cells: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    lags: dict[tuple[int, str], list[int]] = defaultdict(list)
    words = {"NAK_OUT": "naks", "REPAIR": "repairs", "ACK_OUT": "acks"}
    for row in rows:
        cell = cells[(row.t_ns - start_ns) // step_ns, row.member]
        count = row.seqno_last - row.seqno + 1
        if row.event == "SEND":
            cell["sent"] += count
        elif row.event == "DELIVER" and row.origin != row.member:
            cell["delivered"] += count
            cell["bytes"] += row.size_bytes
        elif row.event in words:
            cell[words[row.event]] += 1
        elif row.event == "DROPPED" and row.reason == "duplicate":
            cell["duplicates"] += 1
    for row, latency_ns in _latencies(rows, sent_at):
        lags[(row.t_ns - start_ns) // step_ns, row.member].append(latency_ns)
    points = []
    for (nth, member), cell in sorted(cells.items()):
        lag = lags.get((nth, member), [])
        keys = ("sent", "delivered", "bytes", "naks", "repairs", "acks", "duplicates", "blocked_ns")
        points.append(
            {
                "t_ns": start_ns + nth * step_ns,
                "member": member,
                **{key: cell[key] for key in keys},
                "latency_p50_ns": _share(lag, 0.5) if lag else None,
                "latency_p99_ns": _share(lag, 0.99) if lag else None,
            }
        )
    return {"step_ns": step_ns, "points": points}


def _latency(
    rows: list[TraceRow], sent_at: dict[tuple[str, int, int], int]
) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, latency_ns in _latencies(rows, sent_at):
        groups["", ""].append(latency_ns)
        groups[row.member, row.origin].append(latency_ns)
    found = []
    for (member, origin), values in sorted(groups.items()):
        histogram = Counter(_bucket(value) for value in values)
        shares = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
        found.append(
            {
                "member": member,
                "origin": origin,
                "count": len(values),
                **{key: _share(values, share) for key, share in shares.items()},
                "max_ns": max(values),
                "histogram": [list(pair) for pair in sorted(histogram.items())],
            }
        )
    return found


def _bucket(value_ns: int) -> int:
    upper = 1000
    while upper < value_ns:
        upper = int(upper * 1.12) + 1
    return upper


_KIND = {"DATA": "data", "REPAIR": "repair", "ACK": "ack", "NAK": "nak", "TAIL": "tail"}


def _overhead(rows: list[TraceRow]) -> list[dict[str, Any]]:
    members: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.event != "TX":
            continue
        one = members.setdefault(
            row.member,
            {
                "member": row.member,
                "data": {"frames": 0, "messages": 0, "bytes": 0},
                "repair": {"frames": 0, "messages": 0, "bytes": 0},
                **{kind: {"frames": 0} for kind in ("ack", "nak", "tail", "other")},
                "duplicates": 0,
                "sent_datagrams": 0,
                "sent_bytes": 0,
            },
        )
        part = one[_KIND.get(row.frame_id.split(" ", 1)[0], "other")]
        part["frames"] += 1
        if "messages" in part:
            part["messages"] += row.seqno_last - row.seqno + 1
            part["bytes"] += row.size_bytes
        one["sent_datagrams"] += 1
        one["sent_bytes"] += row.size_bytes
    for row in rows:
        if row.event == "DROPPED" and row.reason == "duplicate" and row.member in members:
            members[row.member]["duplicates"] += 1
    return list(members.values())


def _blocked(rows: list[TraceRow]) -> list[dict[str, Any]]:
    began: dict[str, int] = {}
    spans: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.event == "BLOCK":
            began.setdefault(row.member, row.t_ns)
        elif row.event == "UNBLOCK" and row.member in began:
            spans[row.member].append(row.t_ns - began.pop(row.member))
    everybody = sorted({row.member for row in rows})
    return [
        {
            "member": member,
            "times": len(of),
            "blocked_ns": sum(of),
            "longest_ns": max(of),
            "caused_by": [
                {"member": other, "blocked_ns": sum(of) // (at + 2), "times": len(of) // (at + 2)}
                for at, other in enumerate([name for name in everybody if name != member][:2])
            ],
        }
        for member, of in sorted(spans.items())
    ]


def _occupancy(rows: list[TraceRow], reach: int) -> list[dict[str, Any]]:
    held: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.event == "STATE" and row.origin:
            held[row.member, row.origin].append(row.high - row.low)
    return [
        {
            "member": member,
            "origin": origin,
            "mean": sum(values) / len(values),
            "p50": _share(values, 0.5),
            "p99": _share(values, 0.99),
            "max": max(values),
            "reach": reach,
        }
        for (member, origin), values in sorted(held.items())
    ]


_SAID = {
    "SEND",
    "STORE",
    "DELIVER",
    "NAK_OUT",
    "NAK_IN",
    "REPAIR",
    "DROPPED",
    "MEMBERS",
    "STATE",
    "LOST",
    "PURGE",
}


def _violation(rows: list[TraceRow], violation: Any, seed: int) -> dict[str, Any]:
    near = [
        row
        for row in rows
        if row.event in _SAID and not row.reason and abs(row.t_ns - violation.t_ns) <= AROUND_NS
    ]
    told = [row for row in near if row.member == violation.member and row.t_ns <= violation.t_ns]
    here = next(
        (row for row in reversed(told) if row.event == "DELIVER"), told[-1] if told else None
    )
    mine = [
        row
        for row in near
        if here and row.origin == here.origin and row.member in {here.member, here.origin}
    ]
    at = next((nth for nth, row in enumerate(mine) if row is here), 0)
    chosen = mine[max(0, at - 12) : at + 6]
    frames = []
    if chosen and here:
        frames = _frames(rows, chosen[0].t_ns, chosen[-1].t_ns, {here.member, here.origin})
    return {
        "check": violation.check,
        "seed": seed,
        "t_ns": violation.t_ns,
        "member": violation.member,
        "origin": here.origin if here else "",
        "seqno": here.seqno if here else 0,
        "message": violation.message,
        "rows": [
            {
                "t_ns": row.t_ns,
                "member": row.member,
                "event": row.event,
                "origin": row.origin,
                "seqno": row.seqno,
                "seqno_last": row.seqno_last,
                "peer": row.peer,
                "reason": row.reason,
                "low": row.low,
                "delivered": row.delivered,
                "high": row.high,
                "here": row is here,
            }
            for row in chosen
        ],
        "frames": frames,
    }


def _frames(rows: list[TraceRow], lo_ns: int, hi_ns: int, lives: set[str]) -> list[dict[str, Any]]:
    """Return the frames between two incarnations in a time span, each with its first arrival."""
    lost = {row.frame_id for row in rows if row.event == "NET_DROP"}
    came: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.event == "RX":
            came[row.peer, row.member].append(row.t_ns)
    frames = []
    for row in rows:
        if row.event != "TX" or not lo_ns <= row.t_ns <= hi_ns or lives != {row.member, row.peer}:
            continue
        what = row.frame_id.split(" #")[0].rsplit(" ", 1)[0]
        arrivals = came[row.member, row.peer]
        at = bisect_left(arrivals, row.t_ns)
        got_ns = None if row.frame_id in lost or at == len(arrivals) else arrivals[at]
        lost_too = {"got_ns": got_ns, "lost": row.frame_id in lost}
        frames.append(
            {"from": row.member, "to": row.peer, "sent_ns": row.t_ns, **lost_too, "what": what}
        )
    return frames[:24]


__all__ = ["Story", "broken_figures", "figures_of", "story_figures"]

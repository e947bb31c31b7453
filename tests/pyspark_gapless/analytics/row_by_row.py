"""The figures of a trace, computed row by row in plain Python as an independent reference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gapless.trace.schema import TraceRow

At = tuple[int, str, str, int, str]
Life = tuple[int, str]


def at(row: TraceRow) -> At:
    return row.seed, row.member, row.origin, row.epoch, row.to


def life(row: TraceRow) -> Life:
    return row.seed, row.member


def seqnos(row: TraceRow) -> range:
    return range(row.seqno, row.seqno_last + 1)


def percentile(weighted: Iterable[tuple[int, int]], share: float) -> int:
    """Return the least value that at least this share of the weight does not exceed."""
    ordered = sorted(weighted)
    total, below = sum(weight for _, weight in ordered), 0
    for value, weight in ordered:
        below += weight
        if below >= total * share - 1e-9:
            return value
    raise AssertionError("nothing has no percentiles")


def latencies(rows: Sequence[TraceRow]) -> dict[tuple[int, str, str, str], list[tuple[int, int]]]:
    found = defaultdict(list)
    for row in rows:
        if row.event == "DELIVER" and row.member != row.origin:
            found[row.seed, row.member, row.origin, row.to].append(
                (row.t_ns - row.sent_ns, len(seqnos(row)))
            )
    return found


def fate(rows: Sequence[TraceRow]) -> dict[str, int]:
    """Return the fate of messages from sets of seqnos alone, without ``k`` and ``part``."""
    sent: dict[tuple[int, str, int, str], set[int]] = defaultdict(set)
    got: dict[At, Counter[int]] = defaultdict(Counter)
    reached: dict[At, int] = {}
    order: Counter[str] = Counter()
    aside: dict[At, Counter[int]] = defaultdict(Counter)
    sent_aside = bare = lost = 0
    resting = {life(row) for row in rows if row.event == "REST"}
    for row in rows:
        if row.event == "SEND":
            sent[row.seed, row.origin, row.epoch, row.to].update(seqnos(row))
        elif row.event == "SEND_ASIDE":
            sent_aside += len(seqnos(row))
        elif row.event == "LOST":
            lost += len(seqnos(row))
            reached[at(row)] = max(row.seqno_last, reached.get(at(row), 0))
        elif row.event == "START":
            reached[at(row)] = max(row.seqno - 1, reached.get(at(row), 0))
        elif row.event == "DELIVER" and row.member != row.origin:
            if row.reason == "out of band":
                aside[at(row)].update(seqnos(row))
            elif row.reason == "unreliable":
                bare += len(seqnos(row))
            else:
                late = [seqno for seqno in seqnos(row) if seqno < reached.get(at(row), 0)]
                order["late"] += sum(seqno not in got[at(row)] for seqno in late)
                got[at(row)].update(seqnos(row))
                reached[at(row)] = max(row.seqno_last, reached.get(at(row), 0))
    for (seed, member, origin, epoch, to), last in reached.items():
        epochs = [key[2] for key in sent if key[0] == seed and key[1] == origin and key[3] == to]
        there = {(seed, member), (seed, origin)} <= resting and member != origin
        if there and epochs and epoch == max(epochs):
            lost += sum(seqno > last for seqno in sent[seed, origin, epoch, to])
    delivered = sum(counts.total() for counts in (*got.values(), *aside.values())) + bare
    different = sum(len(counts) for counts in (*got.values(), *aside.values())) + bare
    return {
        "sent": sum(map(len, sent.values())) + sent_aside,
        "delivered": delivered,
        "expected": different + lost,
        "lost": lost,
        "duplicates": delivered - different,
        "out_of_order": order["late"],
    }


def overhead(rows: Sequence[TraceRow]) -> dict[Life, dict[str, Any]]:
    found: dict[Life, Counter[str]] = defaultdict(Counter)
    naks: dict[Life, set[tuple[Any, ...]]] = defaultdict(set)
    for row in rows:
        count = found[life(row)]
        kind = {
            "SEND": "data",
            "SEND_ASIDE": "data",
            "REPAIR": "repair",
            "REPAIR_ASIDE": "repair",
        }.get(row.event)
        if kind:
            count[f"{kind} frames"] += 1
            count[f"{kind} messages"] += len(seqnos(row))
            count[f"{kind} bytes"] += row.size_bytes
        count[row.event] += 1
        if row.event == "NAK_OUT":
            naks[life(row)].add((row.step, row.peer, row.origin, row.epoch, row.to))
        if row.event == "DROPPED" and row.reason in {"duplicate", "old"}:
            count["duplicates"] += row.k or len(seqnos(row))
        if row.event == "TX":
            count["sent_bytes"] += row.size_bytes
    return {
        key: {
            **{
                kind: {unit: count[f"{kind} {unit}"] for unit in ("frames", "messages", "bytes")}
                for kind in _KINDS
            },
            "ack": {"frames": count["ACK_OUT"]},
            "nak": {"frames": len(naks[key])},
            "tail": {"frames": count["TAIL_OUT"]},
            "other": {"frames": count["GONE_OUT"] + count["VOTE_OUT"] + count["STABLE_OUT"]},
            "duplicates": count["duplicates"],
            "sent_datagrams": count["TX"],
            "sent_bytes": count["sent_bytes"],
        }
        for key, count in found.items()
    }


_KINDS = ("data", "repair")


def blocked(rows: Sequence[TraceRow]) -> dict[Life, dict[str, Any]]:
    """Return the blocked sends, from the rows of each incarnation and a set of open tickets."""
    ends = {life(row): row.t_ns for row in rows}
    signs = {}
    for row in rows:
        if row.event in {"ACK_IN", "STABLE_IN", "VOTE_IN"}:
            signs[life(row), row.step] = row.peer
    found: dict[Life, dict[str, Any]] = {}
    open_since: dict[Life, int] = {}
    waiting: dict[Life, dict[int, int]] = defaultdict(dict)
    unclear: dict[Life, int] = Counter()

    def pass_time(who: Life, now_ns: int) -> None:
        if waiting[who]:
            unclear[who] += now_ns - open_since[who]
        open_since[who] = now_ns

    for row in rows:
        who = life(row)
        if row.event == "BLOCK":
            entry = found.setdefault(who, {"times": 0, "longest_ns": 0, "caused_by": Counter()})
            entry["times"] += 1
            pass_time(who, row.t_ns)
            waiting[who][row.seqno] = row.t_ns
        elif row.event == "UNBLOCK":
            pass_time(who, row.t_ns)
            entry = found[who]
            entry["longest_ns"] = max(entry["longest_ns"], row.t_ns - waiting[who].pop(row.seqno))
            cause = ""
            if row.reason in {"ack", "stable"}:
                cause = signs.get((who, row.step), row.member if row.reason == "ack" else "")
            entry["caused_by"][cause, row.reason] += unclear.pop(who, 0)
    for who, entry in found.items():
        pass_time(who, ends[who])
        if waiting[who]:
            entry["longest_ns"] = max(entry["longest_ns"], ends[who] - min(waiting[who].values()))
            entry["caused_by"]["", ""] += unclear.pop(who, 0)
        entry["blocked_ns"] = entry["caused_by"].total()
    return found


def repair_log(rows: Sequence[TraceRow]) -> dict[tuple[At, int, int], dict[str, Any]]:
    """Return what became of every range that was asked for."""
    asked: dict[At, list[TraceRow]] = defaultdict(list)
    for row in rows:
        if row.event == "NAK_OUT" and row.seqno:
            asked[at(row)].append(row)
    found = {}
    for key, naks in asked.items():
        parts: list[list[TraceRow]] = []
        for nak in sorted(naks, key=lambda row: (row.seqno, row.seqno_last)):
            if parts and nak.seqno <= max(row.seqno_last for row in parts[-1]):
                parts[-1].append(nak)
            else:
                parts.append([nak])
        for part in parts:
            first, last = part[0].seqno, max(row.seqno_last for row in part)
            found[key, first, last] = _times(
                rows, key, first, last, min(row.t_ns for row in part), len(part)
            )
    return found


def _times(
    rows: Sequence[TraceRow], key: At, first: int, last: int, nak_ns: int, naks: int
) -> dict[str, Any]:
    seed, member, origin, epoch, to = key
    times: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if (row.seed, row.origin, row.epoch, row.to) != (seed, origin, epoch, to):
            continue
        touches = row.seqno <= last and row.seqno_last >= first
        if row.member == member:
            if row.event == "STORE" and row.seqno > first:
                times["gap_ns"].append(row.t_ns)
            if row.event == "TAIL_IN" and row.high >= first and row.t_ns < nak_ns:
                times["gap_ns"].append(row.t_ns)
            if row.event == "STORE" and touches and row.t_ns >= nak_ns:
                times["stored_ns"].append(row.t_ns)
            if (
                row.event == "DELIVER"
                and row.reason in {"", "one"}
                and row.seqno <= last <= row.seqno_last
            ):
                times["delivered_ns"].append(row.t_ns)
        if row.event == "NAK_IN" and row.peer == member and touches:
            times["nak_in_ns"].append(row.t_ns)
        if row.event == "REPAIR" and row.peer in {"", member} and touches:
            times["repair_ns"].append(row.t_ns)
    said = {
        name: min(times[name], default=None)
        for name in ("gap_ns", "nak_in_ns", "repair_ns", "delivered_ns")
    }
    stored = max(times["stored_ns"], default=None)
    if stored is not None and said["delivered_ns"] is not None:
        stored = min(stored, said["delivered_ns"])
    return {**said, "stored_ns": stored, "nak_ns": nak_ns, "naks": naks}


def marks(rows: Sequence[TraceRow]) -> dict[tuple[int, str, str, str], list[TraceRow]]:
    found = defaultdict(list)
    for row in rows:
        if row.event == "STATE":
            found[row.seed, row.member, row.origin, row.to].append(row)
    return found

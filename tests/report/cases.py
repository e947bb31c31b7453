"""Edge cases of figures: none, one member, a crowd, odd names, a sample, many violations."""

from __future__ import annotations

from random import Random
from typing import Any

from gapless.units import NS_PER_MS, NS_PER_S
from tests.report.simulated import CHECKED

BEGIN_NS = 1_794_800_000_000_000_000
"""A time of day, as in traces of real processes."""
SUMMARY = {
    "sent": 3_200_000,
    "delivered": 99_200_000,
    "expected": 99_200_000,
    "lost": 0,
    "duplicates": 0,
    "out_of_order": 0,
    "naks": 40_000,
    "repairs": 39_000,
    "repaired": 71_000,
    "frames_lost": 512_345,
    "latency_p50_ns": 840_000,
    "latency_p99_ns": 31_000_000,
    "latency_max_ns": 2_400_000_000,
    "messages_per_s": 1_653_333.3,
    "bytes_per_s": 211_626_666.6,
}
HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "</style></title><b>bold</b>",
    "'-alert(1)-'&amp;\x00\x07\ud800",
    "\u202egnp.exe\u2066",
    "a" * 300,
    "name with   spaces\nand lines\t",
    "javascript:window.hacked=1",
)


def checks(state: str = "held", why: str = "") -> list[dict[str, Any]]:
    """Return the list of checks, all in one state."""
    rows = 0 if state == "not checked" else 1_234_567
    return [
        {"id": ident, "name": name, "state": state, "rows": rows, "violations": 0, "why": why}
        for ident, name in CHECKED.items()
    ]


def nothing() -> dict[str, Any]:
    """Return the figures of a trace in which nothing happened."""
    verdict = {"ok": True, "violations": 0, "events": 0, "lives": 0, "seeds": 0, "checks": checks()}
    return {
        "kind": "run",
        "title": "nothing happened",
        "mode": "full",
        "verdict": verdict,
        "summary": {"sent": 0},
    }


def alone() -> dict[str, Any]:
    """Return the figures of one member that has nobody to send to."""
    life = {
        "name": "hermit",
        "member": "hermit",
        "began_ns": BEGIN_NS,
        "ended_ns": BEGIN_NS + NS_PER_S,
        "end": "rest",
    }
    view = {
        "t_ns": BEGIN_NS + 1,
        "member": "hermit",
        "number": 1,
        "maker": "hermit",
        "members": ["hermit"],
    }
    points = [[BEGIN_NS + at * NS_PER_MS, at, at, at] for at in range(3)]
    return {
        "kind": "run",
        "title": "alone",
        "mode": "full",
        "verdict": {
            "ok": True,
            "events": 12,
            "lives": 1,
            "seeds": 1,
            "span_ns": NS_PER_S,
            "checks": checks(),
        },
        "summary": {
            "sent": 3,
            "delivered": 0,
            "expected": 0,
            "lost": 0,
            "duplicates": 0,
            "out_of_order": 0,
        },
        "lives": [life],
        "views": [view],
        "windows": [
            {"member": "hermit", "origin": "hermit", "to": "", "reach": 64, "points": points}
        ],
        "over_time": {
            "step_ns": NS_PER_MS,
            "points": [{"t_ns": BEGIN_NS, "member": "hermit", "sent": 3}],
        },
        "latency": [{"member": "", "origin": "", "count": 0, "histogram": []}],
    }


OCCUPANCY = {"mean": 9.5, "p50": 4, "p99": 900, "max": 1024, "reach": 1024}


def crowd(
    members: int = 32, *, names: tuple[str, ...] = (), violations: int = 0, points: int = 400
) -> dict[str, Any]:
    """Return made-up figures of many members that all send: as large as figures get."""
    rng = Random(7)
    known = [
        *names,
        *(f"producer-{at:02d}.eu-central-1.example.com:7{at:03d}" for at in range(members)),
    ][:members]
    lives = [_life(rng, at, name) for at, name in enumerate(known)]
    streams = [(member, origin) for member in known for origin in known]
    return {
        "kind": "run",
        "title": names[0] if names else f"{members} members, all sending",
        "version": "0.1.0",
        "made_at": "2026-11-16T10:00:00+00:00",
        "mode": "full",
        "simulated": False,
        "verdict": _verdict(known, violations),
        "summary": dict(SUMMARY),
        "lives": lives,
        "views": [
            {
                "t_ns": life["began_ns"] + 1000 * at,
                "member": name,
                "number": at + 1,
                "maker": known[0],
                "members": known[: at + 1],
            }
            for at, life in enumerate(lives)
            for name in known[: at + 1]
        ],
        "windows": [_window(rng, *stream, points) for stream in streams[:64]],
        "repair_log": [_repair(rng, *rng.choice(streams)) for _ in range(500)],
        "over_time": _over_time(rng, known),
        "latency": [_latency(rng, "", ""), *(_latency(rng, *stream) for stream in streams[:256])],
        "overhead": [_overhead(rng, name) for name in known],
        "blocked": [
            {
                "member": name,
                "times": at,
                "blocked_ns": at * 10 * NS_PER_MS,
                "longest_ns": NS_PER_MS,
                "caused_by": [
                    {"member": other, "blocked_ns": at * NS_PER_MS, "times": 1}
                    for other in known[:9]
                ],
            }
            for at, name in enumerate(known)
        ],
        "occupancy": [
            {"member": member, "origin": origin, **OCCUPANCY} for member, origin in streams[:64]
        ],
        "violations": [_violation(rng, known, at) for at in range(min(violations, 50))],
        "pipeline": {
            "rows": 3_200_000,
            "rows_per_s": 81_234.5,
            "longest_batch_ns": 4 * NS_PER_S,
            "complete": True,
            "tables": [
                {"table": known[0], "rows": 3_200_000, "batches": 12, "size_bytes": 123_456_789}
            ],
        },
    }


def _life(rng: Random, at: int, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "member": f"node {at}" if at % 4 == 3 else name,
        "began_ns": BEGIN_NS + at * 30 * NS_PER_MS,
        "ended_ns": BEGIN_NS + 60 * NS_PER_S,
        "end": ("rest", "left", "killed", "expelled", "something new")[at % 5],
        "offset_ns": rng.randrange(-5_000_000, 5_000_000),
        "uncertainty_ns": rng.randrange(10_000, 400_000),
        "events": rng.randrange(10**7),
    }


def _verdict(known: list[str], violations: int) -> dict[str, Any]:
    listed = checks()
    if violations:
        listed[2] |= {"state": "violated", "violations": violations}
    listed[-1] |= {"state": "not checked", "why": f"{known[0]} says nothing of it", "rows": 0}
    return {
        "ok": not violations,
        "violations": violations,
        "events": 412_345_678,
        "lives": len(known),
        "seeds": 1,
        "span_ns": 60 * NS_PER_S,
        "seconds": 71.5,
        "checks": listed,
        "incomplete": [{"life": name, "missing_rows": 3} for name in known[:1]]
        if violations
        else [],
    }


def _window(rng: Random, member: str, origin: str, points: int) -> dict[str, Any]:
    found, low, t_ns = [], 0, BEGIN_NS
    for _ in range(points):
        t_ns += 60 * NS_PER_S // points
        low += rng.randrange(500)
        delivered = low + rng.randrange(200)
        found.append([t_ns, low, delivered, delivered + rng.randrange(300)])
    return {
        "member": member,
        "origin": origin,
        "to": member if member == origin else "",
        "reach": 1024,
        "points": found,
    }


def _repair(rng: Random, member: str, origin: str) -> dict[str, Any]:
    times: list[int | None] = [BEGIN_NS + rng.randrange(60 * NS_PER_S)]
    for _ in range(5):
        assert times[-1] is not None
        times.append(times[-1] + int(rng.lognormvariate(14, 1.5)))
    moments = ("gap_ns", "nak_ns", "nak_in_ns", "repair_ns", "stored_ns", "delivered_ns")
    told = dict(zip(moments, times, strict=True))
    if rng.random() < 0.1:
        told |= {"nak_in_ns": None, "repair_ns": None}
    if rng.random() < 0.05:
        told |= {"stored_ns": None, "delivered_ns": None}
    first = rng.randrange(100_000)
    return {
        "member": member,
        "origin": origin,
        "seqno": first,
        "seqno_last": first + rng.randrange(9),
        **told,
        "naks": rng.choice((1, 1, 1, 2, 5)),
    }


def _over_time(rng: Random, known: list[str]) -> dict[str, Any]:
    steps = 3200 // max(len(known), 16)
    step_ns = 60 * NS_PER_S // steps
    points = [
        {
            "t_ns": BEGIN_NS + at * step_ns,
            "member": name,
            "sent": rng.randrange(1000),
            "delivered": rng.randrange(30_000),
            "bytes": rng.randrange(10**7),
            "naks": rng.randrange(20),
            "repairs": rng.randrange(20),
            "acks": rng.randrange(2000),
            "duplicates": rng.randrange(5),
            "blocked_ns": 0,
            "latency_p50_ns": rng.randrange(500_000, 2_000_000),
            "latency_p99_ns": rng.randrange(4_000_000, 90_000_000),
        }
        for at in range(steps)
        for name in known
    ]
    return {"step_ns": step_ns, "points": points}


def _latency(rng: Random, member: str, origin: str) -> dict[str, Any]:
    histogram, upper = [], 50_000.0
    while upper < 3e9:
        upper *= 1.09
        histogram.append(
            [int(upper), int(1e6 / (1 + abs(upper / 1e6 - 1) ** 2)) + rng.randrange(3)]
        )
    shares = {
        "p50_ns": 900_000,
        "p90_ns": 3_000_000,
        "p99_ns": 20_000_000 + rng.randrange(10**7),
        "p999_ns": 90_000_000,
    }
    total = sum(number for _, number in histogram)
    return {
        "member": member,
        "origin": origin,
        "count": total,
        **shares,
        "max_ns": 2_400_000_000,
        "histogram": histogram,
    }


def _overhead(rng: Random, name: str) -> dict[str, Any]:
    data = {"frames": 100_000, "messages": 100_000, "bytes": 12_800_000}
    return {
        "member": name,
        "data": data,
        "repair": {"frames": rng.randrange(9000), "messages": 12_000, "bytes": 10**6},
        "ack": {"frames": rng.randrange(40_000)},
        "nak": {"frames": rng.randrange(5000)},
        "tail": {"frames": rng.randrange(100)},
        "other": {"frames": rng.randrange(900)},
        "duplicates": 5,
        "sent_datagrams": 90_000,
        "sent_bytes": 23_456_789,
    }


def _violation(rng: Random, known: list[str], nth: int) -> dict[str, Any]:
    t_ns = BEGIN_NS + 10 * NS_PER_S + nth
    rows = [
        {
            "t_ns": t_ns + (at - 30) * rng.randrange(90_000, 110_000),
            "member": rng.choice(known),
            "event": rng.choice(("SEND", "STORE", "DELIVER", "STATE", "NAK_OUT", "DROPPED")),
            "origin": known[0],
            "seqno": at,
            "seqno_last": at + 3,
            "reason": rng.choice(("", "", "duplicate", known[-1])),
            "low": 1,
            "delivered": 2,
            "high": 3_000_000,
            "here": at == 30,
        }
        for at in range(40)
    ]
    frames = [
        {
            "from": rng.choice(known),
            "to": rng.choice(known),
            "sent_ns": t_ns + at * 100_000,
            "got_ns": None if at % 3 == 0 else t_ns + at * 100_000 + 350_000,
            "lost": at % 6 == 0,
            "what": f"DATA {known[0]}{at}",
        }
        for at in range(-8, 8)
    ]
    what = f"{known[nth % len(known)]} delivers {nth} of {known[0]}, but {nth + 1} is next"
    return {
        "check": "S3",
        "seed": 0,
        "t_ns": t_ns,
        "member": known[1 % len(known)],
        "origin": known[0],
        "seqno": nth,
        "message": what,
        "rows": rows,
        "frames": frames,
    }


def sampled() -> dict[str, Any]:
    """Return the figures of a sampled trace, of which most checks could not be made."""
    found = crowd(5, points=60)
    listed = checks()
    for check in listed:
        if check["id"] not in {"S1", "S2", "S3", "S4", "S15", "L1", "L2"}:
            check |= {"state": "not checked", "rows": 0, "why": "the trace is sampled"}
    found["mode"] = "sampled"
    found["verdict"]["checks"] = listed
    return found


def hostile() -> dict[str, Any]:
    """Return figures full of names that try to be markup."""
    found = crowd(len(HOSTILE), names=HOSTILE, violations=3, points=20)
    for check, name in zip(found["verdict"]["checks"], HOSTILE, strict=False):
        check["name"] = check["why"] = name
    return found


def unjudged() -> dict[str, Any]:
    """Return figures that nobody has checked."""
    found = crowd(3, points=30)
    del found["verdict"]
    return found


PROFILES = ("nakack4", "nakack", "classic", "unicast3")


def sweep(*, failed: int = 0, missing: int = 0, hunt: bool = True) -> dict[str, Any]:
    """Return made-up figures of a sweep."""
    cells = [
        _cell(profile, members, loss)
        for members in (3, 8, 20)
        for loss in (0.0, 1.0, 5.0)
        for profile in PROFILES
    ]
    failures = [
        {
            "seed": 2**62 + nth,
            "profile": "nakack4",
            "violations": [
                {"check": "S3", "t_ns": NS_PER_S, "member": HOSTILE[0], "message": HOSTILE[1]}
            ]
            * 3,
            "error": None,
            "replay": f"gapless sim {2**62 + nth} --profile nakack4",
            "shrink": f"gapless shrink {2**62 + nth} --profile nakack4",
        }
        for nth in range(failed)
    ]
    return {
        "kind": "sweep",
        "title": "protocols",
        "runs": 360,
        "missing": missing,
        "failed": failed,
        "violations": 3 * failed,
        "other_runs": 0,
        "cells": cells,
        "hunts": [_hunt()] if hunt else [],
        "failures": failures,
    }


def _cell(profile: str, members: int, loss: float) -> dict[str, Any]:
    worse = 1 + PROFILES.index(profile)
    frames = {
        "data": 1000,
        "repair": int(20 * loss),
        "ack": 100 * worse,
        "nak": int(9 * loss),
        "tail": 40,
    }
    return {
        "profile": profile,
        "members": members,
        "loss": loss,
        "knobs": {},
        "messages": 100,
        "size_bytes": 100,
        "mutant": None,
        "runs": 10,
        "failed": 0,
        "violations": 0,
        "expected": 1000,
        "delivered": 1000,
        "events": 5000,
        "steps": 4000,
        "simulated_ns": NS_PER_S,
        "cpu_s": 0.5,
        "p50_ns": 1_000_000,
        "p99_ns": int(1_000_000 * (1 + worse * loss + members)),
        "deliveries_per_s": 9000.5 / worse,
        "frames": frames,
        "bytes": {kind: 120 * number for kind, number in frames.items()},
        "repairs_per_lost_frame": None if not loss else 0.9,
        "frames_per_message": sum(frames.values()) / 1000,
    }


def _hunt() -> dict[str, Any]:
    return {
        "groups": "membership",
        "seeds": 300,
        "failed": 0,
        "violations": 0,
        "events": 10**6,
        "steps": 10**6,
        "messages": 30_000,
        "simulated_seconds": 1234.5,
        "cpu_s": 60.0,
        "thorough": True,
        "a_bug_shows_in_less_than": 0.01,
        "faults": {"loss": 1200, "crash": 300, "pause": 0},
        "must_happen": {"a view is lost": 12, "a merge": 3},
        "must_happen_missing": [],
    }

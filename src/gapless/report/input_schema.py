"""What a report is drawn from: the shape of its figures, and a reader that says what is wrong with a file.

Figures come from a file, which may be old, cut off or not figures at all. :func:`shaped` gives
every part that is missing an empty value, so that what draws need not ask, and refuses what has
another type than it should.
"""

from __future__ import annotations

from typing import Any, Final

from gapless.errors import GaplessError

NUMBER: Final = "a number"
MAYBE: Final = "a number or null"
TEXT: Final = "a text"
FLAG: Final = "true or false"
ANY: Final = "anything"
MOST: Final = 1e100
"""A number beyond that counts nothing: it is taken for one that is not there, as those that are not finite are."""

_CHECK = {
    "id": TEXT,
    "name": TEXT,
    "state": TEXT,
    "rows": NUMBER,
    "violations": NUMBER,
    "why": TEXT,
}
_VERDICT = {
    "ok": FLAG,
    "violations": NUMBER,
    "events": NUMBER,
    "lives": NUMBER,
    "seeds": NUMBER,
    "span_ns": NUMBER,
    "seconds": NUMBER,
    "checks": [_CHECK],
    "incomplete": [{"life": TEXT, "missing_rows": NUMBER, "why": TEXT}],
    "not_shown": [{"id": TEXT, "why": TEXT}],
}
_SUMMARY = {
    "sent": MAYBE,
    "delivered": MAYBE,
    "expected": MAYBE,
    "lost": MAYBE,
    "duplicates": MAYBE,
    "out_of_order": MAYBE,
    "naks": MAYBE,
    "repairs": MAYBE,
    "repaired": MAYBE,
    "frames_lost": MAYBE,
    "latency_p50_ns": MAYBE,
    "latency_p99_ns": MAYBE,
    "latency_max_ns": MAYBE,
    "messages_per_s": MAYBE,
    "bytes_per_s": MAYBE,
}
_ROW = {
    "t_ns": NUMBER,
    "member": TEXT,
    "event": TEXT,
    "origin": TEXT,
    "seqno": NUMBER,
    "seqno_last": NUMBER,
    "peer": TEXT,
    "reason": TEXT,
    "low": NUMBER,
    "delivered": NUMBER,
    "high": NUMBER,
    "here": FLAG,
}
_FRAME = {"from": TEXT, "to": TEXT, "sent_ns": NUMBER, "got_ns": MAYBE, "lost": FLAG, "what": TEXT}
VIOLATION = {
    "check": TEXT,
    "seed": NUMBER,
    "t_ns": NUMBER,
    "member": TEXT,
    "origin": TEXT,
    "seqno": NUMBER,
    "message": TEXT,
    "rows": [_ROW],
    "frames": [_FRAME],
}
_FRAME_KINDS = ("data", "repair", "ack", "nak", "tail", "stability", "other")
_HEAD = {"kind": TEXT, "title": TEXT, "version": TEXT, "made_at": TEXT}
_PART = {"frames": NUMBER, "messages": NUMBER, "bytes": NUMBER}
RUN = {
    **_HEAD,
    "mode": TEXT,
    "simulated": FLAG,
    "verdict": _VERDICT,
    "summary": _SUMMARY,
    "lives": [
        {
            "name": TEXT,
            "member": TEXT,
            "began_ns": NUMBER,
            "ended_ns": NUMBER,
            "end": TEXT,
            "offset_ns": MAYBE,
            "uncertainty_ns": MAYBE,
            "events": NUMBER,
        }
    ],
    "views": [{"t_ns": NUMBER, "member": TEXT, "number": NUMBER, "maker": TEXT, "members": [TEXT]}],
    "windows": [{"member": TEXT, "origin": TEXT, "to": TEXT, "reach": MAYBE, "points": [[NUMBER]]}],
    "repair_log": [
        {
            "origin": TEXT,
            "member": TEXT,
            "seqno": NUMBER,
            "seqno_last": NUMBER,
            "gap_ns": MAYBE,
            "nak_ns": MAYBE,
            "nak_in_ns": MAYBE,
            "repair_ns": MAYBE,
            "stored_ns": MAYBE,
            "delivered_ns": MAYBE,
            "naks": NUMBER,
        }
    ],
    "over_time": {
        "step_ns": NUMBER,
        "points": [
            {
                "t_ns": NUMBER,
                "member": TEXT,
                "sent": NUMBER,
                "delivered": NUMBER,
                "bytes": NUMBER,
                "naks": NUMBER,
                "repairs": NUMBER,
                "acks": NUMBER,
                "duplicates": NUMBER,
                "blocked_ns": NUMBER,
                "latency_p50_ns": MAYBE,
                "latency_p99_ns": MAYBE,
            }
        ],
    },
    "latency": [
        {
            "member": TEXT,
            "origin": TEXT,
            "count": NUMBER,
            "p50_ns": MAYBE,
            "p90_ns": MAYBE,
            "p99_ns": MAYBE,
            "p999_ns": MAYBE,
            "max_ns": MAYBE,
            "histogram": [[NUMBER]],
        }
    ],
    "overhead": [
        {
            "member": TEXT,
            **dict.fromkeys(("data", "repair", "ack", "nak", "tail", "other"), _PART),
            "duplicates": NUMBER,
            "sent_datagrams": NUMBER,
            "sent_bytes": NUMBER,
        }
    ],
    "blocked": [
        {
            "member": TEXT,
            "times": NUMBER,
            "blocked_ns": NUMBER,
            "longest_ns": NUMBER,
            "caused_by": [{"member": TEXT, "reason": TEXT, "blocked_ns": NUMBER, "times": NUMBER}],
        }
    ],
    "occupancy": [
        {
            "member": TEXT,
            "origin": TEXT,
            "mean": MAYBE,
            "p50": MAYBE,
            "p99": MAYBE,
            "max": MAYBE,
            "reach": MAYBE,
        }
    ],
    "violations": [VIOLATION],
    "pipeline": ANY,
}
"""The figures of a run."""

SWEEP = {
    **_HEAD,
    "runs": NUMBER,
    "missing": NUMBER,
    "failed": NUMBER,
    "violations": NUMBER,
    "other_runs": NUMBER,
    "cells": [
        {
            "profile": TEXT,
            "members": MAYBE,
            "loss": MAYBE,
            "knobs": ANY,
            "messages": NUMBER,
            "size_bytes": MAYBE,
            "mutant": TEXT,
            "runs": NUMBER,
            "failed": NUMBER,
            "violations": NUMBER,
            "expected": NUMBER,
            "delivered": NUMBER,
            "events": NUMBER,
            "steps": NUMBER,
            "simulated_ns": NUMBER,
            "cpu_s": NUMBER,
            "p50_ns": MAYBE,
            "p99_ns": MAYBE,
            "deliveries_per_s": MAYBE,
            "frames": dict.fromkeys(_FRAME_KINDS, NUMBER),
            "bytes": dict.fromkeys(_FRAME_KINDS, NUMBER),
            "repairs_per_lost_frame": MAYBE,
            "frames_per_message": MAYBE,
        }
    ],
    "hunts": [
        {
            "groups": TEXT,
            "seeds": NUMBER,
            "failed": NUMBER,
            "violations": NUMBER,
            "events": NUMBER,
            "steps": NUMBER,
            "messages": NUMBER,
            "simulated_seconds": NUMBER,
            "cpu_s": NUMBER,
            "faults": ANY,
            "must_happen": ANY,
            "must_happen_missing": [TEXT],
            "thorough": FLAG,
            "a_bug_shows_in_less_than": MAYBE,
        }
    ],
    "failures": [
        {
            "seed": NUMBER,
            "profile": TEXT,
            "violations": [{"check": TEXT, "t_ns": NUMBER, "member": TEXT, "message": TEXT}],
            "error": TEXT,
            "replay": TEXT,
            "shrink": TEXT,
        }
    ],
}
"""The figures of a sweep."""

_KINDS: dict[str, dict[str, Any]] = {"run": RUN, "sweep": SWEEP}
_SHOWN = 60


def shaped(figures: object) -> dict[str, Any]:
    """Return figures in which every part is there and has its type."""
    if not isinstance(figures, dict) or "kind" not in figures:
        raise GaplessError(
            'expected the figures of a run or a sweep: a JSON object with "kind", "verdict" and others'
        )
    kind = figures["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise GaplessError(f'"kind" is {_brief(kind)}; figures are of kind "run" or "sweep"')
    whole = _fit(figures, _KINDS[kind], kind)
    assert isinstance(whole, dict)
    # Nothing found and nothing looked for are not the same: a page must not call an unchecked run
    # sound.
    whole["judged"] = (
        isinstance(figures.get("verdict"), dict) and figures.get("judged") is not False
    )
    return whole


def _fit(value: object, shape: Any, where: str) -> Any:
    if isinstance(shape, dict):
        return _fit_object(value, shape, where)
    if isinstance(shape, list):
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, value, "a list")
        return [_fit(one, shape[0], f"{where}[{at}]") for at, one in enumerate(value)]
    return _fit_plain(value, shape, where)


def _fit_object(value: object, shape: dict[str, Any], where: str) -> dict[str, Any]:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    return {
        **value,
        **{key: _fit(value.get(key), part, f"{where}.{key}") for key, part in shape.items()},
    }


def _fit_plain(value: object, shape: str, where: str) -> Any:
    if shape == ANY:
        return value
    if value is None:
        return {NUMBER: 0, TEXT: "", FLAG: False}.get(shape)
    if shape == TEXT and isinstance(value, str):
        return value
    if shape == FLAG and isinstance(value, bool):
        return value
    if shape in {NUMBER, MAYBE} and isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) <= MOST:  # which holds for nothing that is no number
            return value
        return 0 if shape == NUMBER else None
    raise _wrong(where, value, shape)


def _wrong(where: str, value: object, expected: str) -> GaplessError:
    return GaplessError(f"{where} is {_brief(value)}, but should be {expected}")


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"

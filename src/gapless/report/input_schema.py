"""The schema of the figures of a report, and the validation of figures from a file.

A file may be old, truncated or invalid. ``validate_figures`` gives every missing part an empty
value, so drawing needs no checks, and rejects a part of the wrong type.
"""

from __future__ import annotations

from typing import Any, Final

from gapless.errors import GaplessError

NUMBER: Final = "a number"
"""Type: a finite number; a missing number is 0."""
OPTIONAL_NUMBER: Final = "a number or null"
"""Type: a finite number or None."""
TEXT: Final = "a text"
"""Type: a text; a missing text is empty."""
BOOLEAN: Final = "true or false"
"""Type: true or false; a missing value is false."""
ANY: Final = "anything"
"""Type: any JSON value."""
MAX_NUMBER: Final = 1e100
"""Maximum absolute value of a number; larger and non-finite numbers count as missing."""

_CHECK = {
    "id": TEXT,
    "name": TEXT,
    "state": TEXT,
    "rows": NUMBER,
    "violations": NUMBER,
    "why": TEXT,
}
_VERDICT = {
    "ok": BOOLEAN,
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
    "sent": OPTIONAL_NUMBER,
    "delivered": OPTIONAL_NUMBER,
    "expected": OPTIONAL_NUMBER,
    "lost": OPTIONAL_NUMBER,
    "duplicates": OPTIONAL_NUMBER,
    "out_of_order": OPTIONAL_NUMBER,
    "naks": OPTIONAL_NUMBER,
    "repairs": OPTIONAL_NUMBER,
    "repaired": OPTIONAL_NUMBER,
    "frames_lost": OPTIONAL_NUMBER,
    "latency_p50_ns": OPTIONAL_NUMBER,
    "latency_p99_ns": OPTIONAL_NUMBER,
    "latency_max_ns": OPTIONAL_NUMBER,
    "messages_per_s": OPTIONAL_NUMBER,
    "bytes_per_s": OPTIONAL_NUMBER,
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
    "here": BOOLEAN,
}
_FRAME = {
    "from": TEXT,
    "to": TEXT,
    "sent_ns": NUMBER,
    "got_ns": OPTIONAL_NUMBER,
    "lost": BOOLEAN,
    "what": TEXT,
}
VIOLATION_SCHEMA = {
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
RUN_SCHEMA = {
    **_HEAD,
    "mode": TEXT,
    "simulated": BOOLEAN,
    "verdict": _VERDICT,
    "summary": _SUMMARY,
    "lives": [
        {
            "name": TEXT,
            "member": TEXT,
            "began_ns": NUMBER,
            "ended_ns": NUMBER,
            "end": TEXT,
            "offset_ns": OPTIONAL_NUMBER,
            "uncertainty_ns": OPTIONAL_NUMBER,
            "events": NUMBER,
        }
    ],
    "views": [{"t_ns": NUMBER, "member": TEXT, "number": NUMBER, "maker": TEXT, "members": [TEXT]}],
    "windows": [
        {"member": TEXT, "origin": TEXT, "to": TEXT, "reach": OPTIONAL_NUMBER, "points": [[NUMBER]]}
    ],
    "repair_log": [
        {
            "origin": TEXT,
            "member": TEXT,
            "seqno": NUMBER,
            "seqno_last": NUMBER,
            "gap_ns": OPTIONAL_NUMBER,
            "nak_ns": OPTIONAL_NUMBER,
            "nak_in_ns": OPTIONAL_NUMBER,
            "repair_ns": OPTIONAL_NUMBER,
            "stored_ns": OPTIONAL_NUMBER,
            "delivered_ns": OPTIONAL_NUMBER,
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
                "latency_p50_ns": OPTIONAL_NUMBER,
                "latency_p99_ns": OPTIONAL_NUMBER,
            }
        ],
    },
    "latency": [
        {
            "member": TEXT,
            "origin": TEXT,
            "count": NUMBER,
            "p50_ns": OPTIONAL_NUMBER,
            "p90_ns": OPTIONAL_NUMBER,
            "p99_ns": OPTIONAL_NUMBER,
            "p999_ns": OPTIONAL_NUMBER,
            "max_ns": OPTIONAL_NUMBER,
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
            "mean": OPTIONAL_NUMBER,
            "p50": OPTIONAL_NUMBER,
            "p99": OPTIONAL_NUMBER,
            "max": OPTIONAL_NUMBER,
            "reach": OPTIONAL_NUMBER,
        }
    ],
    "violations": [VIOLATION_SCHEMA],
    "pipeline": ANY,
}
"""The figures of a run."""

SWEEP_SCHEMA = {
    **_HEAD,
    "runs": NUMBER,
    "missing": NUMBER,
    "failed": NUMBER,
    "violations": NUMBER,
    "other_runs": NUMBER,
    "cells": [
        {
            "profile": TEXT,
            "members": OPTIONAL_NUMBER,
            "loss": OPTIONAL_NUMBER,
            "knobs": ANY,
            "messages": NUMBER,
            "size_bytes": OPTIONAL_NUMBER,
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
            "p50_ns": OPTIONAL_NUMBER,
            "p99_ns": OPTIONAL_NUMBER,
            "deliveries_per_s": OPTIONAL_NUMBER,
            "frames": dict.fromkeys(_FRAME_KINDS, NUMBER),
            "bytes": dict.fromkeys(_FRAME_KINDS, NUMBER),
            "repairs_per_lost_frame": OPTIONAL_NUMBER,
            "frames_per_message": OPTIONAL_NUMBER,
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
            "thorough": BOOLEAN,
            "a_bug_shows_in_less_than": OPTIONAL_NUMBER,
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

_KINDS: dict[str, dict[str, Any]] = {"run": RUN_SCHEMA, "sweep": SWEEP_SCHEMA}
_MAX_QUOTED = 60


def validate_figures(figures: object) -> dict[str, Any]:
    """Return figures with every part present and of the expected type.

    Raises:
        GaplessError: ``figures`` is not a run or a sweep, or a part has the wrong type.
    """
    if not isinstance(figures, dict) or "kind" not in figures:
        raise GaplessError(
            'expected the figures of a run or a sweep: a JSON object with "kind" and "verdict", as '
            "gapless report --json prints"
        )
    kind = figures["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise GaplessError(f'"kind" is {_brief(kind)}; figures are of kind "run" or "sweep"')
    whole = _validate(figures, _KINDS[kind], kind)
    assert isinstance(whole, dict)
    # A run without violations and a run without checks are different: the page must not call an
    # unchecked run sound.
    whole["judged"] = (
        isinstance(figures.get("verdict"), dict) and figures.get("judged") is not False
    )
    return whole


def _validate(value: object, shape: Any, where: str) -> Any:
    if isinstance(shape, dict):
        return _validate_object(value, shape, where)
    if isinstance(shape, list):
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise _schema_error(where, value, "a list")
        return [_validate(one, shape[0], f"{where}[{at}]") for at, one in enumerate(value)]
    return _validate_scalar(value, shape, where)


def _validate_object(value: object, shape: dict[str, Any], where: str) -> dict[str, Any]:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _schema_error(where, value, "an object")
    return {
        **value,
        **{key: _validate(value.get(key), part, f"{where}.{key}") for key, part in shape.items()},
    }


def _validate_scalar(value: object, shape: str, where: str) -> Any:
    if shape == ANY:
        return value
    if value is None:
        return {NUMBER: 0, TEXT: "", BOOLEAN: False}.get(shape)
    if shape == TEXT and isinstance(value, str):
        return value
    if shape == BOOLEAN and isinstance(value, bool):
        return value
    if (
        shape in {NUMBER, OPTIONAL_NUMBER}
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    ):
        if abs(value) <= MAX_NUMBER:  # false for NaN
            return value
        return 0 if shape == NUMBER else None
    raise _schema_error(where, value, shape)


def _schema_error(where: str, value: object, expected: str) -> GaplessError:
    return GaplessError(f"{where} is {_brief(value)}, but should be {expected}")


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_QUOTED else f"{shown[:_MAX_QUOTED]}…"

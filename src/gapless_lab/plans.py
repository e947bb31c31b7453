"""Settings and checks shared by the plans of the lab; each failure names the option."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from gapless.errors import ConfigError

_QUICK_JOIN: Final = {"found_after": "200ms", "join_interval": "50ms"}
_QUICK_DETECTION: Final = _QUICK_JOIN | {
    "heartbeat_interval": "200ms",
    "suspect_after": "2s",
    "verify_timeout": "500ms",
    "merge_interval": "500ms",
}
SETTINGS: Final[Mapping[str, dict[str, Any]]] = {
    "bench": _QUICK_JOIN,
    "pipeline": {**_QUICK_JOIN, "loopback": False},
    # Spark starts beside the members, which are slow meanwhile.
    "demo": {**_QUICK_DETECTION, "found_after": "500ms", "verify_timeout": "1s", "loopback": False},
    # The collector is retained as long as a run takes.
    "chaos": {
        **_QUICK_DETECTION,
        "leave_timeout": "5s",
        "retention_timeout": "1h",
        "capacity": 1024,
    },
    # A window that fills, small frames, and failures detected within a short soak.
    "soak": {
        **_QUICK_DETECTION,
        "suspect_after": "1s",
        "verify_timeout": "300ms",
        "capacity": 512,
        "max_frame_bytes": 1200,
    },
}
"""The settings of the members, by the kind of plan: groups form, and detect failures, quickly."""


def check_range(
    option: str, value: float | None, low: float, high: float = inf, unit: str = ""
) -> None:
    """Raise if a number is given and out of range; ``unit`` is part of the message."""
    if value is not None and not low <= value <= high:
        expected = f"{low:,} or more" if high == inf else f"{low:,} to {high:,}"
        raise ConfigError(f"--{option} {value:g}: expected {expected}{unit}")


def check_share(option: str, share: float, most: float = 0.5) -> None:
    """Raise if a share of datagrams is out of range."""
    if not 0 <= share <= most:
        raise ConfigError(
            f"--{option} {share:g}: expected a share from 0 to {most:g}, such as 5% or 0.05"
        )


def check_above_zero(option: str, value: float | None) -> None:
    """Raise if a number is given and not above 0."""
    if value is not None and not value > 0:
        raise ConfigError(f"--{option} {value:g}: expected more than 0")

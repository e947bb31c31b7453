"""Checks that the plans of the lab share; each failure names the option of the command."""

from __future__ import annotations

from gapless.errors import ConfigError


def check_range(option: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Raise if a number is out of its range; ``unit`` is part of the message."""
    if not low <= value <= high:
        raise ConfigError(f"--{option} {value:g}: expected {low:,} to {high:,}{unit}")


def check_share(option: str, share: float, most: float = 0.5) -> None:
    """Raise if a share of datagrams is out of its range."""
    if not 0 <= share <= most:
        raise ConfigError(
            f"--{option} {share:g}: expected a share from 0 to {most:g}, such as 5% or 0.05"
        )


def check_above_zero(option: str, value: float | None) -> None:
    """Raise if a number is given and not above 0."""
    if value is not None and not value > 0:
        raise ConfigError(f"--{option} {value:g}: expected more than 0")

"""The readings of the sensors: JSON objects, drawn from the seed and reproducible.

The timestamp of reading ``n`` of a site is ``n`` times STEP after the start, at any rate of
sending. Most readings arrive in time, some late, a few much too late, and some are broken in the
ways of BREAKS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

START: Final = datetime(2026, 1, 5, 6, 0, tzinfo=UTC)
"""When the first readings are of."""
STEP: Final = timedelta(seconds=0.2)
"""Time between two readings of a site."""
SENSORS: Final = 8
"""Sensors of a site."""
LATE: Final = timedelta(minutes=5)
"""Maximum delay of a late reading, which the watermark of gold allows."""
TOO_LATE: Final = timedelta(hours=2)
"""Delay of a reading from an unreachable sensor, which the watermark does not allow."""
LATE_SHARE: Final = 0.03
TOO_LATE_SHARE: Final = 0.002
BROKEN_SHARE: Final = 0.01

_DICE: Final = Struct("<6I")
_SIDES: Final = 2**32


class Reading(NamedTuple):
    """A reading as measured; ``broken`` is a key of BREAKS, or empty for an intact payload."""

    site: str
    sensor: str
    number: int
    at: datetime
    celsius: float
    humidity: float
    broken: str

    def payload(self) -> bytes:
        """Return the payload of the message."""
        value = {name: getattr(self, name) for name in self._fields[:-1]}
        value["at"] = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return BREAKS[self.broken](value) if self.broken else _json(value)


def reading(seed: int, producer: int, number: int) -> Reading:
    """Return reading ``number`` of the site of a producer; both count from 1."""
    thrown = _DICE.unpack(
        blake2b(f"{seed}/{producer}/{number}".encode(), digest_size=_DICE.size).digest()
    )
    luck, delay, sensor, celsius, humidity, broken = (each / _SIDES for each in thrown)
    late = LATE * delay if luck < LATE_SHARE else timedelta()
    if luck < TOO_LATE_SHARE:
        late = TOO_LATE
    at = START + number * STEP
    warmth = math.sin((at - START).total_seconds() / 86_400 * math.tau)
    return Reading(
        site=f"site-{producer:02d}",
        sensor=f"s{1 + int(sensor * SENSORS)}",
        number=number,
        at=at - late,
        celsius=round(18 + 6 * warmth + 3 * (celsius - 0.5), 1),
        humidity=round(50 - 10 * warmth + 20 * (humidity - 0.5), 1),
        broken=_WAYS[int(broken / BROKEN_SHARE * len(_WAYS))] if broken < BROKEN_SHARE else "",
    )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _without(name: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda value: _json({key: each for key, each in value.items() if key != name})


BREAKS: Final[Mapping[str, Callable[[dict[str, Any]], bytes]]] = {
    "not a JSON object": lambda value: _json(value)[:-9],
    "no at": _without("at"),
    "at is no timestamp": lambda value: _json({**value, "at": "yesterday"}),
    "celsius is no double": lambda value: _json({**value, "celsius": "n/a"}),
    "celsius out of range": lambda value: _json({**value, "celsius": 999.9}),
}
"""The ways in which a reading can be broken, by what the silver table says of it."""
_WAYS: Final = tuple(BREAKS)

"""Names of 0.1, kept by both APIs until 0.3: each works, and warns with the new name.

The aliases call the method of the same group, so one table serves asyncio and threads.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that ``old`` is deprecated; the default level names the caller of the caller."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=stacklevel)


def _renamed(
    old: str, new: str, convert: Callable[[Any], Any] | None = None, shown: str = ""
) -> Callable[..., Any]:
    """Return a method that warns, calls the method ``new``, and converts the result."""

    def method(self: object, *args: Any, **options: Any) -> Any:
        warn_renamed(f"Group.{old}", shown or new)
        result = getattr(self, new)(*args, **options)
        if convert is None:
            return result
        return _converted(result, convert) if inspect.isawaitable(result) else convert(result)

    method.__name__ = old
    method.__doc__ = f"Deprecated: use ``{new}``."
    return method


async def _converted(result: Any, convert: Callable[[Any], Any]) -> Any:
    return convert(await result)


class DeprecatedMethods:
    """The methods of a group under their names of 0.1."""

    wait_for = _renamed("wait_for", "wait_for_member")
    stored = _renamed("stored", "confirm_stored")
    on_request = _renamed("on_request", "serve")
    next_batch = _renamed("next_batch", "receive_batch")
    next_event = _renamed("next_event", "receive_event")
    look = _renamed("look", "snapshot")
    explain = _renamed("explain", "snapshot")
    health = _renamed("health", "snapshot", lambda found: found.health, "snapshot().health")
    stats = _renamed(
        "stats",
        "snapshot",
        lambda found: {**found.gauges, **found.counters},
        "snapshot().gauges and snapshot().counters",
    )

"""How far clocks are apart, from the least times that anything took between them.

On reception at B of something that A sent: what B's clock showed then, less what A's clock showed
at the sending, is the true delay plus the offset of B's clock against A's. A true delay is never
negative, so the least such difference is an upper bound of that offset, and the least one the other
way is a lower bound.

All bounds together are a system of differences. The tightest bound that follows from all of them is
a shortest path (Floyd and Warshall), so lives that never spoke with the reference get theirs by way
of others, also where a pair spoke in one direction only. The estimate is the middle between both
bounds, the uncertainty half of what is between them: whatever the delays were, and however unlike
in the two directions, the true offset is not farther away. The middle of both bounds keeps every
single bound too, so no delay becomes negative by the correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_SLACK_NS = 1000.0
_REFINEMENTS = 10


class OffsetBounds(NamedTuple):
    """Bounds of a clock's offset from the reference; infinite where nothing is known."""

    lower_ns: float
    upper_ns: float

    @property
    def offset_ns(self) -> int:
        """The middle; where a bound is missing, the nearest to 0 that the other allows."""
        if self.is_known:
            return round((self.lower_ns + self.upper_ns) / 2)
        return round(min(max(0.0, self.lower_ns), self.upper_ns))

    @property
    def uncertainty_ns(self) -> int | None:
        """Maximum distance of the true offset; None if it is unbounded."""
        return int(np.ceil((self.upper_ns - self.lower_ns) / 2)) if self.is_known else None

    @property
    def is_known(self) -> bool:
        """Whether there is a bound on both sides."""
        return bool(np.isfinite(self.lower_ns) and np.isfinite(self.upper_ns))


class ClockSolution(NamedTuple):
    """The bounds of every clock against that of ``reference``.

    ``slack_ns`` is how much every delay was stretched until all agreed: 0 unless a clock drifted or
    was set during the run. The bounds include it.
    """

    reference: int
    bounds: dict[int, OffsetBounds]
    slack_ns: float


def solve(
    least_ns: Mapping[tuple[int, int], int],
    clocks: Iterable[int] = (),
    reference: int | None = None,
) -> ClockSolution:
    """Return the offsets of all clocks, from the least apparent delay of each (source, target).

    Without a ``reference`` it is the clock that the others are known best against.
    """
    names = sorted({*clocks, *(clock for pair in least_ns for clock in pair)})
    if not names:
        raise ValueError("there is no clock to compare")
    at = {name: number for number, name in enumerate(names)}
    direct = np.full((len(names), len(names)), np.inf)
    for (source, target), delay_ns in least_ns.items():
        direct[at[source], at[target]] = min(direct[at[source], at[target]], delay_ns)
    np.fill_diagonal(direct, 0.0)
    shortest, slack_ns = _consistent_paths(direct)
    centre = _best_reference(shortest) if reference is None else at[reference]
    bounds = {
        name: OffsetBounds(float(-shortest[at[name], centre]), float(shortest[centre, at[name]]))
        for name in names
    }
    return ClockSolution(names[centre], bounds, slack_ns)


def _shortest_paths(direct: NDArray[np.float64]) -> NDArray[np.float64]:
    paths = direct.copy()
    for middle in range(len(paths)):
        np.minimum(paths, paths[:, middle, None] + paths[None, middle, :], out=paths)
    return paths


def _is_consistent(paths: NDArray[np.float64]) -> bool:
    """Whether no way round in a circle takes less than no time."""
    return bool((paths.diagonal() >= 0).all())


def _consistent_paths(direct: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the shortest paths; contradicting delays get the least slack that makes them agree."""
    paths = _shortest_paths(direct)
    if _is_consistent(paths):
        return paths, 0.0
    stretched = 1.0 - np.eye(len(direct))
    low_ns, high_ns = 0.0, _FIRST_SLACK_NS
    while not _is_consistent(paths := _shortest_paths(direct + stretched * high_ns)):
        low_ns, high_ns = high_ns, 2 * high_ns
    for _ in range(_REFINEMENTS):
        middle_ns = (low_ns + high_ns) / 2
        tried = _shortest_paths(direct + stretched * middle_ns)
        if _is_consistent(tried):
            paths, high_ns = tried, middle_ns
        else:
            low_ns = middle_ns
    return paths, high_ns


def _best_reference(paths: NDArray[np.float64]) -> int:
    """Return the clock with the most others known against it and the least uncertainty."""
    across = paths + paths.T
    known = np.isfinite(across)
    worst = np.where(known, across, -np.inf).max(axis=1)
    return min(
        range(len(paths)), key=lambda clock: (-int(known[clock].sum()), float(worst[clock]), clock)
    )

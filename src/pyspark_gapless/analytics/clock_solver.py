"""Offsets between clocks, from the least apparent delays between incarnations.

When B receives a datagram from A, the apparent delay is the time on B's clock at reception minus
the time on A's clock at sending. The apparent delay equals the true delay plus the offset of B's
clock against A's clock. A true delay is never negative, so the least apparent delay is an upper
bound of the offset, and the least apparent delay in the other direction gives a lower bound.

All bounds together are a system of differences. The tightest bound that follows from the system is
a shortest path (Floyd and Warshall), so incarnations without direct traffic to the reference get
bounds by way of others, even with traffic in a single direction only. The estimate is the middle
between both bounds, the uncertainty half of their distance: whatever the delays were, and however
different in the two directions, the true offset is not farther away. The estimate also satisfies
every single bound, so the correction never makes a delay negative.
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
    """Bounds of a clock's offset from the reference; infinite for an unknown bound."""

    lower_ns: float
    upper_ns: float

    @property
    def offset_ns(self) -> int:
        """The middle; with a missing bound, the value nearest to 0 within the other bound."""
        if self.is_known:
            return round((self.lower_ns + self.upper_ns) / 2)
        return round(min(max(0.0, self.lower_ns), self.upper_ns))

    @property
    def uncertainty_ns(self) -> int | None:
        """Maximum distance of the true offset; None if unbounded."""
        return int(np.ceil((self.upper_ns - self.lower_ns) / 2)) if self.is_known else None

    @property
    def is_known(self) -> bool:
        """Whether there is a bound on both sides."""
        return bool(np.isfinite(self.lower_ns) and np.isfinite(self.upper_ns))


class ClockSolution(NamedTuple):
    """The bounds of every clock against the clock of ``reference``.

    ``slack_ns`` is the amount added to every delay until all delays agree: 0 unless a clock drifted
    or was set during the run. The bounds include the slack.
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

    Without a ``reference``, the clock with the best known offsets to the others is the reference.
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
    """Return the shortest paths; contradicting delays get the least slack for an agreement."""
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

"""Randomness from one seed, split by name.

Every part of a simulation draws from a stream of its own. An additional draw in one part does not
shift the others, so a failing seed keeps failing when another part changes.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def split(seed: int, name: str) -> Random:
    """Return the stream ``name`` of ``seed``: the same in every process and Python version."""
    return Random(
        int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    )


def per_mille(rng: Random, choices: tuple[int, ...]) -> float:
    """Draw one of ``choices``, given in thousandths, as a rate between 0 and 1."""
    return rng.choice(choices) / 1000


def exponential_ns(rng: Random, mean_ns: int) -> int:
    """Draw a duration with the given mean, bounded by ten times the mean."""
    if not mean_ns:
        return 0
    return min(int(rng.expovariate(1.0) * mean_ns), 10 * mean_ns)

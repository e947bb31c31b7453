"""Randomness from one seed, split by name.

Every part of a simulation draws from a stream of its own, so that one more draw in one part does
not shift the others: a failing seed stays a failing seed when a fault elsewhere learns to do
something new.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def split(seed: int, name: str) -> Random:
    """Return the random stream called ``name`` of ``seed``: the same in every process and Python version."""
    return Random(
        int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    )


def per_mille(rng: Random, choices: tuple[int, ...]) -> float:
    """Draw one of ``choices``, given in thousandths, as a rate between 0 and 1."""
    return rng.choice(choices) / 1000


def exponential_ns(rng: Random, mean_ns: int) -> int:
    """Draw a duration with the given mean; it is never longer than ten times the mean, so that bounds exist."""
    if not mean_ns:
        return 0
    return min(int(rng.expovariate(1.0) * mean_ns), 10 * mean_ns)

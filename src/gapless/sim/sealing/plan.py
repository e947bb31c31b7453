"""The plan of the keys and of the adversary of a sealed run, drawn from the seed.

A keyring has three kinds of keys: a retired key that the adversary has stolen, the key that seals
at the start, and keys that rotations introduce. A rotation may return to the first key.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from gapless.rng import per_mille, split
from gapless.wire.cipher import BLAKE2B
from gapless.wire.seal_keys import SECRET_BYTES, KeyState, SealKey

if TYPE_CHECKING:
    from gapless.sim.script import Script

ATTACKS = (
    "replay",
    "reflect",
    "splice",
    "flip",
    "strip",
    "invent",
    "other-ring",
    "stolen-key",
)
"""Every kind of forged datagram."""

STOLEN_KEY, FIRST_KEY, SECOND_KEY, THIRD_KEY = range(1, 5)
"""The ids of the keys; the adversary has the secret of ``STOLEN_KEY``."""


class SealingPlan(NamedTuple):
    """The keys and the adversary of a run.

    Attributes:
        seed: The seed of every later draw.
        nodes: The names of the nodes, each with a keyring file of its own.
        attacks: The attacks of the adversary; none without an adversary.
        attack_rate: How often the adversary strikes, for each datagram on a link.
        successors: The keys that seal one after the other, after ``FIRST_KEY``.
        rotations_ns: When each rotation begins.
        pace_ns: How long a step of a rotation takes at most until every file has changed.
        hold_ns: How long the former key still opens.
        waits_for_network: Whether the former key opens until no datagram of the key is in flight.
        clock_back: The probability that an incarnation begins at the time of the incarnation
            before, by a clock that was set back or a machine that was resumed from a snapshot.
        edges_ns: When datagrams at the edges of a replay window arrive.
    """

    seed: int
    nodes: tuple[str, ...]
    attacks: tuple[str, ...] = ()
    attack_rate: float = 0.0
    successors: tuple[int, ...] = ()
    rotations_ns: tuple[int, ...] = ()
    pace_ns: int = 0
    hold_ns: int = 0
    waits_for_network: bool = True
    clock_back: float = 0.0
    edges_ns: tuple[int, ...] = ()

    @property
    def ring_secret(self) -> bytes:
        """The secret of the ring."""
        return _secret(self.seed, "ring")

    def first_keys(self) -> tuple[SealKey, ...]:
        """Return the keys at the start: a retired key, and the key that seals."""
        return (
            self.key(STOLEN_KEY)._replace(state=KeyState.RETIRED),
            self.key(FIRST_KEY)._replace(state=KeyState.SEAL),
        )

    def key(self, key_id: int) -> SealKey:
        """Return a key of the ring in the state ``open``."""
        return SealKey(key_id, _secret(self.seed, f"key {key_id}"), KeyState.OPEN, BLAKE2B.name)


def draw_sealing(seed: int, character: str, script: Script) -> SealingPlan:
    """Draw keys, rotations and the adversary for the run of ``script``.

    In runs without losses a rotation must lose nothing either, so a key is retired only once no
    datagram of the key is in flight.
    """
    rng = split(seed, "sealing")
    strict = character != "swarm" or script.fifo
    attacks: tuple[str, ...] = ()
    if rng.random() < 0.9:
        share = rng.choice((0.3, 0.6, 1.0))
        attacks = tuple(attack for attack in ATTACKS if rng.random() < share)
    successors = rng.choice(
        ((), (SECOND_KEY,), (SECOND_KEY, THIRD_KEY), *((SECOND_KEY, FIRST_KEY),) * 2)
    )
    calm_ns = script.calm_ns
    edges = 0 if strict or rng.random() < 0.8 else rng.choice((1, 2))
    return SealingPlan(
        seed,
        tuple(script.nodes()),
        attacks,
        per_mille(rng, (10, 50, 200)),
        successors,
        tuple(sorted(rng.randrange(calm_ns * 2 // 3 + 1) for _ in successors)),
        calm_ns * rng.choice((0, 1, 10)) // 100,
        calm_ns * rng.choice((0, 1, 10)) // 100,
        strict or rng.random() < 0.3,
        rng.choice((0.0, 0.5, 1.0)),
        tuple(rng.randrange(calm_ns // 2 + 1) for _ in range(edges)),
    )


def _secret(seed: int, name: str) -> bytes:
    return blake2b(f"{seed}/{name}".encode(), digest_size=SECRET_BYTES).digest()

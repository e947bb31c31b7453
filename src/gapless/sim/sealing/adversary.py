"""The adversary: a fault that sends datagrams which no member has sent, or has sent before.

On a datagram on a link: the adversary may record the datagram, and may strike: a recorded or forged
datagram arrives at the same target as well. The records last for the whole run, so datagrams return
in later incarnations and views.

The adversary knows the format of sealed datagrams, the secret of a retired key, and another ring.
The adversary seals with code of its own, so that a bug in the envelope does not weaken the attack.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.faults.faults import DUPLICATE, FORGED, Copy, Crossing
from gapless.units import NS_PER_MS
from gapless.wire import decode, encode
from gapless.wire.cipher import TAG_BYTES
from gapless.wire.codec import ADDRESSED, ADDRESSED_HEADER_BYTES, HEADER_BYTES, SEALED

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gapless.sim.sealing.plan import SealingPlan
    from gapless.wire.seal_keys import SealKey

_MAX_RECORDS = 256
_OLDEST = 128
_COUNTER_BYTES = 8
_KEY_ID = slice(4, 8)
_FLAGS_AT = 3
_FIELDS = slice(8, HEADER_BYTES)
_COUNTER = Struct("<Q")
_COUNTERS = (0, 1, 2, 1000, 2**63, 2**64 - 1)
_LATE_NS = (0, 0, NS_PER_MS, 20 * NS_PER_MS)


class Adversary:
    """Forged and repeated datagrams, beside the true datagrams."""

    name = "adversary"
    lossless = True
    blind = True

    def __init__(
        self, rng: Random, plan: SealingPlan, retired_at: Callable[[str], list[SealKey]]
    ) -> None:
        self.strikes: Counter[str] = Counter()
        self._rng = rng
        self._plan = plan
        self._retired_at = retired_at
        self._records: list[Crossing] = []

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Record the datagram, and sometimes add a copy of the adversary."""
        rng, attacks = self._rng, self._plan.attacks
        if not attacks:
            return copies
        self._record(crossing)
        if rng.random() >= self._plan.attack_rate:
            return copies
        attack = rng.choice(attacks)
        made = getattr(self, f"_{attack.replace('-', '_')}")(crossing)
        if not made:
            return copies
        self.strikes[attack] += 1
        mark = DUPLICATE if made == crossing.datagram else FORGED
        return [*copies, Copy(copies[0].delay_ns + rng.choice(_LATE_NS), made, mark)]

    def _record(self, crossing: Crossing) -> None:
        """Keep the first datagrams, and a sample of all later ones."""
        records = self._records
        if len(records) < _MAX_RECORDS:
            records.append(crossing)
        elif self._rng.random() < 0.2:
            records[self._rng.randrange(_OLDEST, _MAX_RECORDS)] = crossing

    def _any_record(self) -> bytes:
        return self._rng.choice(self._records).datagram

    # Attacks

    def _replay(self, crossing: Crossing) -> bytes:
        """Repeat a recorded datagram: any one, or one of the oldest that had the same target."""
        if self._rng.random() < 0.5:
            return self._any_record()
        known = [old.datagram for old in self._records[:_OLDEST] if old.target == crossing.target]
        return self._rng.choice(known) if known else b""

    def _reflect(self, crossing: Crossing) -> bytes:
        """Return a datagram to the node that sent it."""
        own = [old.datagram for old in self._records if old.source.rstrip("'") == crossing.target]
        return self._rng.choice(own) if own else b""

    def _splice(self, crossing: Crossing) -> bytes:
        """Join parts of two datagrams: a header, a counter, or the rest of another."""
        one, other = crossing.datagram, self._any_record()
        if self._rng.random() < 0.5:
            one, other = other, one
        cut = self._rng.choice((_KEY_ID.stop, HEADER_BYTES, _body_at(one) - _COUNTER_BYTES))
        cut = self._rng.choice((cut, _body_at(one)))
        made = one[:cut] + other[cut:]
        return b"" if made in {one, other} else made

    def _flip(self, crossing: Crossing) -> bytes:
        """Change up to eight bits."""
        damaged = bytearray(crossing.datagram)
        for bit in self._rng.sample(range(8 * len(damaged)), self._rng.randint(1, 8)):
            damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    def _strip(self, crossing: Crossing) -> bytes:
        """Repeat a datagram without a seal; the cipher of a run hides nothing."""
        sealed = self._any_record()
        at = _body_at(sealed)
        plain = sealed[: at - _COUNTER_BYTES] + sealed[at:-TAG_BYTES]
        plain = plain[:_FLAGS_AT] + bytes([plain[_FLAGS_AT] & ~SEALED]) + plain[_KEY_ID.start :]
        try:
            group, sender, frames, addressee, _, _ = decode(plain, opened=True)
        except RemoteProtocolError:
            return b""
        return encode(group, sender, frames, addressee)

    def _invent(self, crossing: Crossing) -> bytes:
        """Invent a part of a datagram."""
        made, rng = bytearray(crossing.datagram), self._rng
        at = _body_at(crossing.datagram)
        part = rng.choice(("key", "sender", "counter", "tag", "size", "flags", "addressee"))
        if part == "key":
            made[_KEY_ID] = rng.choice((bytes(4), rng.randbytes(4), (1).to_bytes(4, "little")))
        elif part == "sender":
            made[_FIELDS] = made[_FIELDS.start : 16] + rng.randbytes(16)
        elif part == "counter":
            made[at - _COUNTER_BYTES : at] = _COUNTER.pack(rng.choice(_COUNTERS))
        elif part == "tag":
            made[-TAG_BYTES:] = rng.randbytes(TAG_BYTES)
        elif part == "size":
            made = made[: rng.randrange(len(made))]
        elif part == "flags":
            made[_FLAGS_AT] ^= 1 << rng.randrange(8)
        else:
            made[HEADER_BYTES : at - _COUNTER_BYTES] = rng.randbytes(
                at - _COUNTER_BYTES - HEADER_BYTES
            )
        return b"" if made == crossing.datagram else bytes(made)

    def _other_ring(self, crossing: Crossing) -> bytes:
        """Seal a recorded datagram with a secret of another ring, under a known or unknown id."""
        secret = blake2b(b"another ring", digest_size=32).digest()
        key_id = self._rng.choice((crossing.datagram[_KEY_ID], b"\xaa\xbb\xcc\xdd"))
        return self._seal(secret, key_id)

    def _stolen_key(self, crossing: Crossing) -> bytes:
        """Seal a recorded datagram with a key that is retired at the target."""
        retired = self._retired_at(crossing.target)
        if not retired:
            return b""
        key = self._rng.choice(retired)
        return self._seal(key.secret, key.key_id.to_bytes(4, "little"))

    def _seal(self, secret: bytes, key_id: bytes) -> bytes:
        sealed = self._any_record()
        at = _body_at(sealed)
        header = sealed[: _KEY_ID.start] + key_id + sealed[_KEY_ID.stop : at - _COUNTER_BYTES]
        counter = _COUNTER.pack(self._rng.choice((*_COUNTERS, self._rng.randrange(1, 5000))))
        frames = sealed[at:-TAG_BYTES]
        key = blake2b(sealed[_FIELDS], key=secret, person=b"gapless-seal-1", digest_size=32)
        tag = blake2b(bytes(4) + counter, key=key.digest(), digest_size=TAG_BYTES)
        tag.update(header)
        tag.update(frames)
        return header + counter + frames + tag.digest()


def _body_at(sealed: bytes) -> int:
    addressed = sealed[_FLAGS_AT] & ADDRESSED
    return (ADDRESSED_HEADER_BYTES if addressed else HEADER_BYTES) + _COUNTER_BYTES

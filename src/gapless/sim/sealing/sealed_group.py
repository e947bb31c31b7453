"""The seals of a simulated group: the real envelope between the members and the network.

On sending: a datagram gets the number of a real incarnation (a clock and random bits), then the
seal of the process seals the datagram for all receivers. The group remembers every sealed datagram.

On arrival: the group knows whether a datagram must open: a member sealed exactly these bytes, the
key is in use at the receiver, and the receiver has not opened the datagram before. Then the seal of
the process decides, and the checkers compare.

A process keeps its seal through all incarnations. A new process has a new seal with the keyring
file of its node. The ciphers are those of the standard library, so a run has the same digest on
every machine.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any

from gapless.errors import RemoteProtocolError
from gapless.rng import split
from gapless.sim.sealing.adversary import Adversary
from gapless.sim.sealing.attempt import (
    FORGED,
    KEY,
    OLD,
    OWN,
    REPLAY,
    OpeningAttempt,
    SealedDatagram,
)
from gapless.sim.sealing.plan import ATTACKS, FIRST_KEY
from gapless.units import NS_PER_S
from gapless.wire import seal_keys
from gapless.wire.cipher import BLAKE2B, Bytes, Cipher, CipherSuite
from gapless.wire.codec import ADDRESSED, ADDRESSED_HEADER_BYTES, HEADER_BYTES
from gapless.wire.seal import CONTROL, SEAL_OVERHEAD_BYTES, SEAL_REASONS, WINDOW, Seal
from gapless.wire.seal_keys import KeyRing, KeyState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.identity import Address
    from gapless.protocol.ready import Transmit
    from gapless.sim.oracle.oracle import Oracle
    from gapless.sim.sealing.plan import SealingPlan
    from gapless.sim.world.host import Host
    from gapless.sim.world.scheduler import Scheduler
    from gapless.wire.seal_keys import SealKey

_INCARNATION, _SENDER = Struct("<Q"), Struct("<QQ")
_FIELDS = slice(8, HEADER_BYTES)
_NODE_AT, _INCARNATION_AT = 16, 24
_CHECKSUM = slice(4, 8)
_KEY_ID = Struct("<I")
_FLAGS_AT = 3
_COUNTER = Struct("<Q")
_NO_CHECKSUM = bytes(4)
_COUNTED = frozenset({"rejected", "foreign_keys", "was_newest"})
"""The attributes of a seal that a rejection may change: counters, and facts of the last call."""

SEALING_FAULTS = (
    *ATTACKS,
    "clock-back",
    "rotation-open",
    "rotation-seal",
    "rotation-retired",
    "window-edge",
)
"""Every kind of fault of a sealed run, beside the other faults."""

REQUIRED_SEALING_COVERAGE = (
    *(f"attack: {attack}" for attack in ATTACKS),
    *(f"rejected: {reason}" for reason in SEAL_REASONS),
    "a key that returns",
    "clock set back",
    "key retired under load",
    "edge of the replay window",
)
"""Situations that a sweep of sealed runs must have seen."""

_YEAR_NS = 365 * 86_400 * NS_PER_S


_FAULT_COUNTS = frozenset(SEALING_FAULTS)


class WatchedCipher:
    """A cipher that reports every nonce used, and counts decryptions."""

    __slots__ = ("_cipher", "_group", "_key")

    def __init__(self, cipher: Cipher, key: bytes, group: SealedGroup) -> None:
        self._cipher = cipher
        self._key = key
        self._group = group

    def encrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Report the nonce, then encrypt."""
        self._group.oracle.on_encryption(self._key, nonce)
        return self._cipher.encrypt(nonce, data, associated_data)

    def encrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Report the nonce, then encrypt."""
        self._group.oracle.on_encryption(self._key, nonce)
        return self._cipher.encrypt_into(nonce, data, associated_data, buffer)

    def decrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Count the decryption, then decrypt."""
        self._group.decryptions += 1
        return self._cipher.decrypt(nonce, data, associated_data)

    def decrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Count the decryption, then decrypt."""
        self._group.decryptions += 1
        return self._cipher.decrypt_into(nonce, data, associated_data, buffer)


class OpenedCounters:
    """The counters that a process has opened, of one key, incarnation and path."""

    __slots__ = ("counters", "top")

    def __init__(self) -> None:
        self.counters: set[int] = set()
        self.top = 0

    def unfit(self, counter: int) -> str:
        """Return why a counter must not open; empty if the counter must open."""
        if counter in self.counters:
            return REPLAY
        return OLD if self.top - counter >= WINDOW else ""

    def add(self, counter: int) -> None:
        """Record an opened counter."""
        self.counters.add(counter)
        self.top = max(self.top, counter)


class SealedProcess:
    """A process of a sealed group: its seal, its keys, and the datagrams that it has opened."""

    def __init__(self, ring: KeyRing, suites: dict[str, CipherSuite]) -> None:
        self.seal = Seal(ring, suites)
        self.ring = ring
        self.number = 0
        """The number of the present incarnation on the wire."""
        self.own: set[bytes] = set()
        """Group, node and incarnation of every incarnation that the process has sealed for."""
        self.last_sent = b""
        self.opened: dict[tuple[bytes, bytes, int], OpenedCounters] = {}

    def unfit(self, known: SealedDatagram) -> str:
        """Return why a datagram of a member must not open here; empty if the datagram must open."""
        key = self.ring.opening_keys.get(known.key_id)
        if key is None or key.secret != known.secret:
            return KEY
        if known.fields in self.own:
            return OWN
        opened = self.opened.get((known.secret, known.fields, known.path))
        return "" if opened is None else opened.unfit(known.counter)

    def remember(self, known: SealedDatagram) -> None:
        """Record an opened datagram."""
        key = known.secret, known.fields, known.path
        self.opened.setdefault(key, OpenedCounters()).add(known.counter)


class SealedGroup:
    """The keyring files and seals of all nodes, and every datagram that a member has sealed."""

    def __init__(self, plan: SealingPlan, scheduler: Scheduler, oracle: Oracle) -> None:
        self.plan = plan
        self.scheduler = scheduler
        self.oracle = oracle
        self.suites = {
            BLAKE2B.name: CipherSuite(
                BLAKE2B.name,
                lambda key: WatchedCipher(BLAKE2B.new(key), key, self),
                BLAKE2B.invalid,
            )
        }
        ring = KeyRing(plan.ring_secret, plan.first_keys())
        self.files = dict.fromkeys(plan.nodes, ring)
        """The keyring file of each node."""
        self.processes: dict[str, SealedProcess] = {}
        self.decryptions = 0
        self.counts: Counter[str] = Counter()
        """How often each situation occurred, for the results of the run."""
        self.adversary = Adversary(split(plan.seed, "adversary"), plan, self.keys_retired_at)
        self._rng = split(plan.seed, "sealed incarnations")
        self._ways = split(plan.seed, "sealing calls")
        self._known: dict[bytes, SealedDatagram] = {}
        self._began_ns: dict[str, int] = {}
        self._clocks_ns: dict[str, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._incarnations: dict[tuple[int, int], int] = {}

    # Processes

    def start_process(self, host: Host) -> None:
        """Give a new process a seal with the keyring file of its node."""
        self.processes[host.name] = SealedProcess(self.files[host.name], self.suites)

    def start_incarnation(self, host: Host) -> None:
        """Give an incarnation a number; a clock that was set back repeats the time of the former.

        The random bits of the number keep such incarnations apart.
        """
        began_ns = self._began_ns.get(host.name)
        if began_ns is not None and self._rng.random() < self.plan.clock_back:
            self.counts["clock-back"] += 1
        else:
            clock_ns = self._clocks_ns.setdefault(host.name, self._rng.randrange(_YEAR_NS))
            began_ns = clock_ns + self.scheduler.now_ns
        self._began_ns[host.name] = began_ns
        process = self.processes[host.name]
        process.number = seal_keys.sealed_incarnation(began_ns, self._rng)
        process.last_sent = b""
        self._numbers[host.node, host.incarnation] = process.number
        self._incarnations[host.node, process.number] = host.incarnation

    def write_file(self, node: str, keys: tuple[SealKey, ...]) -> None:
        """Change the keyring file of a node; the running process has not read the file yet."""
        self.files[node] = KeyRing(self.plan.ring_secret, keys)

    def reload(self, node: str) -> None:
        """Let the running process of a node read its keyring file."""
        process = self.processes.get(node)
        if process is not None and process.ring is not self.files[node]:
            process.ring = self.files[node]
            process.seal.replace_ring(process.ring, self.suites)

    def keys_retired_at(self, node: str) -> list[SealKey]:
        """Return the keys that the process of a node will never open any more."""
        process = self.processes.get(node)
        if process is None:
            return []
        both = zip(process.ring.keys, self.files[node].keys, strict=False)
        return [
            key
            for key, filed in both
            if key.state is filed.state is KeyState.RETIRED
            and key.key_id not in self.plan.successors[1:]
        ]

    # Results

    def datagram_counts(self) -> dict[str, int]:
        """Return how many datagrams were sealed, opened, and rejected by each reason."""
        return {
            name: count for name, count in sorted(self.counts.items()) if name not in _FAULT_COUNTS
        }

    def strike_counts(self) -> dict[str, int]:
        """Return how often each fault of a sealed run struck."""
        strikes = self.adversary.strikes
        return {name: strikes[name] + self.counts[name] for name in SEALING_FAULTS}

    def seen(self) -> set[str]:
        """Return the situations of ``REQUIRED_SEALING_COVERAGE`` that occurred."""
        counts, strikes = self.counts, self.adversary.strikes
        retired = counts["rotation-retired"]
        found = {
            "a key that returns": self.plan.successors[1:] == (FIRST_KEY,) and retired > 1,
            "clock set back": counts["clock-back"],
            "key retired under load": retired,
            "edge of the replay window": counts["window-edge"],
            **{f"attack: {attack}": strikes[attack] for attack in ATTACKS},
            **{f"rejected: {reason}": counts[f"rejected.{reason}"] for reason in SEAL_REASONS},
        }
        return {what for what, happened in found.items() if happened}

    # Datagrams

    def seal(self, host: Host, transmits: Sequence[Transmit]) -> list[bytes]:
        """Return the sealed forms of the datagrams that the host's member sends in one step."""
        if not transmits:
            return []
        process = self.processes[host.name]
        plain = [
            _renumbered(data, process.number, self._addressee_number(to)) for to, data in transmits
        ]
        process.last_sent = plain[-1]
        return self._seal_plain(host, process, plain)

    def _addressee_number(self, to: Address | None) -> int | None:
        return None if to is None else self._numbers.get(to, to.incarnation)

    def _seal_plain(self, host: Host, process: SealedProcess, plain: list[bytes]) -> list[bytes]:
        oracle, model = self.oracle, host.member_model
        assert model is not None
        oracle.t_ns, oracle.current_member = self.scheduler.now_ns, model
        process.own.add(plain[0][_FIELDS])
        found = self._seal_some_way(process.seal, plain)
        for opened, sealed in zip(plain, found, strict=True):
            known = self._describe(process, opened, sealed)
            self._known[_digest(sealed)] = known
            oracle.on_sealed(model, known, process.ring.sealing_key)
        self.counts["sealed"] += len(found)
        return found

    def _seal_some_way(self, seal: Seal, plain: list[bytes]) -> list[bytes]:
        """Seal one by one, as a run, or into memory of the caller: each time another way."""
        way = self._ways.randrange(3)
        if way == 0:
            return [seal.seal(datagram) for datagram in plain]
        if way == 1:
            return list(seal.seal_run(plain))
        found: list[bytes] = []
        for datagram in plain:
            buffer = memoryview(bytearray(len(datagram) + SEAL_OVERHEAD_BYTES))
            found.append(bytes(buffer[: seal.seal_into(datagram, buffer)]))
        return found

    def _open_some_way(self, seal: Seal, sealed: bytes) -> bytes:
        """Open as a run of one, or alone: each time another way.

        Raises:
            RemoteProtocolError: The datagram does not open.
        """
        if self._ways.random() < 0.5:
            found: list[bytes] = []
            before = dict(seal.rejected)
            if seal.open_run(sealed, len(sealed), found):
                if found:
                    return found[0]
                reason = next((at for at in before if seal.rejected[at] > before[at]), "")
                raise RemoteProtocolError(reason or "seal", "rejected in a run")
        return seal.open(sealed)

    def seal_refused(self, host: Host, count: int) -> tuple[bytes, bytes, bytes]:
        """Seal ``count`` + 1 datagrams that never leave; return the first two and the last.

        All are the last datagram of the host again.
        """
        process = self.processes[host.name]
        plain = process.last_sent
        first, second = self._seal_plain(host, process, [plain] * 2)
        for _ in range(count - 2):
            process.seal.seal(plain)
        (last,) = self._seal_plain(host, process, [plain])
        return first, second, last

    def _describe(self, process: SealedProcess, plain: bytes, sealed: bytes) -> SealedDatagram:
        flags = plain[_FLAGS_AT]
        at = ADDRESSED_HEADER_BYTES if flags & ADDRESSED else HEADER_BYTES
        (key_id,) = _KEY_ID.unpack_from(sealed, _CHECKSUM.start)
        secret = next((key.secret for key in process.ring.keys if key.key_id == key_id), b"")
        (counter,) = _COUNTER.unpack_from(sealed, at)
        path = flags & (ADDRESSED | CONTROL)
        return SealedDatagram(key_id, secret, plain[_FIELDS], path, counter, _digest(plain))

    def open(self, host: Host, sealed: bytes) -> bytes | None:
        """Return the datagram that a member receives, or None for a rejected datagram."""
        process = self.processes[host.name]
        known = self._known.get(_digest(sealed))
        unfit = FORGED if known is None else process.unfit(known)
        seal = process.seal
        before = _frozen(seal, set()) if unfit else None
        counted = dict(seal.rejected)
        opened, rejection, self.decryptions = b"", "", 0
        try:
            opened = self._open_some_way(seal, sealed)
        except RemoteProtocolError as error:
            rejection = error.reason
            counted[rejection] += 1
        self.counts[f"rejected.{rejection}" if rejection else "opened"] += 1
        attempt = OpeningAttempt(
            unfit,
            rejection,
            bool(rejection and unfit)
            and (_frozen(seal, set()) != before or dict(seal.rejected) != counted),
            bool(rejection) or (known is not None and _digest(opened) == known.opened),
            int.from_bytes(sealed[_CHECKSUM], "little") in process.ring.opening_keys,
            self.decryptions,
        )
        assert host.member_model is not None
        self.oracle.on_opening(host.member_model, attempt, seal, self.scheduler.now_ns)
        if rejection or unfit or known is None:
            return None  # the checkers have reported a datagram that opened wrongly
        process.remember(known)
        return self._with_incarnations(host, opened)

    def _with_incarnations(self, host: Host, opened: bytes) -> bytes:
        """Return an opened datagram with the incarnations of the simulation.

        The number of an addressee that is another node is the number of no incarnation here.
        """
        node, number = _SENDER.unpack_from(opened, _NODE_AT)
        addressee = None
        if opened[_FLAGS_AT] & ADDRESSED:
            (addressee,) = _INCARNATION.unpack_from(opened, HEADER_BYTES)
            addressee = self._incarnations.get((host.node, addressee), addressee)
        return _renumbered(opened, self._incarnations[node, number], addressee)


def _renumbered(datagram: bytes, sender: int, addressee: int | None) -> bytes:
    """Return a datagram with other incarnations, and without a checksum."""
    parts = [
        datagram[: _CHECKSUM.start],
        _NO_CHECKSUM,
        datagram[_CHECKSUM.stop : _INCARNATION_AT],
        _INCARNATION.pack(sender),
    ]
    start = HEADER_BYTES
    if addressee is not None and datagram[_FLAGS_AT] & ADDRESSED:
        parts.append(_INCARNATION.pack(addressee))
        start = ADDRESSED_HEADER_BYTES
    return b"".join((*parts, datagram[start:]))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _frozen(value: Any, seen: set[int]) -> Any:
    """Return the state of a seal as plain values, each object once; ciphers have no state."""
    if isinstance(value, (int, bytes, str)) or value is None:
        return value
    if id(value) in seen:
        return "seen"
    seen.add(id(value))
    if isinstance(value, dict):
        return [(_frozen(key, seen), _frozen(entry, seen)) for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [_frozen(entry, seen) for entry in value]
    if type(value).__module__ != Seal.__module__:
        return type(value).__name__
    kind: Any = type(value)
    names = getattr(kind, "__slots__", None) or getattr(kind, "__mypyc_attrs__", None)
    names = vars(value) if names is None else names
    return [(name, _frozen(getattr(value, name), seen)) for name in names if name not in _COUNTED]

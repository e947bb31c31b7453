"""Sealed datagrams: only members with a key of the group can make or open sealed datagrams.

    plain:  magic, version, flags            checksum | group, sender | [addressee] | frames
    sealed: magic, version, flags | SEALED   key id   | group, sender | [addressee] | counter
            | encrypted frames | tag

On sending: the cipher encrypts the frames, and authenticates the frames together with the header,
the addressee and the counter. A datagram is sealed once for all receivers.

On reception: the key id and the sender select the key; no other key is tried. A datagram is a
replay if the same datagram was opened before, if the datagram is ``WINDOW`` or more counters behind
the newest, or if this member is the sender. A rejected datagram changes no window, no table of
senders and no address; the rejection is counted, and raises RemoteProtocolError with one of
``SEAL_REASONS``.

Keys: each incarnation of a member seals with a separate key, derived from the secret of the ring's
key, and numbers the sealed datagrams from 1. A restarted member is another incarnation, so no pair
of key and counter ever occurs twice.

In a group with identities, datagrams with the flag VIEW_KEY are sealed with the key of a view, and
no key of the ring opens them. The machine hands in the keys of views. A datagram under the key of a
view that this member has not installed yet waits until the view arrives. There is no way to tell
such a datagram from one that will never open, so the room is bounded, and the key that was seen
first goes first.

A control datagram (flag CONTROL) carries a note from one transport to another. A control datagram
is sealed like every other datagram, and never reaches the machine.

The ordinary case has little work per datagram: ``_OwnKey.headers`` and ``Seal._paths`` lead from a
header seen before to the sealed header, the key and the window. Large datagrams are encrypted into
the memory of the transport (``seal_into``), and decrypted into memory that is used again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U64_MAX, Address
from gapless.wire.cipher import TAG_BYTES
from gapless.wire.codec import (
    ADDRESSED,
    ADDRESSED_HEADER_BYTES,
    BARE,
    FLAGS_AT,
    HEADER_BYTES,
    MAGIC,
    SEALED,
    VERSION,
    VIEW_KEY,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.wire.cipher import Bytes, Cipher, CipherSuite
    from gapless.wire.seal_keys import KeyRing, SealKey

CONTROL = 0x08
"""Header flag: from one transport to another, never for the machine. Only sealed datagrams."""
SEAL_OVERHEAD_BYTES = 8 + TAG_BYTES
"""By how much a sealed datagram is longer than a plain one."""
WINDOW = 8192
"""How far a datagram may arrive behind later ones of the same sender and the same path."""
MAX_SENDERS = 4096
"""Maximum number of incarnations with remembered windows; one that was not heard goes first."""
MAX_OWN_KEYS = 256
"""Maximum number of keys of own incarnations that are kept, with their counters."""
MAX_FOREIGN_KEYS = 16
"""Maximum number of unknown keys that are counted apart."""
EARLY_BYTES = 1 << 20
"""Maximum size of all datagrams that wait for the key of their view, unless told otherwise."""
_EARLY_ITEM_BYTES = 256
"""What a waiting datagram counts beside its own size, so that small ones are bounded, too."""
_MAX_RETIRED = 64
"""Maximum number of retired keys of views whose late datagrams are known to be late."""
LARGE_BYTES = 1 << 14
"""Minimum size of a datagram whose parts are not copied before they are encrypted or decrypted."""

SEAL_REASONS = ("noise", "unsealed", "short", "key", "view key", "replay", "seal")
"""Why ``Seal.open`` rejects a datagram."""

_PREAMBLE = b"%b%c" % (MAGIC, VERSION)
_PERSON = b"gapless-seal-1"
_COUNTER = Struct("<Q")
_NONCE = Struct("<4xQ")
_FRONT = Struct(f"<{HEADER_BYTES}sQ")
_SENDER_FIELDS = Struct("<QQQ")
_INCARNATION = Struct("<16xQ")
_NODE_END = 16
_KEY_ID = Struct("<I")
_GROUP = Struct("<Q")
_KEY_ID_AT = 4
"""From here to the end of the header: key id, group and sender, which select the key."""
_SENDER_AT = 8
_KNOWN_FLAGS = SEALED | ADDRESSED | BARE | CONTROL | VIEW_KEY
_WINDOW_MASK = (1 << WINDOW) - 1


class ReplayWindow:
    """The opened counters of one incarnation on one path.

    ``top`` is the highest opened counter, and the last ``_run`` counters up to ``top`` were all
    opened. Before the run, bit i of ``_seen`` says whether counter ``top - _run - i`` was opened.
    While datagrams arrive in order, only ``top`` and ``_run`` change.
    """

    __slots__ = ("_run", "_seen", "top")

    def __init__(self) -> None:
        self.top = self._run = self._seen = 0

    def is_new(self, counter: int) -> bool:
        """Return whether a datagram with this counter may still be opened."""
        behind = self.top - counter
        if behind < 0:
            return True
        if behind < self._run or behind >= WINDOW or not counter:
            return False
        return not self._seen >> (behind - self._run) & 1

    def add(self, counter: int) -> None:
        """Record that a datagram with this counter was opened."""
        ahead = counter - self.top
        if ahead == 1:
            self.top = counter
            self._run += 1
            return
        if self._run:
            run = min(self._run, WINDOW)
            self._seen = (self._seen << run | (1 << run) - 1) & _WINDOW_MASK
            self._run = 0
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & _WINDOW_MASK if ahead < WINDOW else 1
            self.top = counter
        else:
            self._seen |= 1 << -ahead

    def extend(self, top: int) -> None:
        """Record that all datagrams behind the highest counter, up to ``top``, were opened."""
        self._run += top - self.top
        self.top = top

    def check_invariants(self) -> None:
        """Raise AssertionError if the window contradicts itself."""
        assert 0 <= self._run <= self.top, "a run ends with the highest counter"
        assert 0 <= self._seen <= _WINDOW_MASK, "the window is bounded"
        assert not self._seen >> max(0, self.top - self._run), "no counter is below 1"


class _Sender:
    """The key of one incarnation, and the opened counters.

    Datagrams to all, datagrams to one member and control datagrams have separate windows, because
    such datagrams take different paths, for example two sockets, and a path may be far ahead of
    another. The flags are authenticated, so a replay always meets the window of the original.
    """

    __slots__ = (
        "cipher",
        "heard",
        "invalid",
        "is_view",
        "key",
        "paths",
        "sender_fields",
        "windows",
    )

    def __init__(
        self,
        cipher: Cipher,
        invalid: type[Exception],
        key: SealKey,
        sender_fields: bytes,
        *,
        is_view: bool,
    ) -> None:
        self.cipher = cipher
        self.invalid = invalid
        self.key = key
        self.is_view = is_view
        """Whether the key is that of a view."""
        self.sender_fields = sender_fields
        self.windows = (ReplayWindow(), ReplayWindow(), ReplayWindow())
        self.paths: dict[bytes, _Path] = {}
        """The headers that were opened, for each combination of known flags."""
        self.heard = False
        """Whether another datagram was opened since the table was last searched for a place."""


class _Path:
    """The datagrams of one sender with the same header: the window, and the plain header."""

    __slots__ = ("flags", "front", "known", "sender", "start", "window")

    def __init__(self, flags: int, sender: _Sender, *, known: bool) -> None:
        self.flags = flags
        self.sender = sender
        self.known = known
        """Whether the sender is in the table."""
        self.start = ADDRESSED_HEADER_BYTES if flags & ADDRESSED else HEADER_BYTES
        assert sender.is_view == bool(flags & VIEW_KEY), "a flag says which kind of key opens"
        self.window = sender.windows[2 if flags & CONTROL else (flags & ADDRESSED) >> 1]
        self.front = _plain_header(flags & ~SEALED, sender.sender_fields)


class _OwnKey:
    """The key of an incarnation of this member, and the number of datagrams sealed with the key."""

    __slots__ = ("cipher", "counter", "headers", "is_view", "key", "sender_fields")

    def __init__(
        self, cipher: Cipher, key: SealKey, sender_fields: bytes, *, is_view: bool
    ) -> None:
        self.cipher = cipher
        self.is_view = is_view
        self.key = key
        self.sender_fields = sender_fields
        self.counter = 0
        self.headers: dict[bytes, bytes] = {}
        """The sealed header for each plain header without a checksum."""

    def make_header(self, flags: int) -> bytes:
        """Return the header of sealed datagrams with these flags."""
        key_id = _KEY_ID.pack(self.key.key_id)
        header = b"%b%c%c%b%b" % (MAGIC, VERSION, flags | SEALED, key_id, self.sender_fields)
        self.headers[_plain_header(flags, self.sender_fields)] = header
        return header


class HeardMember(NamedTuple):
    """Another member of the group whose datagrams a seal has opened under one key of the ring."""

    member: Address
    key_id: int
    highest: int
    """The sum of the highest opened counters: grows with every newer datagram."""


class Seal:
    """The envelope of a member: seals the member's datagrams, opens the datagrams of others.

    A seal belongs to a single member of a single group, for all incarnations of the member in turn.

    Args:
        ring: The keys.
        suites: The cipher suites by the name that a key has; every key needs one.
    """

    def __init__(self, ring: KeyRing, suites: Mapping[str, CipherSuite]) -> None:
        self.ring = ring
        self.foreign_keys: dict[int, int] = {}
        """How many datagrams arrived under each key that this ring does not open; bounded."""
        self.rejected = dict.fromkeys(SEAL_REASONS, 0)
        """How many datagrams were rejected, by reason."""
        self.was_newest = False
        """Whether the last opened datagram was the newest of its sender on its path."""
        self._suites = suites
        self._opening = ring.opening_keys
        self._view_keys: dict[int, SealKey] = {}
        self._sealing_view: SealKey | None = None
        self._view_suites: Mapping[str, CipherSuite] = {}
        self._early: dict[int, list[bytes]] | None = None
        self._early_bytes = self._early_limit_bytes = 0
        self._retired_views: dict[int, None] = {}
        self._senders: dict[bytes, _Sender] = {}
        self._paths: dict[bytes, _Path] = {}
        self._scratch = memoryview(bytearray())
        self._parked: dict[bytes, _Sender] = {}
        self._own: _OwnKey | None = None
        self._own_keys: dict[tuple[bytes, bytes], _OwnKey] = {}
        self._own_incarnations: frozenset[bytes] = frozenset()
        self._member = self._group = b""
        self._forgotten_incarnation = -1

    # Keys

    def replace_ring(self, ring: KeyRing, suites: Mapping[str, CipherSuite]) -> None:
        """Use other keys of the same ring from now on.

        Raises:
            LocalProtocolError: The keys belong to another ring: the group would have another id.
        """
        if ring.secret != self.ring.secret:
            raise LocalProtocolError(
                f"the keys are those of ring {ring.label}, and this member has joined with ring"
                f" {self.ring.label}: join again to use another ring"
            )
        self.ring = ring
        self._suites = {**suites, **self._view_suites}
        self._opening = ring.opening_keys
        # Windows are kept, also those of keys that do not open now: if an old file returned, each
        # recorded datagram would open once more.
        known = {**self._parked, **self._senders}
        self._senders, self._parked, self._paths = {}, {}, {}
        for fields, sender in known.items():
            sender.paths.clear()
            is_open = self._is_open(sender.key, is_view=sender.is_view)
            (self._senders if is_open else self._parked)[fields] = sender
        while len(self._parked) > MAX_SENDERS:
            del self._parked[next(iter(self._parked))]
        self._own = None

    def expect_view_keys(self, early_bytes: int = EARLY_BYTES) -> None:
        """Keep datagrams under the keys of views that are still to come, within ``early_bytes``."""
        self._early, self._early_limit_bytes = {}, early_bytes

    def replace_view_keys(self, keys: Sequence[SealKey], suites: Mapping[str, CipherSuite]) -> None:
        """Open messages with the keys of these views, and seal them with the first one.

        A key belongs to one view, and does not return: windows and counters of other keys are
        forgotten.
        """
        self._view_suites = suites
        self._suites = {**self._suites, **suites}
        before = self._view_keys
        # The newest key last: a coordinator may look for a key with the id of a former one.
        self._view_keys = {key.key_id: key for key in reversed(keys)}
        self._sealing_view = keys[0]
        self._note_retired(before.keys() - self._view_keys.keys())
        for fields, sender in list(self._senders.items()):
            if not self._is_open(sender.key, is_view=sender.is_view):
                self._forget_sender(fields)
        for name, own in list(self._own_keys.items()):
            if own.is_view and not self._is_open(own.key, is_view=True):
                del self._own_keys[name]
        self._own = None

    def take_early(self) -> list[bytes]:
        """Return the plain forms of datagrams that have waited for a key that opens now."""
        early, found = self._early or {}, []
        for key_id in [key_id for key_id in early if key_id in self._view_keys]:
            for sealed in self._pop_early(early, key_id):
                with suppress(RemoteProtocolError):  # counted
                    found.append(self.open(sealed))
        return found

    def _note_retired(self, key_ids: Iterable[int]) -> None:
        """Remember that datagrams under these keys are late, and not early."""
        retired = self._retired_views
        retired.update(dict.fromkeys(key_ids))
        while len(retired) > _MAX_RETIRED:
            del retired[next(iter(retired))]

    def _is_open(self, key: SealKey, *, is_view: bool) -> bool:
        """Return whether ``key`` opens now; another key may have got the same id."""
        now = (self._view_keys if is_view else self._opening).get(key.key_id)
        return now is not None and (now.secret, now.cipher) == (key.secret, key.cipher)

    def _derive(self, key: SealKey, sender_fields: bytes) -> Cipher:
        secret = blake2b(sender_fields, key=key.secret, person=_PERSON, digest_size=32).digest()
        return self._suites[key.cipher].new(secret)

    # On sending

    def seal(self, datagram: bytes) -> bytes:
        """Return the sealed form of a plain datagram of this member."""
        header, nonce, cipher = self._number(datagram)
        start = len(header)
        large = len(datagram) >= LARGE_BYTES
        body = memoryview(datagram)[start:] if large else datagram[start:]
        return b"".join((header, nonce[4:], cipher.encrypt(nonce, body, header)))

    def seal_run(self, datagrams: Sequence[bytes]) -> list[bytes]:
        """Return the sealed forms of datagrams of this member, as ``seal`` does."""
        found: list[bytes] = []
        at, count, pack, pack_front = 0, len(datagrams), _NONCE.pack, _FRONT.pack
        while at < count:
            first = datagrams[at]
            found.append(self.seal(first))
            at += 1
            if at == count:
                break
            own, same = self._own, first[:HEADER_BYTES]
            header = None if own is None else own.headers.get(same)
            if own is None or header is None or first[FLAGS_AT] & ADDRESSED:
                continue
            # The ordinary case: further datagrams to all with the same header.
            encrypt = own.cipher.encrypt
            while at < count and (datagram := datagrams[at]).startswith(same):
                at += 1
                own.counter += 1
                counter = own.counter
                body = encrypt(pack(counter), datagram[HEADER_BYTES:], header)
                found.append(pack_front(header, counter) + body)
        return found

    def seal_into(self, datagram: bytes, buffer: memoryview) -> int:
        """Write the sealed form of a datagram of this member to ``buffer``; return its size."""
        header, nonce, cipher = self._number(datagram)
        start = len(header)
        body, end = start + _COUNTER.size, len(datagram) + SEAL_OVERHEAD_BYTES
        buffer[:start] = header
        buffer[start:body] = nonce[4:]
        cipher.encrypt_into(nonce, memoryview(datagram)[start:], header, buffer[body:end])
        return end

    def _number(self, datagram: bytes) -> tuple[bytes, bytes, Cipher]:
        """Return the sealed header, the nonce with the next counter, and the cipher."""
        own = self._own
        header = None if own is None else own.headers.get(datagram[:HEADER_BYTES])
        if own is None or header is None:
            sender_fields = datagram[_SENDER_AT:HEADER_BYTES]
            is_view = datagram[FLAGS_AT] & VIEW_KEY != 0
            if own is None or sender_fields != own.sender_fields or is_view != own.is_view:
                own = self._select_own_key(sender_fields, is_view=is_view)
            plain = datagram[:HEADER_BYTES]
            header = own.headers.get(plain) or own.make_header(datagram[FLAGS_AT])
        if datagram[FLAGS_AT] & ADDRESSED:
            header += datagram[HEADER_BYTES:ADDRESSED_HEADER_BYTES]
        own.counter += 1
        return header, _NONCE.pack(own.counter), own.cipher

    def seal_control(self, note: bytes, group: int, sender: Address) -> bytes:
        """Return the sealed form of a note of ``sender``'s transport to another transport."""
        header = b"%b%c%c\0\0\0\0" % (MAGIC, VERSION, CONTROL)
        return self.seal(header + _SENDER_FIELDS.pack(group, *sender) + note)

    def _select_own_key(self, sender_fields: bytes, *, is_view: bool) -> _OwnKey:
        """Return the key of an own incarnation; a key in use before continues the counter.

        A datagram of a former incarnation may still wait for a stream, so former keys are kept.

        Raises:
            LocalProtocolError: Another member seals with this seal, or an incarnation whose key was
                forgotten: a pair of key and counter could occur twice.
        """
        member, incarnation = sender_fields[:_NODE_END], _INCARNATION.unpack(sender_fields)[0]
        if self._member not in {b"", member} or incarnation <= self._forgotten_incarnation:
            raise LocalProtocolError(
                "a seal belongs to one member and its last incarnations: open a transport with a"
                " seal of its own for each member"
            )
        self._member, self._group = member, sender_fields[: _GROUP.size]
        key = self._sealing_view if is_view else self.ring.sealing_key
        if key is None:
            raise LocalProtocolError("messages are sealed with the key of a view: install a view")
        own = self._own_keys.get((key.secret, sender_fields))
        if own is None or own.key != key:
            counter = 0 if own is None else own.counter
            own = _OwnKey(self._derive(key, sender_fields), key, sender_fields, is_view=is_view)
            own.counter = counter
            self._own_keys[key.secret, sender_fields] = own
            self._forget_oldest(sender_fields)
            self._own_incarnations = frozenset(fields for _, fields in self._own_keys)
        self._own = own
        return own

    def _forget_oldest(self, latest: bytes) -> None:
        """Keep the number of own keys bounded; a forgotten incarnation never seals again."""
        if len(self._own_keys) > MAX_OWN_KEYS:
            oldest = next(iter(self._own_keys))
            if oldest[1] != latest:
                del self._own_keys[oldest]
                self._forgotten_incarnation = max(
                    self._forgotten_incarnation, _INCARNATION.unpack(oldest[1])[0]
                )

    # On reception

    def open(self, sealed: Bytes) -> bytes:
        """Return the plain form of a datagram, with a checksum of 0.

        Raises:
            RemoteProtocolError: The datagram is not sealed, or not by a key of this ring, was
                changed on the way, or was opened before. Nothing has changed but a counter.
        """
        try:
            return self._open(sealed)
        except RemoteProtocolError as error:
            self.rejected[error.reason] += 1
            if error.reason == "view key" and self._early is not None:
                self._keep_early(self._early, sealed)
            raise

    def _keep_early(self, early: dict[int, list[bytes]], sealed: Bytes) -> None:
        """Keep a datagram that may belong to the next view of the own group, if there is room.

        What strangers and former members send never opens: it must not take the room for good.
        """
        (key_id,) = _KEY_ID.unpack_from(sealed, _KEY_ID_AT)
        size_bytes = len(sealed) + _EARLY_ITEM_BYTES
        is_late = key_id in self._retired_views
        if is_late or size_bytes > self._early_limit_bytes or not self._is_own_group(sealed):
            return
        while self._early_bytes + size_bytes > self._early_limit_bytes:
            if (oldest := next(iter(early))) == key_id:
                return  # what has arrived first under a key is needed first
            self._pop_early(early, oldest)
        self._early_bytes += size_bytes
        # A copy has the size of the datagram; the original may pin a whole receive buffer.
        early.setdefault(key_id, []).append(bytes(memoryview(sealed)))

    def _pop_early(self, early: dict[int, list[bytes]], key_id: int) -> list[bytes]:
        """Remove and return the datagrams that wait for a key."""
        found = early.pop(key_id)
        self._early_bytes -= sum(len(sealed) + _EARLY_ITEM_BYTES for sealed in found)
        return found

    def _is_own_group(self, sealed: Bytes) -> bool:
        """Return whether a datagram names the group of this member."""
        return sealed[_SENDER_AT : _SENDER_AT + _GROUP.size] == self._group

    def open_run(self, data: bytes, step_bytes: int, found: list[bytes]) -> int:
        """Add the plain forms of datagrams that lie one behind another; return where they end.

        Opened are datagrams of ``step_bytes`` to all, with the header of the first one, if a
        datagram with this header was opened before. The others are left to ``open``. Rejected
        datagrams are counted. ``was_newest`` tells whether any opened datagram was the newest.
        """
        self.was_newest = False
        header = data[:HEADER_BYTES]
        path = self._paths.get(header)
        if path is None or path.flags & (ADDRESSED | CONTROL):
            return 0
        if step_bytes < HEADER_BYTES + SEAL_OVERHEAD_BYTES:
            return 0
        sender, window, front = path.sender, path.window, path.front
        decrypt, invalid, pack = sender.cipher.decrypt, sender.invalid, _NONCE.pack
        start = top = window.top
        at = 0
        whole = memoryview(data)[: len(data) - len(data) % step_bytes]
        for same, counter, body in _layout(step_bytes).iter_unpack(whole):
            if same != header:
                break
            at += step_bytes
            is_next = counter == top + 1
            if not is_next:
                window.extend(top)
                if not window.is_new(counter):
                    self.rejected["replay"] += 1
                    continue
            try:
                plain = decrypt(pack(counter), body, header)
            except invalid:
                self.rejected["seal"] += 1
                continue
            if is_next:
                top = counter
            else:
                window.add(counter)
                top = window.top
            found.append(front + plain)
        window.extend(top)
        self.was_newest = top > start
        sender.heard = sender.heard or bool(found)
        return at

    def _open(self, sealed: Bytes) -> bytes:
        header = sealed[:HEADER_BYTES]
        if type(header) is not bytes:
            header = bytes(header)
        path = self._paths.get(header) or self._find_path(header)
        start, size_bytes = path.start, len(sealed)
        if size_bytes < start + SEAL_OVERHEAD_BYTES:
            raise RemoteProtocolError("short", f"{size_bytes} bytes are shorter than a seal")
        (counter,) = _COUNTER.unpack_from(sealed, start)
        window, sender = path.window, path.sender
        if counter != window.top + 1 and not window.is_new(counter):
            raise RemoteProtocolError("replay", f"datagram {counter} was opened before")
        front = path.front
        if start > HEADER_BYTES:
            addressee = bytes(sealed[HEADER_BYTES:start])
            header, front = header + addressee, front + addressee
        try:
            if size_bytes >= LARGE_BYTES:
                plain = self._decrypt_large(sender.cipher, header, front, counter, sealed)
            else:
                body = sealed[start + _COUNTER.size :]
                plain = front + sender.cipher.decrypt(_NONCE.pack(counter), body, header)
        except sender.invalid as error:
            raise RemoteProtocolError("seal", "the tag does not match") from error
        self.was_newest = counter > window.top
        window.add(counter)
        if path.known:
            sender.heard = True
        else:
            self._remember_path(path, header[:HEADER_BYTES])
        return plain

    def _decrypt_large(
        self, cipher: Cipher, header: bytes, front: bytes, counter: int, sealed: Bytes
    ) -> bytes:
        """Return the plain form of a large datagram; only the result is new memory."""
        start, size_bytes = len(header), len(sealed) - SEAL_OVERHEAD_BYTES
        if len(self._scratch) < size_bytes:
            self._scratch = memoryview(bytearray(size_bytes))
        plain = self._scratch[:size_bytes]
        plain[:start] = front
        body = memoryview(sealed)[start + _COUNTER.size :]
        cipher.decrypt_into(_NONCE.pack(counter), body, header, plain[start:])
        return bytes(plain)

    def is_own(self, sealed: bytes) -> bool:
        """Return whether this member has sealed a datagram lately; no window changes.

        A report of the network quotes a refused datagram. A stranger who cannot read the network
        has no datagram with a valid tag to quote, and so cannot forge the report.
        """
        header = sealed[:HEADER_BYTES]
        all_keys = self._own_keys.values()
        own = next((each for each in all_keys if header in each.headers.values()), None)
        if own is None:
            return False
        start = ADDRESSED_HEADER_BYTES if sealed[FLAGS_AT] & ADDRESSED else HEADER_BYTES
        if len(sealed) < start + SEAL_OVERHEAD_BYTES:
            return False  # only the first bytes are quoted
        (counter,) = _COUNTER.unpack_from(sealed, start)
        if not 0 <= own.counter - counter < WINDOW:
            return False
        body = sealed[start + _COUNTER.size :]
        try:
            own.cipher.decrypt(_NONCE.pack(counter), body, sealed[:start])
        except self._suites[own.key.cipher].invalid:
            return False
        return True

    def _find_path(self, header: bytes) -> _Path:
        """Return the path of an unknown header; the caller remembers an opened datagram's path."""
        if len(header) < HEADER_BYTES or not header.startswith(_PREAMBLE):
            raise RemoteProtocolError("noise", f"{len(header)} bytes without a header")
        flags = header[FLAGS_AT]
        if not flags & SEALED:
            raise RemoteProtocolError("unsealed", "a datagram without a seal")
        fields = _fields_of(header)
        known = self._senders.get(fields)
        sender = self._new_sender(header) if known is None else known
        return _Path(flags, sender, known=False)

    def _remember_path(self, path: _Path, header: bytes) -> None:
        """Remember the path of an opened datagram, and the sender."""
        fields, sender = _fields_of(header), path.sender
        if fields in self._senders:
            sender.heard = True
        else:
            self._remember(fields, sender)
        if not path.flags & ~_KNOWN_FLAGS:  # a member invents no number of paths
            path.known = True
            sender.paths[header] = self._paths[header] = path

    def _new_sender(self, header: bytes) -> _Sender:
        """Return the key of an unknown incarnation; the caller remembers an opened datagram's."""
        (key_id,) = _KEY_ID.unpack_from(header, _KEY_ID_AT)
        is_view = header[FLAGS_AT] & VIEW_KEY != 0
        key = (self._view_keys if is_view else self._opening).get(key_id)
        if key is None and is_view:
            raise RemoteProtocolError("view key", f"the view of key {key_id:08x} is not known here")
        if key is None:
            foreign = self.foreign_keys
            if key_id not in foreign and len(foreign) >= MAX_FOREIGN_KEYS:
                del foreign[min(foreign, key=foreign.__getitem__)]  # invented ids do not stay
            foreign[key_id] = foreign.get(key_id, 0) + 1
            raise RemoteProtocolError("key", f"key {key_id:08x} does not open here")
        sender_fields = header[_SENDER_AT:HEADER_BYTES]
        if sender_fields in self._own_incarnations:
            raise RemoteProtocolError("replay", "a datagram of this member came back")
        invalid = self._suites[key.cipher].invalid
        cipher = self._derive(key, sender_fields)
        return _Sender(cipher, invalid, key, sender_fields, is_view=is_view)

    def _remember(self, fields: bytes, sender: _Sender) -> None:
        """Add a sender; a full table first removes a sender not heard since the last search."""
        senders = self._senders
        while len(senders) >= MAX_SENDERS:
            oldest = next(iter(senders))
            other = senders.pop(oldest)
            if other.heard:
                other.heard = False
                senders[oldest] = other
                continue
            for header in other.paths:
                del self._paths[header]
        senders[fields] = sender

    def heard_members(self) -> list[HeardMember]:
        """Return the other members that are remembered, one entry for each key of the ring.

        Members of other groups, and own former incarnations, are left out.
        """
        found = []
        for sender in self._senders.values():
            fields = sender.sender_fields
            is_other = fields.startswith(self._group) and fields[:_NODE_END] != self._member
            if is_other and self._group and not sender.is_view:
                _, node, incarnation = _SENDER_FIELDS.unpack(fields)
                highest = sum(window.top for window in sender.windows)
                member = Address(node, incarnation)
                found.append(HeardMember(member, sender.key.key_id, highest))
        return found

    def _forget_sender(self, fields: bytes) -> None:
        for header in self._senders.pop(fields).paths:
            del self._paths[header]

    def check_invariants(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        assert len(self._senders) <= MAX_SENDERS, "the table of senders is bounded"
        assert len(self.foreign_keys) <= MAX_FOREIGN_KEYS, "the table of foreign keys is bounded"
        assert len(self._parked) <= MAX_SENDERS, "the table of parked senders is bounded"
        assert 0 <= self._early_bytes <= self._early_limit_bytes, "early datagrams are bounded"
        assert len(self._retired_views) <= _MAX_RETIRED, "the table of retired keys is bounded"
        for sender in self._senders.values():
            tops = [window.top for window in sender.windows]
            assert any(tops), "a sender is remembered once a datagram has opened"
            assert self._is_open(sender.key, is_view=sender.is_view), "no key opens after its time"
            for window in sender.windows:
                window.check_invariants()
        paths = [header for sender in self._senders.values() for header in sender.paths]
        assert sorted(paths) == sorted(self._paths), "paths are those of the remembered senders"
        for own in self._own_keys.values():
            assert own.counter <= U64_MAX, f"the counter of key {own.key.label} fits its field"


def _fields_of(header: bytes) -> bytes:
    """Return what selects the key of an incarnation.

    A key of the ring and the key of a view may have the same id.
    """
    fields = header[_KEY_ID_AT:HEADER_BYTES]
    return b"view" + fields if header[FLAGS_AT] & VIEW_KEY else fields


@lru_cache(maxsize=64)
def _layout(step_bytes: int) -> Struct:
    """Return the layout of a sealed datagram to all: header, counter, encrypted frames and tag."""
    return Struct(f"<{HEADER_BYTES}sQ{step_bytes - HEADER_BYTES - _COUNTER.size}s")


def _plain_header(flags: int, sender_fields: bytes) -> bytes:
    """Return the header of a plain datagram without a checksum."""
    return b"%b%c%c\0\0\0\0%b" % (MAGIC, VERSION, flags, sender_fields)


def is_control(datagram: bytes) -> bool:
    """Return whether an opened datagram is for the transport."""
    return datagram[FLAGS_AT] & CONTROL != 0


def control_note(datagram: bytes) -> bytes:
    """Return the note of a control datagram."""
    return datagram[HEADER_BYTES:]

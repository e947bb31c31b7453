"""Encryption of a spool: who reads the folder without the keys, reads no message.

The keys are those of a keyring file. The key in the state ``seal`` encrypts; every key of the file
decrypts, also a retired one, because stored messages outlive a rotation.

On commit: a KEY record comes first, with the id of the key and a random salt. A cipher with a key
derived from the ring's key and the salt encrypts table and payload of every other record. The nonce
is the offset of the record. The salt is new for every attempt to write, so bytes that are written
to the same offset again, after a crash or a failure, never meet the same key.

The tag of a record also covers the spool id, the segment and the header, with the offsets of record
and commit, the kind, the seqnos and the sizes: no record passes in another place.

On reading: the KEY record at the start of the commit selects the key. A key that is missing, or has
another secret under the same id, is a SpoolKeyError. A wrong tag is damage, like a wrong checksum.

Headers stay readable: origins, seqnos, sizes and times are visible, and damage is found and skipped
as in other spools.
"""

from __future__ import annotations

import os
import secrets
import time
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gapless.errors import ConfigError
from gapless.keys.ciphers import SECRET_SUITES, secret_suite
from gapless.keys.keyring import Keyring
from gapless.keys.secret_files import KeyringError
from gapless.logger import logger_of
from gapless.output.private_files import file_stamp
from gapless.spool.errors import SpoolKeyError
from gapless.spool.format import (
    COMMIT_END,
    ENCRYPTED,
    HEADER,
    KEY,
    KEY_TABLE,
    LATEST_NS,
    MAGIC,
    TAG_BYTES,
    KeyTable,
    RecordDraft,
    RecordHeader,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.wire.cipher import CipherSuite
    from gapless.wire.seal_keys import KeyRing, SealKey

log = logger_of("spool")

CHECK_INTERVAL_S: Final = 1.0
"""How often a writer looks whether the keyring file has changed."""
SALT_BYTES: Final = 16
"""Size of the salt of a commit."""
_COMMIT_PERSON = b"gapless-spool-1"
_INDEX_PERSON = b"gapless-index-1"
_CHECK_PERSON = b"gapless-spchk-1"
_CHECK_BYTES = 8
_NONCE = Struct("<Q4x")
_PLACE = Struct("<16sQ")
_BODY_CRC_BYTES = 4
_OFFSET = Struct("<24xQ")

_REMEDY = (
    "pass the keyring of the collector: --spool-keys FILE, in Spark the option spoolKeys, in"
    " Python SpoolReader(…, keys=FILE)"
)


class WrongBodyError(Exception):
    """The tag of a record does not match."""


class RecordCipher:
    """Encrypts and decrypts the records of one commit; ``table`` is its KEY record."""

    __slots__ = ("_cipher", "_invalid", "_place", "table")

    def __init__(self, table: KeyTable, suite: CipherSuite, key: bytes, place: bytes) -> None:
        self.table = table
        self._cipher = suite.new(key)
        self._invalid = suite.invalid
        self._place = place

    def encrypt(self, packed: bytes, body: bytes) -> bytes:
        """Return the body of a record, encrypted, and the tag.

        Args:
            packed: The header of the record, without magic number and checksum; the checksum of
                the body in it is not covered.
            body: Table and payload.
        """
        nonce = _NONCE.pack(*_OFFSET.unpack_from(packed))
        return self._cipher.encrypt(nonce, body, self._place + packed[_BODY_CRC_BYTES:])

    def decrypt(self, packed: bytes, body: bytes | memoryview) -> bytes:
        """Return table and payload of a record; WrongBodyError if the tag does not match."""
        nonce = _NONCE.pack(*_OFFSET.unpack_from(packed))
        covered = self._place + packed[_BODY_CRC_BYTES:]
        try:
            return self._cipher.decrypt(nonce, bytes(body), covered)
        except self._invalid:
            raise WrongBodyError from None


class IndexCipher:
    """Encrypts and decrypts the head of the index file of a segment."""

    def __init__(self, keys: SpoolKeys | None, path: Path, spool_id: bytes, segment: int) -> None:
        self._keys = keys
        self._path = path
        self._place = _PLACE.pack(spool_id, segment)

    def encrypt(self, head: bytes) -> bytes:
        """Return the id of the key, a salt, the encrypted head and the tag."""
        assert self._keys is not None, "an encrypted segment is read with keys only"
        key, suite = self._keys.sealing()
        table = new_table(key)
        cipher = suite.new(_derive(key, table.salt, _INDEX_PERSON))
        return table.pack() + cipher.encrypt(_NONCE.pack(0), head, self._place)

    def decrypt(self, data: bytes) -> bytes:
        """Return the head; ValueError if the bytes differ from the written bytes.

        Raises:
            SpoolKeyError: The key is missing or wrong.
        """
        size_bytes = KEY_TABLE.size
        table = KeyTable.unpack(data[:size_bytes])
        if self._keys is None:
            raise missing_key_error(self._path, 0, table.key_id, None)
        key, suite = self._keys.find(table, self._path, 0)
        cipher = suite.new(_derive(key, table.salt, _INDEX_PERSON))
        try:
            return cipher.decrypt(_NONCE.pack(0), data[size_bytes:], self._place)
        except suite.invalid:
            raise ValueError("the tag does not match") from None


class SpoolKeys:
    """The keys of an encrypted spool, from a keyring (``gapless keys new``).

    With a file, the keys follow the file: the writer looks for a rotation every second, and a
    reader when a key is missing.

    Args:
        given: The path of a keyring file, or a keyring.

    Raises:
        SpoolKeyError: The file cannot be used; the text says what to do.
    """

    def __init__(self, given: Keyring | str | Path) -> None:
        self._path = None if isinstance(given, Keyring) else _absolute(given)
        self._stamp: tuple[int, ...] | None = None
        self._look_at_s = 0.0
        self._problem = ""
        self._ring = given.ring if isinstance(given, Keyring) else self._read()

    @classmethod
    def of(cls, given: SpoolKeys | Keyring | str | Path | None) -> SpoolKeys | None:
        """Return the keys of an option; None without keys."""
        if given is None or isinstance(given, SpoolKeys):
            return given
        return cls(given)

    def __repr__(self) -> str:
        return f"SpoolKeys({self})"

    def __str__(self) -> str:
        label = self._ring.label
        return f"{self._path} (ring {label})" if self._path else f"the ring {label}"

    def follow(self) -> None:
        """Read a changed file, at most once in ``CHECK_INTERVAL_S``; an error keeps the keys."""
        now_s = time.monotonic()
        if self._path is not None and now_s >= self._look_at_s:
            self._look_at_s = now_s + CHECK_INTERVAL_S
            before = self._ring
            if self._reload() and (problem := self._problem_after(before)):
                self._ring = before
                log.warning("the keys of the spool stay as they are: %s", problem)

    def _problem_after(self, before: KeyRing) -> str:
        """Return why a writer must not go on with a changed file; "" if it may."""
        used = before.sealing_key
        if self._key(used.key_id) is None:
            return f"{self} lacks the key {used.label}, which has encrypted the last commits"
        try:
            self.sealing()
        except ConfigError as error:
            return str(error)
        return ""

    def new_cipher(self, spool_id: bytes, segment: int) -> RecordCipher:
        """Return the cipher of a new commit, with the sealing key and a new salt.

        Raises:
            ConfigError: The sealing key does not encrypt, or this Python lacks the cipher.
        """
        key, suite = self.sealing()
        table = new_table(key)
        derived = _derive(key, table.salt, _COMMIT_PERSON)
        return RecordCipher(table, suite, derived, _PLACE.pack(spool_id, segment))

    def cipher_of(
        self, table: KeyTable, path: Path, offset: int, spool_id: bytes, segment: int
    ) -> RecordCipher:
        """Return the cipher of the commit at ``offset`` of a segment.

        Raises:
            SpoolKeyError: The key is missing or wrong.
        """
        key, suite = self.find(table, path, offset)
        derived = _derive(key, table.salt, _COMMIT_PERSON)
        return RecordCipher(table, suite, derived, _PLACE.pack(spool_id, segment))

    def sealing(self) -> tuple[SealKey, CipherSuite]:
        """Return the key that encrypts, and its suite.

        Raises:
            ConfigError: The sealing key does not encrypt, or this Python lacks the cipher.
        """
        key = self._ring.sealing_key
        return key, secret_suite(key.cipher)

    def find(self, table: KeyTable, path: Path, offset: int) -> tuple[SealKey, CipherSuite]:
        """Return the key that a KEY record names, and its suite.

        Raises:
            SpoolKeyError: The key is missing or wrong.
        """
        key = self._key(table.key_id)
        if key is None and self._reload():
            key = self._key(table.key_id)
        if key is None:
            raise missing_key_error(path, offset, table.key_id, self)
        if key.cipher not in SECRET_SUITES or _check(key, table.salt) != table.check:
            raise SpoolKeyError(
                f"{path}: the commit at {offset} was encrypted with another secret or cipher than"
                f" the key {key.label} of {self} has; copy the keyring of the collector again,"
                f" and {_REMEDY}",
                path,
                key.label,
            )
        try:
            return key, secret_suite(key.cipher)
        except ConfigError as error:
            raise SpoolKeyError(f"{path}: {error}", path, key.label) from None

    def _key(self, key_id: int) -> SealKey | None:
        return next((key for key in self._ring.keys if key.key_id == key_id), None)

    def _reload(self) -> bool:
        """Read the file if it has changed since; return whether it was read."""
        if self._path is None or file_stamp(self._path) == self._stamp:
            return False
        try:
            self._ring = self._read()
        except SpoolKeyError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the keys of the spool stay as they are: %s", error)
            return False
        self._problem = ""
        return True

    def _read(self) -> KeyRing:
        assert self._path is not None
        # The stamp comes first: a file that is replaced while it is read is read again.
        stamp = file_stamp(self._path)
        try:
            ring = Keyring.read(self._path).ring
        except KeyringError as error:
            advice = error.advice
            if not os.path.lexists(self._path):
                advice = (
                    "every machine that reads the spool needs a copy of the collector's keyring"
                )
            raise SpoolKeyError(
                f"the keys of the spool: {error.problem}; {advice}", self._path
            ) from None
        self._stamp = stamp
        return ring


def new_table(key: SealKey) -> KeyTable:
    """Return the table of a KEY record, with a new salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    return KeyTable(key.key_id, salt, _check(key, salt))


def missing_key_error(
    path: Path, offset: int, key_id: int, keys: SpoolKeys | None
) -> SpoolKeyError:
    """Return the error for a commit whose key is not there."""
    label = f"{key_id:08x}"
    found = "and no keys are given" if keys is None else f"which {keys} does not have"
    return SpoolKeyError(
        f"{path}: the commit at {offset} is encrypted with the key {label}, {found}; {_REMEDY}",
        path,
        label,
    )


def encrypt_records(
    drafts: Sequence[RecordDraft], offset: int, seed: int, cipher: RecordCipher
) -> tuple[list[bytes], list[int]]:
    """Return the buffers of an encrypted commit at ``offset``, and the offset of each draft.

    The KEY record comes first, and has no draft.
    """
    buffers: list[bytes] = []
    offsets: list[int] = []
    table, start = cipher.table.pack(), offset
    key = RecordHeader(crc32(table), KEY, 0, 0, 0, len(table), 0, start, start, *(0,) * 7)
    buffers += (_with_magic(HEADER.pack(*key), seed), table)
    offset += key.size_bytes
    left = len(drafts)
    for draft in drafts:
        left -= 1
        header = RecordHeader(
            0,
            draft.kind,
            draft.flags,
            ENCRYPTED if left else ENCRYPTED | COMMIT_END,
            draft.rows,
            len(draft.table),
            len(draft.payload) + TAG_BYTES,
            offset,
            start,
            *draft.origin[:2],
            draft.first,
            draft.last,
            draft.view,
            min(draft.sent_ns, LATEST_NS),
            draft.collected_ns,
        )
        packed = HEADER.pack(*header)
        body = cipher.encrypt(packed, b"".join((draft.table, draft.payload)))
        packed = crc32(body).to_bytes(_BODY_CRC_BYTES, "little") + packed[_BODY_CRC_BYTES:]
        buffers += (_with_magic(packed, seed), body)
        offsets.append(offset)
        offset += header.size_bytes
    return buffers, offsets


def _with_magic(packed: bytes, seed: int) -> bytes:
    return MAGIC + crc32(packed, seed).to_bytes(4, "little") + packed


def _derive(key: SealKey, salt: bytes, person: bytes) -> bytes:
    return blake2b(salt, key=key.secret, person=person, digest_size=32).digest()


def _check(key: SealKey, salt: bytes) -> bytes:
    covered = salt + key.cipher.encode()
    digest = blake2b(covered, key=key.secret, person=_CHECK_PERSON, digest_size=_CHECK_BYTES)
    return digest.digest()


def _absolute(path: str | Path) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise SpoolKeyError(f"the keys of the spool: {error}; name the file in full") from None

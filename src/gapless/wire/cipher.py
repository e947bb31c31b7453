"""The ciphers of sealed datagrams: the interface, and a keyed hash that needs no package.

The wire package has no dependency: a caller that wants secrecy hands in the suites of the package
``cryptography`` (gapless/keys/ciphers.py).
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

TAG_BYTES = 16
"""Size of the tag that a cipher adds."""

Bytes = bytes | memoryview
"""Bytes that are only read, copied or not."""


class Cipher(Protocol):
    """An authenticated cipher with one key: the interface of the package ``cryptography``."""

    def encrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Return the encrypted data and the tag."""
        ...

    def encrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Write the encrypted data and the tag, which fill ``buffer``; return their size."""
        ...

    def decrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Return the data; raise an exception of ``CipherSuite.invalid`` if the tag is wrong."""
        ...

    def decrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Write the data, which fill ``buffer``; return their size, or raise as ``decrypt``."""
        ...


class CipherSuite(NamedTuple):
    """A kind of cipher: the name in a keyring, the constructor, and the error of a wrong tag."""

    name: str
    new: Callable[[bytes], Cipher]
    invalid: type[Exception]


class WrongTagError(Exception):
    """The tag of ``Blake2b`` does not match."""


class Blake2b:
    """Authentication without secrecy, from the standard library: a keyed hash as the tag."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Return the plain data and the tag."""
        return b"".join((data, self._tag(nonce, data, associated_data)))

    def encrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Write the plain data and the tag."""
        buffer[:-TAG_BYTES] = data
        buffer[-TAG_BYTES:] = self._tag(nonce, data, associated_data)
        return len(buffer)

    def decrypt(self, nonce: bytes, data: Bytes, associated_data: bytes, /) -> bytes:
        """Return the data; raise WrongTagError if the tag is wrong."""
        return bytes(self._check(nonce, data, associated_data))

    def decrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Write the data; raise WrongTagError if the tag is wrong."""
        # The data may lie in memory of another process: what is checked is what is returned.
        buffer[:] = data[:-TAG_BYTES]
        self._check(nonce, b"".join((buffer, data[-TAG_BYTES:])), associated_data)
        return len(buffer)

    def _check(self, nonce: bytes, data: Bytes, associated_data: bytes) -> Bytes:
        """Return the data without the tag, which is checked."""
        plain = data[:-TAG_BYTES]
        if not compare_digest(self._tag(nonce, plain, associated_data), data[-TAG_BYTES:]):
            raise WrongTagError
        return plain

    def _tag(self, nonce: bytes, data: Bytes, associated_data: bytes) -> bytes:
        # The lengths are fixed: a nonce has 12 bytes, a header 32 or 40, and its flags say which.
        tag = blake2b(nonce, key=self._key, digest_size=TAG_BYTES)
        tag.update(associated_data)
        tag.update(data)
        return tag.digest()


BLAKE2B = CipherSuite("blake2b", Blake2b, WrongTagError)
"""Authentication without secrecy, on every machine."""


class WithoutInto:
    """A cipher that only returns new memory, with the whole interface."""

    __slots__ = ("decrypt", "encrypt")

    def __init__(self, cipher: Any) -> None:
        self.encrypt = cipher.encrypt
        self.decrypt = cipher.decrypt

    @classmethod
    def of(cls, new: Callable[[bytes], Any]) -> Callable[[bytes], Cipher]:
        """Return the constructor for ciphers that ``new`` makes."""
        return lambda key: cls(new(key))

    def encrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Encrypt, and copy."""
        buffer[:] = self.encrypt(nonce, data, associated_data)
        return len(buffer)

    def decrypt_into(
        self, nonce: bytes, data: Bytes, associated_data: bytes, buffer: memoryview, /
    ) -> int:
        """Decrypt, and copy."""
        buffer[:] = self.decrypt(nonce, data, associated_data)
        return len(buffer)

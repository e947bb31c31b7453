"""Payloads: messages to send, validated and measured once on their way into the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from gapless.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Payloads(tuple[bytes, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """At least one message to send; ``uniform`` if all have the same length."""

    sizes: list[int]
    uniform: bool
    longest_bytes: int
    size_bytes: int

    @classmethod
    def of(cls, payloads: Iterable[object]) -> Self:
        """Return validated messages; raise LocalProtocolError if one is not bytes."""
        if type(payloads) is cls:
            return payloads
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise LocalProtocolError("one message is not a list of messages: put it into a list")
        messages = tuple(payloads)
        if not messages:
            raise LocalProtocolError("nothing to send: give at least one message")
        if set(map(type, messages)) != {bytes}:
            wrong = next(
                type(payload).__name__ for payload in messages if type(payload) is not bytes
            )
            raise LocalProtocolError(f"a message is {wrong}, not bytes: encode it first")
        return cls.of_validated(messages)  # type: ignore[arg-type]

    @classmethod
    def of_validated(cls, payloads: Iterable[bytes]) -> Self:
        """Return messages that are known to be bytes, and at least one."""
        made = cls(payloads)
        sizes = made.sizes = list(map(len, made))
        size, count = sizes[0], len(sizes)
        made.uniform = sizes.count(size) == count
        made.longest_bytes = size if made.uniform else max(sizes)
        made.size_bytes = size * count if made.uniform else sum(sizes)
        return made

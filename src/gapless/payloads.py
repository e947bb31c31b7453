"""Payloads: messages to send, validated and measured once before they reach the machine."""

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
        """Return validated messages; raise LocalProtocolError unless all are bytes."""
        if type(payloads) is cls:
            return payloads
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise LocalProtocolError(
                "expected a list of messages, got a single message; put the message into a list"
            )
        messages = tuple(payloads)
        if not messages:
            raise LocalProtocolError("no messages to send; pass at least one message")
        if set(map(type, messages)) != {bytes}:
            wrong = next(
                type(payload).__name__ for payload in messages if type(payload) is not bytes
            )
            raise LocalProtocolError(
                f"a message must be bytes, not {wrong}; encode the value first"
            )
        return cls.of_validated(messages)  # type: ignore[arg-type]

    @classmethod
    def of_validated(cls, payloads: Iterable[bytes]) -> Self:
        """Return at least one message, all known to be bytes."""
        made = cls(payloads)
        sizes = made.sizes = list(map(len, made))
        size, count = sizes[0], len(sizes)
        made.uniform = sizes.count(size) == count
        made.longest_bytes = size if made.uniform else max(sizes)
        made.size_bytes = size * count if made.uniform else sum(sizes)
        return made

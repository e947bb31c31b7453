"""Messages on their way in: that they are bytes, and how long each is, is found out once, through whichever hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from gapless.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Payloads(tuple[bytes, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """Messages to send, at least one; ``uniform`` if all are of the same length."""

    sizes: list[int]
    uniform: bool
    longest_bytes: int
    size_bytes: int

    @classmethod
    def of(cls, payloads: Iterable[object]) -> Self:
        """Return messages that are bytes, or raise LocalProtocolError that says what they are."""
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
        """Return messages of which somebody knows that they are bytes, and that there are any."""
        made = cls(payloads)
        sizes = made.sizes = list(map(len, made))
        size, count = sizes[0], len(sizes)
        made.uniform = sizes.count(size) == count
        made.longest_bytes = size if made.uniform else max(sizes)
        made.size_bytes = size * count if made.uniform else sum(sizes)
        return made

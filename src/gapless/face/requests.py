"""Requests and answers, inside messages to one member.

A message to one member that begins with a mark holds, behind it, what it is, a number, and a body:

    mark (4 bytes) | kind (1) | number (8, little-endian) | body

A plain message that happens to begin with the mark is wrapped in the same way, so nothing an application sends is ever
taken for something else. Anything behind a mark that is none of these kinds is left as it is.

On sending a request: it gets the next number, and a future that waits under it.

On reception of an answer: the future of its number is told; an answer that nobody waits for is dropped.

On a view without the member that was asked, and at the end of this life: whoever waits is told.
"""

from __future__ import annotations

from concurrent.futures import Future
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import DepartedError, GaplessError, RequestError

if TYPE_CHECKING:
    from collections.abc import Container

    from gapless.identity import Address

MARK = b"\x00Gq\xf7"
"""What a wrapped message begins with."""
REQUEST, ANSWER, FAILED, PLAIN, LOOK = range(5)
"""What is behind the mark: a request, its answer, the reason why there is none, a message of the application, or the
question how the member stands."""

_HEAD = Struct("<4sBQ")
WRAP_BYTES = _HEAD.size
"""What a wrapping takes."""


class Wrapped(NamedTuple):
    """What a wrapped message holds."""

    kind: int
    number: int
    body: bytes


def wrap(kind: int, number: int, body: bytes) -> bytes:
    """Return the message that holds these."""
    return _HEAD.pack(MARK, kind, number) + body


def wrap_plain(payload: bytes) -> bytes:
    """Return a message of the application in a form that cannot be mistaken."""
    return wrap(PLAIN, 0, payload) if payload.startswith(MARK) else payload


def unwrap(message: bytes) -> Wrapped | None:
    """Return what a message holds; None if it is nothing but itself."""
    if not message.startswith(MARK) or len(message) < WRAP_BYTES:
        return None
    _, kind, number = _HEAD.unpack_from(message)
    return Wrapped(kind, number, message[WRAP_BYTES:]) if kind <= LOOK else None


class Asked(NamedTuple):
    """A request that has come."""

    sender: Address
    number: int
    payload: bytes


class Pending:
    """The requests of this member that wait for an answer."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, tuple[Address, Future[bytes]]] = {}

    def expect(self, to: Address) -> tuple[int, Future[bytes]]:
        """Return the number of the next request, and the future of its answer."""
        self._number += 1
        future: Future[bytes] = Future()
        self._waiting[self._number] = to, future
        return self._number, future

    def forget(self, number: int) -> None:
        """Wait no more."""
        self._waiting.pop(number, None)

    def answered(self, sender: Address, said: Wrapped) -> None:
        """Take an answer in, if it is from the member that was asked."""
        to, future = self._waiting.get(said.number, (None, None))
        if to == sender and future is not None and not future.done():
            del self._waiting[said.number]
            if said.kind == ANSWER:
                future.set_result(said.body)
            else:
                future.set_exception(RequestError(f"{sender} could not answer: {said.body.decode(errors='replace')}"))

    def on_view(self, members: Container[Address]) -> None:
        """Tell whoever waits for a member that has left."""
        for number, (to, _) in list(self._waiting.items()):
            if to not in members:
                self._fail(number, DepartedError(f"{to} has left; whether it has done what was asked is not known"))

    def end(self, error: GaplessError) -> None:
        """Tell everybody that no answer will come."""
        for number in list(self._waiting):
            self._fail(number, error)

    def _fail(self, number: int, error: GaplessError) -> None:
        _, future = self._waiting.pop(number)
        if not future.done():
            future.set_exception(error)

"""Requests and answers, inside messages to one member.

A request is a message to one member, wrapped as headers.py says, with a number by which its answer
is known.

On sending a request: it gets the next number, and a future that waits under it.

On reception of an answer: the future of its number is told; an answer that nobody waits for is
dropped.

On a view without the member that was asked, and at the end of this life: whoever waits is told.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import DepartedError, GaplessError, RequestError
from gapless.group.headers import REPLY

if TYPE_CHECKING:
    from collections.abc import Container

    from gapless.group.headers import Envelope
    from gapless.identity import Address


class RequestFrame(NamedTuple):
    """A request that has come."""

    sender: Address
    number: int
    payload: bytes


class PendingRequests:
    """The requests of this member that wait for an answer."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, tuple[Address, Future[bytes]]] = {}

    def register(self, to: Address) -> tuple[int, Future[bytes]]:
        """Return the number of the next request, and the future of its answer."""
        self._number += 1
        future: Future[bytes] = Future()
        self._waiting[self._number] = to, future
        return self._number, future

    def forget(self, number: int) -> None:
        """Wait no more."""
        self._waiting.pop(number, None)

    def on_reply(self, sender: Address, said: Envelope) -> None:
        """Take an answer in, if it is from the member that was asked."""
        to, future = self._waiting.get(said.number, (None, None))
        if to == sender and future is not None and not future.done():
            del self._waiting[said.number]
            if said.kind == REPLY:
                future.set_result(said.body)
            else:
                future.set_exception(
                    RequestError(f"{sender} could not answer: {said.body.decode(errors='replace')}")
                )

    def on_view(self, members: Container[Address]) -> None:
        """Tell whoever waits for a member that has left."""
        for number, (to, _) in list(self._waiting.items()):
            if to not in members:
                self._fail(
                    number,
                    DepartedError(
                        f"{to} has left; whether it has done what was asked is not known"
                    ),
                )

    def fail_all(self, error: GaplessError) -> None:
        """Tell everybody that no answer will come."""
        for number in list(self._waiting):
            self._fail(number, error)

    def _fail(self, number: int, error: GaplessError) -> None:
        _, future = self._waiting.pop(number)
        if not future.done():
            future.set_exception(error)

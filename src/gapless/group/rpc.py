"""Requests and replies, as wrapped messages to one member.

On sending a request: the request gets the next number, and a future for the reply.

On reception of a reply: the future with the same number is completed. A reply without a future is
dropped.

On a view without the requested member, and at the end of this incarnation: pending futures raise an
error.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import DepartedError, GaplessError, RequestError
from gapless.group.headers import REPLY
from gapless.identity import member_label

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from gapless.group.headers import Envelope
    from gapless.identity import Address


class RequestFrame(NamedTuple):
    """A received request."""

    sender: Address
    number: int
    payload: bytes


class PendingRequests:
    """The requests of this member without a reply yet."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, tuple[Address, Future[bytes]]] = {}

    def register(self, to: Address) -> tuple[int, Future[bytes]]:
        """Return the number of the next request, and the future of the reply."""
        self._number += 1
        future: Future[bytes] = Future()
        self._waiting[self._number] = to, future
        return self._number, future

    def forget(self, number: int) -> None:
        """Drop a request; a later reply is ignored."""
        self._waiting.pop(number, None)

    def on_reply(
        self, sender: Address, envelope: Envelope, name_of: Callable[[Address], str]
    ) -> None:
        """Complete the future of a reply from the requested member; ignore any other reply."""
        to, future = self._waiting.get(envelope.number, (None, None))
        if to == sender and future is not None and not future.done():
            del self._waiting[envelope.number]
            if envelope.kind == REPLY:
                future.set_result(envelope.body)
            else:
                label = member_label(sender, name_of(sender))
                text = envelope.body.decode(errors="replace")
                future.set_exception(RequestError(f"{label} answered with an error: {text}"))

    def on_view(self, members: Container[Address], name_of: Callable[[Address], str]) -> None:
        """Fail the requests to members outside the new view."""
        for number, (to, _) in list(self._waiting.items()):
            if to not in members:
                label = member_label(to, name_of(to))
                text = f"{label} left before the reply, and may have acted on the request"
                self._fail(number, DepartedError(text))

    def fail_all(self, error: GaplessError) -> None:
        """Fail every request."""
        for number in list(self._waiting):
            self._fail(number, error)

    def _fail(self, number: int, error: GaplessError) -> None:
        _, future = self._waiting.pop(number)
        if not future.done():
            future.set_exception(error)

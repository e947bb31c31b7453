"""The group for threads: ``with gapless.blocking.join("orders") as group:``. The same names as in channel.py.

A face of one handle, like channel.py: what is done stands in face/, here is only how a thread
waits. Any thread may use a group; of several that read, each message goes to one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from gapless.delivery_mode import DeliveryMode, DeliveryModeName
from gapless.errors import DepartedError, GaplessError
from gapless.group.base import GroupBase, IncomingRequest, ReceiptBase, make_receipt
from gapless.group.join_options import JoinOptions
from gapless.group.message import Batch, Message
from gapless.group.session import ERROR_CLOSE_TIMEOUT_S, Steps, Wait
from gapless.group.timeouts import Duration, deadline_ns, duration_ns
from gapless.logger import log
from gapless.runtime.reactor import wait_for_future
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from gapless.group.headers import Headers
    from gapless.group.health import Explanation, Health
    from gapless.group.inbox import GroupEvent
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import AnyHeaders, GroupSession, Payload, To
    from gapless.metrics.prometheus import MemberSnapshot

_T = TypeVar("_T")


def run_steps(steps: Steps[_T]) -> _T:
    """Carry out steps, blocking at each."""
    try:
        wait = next(steps)
        while True:
            try:
                result = _wait_for_future(wait)
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                wait = steps.throw(error)
            else:
                wait = steps.send(result)
    except StopIteration as done:
        return cast("_T", done.value)


def _wait_for_future(wait: Wait) -> Any:
    return wait_for_future(wait.future, wait.until_ns)


class Receipt(ReceiptBase):
    """What was sent."""

    def delivered(self, timeout: Duration | None = None) -> None:
        """Wait until every member has delivered it; only for acknowledged and out-of-band messages.

        Durable members that are away are waited for too. Raises UndeliveredError if that can never
        be, and TimedOutError after ``timeout``.
        """
        run_steps(self._delivered(timeout))


class Request(IncomingRequest):
    """What another member asks: answer it with ``reply``, or say with ``fail`` why not."""

    def reply(self, payload: Payload = b"") -> None:
        """Answer."""
        run_steps(self._answer(payload))

    def fail(self, error: BaseException) -> None:
        """Let ``request`` raise a RequestError there."""
        run_steps(self._answer(None, error))


class Group(GroupBase):
    """One member of one group; made by :func:`join`, and a member inside ``with``."""

    # Coming and going

    def open(self) -> Self:
        """Come into the group; ``with`` does this."""
        run_steps(self._session.open(deadline_ns(self._timeout)))
        return self

    def close(self, timeout: Duration | None = None) -> None:
        """Leave: what was accepted is brought to its end, within ``timeout`` or ``leave_timeout``; what waits ends."""
        run_steps(self._session.close(None if timeout is None else duration_ns(timeout) / NS_PER_S))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else ERROR_CLOSE_TIMEOUT_S)

    # Sending

    def send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        timeout: Duration | None = None,
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Send a message to all, or to one member; wait for room, first come, first served.

        When this returns the message has its number and is on its way, and will not be dropped.
        Timed out before that, it was not sent, and leaves no gap. ``loopback`` says whether the
        sender gets it too, ``headers`` what is said of it beside its payload.
        """
        own = self._session
        if mode != DeliveryMode.ORDERED or timeout is not None or headers is not None:
            return self.send_many(
                (payload,), to, mode=mode, timeout=timeout, loopback=loopback, headers=headers
            )
        receipt = Receipt(own, None, 1)
        if own.send_lone(payload, receipt, to, loopback) is not None:
            return receipt
        receipt = self.send_many((payload,), to, loopback=loopback)
        if to is None and loopback is None:
            own.note_lone_send()
        return receipt

    def send_many(
        self,
        payloads: Iterable[Payload],
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        timeout: Duration | None = None,
        loopback: bool | None = None,
        headers: AnyHeaders | None = None,
    ) -> Receipt:
        """Send messages in this order, which is faster than one by one; with headers for all, or for each.

        Out of time, it raises a TimedOutError whose ``accepted`` says how many were sent.
        """
        own = self._session
        sent = run_steps(own.send(payloads, to, mode, timeout, loopback=loopback, headers=headers))
        assert sent is not None
        return make_receipt(Receipt, own, sent)

    def try_send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Receipt | None:
        """Send a message if there is room now; None if there is not."""
        sent = run_steps(
            self._session.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else make_receipt(Receipt, self._session, sent)

    # Receiving

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message; None when this member has left. Raises TimedOutError after ``timeout``."""
        own = self._session
        if (message := own.try_next_message()) is not None:
            return message
        until_ns = deadline_ns(timeout)
        own.poll_until_readable(until_ns)
        return own.try_next_message() or cast(
            "Message | None", run_steps(own.receive(own.inbox.next_item, until_ns))
        )

    def batches(self) -> Iterator[Batch]:
        """Iterate over messages many at a time: those of one sender that came together."""
        own = self._session
        while True:
            found = own.try_next_batch()
            if found is None:
                own.poll_until_readable(None)
                found = own.try_next_batch() or cast(
                    "Batch | None", run_steps(own.receive(own.inbox.next_batch))
                )
            if found is None:
                return
            yield found

    def events(self) -> Iterator[Message | GroupEvent]:
        """Iterate over messages, changes of the view and whatever else happens, in the order in which it does."""
        while (found := self.next_event()) is not None:
            yield found

    def next_event(self, timeout: Duration | None = None) -> Message | GroupEvent | None:
        """Return the next message or event; None when this member has left. Raises TimedOutError after ``timeout``."""
        own, until_ns = self._session, deadline_ns(timeout)
        own.poll_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_item, until_ns, all_events=True))

    def wait_for_members(self, count: int, timeout: Duration | None = None) -> None:
        """Wait until the view has at least ``count`` members, this one included."""
        run_steps(self._session.wait_for_member_count(count, deadline_ns(timeout)))

    def wait_for(self, name: str, timeout: Duration | None = None) -> None:
        """Wait until a durable member of this name belongs to the group; from then on its place is kept for it."""
        run_steps(self._session.wait_for_member(name, deadline_ns(timeout)))

    def next_batch(self, timeout: Duration | None = None) -> Batch | GroupEvent | None:
        """Return the next messages of one sender, or event; None when this member has left.

        Coming back for more says that these are done with. Raises TimedOutError after ``timeout``.
        """
        own, until_ns = self._session, deadline_ns(timeout)
        own.poll_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_batch, until_ns, all_events=True))

    # Requests

    def request(self, payload: Payload, to: To, *, timeout: Duration | None = 30.0) -> bytes:
        """Ask a member, and return its answer.

        Raises DepartedError if it leaves before it has answered, RequestError if it could not do
        what was asked, and TimedOutError after ``timeout``.
        """
        return run_steps(self._session.request(payload, to, timeout))

    def requests(self) -> Iterator[Request]:
        """Iterate over what others ask this member."""
        return _requests(self._session)

    def on_request(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer requests, one after the other, in a thread: with what ``handler`` returns; what it raises is told."""
        threading.Thread(
            target=_serve, args=(self._session, handler), name="gapless requests", daemon=True
        ).start()
        return handler

    # Everything else

    def expel(self, member: To) -> None:
        """Ask for a view without ``member``, though it lives; it comes back as a new one, unless it may not.

        Half of a group cannot be expelled, nor its coordinator, the first member of the view.
        """
        run_steps(self._session.expel(member))

    def explain(self) -> Explanation:
        """Return who holds the window, since when, and what is missing from whom; made to be printed."""
        return run_steps(self._session.explain())

    def health(self) -> Health:
        """Return whether things go as they should, and what does not."""
        return run_steps(self._session.health())

    def stats(self) -> dict[str, int]:
        """Return every figure of this member by its name: what it has counted, and how full its windows are."""
        return run_steps(self._session.stats())

    def look(self, of: To | None = None, *, timeout: Duration | None = 30.0) -> MemberSnapshot:
        """Return how this member stands, or another one, whatever its application does (docs/metrics.md)."""
        return run_steps(self._session.look(of, timeout))


def _requests(core: GroupSession) -> Iterator[Request]:
    while (found := run_steps(core.receive(core.inbox.next_request))) is not None:
        yield Request(core, cast("RequestFrame", found))


def _serve(core: GroupSession, handler: Callable[[Request], Any]) -> None:
    """Let a handler work on requests; it does not keep the group from being closed."""
    try:
        for request in _requests(core):
            _handle(request, handler)
    except GaplessError as error:
        log.debug("no more requests: %s", error)


def _handle(request: Request, handler: Callable[[Request], Any]) -> None:
    try:
        result = handler(request)
        if not request.answered:
            request.reply(result)
    except DepartedError:
        log.debug("%s has left before its request was answered", request.sender)
    except Exception as error:  # noqa: BLE001 - a handler may do anything, and others wait for answers too
        log.warning("a request of %s failed", request.sender, exc_info=error)
        if not request.answered:
            request.fail(error)


def join(group: str, **options: Unpack[JoinOptions]) -> Group:
    """Return a member of ``group``, to be used as ``with gapless.blocking.join("orders") as group:``.

    The options are those of :func:`gapless.join`.
    """
    return Group(group, **options)

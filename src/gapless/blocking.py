"""The API for threads: ``with gapless.blocking.join("orders") as group:``.

:mod:`gapless.aio` is its twin for asyncio, with the same names; group/ holds what both share, this
module only how a thread waits. Any thread may use a group; of several readers, each message goes to
one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gapless.delivery_mode import DeliveryMode, DeliveryModeName
from gapless.errors import DepartedError, GaplessError
from gapless.group.base import GroupBase, IncomingRequest
from gapless.group.join_options import MemberOptions
from gapless.group.message import Batch, Message
from gapless.group.session import (
    ERROR_CLOSE_TIMEOUT_S,
    ReceiptBase,
    Steps,
    Wait,
    make_receipt,
)
from gapless.group.timeouts import Duration, deadline_ns, duration_ns
from gapless.logger import log
from gapless.runtime.reactor import wait_for_future
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from gapless.config import Config
    from gapless.discovery import Discovery
    from gapless.events import GroupEvent
    from gapless.group.headers import Headers
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import AnyHeaders, GroupSession, Payload, To
    from gapless.identity import Address
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport

__all__ = ["Group", "Receipt", "Request", "join"]

_T = TypeVar("_T")


def run_steps(steps: Steps[_T]) -> _T:
    """Run steps, blocking at each."""
    try:
        wait = next(steps)
        while True:
            try:
                result = _wait_for_future(wait)
            except BaseException as error:  # noqa: BLE001 - the steps handle the error
                wait = steps.throw(error)
            else:
                wait = steps.send(result)
    except StopIteration as done:
        return cast("_T", done.value)


def _wait_for_future(wait: Wait) -> Any:
    return wait_for_future(wait.future, wait.until_ns)


class Receipt(ReceiptBase):
    """The receipt of a send: its seqnos, and whether it was delivered."""

    def delivered(self, timeout: Duration | None = None) -> None:
        """Wait until every member, also absent durable ones, has delivered the messages.

        Raises:
            LocalProtocolError: the mode is neither ``acknowledged`` nor ``out-of-band``.
            UndeliveredError: a member will never deliver them.
            TimedOutError: ``timeout`` passed.
        """
        run_steps(self._delivered(timeout))


class Request(IncomingRequest):
    """A request of another member: answer it with ``reply`` or ``fail``."""

    def reply(self, payload: Payload = b"") -> None:
        """Answer the request."""
        run_steps(self._answer(payload))

    def fail(self, error: BaseException) -> None:
        """Answer with an error: ``request`` raises RequestError at the other member."""
        run_steps(self._answer(None, error))


class Group(GroupBase):
    """One member of one group; made by :func:`join`, and a member inside ``with``."""

    # Joining and leaving

    def open(self) -> Self:
        """Join the group; ``with`` does this."""
        run_steps(self._session.open(deadline_ns(self._session.options.timeout)))
        return self

    def close(self, timeout: Duration | None = None) -> None:
        """Leave the group; pending calls raise ClosedError.

        Accepted messages are retransmitted until acknowledged, or until ``timeout`` or the setting
        ``leave_timeout``.
        """
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
        """Send a message to the group, or to one member; wait for room in the window.

        When this returns, the message has its seqno and was sent. If it times out before that, it
        was not sent and leaves no gap. ``loopback`` overrides the setting whether the sender
        receives it too; ``headers`` travel beside the payload.

        Raises:
            TimedOutError: the window had no room within ``timeout``.
            DepartedError: the member ``to`` is not in the view.
            ClosedError: this member has left.
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
        """Send messages in this order, faster than one by one.

        ``headers`` are those of all messages, or one mapping for each.

        Raises:
            TimedOutError: ``timeout`` passed; its ``accepted`` is the number of messages sent.
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
        """Send a message if the window has room now; None if it has not."""
        sent = run_steps(
            self._session.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else make_receipt(Receipt, self._session, sent)

    # Receiving

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message; None after this member has left.

        Raises:
            TimedOutError: no message arrived within ``timeout``.
        """
        own = self._session
        if (message := own.try_next_message()) is not None:
            return message
        until_ns = None if timeout is None else deadline_ns(timeout)
        own.wait_until_readable(until_ns)
        return own.try_next_message() or cast(
            "Message | None", run_steps(own.receive(own.inbox.next_item, until_ns))
        )

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches: messages of one sender that arrived together."""
        own = self._session
        while True:
            found = own.try_next_batch()
            if found is None:
                own.wait_until_readable(None)
                found = own.try_next_batch() or cast(
                    "Batch | None", run_steps(own.receive(own.inbox.next_batch))
                )
            if found is None:
                return
            yield found

    def events(self) -> Iterator[Message | GroupEvent]:
        """Iterate over messages and events (:mod:`gapless.events`), in their order."""
        while (found := self.receive_event()) is not None:
            yield found

    def receive_event(self, timeout: Duration | None = None) -> Message | GroupEvent | None:
        """Return the next message or event; None after this member has left.

        Raises:
            TimedOutError: nothing arrived within ``timeout``.
        """
        own, until_ns = self._session, deadline_ns(timeout)
        own.wait_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_item, until_ns, all_events=True))

    def wait_for_members(self, count: int, timeout: Duration | None = None) -> None:
        """Wait until the view has at least ``count`` members, this one included."""
        run_steps(self._session.wait_for_member_count(count, deadline_ns(timeout)))

    def wait_for_member(self, name: str, timeout: Duration | None = None) -> None:
        """Wait until a durable member ``name`` belongs to the group.

        From then on messages are retained for it while it is absent.
        """
        run_steps(self._session.wait_for_member(name, deadline_ns(timeout)))

    def receive_batch(self, timeout: Duration | None = None) -> Batch | GroupEvent | None:
        """Return the next batch or event; None after this member has left.

        Asking for the next batch marks the previous one as consumed.

        Raises:
            TimedOutError: nothing arrived within ``timeout``.
        """
        own, until_ns = self._session, deadline_ns(timeout)
        own.wait_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_batch, until_ns, all_events=True))

    # Requests

    def request(self, payload: Payload, to: To, *, timeout: Duration | None = 30.0) -> bytes:
        """Send a request to a member, and return its answer.

        Raises:
            DepartedError: the member left before it answered.
            RequestError: the member answered with an error.
            TimedOutError: no answer arrived within ``timeout``.
        """
        return run_steps(self._session.request(payload, to, timeout))

    def requests(self) -> Iterator[Request]:
        """Iterate over the requests of other members."""
        return _requests(self._session)

    def serve(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer requests in a thread with the result or the error of ``handler``."""
        threading.Thread(
            target=_serve, args=(self._session, handler), name="gapless requests", daemon=True
        ).start()
        return handler

    # Diagnostics

    def expel(self, member: To) -> None:
        """Ask the coordinator to evict a live member.

        It rejoins as a new incarnation unless it joined with ``rejoin=False``. The coordinator and
        a member of a group of two cannot be expelled.
        """
        run_steps(self._session.expel(member))

    def snapshot(self, of: To | None = None, *, timeout: Duration | None = 30.0) -> MemberSnapshot:
        """Return a snapshot of this member, or of another; ``print(snapshot)`` explains it.

        Its ``health``, ``blockers``, ``streams``, ``peers`` and ``counters`` answer whether the
        member works, and who it waits for (docs/metrics.md). Another member answers even if its
        application hangs.

        Raises:
            TimedOutError: the other member did not answer within ``timeout``.
            DepartedError: the other member is not in the view.
        """
        return run_steps(self._session.snapshot(of, timeout))


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
        if not request._answered:
            request.reply(result)
    except DepartedError:
        log.debug("%s left before its request was answered", request._session.label(request.sender))
    except Exception as error:  # noqa: BLE001 - a handler may do anything, and others wait for answers too
        sender = request._session.label(request.sender)
        log.warning("a request of %s failed", sender, exc_info=error)
        if not request._answered:
            request.fail(error)


def join(
    group: str,
    *,
    timeout: Duration | None = None,
    discover: str | Discovery | None = None,
    seeds: Sequence[str] = (),
    transport: str | Transport = "auto",
    config: Config | Mapping[str, object] | str | Path | None = None,
    display_name: str = "",
    durable_name: str = "",
    state: Any = None,
    listen: bool = True,
    rejoin: bool = True,
    host: str | None = None,
    ports: Iterable[int] | int | None = None,
    node: int | None = None,
    resume: Mapping[Address, int] | None = None,
    stores: bool = False,
    trace: Recorder | Path | str | None = None,
    trace_mode: str = "",
    name: str | None = None,
) -> Group:
    """Return a member of ``group``, for ``with gapless.blocking.join("orders") as group:``.

    Args:
        group: The name of the group, the same for all members.
        timeout: How long joining may take; by default as long as it takes.
        discover: Where to look for members: a discovery URL (docs/discovery.md) or a
            ``Discovery``. The default is multicast, and a directory of this user on one machine.
        seeds: Members to contact, as ``"host:port"``, beside those of ``discover``.
        transport: ``"auto"`` (multicast where that works, else a copy to each member),
            ``"multicast"``, ``"mesh"``, ``"tcp"``, or an open transport.
        config: A ``Config``, settings by name (``{"capacity": 64}``), or the path of a TOML file.
        display_name: The name of this member for people: in its logs, events, traces and
            snapshots. The default is the durable name, or host, process id and a number. It need
            not be unique. It is not sent to other members, except in an answer to ``snapshot``:
            others call this member by its durable name or its locator until they request one.
        durable_name: Makes the member durable under this name (docs/durable.md).
        state: An object with ``get_state() -> bytes`` and ``set_state(bytes)``, or a pair of such
            functions.
        listen: False for a member that only sends; received messages are dropped.
        rejoin: False to end after an expulsion instead of joining again.
        host: The local address to use.
        ports: The ports to try; by default the first free one from 7800 on.
        node: The 64-bit id of this member; by default random.
        resume: For a durable member: the highest seqno of each sender that it has.
        stores: For a durable member: acknowledge only what ``confirm_stored`` reports.
        trace: A folder to record a trace in, or a ``Recorder`` (docs/traces.md).
        trace_mode: ``"full"`` (the default), ``"sampled"`` or ``"sampled:N"``.
        name: Deprecated name of ``durable_name``.

    Raises:
        ConfigError: an option has an impossible value.
    """
    options: dict[str, Any] = {**locals()}  # every parameter, by its name
    return Group(MemberOptions(**options))


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__"])

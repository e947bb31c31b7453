"""The asyncio API: ``async with gapless.join("orders") as group:`` (docs/channel.md).

:mod:`gapless.blocking` is its twin for threads; group/ holds what both share, this module only how
asyncio waits. The protocol thread handles incoming traffic, so blocking the event loop slows the
program but never gets its member expelled. The event loop itself sends, once a round. Any loop of
the process may use a group.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakSet

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
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
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

MAX_CONCURRENT_REQUESTS = 256
"""Maximum number of requests that ``serve`` handles at the same time."""
YIELD_EVERY = 64
"""Number of messages after which a reader yields to other tasks."""


async def run_steps(steps: Steps[_T]) -> _T:
    """Run steps, awaiting each."""
    try:
        wait = next(steps)
        while True:
            try:
                result = await _await_future(wait)
            except BaseException as error:  # noqa: BLE001 - the steps handle the error
                wait = steps.throw(error)
            else:
                wait = steps.send(result)
    except StopIteration as done:
        return cast("_T", done.value)


async def _await_future(wait: Wait) -> Any:
    future = wait.future
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        future.add_done_callback(partial(_notify_waiter, loop, waiter, get_ident()))
        if wait.until_ns is None:
            await waiter
        else:
            async with asyncio.timeout(wait.remaining_s()):
                await waiter
    return future.result()


def _notify_waiter(
    loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], thread: int, _: Future[Any]
) -> None:
    if get_ident() == thread:
        _wake(waiter)  # this loop completed the future itself
        return
    try:
        loop.call_soon_threadsafe(_wake, waiter)
    except RuntimeError:
        log.debug("an event loop was closed while a call waited in it")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class LoopFlushScheduler:
    """Flushes the sends of one round of an event loop together, in the thread of that loop.

    Tasks that send in the same round share frames, and none of them waits for another thread.
    """

    def __init__(self) -> None:
        self._scheduled: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def __call__(self, flush: Callable[[], None]) -> None:
        """Schedule ``flush`` at the end of the present round, once."""
        loop = asyncio.get_running_loop()
        if loop not in self._scheduled:
            self._scheduled.add(loop)
            loop.call_soon(self._flush, loop, flush)

    def _flush(self, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        self._scheduled.discard(loop)
        flush()


class Receipt(ReceiptBase):
    """The receipt of a send: its seqnos, and whether it was delivered."""

    async def delivered(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until every member, also absent durable ones, has delivered the messages.

        Raises:
            LocalProtocolError: the mode is neither ``acknowledged`` nor ``out-of-band``.
            UndeliveredError: a member will never deliver them.
            TimedOutError: ``timeout`` passed.
        """
        await run_steps(self._delivered(timeout))


class Request(IncomingRequest):
    """A request of another member: answer it with ``reply`` or ``fail``."""

    async def reply(self, payload: Payload = b"") -> None:
        """Answer the request."""
        await run_steps(self._answer(payload))

    async def fail(self, error: BaseException) -> None:
        """Answer with an error: ``request`` raises RequestError at the other member."""
        await run_steps(self._answer(None, error))


class Group(GroupBase):
    """One member of one group; made by :func:`join`, and a member inside ``async with``."""

    @staticmethod
    def _flush_scheduler() -> LoopFlushScheduler:
        return LoopFlushScheduler()

    def __init__(self, options: MemberOptions) -> None:
        super().__init__(options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = 0

    # Joining and leaving

    async def open(self) -> Self:
        """Join the group; ``async with`` does this."""
        await run_steps(self._session.open(deadline_ns(self._session.options.timeout)))
        return self

    async def close(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Leave the group; pending calls raise ClosedError.

        Accepted messages are retransmitted until acknowledged, or until ``timeout`` or the setting
        ``leave_timeout``.
        """
        for task in self._tasks:
            task.cancel()
        await run_steps(
            self._session.close(None if timeout is None else duration_ns(timeout) / NS_PER_S)
        )

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else ERROR_CLOSE_TIMEOUT_S)

    # Sending

    async def send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        timeout: Duration | None = None,  # noqa: ASYNC109
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Send a message to the group, or to one member; wait for room in the window.

        When this returns, the message has its seqno and was sent. If it is cancelled or times out
        before that, it was not sent and leaves no gap. ``loopback`` overrides the setting whether
        the sender receives it too; ``headers`` travel beside the payload.

        Raises:
            TimedOutError: the window had no room within ``timeout``.
            DepartedError: the member ``to`` is not in the view.
            ClosedError: this member has left.
        """
        own = self._session
        is_plain = (
            mode == DeliveryMode.ORDERED
            and timeout is None
            and headers is None
            and to is None
            and loopback is None
        )
        if is_plain:
            receipt = Receipt(own, None, 1)
            ran_turn = own.send_lone(payload, receipt, None, None)
            if ran_turn is not None:
                if ran_turn:
                    await asyncio.sleep(0)  # a task that sends without a pause lets other tasks run
                return receipt
        receipt = await self.send_many(
            (payload,), to, mode=mode, timeout=timeout, loopback=loopback, headers=headers
        )
        if is_plain:
            own.note_lone_send()
        return receipt

    async def send_many(
        self,
        payloads: Iterable[Payload],
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        timeout: Duration | None = None,  # noqa: ASYNC109
        loopback: bool | None = None,
        headers: AnyHeaders | None = None,
    ) -> Receipt:
        """Send messages in this order, faster than one by one.

        ``headers`` are those of all messages, or one mapping for each.

        Raises:
            TimedOutError: ``timeout`` passed; its ``accepted`` is the number of messages sent.
        """
        sent = await run_steps(
            self._session.send(payloads, to, mode, timeout, loopback=loopback, headers=headers)
        )
        assert sent is not None
        return make_receipt(Receipt, self._session, sent)

    async def try_send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Receipt | None:
        """Send a message if the window has room now; None if it has not."""
        sent = await run_steps(
            self._session.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else make_receipt(Receipt, self._session, sent)

    # Receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; asking for it marks the previous one as consumed."""
        self._taken += 1
        if self._taken % YIELD_EVERY == 0:
            await asyncio.sleep(0)  # other tasks run even if messages never end
        message = self._session.try_next_message() or await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: Duration | None = None) -> Message | None:  # noqa: ASYNC109
        """Return the next message; None after this member has left.

        Raises:
            TimedOutError: no message arrived within ``timeout``.
        """
        return cast(
            "Message | None",
            await run_steps(
                self._session.receive(self._session.inbox.next_item, deadline_ns(timeout))
            ),
        )

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches: messages of one sender that arrived together."""
        own = self._session
        while (found := await run_steps(own.receive(own.inbox.next_batch))) is not None:
            yield cast("Batch", found)

    async def events(self) -> AsyncIterator[Message | GroupEvent]:
        """Iterate over messages and events (:mod:`gapless.events`), in their order."""
        while (found := await self.receive_event()) is not None:
            yield found

    async def receive_event(self, timeout: Duration | None = None) -> Message | GroupEvent | None:  # noqa: ASYNC109
        """Return the next message or event; None after this member has left.

        Raises:
            TimedOutError: nothing arrived within ``timeout``.
        """
        return await run_steps(
            self._session.receive(
                self._session.inbox.next_item, deadline_ns(timeout), all_events=True
            )
        )

    async def wait_for_members(self, count: int, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until the view has at least ``count`` members, this one included."""
        await run_steps(self._session.wait_for_member_count(count, deadline_ns(timeout)))

    async def wait_for_member(self, name: str, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until a durable member ``name`` belongs to the group.

        From then on messages are retained for it while it is absent.
        """
        await run_steps(self._session.wait_for_member(name, deadline_ns(timeout)))

    async def receive_batch(self, timeout: Duration | None = None) -> Batch | GroupEvent | None:  # noqa: ASYNC109
        """Return the next batch or event; None after this member has left.

        Asking for the next batch marks the previous one as consumed.

        Raises:
            TimedOutError: nothing arrived within ``timeout``.
        """
        return cast(
            "Batch | GroupEvent | None",
            await run_steps(
                self._session.receive(
                    self._session.inbox.next_batch, deadline_ns(timeout), all_events=True
                )
            ),
        )

    # Requests

    async def request(self, payload: Payload, to: To, *, timeout: Duration | None = 30.0) -> bytes:  # noqa: ASYNC109
        """Send a request to a member, and return its answer.

        Raises:
            DepartedError: the member left before it answered.
            RequestError: the member answered with an error.
            TimedOutError: no answer arrived within ``timeout``.
        """
        return await run_steps(self._session.request(payload, to, timeout))

    async def requests(self) -> AsyncIterator[Request]:
        """Iterate over the requests of other members."""
        async for request in _requests(self._session):
            yield request

    def serve(self, handler: Callable[[Request], Any | Awaitable[Any]]) -> Callable[[Request], Any]:
        """Answer requests with the result of ``handler``, or with the error that it raises."""
        task = asyncio.get_running_loop().create_task(_serve(self._session, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handler

    # Diagnostics

    async def expel(self, member: To) -> None:
        """Ask the coordinator to evict a live member.

        It rejoins as a new incarnation unless it joined with ``rejoin=False``. The coordinator and
        a member of a group of two cannot be expelled.
        """
        await run_steps(self._session.expel(member))

    async def snapshot(
        self,
        of: To | None = None,
        *,
        timeout: Duration | None = 30.0,  # noqa: ASYNC109
    ) -> MemberSnapshot:
        """Return a snapshot of this member, or of another; ``print(snapshot)`` explains it.

        Its ``health``, ``blockers``, ``streams``, ``peers`` and ``counters`` answer whether the
        member works, and who it waits for (docs/metrics.md). Another member answers even if its
        application hangs.

        Raises:
            TimedOutError: the other member did not answer within ``timeout``.
            DepartedError: the other member is not in the view.
        """
        return await run_steps(self._session.snapshot(of, timeout))


async def _requests(core: GroupSession) -> AsyncIterator[Request]:
    while (found := await run_steps(core.receive(core.inbox.next_request))) is not None:
        yield Request(core, cast("RequestFrame", found))


async def _serve(core: GroupSession, handler: Callable[[Request], Any]) -> None:
    """Handle requests concurrently until the group is closed."""
    room = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
    async with asyncio.TaskGroup() as tasks:
        try:
            async for request in _requests(core):
                await room.acquire()
                tasks.create_task(_handle(request, handler)).add_done_callback(
                    lambda _: room.release()
                )
        except GaplessError as error:
            log.debug("no more requests: %s", error)


async def _handle(request: Request, handler: Callable[[Request], Any]) -> None:
    try:
        result = handler(request)
        if inspect.isawaitable(result):
            result = await result
        if not request._answered:
            await request.reply(result)
    except DepartedError:
        log.debug("%s left before its request was answered", request._session.label(request.sender))
    except Exception as error:  # noqa: BLE001 - the error of a handler is the answer to its request
        sender = request._session.label(request.sender)
        log.warning("a request of %s failed", sender, exc_info=error)
        if not request._answered:
            await request.fail(error)


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
    """Return a member of ``group``, for ``async with gapless.join("orders") as group:``.

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

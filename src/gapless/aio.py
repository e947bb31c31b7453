"""The group for asyncio: ``async with gapless.join("orders") as group:``. docs/channel.md shows all of it.

A face of one handle, like blocking.py: what is done stands in face/, here is only how asyncio
waits. What comes is seen to by the protocol thread, so a program that blocks its event loop is
slow, and nothing worse; what is sent by the loop itself, once a round. Any loop of the process may
use a group.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast
from weakref import WeakSet

from gapless.delivery_mode import DeliveryMode, DeliveryModeName
from gapless.errors import DepartedError, GaplessError
from gapless.group.base import GroupBase, IncomingRequest, ReceiptBase, make_receipt
from gapless.group.join_options import JoinOptions
from gapless.group.message import Batch, Message
from gapless.group.session import ERROR_CLOSE_TIMEOUT_S, Steps, Wait
from gapless.group.timeouts import Duration, deadline_ns, duration_ns
from gapless.logger import log
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from concurrent.futures import Future
    from typing import Self

    from gapless.group.headers import Headers
    from gapless.group.health import Explanation, Health
    from gapless.group.inbox import GroupEvent
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import AnyHeaders, GroupSession, Payload, To
    from gapless.metrics.prometheus import MemberSnapshot

_T = TypeVar("_T")

MAX_CONCURRENT_REQUESTS = 256
"""Requests that ``on_request`` works on at the same time."""
YIELD_EVERY = 64
"""After so many messages in a row a reader lets other tasks have their turn."""


async def run_steps(steps: Steps[_T]) -> _T:
    """Carry out steps, awaiting each."""
    try:
        wait = next(steps)
        while True:
            try:
                result = await _await_future(wait)
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
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
        _wake(waiter)  # it was this loop that saw to it
        return
    try:
        loop.call_soon_threadsafe(_wake, waiter)
    except RuntimeError:
        log.debug("a loop was closed while something waited in it")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class LoopFlushScheduler:
    """Lets the sends of one round of an event loop leave together, at its end, in the thread of that loop.

    So many tasks that send at the same time share frames, and none of them waits for another
    thread.
    """

    def __init__(self) -> None:
        self._scheduled: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def __call__(self, see_to: Callable[[], None]) -> None:
        """Plan to see to what was sent, once a round."""
        loop = asyncio.get_running_loop()
        if loop not in self._scheduled:
            self._scheduled.add(loop)
            loop.call_soon(self._flush, loop, see_to)

    def _flush(self, loop: asyncio.AbstractEventLoop, see_to: Callable[[], None]) -> None:
        self._scheduled.discard(loop)
        see_to()


class Receipt(ReceiptBase):
    """What was sent."""

    async def delivered(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until every member has delivered it; only for acknowledged and out-of-band messages.

        Durable members that are away are waited for too. Raises UndeliveredError if that can never
        be, and TimedOutError after ``timeout``.
        """
        await run_steps(self._delivered(timeout))


class Request(IncomingRequest):
    """What another member asks: answer it with ``reply``, or say with ``fail`` why not."""

    async def reply(self, payload: Payload = b"") -> None:
        """Answer."""
        await run_steps(self._answer(payload))

    async def fail(self, error: BaseException) -> None:
        """Let ``request`` raise a RequestError there."""
        await run_steps(self._answer(None, error))


class Group(GroupBase):
    """One member of one group; made by :func:`join`, and a member inside ``async with``."""

    @staticmethod
    def _flush_scheduler() -> LoopFlushScheduler:
        return LoopFlushScheduler()

    def __init__(self, group: str, **options: Unpack[JoinOptions]) -> None:
        super().__init__(group, **options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = 0

    # Coming and going

    async def open(self) -> Self:
        """Come into the group; ``async with`` does this."""
        await run_steps(self._session.open(deadline_ns(self._timeout)))
        return self

    async def close(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Leave: what was accepted is brought to its end, within ``timeout`` or ``leave_timeout``; what waits ends."""
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
        """Send a message to all, or to one member; wait for room, first come, first served.

        When this returns the message has its number and is on its way, and will not be dropped.
        Cancelled or timed out before that, it was not sent, and leaves no gap. ``loopback`` says
        whether the sender gets it too, ``headers`` what is said of it beside its payload.
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
                    await asyncio.sleep(0)  # a task that sends without a pause lets others run
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
        """Send messages in this order, which is faster than one by one; with headers for all, or for each.

        Out of time, it raises a TimedOutError whose ``accepted`` says how many were sent.
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
        """Send a message if there is room now; None if there is not."""
        sent = await run_steps(
            self._session.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else make_receipt(Receipt, self._session, sent)

    # Receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; coming back for more says that this one is done with."""
        self._taken += 1
        if self._taken % YIELD_EVERY == 0:
            await asyncio.sleep(0)  # where messages never end, other tasks have their turn too
        message = self._session.try_next_message() or await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: Duration | None = None) -> Message | None:  # noqa: ASYNC109
        """Return the next message; None when this member has left. Raises TimedOutError after ``timeout``."""
        return cast(
            "Message | None",
            await run_steps(
                self._session.receive(self._session.inbox.next_item, deadline_ns(timeout))
            ),
        )

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over messages many at a time: those of one sender that came together."""
        own = self._session
        while (found := await run_steps(own.receive(own.inbox.next_batch))) is not None:
            yield cast("Batch", found)

    async def events(self) -> AsyncIterator[Message | GroupEvent]:
        """Iterate over messages, changes of the view and whatever else happens, in the order in which it does."""
        while (found := await self.next_event()) is not None:
            yield found

    async def next_event(self, timeout: Duration | None = None) -> Message | GroupEvent | None:  # noqa: ASYNC109
        """Return the next message or event; None when this member has left. Raises TimedOutError after ``timeout``."""
        return await run_steps(
            self._session.receive(
                self._session.inbox.next_item, deadline_ns(timeout), all_events=True
            )
        )

    async def wait_for_members(self, count: int, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until the view has at least ``count`` members, this one included."""
        await run_steps(self._session.wait_for_member_count(count, deadline_ns(timeout)))

    async def wait_for(self, name: str, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Wait until a durable member of this name belongs to the group; from then on its place is kept for it."""
        await run_steps(self._session.wait_for_member(name, deadline_ns(timeout)))

    async def next_batch(self, timeout: Duration | None = None) -> Batch | GroupEvent | None:  # noqa: ASYNC109
        """Return the next messages of one sender, or event; None when this member has left.

        Coming back for more says that these are done with. Raises TimedOutError after ``timeout``.
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
        """Ask a member, and return its answer.

        Raises DepartedError if it leaves before it has answered, RequestError if it could not do
        what was asked, and TimedOutError after ``timeout``.
        """
        return await run_steps(self._session.request(payload, to, timeout))

    async def requests(self) -> AsyncIterator[Request]:
        """Iterate over what others ask this member."""
        async for request in _requests(self._session):
            yield request

    def on_request(
        self, handler: Callable[[Request], Any | Awaitable[Any]]
    ) -> Callable[[Request], Any]:
        """Answer requests with what ``handler`` returns, or awaits to; what it raises is told to whoever asked."""
        task = asyncio.get_running_loop().create_task(_serve(self._session, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handler

    # Everything else

    async def expel(self, member: To) -> None:
        """Ask for a view without ``member``, though it lives; it comes back as a new one, unless it may not.

        Half of a group cannot be expelled, nor its coordinator, the first member of the view.
        """
        await run_steps(self._session.expel(member))

    async def explain(self) -> Explanation:
        """Return who holds the window, since when, and what is missing from whom; made to be printed."""
        return await run_steps(self._session.explain())

    async def health(self) -> Health:
        """Return whether things go as they should, and what does not."""
        return await run_steps(self._session.health())

    async def stats(self) -> dict[str, int]:
        """Return every figure of this member by its name: what it has counted, and how full its windows are."""
        return await run_steps(self._session.stats())

    async def look(
        self,
        of: To | None = None,
        *,
        timeout: Duration | None = 30.0,  # noqa: ASYNC109
    ) -> MemberSnapshot:
        """Return how this member stands, or another one, whatever its application does (docs/metrics.md)."""
        return await run_steps(self._session.look(of, timeout))


async def _requests(core: GroupSession) -> AsyncIterator[Request]:
    while (found := await run_steps(core.receive(core.inbox.next_request))) is not None:
        yield Request(core, cast("RequestFrame", found))


async def _serve(core: GroupSession, handler: Callable[[Request], Any]) -> None:
    """Let a handler work on requests, many at a time; it does not keep the group from being closed."""
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
        if not request.answered:
            await request.reply(result)
    except DepartedError:
        log.debug("%s has left before its request was answered", request.sender)
    except Exception as error:  # noqa: BLE001 - a handler may do anything, and others wait for answers too
        log.warning("a request of %s failed", request.sender, exc_info=error)
        if not request.answered:
            await request.fail(error)


def join(group: str, **options: Unpack[JoinOptions]) -> Group:
    """Return a member of ``group``, to be used as ``async with gapless.join("orders") as group:``.

    Args:
        group: The name of the group, the same for all members.
        **options: What can be said besides:

            - ``timeout``: how long coming in may take; by default as long as it takes.
            - ``discover``: where others could be, as text (docs/discovery.md) or as a
              ``Discovery``; by default multicast, and on one machine a directory of this user.
            - ``transport``: ``"auto"`` (multicast where that works, else a copy to each member),
              ``"multicast"``, ``"mesh"``, ``"tcp"``, or a transport that is open already.
            - ``config``: a ``Config``, knobs by name (``{"capacity": 64}``), or the path of a TOML
              file.
            - ``name``: makes the member durable under this name (docs/durable.md); ``resume`` says
              what it has; with ``stores=True`` it acknowledges only what it has reported by
              ``stored``.
            - ``state``: an object with ``get_state() -> bytes`` and ``set_state(bytes)``, or a pair
              of such functions.
            - ``listen``: False for a member that only sends; what comes is let go.
            - ``rejoin``: False if a member that was expelled is to end instead of coming back.
            - ``host``, ``ports``: the address and the ports to use, by default the first that is
              free from 7800 on.
            - ``node``: the 64-bit id of this place; by default drawn at random.
            - ``trace``: a folder to record everything in that happens, or a ``Recorder``
              (docs/traces.md); with ``trace_mode`` ``"full"`` (the default), ``"sampled"`` or
              ``"sampled:N"``.
    """
    return Group(group, **options)

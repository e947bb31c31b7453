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

from gapless.delivery_mode import Mode
from gapless.errors import DepartedError, GaplessError
from gapless.group.base import Face, Question, Receipt, receipt
from gapless.group.join_options import JoinOptions
from gapless.group.message import Batch, Message
from gapless.group.session import HURRY_S, Steps, Wait
from gapless.group.timeouts import Time, deadline, duration_ns
from gapless.transport.base import log
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from concurrent.futures import Future
    from typing import Self

    from gapless.group.headers import Headers
    from gapless.group.health import Explanation, Health
    from gapless.group.inbox import Told
    from gapless.group.rpc import Asked
    from gapless.group.session import AnyHeaders, Core, Payload, To
    from gapless.metrics.prometheus import Look

_T = TypeVar("_T")

MOST_HANDLED = 256
"""Requests that ``on_request`` works on at the same time."""
BREATH = 64
"""After so many messages in a row a reader lets other tasks have their turn."""


async def drive(steps: Steps[_T]) -> _T:
    """Carry out steps, awaiting each."""
    try:
        wait = next(steps)
        while True:
            try:
                result = await _until(wait)
            except BaseException as error:  # noqa: BLE001 - the steps decide what becomes of it
                wait = steps.throw(error)
            else:
                wait = steps.send(result)
    except StopIteration as done:
        return cast("_T", done.value)


async def _until(wait: Wait) -> Any:
    future = wait.future
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        future.add_done_callback(partial(_ring, loop, waiter, get_ident()))
        if wait.until_ns is None:
            await waiter
        else:
            async with asyncio.timeout(wait.left_s()):
                await waiter
    return future.result()


def _ring(
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


class Rounds:
    """Lets the sends of one round of an event loop leave together, at its end, in the thread of that loop.

    So many tasks that send at the same time share frames, and none of them waits for another
    thread.
    """

    def __init__(self) -> None:
        self._planned: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def __call__(self, see_to: Callable[[], None]) -> None:
        """Plan to see to what was sent, once a round."""
        loop = asyncio.get_running_loop()
        if loop not in self._planned:
            self._planned.add(loop)
            loop.call_soon(self._see_to, loop, see_to)

    def _see_to(self, loop: asyncio.AbstractEventLoop, see_to: Callable[[], None]) -> None:
        self._planned.discard(loop)
        see_to()


class Sent(Receipt):
    """What was sent."""

    async def delivered(self, timeout: Time | None = None) -> None:  # noqa: ASYNC109
        """Wait until every member has delivered it; only for acknowledged and out-of-band messages.

        Durable members that are away are waited for too. Raises UndeliveredError if that can never
        be, and TimedOutError after ``timeout``.
        """
        await drive(self._delivered(timeout))


class Request(Question):
    """What another member asks: answer it with ``reply``, or say with ``fail`` why not."""

    async def reply(self, payload: Payload = b"") -> None:
        """Answer."""
        await drive(self._answer(payload))

    async def fail(self, error: BaseException) -> None:
        """Let ``request`` raise a RequestError there."""
        await drive(self._answer(None, error))


class Group(Face):
    """One member of one group; made by :func:`join`, and a member inside ``async with``."""

    @staticmethod
    def _later() -> Rounds:
        return Rounds()

    def __init__(self, group: str, **options: Unpack[JoinOptions]) -> None:
        super().__init__(group, **options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = 0

    # Coming and going

    async def open(self) -> Self:
        """Come into the group; ``async with`` does this."""
        await drive(self._own.open(deadline(self._timeout)))
        return self

    async def close(self, timeout: Time | None = None) -> None:  # noqa: ASYNC109
        """Leave: what was accepted is brought to its end, within ``timeout`` or ``leave_timeout``; what waits ends."""
        for task in self._tasks:
            task.cancel()
        await drive(self._own.close(None if timeout is None else duration_ns(timeout) / NS_PER_S))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else HURRY_S)

    # Sending

    async def send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: Mode | str = Mode.ORDERED,
        timeout: Time | None = None,  # noqa: ASYNC109
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Sent:
        """Send a message to all, or to one member; wait for room, first come, first served.

        When this returns the message has its number and is on its way, and will not be dropped.
        Cancelled or timed out before that, it was not sent, and leaves no gap. ``loopback`` says
        whether the sender gets it too, ``headers`` what is said of it beside its payload.
        """
        plain = (
            mode == Mode.ORDERED
            and timeout is None
            and headers is None
            and to is None
            and loopback is None
        )
        if (
            plain
            and (turned := self._own.lay(payload, receipt := Sent(self._own, None, 1))) is not None
        ):
            if turned:
                await asyncio.sleep(0)  # whoever sends without a pause lets others come to it
            return receipt
        sent = await self.send_many(
            (payload,), to, mode=mode, timeout=timeout, loopback=loopback, headers=headers
        )
        if plain:
            self._own.note_send()
        return sent

    async def send_many(
        self,
        payloads: Iterable[Payload],
        to: To | None = None,
        *,
        mode: Mode | str = Mode.ORDERED,
        timeout: Time | None = None,  # noqa: ASYNC109
        loopback: bool | None = None,
        headers: AnyHeaders | None = None,
    ) -> Sent:
        """Send messages in this order, which is faster than one by one; with headers for all, or for each.

        Out of time, it raises a TimedOutError whose ``accepted`` says how many were sent.
        """
        sent = await drive(
            self._own.send(payloads, to, mode, timeout, loopback=loopback, headers=headers)
        )
        assert sent is not None
        return receipt(Sent, self._own, sent)

    async def try_send(
        self,
        payload: Payload,
        to: To | None = None,
        *,
        mode: Mode | str = Mode.ORDERED,
        loopback: bool | None = None,
        headers: Headers | None = None,
    ) -> Sent | None:
        """Send a message if there is room now; None if there is not."""
        sent = await drive(
            self._own.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else receipt(Sent, self._own, sent)

    # Receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; coming back for more says that this one is done with."""
        self._taken += 1
        if self._taken % BREATH == 0:
            await asyncio.sleep(0)  # where messages never end, other tasks have their turn too
        message = self._own.next_at_hand() or await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: Time | None = None) -> Message | None:  # noqa: ASYNC109
        """Return the next message; None when this member has left. Raises TimedOutError after ``timeout``."""
        return cast(
            "Message | None",
            await drive(self._own.receive(self._own.inbox.next_item, deadline(timeout))),
        )

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over messages many at a time: those of one sender that came together."""
        own = self._own
        while (found := await drive(own.receive(own.inbox.next_batch))) is not None:
            yield cast("Batch", found)

    async def events(self) -> AsyncIterator[Message | Told]:
        """Iterate over messages, changes of the view and whatever else happens, in the order in which it does."""
        while (found := await self.next_event()) is not None:
            yield found

    async def next_event(self, timeout: Time | None = None) -> Message | Told | None:  # noqa: ASYNC109
        """Return the next message or event; None when this member has left. Raises TimedOutError after ``timeout``."""
        return await drive(
            self._own.receive(self._own.inbox.next_item, deadline(timeout), all_events=True)
        )

    async def wait_for_members(self, count: int, timeout: Time | None = None) -> None:  # noqa: ASYNC109
        """Wait until the view has at least ``count`` members, this one included."""
        await drive(self._own.gather(count, deadline(timeout)))

    async def wait_for(self, name: str, timeout: Time | None = None) -> None:  # noqa: ASYNC109
        """Wait until a durable member of this name belongs to the group; from then on its place is kept for it."""
        await drive(self._own.await_name(name, deadline(timeout)))

    async def next_batch(self, timeout: Time | None = None) -> Batch | Told | None:  # noqa: ASYNC109
        """Return the next messages of one sender, or event; None when this member has left.

        Coming back for more says that these are done with. Raises TimedOutError after ``timeout``.
        """
        return cast(
            "Batch | Told | None",
            await drive(
                self._own.receive(self._own.inbox.next_batch, deadline(timeout), all_events=True)
            ),
        )

    # Requests

    async def request(self, payload: Payload, to: To, *, timeout: Time | None = 30.0) -> bytes:  # noqa: ASYNC109
        """Ask a member, and return its answer.

        Raises DepartedError if it leaves before it has answered, RequestError if it could not do
        what was asked, and TimedOutError after ``timeout``.
        """
        return await drive(self._own.request(payload, to, timeout))

    async def requests(self) -> AsyncIterator[Request]:
        """Iterate over what others ask this member."""
        async for request in _requests(self._own):
            yield request

    def on_request(
        self, handler: Callable[[Request], Any | Awaitable[Any]]
    ) -> Callable[[Request], Any]:
        """Answer requests with what ``handler`` returns, or awaits to; what it raises is told to whoever asked."""
        task = asyncio.get_running_loop().create_task(_serve(self._own, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handler

    # Everything else

    async def expel(self, member: To) -> None:
        """Ask for a view without ``member``, though it lives; it comes back as a new one, unless it may not.

        Half of a group cannot be expelled, nor its coordinator, the first member of the view.
        """
        await drive(self._own.expel(member))

    async def explain(self) -> Explanation:
        """Return who holds the window, since when, and what is missing from whom; made to be printed."""
        return await drive(self._own.explain())

    async def health(self) -> Health:
        """Return whether things go as they should, and what does not."""
        return await drive(self._own.health())

    async def stats(self) -> dict[str, int]:
        """Return every figure of this member by its name: what it has counted, and how full its windows are."""
        return await drive(self._own.stats())

    async def look(self, of: To | None = None, *, timeout: Time | None = 30.0) -> Look:  # noqa: ASYNC109
        """Return how this member stands, or another one, whatever its application does (docs/metrics.md)."""
        return await drive(self._own.look(of, timeout))


async def _requests(core: Core) -> AsyncIterator[Request]:
    while (found := await drive(core.receive(core.inbox.next_request))) is not None:
        yield Request(core, cast("Asked", found))


async def _serve(core: Core, handler: Callable[[Request], Any]) -> None:
    """Let a handler work on requests, many at a time; it does not keep the group from being closed."""
    room = asyncio.Semaphore(MOST_HANDLED)
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

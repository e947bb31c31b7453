"""The inbox of a member: messages, events and requests between the handle and the application.

On reception (the runtime calls ``put`` in a turn): messages and events go into one queue, in the
order of the machine. Requests go into another queue, replies to the waiting calls. The inbox never
blocks and never runs code of the application.

On reading: asking for the next message marks the messages read before as consumed, many at a time.
Unread messages stay unconsumed: beyond ``unread_limit`` the machine delivers no more, and the
senders wait. Repeated rows of a sink are removed on reading and not on reception, so the record of
published rows matches the position of the reader.

On leaving: every message counts as consumed at once, so unread messages do not delay the end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gapless.errors import ClosedError
from gapless.events import (
    LOGGED_EVENTS,
    DiscoveryFailed,
    ExpelledFromGroup,
    GroupEvent,
    KeyMismatch,
    NoPeersFound,
    ViewChange,
    WindowBlocked,
)
from gapless.group.headers import (
    MARK,
    PLAIN,
    REQUEST,
    SNAPSHOT_REQUEST,
    WITH_HEADERS,
    Envelope,
    may_contain_wrapped,
    unwrap,
)
from gapless.group.member_names import LocalName, known_names
from gapless.group.message import Batch, Message
from gapless.group.public_events import public_event
from gapless.group.rpc import PendingRequests, RequestFrame
from gapless.group.sink_dedup import SinkDedup
from gapless.protocol.events import (
    Event,
    Expelled,
    StateReceived,
    StateWanted,
    ViewInstalled,
)
from gapless.protocol.ready import GROUP, OUT_OF_BAND, UNICAST, Delivery
from gapless.run import PRIVATE, Run
from gapless.transport.error_log import ErrorLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.identity import Address, View
    from gapless.runtime.delivery_queue import DeliveryItem
    from gapless.runtime.handle import MemberHandle

RuntimeEvent = Event | DiscoveryFailed | NoPeersFound | KeyMismatch
"""An event of the machine or of the runtime."""
InboxEvent = GroupEvent | StateWanted | StateReceived
"""An event for the application, or for the session, which exchanges the application's state."""


class Waiter(Protocol):
    """A caller that waits for the next item: a future, or the like of an event loop."""

    def done(self) -> bool:
        """Return whether the caller waits no longer."""
        ...

    def set_result(self, result: None, /) -> None:
        """Let the caller go on."""
        ...


class Inbox:
    """The queues between one handle and the application; any thread may use an inbox.

    Without ``listens`` messages are consumed on arrival, and only requests and replies are queued.
    With ``deduplicates`` a row published twice by a sink is read once; ``sink_dedup`` is the record
    of published rows.
    """

    def __init__(self, *, listens: bool, wants_state: bool, deduplicates: bool = True) -> None:
        self.view: View | None = None
        self.me: Address | None = None
        self._is_member = False
        self.names: dict[Address, str] = {}
        self.display_names: dict[Address, str] = {}
        self._local_name = LocalName()
        self._known_names: dict[Address, str] = {}
        self.incarnations = 1
        self.received = self.batches = self.full = 0
        self.ended = False
        self.ready: Future[None] = Future()
        self.pending = PendingRequests()
        self.problems = ErrorLog()
        self.sink_dedup = SinkDedup()
        self._deduplicates = deduplicates
        self._listens = listens
        self._wants_state = wants_state
        self._consumes_all = False
        self._handle: MemberHandle | None = None
        self._lock = threading.RLock()
        self._waiters: list[Waiter] = []
        self._early_items: list[DeliveryItem] = []
        self._items: deque[Delivery | Batch | InboxEvent] = deque()
        self._requests: deque[RequestFrame] = deque()
        self._deduplicated: deque[Batch] = deque()
        self.opened: deque[Message] = deque()
        """The messages of the batch that is read message by message.

        Any thread may pop the first message without the lock: a loop over messages needs no call
        of the inbox for each. The rest is done under the lock.
        """
        # How many messages were opened or given out in a batch since the last count as consumed:
        # more can be asked for only when all of them were popped.
        self._read = self._unconsumed = 0

    @property
    def unread(self) -> int:
        """Number of messages that have arrived and are not consumed."""
        return self._unconsumed

    @property
    def member_count(self) -> int:
        """Number of members of the view; 0 between two incarnations, and before the first view."""
        return len(self.view.members) if self._is_member and self.view is not None else 0

    def member_name(self, member: Address) -> str:
        """Return the name of a member of the present or the last view; "" if unknown."""
        names = self._known_names
        if self._handle is not None:
            names = {**names, **known_names(self._handle, self.display_names)}
        return names.get(member, "")

    # On reception

    def attach(self, handle: MemberHandle) -> None:
        """Set the handle, and take the items put before."""
        with self._lock:
            self._handle = handle
            self._local_name.register(handle.me, handle.display_name)
            early, self._early_items = self._early_items, []
            self.put(early)
            if handle.is_closed:
                self.end()

    def put(self, items: Sequence[DeliveryItem]) -> None:
        """Take items of the machine, in order."""
        with self._lock:
            # Read under the lock: ``attach`` sets the handle and takes the early items in one step.
            if (handle := self._handle) is None:
                self._early_items += items
                return
            for item in items:
                if type(item) is Delivery:
                    self._deliver(item, handle)
                else:
                    self._on_event(item, handle)  # type: ignore[arg-type]
            waiters, self._waiters = self._waiters, []
        complete(waiters)

    def end(self) -> None:
        """End the inbox: no item follows, and pending requests and calls fail."""
        with self._lock:
            if (handle := self._handle) is None or self.ended:
                return  # ``attach`` ends an inbox whose handle was closed before
            self.ended = True
            error = handle.error or ClosedError(
                f"this member of {handle.group} is closed: join again"
            )
            self.pending.fail_all(error)
            if not self.ready.done():
                self.ready.set_exception(error)
            waiters, self._waiters = self._waiters, []
        complete(waiters)

    def _deliver(self, delivery: Delivery, handle: MemberHandle) -> None:
        content = delivery.content
        count = content.count if isinstance(content, Run) else 1
        self._unconsumed += count
        self.received += count
        self.batches += 1
        if not (delivery.view or (isinstance(content, Run) and content.view)):
            # An unordered message does not name its view: it counts to the view of its arrival.
            number = 0 if self.view is None else self.view.id.number
            delivery = delivery._replace(view=number)
        # Requests and replies travel in messages to one member only.
        if delivery.kind != GROUP and is_private(delivery) and may_be_wrapped(delivery):
            for part in self._extract_requests(delivery):
                self._append(part, part.message_count)
        else:
            self._append(delivery, count)
        if self._unconsumed >= handle.config.unread_limit:
            self.full += 1

    def _append(self, delivery: Delivery, count: int) -> None:
        if self._listens:
            self._items.append(delivery)
        if not self._listens or self._consumes_all:
            self._consume(count)

    def _extract_requests(self, delivery: Delivery) -> list[Delivery]:
        """Handle the requests and replies of a delivery; return the other messages."""
        others: list[Delivery] = []
        for at, message in enumerate(delivery.messages()):
            envelope = unwrap(message)
            if envelope is None or envelope.kind in {PLAIN, WITH_HEADERS}:
                others.append(one_message(delivery, at, message))
            elif envelope.kind == REQUEST:
                frame = RequestFrame(delivery.origin, envelope.number, envelope.body)
                self._requests.append(frame)
            elif envelope.kind == SNAPSHOT_REQUEST:
                self._on_snapshot_request(delivery.origin, envelope.number)
            else:
                self._on_reply(delivery.origin, envelope)
        return others

    def _on_snapshot_request(self, sender: Address, number: int) -> None:
        from gapless.group import snapshot  # imported late: most members never need it

        assert self._handle is not None
        snapshot.reply_with_snapshot(self._handle, self, sender, number)
        self._consume(1)

    def _on_reply(self, sender: Address, envelope: Envelope) -> None:
        self.pending.on_reply(sender, envelope, self.member_name)
        self._consume(1)

    def _on_event(self, event: RuntimeEvent, handle: MemberHandle) -> None:
        item = self._convert(event, handle)
        if isinstance(item, StateWanted) and not self._wants_state:
            transfer = item.transfer
            handle.call(lambda member, now_ns: member.provide(transfer, None, now_ns))
        elif item is not None and not self._listens:
            self.log_event(item)
        elif (
            isinstance(item, WindowBlocked)
            and self._items
            and isinstance(self._items[-1], WindowBlocked)
        ):
            self._items[-1] = item  # it repeats while the window is blocked: keep the latest
        elif item is not None:
            self._items.append(item)
        if isinstance(event, Expelled):
            self.incarnations += 1
            self._is_member = False
            self.pending.fail_all(
                ClosedError(
                    "this member was expelled before the reply; the request may have been carried"
                    " out"
                )
            )
        if (
            isinstance(event, StateReceived if self._wants_state else ViewInstalled)
            and not self.ready.done()
        ):
            self.ready.set_result(None)

    def _convert(self, event: RuntimeEvent, handle: MemberHandle) -> InboxEvent | None:
        """Return the public form of an event of the machine; None if the reader gets none."""
        if isinstance(
            event, (StateWanted, StateReceived, DiscoveryFailed, NoPeersFound, KeyMismatch)
        ):
            return event
        if isinstance(event, ViewInstalled):
            return self._on_view(event.view, handle)
        names = {**self._known_names, **known_names(handle, self.display_names)}
        return public_event(event, names, time.monotonic_ns())

    def _on_view(self, view: View, handle: MemberHandle) -> ViewChange:
        before = () if self.view is None else self.view.members
        self.view, self.me, self._is_member = view, handle.me, True
        self._local_name.register(handle.me, handle.display_name)
        if (roster := handle.roster) is not None:
            self.names.update((entry.address, entry.name) for entry in roster.entries if entry.name)
        for names in (self.names, self.display_names):
            for gone in [one for one in names if one not in view and one not in before]:
                del names[gone]
        self.pending.on_view(view.members, self.member_name)
        names_before, self._known_names = self._known_names, known_names(handle, self.display_names)
        return ViewChange(
            view,
            joined=tuple(member for member in view if member not in before),
            left=tuple(member for member in before if member not in view),
            me=handle.me,
            names={**names_before, **self._known_names},  # members that left are named too
        )

    def log_event(self, event: InboxEvent) -> None:
        """Log an unread event, if important, unless the error that ends this member says more."""
        if self._handle is None or (isinstance(event, ExpelledFromGroup) and self._handle.error):
            return
        if isinstance(event, LOGGED_EVENTS):
            self.problems.add(f"event.{event.kind}", f"{self._handle.group}: {event}")

    # On reading

    def try_next_message(self) -> Message | None:
        """Return the message at the head of the queue; None if waiting or unwrapping is needed."""
        with self._lock:
            if not self.opened:
                head = self._items[0] if self._items and not self._deduplicated else None
                if type(head) is Delivery and type(run := head.content) is Run and run.count == 1:
                    # The ordinary case of one message: it is wrapped if it begins with the mark.
                    if run.payload.startswith(MARK):
                        return None
                    self._mark_consumed()
                    self._items.popleft()
                    self._read = 1
                    return Message(run.payload, 0, Batch(head, self.names))
                batch = None if head is None else self._head_batch()
                if batch is None or batch._may_be_wrapped():
                    return None
                self._mark_consumed()
                self._items.popleft()
                self._open(batch)
            try:
                return self.opened.popleft()
            except IndexError:
                return None  # another thread has popped the last one: the caller waits

    def _open(self, batch: Batch) -> None:
        """Prepare a batch to be read message by message."""
        assert not self.opened, "one batch is read at a time"
        self._read += len(batch)
        self.opened.extend(batch.messages())

    def _head_batch(self) -> Batch | None:
        """Return the batch at the head of the queue; None if the head is an event."""
        head = self._items[0]
        if type(head) is Delivery:
            head = self._items[0] = Batch(head, self.names)
        return head if type(head) is Batch else None

    def try_next_batch(self) -> Batch | None:
        """Return the batch at the head of the queue; None if waiting or unwrapping is needed."""
        with self._lock:
            if self.opened or self._deduplicated or not self._items:
                return None
            batch = self._head_batch()
            if batch is None or batch._may_be_wrapped():
                return None
            self._mark_consumed()
            self._items.popleft()
            self._read = len(batch)
            return batch

    def mark_consumed(self) -> bool:
        """Return whether more can be read; if not, mark the messages read before as consumed."""
        with self._lock:
            if self.is_readable():
                return True
            self._mark_consumed()
            return False

    def _mark_consumed(self) -> None:
        if self._read:
            read, self._read = self._read, 0
            self._consume(read)

    def is_readable(self) -> bool:
        """Return whether an item can be read, or the inbox has ended."""
        return bool(self.opened or self._items or self._deduplicated or self.ended)

    def next_item(self) -> Message | InboxEvent | Future[None]:
        """Return the next message or event; without any a future that completes with the next."""
        with self._lock:
            while True:
                if not self.opened:
                    item = self._next()
                    if not isinstance(item, Batch):
                        return item
                    self._open(item)
                with suppress(IndexError):  # another thread has popped the last one
                    return self.opened.popleft()

    def next_batch(self) -> Batch | InboxEvent | Future[None]:
        """Return the next batch or event; without any a future that completes with the next."""
        with self._lock:
            if (rest := self._pop_rest()) is not None:
                return rest
            item = self._next()
            self._read += len(item) if isinstance(item, Batch) else 0
            return item

    def _pop_rest(self) -> Batch | None:
        """Remove and return the rest of the batch that is read message by message."""
        rest: list[Message] = []
        with suppress(IndexError):
            while True:
                rest.append(self.opened.popleft())
        if not rest:
            return None
        start, end = rest[0]._at, rest[-1]._at
        if end - start >= len(rest):
            # Another thread has popped a message in between: the others follow in a later batch.
            count = next(at for at, message in enumerate(rest) if message._at != start + at)
            self.opened.extendleft(reversed(rest[count:]))
            end = rest[count - 1]._at
        return Batch(part_of(rest[0]._batch._delivery, start, end), self.names)

    def _next(self) -> Batch | InboxEvent | Future[None]:
        """Mark the items read before as consumed; return the next batch, event or future."""
        self._mark_consumed()
        while not self._deduplicated:
            if not self._items:
                return self._new_waiter()
            head = self._items.popleft()
            item = Batch(head, self.names) if isinstance(head, Delivery) else head
            if not (
                isinstance(item, Batch)
                and self._deduplicates
                and item._delivery.kind == GROUP
                and item._may_be_wrapped()
            ):
                return item
            self._deduplicate(item)
        return self._deduplicated.popleft()

    def _deduplicate(self, batch: Batch) -> None:
        """Queue a batch without the repeated rows of a sink."""
        new_ranges = self.sink_dedup.new_ranges(batch.payload, batch._delivery.messages)
        if new_ranges is None:
            self._deduplicated.append(batch)
            return
        self._consume(len(batch) - sum(last - first + 1 for first, last in new_ranges))
        self._deduplicated.extend(
            Batch(part_of(batch._delivery, *part), self.names) for part in new_ranges
        )

    def next_request(self) -> RequestFrame | Future[None]:
        """Return the next request; a future if there is none."""
        with self._lock:
            if not self._requests:
                return self._new_waiter()
            self._consume(1)
            return self._requests.popleft()

    def take_state(self) -> StateReceived | None:
        """Remove and return the application state received by this member, if any."""
        with self._lock:
            found = next((item for item in self._items if isinstance(item, StateReceived)), None)
            if found is not None:
                self._items.remove(found)
            return found

    def wait_unless(self, holds: Callable[[], bool]) -> Future[None] | None:
        """Return None if ``holds()``, otherwise a future that completes with the next item."""
        with self._lock:
            return None if holds() else self._new_waiter()

    def add_waiter(self, waiter: Waiter) -> bool:
        """Let ``waiter`` complete with the next item; return False if an item can be read now."""
        with self._lock:
            if self.is_readable():
                return False
            self._add_waiter(waiter)
            return True

    def _add_waiter(self, waiter: Waiter) -> None:
        self._waiters = [one for one in self._waiters if not one.done()]
        self._waiters.append(waiter)

    def _new_waiter(self) -> Future[None]:
        """Return a future that completes with the next item; cancel the future to stop waiting."""
        waiter: Future[None] = Future()
        if self.ended:
            waiter.set_result(None)
        else:
            self._add_waiter(waiter)
        return waiter

    def _consume(self, messages: int) -> None:
        """Count messages as consumed, and report the count to the machine when due."""
        consumed = min(messages, self._unconsumed)
        self._unconsumed -= consumed
        handle = self._handle
        if consumed and handle is not None and not self.ended and handle.add_consumed(consumed):
            handle.report_consumed()

    # On leaving

    def log_unread_events(self) -> None:
        """Log the important events left unread at the end."""
        with self._lock:
            for item in self._items:
                if not isinstance(item, (Delivery, Batch)):
                    self.log_event(item)

    def consume_all(self) -> None:
        """From now on count every message as consumed on arrival."""
        with self._lock:
            if not self._consumes_all:
                self._consumes_all = True
                self._consume(self._unconsumed)


def complete(waiters: Sequence[Waiter]) -> None:
    """Complete the futures of waiting callers."""
    for waiter in waiters:
        with suppress(InvalidStateError):  # its caller timed out meanwhile
            waiter.set_result(None)


def is_private(delivery: Delivery) -> bool:
    """Return whether the messages are for this member alone, and were sent reliably."""
    content = delivery.content
    alone = isinstance(content, Run) and content.flags & PRIVATE != 0
    return delivery.kind == UNICAST or (delivery.kind == OUT_OF_BAND and alone)


def may_be_wrapped(delivery: Delivery) -> bool:
    """Return whether a message of the delivery may be wrapped."""
    content = delivery.content
    return (
        may_contain_wrapped(content.buffer, content.lengths)
        if isinstance(content, Run)
        else may_contain_wrapped(content)
    )


def one_message(delivery: Delivery, at: int, payload: bytes) -> Delivery:
    """Return the message at ``at`` of a delivery as a delivery, with ``payload``."""
    content = delivery.content
    if not isinstance(content, Run):
        return delivery._replace(content=payload)
    seqno = delivery.first + at
    run = Run.of(content.origin, seqno, (payload,), content.flags, content.view, content.sent_ns)
    return delivery._replace(first=seqno, last=seqno, content=run)


def part_of(delivery: Delivery, start: int, end: int) -> Delivery:
    """Return the messages ``start .. end`` of a delivery, counted from 0."""
    content = delivery.content
    if not isinstance(content, Run):
        return delivery
    first, last = delivery.first + start, delivery.first + end
    return delivery._replace(first=first, last=last, content=content.part(first, last))

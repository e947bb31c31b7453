"""The session of one member: what a caller can do with a group, written once for both APIs.

An operation that may wait is a generator of steps. It yields a :class:`Wait`, and receives the
result of its future, or the error that occurred meanwhile (a timeout, a cancellation, Ctrl-C). The
asyncio API awaits each step and the threaded API blocks at each; neither knows the operation.

On sending: if a waiting send is cancelled, the machine gives it up and no gap remains. If the group
expels this member meanwhile, the send is repeated by the next incarnation. If the member closes,
the send raises ClosedError.

On closing: pending calls raise ClosedError, and accepted messages are retransmitted until they are
acknowledged or the timeout passes. Then the group installs a view without this member.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gapless.delivery_mode import DeliveryMode, DeliveryModeName
from gapless.errors import (
    ClosedError,
    DepartedError,
    GaplessError,
    LocalProtocolError,
    PayloadError,
    TimedOutError,
    UndeliveredError,
)
from gapless.events import GroupEvent
from gapless.fork_guard import ProcessToken
from gapless.group.headers import (
    ERROR_REPLY,
    MARK,
    REPLY,
    REQUEST,
    SNAPSHOT_REQUEST,
    Headers,
    attach_headers as join_headers,
    detach_headers as split_headers,
    wrap,
    wrap_all,
    wrap_plain,
)
from gapless.group.inbox import Inbox, InboxEvent
from gapless.group.message import Batch, Message
from gapless.group.rpc import RequestFrame
from gapless.group.sink_dedup import SinkDedup
from gapless.group.timeouts import Duration, deadline_ns
from gapless.identity import Address, member_label
from gapless.logger import log
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted, GivenUp, StateReceived, StateWanted, Unacknowledged
from gapless.run import LENGTH_BYTES
from gapless.runtime.reactor import remaining_s, wait_for_future
from gapless.runtime.send_requests import SendRequest, When
from gapless.units import format_duration
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, OUT_OF_BAND_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.group.join_options import MemberOptions
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.runtime.bundler import Bundle
    from gapless.runtime.handle import MemberHandle

_T = TypeVar("_T")

To = Address | str
"""A destination: the address of a member, such as ``message.sender``, or its durable name."""
Payload = bytes | bytearray | memoryview
"""The bytes of one message."""
AnyHeaders = Headers | Iterable[Headers]
"""The headers of all messages of a send, or one mapping for each message."""

ERROR_CLOSE_TIMEOUT_S = 1.0
"""Maximum duration of closing after an error in the application, such as Ctrl-C."""
PUBLISHED = "gapless-published"
"""The header of an application state that records which rows of sinks it contains."""
_MAX_REASON_CHARS = 1000
"""Maximum length of the error text in a reply."""


class Wait(NamedTuple):
    """The future that a step waits for, and the deadline at which TimeoutError is thrown."""

    future: Future[Any]
    until_ns: int | None = None

    def remaining_s(self) -> float | None:
        """Return the time until the deadline; None without one."""
        return remaining_s(self.until_ns)


Steps = Generator[Wait, Any, _T]
"""An operation that may wait; its result has type ``_T``."""


_ReceiptT = TypeVar("_ReceiptT", bound="ReceiptBase")


class ReceiptBase:
    """The receipt of a send of ``count`` messages with the seqnos ``first .. last`` (0: none)."""

    __slots__ = ("_accepted", "_bundled", "_request", "_session", "count")

    def __init__(
        self,
        session: GroupSession,
        accepted: Accepted | None,
        count: int,
        request: SendRequest | None = None,
    ) -> None:
        """Make a receipt; without ``accepted`` the seqno of a message is found on demand."""
        self._session = session
        self._request = request
        self._accepted = accepted
        self.count = count
        self._bundled: tuple[Bundle, int] | None = None

    @property
    def first(self) -> int:
        """The seqno of the first message."""
        return self._resolved().first

    @property
    def last(self) -> int:
        """The seqno of the last message."""
        return self._resolved().last

    def _resolved(self) -> Accepted:
        if self._accepted is None:
            self._accepted = self._session.resolve_bundled(self)
        return self._accepted

    def _delivered(self, timeout: Duration | None) -> Steps[None]:
        return self._session.delivered(self._request, timeout)

    def __repr__(self) -> str:
        mode = DeliveryMode.ORDERED if self._request is None else self._request.mode
        return f"<sent {self.first}..{self.last}, {mode}>"


def make_receipt(kind: type[_ReceiptT], session: GroupSession, request: SendRequest) -> _ReceiptT:
    """Return the receipt of an accepted send."""
    accepted: Any = request.result()
    return kind(session, accepted, len(request.payloads), request)


class _Untracked:
    """The receipt of a message whose seqno is never needed."""

    __slots__ = ("_accepted", "_bundled")

    _accepted: Accepted | None
    _bundled: tuple[Bundle, int] | None


class GroupSession:
    """One member of one group, as both APIs see it."""

    def __init__(
        self,
        options: MemberOptions,
        schedule_flush: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Prepare to join.

        The sending thread flushes each send at once, unless ``schedule_flush`` defers that.
        """
        self.options = options
        self._schedule_flush = schedule_flush
        self.inbox = Inbox(
            listens=options.listen,
            wants_state=options.state is not None,
            deduplicates=not options.stores,
        )
        self.closing = False
        self._handle: MemberHandle | None = None
        self._sending: set[SendRequest] = set()
        self._process = ProcessToken.current

    @property
    def handle(self) -> MemberHandle:
        """The handle of the member; it exists once the session is opened."""
        if self._handle is None or self._process is not ProcessToken.current:
            raise self._not_open_error()
        return self._handle

    def _not_open_error(self) -> GaplessError:
        self._check_process()
        return LocalProtocolError(
            f"not in {self.options.group} yet: use join(...) as a context manager,"
            " or open() it first"
        )

    @property
    def is_open(self) -> bool:
        """Whether this member is joining, in the group or leaving, and belongs to this process."""
        return self._handle is not None and not self._handle.is_closed and self.in_joining_process

    @property
    def stays_in_group(self) -> bool:
        """Whether this member is open and was not asked to leave."""
        return self.is_open and not self.closing

    @property
    def in_joining_process(self) -> bool:
        """Whether this is the process that joined, and not a fork of it."""
        return self._process is ProcessToken.current

    def _check_process(self) -> None:
        if self._process is not ProcessToken.current:
            raise ClosedError(
                f"this member of {self.options.group} belongs to the process that forked:"
                " join again in this one"
            )

    # Opening

    def open(self, until_ns: int | None) -> Steps[None]:
        """Join the group: when this returns there is a view, and the application state."""
        self._check_process()
        if self._handle is not None or self.closing:
            raise LocalProtocolError(
                f"this member of {self.options.group} was opened before: join again"
            )
        opening = in_thread(lambda: self.options.open(self.inbox))
        try:
            self._handle = yield Wait(opening)
            self.inbox.attach(self._handle)
            yield Wait(self.inbox.ready, until_ns)
            if (received := self.inbox.take_state()) is not None:
                self._take_state(received)
        except BaseException as error:
            self.closing = True
            opening.add_done_callback(_abandon)
            if isinstance(error, TimeoutError) and not isinstance(error, GaplessError):
                raise TimedOutError(
                    f"{self.options.group} could not be joined within the timeout"
                ) from None
            raise

    def _take_state(self, received: StateReceived) -> None:
        assert self.options.state is not None
        if received.provider is not None:
            headers, state = split_headers(received.state)
            if PUBLISHED in headers:
                self.inbox.sink_dedup = SinkDedup.decode(headers[PUBLISHED])
            self.options.state.set(state)
        elif self.inbox.view is not None and len(self.inbox.view.members) > 1:
            log.warning(
                "%s: no other member provided its state; a member provides it only if it reads",
                self.options.group,
            )

    def _give_state(self, wanted: StateWanted) -> None:
        assert self.options.state is not None
        state: bytes | None = None
        try:
            state = join_headers(as_payload(self.options.state.get()), self._state_headers())
        finally:
            self.handle.call(lambda member, now_ns: member.provide(wanted.transfer, state, now_ns))

    def _state_headers(self) -> Headers:
        """Return the headers of the own state: which rows of sinks it contains."""
        published = self.inbox.sink_dedup
        return {PUBLISHED: published.encode()} if published else {}

    # Sending

    def send(
        self,
        payloads: Iterable[Payload],
        to: To | None = None,
        mode: DeliveryMode | DeliveryModeName = DeliveryMode.ORDERED,
        timeout: Duration | None = None,
        *,
        wait: bool = True,
        loopback: bool | None = None,
        headers: AnyHeaders | None = None,
    ) -> Steps[SendRequest | None]:
        """Send messages; the result is None if ``wait`` is false and there was no room."""
        address = self.find(to)
        messages = as_payloads(payloads)
        if headers is not None:
            messages = Payloads.of_validated(with_headers(messages, headers))
        elif (wrapped := wrap_all(messages)) is not messages:
            messages = Payloads.of_validated(wrapped)
        return (
            yield from self._send(
                messages,
                address,
                DeliveryMode.of(mode),
                deadline_ns(timeout),
                wait=wait,
                loopback=loopback,
            )
        )

    def send_lone(
        self, payload: Payload, receipt: ReceiptBase, to: To | None, loopback: bool | None
    ) -> bool | None:
        """Send an ordered message without waiting; return whether this thread ran a turn.

        Return None if the message was not sent: then ``send`` it.
        """
        address = None if to is None else self.find(to)
        handle = self._handle
        if handle is None:
            raise self._not_open_error()
        if self.closing:
            return None
        if type(payload) is not bytes or payload.startswith(MARK):
            payload = wrap_plain(as_payload(payload))
        try:
            return handle.send_lone(
                payload,
                receipt,
                address,
                loopback=loopback,
                may_run=self._schedule_flush is None,
            )
        except LocalProtocolError as error:
            raise self._translate_error(error, address) from None

    def note_lone_send(self) -> None:
        """Note that a message to the group was sent by a request."""
        if self._handle is not None:
            self._handle.note_lone_send()

    def resolve_bundled(self, receipt: ReceiptBase) -> Accepted:
        """Return the seqno of a message that was sent in a bundle."""
        if receipt._bundled is None:
            # A query never overtakes a message: when it is answered, the bundle was sent.
            wait_for_future(self.handle.query(lambda _: None), None)
        assert receipt._bundled is not None
        bundle, index = receipt._bundled
        ticket, first, last = wait_for_future(bundle, None)
        seqno = first + index if last >= first else 0
        return Accepted(ticket, seqno, seqno)

    def _send(
        self,
        messages: Payloads,
        to: Address | None,
        mode: DeliveryMode,
        until_ns: int | None,
        *,
        wait: bool = True,
        loopback: bool | None = None,
    ) -> Steps[SendRequest | None]:
        start_ns = time.monotonic_ns()
        while True:
            if self.closing:
                raise self._closed()
            sent = SendRequest(
                messages, to, mode, wait=wait, deadline_ns=until_ns, loopback=loopback
            )
            if self._schedule_flush is None:
                self.handle.submit(sent, When.NOW)
            else:
                self.handle.submit(sent, When.LATER)
                self._schedule_flush(self.handle.flush)
            self._sending.add(sent)
            try:
                outcome = yield Wait(sent)
            except BaseException as error:  # noqa: BLE001 - any error ends the send, and is raised
                if not sent.done():
                    self.handle.cancel(sent)
                if sent.cancelled() and self.closing:
                    raise self._closed() from None
                raise self._translate_error(error, to) from None
            finally:
                self._sending.discard(sent)
            if isinstance(outcome, Accepted):
                return sent
            if not isinstance(outcome, GivenUp):
                return None
            if outcome.reason != "over" or outcome.accepted or not self.stays_in_group:
                raise self._given_up(outcome, len(messages), to, time.monotonic_ns() - start_ns)

    def _send_untracked(
        self, message: bytes, to: Address | None, mode: DeliveryMode, until_ns: int | None
    ) -> Steps[None]:
        """Send a message without a receipt."""
        if self._schedule_flush is None and not self.closing:
            try:
                if self.handle.send_lone(message, _Untracked(), to, mode) is not None:
                    return
            except LocalProtocolError as error:
                raise self._translate_error(error, to) from None
        yield from self._send(Payloads.of((message,)), to, mode, until_ns)

    def _translate_error(self, error: BaseException, to: Address | None) -> BaseException:
        """Return the public error for an error of the machine."""
        if type(error) is LocalProtocolError:
            if self.closing:
                return self._closed()
            if to is not None and (self.inbox.view is None or to not in self.inbox.view.members):
                return DepartedError(str(error))
        return error

    def _given_up(
        self, outcome: GivenUp, count: int, to: Address | None, after_ns: int
    ) -> GaplessError:
        sent = (
            f"; {outcome.accepted} of {count} messages were sent"
            if outcome.accepted
            else "; nothing was sent"
        )
        if outcome.reason == "timeout":
            took = format_duration(after_ns // 1_000_000 * 1_000_000)
            return TimedOutError(
                f"no room to send within {took}{sent}; snapshot() names who blocks the window",
                outcome.accepted,
            )
        if outcome.reason == "departed":
            return DepartedError(f"{self.label(to) if to else to} has left{sent}")
        return self._closed(sent)

    def _closed(self, more: str = "") -> GaplessError:
        error = None if self._handle is None else self._handle.error
        return error or ClosedError(
            f"this member of {self.options.group} is closed: join again{more}"
        )

    def delivered(self, sent: SendRequest | None, timeout: Duration | None) -> Steps[None]:
        """Wait until every receiver has delivered the messages of a send."""
        if sent is None or sent.delivered is None:
            mode = DeliveryMode.ORDERED if sent is None else sent.mode
            raise LocalProtocolError(
                f"delivery of {str(mode)!r} messages is not tracked; use mode='acknowledged'"
            )
        try:
            event = yield Wait(sent.delivered, deadline_ns(timeout))
        except GaplessError:
            raise
        except TimeoutError:
            raise TimedOutError(
                "not delivered by every member within the timeout; snapshot() names those that lag"
            ) from None
        if isinstance(event, Unacknowledged):
            members = ", ".join(map(self.label, event.members))
            raise UndeliveredError(
                f"the view or connection ended before {members} delivered the message",
                event.members,
            )

    def find(self, to: To | None) -> Address | None:
        """Return the address of a member of the view."""
        if to is None:
            return None
        view = self.inbox.view
        if isinstance(to, str):
            found = [member for member, name in self.inbox.names.items() if name == to]
            found = [member for member in found if view is not None and member in view.members]
            if not found:
                raise DepartedError(
                    f"no member of {self.options.group} has the durable name {to!r} now"
                )
            return max(found)
        if not isinstance(to, Address):
            raise LocalProtocolError(
                f"to={to!r}: expected an address, such as message.sender, or a durable name"
            )
        if view is None or to not in view.members:
            raise DepartedError(
                f"{self.label(to)} is not in {self.options.group}: send to a member of group.view"
            )
        return to

    # Receiving

    def try_next_message(self) -> Message | None:
        """Return the next message if it needs no waiting and no unwrapping."""
        if self._process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_message()

    def try_next_batch(self) -> Batch | None:
        """Return the next batch if it needs no waiting and no unwrapping."""
        if self._process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_batch()

    def wait_until_readable(self, until_ns: int | None) -> None:
        """Wait in this thread until there is something to read, or until the deadline."""
        if self._process is not ProcessToken.current:
            self._check_process()
        inbox, handle = self.inbox, self._handle
        if handle is not None and not inbox.mark_consumed():
            handle.reactor.wait_until(inbox.is_readable, until_ns, inbox.wait_unless)

    def receive(
        self,
        take: Callable[[], _T | InboxEvent | Future[None]],
        until_ns: int | None = None,
        *,
        all_events: bool = False,
    ) -> Steps[_T | GroupEvent | None]:
        """Return the next item of ``take``; None after the end.

        Without ``all_events`` events are logged and skipped.
        """
        while True:
            self._check_process()
            ended = self.inbox.ended
            item = take()
            if isinstance(item, Future):
                if ended:
                    if self._handle is not None and self._handle.error is not None:
                        raise self._handle.error
                    return None
                try:
                    yield from _wait_for_item(item, until_ns)
                except TimeoutError:
                    raise TimedOutError("no message arrived within the timeout") from None
            elif isinstance(item, StateWanted):
                self._give_state(item)
            elif isinstance(item, StateReceived):
                self._take_state(item)
            elif all_events or isinstance(item, (Message, Batch, RequestFrame)):
                return item
            else:
                self.inbox.log_event(item)  # type: ignore[arg-type]

    def wait_for_member_count(self, count: int, until_ns: int | None) -> Steps[None]:
        """Wait until the view has at least ``count`` members."""

        def are_present() -> bool:
            return self.inbox.view is not None and len(self.inbox.view) >= count

        while (waiter := self.inbox.wait_unless(are_present)) is not None:
            if not self.is_open:
                raise self._closed()
            try:
                yield from _wait_for_item(waiter, until_ns)
            except TimeoutError:
                present = 0 if self.inbox.view is None else len(self.inbox.view)
                raise TimedOutError(
                    f"{present} of {count} members of {self.options.group} are present"
                ) from None

    def wait_for_member(self, name: str, until_ns: int | None) -> Steps[None]:
        """Wait until the roster has a durable member ``name``, present or absent."""

        def belongs() -> bool:
            roster = self.handle.roster
            return roster is not None and any(
                entry.name == name for entry in (*roster.entries, *roster.absent)
            )

        while (waiter := self.inbox.wait_unless(belongs)) is not None:
            if not self.is_open:
                raise self._closed()
            try:
                yield from _wait_for_item(waiter, until_ns)
            except TimeoutError:
                raise TimedOutError(
                    f"no member of {self.options.group} has the durable name {name!r}"
                ) from None

    # Requests

    def request(self, payload: Payload, to: To, timeout: Duration | None) -> Steps[bytes]:
        """Send a request to a member, and return its reply."""
        address, until_ns = self.find(to), deadline_ns(timeout)
        assert address is not None
        return (
            yield from self._send_request(
                REQUEST, as_payload(payload), address, until_ns, DeliveryMode.ORDERED
            )
        )

    def _send_request(
        self, kind: int, body: bytes, address: Address, until_ns: int | None, mode: DeliveryMode
    ) -> Steps[bytes]:
        number, answer = self.inbox.pending.register(address)
        try:
            yield from self._send_untracked(wrap(kind, number, body), address, mode, until_ns)
            result: bytes = yield Wait(answer, until_ns)
        except GaplessError:
            raise
        except TimeoutError:
            raise TimedOutError(
                f"{self.label(address)} did not answer within the timeout; it may still act on it"
            ) from None
        finally:
            self.inbox.pending.forget(number)
        return result

    def answer(
        self, request: RequestFrame, payload: Payload | None, error: BaseException | None = None
    ) -> Steps[None]:
        """Reply to a request with a payload, or with an error.

        A reply that fits into one frame is sent out of band: the requesting member may read
        nothing else while it waits.
        """
        if error is not None:
            body = f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS].encode()
            message = wrap(ERROR_REPLY, request.number, body)
        else:
            message = wrap(REPLY, request.number, b"" if payload is None else as_payload(payload))
        overhead_bytes = ADDRESSED_HEADER_BYTES + OUT_OF_BAND_OVERHEAD_BYTES + LENGTH_BYTES
        fits = len(message) <= self.handle.config.max_frame_bytes - overhead_bytes
        address = self.find(request.sender)
        yield from self._send_untracked(
            message, address, DeliveryMode.OUT_OF_BAND if fits else DeliveryMode.ORDERED, None
        )

    # Everything else

    def expel(self, member: To) -> Steps[None]:
        """Ask the coordinator to evict ``member``."""
        address = self.find(member)
        assert address is not None

        def command(machine: Member, now_ns: int) -> Ready:
            if (
                len(machine.membership.members) <= 2
                or machine.membership.acting_coordinator == address
            ):
                raise LocalProtocolError(
                    f"{self.label(address)} cannot be expelled: it is the coordinator, or the"
                    " group has only two members"
                )
            return machine.expel(address, now_ns)

        yield Wait(self.handle.call(command))

    def snapshot(self, of: To | None, timeout: Duration | None) -> Steps[MemberSnapshot]:
        """Take a snapshot of this member, also when it is closed, or request one of another."""
        from gapless.group import snapshot  # imported late: most members never need it

        address, until_ns = self.find(of), deadline_ns(timeout)
        handle = self.handle
        if address is None or address == self.inbox.me:
            if not handle.is_closed:
                with suppress(ClosedError):  # the member may close meanwhile
                    request = snapshot.request_snapshot(handle, self.inbox)
                    found: MemberSnapshot = yield Wait(request, until_ns)
                    return found
            return snapshot.closed_snapshot(handle, self.inbox)
        # Out of band, because a member that is behind reads nothing else.
        answer = yield from self._send_request(
            SNAPSHOT_REQUEST, b"", address, until_ns, DeliveryMode.OUT_OF_BAND
        )
        decoded = snapshot.decode_snapshot(answer)
        self.inbox.display_names[address] = decoded.display_name
        return decoded

    def label(self, member: Address) -> str:
        """Return a member for people: its name, as far as it is known here, and its short id."""
        return member_label(member, self.inbox.member_name(member))

    def confirm_stored(self, marks: Mapping[Address, int]) -> None:
        """Acknowledge stored messages; the next incarnation keeps them."""
        if self.is_open:
            self.handle.call(lambda member, now_ns: member.confirm_stored(marks, now_ns))

    # Closing

    def leave(self) -> None:
        """Begin to leave: waiting messages are still sent, arrived messages can still be read."""
        self._check_process()
        self.closing = True
        self.inbox.consume_all()
        if self._handle is not None:
            self._handle.leave()

    def close(self, timeout_s: float | None) -> Steps[None]:
        """Leave the group, and end this member."""
        if not self.in_joining_process:
            return
        self.leave()
        handle = self._handle
        if handle is not None:
            for sent in tuple(self._sending):
                handle.cancel(sent)
            yield Wait(in_thread(lambda: handle.close(timeout_s)))
            self.inbox.log_unread_events()

    def abandon(self) -> None:
        """Leave without waiting, because the application dropped its last reference."""
        self.closing = True
        self.inbox.consume_all()
        if self._handle is not None:
            in_thread(self._handle.close)


def _wait_for_item(waiter: Future[None], until_ns: int | None) -> Steps[None]:
    """Wait for a future of the inbox; it is cancelled if the wait ends before, however it ends."""
    try:
        yield Wait(waiter, until_ns)
    finally:
        waiter.cancel()


def _abandon(opening: Future[MemberHandle]) -> None:
    """Close a handle whose opening was given up."""
    if opening.exception() is None:
        in_thread(lambda: opening.result().close(0))


def in_thread(function: Callable[[], _T]) -> Future[_T]:
    """Run a blocking function in a daemon thread."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="gapless call", daemon=True).start()
    return future


def with_headers(messages: Sequence[bytes], headers: AnyHeaders) -> Sequence[bytes]:
    """Return messages with their headers: the same for all, or one mapping for each."""
    each = [headers] * len(messages) if isinstance(headers, Mapping) else list(headers)
    if len(each) != len(messages):
        raise LocalProtocolError(
            f"{len(each)} sets of headers for {len(messages)} messages:"
            " give one for all, or one for each"
        )
    return [join_headers(message, own) for message, own in zip(messages, each, strict=True)]


def as_payloads(payloads: Iterable[object]) -> Payloads:
    """Return at least one message as bytes; a list of bytes is used as it is."""
    messages = list(payloads)
    if not messages:
        raise LocalProtocolError("nothing to send: give at least one message")
    if set(map(type, messages)) == {bytes}:
        return Payloads.of_validated(messages)  # type: ignore[arg-type]
    return Payloads.of_validated([as_payload(message) for message in messages])


def as_payload(payload: object) -> bytes:
    """Return a message as bytes.

    Raises:
        PayloadError: ``payload`` is not bytes-like.
    """
    if type(payload) is bytes:
        return payload
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    hint = (
        "text.encode()"
        if isinstance(payload, str)
        else "json.dumps(value).encode() or another encoding"
    )
    raise PayloadError(f"a message is bytes, and this is {type(payload).__name__}: use {hint}")

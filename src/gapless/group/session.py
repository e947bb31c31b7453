"""What a caller can do with a group, written once for both faces.

Whatever may have to wait is written as steps: a generator that yields what it waits for, a
:class:`Wait`, and is sent the result, or thrown what went wrong there (the time is over, the task
was cancelled, Ctrl-C). The asyncio face awaits each step, the face for threads blocks at each;
neither knows what the steps are about.

On sending: a send that is cancelled while it waits is given up by the machine, and leaves no hole.
One that waits when the group expels this member is sent in the next life. One that waits at the end
is told that it is over.

On closing: what waits is told, everything that was accepted is brought to its end, and the group is
told.
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

    from gapless.group.base import ReceiptBase
    from gapless.group.join_options import MemberOptions
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.runtime.bundler import Bundle
    from gapless.runtime.handle import MemberHandle

_T = TypeVar("_T")

To = Address | str
"""A member: its address, such as ``message.sender``, or its durable name."""
Payload = bytes | bytearray | memoryview
"""What can be sent."""
AnyHeaders = Headers | Iterable[Headers]
"""The headers of all messages of a send, or of each."""

ERROR_CLOSE_TIMEOUT_S = 1.0
"""How long closing takes at most when something has gone wrong in the program, such as Ctrl-C."""
PUBLISHED = "gapless-published"
"""The header of a state that says which rows of sinks are in it."""
_MAX_REASON_CHARS = 1000


class Wait(NamedTuple):
    """What a step waits for, and until when; TimeoutError is thrown at it when that time has come."""

    future: Future[Any]
    until_ns: int | None = None

    def remaining_s(self) -> float | None:
        """Return how much time is left."""
        return remaining_s(self.until_ns)


Steps = Generator[Wait, Any, _T]
"""Something that may have to wait."""


class _Untracked:
    """The receipt of a message whose seqno nobody asks for."""

    __slots__ = ("_accepted", "_bundled")

    _accepted: Accepted | None
    _bundled: tuple[Bundle, int] | None


class GroupSession:
    """One member of one group, as both faces see it."""

    def __init__(
        self, options: MemberOptions, later: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        """Prepare to join; what is sent is seen to at once by the thread that sends, or when ``later`` calls it."""
        self.options = options
        self._schedule_flush = later
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
        """The handle; it exists from opening on."""
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
        """Whether this member is on its way in, in, or on its way out, in this process."""
        return self._handle is not None and not self._handle.is_closed and self.in_joining_process

    @property
    def stays_in_group(self) -> bool:
        """Whether this member has a future in the group."""
        return self.is_open and not self.closing

    @property
    def in_joining_process(self) -> bool:
        """Whether this is the process that has joined."""
        return self._process is ProcessToken.current

    def _check_process(self) -> None:
        if self._process is not ProcessToken.current:
            raise ClosedError(
                f"this member of {self.options.group} belongs to the process that forked: join again in this one"
            )

    # Opening

    def open(self, until_ns: int | None) -> Steps[None]:
        """Come into the group: there is a view, and the state, when this is done."""
        self._check_process()
        if self._handle is not None or self.closing:
            raise LocalProtocolError(
                f"this member of {self.options.group} was opened before: join again"
            )
        opening = in_thread(lambda: self.options.open(self.inbox.drain))
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
                    f"{self.options.group} could not be joined in this time"
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
                "%s: no other member has given its state; do they read their messages?",
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
        """Return what a new member has to know beside the state: which rows of sinks are in it."""
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
        """Send messages; the result is None if they were not to wait and there was no room."""
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
        if self.closing:
            return None
        if type(payload) is not bytes or payload.startswith(MARK):
            payload = wrap_plain(as_payload(payload))
        try:
            return self.handle.send_lone(
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
        """Return the number of a message that was sent with others."""
        if receipt._bundled is None:
            # A query overtakes no message: when it is answered the bundle has left.
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
            except BaseException as error:  # noqa: BLE001 - whatever it is, the send is given up, and it goes on
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
        """Send a message of which nobody wants to know when it has been delivered."""
        if self._schedule_flush is None and not self.closing:
            try:
                if self.handle.send_lone(message, _Untracked(), to, mode) is not None:
                    return
            except LocalProtocolError as error:
                raise self._translate_error(error, to) from None
        yield from self._send(Payloads.of((message,)), to, mode, until_ns)

    def _translate_error(self, error: BaseException, to: Address | None) -> BaseException:
        """Return the error that says what the machine meant by its refusal."""
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
                f"no room to send within {took}{sent}; snapshot() names who holds the window",
                outcome.accepted,
            )
        if outcome.reason == "departed":
            return DepartedError(f"{to} has left{sent}")
        return self._closed(sent)

    def _closed(self, more: str = "") -> GaplessError:
        error = None if self._handle is None else self._handle.error
        return error or ClosedError(
            f"this member of {self.options.group} is closed: join again{more}"
        )

    def delivered(self, sent: SendRequest | None, timeout: Duration | None) -> Steps[None]:
        """Wait until everybody has delivered what was sent."""
        if sent is None or sent.delivered is None:
            mode = DeliveryMode.ORDERED if sent is None else sent.mode
            raise LocalProtocolError(
                f"nobody tells when an {mode} message has arrived: send with 'acknowledged'"
            )
        try:
            event = yield Wait(sent.delivered, deadline_ns(timeout))
        except GaplessError:
            raise
        except TimeoutError:
            raise TimedOutError(
                "not everybody has delivered it in this time; snapshot() names who has not"
            ) from None
        if isinstance(event, Unacknowledged):
            who = ", ".join(map(str, event.members))
            raise UndeliveredError(
                f"it came to its end before {who} had delivered it", event.members
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
                f"{to} is not in {self.options.group} now: send to a member of group.view"
            )
        return to

    # Receiving

    def try_next_message(self) -> Message | None:
        """Return the next message if that takes no more than a look."""
        if self._process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_message()

    def try_next_batch(self) -> Batch | None:
        """Return the next messages of one sender if that takes no more than a look."""
        if self._process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_batch()

    def poll_until_readable(self, until_ns: int | None) -> None:
        """Drive in this thread, if no other does, until there is something to read."""
        if not self.inbox.mark_consumed() and self._handle is not None:
            self._handle.poll_until(self.inbox.is_readable, until_ns)

    def receive(
        self,
        take: Callable[[], _T | InboxEvent | Future[None]],
        until_ns: int | None = None,
        *,
        all_events: bool = False,
    ) -> Steps[_T | GroupEvent | None]:
        """Return what ``take`` gives: the next message, or event if those are wanted; None when nothing more comes."""
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
                    yield Wait(item, until_ns)
                except TimeoutError:
                    raise TimedOutError("nothing has come in this time") from None
            elif isinstance(item, StateWanted):
                self._give_state(item)
            elif isinstance(item, StateReceived):
                self._take_state(item)
            elif all_events or isinstance(item, (Message, Batch, RequestFrame)):
                return item
            else:
                self.inbox.log_event(item)  # type: ignore[arg-type]

    def wait_for_member_count(self, count: int, until_ns: int | None) -> Steps[None]:
        """Wait until there are at least ``count`` members."""

        def are_here() -> bool:
            return self.inbox.view is not None and len(self.inbox.view.members) >= count

        while (bell := self.inbox.wait_unless(are_here)) is not None:
            if not self.is_open:
                raise self._closed()
            try:
                yield Wait(bell, until_ns)
            except TimeoutError:
                here = 0 if self.inbox.view is None else len(self.inbox.view.members)
                raise TimedOutError(
                    f"{here} of {count} members of {self.options.group} are here"
                ) from None

    def wait_for_member(self, name: str, until_ns: int | None) -> Steps[None]:
        """Wait until a durable member of this name belongs to the group, though it may be away."""

        def belongs() -> bool:
            roster = self.handle.roster
            return roster is not None and any(
                place.name == name for place in (*roster.entries, *roster.absent)
            )

        while (bell := self.inbox.wait_unless(belongs)) is not None:
            if not self.is_open:
                raise self._closed()
            try:
                yield Wait(bell, until_ns)
            except TimeoutError:
                raise TimedOutError(
                    f"nobody of the durable name {name!r} is in {self.options.group}"
                ) from None

    # Requests

    def request(self, payload: Payload, to: To, timeout: Duration | None) -> Steps[bytes]:
        """Ask a member, and return its answer."""
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
                f"{address} has not answered in this time; it may still do what was asked"
            ) from None
        finally:
            self.inbox.pending.forget(number)
        return result

    def answer(
        self, asked: RequestFrame, payload: Payload | None, error: BaseException | None = None
    ) -> Steps[None]:
        """Answer a request, or say why not; out of band if it fits, for one who waits may be reading nothing else."""
        if error is not None:
            body = f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS].encode()
            message = wrap(ERROR_REPLY, asked.number, body)
        else:
            message = wrap(REPLY, asked.number, b"" if payload is None else as_payload(payload))
        overhead_bytes = ADDRESSED_HEADER_BYTES + OUT_OF_BAND_OVERHEAD_BYTES + LENGTH_BYTES
        fits = len(message) <= self.handle.config.max_frame_bytes - overhead_bytes
        address = self.find(asked.sender)
        yield from self._send_untracked(
            message, address, DeliveryMode.OUT_OF_BAND if fits else DeliveryMode.ORDERED, None
        )

    # Everything else

    def expel(self, member: To) -> Steps[None]:
        """Ask for a view without ``member``."""
        address = self.find(member)
        assert address is not None

        def command(machine: Member, now_ns: int) -> Ready:
            if (
                len(machine.membership.members) <= 2
                or machine.membership.acting_coordinator == address
            ):
                raise LocalProtocolError(
                    f"{address} cannot be expelled: neither half of a group can be, nor its coordinator, the first"
                    " member of the view"
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
                with suppress(ClosedError):  # it may close meanwhile
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
        """Let what is stored be acknowledged; a life that comes to its end meanwhile tells the next one."""
        if self.is_open:
            self.handle.call(lambda member, now_ns: member.confirm_stored(marks, now_ns))

    # Closing

    def leave(self) -> None:
        """Begin to leave: what waits is still sent, and what has come can still be read."""
        self._check_process()
        self.closing = True
        self.inbox.consume_all()
        if self._handle is not None:
            self._handle.leave()

    def close(self, timeout_s: float | None) -> Steps[None]:
        """Leave, and end."""
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
        """Leave without waiting for it: nobody has a use for this member any more."""
        self.closing = True
        self.inbox.consume_all()
        if self._handle is not None:
            in_thread(self._handle.close)


def _abandon(opening: Future[MemberHandle]) -> None:
    """Close what nobody waits for any more."""
    if opening.exception() is None:
        in_thread(lambda: opening.result().close(0))


def in_thread(function: Callable[[], _T]) -> Future[_T]:
    """Run something that blocks in a thread of its own, which does not keep the process alive."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it goes to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="gapless call", daemon=True).start()
    return future


def with_headers(messages: Sequence[bytes], headers: AnyHeaders) -> Sequence[bytes]:
    """Return messages with their headers: the same for all, or those of each."""
    each = [headers] * len(messages) if isinstance(headers, Mapping) else list(headers)
    if len(each) != len(messages):
        raise LocalProtocolError(
            f"{len(each)} sets of headers for {len(messages)} messages: give one for all, or one for each"
        )
    return [join_headers(message, own) for message, own in zip(messages, each, strict=True)]


def as_payloads(payloads: Iterable[object]) -> Payloads:
    """Return messages as bytes, at least one; where all are, nothing is done for each of them."""
    messages = list(payloads)
    if not messages:
        raise LocalProtocolError("nothing to send: give at least one message")
    if set(map(type, messages)) == {bytes}:
        return Payloads.of_validated(messages)  # type: ignore[arg-type]
    return Payloads.of_validated([as_payload(message) for message in messages])


def as_payload(payload: object) -> bytes:
    """Return a message as bytes; anything that is not bytes already is an error that says what to do."""
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

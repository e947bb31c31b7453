"""The session of one member: the operations of a group, written once for both APIs.

An operation that may wait is a generator of steps. Each step yields a ``Wait``, and receives the
result of the future, or an error raised meanwhile (a timeout, a cancellation, Ctrl-C). The asyncio
API awaits each step, the API for threads blocks at each step; neither knows the operation.

On sending: a cancelled send is withdrawn from the machine and leaves no gap. If the group expels
this member meanwhile, the next incarnation repeats the send. If the member closes, the send raises
ClosedError.

On closing: pending calls raise ClosedError, and accepted messages are resent until acknowledged or
until the timeout. Then the group installs a view without this member.
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
from gapless.group.option_checks import (
    LOOPBACK_CHOICES,
    check_marks,
    check_member_count,
    wrong_argument,
)
from gapless.group.receipt import ReceiptBase, UntrackedReceipt
from gapless.group.rpc import RequestFrame
from gapless.group.sink_dedup import SinkDedup
from gapless.group.timeouts import Duration, deadline_ns, duration_ns
from gapless.identity import Address, member_label
from gapless.logger import log
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted, GivenUp, StateReceived, StateWanted, Unacknowledged
from gapless.run import LENGTH_BYTES
from gapless.runtime.discovery_monitor import describe_sources
from gapless.runtime.reactor import remaining_s, wait_for_future
from gapless.runtime.send_requests import SendRequest, When
from gapless.units import format_duration
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, OUT_OF_BAND_OVERHEAD_BYTES
from gapless.wire.identities import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.group.join_options import MemberOptions
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.runtime.bundler import Bundler, Joined
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
MIN_MEMBERS_TIMEOUT_S = 30.0
"""How long joining waits for ``min_members`` if the caller gave no timeout."""
PUBLISHED = "gapless-published"
"""The header of an application state that records the contained rows of sinks."""
_MAX_REASON_CHARS = 1000
"""Maximum length of the error text in a reply."""


class Wait(NamedTuple):
    """A future to wait for, and the deadline after which TimeoutError is thrown."""

    future: Future[Any]
    until_ns: int | None = None

    def remaining_s(self) -> float | None:
        """Return the time until the deadline; None without a deadline."""
        return remaining_s(self.until_ns)


Steps = Generator[Wait, Any, _T]
"""An operation that may wait, with a result of type ``_T``."""


class GroupSession:
    """One member of one group, as both APIs see it."""

    def __init__(
        self,
        options: MemberOptions,
        schedule_flush: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        """Prepare to join.

        The sending thread flushes each send at once, unless ``schedule_flush`` defers the flush.
        ``schedule_flush`` returns False if a flush was scheduled before.
        """
        self.options = options
        self._schedule_flush = schedule_flush
        self.inbox = Inbox(
            listens=options.listen,
            wants_state=options.state is not None,
            deduplicates=not options.stores,
        )
        self.closing = False
        self._receives_only = False
        self._handle: MemberHandle | None = None
        self.bundler: Bundler | None = None
        """The bundle that messages to the group may join; None if this member does not send."""
        self._sending: set[SendRequest] = set()
        self.process = ProcessToken.current
        """The process that joined."""

    @property
    def handle(self) -> MemberHandle:
        """The handle of the member, once the session is open."""
        if self._handle is None or self.process is not ProcessToken.current:
            raise self._not_open_error()
        return self._handle

    def _not_open_error(self) -> GaplessError:
        self._check_process()
        return LocalProtocolError(
            f"this member has not joined {self.options.group} yet: use join() as a context"
            " manager, or call open() first"
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
        """Whether this is the process that joined, and not a fork."""
        return self.process is ProcessToken.current

    def _check_process(self) -> None:
        if self.process is not ProcessToken.current:
            raise ClosedError(
                f"this member of {self.options.group} belongs to the parent process; join again"
                " after a fork"
            )

    # Opening

    def open(self, until_ns: int | None) -> Steps[None]:
        """Join the group: at the end there is a view, and the application state."""
        self._check_process()
        if self._handle is not None or self.closing:
            raise LocalProtocolError(
                f"this member of {self.options.group} was already opened; call join() again"
            )
        opening = in_thread(lambda: self.options.open(self.inbox))
        try:
            self._handle = yield Wait(opening)
            self._receives_only = self._handle.role is Role.OBSERVER
            self.bundler = None if self._receives_only else self._handle.bundler
            self.inbox.attach(self._handle)
            yield Wait(self.inbox.ready, until_ns)
            if (received := self.inbox.take_state()) is not None:
                self._take_state(received)
            if self.options.min_members > 1:
                yield from self._wait_for_peers(until_ns)
        except BaseException as error:
            self.closing = True
            opening.add_done_callback(_abandon)
            if isinstance(error, TimeoutError) and not isinstance(error, GaplessError):
                raise TimedOutError(
                    f"{self.options.group} could not be joined within the timeout; check discover="
                    " and the network with gapless doctor"
                ) from None
            raise

    def _wait_for_peers(self, until_ns: int | None) -> Steps[None]:
        """Wait for ``min_members``; the error names what discovery found."""
        count = self.options.min_members
        try:
            yield from self.wait_for_member_count(
                count, until_ns or deadline_ns(MIN_MEMBERS_TIMEOUT_S)
            )
        except TimedOutError as error:
            transport = self.handle.transport
            found = yield Wait(in_thread(lambda: describe_sources(transport)))
            found += [one for one in self.handle.discovery_problems if one not in found]
            raise TimedOutError(
                f"{error}; discovery found: {'; '.join(found) or 'no source to ask'}; start the"
                " other members, or correct discover= or seeds="
            ) from None

    def _take_state(self, received: StateReceived) -> None:
        assert self.options.state is not None
        if received.provider is not None:
            headers, state = split_headers(received.state)
            if PUBLISHED in headers:
                self.inbox.sink_dedup = SinkDedup.decode(headers[PUBLISHED])
            self.options.state.set(state)
        elif received.failed:
            log.warning(
                "%s: joined without state: get_state failed in %s; the log there has the error",
                self.options.group,
                ", ".join(map(self.label, received.failed)),
            )
        elif self.inbox.view is not None and len(self.inbox.view.members) > 1:
            log.warning(
                "%s: joined without state: no other member provided its state; a member"
                " provides state only while its application receives",
                self.options.group,
            )

    def _give_state(self, wanted: StateWanted) -> None:
        assert self.options.state is not None
        state: bytes | None = None
        try:
            state = join_headers(as_payload(self.options.state.get()), self._state_headers())
        except Exception as error:  # noqa: BLE001 - the joiner asks another member
            log.error(
                "%s: get_state failed: %s, which joins, gets no state from this member",
                self.options.group,
                self.label(wanted.peer),
                exc_info=error,
            )
        finally:
            with suppress(ClosedError):  # the member ends, and the next read raises
                self.handle.call(
                    lambda member, now_ns: member.provide(
                        wanted.transfer, state, now_ns, failed=state is None
                    )
                )

    def _state_headers(self) -> Headers:
        """Return the headers of the own state: a record of the contained rows of sinks."""
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
        """Send messages; the result is None if ``wait`` is false and the window has no room."""
        if loopback is not None and loopback is not True and loopback is not False:
            raise wrong_argument("loopback", loopback, LOOPBACK_CHOICES)
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
        self, message: bytes, receipt: ReceiptBase, to: To | None, loopback: bool | None
    ) -> bool:
        """Send an ordered message (``as_message``) that has not joined the bundle, without waiting.

        Return False if the message was not sent: the caller then uses ``send``.
        """
        if loopback is not None and loopback is not True and loopback is not False:
            raise wrong_argument("loopback", loopback, LOOPBACK_CHOICES)
        address = None if to is None else self.find(to)
        handle = self._handle
        if handle is None:
            raise self._not_open_error()
        if self.closing or self._receives_only:
            return False
        try:
            return handle.send_lone(
                message,
                receipt,
                address,
                loopback=loopback,
                # The first message of a round of an event loop leaves at once; a message that
                # follows in the same round shares frames with those after it.
                may_run=self._schedule_flush is None or self._schedule_flush(handle.flush),
            )
        except LocalProtocolError as error:
            raise self._translate_error(error, address) from None

    def flush_bundle(self, joined: Joined) -> bool:
        """Let the bundle leave in time after a message has joined; return whether it has left."""
        return self.handle.flush_bundle(joined)

    def note_lone_send(self) -> None:
        """Record that a request sent a message to the group."""
        if self._handle is not None:
            self._handle.note_lone_send()

    def resolve_bundled(self, receipt: ReceiptBase) -> Accepted:
        """Return the seqno of a message that was sent in a bundle."""
        if receipt._bundled is None:
            # A query never overtakes a message: when it is answered, the bundle was sent.
            wait_for_future(self.handle.query(lambda _: None), None)
        assert receipt._bundled is not None
        bundle, index = receipt._bundled
        wait_for_future(bundle, None)
        return bundle.seqno_of(index)

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
            if self._receives_only:
                raise LocalProtocolError(
                    f"the identity of this member has the role observer in {self.options.group},"
                    " which only receives: ask the operator for the role member"
                )
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
        if self._schedule_flush is None and not (self.closing or self._receives_only):
            try:
                if self.handle.send_lone(message, UntrackedReceipt(), to, mode):
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
                return self._departed_error(to)
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
                f"the send window had no room for {took}{sent}; snapshot() names the members"
                " that block the window",
                outcome.accepted,
            )
        if outcome.reason == "departed":
            return DepartedError(f"{self.label(to) if to else to} has left the group{sent}")
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
                "not every member delivered the message within the timeout; snapshot() names"
                " the members that lag"
            ) from None
        if isinstance(event, Unacknowledged):
            members = ", ".join(map(self.label, event.members))
            raise UndeliveredError(
                f"the view or connection ended before {members} delivered the message",
                event.members,
            )

    def find(self, to: To | None, argument: str = "to") -> Address | None:
        """Return the address of a member of the view; None for None."""
        return None if to is None else self._find_member(to, argument)

    def _find_member(self, to: To, argument: str) -> Address:
        """Return the address of a member of the view, which the caller passed as ``argument``."""
        view = self.inbox.view
        if isinstance(to, str):
            found = [member for member, name in self.inbox.names.items() if name == to]
            found = [member for member in found if view is not None and member in view.members]
            if not found:
                raise DepartedError(
                    f"no present member of {self.options.group} has the durable name {to!r}"
                )
            return max(found)
        if not isinstance(to, Address):
            raise wrong_argument(
                argument, to, "an address, such as message.sender, or a durable name"
            )
        if view is None or to not in view.members:
            raise self._departed_error(to)
        return to

    def _departed_error(self, to: Address) -> DepartedError:
        return DepartedError(
            f"{self.label(to)} is not in {self.options.group}: send to a member of group.view"
        )

    # Receiving

    def try_next_message(self) -> Message | None:
        """Return the next message; None if waiting or unwrapping is needed."""
        if self.process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_message()

    def try_next_batch(self) -> Batch | None:
        """Return the next batch; None if waiting or unwrapping is needed."""
        if self.process is not ProcessToken.current:
            self._check_process()
        return self.inbox.try_next_batch()

    def wait_until_readable(self, until_ns: int | None) -> None:
        """Wait in this thread until an item can be read, or until the deadline."""
        if self.process is not ProcessToken.current:
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
                try:
                    self._take_state(item)
                except Exception as error:  # noqa: BLE001 - reading goes on
                    log.error(
                        "%s: set_state failed with the state of %s after this member joined"
                        " again: its state is old",
                        self.options.group,
                        "nobody" if item.provider is None else self.label(item.provider),
                        exc_info=error,
                    )
            elif all_events or isinstance(item, (Message, Batch, RequestFrame)):
                return item
            else:
                self.inbox.log_event(item)  # type: ignore[arg-type]

    def wait_for_member_count(self, count: int, until_ns: int | None) -> Steps[None]:
        """Wait until the view has at least ``count`` members."""
        check_member_count(count)

        def are_present() -> bool:
            return self.inbox.member_count >= count

        while (waiter := self.inbox.wait_unless(are_present)) is not None:
            if not self.is_open:
                raise self._closed()
            try:
                yield from _wait_for_item(waiter, until_ns)
            except TimeoutError:
                raise TimedOutError(
                    f"{self.options.group} has {self.inbox.member_count} of {count} members after"
                    " the timeout"
                ) from None

    def wait_for_member(self, name: str, until_ns: int | None) -> Steps[None]:
        """Wait until the roster has a durable member ``name``, present or absent."""
        if not isinstance(name, str):
            raise wrong_argument("name", name, "a durable name as text")

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
                    f"no member of {self.options.group} has the durable name {name!r} after the"
                    " timeout"
                ) from None

    # Requests

    def request(self, payload: Payload, to: To, timeout: Duration | None) -> Steps[bytes]:
        """Send a request to a member, and return the reply."""
        address, until_ns = self._find_member(to, "to"), deadline_ns(timeout)
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
                f"{self.label(address)} did not answer within the timeout, and may still act on"
                " the request"
            ) from None
        finally:
            self.inbox.pending.forget(number)
        return result

    def answer(
        self, request: RequestFrame, payload: Payload | None, error: BaseException | None = None
    ) -> Steps[None]:
        """Reply to a request with a payload, or with an error.

        A reply that fits into one frame is sent out of band, because the requesting member may read
        no other message while waiting.
        """
        if error is not None:
            body = describe_error(error)[:_MAX_REASON_CHARS].encode(errors="replace")
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
        address = self._find_member(member, "member")

        def command(machine: Member, now_ns: int) -> Ready:
            if (
                len(machine.membership.members) <= 2
                or machine.membership.acting_coordinator == address
            ):
                raise LocalProtocolError(
                    f"{self.label(address)} cannot be expelled: the member is the coordinator,"
                    " or the group has only two members"
                )
            return machine.expel(address, now_ns)

        yield Wait(self.handle.call(command))

    def set_xmit_interval(self, interval: Duration) -> Steps[None]:
        """Set the retransmission interval of this member, for later incarnations too."""
        handle, interval_ns = self.handle, duration_ns(interval, "interval")
        if not interval_ns:
            self.options.check_loss_allowed(handle.transport, "set_xmit_interval(0)")
        yield Wait(handle.set_xmit_interval(interval_ns))

    def close_connection(self, member: To) -> Steps[None]:
        """Close the connection to ``member``."""
        address = self._find_member(member, "member")
        yield Wait(
            self.handle.call(lambda machine, now_ns: machine.close_connection(address, now_ns))
        )

    def snapshot(self, of: To | None, timeout: Duration | None) -> Steps[MemberSnapshot]:
        """Take a snapshot of this member, open or closed, or request one of another member."""
        from gapless.group import snapshot  # imported late: most members never need it

        address, until_ns = self.find(of, "of"), deadline_ns(timeout)
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
        """Return a member for people: a name, as far as known here, and the short id."""
        return member_label(member, self.inbox.member_name(member))

    def confirm_stored(self, marks: Mapping[Address, int]) -> None:
        """Acknowledge stored messages, for this incarnation and the next."""
        check_marks("marks", marks)
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
        """Leave without waiting, because the application dropped the last reference."""
        self.closing = True
        self.inbox.consume_all()
        if self._handle is not None:
            in_thread(self._handle.close)


def _wait_for_item(waiter: Future[None], until_ns: int | None) -> Steps[None]:
    """Wait for a future of the inbox; cancel the future when the wait ends for any reason."""
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


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an error of the application, which may have no text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a __str__ of the application
        return type(error).__name__


def with_headers(messages: Sequence[bytes], headers: AnyHeaders) -> Sequence[bytes]:
    """Return messages with headers: the same for all, or one mapping for each."""
    given: Any = headers  # of the application
    if isinstance(given, Mapping):
        each = [given] * len(messages)
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        each = list(given)
    else:
        raise PayloadError(
            f"headers={given!r}: expected a mapping of names to bytes, such as"
            " {'kind': b'order'}, or a list with a mapping for each message"
        )
    if len(each) != len(messages):
        raise LocalProtocolError(
            f"{len(each)} sets of headers for {len(messages)} messages; pass one for all, or"
            " one for each"
        )
    return [join_headers(message, own) for message, own in zip(messages, each, strict=True)]


def as_payloads(payloads: Iterable[object]) -> Payloads:
    """Return at least one message as bytes; a list of bytes is used without a copy."""
    try:
        messages = list(payloads)
    except TypeError:
        if isinstance(payloads, Iterable):
            raise  # by a generator of the application
        raise _not_a_list(payloads) from None
    if not messages:
        raise LocalProtocolError("no messages to send; pass at least one message")
    if set(map(type, messages)) == {bytes}:
        return Payloads.of_validated(messages)  # type: ignore[arg-type]
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise _not_a_list(payloads)
    return Payloads.of_validated([as_payload(message) for message in messages])


def _not_a_list(payloads: object) -> PayloadError:
    return PayloadError(
        f"payloads={payloads!r}: expected a list of messages, such as [b'one', b'two']; send()"
        " sends a single message"
    )


def as_message(payload: object) -> bytes:
    """Return a message as the bytes that the machine sends."""
    return wrap_plain(as_payload(payload))


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
    raise PayloadError(f"a message must be bytes, not {type(payload).__name__}; use {hint}")

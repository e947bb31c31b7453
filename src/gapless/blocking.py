"""The API for threads: ``with gapless.blocking.join("orders") as group:``.

The module ``gapless.aio`` is the same API for asyncio. The package ``gapless.group`` holds the code
of both; only waiting differs, and this module blocks the calling thread.

Any thread may use a group. If several threads receive from one group, each message goes to one of
them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gapless.delivery_mode import DeliveryMode, DeliveryModeName
from gapless.errors import GaplessError
from gapless.fork_guard import ProcessToken
from gapless.group.base import GroupBase, IncomingRequest
from gapless.group.headers import MARK
from gapless.group.join_options import MemberOptions
from gapless.group.message import Batch, Message
from gapless.group.option_checks import check_handler
from gapless.group.receipt import ReceiptBase, make_receipt
from gapless.group.session import (
    ERROR_CLOSE_TIMEOUT_S,
    Steps,
    Wait,
    as_message,
)
from gapless.group.timeouts import Duration, deadline_ns, duration_ns
from gapless.logger import log
from gapless.runtime.bundler import QUIETLY, REFUSED
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
    from gapless.keys.identities import Identity
    from gapless.keys.keyring import Keyring
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport
    from gapless.transport.tcp.tls_files import TlsFiles

__all__ = ["Group", "Receipt", "Request", "join"]

_T = TypeVar("_T")

ORDERED = DeliveryMode.ORDERED
"""The usual mode; a name of the module is found sooner than a member of an enum."""


def run_steps(steps: Steps[_T]) -> _T:
    """Run the steps of an operation, blocking at each."""
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
    """The receipt of a send: the seqnos of the messages, and a wait for their delivery.

    ``first`` and ``last`` are the seqnos, ``count`` is the number of messages. The seqno of a
    message is looked up on demand; an unreliable message has the seqno 0.

    Examples:
        ```python
        with blocking.join("orders") as group:
            receipt = group.send(b"tea", mode="acknowledged")
            receipt.delivered(timeout=5)
            print(receipt.first)  # 1
        ```
    """

    def delivered(self, timeout: Duration | None = None) -> None:
        """Wait until every member has delivered the messages, absent durable members included.

        Args:
            timeout: How long to wait; by default without a limit.

        Raises:
            LocalProtocolError: The mode is neither ``acknowledged`` nor ``out-of-band``, so
                delivery is not tracked.
            UndeliveredError: A member will never deliver the messages; ``error.members`` names such
                members.
            TimedOutError: ``timeout`` passed. The messages remain sent, and may still be delivered.
        """
        run_steps(self._delivered(timeout))


class Request(IncomingRequest):
    """A request from another member; ``reply`` or ``fail`` answers the request, once."""

    def reply(self, payload: Payload = b"") -> None:
        """Answer the request with ``payload``.

        Raises:
            DepartedError: The requesting member has left.
            LocalProtocolError: The request was answered before.
        """
        run_steps(self._answer(payload))

    def fail(self, error: BaseException) -> None:
        """Answer the request with an error: ``request`` raises RequestError at the other member.

        Args:
            error: The type and the text of this exception are sent; the traceback is not.

        Raises:
            DepartedError: The requesting member has left.
            LocalProtocolError: The request was answered before.
        """
        run_steps(self._answer(None, error))


class Group(GroupBase):
    """One member of one group; ``gapless.blocking.join`` creates a group object.

    The member belongs to the group inside ``with``. All methods may be called from any thread.
    """

    # Joining and leaving

    def open(self) -> Self:
        """Join the group; ``with`` calls ``open`` for you.

        When ``open`` returns, the member is in a view and has the application state, if ``state``
        was passed to ``join``.

        Raises:
            TimedOutError: The member was not in a view within the ``timeout`` of ``join``.
            TransportError: The network of this machine cannot be used as requested.
        """
        run_steps(self._session.open(deadline_ns(self._session.options.timeout)))
        return self

    def close(self, timeout: Duration | None = None) -> None:
        """Leave the group; pending calls raise ``ClosedError``.

        Accepted messages are resent until acknowledged or until the timeout. The end
        of a ``with`` block closes the group; after an exception, within a second.

        Args:
            timeout: How long leaving may take; the default is the setting ``leave_timeout``.
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
        """Send a message to the group, or to one member; wait while the send window is full.

        When ``send`` returns, the message has its seqno and was sent. A send that times out was not
        sent, and leaves no gap.

        Args:
            payload: The message: ``bytes``, ``bytearray`` or ``memoryview``. Encode text first.
            to: One receiver, as an address such as ``message.sender`` or as a durable name; by
                default the group.
            mode: ``"ordered"``, ``"acknowledged"`` (``receipt.delivered()`` waits for all
                receivers), ``"out-of-band"`` (no order, and no waiting behind a full window) or
                ``"unreliable"``.
            timeout: How long to wait for room, in seconds or as text such as ``"200ms"``; by
                default without a limit.
            loopback: Whether the sender receives the message too; the default is the setting
                ``loopback``, which is true.
            headers: Named byte values beside the payload, such as ``{"kind": b"order"}``.

        Returns:
            A receipt with the seqno.

        Raises:
            TimedOutError: The send window had no room within ``timeout``.
            DepartedError: The member ``to`` is not in the view.
            PayloadError: The payload or a header is not bytes.
            ClosedError: This member has left the group.

        Examples:
            ```python
            with blocking.join("orders") as group:
                group.send(b"tea", headers={"table": b"7"})
                message = group.receive(timeout=5)
                print(message.payload, message.headers["table"])  # b'tea' b'7'
            ```
        """
        own = self._session
        if mode != ORDERED or timeout is not None or headers is not None:
            return self.send_many(
                (payload,), to, mode=mode, timeout=timeout, loopback=loopback, headers=headers
            )
        # Without a call that can be spared: a program that sends without a pause passes here.
        message = payload
        if type(message) is not bytes or message.startswith(MARK):
            message = as_message(payload)
        receipt = Receipt()
        receipt._session = own
        if to is None and loopback is None and (bundler := own.bundler) is not None:
            joined = bundler.join(message, receipt)
            if joined is QUIETLY:
                return receipt
            if joined is not REFUSED:
                own.flush_bundle(joined)
                return receipt
        if own.send_lone(message, receipt, to, loopback):
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
        """Send several messages in the given order, faster than with a ``send`` for each.

        The arguments are those of ``send``.

        Args:
            payloads: The messages, at least one.
            to: One receiver; by default the group.
            mode: The delivery mode of all messages.
            timeout: How long to wait for room; by default without a limit.
            loopback: Whether the sender receives the messages too.
            headers: One mapping for all messages, or a list with a mapping for each message.

        Returns:
            One receipt with the seqnos of all messages.

        Raises:
            TimedOutError: ``timeout`` passed. The first ``error.accepted`` messages were sent.
            DepartedError: The member ``to`` is not in the view.
            PayloadError: A payload or a header is not bytes.
            ClosedError: This member has left the group.

        Examples:
            ```python
            with blocking.join("orders") as group:
                receipt = group.send_many([b"tea", b"milk", b"sugar"])
                print(receipt.first, receipt.last)  # 1 3
            ```
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
        """Send a message if the send window has room now.

        The arguments are those of ``send``.

        Returns:
            A receipt, or None if the window has no room and the message was not sent.
        """
        sent = run_steps(
            self._session.send((payload,), to, mode, wait=False, loopback=loopback, headers=headers)
        )
        return None if sent is None else make_receipt(Receipt, self._session, sent)

    # Receiving

    def __iter__(self) -> Iterator[Message]:
        own = self._session
        opened = own.inbox.opened
        while True:
            if opened and own.process is ProcessToken.current:
                # Without a call: the rest of a batch is read faster than the batch was unpacked.
                try:
                    message = opened.popleft()
                except IndexError:
                    continue  # another thread has popped the last one
            elif (received := self.receive()) is not None:
                message = received
            else:
                return
            yield message

    def receive(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message, or None after this member has left.

        Asking for the next message marks the previous one as consumed. Events are skipped;
        important events are logged. ``for message in group:`` receives until this member has left.

        Args:
            timeout: How long to wait for a message; by default without a limit.

        Raises:
            TimedOutError: No message arrived within ``timeout``.

        Examples:
            ```python
            with blocking.join("orders") as group:
                group.send_many([b"tea", b"the end"])
                for message in group:
                    print(message.seqno, message.payload)  # 1 b'tea'
                    break
                message = group.receive(timeout=5)
                print(message.payload)  # b'the end'
            ```
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
        """Iterate over batches: consecutive messages of one sender that arrived together.

        A batch costs much less than its messages one by one. Events are skipped, as by ``receive``.
        """
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
        """Iterate over messages and events in the order of the group.

        The module ``gapless.events`` defines the events. ``str(event)`` is a sentence for people.

        Examples:
            ```python
            from gapless.events import ViewChange

            with blocking.join("orders") as group:
                for item in group.events():
                    if isinstance(item, ViewChange):
                        print(len(item.view))  # 1
                        break
            ```
        """
        while (found := self.receive_event()) is not None:
            yield found

    def receive_event(self, timeout: Duration | None = None) -> Message | GroupEvent | None:
        """Return the next message or event, or None after this member has left.

        Args:
            timeout: How long to wait; by default without a limit.

        Raises:
            TimedOutError: No message and no event arrived within ``timeout``.
        """
        own, until_ns = self._session, deadline_ns(timeout)
        own.wait_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_item, until_ns, all_events=True))

    def wait_for_members(self, count: int, timeout: Duration | None = None) -> None:
        """Wait until the view has at least ``count`` members, this member included.

        Args:
            count: The number of members to wait for.
            timeout: How long to wait; by default without a limit.

        Raises:
            TimedOutError: The view had fewer members when ``timeout`` passed.
            ClosedError: This member has left the group.

        Examples:
            ```python
            with blocking.join("orders") as first, blocking.join("orders") as second:
                first.wait_for_members(2, timeout=10)
                print(second.me in first.view)  # True
            ```
        """
        run_steps(self._session.wait_for_member_count(count, deadline_ns(timeout)))

    def wait_for_member(self, name: str, timeout: Duration | None = None) -> None:
        """Wait until the durable member ``name`` belongs to the group, present or absent.

        From then on, senders retain messages for the durable member while it is absent.

        Args:
            name: The ``durable_name`` of the member.
            timeout: How long to wait; by default without a limit.

        Raises:
            TimedOutError: No member had the name when ``timeout`` passed.
            ClosedError: This member has left the group.
        """
        run_steps(self._session.wait_for_member(name, deadline_ns(timeout)))

    def receive_batch(self, timeout: Duration | None = None) -> Batch | GroupEvent | None:
        """Return the next batch or event, or None after this member has left.

        Asking for the next batch marks the previous batch as consumed.

        Args:
            timeout: How long to wait; by default without a limit.

        Raises:
            TimedOutError: No message and no event arrived within ``timeout``.
        """
        own, until_ns = self._session, deadline_ns(timeout)
        own.wait_until_readable(until_ns)
        return run_steps(own.receive(own.inbox.next_batch, until_ns, all_events=True))

    # Requests

    def request(self, payload: Payload, to: To, *, timeout: Duration | None = 30.0) -> bytes:
        """Send a request to one member, and return the reply.

        The other member answers with ``serve`` or with ``requests``.

        Args:
            payload: The bytes of the request.
            to: The member, as an address such as ``message.sender`` or as a durable name.
            timeout: How long to wait for the reply. After a timeout the other member may still act
                on the request.

        Raises:
            DepartedError: The member is not in the view, or left before the reply.
            RequestError: The member answered with an error; the message repeats the error.
            TimedOutError: No reply arrived within ``timeout``.

        Examples:
            ```python
            with blocking.join("orders") as shop, blocking.join("orders") as kitchen:
                kitchen.serve(lambda request: request.payload.upper())
                shop.wait_for_members(2, timeout=10)
                print(shop.request(b"tea", to=kitchen.me))  # b'TEA'
            ```
        """
        return run_steps(self._session.request(payload, to, timeout))

    def requests(self) -> Iterator[Request]:
        """Iterate over requests from other members; answer each with ``reply`` or ``fail``."""
        return _requests(self._session)

    def serve(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer requests from other members with the results of ``handler``, in a thread.

        The thread handles one request after another. ``serve`` returns the handler, so that
        ``@group.serve`` can decorate a function.

        Args:
            handler: A function. The argument is a ``Request``, the result is the reply: bytes, or
                None for an empty reply. An exception is logged and sent as an error.

        Examples:
            ```python
            with blocking.join("orders") as shop, blocking.join("orders") as kitchen:

                @kitchen.serve
                def price(request):
                    return {b"tea": b"3", b"milk": b"1"}[request.payload]

                shop.wait_for_members(2, timeout=10)
                print(shop.request(b"tea", to=kitchen.me))  # b'3'
            ```
        """
        check_handler(handler)
        threading.Thread(
            target=_serve, args=(self._session, handler), name="gapless requests", daemon=True
        ).start()
        return handler

    # Diagnostics

    def expel(self, member: To) -> None:
        """Ask the coordinator to evict a live member.

        The member rejoins as a new incarnation unless it joined with ``rejoin=False``.

        Args:
            member: The member, as an address or as a durable name.

        Raises:
            LocalProtocolError: The member is the coordinator, or the group has only two members.
            DepartedError: The member is not in the view.
        """
        run_steps(self._session.expel(member))

    def set_xmit_interval(self, interval: Duration) -> None:
        """Set how long this member waits before it asks for a missing message again; 0 for never.

        0 switches retransmission off, any other value on, at run time: the setting
        ``xmit_interval``. With retransmission off a lost message stalls delivery from its sender.

        Args:
            interval: Seconds, or text such as ``"200ms"``.

        Raises:
            ConfigError: 0 over a transport that may lose messages, without ``allow_lossy=True``.
        """
        run_steps(self._session.set_xmit_interval(interval))

    def close_connection(self, member: To) -> None:
        """Close the connection for messages to ``member`` alone, once it is idle.

        Unacknowledged messages are still delivered. The next send to ``member`` opens another.

        Args:
            member: The member, as an address or as a durable name.

        Raises:
            DepartedError: The member is not in the view.
        """
        run_steps(self._session.close_connection(member))

    def snapshot(self, of: To | None = None, *, timeout: Duration | None = 30.0) -> MemberSnapshot:
        """Return a snapshot of this member, or of another one; ``print(snapshot)`` explains it.

        ``health.ok`` is the verdict, ``blockers`` are the members that the send window waits for,
        and ``streams``, ``peers``, ``gauges`` and ``counters`` hold the figures
        (docs/reference/metrics.md). Another member answers even if its application hangs.

        Args:
            of: Another member, as an address or as a durable name; by default this member.
            timeout: How long another member may take to answer.

        Raises:
            TimedOutError: The other member did not answer within ``timeout``.
            DepartedError: The other member is not in the view.

        Examples:
            ```python
            with blocking.join("orders") as group:
                group.send(b"tea")
                snapshot = group.snapshot()
                print(snapshot.health.ok, snapshot.unread)  # True 1
            ```
        """
        return run_steps(self._session.snapshot(of, timeout))


def _requests(core: GroupSession) -> Iterator[Request]:
    while (found := run_steps(core.receive(core.inbox.next_request))) is not None:
        yield Request(core, cast("RequestFrame", found))


def _serve(core: GroupSession, handler: Callable[[Request], Any]) -> None:
    """Handle requests until the group is closed; the thread does not keep the group open."""
    try:
        for request in _requests(core):
            _handle(request, handler)
    except GaplessError as error:
        log.debug("requests are no longer served: %s", error)


def _handle(request: Request, handler: Callable[[Request], Any]) -> None:
    try:
        result = handler(request)
        if not request._answered:
            request.reply(result)
    except BaseException as error:  # noqa: BLE001 - a handler may do anything, and others wait for answers too
        if request._log_failure(handler, error):
            try:
                request.fail(error)
            except GaplessError as gone:
                log.debug("no answer to %r could be sent: %s", request, gone)


def join(
    group: str,
    *,
    timeout: Duration | None = None,
    discover: str | Discovery | None = None,
    seeds: Sequence[str] = (),
    min_members: int = 1,
    transport: str | Transport = "auto",
    config: Config | Mapping[str, object] | str | Path | None = None,
    display_name: str = "",
    durable_name: str = "",
    state: Any = None,
    listen: bool = True,
    rejoin: bool = True,
    keys: str | Path | Keyring | None = None,
    identity: str | Path | Identity | None = None,
    insecure: bool = False,
    tls: TlsFiles | str | Path | None = None,
    allow_lossy: bool = False,
    host: str | None = None,
    ports: Iterable[int] | int | None = None,
    node: int | None = None,
    resume: Mapping[Address, int] | None = None,
    stores: bool = False,
    trace: Recorder | Path | str | None = None,
    trace_mode: str = "",
    name: str | None = None,
) -> Group:
    """Join ``group`` from a thread: use the result in ``with``, or call ``open`` and ``close``.

    ``join`` checks the options and returns at once; ``with`` joins. Inside the block this process
    is a member of the group: the members agree on a list of members, and each member receives the
    messages of every sender in order and without gaps. A member that finds no group within the
    setting ``found_after`` (1 s) founds the group. At the end of the block the member leaves: all
    receivers acknowledge its messages first, within the setting ``leave_timeout`` (10 s).

    Without ``discover`` and ``seeds``, members of one user on one machine find each other by
    files in a temporary directory, and members with the same ``keys`` on one local network by
    multicast.

    Args:
        group: The name of the group, the same for all members.
        timeout: How long joining may take, in seconds or as text such as ``"5s"``; by default
            without a limit.
        discover: Where to look for other members: a discovery URL such as
            ``"dns://orders.internal:7800"`` (docs/guides/discovery.md), or a ``Discovery``.
        seeds: Members to contact, as ``"host:port"``, in addition to ``discover``.
        min_members: How many members the group must have before joining succeeds, this one
            included. If there are fewer after ``timeout`` (30 s without one), joining raises
            ``TimedOutError``, which names what discovery found.
        transport: ``"auto"`` (UDP, with multicast where multicast works), ``"multicast"``,
            ``"mesh"`` (UDP, a copy to each member), ``"tcp"``, or an open transport.
        config: A ``Config``, a mapping of settings such as ``{"capacity": 64}``, or the path of a
            TOML file.
        display_name: A name for people, shown in logs, events, traces and snapshots of this member.
            The default is the durable name, or host, process id and a number. Display names need
            not be unique. Other members show a display name only after a ``snapshot`` of the
            member; until then they show the durable name or the locator.
        durable_name: Makes the member durable under this name: while the member is absent, senders
            retain messages for it (docs/guides/durable-members.md).
        state: An object with ``get_state() -> bytes`` and ``set_state(bytes)``, or a pair of such
            functions. A new member receives the state of an older member before its first message.
        listen: False for a member that only sends; received messages are dropped.
        rejoin: False to close the member after an expulsion instead of joining again as a new
            incarnation.
        keys: The keyring of the group: the path of a file, or a ``Keyring``. Only members with the
            same ring meet, and nobody else can speak, read or expel
            (docs/guides/operating/keys.md). By default the file that the environment variable
            ``GAPLESS_KEYS`` names, else the keyring of this user that ``gapless keys new`` made,
            else keys that only members of this user on this machine have: such a group stays on
            loopback.
        identity: The identity of this member, if the keyring names the identities that may join
            (docs/guides/operating/identities.md): the path of a file, or an ``Identity``. By
            default the file that the environment variable ``GAPLESS_IDENTITY`` names, else the
            identity of this user that ``gapless keys identity`` made.
        insecure: True for a group without keys: everybody who reaches its addresses can take part.
            The environment variable ``GAPLESS_INSECURE=1`` has the same effect where neither
            ``keys`` nor ``GAPLESS_KEYS`` is given.
        tls: For ``transport="tcp"``: a folder with ``ca.pem``, ``cert.pem`` and ``key.pem``, or a
            ``TlsFiles``. Every connection uses TLS 1.3, and both sides need a certificate of an
            authority in ``ca.pem`` (docs/guides/operating/certificates.md). With ``tls`` a group
            may use an address of a network without ``keys``; both together are possible.
        allow_lossy: True to use retransmission switched off (the profile ``ordered``) over UDP,
            which may lose messages, from the start or at run time. Without it both are refused.
        host: The local address to use, also for multicast; by default the address on the route to
            the seeds, else of the default route, else of an interface with multicast. A group
            without ``keys`` of an operator and without ``tls`` uses loopback, and refuses an
            address of a network unless ``insecure`` is true.
        ports: The ports to try in turn; by default 7800 to 7899. 0 is any free port.
        node: The 64-bit id of this member; by default random.
        resume: For a durable member: the highest seqno of each sender that the member has stored.
        stores: For a durable member: True to acknowledge only messages that ``confirm_stored``
            reports.
        trace: A folder in which a trace is recorded, or a ``Recorder`` (docs/reference/traces.md).
        trace_mode: ``"full"`` (the default), ``"sampled"`` or ``"sampled:N"``.
        name: Deprecated name of ``durable_name``.

    Returns:
        A group object that is not open yet.

    Raises:
        ConfigError: An option has an unknown name or an impossible value.

    Examples:
        ```python
        from gapless import blocking

        with blocking.join("orders") as group:
            group.send(b"one tea")
            message = group.receive(timeout=5)
            print(message.payload, message.seqno)  # b'one tea' 1
        ```
    """
    options: dict[str, Any] = {**locals()}  # every parameter, by its name
    return Group(MemberOptions(**options))


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__"])

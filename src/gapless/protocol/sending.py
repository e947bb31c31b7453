"""Sending: checks the messages of a send, chooses the delivery mode, and routes to a stream.

On sending: the messages are checked first, so that a refused call changes no state. Ordered and
acknowledged messages go to the stream of the group, or of the connection to one member; out-of-band
and unreliable messages go to their channel. A send that may not wait is taken whole or refused.

On cancellation, and when the timeout of a send expires: a waiting send is given up. Messages that
already have a number remain sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.protocol import buggify, timers
from gapless.protocol.events import Refused
from gapless.run import ACKED, LENGTH_BYTES, MAX_ENTRY_BYTES, NO_LOOPBACK
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, OUT_OF_BAND_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.identity import Address
    from gapless.payloads import Payloads
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.ready_builder import ReadyBuilder


class Sender:
    """The sends of an endpoint."""

    __slots__ = ("_endpoint", "_next_mode", "_tickets")

    def __init__(self, endpoint: Endpoint, tickets: Iterator[int]) -> None:
        self._endpoint = endpoint
        self._tickets = tickets
        self._next_mode: DeliveryMode | None = None

    def set_next_mode(self, mode: DeliveryMode) -> None:
        """Send only the next message to the group in ``mode`` (OL-04).

        A message with a mode of its own, a message to a single member (OL-21), and a refused
        message leave the switch in place.
        """
        self._next_mode = DeliveryMode.of(mode)

    def check(
        self,
        payloads: Payloads,
        to: Address | None,
        mode: DeliveryMode | None,
        timeout_ns: int | None,
    ) -> DeliveryMode:
        """Return the delivery mode of the messages; raise if the messages may not be sent."""
        view = self._endpoint.view
        switched = self._next_mode if mode is None and to is None else None
        if type(mode) is not DeliveryMode:
            mode = DeliveryMode.of(mode or switched or DeliveryMode.ORDERED)
        if view is None:
            raise LocalProtocolError(
                "this member has no view yet: wait for the first view before sending"
            )
        if to is not None and to not in view.members:
            raise LocalProtocolError(
                f"{to} is not a member of view {view.id.number}: send to a current member"
            )
        ordered = mode is DeliveryMode.ORDERED or mode is DeliveryMode.ACKNOWLEDGED
        if not ordered or payloads.longest_bytes > self._endpoint.config.max_message_bytes:
            self._check_size(payloads.longest_bytes, mode)
        if switched is not None and len(payloads) != 1:
            raise LocalProtocolError(
                "a switched mode applies to a single message: send one message at a time"
            )
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(
                f"a timeout of {timeout_ns} ns is negative: use wait=False to send without waiting"
            )
        return mode

    def _check_size(self, longest_bytes: int, mode: DeliveryMode) -> None:
        config = self._endpoint.config
        limit_bytes, limited_by = config.max_message_bytes, "max_message_bytes"
        if mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            # Unordered messages are never split: each has to fit one frame.
            overhead_bytes = ADDRESSED_HEADER_BYTES + OUT_OF_BAND_OVERHEAD_BYTES + LENGTH_BYTES
            limit_bytes = min(limit_bytes, config.max_frame_bytes - overhead_bytes, MAX_ENTRY_BYTES)
            limited_by = f"the limit of an {mode} message"
        if longest_bytes > limit_bytes:
            raise LocalProtocolError(
                f"a message of {longest_bytes} bytes exceeds {limited_by} ({limit_bytes} bytes)"
            )

    def submit(
        self,
        payloads: Payloads,
        mode: DeliveryMode,
        to: Address | None,
        out: ReadyBuilder,
        *,
        wait: bool,
        timeout_ns: int | None,
        loopback: bool | None,
        mode_given: bool,
    ) -> int:
        """Send messages approved by ``check``; return the ticket.

        ``mode_given``: the application named the mode, so the send leaves a switch in place.
        """
        assert self._endpoint.view is not None, "check refuses to send without a view"
        assert timeout_ns is None or timeout_ns >= 0, "check refuses a negative timeout"
        if loopback is None:
            loopback = self._endpoint.config.loopback or to is not None
        flags = 0 if loopback else NO_LOOPBACK
        deadline_ns = None if timeout_ns is None else out.now_ns + timeout_ns
        if mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            ticket = self._send_unordered(payloads, flags, to, mode, deadline_ns, out, wait=wait)
        else:
            flags |= ACKED if mode is DeliveryMode.ACKNOWLEDGED else 0
            ticket = self._send_stream(payloads, flags, to, deadline_ns, out, wait=wait)
        if ticket is None:
            ticket = next(self._tickets)
            out.emit(Refused(ticket))
        elif not mode_given and to is None:
            self._next_mode = None
        if deadline_ns is not None:
            self._arm_timeout()
        return ticket

    def _send_stream(
        self,
        payloads: Payloads,
        flags: int,
        to: Address | None,
        deadline_ns: int | None,
        out: ReadyBuilder,
        *,
        wait: bool,
    ) -> int | None:
        """Send messages in order; return the ticket, or None without room."""
        endpoint = self._endpoint
        stream = endpoint.outbound if to is None else endpoint.connections.open(to, out)
        if to is None:
            endpoint.active_senders.on_send(out.now_ns, wait=wait)
        elif to != endpoint.me:
            # The sender is no receiver of these messages: there is nothing to leave out.
            flags &= ~NO_LOOPBACK
        endpoint.divide_receive_buffers(out.now_ns)
        if not wait and (
            not stream.make_room(payloads, out) or (out.rarely and out.rarely(buggify.REFUSE))
        ):
            return None
        high = stream.window.high
        ticket = stream.send(payloads, flags, deadline_ns, out)
        assert stream.window.high >= high, "a send never takes back a seqno"
        if to is not None and stream.window.high > high:
            endpoint.connections.touch(to, out)
        return ticket

    def _send_unordered(
        self,
        payloads: Payloads,
        flags: int,
        to: Address | None,
        mode: DeliveryMode,
        deadline_ns: int | None,
        out: ReadyBuilder,
        *,
        wait: bool,
    ) -> int | None:
        """Send messages beside the streams; return the ticket, or None if there is no room."""
        assert mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}
        channel = self._endpoint.out_of_band
        if mode is DeliveryMode.UNRELIABLE:
            ticket = next(self._tickets)
            channel.send_unreliable(ticket, payloads, flags, to, out)
        elif wait or channel.has_room(payloads):
            ticket = next(self._tickets)
            channel.send(ticket, payloads, flags, to, deadline_ns, out)
        else:
            return None
        return ticket

    def give_up(self, ticket: int, reason: str, out: ReadyBuilder) -> None:
        """Give up a waiting send in any queue."""
        assert ticket > 0, "tickets start at 1"
        for stream in self._endpoint.outbounds():
            if stream.give_up(ticket, reason, out):
                stream.flush(out, reason)
                if stream.to is not None:
                    self._endpoint.connections.note_change(stream.to)
                return
        self._endpoint.out_of_band.give_up(ticket, reason, out)

    def expire(self, out: ReadyBuilder) -> None:
        """Give up every send with an expired timeout."""
        channel = self._endpoint.out_of_band
        self._endpoint.connections.note_changes()
        for stream in self._endpoint.outbounds():
            for ticket in stream.queue.overdue(out.now_ns):
                stream.give_up(ticket, "timeout", out)
            stream.flush(out, "timeout")
        for ticket in channel.overdue(out.now_ns):
            channel.give_up(ticket, "timeout", out)
        self._arm_timeout()

    def _arm_timeout(self) -> None:
        deadlines = [stream.queue.deadline_ns for stream in self._endpoint.outbounds()]
        deadlines.append(self._endpoint.out_of_band.deadline_ns)
        next_ns = min((at_ns for at_ns in deadlines if at_ns is not None), default=None)
        self._endpoint.timers.arm(timers.TIMEOUT, next_ns)

    def check_invariants(self) -> None:
        """Raise AssertionError if a waiting send with a timeout has no timer."""
        deadlines = [stream.queue.deadline_ns for stream in self._endpoint.outbounds()]
        deadlines.append(self._endpoint.out_of_band.deadline_ns)
        if any(at_ns is not None for at_ns in deadlines):
            assert timers.TIMEOUT in self._endpoint.timers, "a waiting send has its timer"

"""Builds trace rows from the Ready values of an incarnation, with independent counts.

On every Ready: a row for each step of the machine, then rows for the application's deliveries and
events, each in order.

For each stream the builder counts sent and delivered messages (``k``) and starts of the stream
(``part``), and keeps a running hash. A new part begins with the first message behind a START or
LOST row, whenever the message is delivered. The hash runs over consecutive rows of a stream with
the same send time, so that a run split elsewhere ends with the same hash. A fragmented message has
a hash of its own.

Sampled: only runs with a multiple of ``every`` have SEND and DELIVER rows, the same runs at every
member; the machine omits most other frequent rows, and datagrams are summed up. One in
``HASH_EVERY`` of the sampled rows has a hash, of the row alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from gapless.protocol.events import (
    Expelled,
    Left,
    Lost,
    Oversized,
    Started,
    StateReceived,
    ViewInstalled,
)
from gapless.protocol.ready import GROUP, UNICAST
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK, Run
from gapless.wire.frames import FIRST_CONNECTION_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.identity import Address
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery, Ready, TraceEntry

MAX_NAMES = 65_536
"""Maximum number of incarnations whose names are remembered; strangers can invent any number."""
HASH_EVERY = 16
"""A sampled row has a hash if its range has a multiple of this many times ``every``."""
NO_LOOPBACK_REASON = "not back"
"""The reason of a SEND row whose messages are not delivered to their sender."""
RowValues = tuple[Any, ...]
"""The columns of a row behind ``t_ns``, from ``event`` on, in the order of the schema."""


class _StreamCounters:
    """The counters of a stream in one direction."""

    __slots__ = (
        "crc",
        "hash_first",
        "headless_k",
        "k",
        "part",
        "parts",
        "pending_parts",
        "sent_ns",
        "skipped",
    )

    def __init__(self) -> None:
        self.part = 0
        self.parts = 0
        self.k = 0
        self.headless_k = 0
        self.crc = 0
        self.hash_first = 0
        self.sent_ns = -1
        self.pending_parts: list[tuple[int, int]] = []
        self.skipped: list[tuple[int, int]] = []

    def begin_part(self, first: int) -> int:
        """Start a new part at ``first``; return the number of the part."""
        while self.pending_parts and self.pending_parts[-1][0] > first:
            self.pending_parts.pop()
        self.parts += 1
        self.pending_parts.append((first, self.parts))
        return self.parts

    def enter_part(self, first: int) -> None:
        """Enter the part of ``first``."""
        while self.pending_parts and self.pending_parts[0][0] <= first:
            _, self.part = self.pending_parts.pop(0)
            self.k = self.headless_k = 0
            self.sent_ns = -1
        while self.skipped and self.skipped[0][1] < first:
            left, right = self.skipped.pop(0)
            self.k += right - left + 1
            self.sent_ns = -1

    def skip(self, first: int, last: int) -> None:
        """Count messages not delivered to their sender."""
        if self.skipped and self.skipped[-1][1] + 1 == first:
            first, _ = self.skipped.pop()
        self.skipped.append((first, last))

    def extend_hash(self, first: int, payload: bytes, sent_ns: int, flags: int) -> None:
        """Extend the running hash, or start a new hash."""
        if flags & FRAGMENT:
            goes_on = not flags & FIRST_FRAGMENT
            sent_ns = -1 if flags & LAST_FRAGMENT else -2
        else:
            goes_on = sent_ns == self.sent_ns
        if goes_on and self.hash_first:
            self.crc = crc32(payload, self.crc)
        else:
            self.crc, self.hash_first = crc32(payload), first
        self.sent_ns = sent_ns


class RowBuilder:
    """The rows of the incarnation ``me``.

    ``name`` returns the name of an address in a column, ``text`` the name in a reason, ``codes``
    the code of an event, and ``encode_reason`` the form of a reason.
    """

    def __init__(
        self,
        me: Address,
        name: Callable[[Address | None], Any],
        text: Callable[[Address], str],
        codes: Mapping[str, Any],
        encode_reason: Callable[[str], Any],
        *,
        by_view: bool,
        every: int = 1,
    ) -> None:
        """Start; ``by_view``: seqnos restart with every view. ``every`` above 1: sampled."""
        self.me = me
        self.view = 0
        self.every = every
        self._sampled = every > 1
        self._name_of = name
        self._format_address = text
        self._codes = codes
        self._encode_reason = encode_reason
        self._reasons: dict[str, Any] = {"": encode_reason("")}
        self._by_view = by_view
        self._no_name = name(None)
        self._own_name = name(me)
        self._names: dict[Address | None, Any] = {None: self._no_name, me: self._own_name}
        self._sent: dict[tuple[Address, int], _StreamCounters] = {}
        self._delivered: dict[tuple[Address, int], _StreamCounters] = {}
        self._datagrams = self._bytes = 0
        self._own_hashes: dict[int, tuple[Run, int, int]] = {}

    def rows_of_ready(self, ready: Ready) -> list[RowValues]:
        """Return the rows of a Ready, without datagrams."""
        rows: list[RowValues] = []
        before = self.view
        for step in ready.trace:
            self._add_step(step, rows)
        events = [event for event in ready.events if type(event) in _TRACED_EVENTS]
        if events:
            self._add_starts(events, rows)
        deliveries = ready.deliveries
        if self.view != before:
            for delivery in deliveries[: ready.before_view]:
                self._add_delivery(delivery, before, rows)
            deliveries = deliveries[ready.before_view :]
        if events:
            self._add_views(events, rows)
        for delivery in deliveries:
            self._add_delivery(delivery, self.view, rows)
        if events:
            self._add_ends(events, rows)
        return rows

    def _name(self, address: Address | None) -> Any:
        """Return and remember the name of an address."""
        found = self._names.get(address)
        if found is None:
            if len(self._names) >= MAX_NAMES:
                self._names = {None: self._no_name, self.me: self._own_name}
            found = self._names[address] = self._name_of(address)
        return found

    def _reason(self, reason: str) -> Any:
        """Return the encoded reason, and remember the code while there is room."""
        found = self._reasons.get(reason)
        if found is None:
            found = self._encode_reason(reason)
            if len(self._reasons) < _MAX_REASONS:
                self._reasons[reason] = found
        return found

    def row(self, event: str, *, reason: str = "", **columns: Any) -> RowValues:
        """Return a row with ``columns``; incarnations are given by their addresses."""
        get = columns.get
        return (
            self._codes[event],
            get("view", self.view),
            self._name(get("origin")),
            get("epoch", 0),
            self._name(get("to")),
            get("seqno", 0),
            get("seqno_last", 0),
            get("part", 0),
            get("k", 0),
            self._name(get("peer")),
            get("size_bytes", 0),
            0,
            0,
            0,
            get("low", 0),
            get("delivered", 0),
            get("high", 0),
            self._reason(reason),
        )

    # Steps of the machine

    def _add_step(self, step: TraceEntry, rows: list[RowValues]) -> None:
        (
            event,
            origin,
            first,
            last,
            peer,
            k,
            size_bytes,
            low,
            delivered,
            high,
            reason,
            epoch,
            to,
            run,
            sent_ns,
        ) = step
        part = crc = hash_first = 0
        if run is not None:
            sent_ns = run.sent_ns
            if event == "SEND":
                stream = self._count_sent(step, run)
                if self._sampled and not self._is_sampled(first, last):
                    return
                k, crc, hash_first = stream.k - run.count, stream.crc, stream.hash_first
                if self._sampled and self._is_sampled(first, last, HASH_EVERY):
                    crc, hash_first = crc32(run.payload), first
                if run.flags & NO_LOOPBACK:
                    reason = NO_LOOPBACK_REASON
            else:
                k, crc, hash_first = 0, crc32(run.payload), first
            size_bytes = len(run.payload)
        elif event == "VIEW":
            self.view = last
        elif event == "START":
            part = self._stream(self._delivered, origin, epoch).begin_part(first)
        elif event == "DROPPED" and reason == "headless":
            self._skip_headless(origin, epoch, first, last)
        if epoch >= FIRST_CONNECTION_EPOCH:
            if to is None:
                to = self.me if origin != self.me else peer
            epoch -= FIRST_CONNECTION_EPOCH
        names, reasons = self._names, self._reasons
        rows.append(
            (
                self._codes[event],
                self.view,
                names[origin] if origin in names else self._name(origin),
                epoch,
                names[to] if to in names else self._name(to),
                first,
                last,
                part,
                k,
                names[peer] if peer in names else self._name(peer),
                size_bytes,
                crc,
                hash_first,
                sent_ns,
                low,
                delivered,
                high,
                reasons[reason] if reason in reasons else self._reason(reason),
            )
        )

    def _count_sent(self, step: TraceEntry, run: Run) -> _StreamCounters:
        """Count a sent run, and return the counters of the stream."""
        stream = self._stream(self._sent, self.me, step.epoch)
        stream.k += run.count
        if not self._sampled:
            stream.extend_hash(run.first, run.payload, run.sent_ns, run.flags)
        if step.to is None:
            if run.flags & NO_LOOPBACK:
                self._stream(self._delivered, self.me, step.epoch).skip(run.first, run.last)
            elif (
                not self._sampled
                and not run.flags & FRAGMENT
                and len(self._own_hashes) < _MAX_OWN_HASHES
            ):
                self._own_hashes[run.first] = run, stream.crc, stream.hash_first
        return stream

    def _skip_headless(self, origin: Address | None, epoch: int, first: int, last: int) -> None:
        """Count the rest of a message that began before the start of the stream."""
        stream = self._stream(self._delivered, origin, epoch)
        stream.enter_part(first)
        if stream.k == stream.headless_k:
            stream.k += last - first + 1
            stream.headless_k = stream.k

    @staticmethod
    def _stream(
        streams: dict[tuple[Address, int], _StreamCounters], origin: Address | None, epoch: int
    ) -> _StreamCounters:
        assert origin is not None
        stream = streams.get((origin, epoch))
        if stream is None:
            stream = streams[origin, epoch] = _StreamCounters()
        return stream

    # Sampling

    def _is_sampled(self, first: int, last: int, times: int = 1) -> bool:
        every = self.every * times
        return last // every != (first - 1) // every

    def transmit_row(self, count: int, size_bytes: int) -> RowValues | None:
        """Return the row of sent datagrams; None while datagrams are only summed up."""
        self._datagrams += count
        self._bytes += size_bytes
        if self._datagrams < self.every or not self._datagrams:
            return None
        count, self._datagrams = self._datagrams, 0
        size_bytes, self._bytes = self._bytes, 0
        nobody = self._no_name
        return (
            *(self._codes["TX"], self.view, nobody, 0, nobody, 0, count, 0, 0),
            *(nobody, size_bytes, 0, 0, 0, 0, 0, 0, self._reasons[""]),
        )

    # What the application gets

    def _add_starts(self, events: Sequence[Event], rows: list[RowValues]) -> None:
        """Add rows for starts and losses, before the following deliveries."""
        epoch = self.view if self._by_view else 0
        for event in events:
            if isinstance(event, Started):
                first = event.start + 1
                part = self._stream(self._delivered, event.origin, epoch).begin_part(first)
                rows.append(
                    self.row("START", origin=event.origin, epoch=epoch, seqno=first, part=part)
                )
            elif isinstance(event, (Lost, Oversized)):
                origin, first, last = event
                part = self._stream(self._delivered, origin, epoch).begin_part(first)
                span = {"seqno": first, "seqno_last": last, "part": part}
                reason = "oversized" if isinstance(event, Oversized) else ""
                rows.append(self.row("LOST", origin=origin, epoch=epoch, reason=reason, **span))
            elif isinstance(event, StateReceived):
                rows.append(self.row("STATE_IN", peer=event.provider, size_bytes=len(event.state)))

    def _add_views(self, events: Sequence[Event], rows: list[RowValues]) -> None:
        for event in events:
            if isinstance(event, ViewInstalled):
                number, maker = event.view.id
                names = " ".join(map(self._format_address, event.view.members))
                rows.append(self.row("MEMBERS", view=number, origin=maker, reason=names))

    def _add_ends(self, events: Sequence[Event], rows: list[RowValues]) -> None:
        for event in events:
            if isinstance(event, Expelled):
                rows.append(self.row("EXPELLED", seqno_last=event.view.number))
            elif isinstance(event, Left):
                rows.append(self.row("LEFT", reason="" if event.confirmed else "unconfirmed"))

    def _add_delivery(self, delivery: Delivery, view: int, rows: list[RowValues]) -> None:
        origin, first, last, content, kind, epoch, flags, _, sent_ns = delivery
        if isinstance(content, Run):
            payload, sent_ns, flags = content.payload, content.sent_ns, 0
        else:
            payload, flags = content, FRAGMENT | FIRST_FRAGMENT | LAST_FRAGMENT
        to, reason, count = self._no_name, "", last - first + 1
        part = k = 0
        stream = None
        if kind == UNICAST and origin == self.me:
            # A message to oneself is never sent: there is no count to compare with.
            to, epoch, reason = self._own_name, epoch - FIRST_CONNECTION_EPOCH, "self"
        elif kind in _SEQUENCED_KINDS:
            stream = self._stream(self._delivered, origin, epoch)
            if stream.pending_parts or stream.skipped:
                stream.enter_part(first)
            part, k = stream.part, stream.k
            stream.k = k + count
            if kind == UNICAST:
                to, epoch, reason = self._own_name, epoch - FIRST_CONNECTION_EPOCH, UNICAST
        else:
            reason = kind
        if self._sampled and stream is not None and not self._is_sampled(first, last):
            return
        if self._sampled and not self._is_sampled(first, last, HASH_EVERY):
            crc = hash_first = 0
        elif self._sampled or stream is None:
            crc, hash_first = crc32(payload), first
        else:
            self._extend_hash(stream, delivery, payload, sent_ns, flags)
            crc, hash_first = stream.crc, stream.hash_first
        reasons = self._reasons
        rows.append(
            (
                self._codes["DELIVER"],
                view,
                self._name(origin),
                epoch,
                to,
                first,
                last,
                part,
                k,
                self._no_name,
                len(payload),
                crc,
                hash_first,
                sent_ns,
                0,
                0,
                0,
                reasons[reason] if reason in reasons else self._reason(reason),
            )
        )

    def _extend_hash(
        self, stream: _StreamCounters, delivery: Delivery, payload: bytes, sent_ns: int, flags: int
    ) -> None:
        """Extend the hash of a stream over a delivery; the hash of an own run is already known."""
        own = self._own_hashes.pop(delivery.first, None) if delivery.origin == self.me else None
        if own is not None and own[0] is delivery.content:
            _, stream.crc, stream.hash_first = own
            stream.sent_ns = sent_ns
        else:
            stream.extend_hash(delivery.first, payload, sent_ns, flags)


_MAX_REASONS = 256
_MAX_OWN_HASHES = 64
"""Maximum number of own runs whose hash is remembered until they are delivered."""
_SEQUENCED_KINDS = frozenset({GROUP, UNICAST})
_TRACED_EVENTS = frozenset({Started, Lost, Oversized, StateReceived, ViewInstalled, Expelled, Left})

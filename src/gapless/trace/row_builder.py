"""The scribe of one life: it turns answers of the machine into rows, and counts by itself what the checks rely on.

On every answer: a row for each thing that the machine says it did, then what the application gets,
each in its order.

Of each stream it counts the messages that were numbered and delivered (``k``), how often the stream
started (``part``), and keeps a running hash. A new part begins with the first message behind a
START or LOST row, whenever that is handed out. The hash runs on over rows of one stream whose runs
were sent at one time, so that a run that was cut elsewhere ends with the same hash; a message in
pieces has a hash of its own.

Sampled: of runs that are sent and delivered only those have a row that hold a multiple of
``every``, so the same ones at every member; the machine leaves out most of what else is frequent.
Datagrams are added up. One in :data:`HASHED` of these rows has a hash, which is that of the row
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from gapless.protocol.ready import (
    GROUP,
    ONE,
    Expelled,
    Left,
    Lost,
    Oversized,
    Started,
    StateReceived,
    ViewInstalled,
)
from gapless.run import BEGIN, END, NOT_BACK, PIECE, Run
from gapless.wire.frames import CONNECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.identity import Address
    from gapless.protocol.ready import Delivery, Event, Ready, Step

MOST_NAMES = 65_536
"""So many lives are remembered by their names; strangers can make up any number of them."""
HASHED = 16
"""Of the rows of a sample those have a hash whose range holds a multiple of so many times ``every``."""
NOT_BACK_REASON = "not back"
"""Why the origin is not handed what it has sent itself."""
Values = tuple[Any, ...]
"""The columns of a row behind ``t_ns``, from ``event`` on, in the order of the schema."""


class _Stream:
    """What is counted of one stream in one direction."""

    __slots__ = ("crc", "first", "k", "nearby", "part", "parts", "passed", "sent_ns", "skipped")

    def __init__(self) -> None:
        self.part = 0
        self.parts = 0
        self.k = 0
        self.passed = 0
        self.crc = 0
        self.first = 0
        self.sent_ns = -1
        self.nearby: list[tuple[int, int]] = []
        self.skipped: list[tuple[int, int]] = []

    def begin(self, first: int) -> int:
        """Note that a new part begins with ``first``; return its number."""
        while self.nearby and self.nearby[-1][0] > first:
            self.nearby.pop()
        self.parts += 1
        self.nearby.append((first, self.parts))
        return self.parts

    def advance(self, first: int) -> None:
        """Go into the part that ``first`` lies in."""
        while self.nearby and self.nearby[0][0] <= first:
            _, self.part = self.nearby.pop(0)
            self.k = self.passed = 0
            self.sent_ns = -1
        while self.skipped and self.skipped[0][1] < first:
            left, right = self.skipped.pop(0)
            self.k += right - left + 1
            self.sent_ns = -1

    def skip(self, first: int, last: int) -> None:
        """Note what is not handed to its own sender."""
        if self.skipped and self.skipped[-1][1] + 1 == first:
            first, _ = self.skipped.pop()
        self.skipped.append((first, last))

    def chain(self, first: int, payload: bytes, sent_ns: int, flags: int) -> None:
        """Let the hash run on, or begin anew."""
        if flags & PIECE:
            goes_on = not flags & BEGIN
            sent_ns = -1 if flags & END else -2
        else:
            goes_on = sent_ns == self.sent_ns
        if goes_on and self.first:
            self.crc = crc32(payload, self.crc)
        else:
            self.crc, self.first = crc32(payload), first
        self.sent_ns = sent_ns


class Scribe:
    """The rows of the life ``me``.

    ``name`` says how lives are called in them, ``text`` how they are in a reason, ``codes`` how
    events are, and ``say`` how reasons are.
    """

    def __init__(
        self,
        me: Address,
        name: Callable[[Address | None], Any],
        text: Callable[[Address], str],
        codes: Mapping[str, Any],
        say: Callable[[str], Any],
        *,
        by_view: bool,
        every: int = 1,
    ) -> None:
        """Begin; ``by_view``: numbers restart with every view. ``every`` above 1: sampled."""
        self.me = me
        self.view = 0
        self.every = every
        self._sampled = every > 1
        self._call = name
        self._text = text
        self._codes = codes
        self._say = say
        self._reasons: dict[str, Any] = {"": say("")}
        self._by_view = by_view
        self._nobody = name(None)
        self._mine = name(me)
        self._names: dict[Address | None, Any] = {None: self._nobody, me: self._mine}
        self._sent: dict[tuple[Address, int], _Stream] = {}
        self._got: dict[tuple[Address, int], _Stream] = {}
        self._datagrams = self._bytes = 0
        self._own: dict[int, tuple[Run, int, int]] = {}

    def answer(self, ready: Ready) -> list[Values]:
        """Return the rows of one answer, but for its datagrams."""
        rows: list[Values] = []
        before = self.view
        for step in ready.trace:
            self._step(step, rows)
        told = [event for event in ready.events if type(event) in _TOLD]
        if told:
            self._starts(told, rows)
        deliveries = ready.deliveries
        if self.view != before:
            for delivery in deliveries[: ready.before_view]:
                self._deliver(delivery, before, rows)
            deliveries = deliveries[ready.before_view :]
        if told:
            self._views(told, rows)
        for delivery in deliveries:
            self._deliver(delivery, self.view, rows)
        if told:
            self._ends(told, rows)
        return rows

    def _name(self, address: Address | None) -> Any:
        """Return how a life is called, and remember it."""
        found = self._names.get(address)
        if found is None:
            if len(self._names) >= MOST_NAMES:
                self._names = {None: self._nobody, self.me: self._mine}
            found = self._names[address] = self._call(address)
        return found

    def _reason(self, reason: str) -> Any:
        """Return how a reason is said, and remember it, unless it is one that comes once."""
        found = self._reasons.get(reason)
        if found is None:
            found = self._say(reason)
            if len(self._reasons) < _MOST_REASONS:
                self._reasons[reason] = found
        return found

    def row(self, event: str, *, reason: str = "", **columns: Any) -> Values:
        """Return a row of anything else; lives are given by their addresses."""
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

    # What the machine says

    def _step(self, step: Step, rows: list[Values]) -> None:
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
                stream = self._numbered(step, run)
                if self._sampled and not self._holds_one(first, last):
                    return
                k, crc, hash_first = stream.k - run.count, stream.crc, stream.first
                if self._sampled and self._holds_one(first, last, HASHED):
                    crc, hash_first = crc32(run.payload), first
                if run.flags & NOT_BACK:
                    reason = NOT_BACK_REASON
            else:
                k, crc, hash_first = 0, crc32(run.payload), first
            size_bytes = len(run.payload)
        elif event == "VIEW":
            self.view = last
        elif event == "START":
            part = self._stream(self._got, origin, epoch).begin(first)
        elif event == "DROPPED" and reason == "headless":
            self._headless(origin, epoch, first, last)
        if epoch >= CONNECTION:
            if to is None:
                to = self.me if origin != self.me else peer
            epoch -= CONNECTION
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

    def _numbered(self, step: Step, run: Run) -> _Stream:
        """Count what was sent."""
        stream = self._stream(self._sent, self.me, step.epoch)
        stream.k += run.count
        if not self._sampled:
            stream.chain(run.first, run.payload, run.sent_ns, run.flags)
        if step.to is None:
            if run.flags & NOT_BACK:
                self._stream(self._got, self.me, step.epoch).skip(run.first, run.last)
            elif not self._sampled and not run.flags & PIECE and len(self._own) < _MOST_OWN:
                self._own[run.first] = run, stream.crc, stream.first
        return stream

    def _headless(self, origin: Address | None, epoch: int, first: int, last: int) -> None:
        """Step over the rest of a message that had begun before the start."""
        stream = self._stream(self._got, origin, epoch)
        stream.advance(first)
        if stream.k == stream.passed:
            stream.k += last - first + 1
            stream.passed = stream.k

    @staticmethod
    def _stream(
        streams: dict[tuple[Address, int], _Stream], origin: Address | None, epoch: int
    ) -> _Stream:
        assert origin is not None
        stream = streams.get((origin, epoch))
        if stream is None:
            stream = streams[origin, epoch] = _Stream()
        return stream

    # Sampling

    def _holds_one(self, first: int, last: int, times: int = 1) -> bool:
        every = self.every * times
        return last // every != (first - 1) // every

    def datagrams(self, count: int, size_bytes: int) -> Values | None:
        """Return the row of datagrams that go out, or nothing if they are only added up."""
        self._datagrams += count
        self._bytes += size_bytes
        if self._datagrams < self.every or not self._datagrams:
            return None
        count, self._datagrams = self._datagrams, 0
        size_bytes, self._bytes = self._bytes, 0
        nobody = self._nobody
        return (
            *(self._codes["TX"], self.view, nobody, 0, nobody, 0, count, 0, 0),
            *(nobody, size_bytes, 0, 0, 0, 0, 0, 0, self._reasons[""]),
        )

    # What the application gets

    def _starts(self, events: Sequence[Event], rows: list[Values]) -> None:
        """Write where streams start and what is lost, before anything is handed out of them."""
        epoch = self.view if self._by_view else 0
        for event in events:
            if isinstance(event, Started):
                first = event.start + 1
                part = self._stream(self._got, event.origin, epoch).begin(first)
                rows.append(
                    self.row("START", origin=event.origin, epoch=epoch, seqno=first, part=part)
                )
            elif isinstance(event, (Lost, Oversized)):
                origin, first, last = event
                part = self._stream(self._got, origin, epoch).begin(first)
                span = {"seqno": first, "seqno_last": last, "part": part}
                reason = "oversized" if isinstance(event, Oversized) else ""
                rows.append(self.row("LOST", origin=origin, epoch=epoch, reason=reason, **span))
            elif isinstance(event, StateReceived):
                rows.append(self.row("STATE_IN", peer=event.provider, size_bytes=len(event.state)))

    def _views(self, events: Sequence[Event], rows: list[Values]) -> None:
        for event in events:
            if isinstance(event, ViewInstalled):
                number, maker = event.view.id
                names = " ".join(map(self._text, event.view.members))
                rows.append(self.row("MEMBERS", view=number, origin=maker, reason=names))

    def _ends(self, events: Sequence[Event], rows: list[Values]) -> None:
        for event in events:
            if isinstance(event, Expelled):
                rows.append(self.row("EXPELLED", seqno_last=event.view.number))
            elif isinstance(event, Left):
                rows.append(self.row("LEFT", reason="" if event.confirmed else "unconfirmed"))

    def _deliver(self, delivery: Delivery, view: int, rows: list[Values]) -> None:
        origin, first, last, content, kind, epoch, flags, _, sent_ns = delivery
        if isinstance(content, Run):
            payload, sent_ns, flags = content.payload, content.sent_ns, 0
        else:
            payload, flags = content, PIECE | BEGIN | END
        to, reason, count = self._nobody, "", last - first + 1
        part = k = 0
        stream = None
        if kind == ONE and origin == self.me:
            # What a member says to itself is never sent: there is nothing to count against.
            to, epoch, reason = self._mine, epoch - CONNECTION, "self"
        elif kind in _NUMBERED:
            stream = self._stream(self._got, origin, epoch)
            if stream.nearby or stream.skipped:
                stream.advance(first)
            part, k = stream.part, stream.k
            stream.k = k + count
            if kind == ONE:
                to, epoch, reason = self._mine, epoch - CONNECTION, ONE
        else:
            reason = kind
        if self._sampled and stream is not None and not self._holds_one(first, last):
            return
        if self._sampled and not self._holds_one(first, last, HASHED):
            crc = hash_first = 0
        elif self._sampled or stream is None:
            crc, hash_first = crc32(payload), first
        else:
            self._chain(stream, delivery, payload, sent_ns, flags)
            crc, hash_first = stream.crc, stream.first
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
                self._nobody,
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

    def _chain(
        self, stream: _Stream, delivery: Delivery, payload: bytes, sent_ns: int, flags: int
    ) -> None:
        """Let the hash of a stream run on over a delivery; of an own run it is known since that was sent."""
        own = self._own.pop(delivery.first, None) if delivery.origin == self.me else None
        if own is not None and own[0] is delivery.content:
            _, stream.crc, stream.first = own
            stream.sent_ns = sent_ns
        else:
            stream.chain(delivery.first, payload, sent_ns, flags)


_MOST_REASONS = 256
_MOST_OWN = 64
"""Of so many own runs it is remembered, until they are handed out, what their hash is: it need not be made twice."""
_NUMBERED = frozenset({GROUP, ONE})
_TOLD = frozenset({Started, Lost, Oversized, StateReceived, ViewInstalled, Expelled, Left})

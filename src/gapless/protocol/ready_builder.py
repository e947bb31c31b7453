"""The builder of a ``Ready``: during an input, the machines add their results to the builder.

Frames are collected per destination and packed into datagrams. Events, deliveries and trace rows
keep their order. Counters are never reset. A member has a single builder; ``build`` returns the
outcome of the input and starts the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.protocol.ready import ANYONE, Delivery, Ready, TraceEntry, Transmit
from gapless.wire.codec import (
    ADDRESSED_HEADER_BYTES,
    encode,
    encode_split,
    run_room_bytes,
    size_bytes,
)
from gapless.wire.control_frames import SIGNATURE_FRAME_BYTES
from gapless.wire.frames import Data, Frame, Join, MembershipFrame, Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.events import Event, ViewInstalled
    from gapless.protocol.membership.signatures import SignatureGuard
    from gapless.run import Run

SENT_COUNTERS = {kind: f"sent.{kind.__name__.lower()}" for kind in get_args(Frame)}
"""The counter of frames sent, by kind."""
RECEIVED_COUNTERS = {kind: f"received.{kind.__name__.lower()}" for kind in get_args(Frame)}
"""The counter of frames received, by kind."""

_RANGE_EVENTS = frozenset({"STORE", "PURGE"})
_SAMPLED_EVENTS = _RANGE_EVENTS | {"ACK_OUT", "ACK_IN", "TAIL_OUT", "TAIL_IN", "TIMER"}
"""Events of every run or timer: a sampled trace has only some of them."""
_make = tuple.__new__


class ReadyBuilder:
    """The outcome of the present input."""

    __slots__ = (
        "_bare",
        "_checked",
        "_frames",
        "_group",
        "_max_body_bytes",
        "_max_frame_bytes",
        "_me",
        "_ready",
        "_sampled_marks",
        "_whole_runs",
        "counters",
        "guard",
        "last_sent_ns",
        "now_ns",
        "rarely",
        "tracing",
        "wall_offset_ns",
    )

    def __init__(
        self,
        me: Address,
        group: int,
        config: Config,
        rarely: RareBranchHook | None,
        *,
        tracing: int,
    ) -> None:
        """Create a builder; ``tracing`` is the sampling interval in messages: 0 none, 1 all."""
        self._bare = config.checksum in {"headers", "none"}
        self._checked = config.checksum != "none"
        self._whole_runs = config.whole_runs
        self._me = me
        self._group = group
        self._max_frame_bytes = config.max_frame_bytes
        self._max_body_bytes = config.max_frame_bytes - ADDRESSED_HEADER_BYTES
        self.tracing = int(tracing)
        self._sampled_marks: dict[object, int] = {}
        self.rarely = rarely
        self.now_ns = 0
        self.wall_offset_ns = 0
        self.counters: dict[str, int] = {}
        self.last_sent_ns: dict[Address | None, int] | None = None
        self.guard: SignatureGuard | None = None
        """Signs the frames about membership; None without identities."""
        self._frames: list[tuple[Address | None, Frame]] = []
        self._ready = Ready()

    @property
    def sent_ns(self) -> int:
        """The wall-clock time, carried by messages sent now."""
        return self.now_ns + self.wall_offset_ns

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def transmit(self, to: Address | None, frame: Frame) -> None:
        """Send ``frame`` to one member, or to all."""
        self._frames.append((to, frame))

    def deliver(self, delivery: Delivery) -> None:
        """Deliver messages to the application."""
        self._ready.deliveries.append(delivery)

    def emit(self, event: Event) -> None:
        """Report an event to the application."""
        self._ready.events.append(event)

    def begin_view(self, event: ViewInstalled) -> None:
        """Report a view: deliveries of this input so far precede the view, later ones follow."""
        assert not self._ready.before_view, "an input installs one view at most"
        self._ready.before_view = len(self._ready.deliveries)
        self.emit(event)

    def use_view_keys(self, keys: tuple[bytes, ...]) -> None:
        """Open messages with ``keys`` from now on, and seal them with the first one."""
        self._ready.view_keys = keys

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries of the input so far."""
        return self._ready.deliveries

    @property
    def before_view(self) -> int:
        """The number of deliveries before the view of the input."""
        return self._ready.before_view

    def replace_deliveries(self, deliveries: list[Delivery], before_view: int) -> None:
        """Replace the deliveries of the input."""
        assert 0 <= before_view <= len(deliveries), "the view takes effect between deliveries"
        self._ready.deliveries, self._ready.before_view = deliveries, before_view

    @property
    def events(self) -> list[Event]:
        """The events of the input so far."""
        return self._ready.events

    def trace(
        self,
        event: str,
        origin: Address | None = None,
        seqno: int = 0,
        seqno_last: int = 0,
        *,
        peer: Address | None = None,
        k: int = 0,
        low: int = 0,
        delivered: int = 0,
        high: int = 0,
        reason: str = "",
        epoch: int = 0,
        to: Address | None = None,
        run: Run | None = None,
        sent_ns: int = 0,
    ) -> None:
        """Add a row to the trace, if tracing is on and the row is in the sample."""
        tracing = self.tracing
        if not tracing:
            return
        if tracing > 1 and event in _SAMPLED_EVENTS:
            if event in _RANGE_EVENTS:
                if seqno_last // tracing == (seqno - 1) // tracing:
                    return
            elif event == "TIMER" or not self._crossed_sample(
                (event, origin, epoch, peer), seqno_last or high
            ):
                return
        size_bytes = 0 if run is None else run.size_bytes
        values = (
            event,
            origin,
            seqno,
            seqno_last,
            peer,
            k,
            size_bytes,
            low,
            delivered,
            high,
            reason,
            epoch,
            to,
        )
        self._ready.trace.append(_make(TraceEntry, (*values, run, sent_ns)))

    def _crossed_sample(self, key: object, mark: int) -> bool:
        """Return whether ``mark`` has passed a multiple of the interval since the last row."""
        assert self.tracing > 1, "only a sampled trace leaves rows out"
        passed = mark // self.tracing
        if self._sampled_marks.get(key) == passed:
            return False
        self._sampled_marks[key] = passed
        return True

    def drop(
        self,
        reason: str,
        origin: Address | None = None,
        first: int = 0,
        last: int = 0,
        *,
        peer: Address | None = None,
        message_count: int = 1,
        epoch: int = 0,
    ) -> None:
        """Count dropped input under its reason."""
        assert reason, "every drop has a reason"
        assert message_count > 0, "a drop of nothing is not counted"
        self.count(f"dropped.{reason}", message_count)
        self.trace(
            "DROPPED",
            origin,
            first,
            last,
            peer=peer,
            k=message_count,
            reason=reason,
            epoch=epoch,
        )

    def discard(self) -> None:
        """Discard the frames, deliveries and events of the input; counters and trace stay."""
        self._frames = []
        self._ready = Ready(trace=self._ready.trace)

    def build(self, deadline_ns: int | None) -> Ready:
        """Return the outcome of the input, and start the next."""
        ready = self._ready
        self._ready = Ready()
        assert ready.before_view <= len(ready.deliveries), "the view is between deliveries"
        ready.deadline_ns = deadline_ns
        if self._frames:
            self._pack(ready.transmits)
            self._frames = []
        return ready

    def _pack(self, transmits: list[Transmit]) -> None:
        """Pack frames with the same destination into datagrams, in order."""
        if self.guard is not None:
            self._pack_signed(self.guard, transmits)
            if not self._frames:
                return
        if len(self._frames) == 1:
            ((to, frame),) = self._frames
            if type(frame) is not Data or size_bytes(frame) <= self._max_body_bytes:
                # The ordinary case: one frame, which fits one datagram.
                self.count(SENT_COUNTERS[type(frame)])
                transmits.append(self._make_transmit(to, (frame,)))
                return
        open_frames: dict[Address | None, list[Frame]] = {}
        filled_bytes: dict[Address | None, int] = {}
        for to, frame in self._frames:
            self.count(SENT_COUNTERS[type(frame)])
            frame_bytes = size_bytes(frame)
            pending = open_frames.get(to)
            if frame_bytes > self._max_body_bytes and type(frame) is Data:
                if pending is not None:
                    transmits.append(self._make_transmit(to, open_frames.pop(to)))
                if self._whole_runs:
                    transmits.append(self._make_transmit(to, (frame,)))
                else:
                    self._transmit_split(to, frame, transmits)
                continue
            if pending is None:
                open_frames[to] = [frame]
                filled_bytes[to] = ADDRESSED_HEADER_BYTES + frame_bytes
            elif filled_bytes[to] + frame_bytes <= self._max_frame_bytes:
                pending.append(frame)
                filled_bytes[to] += frame_bytes
            else:
                transmits.append(self._make_transmit(to, pending))
                open_frames[to] = [frame]
                filled_bytes[to] = ADDRESSED_HEADER_BYTES + frame_bytes
        transmits += (self._make_transmit(to, frames) for to, frames in open_frames.items())

    def _pack_signed(self, guard: SignatureGuard, transmits: list[Transmit]) -> None:
        """Pack the frames about membership into signed datagrams, and leave the other frames."""
        rest: list[tuple[Address | None, Frame]] = []
        open_frames: dict[Address | None, list[MembershipFrame]] = {}
        filled_bytes: dict[Address | None, int] = {}
        room_bytes = self._max_body_bytes - SIGNATURE_FRAME_BYTES
        for to, frame in self._frames:
            if not isinstance(frame, MembershipFrame):
                rest.append((to, frame))
                continue
            self.count(SENT_COUNTERS[type(frame)])
            frame_bytes = size_bytes(frame)
            pending = open_frames.get(to, [])
            # A JOIN is alone, with the signature of its joiner, so that a member can relay it.
            follows = isinstance(frame, Signature) or (
                not isinstance(frame, Join)
                and not any(isinstance(other, Join) for other in pending)
                and filled_bytes.get(to, 0) + frame_bytes <= room_bytes
            )
            if pending and not follows:
                transmits.append(self._sign_transmit(guard, to, open_frames.pop(to)))
                filled_bytes[to] = 0
            open_frames.setdefault(to, []).append(frame)
            filled_bytes[to] = filled_bytes.get(to, 0) + frame_bytes
        transmits += (self._sign_transmit(guard, *item) for item in open_frames.items())
        self._frames = rest

    def _sign_transmit(
        self, guard: SignatureGuard, to: Address | None, frames: list[MembershipFrame]
    ) -> Transmit:
        guard.last_sent_ns[to] = self.now_ns
        signed = (*frames, guard.sign(to, frames))
        addressee = None if to is None or to == ANYONE else to.incarnation
        return Transmit(to, encode(self._group, self._me, signed, addressee))

    def _transmit_split(self, to: Address | None, frame: Data, transmits: list[Transmit]) -> None:
        """Split a run larger than a frame into several datagrams."""
        room_bytes = run_room_bytes(self._max_frame_bytes, frame.epoch)
        addressee = None if to is None else to.incarnation
        parts = encode_split(
            self._group,
            self._me,
            frame,
            room_bytes,
            addressee,
            bare=self._bare,
            checked=self._checked,
            view_key=self.guard is not None,
        )
        assert parts, "a run has at least one part"
        assert all(len(part) <= self._max_frame_bytes for part in parts), "every part is a frame"
        self.count(SENT_COUNTERS[Data], len(parts) - 1)
        transmits += [Transmit(to, part) for part in parts]
        if self.last_sent_ns is not None:
            self.last_sent_ns[to] = self.now_ns

    def _make_transmit(self, to: Address | None, frames: Sequence[Frame]) -> Transmit:
        if self.last_sent_ns is not None:
            self.last_sent_ns[to] = self.now_ns
        addressee = None if to is None or to == ANYONE else to.incarnation
        bare = self._bare and len(frames) == 1 and type(frames[0]) is Data
        datagram = encode(
            self._group,
            self._me,
            frames,
            addressee,
            bare,
            checked=self._checked,
            view_key=self.guard is not None,
        )
        return Transmit(to, datagram)

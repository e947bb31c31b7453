"""Routing of incoming frames: each frame goes to the stream or the machine of its kind.

On reception of a datagram: a datagram for another group, or for another incarnation of this member,
is dropped. A datagram from an address outside the view is buffered if a later view may include the
address, and dropped otherwise. Every drop is counted under a reason and has no other effect.

On reception of a frame from a member of the view: data and marks go to the inbound stream of the
origin. Acks and naks go to the outbound stream they name; a nak for the stream of another origin is
answered where the profile retains delivered messages. Frames with the epoch of a connection go to
the connections, out-of-band frames to the out-of-band channel, votes to the stability protocol, and
frames of a state transfer to the state transfer, if this member has one.

The origin of a frame must be the sender of the datagram. The only exception is a repair sent by
another member in place of the origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.profiles import NumberingScope
from gapless.protocol.ready_builder import RECEIVED_COUNTERS
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Ack,
    Close,
    Data,
    Gone,
    MembershipFrame,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StateFrame,
    Tail,
    Unreliable,
    Vote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.wire.frames import Datagram, Frame


class FrameDispatcher:
    """The router of an endpoint. A dispatcher has no state."""

    __slots__ = ("_endpoint", "_group", "_me")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._me = endpoint.me
        self._group = endpoint.group

    # Datagrams

    def on_datagram(self, datagram: Datagram, out: ReadyBuilder) -> Iterable[InboundStream]:
        """Handle a datagram from any sender; return the streams that may have moved."""
        sender = datagram.sender
        stream = self._endpoint.inbound.get(sender)
        if datagram.group != self._group:
            out.drop("group", peer=sender)
        elif datagram.addressee is not None and datagram.addressee != self._me.incarnation:
            out.drop("addressee", peer=sender)
        elif stream is None:
            self.on_stranger(datagram, out)
        else:
            return self.on_frames(datagram, stream, out)
        return ()

    def on_stranger(self, datagram: Datagram, out: ReadyBuilder) -> None:
        """Buffer or drop a datagram from a sender outside the view."""
        endpoint, sender = self._endpoint, datagram.sender
        assert sender not in endpoint.inbound, "a member of the view is not a stranger"
        if sender == self._me:
            out.drop("own", peer=sender)
        elif endpoint.future_view_buffer.buffer_datagram(
            # A departed member speaks of a view that is over: the next view does not explain it.
            datagram,
            departed=endpoint.view is not None and sender in endpoint.resume_positions.delivered,
        ):
            out.trace("EARLY", sender, peer=sender)
        elif not self._buffer_from_joiner(datagram, out):
            known_node = sender.node in endpoint.nodes
            out.drop("incarnation" if known_node else "stranger", peer=sender)

    def _buffer_from_joiner(self, datagram: Datagram, out: ReadyBuilder) -> bool:
        """Buffer data that a joiner sent in a later view; return whether the datagram has any."""
        endpoint, sender = self._endpoint, datagram.sender
        # Only where messages belong to a view does the epoch of a frame name a later view.
        if endpoint.view is None or endpoint.profile.numbering is not NumberingScope.VIEW:
            return False
        later = [
            frame
            for frame in datagram.frames
            if isinstance(frame, Data) and endpoint.epoch < frame.epoch < FIRST_CONNECTION_EPOCH
        ]
        buffered = [
            frame
            for frame in later
            if frame.run.origin == sender and endpoint.future_view_buffer.buffer_frame(frame)
        ]
        for frame in buffered:
            out.trace("EARLY", sender, frame.run.first, frame.run.last, peer=sender)
        return bool(buffered)

    # Frames of a member of the view

    def on_frames(
        self, datagram: Datagram, stream: InboundStream, out: ReadyBuilder
    ) -> Iterable[InboundStream]:
        """Handle the frames of a member of the view; return the streams that may have moved."""
        sender, frames = datagram.sender, datagram.frames
        if len(frames) == 1:
            frame = frames[0]
            moved = (
                self._on_data(frame, sender, stream, out)
                if isinstance(frame, Data)
                else self._on_frame(frame, sender, stream, out)
            )
            return () if moved is None else (moved,)
        touched: dict[tuple[Address, int], InboundStream] = {}
        for frame in self._endpoint.connections.opening_first(frames):
            if (moved := self._on_frame(frame, sender, stream, out)) is not None:
                touched[moved.key] = moved
        return touched.values()

    def _on_frame(
        self, frame: Frame, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        """Handle one frame; return the stream that may have moved, if any."""
        if isinstance(frame, Data):
            return self._on_data(frame, sender, stream, out)
        if isinstance(frame, Ack):
            self._on_own_stream(frame, sender, out)
            return None
        if isinstance(frame, (Nak, OutOfBandAck)):
            if frame.origin == self._me:
                self._on_own_stream(frame, sender, out)
            else:
                self._on_nak_for_another(frame, sender, out)
            return None
        return self._on_other_frame(frame, sender, stream, out)

    def _on_data(
        self, frame: Data, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        endpoint = self._endpoint
        origin, epoch = frame.run.origin, frame.epoch
        if origin != sender:
            # A member that retains the message repairs it in the place of its origin.
            retained = (
                endpoint.inbound.get(origin)
                if frame.repair and stream.retains_delivered and epoch < FIRST_CONNECTION_EPOCH
                else None
            )
            if retained is None:
                out.drop("origin", origin, peer=sender)
                return None
            stream = retained
        if epoch != endpoint.epoch:
            if epoch >= FIRST_CONNECTION_EPOCH:
                out.count(RECEIVED_COUNTERS[Data])
                endpoint.active_senders.last_data_ns[sender] = out.now_ns
                return endpoint.connections.on_frame(sender, frame, out)
            self._on_other_view(frame, sender, out)
            return None
        out.count(RECEIVED_COUNTERS[Data])
        endpoint.active_senders.last_data_ns[sender] = out.now_ns
        stream.on_data(frame.run, frame.repair, out)
        return stream

    def _on_other_view(self, frame: Data, sender: Address, out: ReadyBuilder) -> None:
        """Buffer a message of a later view; drop a message of an earlier view (OL-06, OL-07).

        A repair by another holder is not buffered: a member may fill its own queue only.
        """
        endpoint, run = self._endpoint, frame.run
        assert endpoint.epoch != frame.epoch < FIRST_CONNECTION_EPOCH
        if (
            endpoint.profile.numbering is NumberingScope.VIEW
            and frame.epoch > endpoint.epoch
            and run.origin == sender
            and endpoint.future_view_buffer.buffer_frame(frame)
        ):
            out.trace("EARLY", run.origin, run.first, run.last, peer=run.origin)
            return
        later = frame.epoch > endpoint.epoch and endpoint.profile.numbering is NumberingScope.VIEW
        out.drop(
            "early" if later else "view",
            run.origin,
            run.first,
            run.last,
            peer=run.origin,
            message_count=run.count,
        )

    def _on_other_frame(
        self, frame: Frame, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        """Handle a frame other than data, ack or nak."""
        assert not isinstance(frame, (Data, Ack, Nak, OutOfBandAck))
        endpoint = self._endpoint
        if isinstance(frame, StateFrame) and endpoint.state_transfer is not None:
            endpoint.state_transfer.on_frame(sender, frame, out)
            return None
        if isinstance(frame, (MembershipFrame, StateFrame)):
            # An endpoint is given its views: it takes no part in agreeing on them.
            out.drop("membership", peer=sender)
            return None
        unordered = isinstance(frame, (OutOfBand, Unreliable))
        origin = frame.run.origin if isinstance(frame, (OutOfBand, Unreliable)) else frame.origin
        if origin != sender:
            out.drop("origin", origin, peer=sender)
            return None
        if not unordered and not isinstance(frame, (Vote, Stable)):
            assert isinstance(frame, (Tail, Gone, Close))
            return self._on_stream_marks(frame, sender, stream, out)
        out.count(RECEIVED_COUNTERS[type(frame)])
        if isinstance(frame, OutOfBand):
            endpoint.out_of_band.on_message(frame, out)
        elif isinstance(frame, Unreliable):
            endpoint.out_of_band.on_unreliable(frame, out)
        else:
            assert isinstance(frame, (Vote, Stable))
            self._on_stability(frame, sender, out)
        return None

    def _on_stability(self, frame: Vote | Stable, sender: Address, out: ReadyBuilder) -> None:
        """Handle a vote, or the decision of the vote counter."""
        assert frame.origin == sender
        endpoint, deliveries = self._endpoint, self._endpoint.deliveries
        if endpoint.stability is None:
            # In this profile acks release messages; a member with another profile sent this.
            out.drop("stability", frame.origin, peer=sender)
        elif isinstance(frame, Vote):
            progress = endpoint.stability.on_vote(sender, frame, deliveries.marks, out)
            deliveries.on_stable(progress, out)
        elif endpoint.stability.accepts(sender, frame, out):
            deliveries.on_stable(frame.progress, out)

    def _on_stream_marks(
        self, frame: Tail | Gone | Close, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        """Handle the announced start or end of a stream of the sender."""
        epoch = frame.epoch
        assert frame.origin == sender == stream.origin, "marks come from the origin alone"
        if epoch < FIRST_CONNECTION_EPOCH and epoch != self._endpoint.epoch:
            out.drop("other view", sender, peer=sender)
            return None
        out.count(RECEIVED_COUNTERS[type(frame)])
        if epoch >= FIRST_CONNECTION_EPOCH or isinstance(frame, Close):
            return self._endpoint.connections.on_frame(sender, frame, out)
        if isinstance(frame, Tail):
            stream.on_tail(frame, self._me, out)
        else:
            stream.on_gone(frame.low)
        return stream

    # Feedback about the own streams, and requests for those of others

    def _on_own_stream(
        self, frame: Ack | Nak | OutOfBandAck, sender: Address, out: ReadyBuilder
    ) -> None:
        """Handle feedback of ``sender`` about a stream of this member."""
        endpoint, origin = self._endpoint, frame.origin
        assert sender != self._me, "own datagrams are dropped before"
        if origin != self._me:
            self._drop_foreign(origin, sender, out)
            return
        epoch = 0 if isinstance(frame, OutOfBandAck) else frame.epoch
        if (
            epoch != endpoint.epoch
            and epoch < FIRST_CONNECTION_EPOCH
            and not isinstance(frame, OutOfBandAck)
        ):
            out.drop("other view", origin, peer=sender)
            return
        out.count(RECEIVED_COUNTERS[type(frame)])
        if isinstance(frame, OutOfBandAck):
            endpoint.out_of_band.on_ack(sender, frame.ranges, out)
        elif epoch >= FIRST_CONNECTION_EPOCH:
            endpoint.connections.on_feedback(sender, frame, out)
        elif isinstance(frame, Nak):
            endpoint.outbound.on_nak(sender, frame.ranges, out)
        else:
            # An ack may let waiting sends go on: first learn what share of the buffers they have.
            if len(endpoint.outbound.queue):
                endpoint.divide_receive_buffers(out.now_ns)
            endpoint.outbound.on_ack(sender, frame.seqno, frame.buffer_bytes, out)

    def _on_nak_for_another(
        self, frame: Nak | OutOfBandAck, sender: Address, out: ReadyBuilder
    ) -> None:
        """Repair a message of another origin, if the profile retains delivered messages."""
        assert frame.origin != self._me, "a nak for the own stream is feedback"
        retained = self._endpoint.inbound.get(frame.origin)
        if (
            retained is None
            or not retained.retains_delivered
            or isinstance(frame, OutOfBandAck)
            or frame.epoch != self._endpoint.epoch
        ):
            self._drop_foreign(frame.origin, sender, out)
            return
        out.count(RECEIVED_COUNTERS[Nak])
        retained.on_nak(sender, frame.ranges, out)

    def _drop_foreign(self, origin: Address, sender: Address, out: ReadyBuilder) -> None:
        """Drop feedback about a stream of another incarnation."""
        assert origin != self._me
        reason = "not mine" if origin.node != self._me.node else "incarnation"
        out.drop(reason, origin, peer=sender)

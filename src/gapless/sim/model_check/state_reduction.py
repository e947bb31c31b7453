"""Stale information: marks and frames that make no difference any more.

The rules only propose. ``gapless.sim.model_check.search`` explains why the rules hold.
``gapless.sim.model_check.transitions`` lets the machine take both steps before two frames count as
equal, and follows both frames to every later state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.profiles import AckPolicy
from gapless.sim.model_check.checks import voted
from gapless.wire.frames import Ack, Data, Gone, Stable, StreamProgress, Tail, Vote

if TYPE_CHECKING:
    from gapless.identity import Address
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.sim.model_check.bounds import SearchBounds
    from gapless.sim.model_check.checks import Evidence, StreamObservation
    from gapless.wire.frames import Frame


def drop_stale_marks(member: Endpoint, bounds: SearchBounds) -> None:
    """Forget overtaken announced marks: every use takes the maximum with the mark."""
    origin = bounds.members()[0]
    if member.me != origin:
        entry = member.connections.incoming.get(origin)
        stream = (
            member.inbound[origin] if bounds.to is None else None if entry is None else entry.stream
        )
        if stream is not None:
            _forget_marks(stream)
        unknown = member.connections.unconfirmed_epochs.get(origin)
        if unknown is not None:
            unknown.frames = {
                key: frame._replace(repair=False) for key, frame in unknown.frames.items()
            }
    if member.stability is not None and member.stability.is_coordinator:
        _forget_votes(member, origin)


def _forget_marks(stream: InboundStream) -> None:
    assert stream.window is not None, "the digest tells every start"
    if stream.announced_high <= stream.window.high:
        stream.announced_high = 0
    if stream.gone_upto <= stream.window.delivered:
        stream.gone_upto = 0


def _forget_votes(member: Endpoint, origin: Address) -> None:
    """Keep only the maximum of the highs in votes, if news; the own vote is renewed."""
    assert member.stability is not None
    votes = member.stability._votes
    votes.pop(member.me, None)
    high = voted(member, origin)
    if high <= member.digest()[origin].high:
        high = 0
    for table in votes.values():
        table[origin] = table[origin][0], high


def effective_frame(
    frame: Frame, peer: Address, bounds: SearchBounds, witness: Evidence, sight: StreamObservation
) -> Frame | None:
    """Return a frame without the marks already passed by its target; None if nothing is left."""
    if isinstance(frame, Data):
        return frame._replace(repair=False)
    if isinstance(frame, Tail) and frame.start is None:
        low = frame.low if frame.low > witness.delivered else 0
        known = witness.delivered if bounds.forgets or not sight.open else witness.known
        high = frame.high if frame.high > known else low
        draws_ack = bounds.row.acks is not AckPolicy.ASKED
        return frame._replace(low=low, high=high) if low or high or draws_ack else None
    if isinstance(frame, Gone):
        return frame if frame.low > witness.delivered or bounds.forgets else None
    if isinstance(frame, Ack):
        return frame if frame.seqno > sight.acks.get(peer, -1) else None
    if isinstance(frame, Vote):
        acked = dict(witness.acked).get(peer, 0)
        return frame._replace(
            progress=_above_marks(frame.progress, bounds, acked, max(sight.high, sight.voted))
        )
    if isinstance(frame, Stable):
        known = bounds.messages if witness.submitted else witness.known
        progress = _above_marks(frame.progress, bounds, witness.stable, known)
        return (
            frame._replace(progress=progress)
            if any(stable or high for _, stable, high in progress)
            else None
        )
    return frame


def _above_marks(
    progress: tuple[StreamProgress, ...], bounds: SearchBounds, seqno: int, high: int
) -> tuple[StreamProgress, ...]:
    """Return the same without the marks of the sender that are not above ``seqno`` and ``high``."""
    origin = bounds.members()[0]
    risen = []
    for entry in progress:
        if entry.origin == origin:
            delivered = entry.delivered if entry.delivered > seqno else 0
            entry = StreamProgress(  # noqa: PLW2901
                origin, delivered, entry.high if entry.high > high else delivered
            )
        risen.append(entry)
    return tuple(risen)

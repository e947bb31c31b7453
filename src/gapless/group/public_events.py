"""From the events of the machine to the public events of ``gapless.events``.

The machine reports monotonic instants, and addresses without names. A public event has durations
and the names of mentioned members. Events of the runtime alone have no public form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless import events as public
from gapless.protocol import events as machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.events import GroupEvent
    from gapless.identity import Address

_PUBLIC: Mapping[type, Callable[..., GroupEvent]] = {
    machine.Suspected: public.MemberSuspected,
    machine.Unheard: public.LinkBroken,
    machine.Expelled: public.ExpelledFromGroup,
    machine.Left: public.LeftGroup,
    machine.Lost: public.MessagesLost,
    machine.Discarded: public.MessagesDiscarded,
    machine.Undelivered: public.MessagesUndelivered,
    machine.Oversized: public.MessageOversized,
    machine.Retained: public.RetentionStarted,
    machine.RetentionReleased: public.RetentionEnded,
    machine.RetentionBlocking: public.RetentionFull,
}
"""Events whose public form has the same fields in the same order."""


def public_event(
    event: machine.Event, names: Mapping[Address, str], now_ns: int
) -> GroupEvent | None:
    """Return the public form of ``event``; None for an event that is not for applications."""
    if isinstance(event, machine.SlowReceivers):
        blocked_ns = now_ns - event.since_ns
        return public.WindowBlocked(event.members, event.low, event.high, blocked_ns, names=names)
    if isinstance(event, machine.Stalled):
        stalled_ns = now_ns - event.since_ns
        return public.StreamStalled(event.origin, event.seqno, stalled_ns, names=names)
    make = _PUBLIC.get(type(event))
    return None if make is None else make(*event, names=names)

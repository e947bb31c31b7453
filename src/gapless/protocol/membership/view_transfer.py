"""Rosters on their way: cut into frames, put together again, remembered for a while.

On sending: a roster goes out whole, or, to those that have the one before it, as a change of that.
What does not fit a frame goes in parts.

On reception: parts wait for each other; a change of a roster that is not known here is asked for as
a whole. Whoever is named is located: the shell is told where to reach it before anything is sent to
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.protocol.ready import Located
from gapless.wire.codec import new_view_room_bytes
from gapless.wire.frames import AskView, NewView
from gapless.wire.roster import decode_roster, encode_roster, is_change, split

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.config import Config
    from gapless.identity import Address, Place, Roster, ViewId
    from gapless.protocol.ready_builder import Context

_MOST_KNOWN = 16
_MOST_OPEN = 16
_MOST_LOCATED = 8192
"""Of more than these it is forgotten that the shell was told where they are: it is told again."""
_MOST_PARTS = 4096
"""A roster of more parts than this is nonsense: it would have a million members."""


class Rosters:
    """The rosters that are known, and the parts of those that are not yet."""

    def __init__(self, me: Address, config: Config) -> None:
        self._me = me
        self._room_bytes = new_view_room_bytes(config.max_frame_bytes)
        self._known: dict[ViewId, Roster] = {}
        self._open: dict[tuple[ViewId, ViewId | None], dict[int, bytes]] = {}
        self._located: dict[Address, bytes] = {}

    def get(self, view: ViewId) -> Roster | None:
        """Return the roster of ``view``, if it is known here."""
        return self._known.get(view)

    def learn(self, roster: Roster, context: Context) -> None:
        """Remember a roster, and where its members are reached."""
        self._known.pop(roster.id, None)
        self._known[roster.id] = roster
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for place in roster.places:
            self.locate(place, context)

    def locate(self, place: Place, context: Context) -> None:
        """Tell the shell where ``place`` is reached, unless it knows."""
        if place.locator and self._located.get(place.address) != place.locator:
            self._located[place.address] = place.locator
            if len(self._located) > _MOST_LOCATED:
                del self._located[next(iter(self._located))]
            context.event(Located(place.address, place.locator))

    def keep_only(self, members: Iterable[Address]) -> None:
        """Forget where anybody else is reached."""
        self._located = {
            member: self._located[member] for member in members if member in self._located
        }

    # On sending

    def send(self, to: Address, roster: Roster, context: Context) -> None:
        """Send the whole roster to one."""
        self._send(to, roster, None, context)

    def tell(self, roster: Roster, before: Roster, context: Context) -> None:
        """Tell everybody who is in the view of ``before`` what comes after it."""
        if is_change(roster, before):
            self._send(None, roster, before, context)
        else:
            self._send(None, roster, None, context)

    def _send(
        self, to: Address | None, roster: Roster, base: Roster | None, context: Context
    ) -> None:
        bodies = split(encode_roster(roster, base), self._room_bytes)
        base_id = None if base is None else base.id
        for part, body in enumerate(bodies):
            context.transmit(to, NewView(self._me, roster.id, base_id, part, len(bodies), body))

    # On reception

    def take(self, frame: NewView, context: Context) -> Roster | None:
        """Take a part in; return the roster if it is whole now."""
        known = self._known.get(frame.view)
        if known is not None:
            return known
        if frame.parts > _MOST_PARTS:
            context.drop("parts", frame.origin, peer=frame.origin)
            return None
        key = frame.view, frame.base
        parts = self._open.setdefault(key, {})
        parts[frame.part] = frame.body
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        if len(parts) < frame.parts:
            return None
        self._open.pop(key, None)
        return self._put_together(frame, parts, context)

    def _put_together(
        self, frame: NewView, parts: dict[int, bytes], context: Context
    ) -> Roster | None:
        base = None if frame.base is None else self._known.get(frame.base)
        if frame.base is not None and base is None:
            context.transmit(frame.origin, AskView(self._me))
            return None
        try:
            roster = decode_roster(
                frame.view, b"".join(parts[part] for part in sorted(parts)), base
            )
        except RemoteProtocolError as error:
            context.drop(error.reason, frame.origin, peer=frame.origin)
            return None
        self.learn(roster, context)
        return roster

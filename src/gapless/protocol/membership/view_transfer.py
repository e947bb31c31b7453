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
from gapless.protocol.events import Located
from gapless.wire.codec import new_view_room_bytes
from gapless.wire.frames import AskView, NewView
from gapless.wire.roster import decode_roster, encode_roster, is_change, split_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.config import Config
    from gapless.identity import Address, Roster, RosterEntry, ViewId
    from gapless.protocol.ready_builder import ReadyBuilder

_MAX_KNOWN = 16
_MAX_OPEN = 16
_MAX_LOCATED = 8192
"""Of more than these it is forgotten that the shell was told where they are: it is told again."""
_MAX_PARTS = 4096
"""A roster of more parts than this is nonsense: it would have a million members."""


class ViewTransfer:
    """The rosters that are known, and the parts of those that are not yet."""

    def __init__(self, me: Address, config: Config) -> None:
        self._me = me
        self._room_bytes = new_view_room_bytes(config.max_frame_bytes)
        self._known: dict[ViewId, Roster] = {}
        self._partial: dict[tuple[ViewId, ViewId | None], dict[int, bytes]] = {}
        self._located: dict[Address, bytes] = {}

    def get(self, view: ViewId) -> Roster | None:
        """Return the roster of ``view``, if it is known here."""
        return self._known.get(view)

    def remember(self, roster: Roster, out: ReadyBuilder) -> None:
        """Remember a roster, and where its members are reached."""
        self._known.pop(roster.id, None)
        self._known[roster.id] = roster
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        for place in roster.entries:
            self.announce_locator(place, out)
        assert self._known[roster.id] is roster, "the newest roster is never evicted"

    def announce_locator(self, place: RosterEntry, out: ReadyBuilder) -> None:
        """Tell the shell where ``place`` is reached, unless it knows."""
        if place.locator and self._located.get(place.address) != place.locator:
            self._located[place.address] = place.locator
            if len(self._located) > _MAX_LOCATED:
                del self._located[next(iter(self._located))]
            out.emit(Located(place.address, place.locator))

    def retain_locators(self, members: Iterable[Address]) -> None:
        """Forget where anybody else is reached."""
        self._located = {
            member: self._located[member] for member in members if member in self._located
        }

    # On sending

    def send(self, to: Address, roster: Roster, out: ReadyBuilder) -> None:
        """Send the whole roster to one."""
        self._send(to, roster, None, out)

    def broadcast(self, roster: Roster, before: Roster, out: ReadyBuilder) -> None:
        """Tell everybody who is in the view of ``before`` what comes after it."""
        if is_change(roster, before):
            self._send(None, roster, before, out)
        else:
            self._send(None, roster, None, out)

    def _send(
        self, to: Address | None, roster: Roster, base: Roster | None, out: ReadyBuilder
    ) -> None:
        bodies = split_body(encode_roster(roster, base), self._room_bytes)
        base_id = None if base is None else base.id
        for part, body in enumerate(bodies):
            out.transmit(to, NewView(self._me, roster.id, base_id, part, len(bodies), body))

    # On reception

    def on_part(self, frame: NewView, out: ReadyBuilder) -> Roster | None:
        """Take a part in; return the roster if it is whole now."""
        known = self._known.get(frame.view)
        if known is not None:
            return known
        if frame.parts > _MAX_PARTS:
            out.drop("parts", frame.origin, peer=frame.origin)
            return None
        key = frame.view, frame.base
        parts = self._partial.setdefault(key, {})
        parts[frame.part] = frame.body
        if len(self._partial) > _MAX_OPEN:
            del self._partial[next(iter(self._partial))]
        if len(parts) < frame.parts:
            return None
        self._partial.pop(key, None)
        return self._assemble(frame, parts, out)

    def _assemble(
        self, frame: NewView, parts: dict[int, bytes], out: ReadyBuilder
    ) -> Roster | None:
        base = None if frame.base is None else self._known.get(frame.base)
        if frame.base is not None and base is None:
            out.transmit(frame.origin, AskView(self._me))
            return None
        try:
            roster = decode_roster(
                frame.view, b"".join(parts[part] for part in sorted(parts)), base
            )
        except RemoteProtocolError as error:
            out.drop(error.reason, frame.origin, peer=frame.origin)
            return None
        self.remember(roster, out)
        return roster

    def check_invariants(self) -> None:
        """Raise AssertionError if a table has outgrown its limit, or a roster is misfiled."""
        assert len(self._known) <= _MAX_KNOWN, f"{len(self._known)} rosters are remembered"
        assert len(self._partial) <= _MAX_OPEN, f"{len(self._partial)} rosters are incomplete"
        assert len(self._located) <= _MAX_LOCATED, f"{len(self._located)} locators are remembered"
        for view, roster in self._known.items():
            assert view == roster.id, f"the roster of {view} is filed under {roster.id}"

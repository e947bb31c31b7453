"""Transfer of rosters: encode into frames, reassemble, remember recent ones.

On sending: a roster is sent whole, or, to members with the previous roster, as a change of the
previous one. A roster that does not fit a frame is sent in parts.

On reception: parts wait for each other. A change whose base roster is unknown is answered with a
request for the whole roster. The locator of each named member is announced to the runtime before
any frame is sent to that member.
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
"""Maximum number of rosters that are remembered."""
_MAX_OPEN = 16
"""Maximum number of rosters that are incomplete at a time."""
_MAX_LOCATED = 8192
"""Maximum number of announced locators that are remembered; forgotten ones are announced again."""
_MAX_PARTS = 4096
"""Maximum number of parts of a roster; a roster of more parts would have a million members."""


class ViewTransfer:
    """The rosters that are known, and the parts of incomplete ones."""

    def __init__(self, me: Address, config: Config) -> None:
        self._me = me
        self._room_bytes = new_view_room_bytes(config.max_frame_bytes)
        self._known: dict[ViewId, Roster] = {}
        self._partial: dict[tuple[ViewId, ViewId | None], dict[int, bytes]] = {}
        self._located: dict[Address, bytes] = {}

    def get(self, view: ViewId) -> Roster | None:
        """Return the roster of ``view``, or None if it is unknown."""
        return self._known.get(view)

    def remember(self, roster: Roster, out: ReadyBuilder) -> None:
        """Remember a roster, and announce the locators of its members."""
        self._known.pop(roster.id, None)
        self._known[roster.id] = roster
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        for entry in roster.entries:
            self.announce_locator(entry, out)
        assert self._known[roster.id] is roster, "the newest roster is never evicted"

    def announce_locator(self, entry: RosterEntry, out: ReadyBuilder) -> None:
        """Announce the locator of ``entry`` to the runtime, unless the runtime knows it."""
        if entry.locator and self._located.get(entry.address) != entry.locator:
            self._located[entry.address] = entry.locator
            if len(self._located) > _MAX_LOCATED:
                del self._located[next(iter(self._located))]
            out.emit(Located(entry.address, entry.locator))

    def retain_locators(self, members: Iterable[Address]) -> None:
        """Forget the locators of all addresses but ``members``."""
        self._located = {
            member: self._located[member] for member in members if member in self._located
        }

    # On sending

    def send(self, to: Address, roster: Roster, out: ReadyBuilder) -> None:
        """Send the whole roster to one address."""
        self._send(to, roster, None, out)

    def broadcast(self, roster: Roster, before: Roster, out: ReadyBuilder) -> None:
        """Broadcast ``roster``, the successor of ``before``, to the members of ``before``."""
        assert roster.id.number > before.id.number, "numbers of views rise"
        # A change is smaller than the roster, but only members with ``before`` can decode it.
        if is_change(roster, before):
            self._send(None, roster, before, out)
        else:
            self._send(None, roster, None, out)

    def _send(
        self, to: Address | None, roster: Roster, base: Roster | None, out: ReadyBuilder
    ) -> None:
        """Send ``roster``, as a change of ``base`` if there is one, in as many parts as needed."""
        bodies = split_body(encode_roster(roster, base), self._room_bytes)
        assert 0 < len(bodies) <= _MAX_PARTS, f"a roster of {len(bodies)} parts"
        base_id = None if base is None else base.id
        for part, body in enumerate(bodies):
            out.transmit(to, NewView(self._me, roster.id, base_id, part, len(bodies), body))

    # On reception

    def on_part(self, frame: NewView, out: ReadyBuilder) -> Roster | None:
        """Store a part of a roster. Return the roster if it is complete now."""
        known = self._known.get(frame.view)
        # A repeated roster: answer it again, because a confirmation may have been lost.
        if known is not None:
            return known
        # A hostile frame must not reserve memory for parts that never come.
        if frame.parts > _MAX_PARTS:
            out.drop("parts", frame.origin, peer=frame.origin)
            return None
        key = frame.view, frame.base
        parts = self._partial.setdefault(key, {})
        parts[frame.part] = frame.body
        if len(self._partial) > _MAX_OPEN:
            # Parts of an abandoned roster must not stay for ever: drop the oldest.
            del self._partial[next(iter(self._partial))]
        if len(parts) < frame.parts:
            return None
        self._partial.pop(key, None)
        return self._assemble(frame, parts, out)

    def _assemble(
        self, frame: NewView, parts: dict[int, bytes], out: ReadyBuilder
    ) -> Roster | None:
        """Decode a complete roster; None if its base is unknown or its bytes are invalid."""
        assert len(parts) == frame.parts, "all parts have arrived"
        base = None if frame.base is None else self._known.get(frame.base)
        if frame.base is not None and base is None:
            # This member missed the base: the whole roster does not need one.
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

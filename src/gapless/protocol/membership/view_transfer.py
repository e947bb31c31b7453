"""Transfer of rosters: encode into frames, reassemble, remember recent rosters.

On sending: a roster is sent whole, or, to members with the previous roster, as a change of the
previous roster. A roster larger than a frame is sent in parts. In a group with identities a trailer
follows the roster: the wrapped keys of the view, and the signature of the coordinator.

On reception: the parts of one sender wait for each other, within the budget of early bytes. A
change of an unknown base roster is answered with a request for the whole roster. The locator of
each named member is announced to the runtime before any frame is sent to the member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import RemoteProtocolError
from gapless.profiles import ReleasePolicy
from gapless.protocol.early_budget import EarlyBudget
from gapless.protocol.events import Located
from gapless.protocol.membership.view_keys import split_wrapped
from gapless.wire.codec import new_view_room_bytes
from gapless.wire.control_frames import SIGNATURE_BYTES, SIGNATURE_FRAME_BYTES
from gapless.wire.frames import AskView, NewView
from gapless.wire.roster import decode_roster, encode_roster, is_change, split_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.config import Config
    from gapless.identity import Address, Roster, RosterEntry, ViewId
    from gapless.protocol.membership.signatures import SignatureGuard
    from gapless.protocol.ready_builder import ReadyBuilder

_MAX_KNOWN = 16
"""Maximum number of rosters that are remembered."""
_MAX_OPEN = 16
"""Maximum number of rosters that are incomplete at a time."""
_MAX_LOCATED = 8192
"""Maximum number of announced locators that are remembered; forgotten ones are announced again."""
_MAX_PARTS = 4096
"""Maximum number of parts of a roster; a roster of more parts would have a million members."""


class _PartialRoster(NamedTuple):
    """The received parts of an incomplete roster, and the number of all parts."""

    total: int
    bodies: dict[int, bytes]


class ViewTransfer:
    """The known rosters, and the parts of incomplete rosters, counted against ``budget``."""

    def __init__(
        self,
        me: Address,
        config: Config,
        budget: EarlyBudget | None = None,
        guard: SignatureGuard | None = None,
    ) -> None:
        self._me = me
        self._guard = guard
        self._trailers: dict[ViewId, bytes] = {}
        self._wrapped_for = None if guard is None else guard.allowed
        self._present: ViewId | None = None
        self._budget = budget or EarlyBudget(config.early_bytes)
        self._retains = config.group_profile.release is ReleasePolicy.ACKS
        self._room_bytes = new_view_room_bytes(config.max_frame_bytes)
        if guard is not None:
            self._room_bytes -= SIGNATURE_FRAME_BYTES
        self._known: dict[ViewId, Roster] = {}
        self._partial: dict[tuple[Address, ViewId, ViewId | None], _PartialRoster] = {}
        self._located: dict[Address, bytes] = {}

    def get(self, view: ViewId) -> Roster | None:
        """Return the roster of ``view``, or None if unknown."""
        return self._known.get(view)

    def remember(self, roster: Roster, out: ReadyBuilder) -> None:
        """Remember a roster, and announce the locators of the members."""
        self._known.pop(roster.id, None)
        self._known[roster.id] = roster
        if len(self._known) > _MAX_KNOWN:
            # The present view stays: others ask for it, and only its coordinator could sign it.
            oldest = next(view for view in self._known if view != self._present)
            del self._known[oldest]
            self._trailers.pop(oldest, None)
        for entry in roster.entries:
            self.announce_locator(entry, out)
        assert self._known[roster.id] is roster, "the newest roster is never evicted"

    def announce_locator(self, entry: RosterEntry, out: ReadyBuilder) -> None:
        """Announce the locator of ``entry`` to the runtime, unless already known."""
        if self._guard is not None and not self._guard.may_locate(entry):
            return
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

    def keep_signature(self, view: ViewId) -> None:
        """Keep the present view, with its signature, whatever other rosters arrive."""
        self._present = view

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
        """Send ``roster``, as a change of ``base`` if given, in as many parts as needed."""
        trailer = b"" if self._guard is None else self._trailer(self._guard, roster)
        if trailer is None:
            out.drop("unsigned", to)
            return
        body = encode_roster(roster, base) + trailer
        bodies = split_body(body, self._room_bytes)
        assert 0 < len(bodies) <= _MAX_PARTS, f"a roster of {len(bodies)} parts"
        base_id = None if base is None else base.id
        for part, body in enumerate(bodies):
            out.transmit(to, NewView(self._me, roster.id, base_id, part, len(bodies), body))

    def _trailer(self, guard: SignatureGuard, roster: Roster) -> bytes | None:
        """Return what the coordinator of ``roster`` has signed it with; None if forgotten."""
        if self._wrapped_for is not guard.allowed:
            # A member without a key, because it was struck off the list, may be on the list again.
            self._wrapped_for = guard.allowed
            for view in [view for view in self._trailers if view.coordinator == self._me]:
                del self._trailers[view]
        found = self._trailers.get(roster.id)
        if found is None and guard.view_keys.may_wrap(roster.id):
            found = guard.sign_view(roster)
            if roster.id in self._known:
                self._trailers[roster.id] = found
        return found

    # On reception

    def on_part(self, frame: NewView, out: ReadyBuilder) -> Roster | None:
        """Store a part of a roster. Return the roster once complete."""
        known = self._known.get(frame.view)
        # A repeated roster: answer it again, because a confirmation may have been lost.
        if known is not None:
            return known
        # A hostile frame must not reserve memory for parts that never come.
        if frame.parts > _MAX_PARTS:
            out.drop("parts", frame.origin, peer=frame.origin)
            return None
        key = frame.origin, frame.view, frame.base
        partial = self._partial.get(key)
        if partial is not None and partial.total != frame.parts:
            out.drop("parts", frame.origin, peer=frame.origin)
            return None
        if partial is None:
            partial = _PartialRoster(frame.parts, {})
        if frame.part not in partial.bodies:
            if not self._budget.reserve(frame.origin, len(frame.body)):
                out.drop("early", frame.origin, peer=frame.origin)
                return None
            partial.bodies[frame.part] = frame.body
            self._partial[key] = partial
        if len(self._partial) > _MAX_OPEN:
            self._evict_partial(key)
        if len(partial.bodies) < frame.parts:
            return None
        self._forget_partial(key)
        return self._assemble(frame, partial.bodies, out)

    def _evict_partial(self, newest: tuple[Address, ViewId, ViewId | None]) -> None:
        """Drop the oldest incomplete roster, of a stranger if there is one.

        Parts of an abandoned roster must not stay for ever, and parts of a stranger must not
        displace the parts of a member.
        """
        others = [key for key in self._partial if key != newest]
        strangers = [key for key in others if not self._budget.is_member(key[0])]
        self._forget_partial((strangers or others)[0])

    def _forget_partial(self, key: tuple[Address, ViewId, ViewId | None]) -> None:
        for body in self._partial.pop(key).bodies.values():
            self._budget.release(key[0], len(body))

    def install(self, number: int) -> None:
        """Drop the parts of strangers, and of views that are not newer than ``number``."""
        for key in list(self._partial):
            if key[1].number <= number or not self._budget.is_member(key[0]):
                self._forget_partial(key)

    def _assemble(
        self, frame: NewView, parts: dict[int, bytes], out: ReadyBuilder
    ) -> Roster | None:
        """Decode a complete roster; None if the base is unknown or the bytes are invalid."""
        assert len(parts) == frame.parts, "all parts have arrived"
        base = None if frame.base is None else self._known.get(frame.base)
        if frame.base is not None and base is None:
            # This member missed the base: the whole roster does not need one.
            out.transmit(frame.origin, AskView(self._me))
            return None
        body, wrapped, signature = b"".join(parts[part] for part in sorted(parts)), b"", b""
        if self._guard is not None:
            body, signature = body[:-SIGNATURE_BYTES], body[-SIGNATURE_BYTES:]
            body, wrapped = split_wrapped(body)
        try:
            roster = decode_roster(frame.view, body, base)
        except RemoteProtocolError as error:
            out.drop(error.reason, frame.origin, peer=frame.origin)
            return None
        if roster.absent and not self._retains:
            # Only acks tell what an absent member lacks: such a view could not be installed here.
            out.drop("absent", frame.origin, peer=frame.origin)
            return None
        if self._guard is not None and (
            reason := self._guard.check_view(roster, wrapped, signature)
        ):
            out.drop(reason, frame.origin, peer=frame.origin)
            return None
        self.remember(roster, out)
        if self._guard is not None:
            self._trailers[roster.id] = wrapped + signature
        return roster

    def check_invariants(self) -> None:
        """Raise AssertionError if a table has outgrown its limit, or a roster is misfiled."""
        assert len(self._known) <= _MAX_KNOWN, f"{len(self._known)} rosters are remembered"
        assert self._trailers.keys() <= self._known.keys(), "trailers are those of rosters"
        assert len(self._partial) <= _MAX_OPEN, f"{len(self._partial)} rosters are incomplete"
        assert len(self._located) <= _MAX_LOCATED, f"{len(self._located)} locators are remembered"
        for view, roster in self._known.items():
            assert view == roster.id, f"the roster of {view} is filed under {roster.id}"

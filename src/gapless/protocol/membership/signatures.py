"""Signatures of membership frames, in a group with identities.

On sending: the frames about membership of a datagram are followed by a signature of this member.
Signed are the group, the incarnation of the signer, the addressed member, a counter, the view of
the signer, and the frames. A view is signed by its coordinator, so that every member can pass the
view on.

On reception: a datagram with frames about membership counts if its sender is on the allow-list and
has signed the frames for this member, and if the counter is new. All other frames about membership
are dropped under a reason: ``unsigned``, ``identity``, ``signature`` or ``repeat``. A JOIN that
another member relays has the signature of the joiner as well.

Messages, acks and naks are not signed, but sealed with the key of the view (view_keys.py): a frame
of another kind counts only in a datagram under that key. A datagram without a signature is no
heartbeat.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from gapless.identity import NO_MEMBER
from gapless.protocol.membership.view_keys import ViewKeys
from gapless.wire.control_frames import encode_frames
from gapless.wire.frames import (
    Data,
    Join,
    NameTaken,
    OutOfBand,
    Signature,
    StateAsk,
    StateChunk,
    StateOffer,
    StatePull,
    Tail,
    Unreliable,
)
from gapless.wire.identities import Role
from gapless.wire.primitives import pack_view
from gapless.wire.roster import encode_roster
from gapless.wire.seal import ReplayWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.identity import Address, Roster, RosterEntry
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import Datagram, Frame, MembershipFrame
    from gapless.wire.identities import AllowList, Certificate, Credentials

MAX_SIGNERS = 4096
"""Maximum number of incarnations whose counters are remembered."""
_FRAME_DOMAIN = b"gapless-sign-1"
_VIEW_DOMAIN = b"gapless-view-1"
_FIELDS = Struct("<QQQQQQI")
"""Group, signer, addressed member, counter and view number."""
_GROUP = Struct("<Q")

_NOT_FROM = {
    Role.OBSERVER: (Data, OutOfBand, Unreliable, StateOffer, StateChunk),
    Role.PUBLISHER: (StateAsk, StatePull),
}
"""The frames that are dropped if a member with the role has sent them."""


class SignatureGuard:
    """Signs the frames of one member, and verifies those of the others."""

    def __init__(self, me: Address, group: int, credentials: Credentials) -> None:
        assert me.node == credentials.node, "the address of a member names its identity"
        self.me = me
        self.allowed: AllowList = credentials.allowed
        self.view_keys = ViewKeys(me, group, credentials.exchange, self._find)
        self.last_sent_ns: dict[Address | None, int] = {}
        """When this member last sent a signed datagram to each destination."""
        self.sender_view = 0
        """The number of the view of the sender of the last verified datagram."""
        self.was_newest = False
        """Whether the last verified datagram has the highest counter of its sender."""
        self._group = group
        self._credentials = credentials
        self._view_number = 0
        self._counter = 0
        self._windows: dict[Address, ReplayWindow] = {}
        self._joins: dict[Address, Signature] = {}
        self._locators: dict[Address, bytes] = {}
        self._known: frozenset[RosterEntry] = frozenset()
        self.restricted: dict[Address, Role] = {}
        """The members of the view that may not send every kind of frame."""

    # On a view

    def install(self, roster: Roster) -> None:
        """Sign for this view from now on; its entries have been verified."""
        self._view_number = roster.id.number
        self._known = frozenset((*roster.entries, *roster.absent))
        self._locators = {entry.address: entry.locator for entry in roster.entries}
        self._joins = {}
        if len(self._windows) > MAX_SIGNERS // 2:
            self._windows = {
                signer: window
                for signer, window in self._windows.items()
                if signer in self._locators
            }
        self._restrict()

    def replace_allowed(self, allowed: AllowList) -> None:
        """Use another allow-list: members that are no longer on it count as silent."""
        self.allowed = allowed
        self._restrict()

    def _find(self, node: int) -> Certificate | None:
        return self.allowed.find(node)

    def _restrict(self) -> None:
        roles = {member: self.allowed.find(member.node) for member in self._locators}
        self.restricted = {
            member: Role.OBSERVER if found is None else found.role
            for member, found in roles.items()
            if member != self.me and (found is None or found.role in _NOT_FROM)
        }

    def permits(self, sender: Address, frame: Frame) -> bool:
        """Return whether the role of ``sender`` permits ``frame``."""
        role = self.restricted.get(sender)
        if role is None:
            return True
        if role is Role.OBSERVER and type(frame) is Tail:
            # The announcement of an empty stream; a higher mark would be a gap for ever.
            return not frame.high
        return not isinstance(frame, _NOT_FROM[role])

    def may_locate(self, entry: RosterEntry) -> bool:
        """Return whether ``entry`` leaves the locator of a member of the view as it is."""
        return self._locators.get(entry.address, entry.locator) == entry.locator

    # On sending

    def sign(self, to: Address | None, frames: Sequence[MembershipFrame]) -> Signature:
        """Return the signature behind ``frames`` in a datagram to ``to``."""
        self._counter += 1
        text = self._text(self.me, to, self._counter, self._view_number, frames)
        return Signature(self.me, self._counter, self._view_number, self._credentials.sign(text))

    def signed_join(self, joiner: Address) -> Signature | None:
        """Return the signature of a JOIN that has arrived from the joiner, for a relay."""
        return self._joins.get(joiner)

    def sign_view(self, roster: Roster) -> bytes:
        """Return the wrapped keys and the signature of a roster of this coordinator."""
        wrapped = self.view_keys.wrap(roster)
        return wrapped + self._credentials.sign(self._view_text(roster, wrapped))

    def _view_text(self, roster: Roster, wrapped: bytes) -> bytes:
        fields = _GROUP.pack(self._group), pack_view(roster.id)
        return b"".join((_VIEW_DOMAIN, *fields, encode_roster(roster), wrapped))

    def _text(
        self,
        signer: Address,
        to: Address | None,
        counter: int,
        view: int,
        frames: Sequence[MembershipFrame],
    ) -> bytes:
        # A JOIN may be relayed, so its signature is good at every member.
        if to is None or all(type(frame) in {Join, Signature} for frame in frames):
            to = NO_MEMBER
        frames = [
            frame._replace(relay=False) if isinstance(frame, Join) else frame for frame in frames
        ]
        fields = _FIELDS.pack(self._group, *signer, *to, counter, view)
        return b"".join((_FRAME_DOMAIN, fields, encode_frames(frames)))

    # On reception

    def open(
        self, datagram: Datagram, about: Sequence[MembershipFrame], out: ReadyBuilder
    ) -> list[MembershipFrame]:
        """Return the verified frames of ``about``, the frames about membership of ``datagram``."""
        sender, last = datagram.sender, about[-1]
        window = self._windows.get(sender) or ReplayWindow()
        reason = ""
        if not isinstance(last, Signature) or last.origin != sender or len(about) < 2:
            reason = "unsigned"
        elif self.allowed.find(sender.node) is None:
            reason = "identity"
        else:
            to = None if datagram.addressee is None else self.me
            if not window.is_new(last.counter):
                reason = "repeat"
            elif not self._is_right(last, to, about[:-1]):
                reason = "signature"
        if reason:
            out.drop(reason, peer=sender)
            return []
        assert isinstance(last, Signature)
        self.was_newest = last.counter > window.top
        self.sender_view = last.view
        self.view_keys.note_signed(sender, last.view, out.now_ns)
        window.add(last.counter)
        self._windows[sender] = window
        if len(self._windows) > MAX_SIGNERS:
            self._forget_signer()
        return self._permitted(sender, about, out)

    def _forget_signer(self) -> None:
        others = (signer for signer in self._windows if signer not in self._locators)
        if (oldest := next(others, None)) is not None:
            del self._windows[oldest]

    def _is_right(
        self, signature: Signature, to: Address | None, frames: Sequence[MembershipFrame]
    ) -> bool:
        found = self.allowed.find(signature.origin.node)
        if found is None:
            return False
        text = self._text(signature.origin, to, signature.counter, signature.view, frames)
        return self._credentials.verify(found.public_key, signature.signature, text)

    def _permitted(
        self, sender: Address, about: Sequence[MembershipFrame], out: ReadyBuilder
    ) -> list[MembershipFrame]:
        """Return the frames of ``about`` that the identities of their origins permit."""
        permitted: list[MembershipFrame] = []
        for frame, behind in pairwise(about):
            reason = ""
            if isinstance(frame, Signature):
                continue
            if isinstance(frame, Join):
                reason = self.allowed.refusal(frame.entry) or self._relay_refusal(
                    sender, frame, behind
                )
                if not reason and isinstance(behind, Signature):
                    self._joins[frame.entry.address] = behind
                    if len(self._joins) > MAX_SIGNERS:
                        del self._joins[next(iter(self._joins))]
            elif isinstance(frame, NameTaken):
                # A name belongs to a single identity: no other member can hold the name.
                reason = "name"
            if reason:
                out.drop(reason, peer=sender)
            else:
                permitted.append(frame)
        return permitted

    def _relay_refusal(self, sender: Address, frame: Join, behind: MembershipFrame) -> str:
        """Return why a JOIN does not count, or an empty string: the joiner must have signed it."""
        joiner = frame.entry.address
        if joiner == sender:
            return ""
        if not isinstance(behind, Signature) or behind.origin != joiner:
            return "unsigned"
        return "" if self._is_right(behind, None, (frame,)) else "signature"

    def check_view(self, roster: Roster, wrapped: bytes, signature: bytes) -> str:
        """Return why a roster does not count, or an empty string.

        The coordinator must have signed the roster and wrapped the key of the view for this member,
        and every entry that is new to this member must be permitted.
        """
        found = self.allowed.find(roster.id.coordinator.node)
        if found is None:
            return "identity"
        for entry in (*roster.entries, *roster.absent):
            # A member that was struck off the list stays until the group expels the member.
            if entry not in self._known and (reason := self.allowed.refusal(entry)):
                return reason
        text = self._view_text(roster, wrapped)
        if not self._credentials.verify(found.public_key, signature, text):
            return "signature"
        return "" if self.view_keys.unwrap(roster, wrapped) else "view key"

    def check_invariants(self) -> None:
        """Raise AssertionError if a table has outgrown its limit."""
        assert len(self._windows) <= MAX_SIGNERS + len(self._locators), "too many signers"
        assert len(self._joins) <= MAX_SIGNERS, f"{len(self._joins)} signed join requests"
        assert self.me not in self.restricted, "a member does not drop its own frames"
        self.view_keys.check_invariants()
        for window in self._windows.values():
            window.check_invariants()

"""The keys of views, in a group with identities.

The messages of a view are sealed with a key that only the members of the view have. The keys of the
ring seal frames about membership, which are signed, and nothing else. So a member that was expelled
or has left can neither read nor forge later messages, and a member that has joined cannot read
earlier ones.

On making a view: the coordinator draws a key, and wraps the key for each member. Wrapped keys are
part of the roster, behind the entries and before the signature.

On reception of a roster: this member unwraps its key. A roster without a key for this member is
dropped, as if the coordinator had withheld the roster.

On a view: this member seals with the key of the view at once. Other members install the view a
little earlier or later. Datagrams of members that are ahead wait in the seal. For datagrams of
members that are behind, a former key opens for ``heartbeat_interval`` more. Without retransmission,
where nothing may be lost and nothing is overtaken, a former key opens until every other member has
signed in this view, or for ``_MAX_BEHIND`` times the time after which a silent member is expelled.
The keys of views that this member knows and has skipped are former keys, too:
other members may have sent messages in such a view.

The key that seals is derived from the drawn key and the id of the view. The id of a view occurs
once, so no counter of a sender occurs twice under a key, even if a coordinator sends a drawn key
again.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from gapless.wire.identities import WRAPPED_BYTES
from gapless.wire.primitives import ADDRESS, pack_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.config import Config
    from gapless.identity import Address, Roster, ViewId
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.identities import Certificate, KeyExchange

MAX_FORMER = 16
"""Maximum number of former keys that open."""
_MAX_EACH = 8
"""Maximum number of views of one coordinator whose keys are remembered."""
_MAX_BEHIND = 8
"""How long members may send in former views, without retransmission: a multiple of the time after
which a silent member is expelled. An idle member signs for its neighbours only."""
_PERSON = b"gapless-view-1"
_COUNT = Struct("<H")
_GROUP = Struct("<Q")


class ViewKeys:
    """The keys of the present view and of the views that may follow.

    Args:
        me: The address of this member.
        group: The id of the group.
        exchange: The functions that draw, wrap and unwrap keys.
        find: Returns the certificate of a node, or None.
    """

    def __init__(
        self,
        me: Address,
        group: int,
        exchange: KeyExchange,
        find: Callable[[int], Certificate | None],
    ) -> None:
        self.in_use: tuple[bytes, ...] = ()
        """The keys that open; the first one seals."""
        self.due_ns: int | None = None
        """When the oldest former key is retired."""
        self._me = me
        self._group = group
        self._exchange = exchange
        self._find = find
        self._known: dict[int, dict[ViewId, bytes]] = {}
        self._retire_ns: list[int] = []
        """When each former key is retired, the latest first."""
        self._number = 0
        self._members: frozenset[Address] = frozenset()
        self._behind: set[Address] = set()
        """The members that may still send in former views, without retransmission."""

    # On making a view

    def may_wrap(self, view: ViewId) -> bool:
        """Return whether this member wraps the key of ``view``: its coordinator, until the next.

        The key of an earlier view is forgotten, and a second key must not be wrapped for the view.
        """
        return view.coordinator == self._me and view.number >= self._number

    def wrap(self, roster: Roster) -> bytes:
        """Return the wrapped keys of a roster of this coordinator, and their number."""
        assert self.may_wrap(roster.id), "keys are drawn by the coordinator of a view"
        key = self._key_of_own(roster)
        wrapped = []
        for entry in roster.entries:
            found = self._find(entry.address.node)
            if found is None:
                # Struck off the list, and soon expelled: this member can read no more.
                wrapped.append(bytes(WRAPPED_BYTES))
                continue
            context = self._context(roster.id, entry.address)
            wrapped.append(self._exchange.wrap(found.public_key, key, context))
        assert all(len(each) == WRAPPED_BYTES for each in wrapped), "wrapped keys have one length"
        return b"".join((*wrapped, _COUNT.pack(len(wrapped))))

    def _key_of_own(self, roster: Roster) -> bytes:
        """Return the key of a roster of this coordinator: the same at each call."""
        known = self._known.setdefault(self._me.node, {})
        if (key := known.get(roster.id)) is None:
            key = self._exchange.draw()
            self._remember(roster.id, key)
        return key

    def _context(self, view: ViewId, member: Address) -> bytes:
        """Return what a wrapped key is bound to."""
        return b"".join((_GROUP.pack(self._group), pack_view(view), ADDRESS.pack(*member)))

    # On reception

    def unwrap(self, roster: Roster, wrapped: bytes) -> bool:
        """Remember the key of a roster; return whether each member of the roster has a key.

        A roster without this member has no key for this member, and none is expected.
        """
        if len(wrapped) != WRAPPED_BYTES * len(roster.entries) + _COUNT.size:
            return False
        members = [entry.address for entry in roster.entries]
        if self._me not in members:
            return True
        maker = self._find(roster.id.coordinator.node)
        at = WRAPPED_BYTES * members.index(self._me)
        key = maker and self._exchange.unwrap(
            maker.public_key,
            wrapped[at : at + WRAPPED_BYTES],
            self._context(roster.id, self._me),
        )
        if not key:
            return False
        self._remember(roster.id, key)
        return True

    def _remember(self, view: ViewId, key: bytes) -> None:
        """Remember the key of a view; a coordinator displaces only keys of its own views."""
        known = self._known.setdefault(view.coordinator.node, {})
        known[view] = key
        if len(known) > _MAX_EACH:
            del known[next(iter(known))]

    # On a view

    def install(self, roster: Roster, config: Config, out: ReadyBuilder) -> None:
        """Seal with the key of this view from now on."""
        if roster.id.coordinator == self._me:
            drawn = self._key_of_own(roster)
        else:
            drawn = self._known.get(roster.id.coordinator.node, {}).get(roster.id, b"")
        members = frozenset(entry.address for entry in roster.entries)
        skipped = self._skipped(roster.id.number, members | self._members)
        self._forget(roster.id.number)
        if not drawn:
            # The coordinator has made many views at once. Nobody reads this member until the next.
            out.drop("view key", peer=roster.id.coordinator)
            drawn = self._exchange.draw()
        former = [*skipped, *self.in_use]
        self.in_use = (_derive(drawn, roster.id), *former[:MAX_FORMER])
        self._number, self._members = roster.id.number, members
        self._behind = set() if config.retransmits else set(members - {self._me})
        wait_ns = config.heartbeat_interval_ns
        if self._behind:
            wait_ns = _MAX_BEHIND * (config.suspect_after_ns + config.verify_timeout_ns)
        retire_ns = out.now_ns + wait_ns
        older_ns = [min(at_ns, retire_ns) for at_ns in self._retire_ns]
        added_ns = [retire_ns] * (len(former) - len(older_ns))
        self._retire_ns = [*added_ns, *older_ns][:MAX_FORMER]
        self._schedule()
        out.use_view_keys(self.in_use)

    def _skipped(self, number: int, members: frozenset[Address]) -> list[bytes]:
        """Return the keys of known views of ``members`` since the present view.

        Before its first view this member knows only views with itself in them, of any member.
        """
        known = [each for views in self._known.values() for each in views.items()]
        return [
            _derive(key, view)
            for view, key in sorted(known, reverse=True)
            if self._number < view.number < number
            and (not self._number or view.coordinator in members)
        ]

    def note_signed(self, sender: Address, number: int, now_ns: int) -> None:
        """Record that ``sender`` has signed in view ``number``: it has left the former views."""
        if sender in self._behind and number >= self._number:
            self._behind.discard(sender)
            if not self._behind:
                self._retire_ns = [min(at_ns, now_ns) for at_ns in self._retire_ns]
                self._schedule()

    def _schedule(self) -> None:
        self.due_ns = self._retire_ns[-1] if self._retire_ns else None

    def _forget(self, number: int) -> None:
        """Forget the keys of views before view ``number``.

        The key of the present view stays: its coordinator may have to wrap the key once more.
        """
        self._known = {
            node: {view: key for view, key in known.items() if view.number >= number}
            for node, known in self._known.items()
            if any(view.number >= number for view in known)
        }

    def on_timer(self, out: ReadyBuilder) -> None:
        """Retire the former keys that are due."""
        if self.due_ns is None or self.due_ns > out.now_ns:
            return
        while self._retire_ns and self._retire_ns[-1] <= out.now_ns:
            del self._retire_ns[-1]
        self._schedule()
        self.in_use = self.in_use[: 1 + len(self._retire_ns)]
        out.use_view_keys(self.in_use)

    def stop(self) -> None:
        """Retire no key any more: this incarnation is over."""
        self.due_ns = None

    def check_invariants(self) -> None:
        """Raise AssertionError if too many keys are remembered or open."""
        assert len(self.in_use) <= 1 + MAX_FORMER, f"{len(self.in_use)} keys open"
        assert len(self._retire_ns) == max(0, len(self.in_use) - 1), "all former keys retire"
        assert self._retire_ns == sorted(self._retire_ns, reverse=True), "the oldest retires first"
        assert all(len(known) <= _MAX_EACH for known in self._known.values())


def _derive(drawn: bytes, view: ViewId) -> bytes:
    """Return the key that seals in ``view``: the first byte names the cipher."""
    secret = blake2b(pack_view(view), key=drawn[1:], person=_PERSON, digest_size=32).digest()
    return drawn[:1] + secret


def split_wrapped(body: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a roster, and the wrapped keys and their number; empty if impossible."""
    if len(body) < _COUNT.size:
        return body, b""
    (count,) = _COUNT.unpack_from(body, len(body) - _COUNT.size)
    start = len(body) - _COUNT.size - WRAPPED_BYTES * count
    return (body[:start], body[start:]) if start >= 0 else (body, b"")

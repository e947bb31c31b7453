"""The size of an exhaustive search, and its members.

A search has a profile, a sender, a few receivers and a view. With a unicast profile only the first
receiver gets the messages; the other receivers must get nothing. Randomness is a choice of the
search: a member draws the value picked by the search.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from gapless.config import GROUP_PROFILE_NAMES, Config, RepairTo
from gapless.identity import Address, Marks, View, group_id
from gapless.profiles import ReleasePolicy
from gapless.protocol.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.profiles import Profile
    from gapless.protocol.ready import Ready

"""Every profile that can be searched."""

NOW_NS = 10**18
"""The single moment of a search; every timer ever planned is due."""

Side = Literal["sender", "receiver"]


class ScriptedRandom(Random):
    """Draws the item at ``pick`` of several, and the lowest of a range of numbers."""

    pick = 0

    def random(self) -> float:
        """Return 0."""
        return 0.0

    def getrandbits(self, k: int, /) -> int:
        """Return 0."""
        return 0

    def choice(self, seq: Sequence[Address]) -> Address:  # type: ignore[override]
        """Return the item at ``pick``."""
        return seq[self.pick]


class SearchBounds(NamedTuple):
    """The limits of a search: a profile, a single sender, and small numbers of everything else.

    ``coordinator`` is the side that counts the votes, if the profile has votes. With ``any_holder``
    a receiver may send naks to any member (``xmit_from_random_member``), and the search tries each
    member. With ``forgets`` the receiver of a connection may remove the connection at any moment,
    as if idle. With ``acknowledged`` every message has the delivery mode *acknowledged*.
    """

    profile: str = "nakack4"
    receivers: int = 2
    capacity: int = 2
    messages: int = 3
    in_flight: int = 3
    ack_threshold: int = 1
    use_mcast_xmit: RepairTo = "never"
    coordinator: Side = "sender"
    any_holder: bool = False
    forgets: bool = False
    acknowledged: bool = False

    @property
    def config(self) -> Config:
        """The configuration of every member."""
        return _config(self)

    @property
    def row(self) -> Profile:
        """The policies of the searched stream."""
        return self.config.group_profile if self.to is None else self.config.unicast_profile

    @property
    def to(self) -> Address | None:
        """The receiver of unicast messages; None for messages to the group."""
        return None if self.profile in GROUP_PROFILE_NAMES else self.members()[1]

    @property
    def keeps_order(self) -> bool:
        """Whether the network must be FIFO and lossless, as without retransmission."""
        return not self.config.retransmits

    def members(self) -> tuple[Address, ...]:
        """Return the sender, then the receivers."""
        return tuple(Address(node, 1) for node in range(1, self.receivers + 2))

    def voters(self, me: Address) -> tuple[Address, ...]:
        """Return the members whose acks or votes let ``me`` purge; none unless ``me`` decides."""
        members = self.members()
        listener = members[0] if self.row.release is ReleasePolicy.ACKS else self._view.members[0]
        others = members[1:] if self.to is None else (self.to,)
        if listener != members[0]:
            others = members
        return tuple(member for member in others if member != me) if me == listener else ()

    @property
    def _view(self) -> View:
        sender, *receivers = self.members()
        return View.of(
            1, *((sender, *receivers) if self.coordinator == "sender" else (*receivers, sender))
        )

    def member(self, me: Address) -> tuple[Endpoint, Ready]:
        """Return a member of the view, with every stream at its start, and the first Ready."""
        member = Endpoint(me, group_id("explore"), self.config, ScriptedRandom(0), tracing=True)
        return member, member.install(
            self._view, NOW_NS, dict.fromkeys(self.members(), Marks(0, 0, 0))
        )


@cache
def _config(bounds: SearchBounds) -> Config:
    kind = "profile" if bounds.profile in GROUP_PROFILE_NAMES else "unicast"
    return Config.make(
        **{kind: bounds.profile},
        capacity=bounds.capacity,
        max_seqno_ahead=bounds.capacity,
        become_server_queue_size=bounds.capacity,
        ack_threshold=bounds.ack_threshold,
        use_mcast_xmit=bounds.use_mcast_xmit,
        xmit_from_random_member=bounds.any_holder,
        max_frame_bytes="256B",
        # The buffers hold more than a window: what acks grant for what lies behind a gap has no
        # part in this.
        window_bytes="1KiB",
        jitter_percent=0,
    )

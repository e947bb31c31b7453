"""MembershipGroups with short patience, and what the tests of the membership ask of them.

``Clock`` is a gathering that can do something right before the n-th datagram from now on arrives:
with it a test goes through every point at which a member can die.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, TypeGuard

from gapless.wire import encode
from gapless.wire.frames import NewView
from tests.support.virtual_membership import GROUP, MembershipGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.identity import Address, View, ViewId
    from gapless.protocol.ready import Ready
    from gapless.wire.frames import Frame

FAST: dict[str, Any] = {
    "heartbeat_interval": "100ms",
    "suspect_after": "500ms",
    "verify_timeout": "100ms",
    "found_after": "200ms",
    "join_interval": "50ms",
    "join_confirm_timeout": "200ms",
    "merge_interval": "300ms",
    "leave_timeout": "2s",
}
"""Short patience: a death is known within a second, a merge made within two."""


class ArrivalTimer:
    """Counts the datagrams that arrive in a group, and acts right before a certain one."""

    def __init__(self, group: MembershipGroup) -> None:
        self.arrived = 0
        self._left = -1
        self._action: Callable[[], None] | None = None
        group.before_arrival = self._on_arrival

    def before(self, arrivals: int, action: Callable[[], None]) -> None:
        """Count from now on; call ``action`` when ``arrivals`` datagrams have arrived."""
        self.arrived, self._left, self._action = 0, arrivals, action

    def _on_arrival(self) -> None:
        if self._action is not None and self.arrived == self._left:
            action, self._action = self._action, None
            action()
        self.arrived += 1


def gathered(count: int, world: MembershipGroup | None = None, **knobs: Any) -> MembershipGroup:
    """Return a gathering of ``count`` members in one view, the oldest first by name."""
    world = world or MembershipGroup(count, **{**FAST, **knobs})
    for name in list(world.hosts)[:count]:
        world.join(name)
        world.settle(5)
    world.run(0.2)
    return world


def lossy(world: MembershipGroup, share: float, seed: int = 1) -> None:
    """Make the network lose this share of all datagrams."""
    rng = Random(seed)
    world.loses = lambda: rng.random() < share


def say(
    world: MembershipGroup, name: str, sender: Address, *frames: Frame, to_me: bool = False
) -> Ready:
    """Deliver a datagram of any sender to ``name``, and process the answer."""
    member = world[name]
    addressee = member.me.incarnation if to_me else None
    ready = member.receive(encode(GROUP, sender, frames, addressee), world.now_ns)
    world.process(name, ready)
    return ready


def frames_of(world: MembershipGroup, kind: type, *sources: str, since_ns: int = 0) -> list[Any]:
    """Return the frames of one kind that were sent."""
    return [
        frame
        for at_ns, name, _, frame in world.sent
        if type(frame) is kind and at_ns >= since_ns and (not sources or name in sources)
    ]


def members(world: MembershipGroup, name: str) -> list[str]:
    """Return the names of those in the view of ``name``, in order."""
    view = world[name].view
    assert view is not None
    return [chr(ord("a") + address.node - 1) for address in view.members]


def events(world: MembershipGroup, name: str, kind: type) -> list[Any]:
    """Return the events of one kind at ``name``, in all of its incarnations."""
    return [event for event in world.hosts[name].events if type(event) is kind]


def check_views(world: MembershipGroup) -> None:
    """Check S15: an id is one list of members, numbers rise, a member is in all of its views."""
    made: dict[ViewId, View] = {}
    for host in world.hosts.values():
        last: dict[Address, int] = {}
        for view in host.views:
            assert made.setdefault(view.id, view) == view
            assert view.id.coordinator == view.members[0]
            (me,) = [member for member in view.members if member.node == host.node]
            assert view.id.number > last.get(me, 0)
            last[me] = view.id.number


def check_no_twice(world: MembershipGroup, names: Iterable[str] | None = None) -> None:
    """Check that no host got a message twice; all messages differ."""
    for name in names or world.hosts:
        got = world.hosts[name].got
        assert len(set(got)) == len(got), f"{name} got something twice"


def is_roster(frame: object) -> TypeGuard[NewView]:
    """Return whether a frame carries a roster or a part of one."""
    return isinstance(frame, NewView)

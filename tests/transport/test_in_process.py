"""The network of one process: it behaves like the networks that members really use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless import blocking
from gapless.faults.faulty_transport import FaultyTransport
from gapless.transport import InProcessNetwork

if TYPE_CHECKING:
    from gapless.faults.faults import Copy, Crossing

QUICK = {"found_after": "50ms", "join_interval": "20ms", "merge_interval": "50ms"}


class Wall:
    """A fault that stops every datagram while it stands."""

    name = "wall"
    blind = True
    stands = True

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        return [] if self.stands else copies


def test_groups_founded_apart_merge() -> None:
    network, wall = InProcessNetwork(), Wall()

    def member() -> blocking.Group:
        transport = FaultyTransport(network.open(), [wall])
        return blocking.join("apart", transport=transport, config=QUICK, timeout=20)

    with member() as one, member() as two:
        assert one.view is not None
        assert two.view is not None
        assert len(one.view.members) == len(two.view.members) == 1, "each has founded a group"
        wall.stands = False
        one.wait_for_members(2, timeout=20)
        two.wait_for_members(2, timeout=20)
        one.send(b"together")
        message = two.receive(timeout=20)
        assert message is not None
        assert message.payload == b"together"

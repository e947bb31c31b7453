"""What the tests of the profile ``ordered`` share."""

from typing import Any

from gapless.identity import Marks, View
from gapless.wire.frames import Data, Frame, Nak, Tail
from tests.support.virtual_group import NAMES, A, B, Group

START = dict.fromkeys((A, B), Marks(0, 0, 0))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def ordered(members: int = 2, **knobs: Any) -> Group:
    """A group in which all starts are known."""
    return begun(Group(members, profile="ordered", **knobs))


def begun(group: Group) -> Group:
    group.settle()
    group.sent.clear()
    return group


def singles(group: Group, name: str, first: int, last: int) -> None:
    """Send messages one by one, each in a frame of its own."""
    for seqno in range(first, last + 1):
        group.send(name, b"%d" % seqno)


def joining(profile: str = "ordered", sent: int = 100, **knobs: Any) -> Group:
    """Members a and b, b at ``sent``; c runs outside of the view, and receives from now on."""
    group = Group(3, start=False, profile=profile, **knobs)
    group.install(View.of(1, A, B), [A, B], digest=START)
    deaf = group.lose(to="c")
    group.send("b", *numbers(1, sent))
    group.settle()
    group.rules.remove(deaf)
    return group


def switch(group: Group, name: str, xmit_interval_ns: int) -> None:
    group.step(NAMES[name], lambda m: m.set_xmit_interval(xmit_interval_ns, group.now_ns))


def retransmissions(group: Group, by: str | None = None) -> list[Frame]:
    """Naks, announcements and repairs, without announcements of a start."""
    repairs = [frame for frame in group.frames(Data, by) if frame.repair]
    announcements = [tail for tail in group.frames(Tail, by) if tail.start is None]
    return [*group.frames(Nak, by), *announcements, *repairs]


def drops(group: Group, name: str) -> dict[str, int]:
    return {
        reason: count
        for reason, count in group[name].counters.items()
        if reason.startswith("dropped")
    }

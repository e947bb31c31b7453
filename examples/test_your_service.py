"""Test your own service on a lossy network in virtual time: no sockets, no sleeping, repeatable.

Installing Gapless gives pytest the fixture ``gapless_group``. At the end of a test, the fixture
checks every guarantee of the group: sent messages are delivered once, in order, without a gap. This
file is a pytest test; run as a program, the file lets pytest run the test.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable

from gapless.sim import SimulatedGroup


class Accounts:
    """The service under test: adds up the deposits of members."""

    def __init__(self) -> None:
        self.balance = 0

    def apply(self, messages: Iterable[bytes]) -> None:
        """Take messages in."""
        for message in messages:
            self.balance += int(message)


def test_every_member_ends_with_the_same_balance(
    gapless_group: Callable[..., SimulatedGroup],
) -> None:
    group = gapless_group(3, capacity=4)
    group.drop("DATA 2 a->b")  # the network takes one of a's messages,
    group.drop("DATA 1 c->a")  # and the first of c's
    for amount in (10, 20, 30):
        group.a.send(b"%d" % amount)
        group.c.send(b"%d" % -amount)
    group.settle()
    for member in (group.a, group.b, group.c):
        accounts = Accounts()
        for messages in member.received.values():
            accounts.apply(messages)
        assert accounts.balance == 0


if __name__ == "__main__":
    sys.exit(
        subprocess.call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__])
    )

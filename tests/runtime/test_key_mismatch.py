"""The members that a lone member hears without an answer."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gapless.identity import Address
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.runtime.key_mismatch import UnansweredMembers
from gapless.units import NS_PER_S
from gapless.wire.codec import encode
from gapless.wire.frames import AskView
from gapless.wire.seal import Seal

GROUP = 7
ME, OTHER = Address(1, 1), Address(2, 1)
AFTER_NS = 6 * NS_PER_S


def seal_of(keyring: Keyring, member: Address) -> Seal:
    made = Seal(keyring.ring, suites_of(keyring.ring))
    speak(made, member)
    return made


def speak(seal: Seal, member: Address) -> bytes:
    return seal.seal(encode(GROUP, member, (AskView(member),)))


class Scene(NamedTuple):
    """A member with an old keyring, and another with a rotated one."""

    mine: Seal
    theirs: Seal
    watch: UnansweredMembers

    def hear(self, at_s: float) -> list[Address]:
        """Hear a datagram of the other, and return whom the watch reports."""
        self.mine.open(speak(self.theirs, OTHER))
        return self.look(at_s)

    def look(self, at_s: float) -> list[Address]:
        found = self.watch.check(self.mine, int(at_s * NS_PER_S))
        return [one.member for one in found]


@pytest.fixture
def scene() -> Scene:
    old = Keyring.new(cipher="blake2b").add()
    return Scene(seal_of(old, ME), seal_of(old.promote(), OTHER), UnansweredMembers(AFTER_NS))


def test_a_member_that_is_heard_for_long_is_reported(scene: Scene) -> None:
    assert [scene.hear(at_s) for at_s in (0, 2, 4, 6, 7.9)] == [[]] * 5
    assert scene.hear(8) == [OTHER]
    assert scene.look(9) == [OTHER]


def test_what_was_heard_before_does_not_count(scene: Scene) -> None:
    scene.mine.open(speak(scene.theirs, OTHER))
    assert [scene.look(at_s) for at_s in (0, 10, 20)] == [[]] * 3
    assert scene.hear(21) == []
    assert scene.look(40) == []


def test_a_member_that_was_not_alone_begins_again(scene: Scene) -> None:
    for at_s in (0, 2, 10):
        scene.hear(at_s)
    assert scene.look(11) == [OTHER]
    scene.watch.reset()
    assert [scene.hear(at_s) for at_s in (12, 13, 14)] == [[]] * 3


def test_members_that_seal_with_the_same_key_have_other_reasons(scene: Scene) -> None:
    ring = scene.mine.ring
    theirs = Seal(ring, suites_of(ring))
    same = scene._replace(theirs=theirs)
    assert [same.hear(at_s) for at_s in (0, 2, 10, 20)] == [[]] * 4


def test_another_sealing_key_begins_again(scene: Scene) -> None:
    for at_s in (0, 2, 10):
        scene.hear(at_s)
    assert scene.look(11) == [OTHER]
    ring = scene.theirs.ring
    scene.mine.replace_ring(ring, suites_of(ring))
    assert [scene.hear(at_s) for at_s in (12, 14, 30)] == [[]] * 3

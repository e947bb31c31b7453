"""Every frame has a name that stays, and words for the story."""

from typing import get_args

import pytest

from gapless.faults.frame_names import KINDS, FrameName, incarnation_name, kind_of, label_of
from gapless.identity import Address, RosterEntry, ViewId
from gapless.sim.scenario.diagram import format_frame
from gapless.wire import Datagram, Frame
from gapless.wire.frames import (
    Alive,
    AskView,
    Beacon,
    Join,
    Leave,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Signature,
    StateAsk,
    StateChunk,
    StateOffer,
    StatePull,
    StreamProgress,
    Suspect,
)
from tests.support.frames import GOLDEN
from tests.support.oracle_pair import A as PAIR_A, B as PAIR_B, OraclePair, datagram_of

A, B = Address(1, 1), Address(2, 2)
VIEW, BEFORE = ViewId(7, A), ViewId(6, B)

SAID: list[tuple[Frame, str]] = [
    (Join(RosterEntry(A, "anna"), relay=True), "a as anna, pass it on"),
    (Join(RosterEntry(B)), "b'"),
    (NameTaken(RosterEntry(A, "anna"), B), "a as anna, not b'"),
    (Leave(A), "a"),
    (Signature(A, 9, 7, bytes(64)), "a for the 9th time, in view 7"),
    (Alive(A, None, includes_receiver=False, reply_wanted=True), "a in no view, and you?"),
    (Alive(A, VIEW, includes_receiver=True), "a in view 7 with you"),
    (Suspect(A, (B, Address(3, 1))), "a misses b' c"),
    (Suspect(A, (B,), slow_receivers=True), "a is pinned by b'"),
    (NewView(A, VIEW, BEFORE, 1, 3, b"x"), "a view 7 after 6, part 2 of 3"),
    (NewView(A, VIEW, None, 0, 1, b"x"), "a view 7, part 1 of 1"),
    (AskView(A), "a"),
    (Beacon(A, VIEW, (B,)), "a view 7: b'"),
    (Beacon(A, VIEW, ()), "a view 7: hears nobody"),
    (MergeAsk(A, 0x2A), "a merge 2a"),
    (MergeReply(A, 0x2A, VIEW, willing=False), "a merge 2a: no, view 7"),
    (StateAsk(A, 1, (StreamProgress(A, 4, 5), StreamProgress(B, 6, 7))), "a behind a4 b'6"),
    (StateAsk(A, 1, ()), "a behind nothing"),
    (StateOffer(A, 1, 0, 2, b"x"), "a part 1 of 2"),
    (StatePull(A, 1, 10, 20), "a 20 bytes from 10 on"),
    (StatePull(A, 1, 10, 0), "a has all"),
    (StateChunk(A, 1, 10, b"xyz"), "a 3 bytes from 10 on"),
]


@pytest.mark.parametrize(("frame", "words"), SAID, ids=[words for _, words in SAID])
def test_the_story_says_what_a_frame_says_of_the_group(frame: Frame, words: str) -> None:
    assert format_frame(frame) == f"{kind_of(frame)} {words}"


@pytest.mark.parametrize(
    "frame", [frame for frame, _ in GOLDEN], ids=[f"{frame}"[:60] for frame, _ in GOLDEN]
)
def test_every_frame_has_a_name_that_can_be_read_again(frame: Frame) -> None:
    label = label_of(Datagram(1, A, (frame,)), lambda _: "a'")
    name = FrameName(*label, "a", "b", 3)
    assert FrameName.parse(str(name)) == name
    assert label.kind in KINDS
    assert format_frame(frame).startswith(label.kind)


def test_no_two_kinds_share_a_word() -> None:
    words = {kind_of(frame) for frame, _ in GOLDEN}
    assert words == {*KINDS} - {"NOISE"}
    assert len(KINDS) == len({*KINDS}) == len(get_args(Frame)) + 2  # a repair, and noise


def test_a_roster_is_named_by_its_view_and_its_maker() -> None:
    label = label_of(Datagram(1, A, (NewView(B, VIEW, None, 0, 1, b"x"),)), incarnation_name)
    assert label[1:] == ("b'", 7, 7)


@pytest.mark.parametrize("frame", [frame for frame, _ in SAID], ids=[words for _, words in SAID])
def test_the_judge_passes_over_what_is_about_no_stream(frame: Frame) -> None:
    case = OraclePair()
    case.receive(PAIR_B, datagram_of(PAIR_A, frame))
    case.forge(PAIR_A, frame)
    assert case.broken == set()

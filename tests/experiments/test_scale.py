"""How costs grow with the group, at sizes that a test can afford."""

import pytest

from experiments.scale import IDLE_NS, GroupSizeResult, measure, scale
from gapless.sim.mutants.planting import Mutant, planted
from gapless.units import NS_PER_S


@pytest.fixture(scope="module")
def sizes() -> list[GroupSizeResult]:
    return scale((2, 10), messages=40)


def test_nothing_is_lost_at_any_size(sizes: list[GroupSizeResult]) -> None:
    assert [size.members for size in sizes] == [2, 10]
    for size in sizes:
        assert size.ok, size
        assert (size.lost, size.before_view, size.problems) == (0, 0, [])


def test_everything_is_delivered_and_counted(sizes: list[GroupSizeResult]) -> None:
    for size in sizes:
        assert size.delivered == size.sent * (size.members - 1)
        assert size.load.frames["DATA"] == size.delivered, "one message a frame, on every link"
        assert 0 < size.control_frames_per_message < 1
        assert size.control_bytes_per_message > 0
        assert set(size.load.frames) == set(size.load.sizes_bytes)


def test_signs_of_life_grow_with_the_members_not_with_their_square(
    sizes: list[GroupSizeResult],
) -> None:
    """Each member is watched by two others, or by all that there are."""
    assert [size.heartbeats for size in sizes] == [
        pytest.approx(1, rel=0.1),
        pytest.approx(2, rel=0.1),
    ]
    assert sizes[1].idle.control_frames < 3 * 10 * IDLE_NS / NS_PER_S


def test_every_change_comes_to_an_end_in_time(sizes: list[GroupSizeResult]) -> None:
    for size in sizes:
        assert set(size.changes) == {"join", "leave", "crash", "coordinator crash"}
        for name, change in size.changes.items():
            assert change.total_ns is not None
            assert change.view_ns is not None
            assert change.view_ns <= change.total_ns
            assert change.total_ns < (10 if "crash" in name else 1) * NS_PER_S
            assert change.views == 1, "one change, one view"
        assert size.form.total_ns is not None
        assert size.join_ns is not None
        assert size.started_ns is not None
        assert size.started_ns >= size.join_ns
        assert size.one_by_one is not None
        assert size.one_by_one.views == size.members, "one by one, each in a view of its own"


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again = measure(3, messages=5), measure(3, messages=5)
    first.cpu_s = again.cpu_s = 0.0
    assert first == again


def test_what_goes_wrong_is_seen() -> None:
    """Delivery behind a gap, planted: a group that loses a frame now is not ok any more."""
    bug = Mutant(
        "planted here",
        "",
        "gapless.protocol.stream.inbound:InboundStream.open_at",
        "self._create_window(start)",
        "self._create_window(start + 1)",
    )
    with planted(bug):
        size = measure(3, messages=5)
    assert size.lost > 0
    assert not size.ok

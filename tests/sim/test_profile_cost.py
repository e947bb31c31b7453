"""The comparison shows what each protocol claims; times are virtual, so they may be compared."""

import pytest

from gapless.config import UNICAST_PROFILE_NAMES
from gapless.sim.profile_cost import (
    KINDS,
    ProfileCell,
    ProfileComparison,
    ProfileWorkload,
    compare,
    config_of,
    lose_one,
    run_cell,
)
from gapless.sim.swarm.profile_draw import ALL_PROFILES

WORK = ProfileWorkload(messages=100)
LOSSES = (0.0, 5.0)


@pytest.fixture(scope="module")
def result() -> ProfileComparison:
    return compare(losses=LOSSES, work=WORK)


def cell(result: ProfileComparison, profile: str, loss_percent: float = 0.0) -> ProfileCell:
    (found,) = [
        cell
        for cell in result.cells
        if (cell.profile, cell.loss_percent) == (profile, loss_percent)
    ]
    return found


def times_ns(result: ProfileComparison, profile: str) -> dict[str, int | None]:
    (found,) = [single.delivered_ns for single in result.single if single.profile == profile]
    return found


def test_every_profile_at_every_loss_and_nothing_violated(result: ProfileComparison) -> None:
    assert [(cell.loss_percent, cell.profile) for cell in result.cells] == [
        (p, name) for p in LOSSES for name in ALL_PROFILES
    ]
    assert [single.profile for single in result.single] == list(ALL_PROFILES)
    assert result.violations == []


def test_the_same_work_for_all(result: ProfileComparison) -> None:
    for cell in result.cells:
        assert cell.sent == 300
        assert cell.expected == (300 if cell.profile in UNICAST_PROFILE_NAMES else 600)
        assert cell.frames["data"] == cell.expected, "one message a frame, on every link"


def test_whatever_retransmits_delivers_everything(result: ProfileComparison) -> None:
    for cell in result.cells:
        if config_of(cell.profile).retransmits:
            assert cell.delivered == cell.expected
            assert cell.stalls == 0


def test_without_loss_a_message_takes_as_long_as_a_frame(result: ProfileComparison) -> None:
    for cell in [cell for cell in result.cells if not cell.loss_percent]:
        assert cell.p50_ns == cell.max_ns == 1_000_000
        assert (cell.frames["repair"], cell.frames["nak"], cell.frames_lost) == (0, 0, 0)


def test_loss_costs_time_and_repairs(result: ProfileComparison) -> None:
    for name in (name for name in ALL_PROFILES if config_of(name).retransmits):
        lossy = cell(result, name, 5.0)
        assert lossy.frames_lost > 0
        assert lossy.frames["repair"] > 0
        assert (lossy.max_ns or 0) > 1_000_000


def test_bytes_hold_what_was_sent_and_its_price(result: ProfileComparison) -> None:
    for cell in result.cells:
        assert cell.sizes_bytes["data"] > WORK.size_bytes * cell.frames["data"]
        for kind in KINDS:
            assert (cell.sizes_bytes[kind] > 0) == (cell.frames[kind] > 0)


def test_the_window_holds_what_is_not_released(result: ProfileComparison) -> None:
    """Immediate acks keep the sender's window small; periodic votes do not."""
    peaks = [cell(result, name).peak_window for name in ("unicast", "unicast3", "unicast2")]
    assert peaks == sorted(peaks)
    assert cell(result, "nakack4").peak_window < cell(result, "nakack").peak_window


# Claims of the designs


@pytest.mark.behaviour("U3-04")
def test_unicast3_sends_far_fewer_acks_than_unicast(result: ProfileComparison) -> None:
    assert cell(result, "unicast").frames["ack"] == 300, "one for every message"
    assert 10 * cell(result, "unicast3").frames["ack"] < cell(result, "unicast").frames["ack"]


@pytest.mark.behaviour("U3-12", "I-10")
@pytest.mark.parametrize("lost", ["only", "last"])
def test_unicast2_is_slow_at_the_end_and_unicast3_is_not(
    result: ProfileComparison, lost: str
) -> None:
    slow_ns, fast_ns = times_ns(result, "unicast2")[lost], times_ns(result, "unicast3")[lost]
    assert slow_ns is not None
    assert fast_ns is not None
    assert slow_ns > 3 * fast_ns


@pytest.mark.behaviour("U3-12")
def test_a_lost_first_message_is_no_slower_with_unicast3(result: ProfileComparison) -> None:
    first_ns, later_ns = (
        times_ns(result, "unicast3")["first"],
        times_ns(result, "unicast2")["first"],
    )
    assert first_ns is not None
    assert later_ns is not None
    assert first_ns <= later_ns


@pytest.mark.behaviour("N4-39")
@pytest.mark.parametrize("loss_percent", LOSSES)
def test_nakack4_needs_no_stability_messages(
    result: ProfileComparison, loss_percent: float
) -> None:
    assert cell(result, "nakack4", loss_percent).frames["stability"] == 0
    for name in ("nakack", "ordered", "classic"):
        assert cell(result, name, loss_percent).frames["stability"] > 0


@pytest.mark.behaviour("NR-07", "NR-17", "NR-18")
def test_ordered_asks_for_nothing_and_reports_what_stalls(result: ProfileComparison) -> None:
    calm, lossy = cell(result, "ordered"), cell(result, "ordered", 5.0)
    assert (calm.delivered, calm.stalls) == (calm.expected, 0)
    assert lossy.delivered < lossy.expected
    assert lossy.stalls > 0
    for cell_ in (calm, lossy):
        assert (cell_.frames["nak"], cell_.frames["repair"]) == (0, 0)
    assert set(times_ns(result, "ordered").values()) == {None}, "what is lost never comes"


# The numbers themselves


def test_the_same_seed_gives_the_same_numbers() -> None:
    small = ProfileWorkload(messages=40, seed=7)
    first = run_cell("nakack4", 5.0, small)
    assert run_cell("nakack4", 5.0, small) == first
    assert run_cell("nakack4", 5.0, small._replace(seed=8)) != first
    assert lose_one("unicast3", 7) == lose_one("unicast3", 7)


def test_another_seed_loses_other_frames() -> None:
    """Without retransmission, deliveries depend on the losses alone."""
    lost = {
        run_cell("ordered", 5.0, ProfileWorkload(messages=40, seed=seed)).delivered
        for seed in range(4)
    }
    assert len(lost) > 1


def test_workers_do_not_change_the_numbers() -> None:
    small = ProfileWorkload(members=2, messages=10)
    counts: list[int] = []
    one = compare(("unicast3", "nakack"), (0.0, 20.0), small, progress=counts.append)
    assert counts == [1, 2, 3, 4, 5, 6]
    assert compare(("unicast3", "nakack"), (0.0, 20.0), small, workers=2) == one


def test_messages_that_wait_for_room_are_timed_from_the_call_of_send() -> None:
    """Ten times the receivers' buffers at once: the network is fast, and the sender waits."""
    flooded = run_cell(
        "nakack4", 0.0, ProfileWorkload(members=2, messages=400, size_bytes=5000, pace_ns=1000)
    )
    assert flooded.delivered == flooded.expected
    assert flooded.peak_window * 1400 < 2 * config_of("nakack4").receive_buffer_bytes
    assert (flooded.p50_ns or 0) > 2_000_000


@pytest.mark.parametrize("size_bytes", [0, 5000])
def test_messages_of_any_size(size_bytes: int) -> None:
    done = run_cell("unicast3", 5.0, ProfileWorkload(members=2, messages=20, size_bytes=size_bytes))
    assert done.delivered == done.expected
    assert done.violations == []

"""The light world of the experiments: it counts what happened, and its checks can fail."""

import pytest

from experiments.light_world import DeliveryMismatch, LightNode, LightWorld, ReceivedRange
from gapless.config import Config
from gapless.identity import Address, View
from gapless.protocol.events import Lost, ViewInstalled
from gapless.protocol.ready import Delivery, Ready
from gapless.run import Run
from gapless.units import NS_PER_MS, NS_PER_S, NS_PER_US


def crowd_of(count: int, **options: object) -> LightWorld:
    """Return a crowd whose members are all in one view."""
    crowd = LightWorld(Config.make(), **options)  # type: ignore[arg-type]
    for number in range(1, count + 1):
        crowd.join(number)
    assert crowd.run(20 * NS_PER_S, crowd.has_converged)
    crowd.run(NS_PER_S)
    return crowd


def delivery(origin: Address, *numbers: int) -> Delivery:
    run = Run.of(origin, numbers[0], [number.to_bytes(8, "big") for number in numbers], 0, 1, 0)
    return Delivery(origin, run.first, run.last, run)


def hand_out(crowd: LightWorld, node: LightNode, *deliveries: Delivery) -> None:
    crowd._handle_outputs(node, Ready(deliveries=list(deliveries)), 0)


def test_all_get_everything() -> None:
    crowd = crowd_of(4)
    sender = crowd.nodes[3]
    crowd.send(sender, 500, 40)
    crowd.run(NS_PER_S)
    assert sender.sent == 500
    assert crowd.delivered == 1500
    assert [crowd.compare_deliveries(sender, crowd.nodes[number], 500) for number in (1, 2, 4)] == [
        DeliveryMismatch(0, 0)
    ] * 3
    assert crowd.problems == []


def test_loss_is_repaired() -> None:
    crowd = crowd_of(3)
    crowd.loss = 0.2
    crowd.send(crowd.nodes[1], 500, 40)
    crowd.run(20 * NS_PER_S)
    assert crowd.frames["REPAIR"] > 0
    assert crowd.delivered == 1000


def test_a_busy_process_reads_one_datagram_after_the_other() -> None:
    """Two senders, one datagram each at the same time: the second is read after the first."""
    crowd = crowd_of(3, handling_ns=100 * NS_PER_US)
    first, second, reader = (crowd.nodes[number] for number in (1, 2, 3))
    began_ns = crowd.now_ns
    crowd.send(first, 1, 40)
    crowd.send(second, 1, 40)
    assert crowd.run(NS_PER_S, lambda: first.address in reader.received)
    first_ns = crowd.now_ns - began_ns
    assert crowd.run(NS_PER_S, lambda: second.address in reader.received)
    assert first_ns == NS_PER_MS + 100 * NS_PER_US, "written, then under way"
    assert crowd.now_ns - began_ns == first_ns + 100 * NS_PER_US
    assert crowd.run(NS_PER_S, lambda: crowd.delivered == 4), "and what waited is not forgotten"


def test_frames_count_on_every_link() -> None:
    crowd = crowd_of(5)
    crowd.send(crowd.nodes[2], 1, 40)
    crowd.run(NS_PER_S)
    assert crowd.frames["DATA"] == 4
    assert crowd.sizes_bytes["DATA"] > 4 * 40
    assert set(crowd.frames) == set(crowd.sizes_bytes)


def test_a_crash_and_a_leave_end_in_one_view() -> None:
    crowd = crowd_of(4)
    crowd.leave(crowd.nodes[4])
    assert crowd.run(10 * NS_PER_S, lambda: crowd.nodes[4].ended is not None)
    crowd.crash(crowd.nodes[1])
    assert not crowd.has_converged()
    assert crowd.run(20 * NS_PER_S, crowd.has_converged)
    assert crowd.latest_view is not None
    assert set(crowd.latest_view.members) == {crowd.nodes[2].address, crowd.nodes[3].address}
    back = crowd.join(4)
    assert back.address == Address(4, 2), "a restart is a new incarnation"
    assert crowd.run(20 * NS_PER_S, crowd.has_converged)
    assert crowd.problems == []


# What is checked


def two() -> tuple[LightWorld, LightNode, LightNode]:
    crowd = crowd_of(2)
    return crowd, crowd.nodes[1], crowd.nodes[2]


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ((1, 2, 4), "message 4 of 1.1 right after message 2"),
        ((1, 2, 2), "message 2 of 1.1 after message 2"),
    ],
)
def test_a_hole_and_a_repetition_are_seen(numbers: tuple[int, ...], problem: str) -> None:
    crowd, sender, receiver = two()
    for number in numbers:
        hand_out(crowd, receiver, delivery(sender.address, number))
    assert len(crowd.problems) == 1
    assert problem in crowd.problems[0]


@pytest.mark.parametrize(
    ("counts", "losses", "problems"),
    [
        (False, [(2, 4)], 0),
        (False, [(2, 3), (4, 4)], 0),
        (True, [(2, 4)], 1),
        (False, [(3, 4)], 1),
        (False, [(2, 3)], 1),
        (False, [], 1),
    ],
)
def test_a_hole_is_excused_where_it_is_told_to_one_who_does_not_count(
    counts: bool, losses: list[tuple[int, int]], problems: int
) -> None:
    crowd = crowd_of(2)
    sender, reader = crowd.nodes[1], crowd.nodes[2]
    if not counts:
        sender.members -= {reader.address}
    hand_out(crowd, reader, delivery(sender.address, 1))
    events = [Lost(sender.address, first, last) for first, last in losses]
    crowd._handle_outputs(
        reader, Ready(events=[*events], deliveries=[delivery(sender.address, 5)]), 0
    )
    assert len(crowd.problems) == problems


def test_a_message_of_a_stranger_is_seen() -> None:
    crowd, _, receiver = two()
    hand_out(crowd, receiver, delivery(Address(9, 1), 1))
    assert "not in its view" in crowd.problems[0]


def test_wrong_views_are_seen() -> None:
    crowd, one, other = two()
    present = one.view
    assert present is not None
    same_id = View(present.id._replace(number=9), (one.address,))
    crowd._install(one, same_id, 0)
    crowd._install(other, View(same_id.id, (one.address, other.address)), 0)
    crowd._install(one, present, 0)
    crowd._handle_outputs(other, Ready(events=[ViewInstalled(View.of(10, one.address))]), 0)
    problems = " | ".join(crowd.problems)
    assert len(crowd.problems) == 3
    assert "another list of members" in problems
    assert "view 2 came after view 9" in problems
    assert "without being in it" in problems


@pytest.mark.parametrize(
    ("since", "heard", "upto", "gap"),
    [
        (10, (11, 20), 20, DeliveryMismatch(0, 0)),
        (10, (13, 20), 20, DeliveryMismatch(2, 0)),
        (10, (11, 15), 20, DeliveryMismatch(5, 0)),
        (10, (9, 20), 20, DeliveryMismatch(0, 2)),
        (10, (3, 7), 20, DeliveryMismatch(10, 5)),
        (10, None, 20, DeliveryMismatch(10, 0)),
        (10, (25, 30), 20, DeliveryMismatch(10, 0)),
        (None, None, 20, DeliveryMismatch(0, 0)),
        (None, (5, 9), 20, DeliveryMismatch(0, 5)),
    ],
)
def test_what_is_owed(
    since: int | None, heard: tuple[int, int] | None, upto: int, gap: DeliveryMismatch
) -> None:
    """Everything from the sender's own view with the receiver on, and nothing from before it."""
    crowd = LightWorld(Config.make())
    sender, receiver = LightNode(1, Address(1, 1)), LightNode(2, Address(2, 1))
    if since is not None:
        sender.counted_from = {receiver.address: since}
    if heard is not None:
        receiver.received[sender.address] = found = ReceivedRange(heard[0])
        found.last = heard[1]
    assert crowd.compare_deliveries(sender, receiver, upto) == gap

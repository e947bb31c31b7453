"""One member runtime without its thread: the order in which its answers are processed."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gapless.config import SETTINGS, Config
from gapless.errors import ConfigError
from gapless.identity import Address, View
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted, Expelled, Located, ViewInstalled
from gapless.protocol.ready import ANYONE, Delivery, Ready, Transmit
from gapless.run import Run
from gapless.runtime.bundler import Bundle
from gapless.runtime.delivery_queue import DeliveryQueue
from gapless.runtime.handle import fit_config
from gapless.runtime.member_runtime import (
    BACKLOG_GRACE_NS,
    DATAGRAMS_PER_TURN,
    MemberRuntime,
    PendingCall,
)
from gapless.runtime.reactor import process_ready
from gapless.runtime.send_requests import SendRequest
from gapless.transport import InProcessNetwork, InProcessTransport, TcpMesh, UdpMesh
from gapless.wire.seal import Seal
from tests.support.handles import with_room


class LoneReceipt:
    """The receipt of one message in a bundle."""

    _accepted: Accepted | None = None
    _bundled: tuple[Bundle, int] | None = None


A, B, C = (Address(node, 1) for node in (1, 2, 3))


@pytest.fixture
def network() -> Iterator[InProcessNetwork]:
    made = InProcessNetwork()
    yield made
    for member in list(made.members.values()):
        member.close()


def seat_at(transport: InProcessTransport, **knobs: Any) -> tuple[MemberRuntime, DeliveryQueue]:
    outbox = DeliveryQueue()
    config = fit_config(Config.make(**knobs), transport)
    return MemberRuntime(
        "g", 1, "", transport, config, outbox, join={}, rejoin=True, trace=None
    ), outbox


def run_of(*messages: bytes) -> Delivery:
    return Delivery(B, 1, len(messages), Run.of(B, 1, messages))


def found_group(runtime: MemberRuntime) -> None:
    """Join, in virtual time, until the member is in a view of its own."""
    process_ready(runtime.run_commands(0), runtime)
    while runtime.member.view is None:
        assert runtime.member.deadline_ns is not None
        process_ready([runtime.member.tick(runtime.member.deadline_ns)], runtime)


def delivered_messages(outbox: DeliveryQueue) -> list[bytes]:
    deliveries = [item for item in outbox.take() if isinstance(item, Delivery)]
    return [message for item in deliveries for message in item.messages()]


def test_places_are_noted_before_datagrams_go_there(network: InProcessNetwork) -> None:
    here, there, elsewhere = network.open(), network.open(), network.open()
    seat, _ = seat_at(here)
    located = [Located(B, there.locator.encode()), Located(C, elsewhere.locator.encode())]
    process_ready([Ready([Transmit(B, b"welcome")], events=[located[0]])], seat)
    assert there.receive(9) == [b"welcome"]
    process_ready(
        [
            Ready(
                [Transmit(None, b"to all")], events=[located[1], ViewInstalled(View.of(1, A, B, C))]
            )
        ],
        seat,
    )
    assert (there.receive(9), elsewhere.receive(9)) == ([b"to all"], [b"to all"])
    process_ready(
        [Ready([Transmit(None, b"to b")], events=[ViewInstalled(View.of(2, A, B))])], seat
    )
    assert (there.receive(9), elsewhere.receive(9)) == ([b"to b"], [])
    process_ready([Ready([Transmit(ANYONE, b"to the world")])], seat)
    assert (there.receive(9), elsewhere.receive(9), here.receive(9)) == (
        [b"to the world"],
        [b"to the world"],
        [],
    )


def test_the_application_gets_all_answers_in_their_order(network: InProcessNetwork) -> None:
    seat, outbox = seat_at(network.open())
    one, two, three = run_of(b"1"), run_of(b"2"), run_of(b"3")
    view = ViewInstalled(View.of(1, A))
    process_ready(
        [Ready(deliveries=[one]), Ready(deliveries=[two, three], events=[view], before_view=1)],
        seat,
    )
    assert outbox.take() == [one, two, view, three]


def test_what_is_due_waits_for_what_has_come_and_is_not_read(network: InProcessNetwork) -> None:
    here = network.open()
    seat, _ = seat_at(here)
    now_ns = time.monotonic_ns()
    process_ready(seat.run_commands(now_ns), seat)  # it looks for a group, and will try again
    due_ns = seat.member.deadline_ns
    assert due_ns is not None
    for _ in range(DATAGRAMS_PER_TURN + 1):
        here.enqueue(here.locator, b"nonsense")
    seat.receive_datagrams(due_ns)
    assert not any(True for _ in seat.run_timers(due_ns))
    assert any(True for _ in seat.run_timers(due_ns + BACKLOG_GRACE_NS)), "but not for long"
    due_ns = seat.member.deadline_ns
    assert due_ns is not None
    seat.receive_datagrams(due_ns)
    assert any(True for _ in seat.run_timers(due_ns)), "all is read"


def test_a_full_inbox_drops_and_counts(network: InProcessNetwork) -> None:
    small = network.open(receive_buffer_bytes=4096)
    for number in range(5):
        small.enqueue(small.locator, bytes([number]) * 1000)
    assert [datagram[0] for datagram in small.receive(9)] == [0, 1, 2, 3]
    assert small.problems.counters == {"receive.full": 1}
    small.enqueue(small.locator, b"room again")
    assert small.receive(9) == [b"room again"]


def test_the_config_fits_the_transport(network: InProcessNetwork) -> None:
    transport = network.open(max_frame_bytes=5000, receive_buffer_bytes=100_000)
    config = fit_config(Config(), transport)
    assert (config.max_frame_bytes, config.receive_buffer_bytes, config.unread_limit) == (
        5000,
        100_000,
        16_384,
    )
    asked = fit_config(Config.make(max_frame_bytes=1200, unread_limit=7), transport)
    assert (asked.max_frame_bytes, asked.unread_limit) == (1200, 7)
    same = Config.make(max_frame_bytes=SETTINGS["max_frame_bytes"].format(Config().max_frame_bytes))
    assert fit_config(same, transport).max_frame_bytes == 1400, "the default, but written down"
    for kept in (same.replace(capacity=7), Config.from_properties("max_frame_bytes=1400")):
        assert fit_config(kept, transport).max_frame_bytes == 1400
    with pytest.raises(ConfigError, match=r"max_frame_bytes = 9000: .* at most 5000 bytes"):
        fit_config(Config.make(max_frame_bytes=9000), transport)


@pytest.mark.parametrize(
    ("knobs", "whole", "run_bytes"),
    [
        ({}, True, 256_000),
        ({"max_run_bytes": 100_000}, True, 100_000),
        ({"max_frame_bytes": 1200}, False, 60_000),
    ],
)
def test_runs_go_whole_where_the_transport_takes_them_and_frames_may_be_as_large_as_they_can(
    knobs: dict[str, int], whole: bool, run_bytes: int
) -> None:
    for kind in (TcpMesh, UdpMesh):
        transport = kind("127.0.0.1", 0)
        try:
            config = fit_config(Config.make(**knobs), transport)
        finally:
            transport.close()
        assert (config.whole_runs, config.max_run_bytes) == (whole, run_bytes)


def test_over_a_network_runs_of_a_stream_are_not_larger_than_elsewhere() -> None:
    """One that is cut begins its datagram anew; on a slow network that would never end."""
    transport = TcpMesh("127.0.0.1", 0, advertise=Locator.of("192.0.2.1", 7800))
    transport.close()
    assert fit_config(Config(), transport).max_run_bytes == 60_000


@pytest.mark.parametrize(
    ("ahead", "told_bytes"), [(10, 50_000), (20, 100_000), (30, 100_000), (0, 100_000)]
)
def test_of_a_large_buffer_others_are_told_so_many_frames(
    network: InProcessNetwork, ahead: int, told_bytes: int
) -> None:
    transport = network.open(max_frame_bytes=5000, receive_buffer_bytes=100_000)
    assert (
        fit_config(Config.make(max_frames_ahead=ahead), transport).receive_buffer_bytes
        == told_bytes
    )


def test_one_small_frame_ahead_is_still_a_buffer(network: InProcessNetwork) -> None:
    transport = network.open(max_frame_bytes=300)
    assert fit_config(Config.make(max_frames_ahead=1), transport).receive_buffer_bytes == 1024


@pytest.mark.parametrize(
    ("asked", "keeps_bytes", "covered"),
    [
        ("auto", True, "headers"),
        ("auto", False, "all"),
        ("all", True, "all"),
        ("headers", False, "headers"),
    ],
)
def test_messages_that_stay_within_the_machine_need_no_checksum(
    network: InProcessNetwork, asked: str, keeps_bytes: bool, covered: str
) -> None:
    transport = network.open()
    transport.preserves_bytes = keeps_bytes
    assert fit_config(Config.make(checksum=asked), transport).checksum == covered


def test_only_sealed_datagrams_need_no_checksum(network: InProcessNetwork) -> None:
    transport, ring = network.open(), Keyring.new(cipher="blake2b").ring
    with pytest.raises(ConfigError, match="only the datagrams of a sealed group"):
        fit_config(Config.make(checksum="none"), transport)
    transport.seal = Seal(ring, suites_of(ring))
    assert fit_config(Config.make(), transport).checksum == "none"
    assert fit_config(Config.make(checksum="all"), transport).checksum == "all"


def test_the_machine_is_told_now_and_then_what_was_consumed(network: InProcessNetwork) -> None:
    seat, _ = seat_at(network.open(), unread_limit=40)  # it is told of a quarter of that at once
    assert [seat.add_consumed(4) for _ in range(6)] == [False, False, True, False, False, True]
    assert seat.add_consumed(1) is False
    assert (seat._take_unreported(), seat._take_unreported()) == (25, 0), "all of it, once"
    assert seat.add_consumed(9) is False
    assert seat.add_consumed(1) is True


def test_a_send_that_waits_for_a_view_goes_with_it(network: InProcessNetwork) -> None:
    seat, _ = seat_at(network.open())
    process_ready(seat.run_commands(0), seat)
    seat.send_requests.put(SendRequest(Payloads.of([b"x"])))
    process_ready(seat.run_commands(0), seat)
    assert not seat.has_commands
    process_ready([Ready(events=[ViewInstalled(View.of(1, A))])], seat)
    assert seat.has_commands


def test_what_former_lives_handed_out_is_consumed_first(network: InProcessNetwork) -> None:
    seat, _ = seat_at(network.open())
    expelled = Expelled(View.of(1, A).id)
    for handed_out, consumed in ((5, 3), (4, 1)):
        seat.member.credit.spend(handed_out)
        process_ready([Ready(deliveries=[run_of(*[b"x"] * handed_out)], events=[expelled])], seat)
        seat.report_consumed(consumed, 0)
        seat.rejoin_if_expelled()
    assert seat._former_outstanding == 5 - 3 + 4 - 1
    seat.member.credit.spend(1)
    process_ready([Ready(deliveries=[run_of(b"x")])], seat)
    assert (seat._former_outstanding, seat.member.credit.outstanding) == (5, 1)
    seat.report_consumed(6, 0)
    assert (seat._former_outstanding, seat.member.credit.outstanding) == (0, 0)


def test_a_call_that_comes_while_a_round_runs_waits_for_the_next(
    network: InProcessNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that sends, and then asks for the seqno, may do both within a round."""
    seat, _ = seat_at(network.open())
    seat.calls.clear()
    answered: list[int] = []
    flush_bundle = seat.flush_bundle

    def meanwhile(now_ns: int) -> Iterator[Ready]:
        yield from flush_bundle(now_ns)
        seat.calls.append(PendingCall(answered.append))

    monkeypatch.setattr(seat, "flush_bundle", meanwhile)
    assert list(seat.run_commands(1)) == []
    assert not answered, "its message may have missed the bundle of this round"
    assert seat.has_commands
    monkeypatch.setattr(seat, "flush_bundle", flush_bundle)
    assert list(seat.run_commands(2)) == []
    assert answered == [2]


def test_a_request_submitted_in_a_turn_does_not_overtake_a_message_bundled_in_that_turn(
    network: InProcessNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message missed the bundle of the turn, so the request waits for the next turn, too."""
    runtime, outbox = seat_at(network.open())
    found_group(runtime)
    flush_bundle = runtime.flush_bundle
    receipt = LoneReceipt()

    def send_meanwhile(now_ns: int) -> Iterator[Ready]:
        yield from flush_bundle(now_ns)
        with_room(runtime.bundler).join(b"first", receipt)
        runtime.send_requests.put(SendRequest(Payloads.of([b"second"])))

    monkeypatch.setattr(runtime, "flush_bundle", send_meanwhile)
    process_ready(runtime.run_commands(time.monotonic_ns()), runtime)
    assert runtime.has_commands
    monkeypatch.setattr(runtime, "flush_bundle", flush_bundle)
    process_ready(runtime.run_commands(time.monotonic_ns()), runtime)
    assert delivered_messages(outbox) == [b"first", b"second"]


def test_the_bundles_of_a_former_incarnation_are_sent_before_later_messages(
    network: InProcessNetwork,
) -> None:
    runtime, outbox = seat_at(network.open())
    process_ready(runtime.run_commands(0), runtime)
    runtime.send_requests.unsent_bundles.append(Bundle(Payloads.of([b"first", b"second"])))
    with_room(runtime.bundler).join(b"third", LoneReceipt())
    found_group(runtime)
    process_ready(runtime.run_commands(time.monotonic_ns()), runtime)
    assert delivered_messages(outbox) == [b"first", b"second", b"third"]

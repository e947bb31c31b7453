"""What an application sees of its handle."""

import gc
import threading
import time
from concurrent.futures import wait

import pytest

from gapless.config import Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ClosedError, GaplessError, LocalProtocolError
from gapless.identity import Address, View
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Expelled,
    GivenUp,
    Left,
    Refused,
    StateReceived,
    StateWanted,
    ViewInstalled,
)
from gapless.protocol.ready import Delivery, Ready
from gapless.run import Run
from gapless.runtime.delivery_queue import DeliveryItem
from gapless.runtime.handle import MemberHandle
from gapless.runtime.member_runtime import in_delivery_order
from gapless.runtime.send_requests import SendRequest
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.handles import PATIENCE_S, Guest, HookedQueue, gathering

MS = 1_000_000


@pytest.mark.parametrize("over", ["memory", "udp"])
def test_messages_arrive_in_order_at_all(over: str) -> None:
    with gathering(3, over) as guests:
        for number, guest in enumerate(guests):
            for start in range(0, 300, 30):
                guest.handle.submit(
                    SendRequest.of([b"%d %d" % (number, at) for at in range(start, start + 30)])
                )
        for guest in guests:
            guest.until_messages(900)
            for number in range(3):
                mine = [
                    message for message in guest.messages if message.startswith(b"%d " % number)
                ]
                assert mine == [b"%d %d" % (number, at) for at in range(300)]


def test_the_result_of_a_send_says_what_became_of_it() -> None:
    with gathering() as (a, b):
        assert a.handle.submit(SendRequest.of([b"one", b"two"])).result(PATIENCE_S) == Accepted(
            1, 1, 2
        )
        sent = a.handle.submit(SendRequest.of([b"three"], mode=DeliveryMode.ACKNOWLEDGED))
        assert isinstance(sent.result(PATIENCE_S), Accepted)
        assert sent.delivered is not None
        b.until_messages(3)
        assert isinstance(sent.delivered.result(PATIENCE_S), Acknowledged)
        to_b = a.handle.submit(
            SendRequest.of(
                [b"to b"], to=b.views[-1].members[1 - b.views[-1].members.index(address(a))]
            )
        )
        assert isinstance(to_b.result(PATIENCE_S), Accepted)
        b.until_messages(4)
        assert b.messages == [b"one", b"two", b"three", b"to b"]


def address(guest: Guest) -> Address:
    return guest.handle.query(lambda member: member.me).result(PATIENCE_S)


def by_age(guests: list[Guest]) -> list[Guest]:
    """Return the guests in the order of their view."""
    members = guests[0].views[-1].members
    return sorted(guests, key=lambda guest: members.index(address(guest)))


def messages_in(items: list[DeliveryItem]) -> int:
    return sum(item.message_count for item in items if isinstance(item, Delivery))


def outstanding(guest: Guest) -> int:
    return guest.handle.query(lambda member: member.credit.outstanding).result(PATIENCE_S)


def expel(guest: Guest, other: Address) -> None:
    guest.handle.call(lambda member, now_ns: member.expel(other, now_ns)).result(PATIENCE_S)


@pytest.mark.parametrize("payloads", [[], [b"x", "text"], [bytearray(b"x")], [None]])
def test_what_is_no_message_raises_at_the_caller(payloads: list[bytes]) -> None:
    with gathering(1) as (a,):
        with pytest.raises(LocalProtocolError, match=r"must be bytes|at least one"):
            a.handle.submit(SendRequest.of(payloads))
        with pytest.raises(LocalProtocolError, match="max_message_bytes"):
            a.handle.submit(SendRequest.of([bytes(65 << 20)]))
        with pytest.raises(LocalProtocolError, match="is not positive"):
            a.handle.submit(SendRequest.of([b"x"], timeout_ns=-1))


def test_a_mistake_that_only_the_machine_sees_is_the_result() -> None:
    with gathering(1) as (a,):
        stranger = a.handle.submit(SendRequest.of([b"x"], to=Address(99, 1)))
        with pytest.raises(LocalProtocolError, match="is not a member of view"):
            stranger.result(PATIENCE_S)
        with pytest.raises(LocalProtocolError, match="is not another member of this view"):
            a.handle.call(lambda member, now_ns: member.expel(Address(99, 1), now_ns)).result(
                PATIENCE_S
            )
        with pytest.raises(ZeroDivisionError):
            a.handle.query(lambda member: 1 // 0).result(PATIENCE_S)
        assert isinstance(a.handle.submit(SendRequest.of([b"x"])).result(PATIENCE_S), Accepted), (
            "and the member goes on"
        )


def test_small_sends_share_frames() -> None:
    with gathering(2) as (a, b):
        before = a.handle.query(lambda member: member.counters.get("sent.data", 0)).result(
            PATIENCE_S
        )
        inside, gate = threading.Event(), threading.Event()

        def hold(member: object) -> None:
            inside.set()
            gate.wait(PATIENCE_S)

        a.handle.query(hold)  # so that the sends gather
        assert inside.wait(PATIENCE_S)
        sent = [a.handle.submit(SendRequest.of([b"message %d" % number])) for number in range(1000)]
        cancelled = sent[500].cancel()
        gate.set()
        wait(sent, PATIENCE_S)
        assert cancelled
        results = [one.result() for one in sent if not one.cancelled()]
        assert [result.first for result in results if isinstance(result, Accepted)] == list(
            range(1, 1000)
        )
        b.until_messages(999)
        assert b.messages == [b"message %d" % number for number in range(1000) if number != 500]
        frames = (
            a.handle.query(lambda member: member.counters["sent.data"]).result(PATIENCE_S) - before
        )
        assert frames < 10


def test_a_send_that_is_cancelled_before_it_is_taken_up_is_not_sent() -> None:
    with gathering(2) as (a, b):
        inside, gate = threading.Event(), threading.Event()

        def hold(member: object) -> None:
            inside.set()
            gate.wait(PATIENCE_S)

        a.handle.query(hold)
        assert inside.wait(PATIENCE_S)
        assert a.handle.submit(SendRequest.of([b"unwanted"])).cancel()
        gate.set()
        a.handle.submit(SendRequest.of([b"wanted"]))
        b.until_messages(1)
        assert b.messages == [b"wanted"]


def test_before_the_first_view_a_send_waits() -> None:
    config = Config.make(**{**QUICK, "found_after": "300ms"})
    handle = MemberHandle("g", InProcessNetwork().open(), config)
    waits = handle.submit(SendRequest.of([b"early"]))
    not_to_wait = handle.submit(SendRequest.of([b"now"], wait=False))
    short = handle.submit(SendRequest.of([b"soon"], timeout_ns=20 * MS))
    assert isinstance(not_to_wait.result(PATIENCE_S), Refused)
    assert short.result(PATIENCE_S) == GivenUp(0, 0, "timeout")
    assert not waits.done()
    assert isinstance(waits.result(PATIENCE_S), Accepted)
    guest = Guest(handle)
    guest.until_messages(1)
    assert guest.messages == [b"early"]
    handle.close()
    guest.read()
    assert isinstance(guest.items[-1], Left)


# Back-pressure


@pytest.mark.parametrize("over", ["memory", "udp"])
def test_an_application_that_does_not_read_slows_the_senders_and_loses_nothing(over: str) -> None:
    with gathering(2, over, knobs={"capacity": 64, "unread_limit": 32}) as (a, b):
        messages = [b"%d" % number for number in range(1000)]
        sent = [
            a.handle.submit(SendRequest.of(messages[at : at + 10])) for at in range(0, 1000, 10)
        ]
        a.until_messages(32)
        quick = sent[0].result(PATIENCE_S)
        assert isinstance(quick, Accepted)
        assert not sent[-1].done()
        pinned = a.handle.query(
            lambda member: (member.outbound.window.low, member.waiting_sends)
        ).result(PATIENCE_S)
        assert pinned[0] < 100, "the window stands still"
        assert pinned[1] > 80, "and most sends wait"
        for _ in range(100):
            if sent[-1].done():
                break
            a.read()
            b.until_messages(len(b.messages) + 1)
        b.until(lambda: a.read() and len(b.messages) == 1000)
        assert b.messages == messages
        assert isinstance(sent[-1].result(PATIENCE_S), Accepted)


def test_a_send_that_waits_can_time_out_or_be_cancelled_and_leaves_no_hole() -> None:
    with gathering(2, knobs={"capacity": 8, "unread_limit": 4}) as (a, b):
        first = a.handle.submit(SendRequest.of([b"%d" % number for number in range(40)]))
        timed = a.handle.submit(SendRequest.of([b"late"], timeout_ns=50 * MS))
        result = timed.result(PATIENCE_S)
        assert isinstance(result, GivenUp)
        assert result[1:] == (0, "timeout")
        unwanted = a.handle.submit(SendRequest.of([b"unwanted"]))
        a.handle.query(lambda member: None).result(PATIENCE_S)  # the machine has it by now
        a.handle.cancel(unwanted)
        result = unwanted.result(PATIENCE_S)
        assert isinstance(result, GivenUp)
        assert result[1:] == (0, "cancel")
        last = a.handle.submit(SendRequest.of([b"last"]))
        b.until(lambda: a.read() and len(b.messages) == 41)
        assert isinstance(first.result(), Accepted)
        assert isinstance(last.result(), Accepted)
        assert b.messages[-1] == b"last"


def test_close_is_prompt_with_blocked_sends() -> None:
    with gathering(2, knobs={"capacity": 8, "unread_limit": 4, "leave_timeout": "30s"}) as (a, _):
        blocked = [
            a.handle.submit(SendRequest.of([b"%d" % number for number in range(40)]))
            for _ in range(10)
        ]
        acknowledged = a.handle.submit(SendRequest.of([b"x"], mode=DeliveryMode.ACKNOWLEDGED))
        start_s = time.monotonic()
        a.handle.close(0.1)
        assert time.monotonic() - start_s < 2
        for sent in (*blocked, acknowledged, acknowledged.delivered):
            assert sent is not None
            with pytest.raises(ClosedError, match="closed: join again"):
                sent.result(0)
        for use in (
            lambda: a.handle.submit(SendRequest.of([b"x"])),
            lambda: a.handle.query(lambda member: None),
        ):
            with pytest.raises(ClosedError, match="closed: join again"):
                use()
        a.handle.close()  # and again, which does nothing
        assert a.handle.error is None


def test_leaving_waits_until_everything_has_arrived() -> None:
    with gathering(2, knobs={"capacity": 8, "unread_limit": 4}) as (a, b):
        a.handle.submit(SendRequest.of([b"%d" % number for number in range(50)]))
        a.handle.leave()
        with pytest.raises(ClosedError, match="is leaving"):
            a.handle.submit(SendRequest.of([b"too late"]))
        b.until(lambda: a.read() and len(b.messages) == 50)
        a.handle.close()
        assert a.handle.is_closed
        b.until_view(1)


# Lives


def test_an_expelled_member_comes_back_as_a_new_life() -> None:
    with gathering(3, knobs={"unread_limit": 8}) as guests:
        (a, b, c), before = by_age(guests), address(by_age(guests)[1])
        a.handle.submit(SendRequest.of([b"%d" % number for number in range(8)])).result(PATIENCE_S)
        held: list[DeliveryItem] = []
        while messages_in(held) < 8:
            assert b.handle.wait(PATIENCE_S)
            held += b.handle.take()  # and does not say that it is done with them
        expel(a, before)
        b.until(lambda: bool(b.of(Expelled)))
        b.until(lambda: before not in b.views[-1].members)
        a.until(lambda: a.views[-1] == b.views[-1])
        assert address(b).incarnation > before.incarnation
        more = [b"again %d" % number for number in range(40)]
        a.handle.submit(SendRequest.of(more))
        a.until(lambda: outstanding(b) == 8)
        b.handle.consumed(messages_in(held))
        origin = address(a)
        marks = b.handle.query(lambda member: member.digest()[origin]).result(PATIENCE_S)
        assert marks.delivered == 16, "what a former life handed out makes no room in this one"
        b.until(lambda: a.read() and c.read() and b.messages[-1:] == more[-1:])
        assert b.messages == more
        assert outstanding(b) == 0


def test_without_rejoin_an_expelled_member_has_ended() -> None:
    with gathering(3, rejoin=False) as guests:
        a, b, _ = by_age(guests)
        expel(a, address(b))
        b.until(lambda: b.handle.is_closed)
        b.read()
        assert b.of(Expelled)
        with pytest.raises(ClosedError):
            b.handle.submit(SendRequest.of([b"x"]))


# The driver


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gapless"]


def test_all_groups_of_a_process_share_one_thread_which_ends_with_the_last() -> None:
    assert threads() == []
    with gathering(2, group="one") as (a, b), gathering(2, group="two") as (c, d):
        (thread,) = threads()
        a.handle.submit(SendRequest.of([b"for b"]))
        c.handle.submit(SendRequest.of([b"for d"]))
        b.until_messages(1)
        d.until_messages(1)
        assert (b.messages, d.messages) == ([b"for b"], [b"for d"])
    thread.join(PATIENCE_S)
    assert threads() == []
    with gathering(1):
        (another,) = threads()
        assert another is not thread
    another.join(PATIENCE_S)


def test_a_machine_that_fails_ends_its_own_group_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken(member: object, now_ns: int) -> Ready:
        raise AssertionError("two and two are five")

    with gathering(2, group="one") as (a, b), gathering(2, group="two") as (c, d):
        blocked = a.handle.submit(
            SendRequest.of([b"x"], to=address(b), mode=DeliveryMode.ACKNOWLEDGED)
        )
        a.handle.query(
            lambda member: setattr(member, "tick", lambda now_ns: broken(member, now_ns))
        )
        a.until(lambda: a.handle.is_closed)
        assert isinstance(a.handle.error, GaplessError)
        assert (
            str(a.handle.error)
            == "this member of one has failed: AssertionError: two and two are five"
        )
        with pytest.raises(GaplessError, match="two and two are five"):
            a.handle.submit(SendRequest.of([b"x"]))
        assert blocked.done()
        c.handle.submit(SendRequest.of([b"for d"]))
        d.until_messages(1)
        b.until_view(1)
    assert "two and two are five" in caplog.text


def test_a_transport_that_is_closed_already_ends_its_own_handle_only() -> None:
    with gathering(2) as (a, b):
        transport = InProcessNetwork().open()
        transport.close()
        dead = MemberHandle("other", transport)
        with pytest.raises(GaplessError, match="this member of other has failed: ValueError"):
            dead.submit(SendRequest.of([b"x"])).result(PATIENCE_S)
        assert dead.is_closed
        dead.close()
        a.handle.submit(SendRequest.of([b"x"]))
        b.until_messages(1)


def test_a_handle_that_nobody_holds_leaves() -> None:
    with gathering(2) as guests:
        a = guests.pop(0)
        b = guests[0]
        a.handle.submit(SendRequest.of([b"last words"]))
        del a
        gc.collect()
        b.until_view(1)
        assert b.messages == [b"last words"]


def test_woken_is_called_when_there_is_something_to_take() -> None:
    woken = threading.Event()
    queue = HookedQueue(woken.set)
    handle = MemberHandle("g", InProcessNetwork().open(), Config.make(**QUICK), sink=queue)
    assert woken.wait(PATIENCE_S)
    assert isinstance(handle.take()[0], ViewInstalled)
    woken.clear()
    handle.submit(SendRequest.of([b"x"]))
    assert woken.wait(PATIENCE_S)
    woken.clear()
    handle.close()
    assert woken.is_set(), "the end is told too"


def test_the_order_of_what_one_answer_holds() -> None:
    run = Run.of(Address(1, 1), 1, [b"x"])
    one, two = Delivery(Address(1, 1), 1, 1, run), Delivery(Address(1, 1), 2, 2, run)
    view = ViewInstalled(View.of(1, Address(1, 1)))
    wanted, received = StateWanted(1, Address(2, 1)), StateReceived(None, b"")
    assert in_delivery_order([one, two], [view], 1) == [one, view, two]
    assert in_delivery_order([one, two], [view], 0) == [view, one, two]
    assert in_delivery_order([one, two], [wanted, received], 0) == [received, one, two, wanted]

"""What happens to a member: its program blocks, it is expelled, it gets a state, it has a name."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ClosedError, ConfigError, DepartedError, GaplessError, LocalProtocolError
from gapless.events import ExpelledFromGroup
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, company, options, read, run


def block(duration_s: float) -> None:
    """Keep the event loop busy."""
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        sum(range(1000))


def test_a_program_that_blocks_its_loop_stays_a_member() -> None:
    async def story() -> None:
        async with company(2, suspect_after="400ms", verify_timeout="300ms") as (one, two):
            assert one.view is not None
            before = one.view.id
            block(2.0)
            await one.send(b"still here", mode="acknowledged")
            assert one.view.id == before
            assert two.view is not None
            assert two.view.id == before
            assert (await one.snapshot()).incarnations == 1

    run(story())


def test_members_in_other_threads_are_served_while_a_task_blocks_the_loop() -> None:
    network = InProcessNetwork()

    def joined(api: Any) -> Any:
        return api.join("g", transport=network.open(), config=QUICK)

    def exchange() -> None:
        with joined(blocking) as one, joined(blocking) as two:
            for group in (two, one):  # a joiner is in the view first
                group.wait_for_members(3, WITHIN_S)
            for payload in (b"1", b"2", b"3"):
                one.send(payload)
                assert two.receive(WITHIN_S).payload == payload
            exchanged.set()

    exchanged = threading.Event()

    async def story() -> None:
        async with joined(gapless) as group:
            await group.snapshot()  # the loop leads
            thread = threading.Thread(target=exchange, daemon=True)
            thread.start()
            assert exchanged.wait(WITHIN_S), "the loop is blocked meanwhile"
        thread.join(WITHIN_S)

    run(story())


def by_age(groups: list[gapless.Group]) -> list[gapless.Group]:
    """Return the members as the view has them: the coordinator first."""
    view = groups[0].view
    assert view is not None
    return sorted(groups, key=lambda group: view.members.index(group.me))


def test_one_that_is_expelled_comes_back_and_its_program_sees_it() -> None:
    async def story() -> None:
        async with company(3) as groups:
            one, _, last = by_age(groups)
            former = last.me
            assert former is not None
            assert one.me is not None
            asking = asyncio.create_task(last.request(b"x", one.me, timeout=None))
            async for _ in one.requests():
                break
            await one.expel(former)
            seen: list[object] = []
            async for event in last.events():
                if isinstance(event, ExpelledFromGroup) or (
                    isinstance(event, gapless.ViewChange) and seen
                ):
                    seen.append(event)
                if isinstance(event, gapless.ViewChange) and seen and len(event.view.members) == 3:
                    break
            assert isinstance(seen[0], ExpelledFromGroup)
            assert isinstance(seen[-1], gapless.ViewChange)
            assert seen[-1].me == last.me != former
            with pytest.raises(ClosedError, match="expelled"):
                await asking
            await last.send(b"back")
            message = await one.receive(20)
            assert message is not None
            assert (message.sender, message.payload) == (last.me, b"back")
            assert (await last.snapshot()).health.incarnations == 2

    run(story())


def test_a_send_that_waits_is_sent_in_the_next_life() -> None:
    async def story() -> None:
        async with company(
            3, capacity=4, unread_limit=4, loopback=False, leave_timeout="1s"
        ) as groups:
            one, two, last = by_age(groups)
            await last.send_many([b"%d" % number for number in range(8)])
            waiting = asyncio.create_task(last.send(b"last"))
            while (await last.snapshot()).streams[0].waiting == 0:
                pass
            former = last.me
            assert former is not None
            await two.expel(former)
            await waiting
            found: list[bytes] = []
            async for message in one:
                found.append(message.payload)
                if message.payload == b"last":
                    assert message.sender == last.me != former
                    break
            assert found[:-1] == [b"%d" % number for number in range(len(found) - 1)]

    run(story())


def test_one_that_may_not_come_back_ends() -> None:
    async def story() -> None:
        async with company(3, each={"rejoin": False}) as groups:
            one, two, last = by_age(groups)
            assert one.me is not None
            assert last.me is not None
            with pytest.raises(LocalProtocolError, match="the member is the coordinator"):
                await two.expel(one.me)
            with pytest.raises(DepartedError):
                await two.expel(gapless.Address(1, 1))
            await one.expel(last.me)
            assert await last.receive(30) is None
            assert last.is_closed
            with pytest.raises(ClosedError):
                await last.send(b"x")

    run(story())


def test_a_machine_that_fails_ends_its_group_and_no_other() -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("planted")

    async def story() -> None:
        ports = free_ports(2)
        async with (
            gapless.join("tests", **options(ports)) as one,
            gapless.join("others", **options(free_ports(1))) as other,
        ):
            one._session.handle._runtime.collect = broken  # type: ignore[method-assign, assignment]
            with pytest.raises(GaplessError, match="has failed: ZeroDivisionError: planted"):
                await one.receive(20)
            health = (await one.snapshot()).health
            assert (health.state, health.ok) == ("failed", False)
            assert "planted" in str(health)
            with pytest.raises(GaplessError, match="planted"):
                await one.send(b"x")
            await other.send(b"fine")
            assert await read(other, 1) == [b"fine"]

    run(story())


class Ledger:
    """A state: how often each payload came."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.begun = asyncio.Event()

    def add(self, payload: bytes) -> None:
        self.begun.set()
        self.counts[payload.decode()] = self.counts.get(payload.decode(), 0) + 1

    def get_state(self) -> bytes:
        return json.dumps(self.counts).encode()

    def set_state(self, state: bytes) -> None:
        self.counts = json.loads(state)


async def keep(group: gapless.Group, ledger: Ledger) -> None:
    async for message in group:
        ledger.add(message.payload)
        if message.payload == b"end":
            return


@pytest.mark.parametrize("form", ["object", "functions"])
def test_a_new_member_has_the_state_and_every_message_after_it(form: str) -> None:
    async def story() -> None:
        ports = free_ports(2)
        old, new = Ledger(), Ledger()
        hooks = new if form == "object" else (new.get_state, new.set_state)
        async with gapless.join("tests", state=old, **options(ports)) as one:
            keeping = asyncio.create_task(keep(one, old))
            sending = asyncio.create_task(send(one))
            await old.begun.wait()
            # One that hears nothing in time founds a group of its own, without a state, however
            # busy the machine is.
            async with gapless.join(
                "tests", state=hooks, **options(ports, found_after="20s")
            ) as two:
                joined.set()
                assert new.counts, "the state is there when the join is done"
                await asyncio.gather(sending, keep(two, new), keeping)
                assert (
                    old.counts
                    == new.counts
                    == {**{str(number): 1 for number in range(400)}, "end": 1}
                )

    async def send(group: gapless.Group) -> None:
        for number in range(400):
            await group.send(b"%d" % number)
        await joined.wait()  # who reads no more gives no state
        await group.send(b"end")

    joined = asyncio.Event()
    run(story())


def test_a_state_that_cannot_be_made_does_not_end_the_reading_of_its_maker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError

    async def story() -> None:
        ports = free_ports(2)
        taken: list[bytes] = []
        async with gapless.join("tests", state=(broken, taken.append), **options(ports)) as one:
            joining = asyncio.create_task(
                gapless.join("tests", state=(lambda: b"", taken.append), **options(ports)).open()
            )
            reading = asyncio.create_task(one.receive(20))
            two = await joining
            assert taken == []
            await two.send(b"without state")
            message = await reading
            assert message is not None
            assert message.payload == b"without state"
            await two.close()

    run(story())
    assert "get_state failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_members_without_a_state_do_not_keep_a_new_one_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        ports = free_ports(2)
        async with (
            gapless.join("tests", **options(ports)),
            gapless.join("tests", state=(bytes, print), timeout=20, **options(ports)) as two,
        ):
            await two.wait_for_members(2, 20)

    run(story())
    assert "no other member provided its state" in caplog.text


def test_durable_names() -> None:
    async def story() -> None:
        ports = free_ports(2)
        async with gapless.join("tests", **options(ports)) as one:
            async with gapless.join("tests", durable_name="billing", **options(ports)) as two:
                await one.wait_for_members(2)
                await one.send(b"by name", to="billing", loopback=False)
                assert await read(two, 1) == [b"by name"]
                await two.send(b"mine")
                message = await one.receive(20)
                assert message is not None
                assert message.name == "billing"
                assert two.me is not None
                assert one.names == {two.me: "billing"}
            async for event in one.events():
                if isinstance(event, gapless.ViewChange) and event.left:
                    break
            await one.send_many([b"1", b"2", b"3"], loopback=False)
            assert [holder.name for holder in (await one.snapshot()).blockers] in (["billing"], [])
            async with gapless.join("tests", durable_name="billing", **options(ports)) as two:
                assert await read(two, 3) == [b"1", b"2", b"3"], "what was sent while it was away"

    run(story())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": "host:7800"}, "expected a list such as"),
        ({"seeds": ["host"]}, "host"),
        ({"transport": "pigeon"}, "transport 'pigeon': expected one of auto, "),
        ({"state": object()}, r"expected an object with get_state\(\) -> bytes"),
        ({"state": Ledger(), "listen": False}, "keeps no state"),
        ({"config": {"capacity": -1}}, "capacity = -1: expected"),
        ({"config": {"capacty": 1}}, "did you mean 'capacity'"),
        ({"config": "no/such/file.toml"}, "cannot read no/such/file.toml"),
        ({"config": 5}, "expected a Config, a mapping of settings"),
        ({"discover": "carrier://pigeon"}, "unknown source carrier://"),
        ({"host": "example"}, "is not an IP address; expected an address of this machine"),
    ],
)
def test_what_cannot_be_joined_says_what_is_wrong(given: Any, words: str) -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match=words):
            await gapless.join("tests", **given).open()

    run(story())

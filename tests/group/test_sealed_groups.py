"""Sealed groups: what works inside, how wrong keys are explained, and rotations under load."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ConfigError, NameInUseError
from gapless.events import KeyMismatch
from gapless.keys.keyring import Keyring, RotationStep
from gapless.transport import InProcessNetwork
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, company, options, read, run, threads
from tests.support.strangers import GROUP, transport_of, until

TRANSPORTS = pytest.mark.parametrize("transport", ["mesh", "tcp"])
CIPHERS = ("aes-256-gcm", "blake2b")
LARGE = os.urandom(300_000)

pytestmark = pytest.mark.xdist_group("sealed groups")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A new keyring file."""
    found = tmp_path / "keys.toml"
    tmp_path.chmod(0o700)
    Keyring.new().create(found)
    return found


# Inside


@TRANSPORTS
def test_threads_send_answer_and_transfer_a_state_in_a_sealed_group(
    path: Path, transport: str
) -> None:
    taken: list[bytes] = []
    state = (lambda: b"the state " + LARGE, taken.append)
    each: dict[str, Any] = {"keys": path, "transport": transport}
    with threads(2, each=each) as (one, two), ExitStack() as stack:
        one.send_many([b"small", LARGE, b"last"], mode="acknowledged").delivered(WITHIN_S)
        for group in (one, two):
            found = [group.receive(WITHIN_S) for _ in range(3)]
            assert [message.payload for message in found if message] == [b"small", LARGE, b"last"]
        two.serve(lambda request: request.payload[::-1])
        reader = threading.Thread(target=list, args=(two,))
        reader.start()
        stack.callback(reader.join, WITHIN_S)
        stack.callback(two.leave)
        assert two.me is not None
        assert one.request(b"abc", two.me, timeout=WITHIN_S) == b"cba"
        assert transport_of(one).seal is not None
        assert not any(transport_of(one).seal.rejected.values())
    ports = free_ports(2)
    with blocking.join(GROUP, state=state, **each, **options(ports)) as first:
        reader = threading.Thread(target=list, args=(first,))
        reader.start()
        with blocking.join(GROUP, state=state, **each, **options(ports)):
            assert taken == [b"the state " + LARGE]
        first.leave()
        reader.join(WITHIN_S)


@TRANSPORTS
def test_tasks_send_and_answer_in_a_sealed_group(path: Path, transport: str) -> None:
    async def story() -> None:
        each = {"keys": str(path), "transport": transport}
        async with company(3, each=each) as (one, two, three):
            receipt = await one.send(LARGE, mode="acknowledged")
            await one.send(b"aside", mode="out-of-band")
            await receipt.delivered(WITHIN_S)
            for group in (one, two, three):
                assert sorted(await read(group, 2)) == sorted([LARGE, b"aside"])

            async def answer() -> None:
                async for request in two.requests():
                    await request.reply(request.payload.upper())

            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(_read_on(two))
                answering = tasks.create_task(answer())
                assert two.me is not None
                assert await one.request(b"abc", two.me, timeout=WITHIN_S) == b"ABC"
                reader.cancel()
                answering.cancel()

    run(story())


async def _read_on(group: gapless.Group) -> None:
    async for _ in group:
        pass


@TRANSPORTS
def test_a_durable_member_gets_what_it_has_missed_and_its_name_is_kept(
    path: Path, transport: str
) -> None:
    ports = free_ports(3)
    each = {"keys": path, "transport": transport, **options(ports)}
    with blocking.join(GROUP, **each) as sender:
        with blocking.join(GROUP, durable_name="store", **each) as store:
            sender.wait_for_members(2, WITHIN_S)
            sender.send(b"seen")
            assert _next(store) == b"seen"
            with pytest.raises(NameInUseError), blocking.join(GROUP, durable_name="store", **each):
                pass
            position = {sender.me: 1}
        sender.send(b"missed")
        resume: Any = position
        with blocking.join(GROUP, durable_name="store", resume=resume, **each) as store:
            assert _next(store) == b"missed"


def _next(group: blocking.Group) -> bytes:
    message = group.receive(WITHIN_S)
    assert message is not None
    return message.payload


def test_large_messages_go_through_shared_memory_in_a_sealed_group(path: Path) -> None:
    with threads(2, each={"keys": path, "transport": "mesh"}) as (one, two):
        transport = transport_of(one)
        if transport.shared_memory is None:
            pytest.skip("no shared memory here")
        for _ in range(5):
            one.send(LARGE, mode="acknowledged", loopback=False).delivered(WITHIN_S)
            assert _next(two) == LARGE
        assert transport.shared_memory.readers, "the other member reads the ring"
        ring = transport.shared_memory._ring
        assert ring._write_offset > len(LARGE)
        # AES hides the content; a tag of blake2b would not.
        assert LARGE[1000:1100] not in ring._memory[:]


# Wrong keys


def _mismatch(group: blocking.Group) -> KeyMismatch:
    while not isinstance(event := group.receive_event(WITHIN_S), KeyMismatch):
        assert event is not None
    return event


@TRANSPORTS
@pytest.mark.parametrize("case", ["key", "sealed", "unsealed"])
def test_a_member_that_is_alone_with_wrong_keys_says_why(
    path: Path, case: str, transport: str
) -> None:
    other = Keyring.new()
    keys: dict[str, tuple[Any, Any]] = {
        "key": (path, other),
        "sealed": (path, None),
        "unsealed": (None, other),
    }
    theirs, mine = keys[case]
    ports = free_ports(2)
    more = {"transport": transport, **options(ports)}
    with (
        blocking.join(GROUP, keys=theirs, insecure=theirs is None, **more),
        blocking.join(GROUP, keys=mine, insecure=mine is None, **more) as lone,
    ):
        event = _mismatch(lone)
        assert event.reason == case
        assert "keys= or GAPLESS_KEYS" in event.text
        if case == "key":
            assert Keyring.read(path).ring.label[:4] in event.text
            assert other.ring.label in event.text
        health = lone.snapshot().health
        assert not health.ok
        assert any(event.text[:20] in problem for problem in health.problems)
        assert lone.view is not None
        assert len(lone.view) == 1


@TRANSPORTS
@pytest.mark.parametrize("is_old", [True, False])
def test_a_lone_member_whose_sealing_key_the_others_do_not_open_says_so(
    path: Path, is_old: bool, transport: str
) -> None:
    """The datagrams of the others open here, so no other event says why nobody answers."""
    first = Keyring.read(path).add()
    rotated = first.promote()
    former, new = (stored.label for stored in rotated.keys)
    retired = rotated.retire(int(former, 16))
    mine, theirs = (first, retired) if is_old else (rotated, Keyring.read(path))
    own_key, other_key = (former, new) if is_old else (new, former)
    old = path.with_name("mine.toml")
    mine.write(old)
    theirs.write(path)
    ports = free_ports(3)
    more = {"transport": transport, **options(ports)}
    with (
        blocking.join(GROUP, keys=path, **more) as one,
        blocking.join(GROUP, keys=path, **more) as two,
    ):
        one.wait_for_members(2, WITHIN_S)
        with blocking.join(GROUP, keys=old, **more) as lone:
            event = _mismatch(lone)
            assert event.reason == "retired"
            assert f"they seal with the key {other_key}" in event.text
            assert f"key {own_key} that this member seals with" in event.text
            assert ("may have retired" in event.text) == is_old
            assert "gapless keys check" in event.text
            heard = [
                transport_of(group).locator if transport == "mesh" else group.me.short
                for group in (one, two)
                if group.me is not None
            ]
            assert any(str(each) in event.text for each in heard)
            assert event.text in lone.snapshot().health.problems
            (theirs if is_old else mine).write(old if is_old else path)
            for group in (one, two, lone):
                group.wait_for_members(3, WITHIN_S)
            until(lambda: lone.snapshot().health.ok, "the member is no longer alone")


# Rotation


class Traffic:
    """Members that send and read without a pause, each in two threads."""

    def __init__(self, groups: list[blocking.Group]) -> None:
        self.groups = groups
        self.over = threading.Event()
        self.sent: dict[Any, int] = {}
        self.found: list[dict[Any, list[int]]] = [{} for _ in groups]
        self.errors: list[BaseException] = []
        self._senders = [threading.Thread(target=self._send, args=(one,)) for one in groups]
        self._readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in zip(groups, self.found, strict=True)
        ]

    def start(self) -> None:
        for thread in (*self._senders, *self._readers):
            thread.start()

    def _send(self, group: blocking.Group) -> None:
        count = 0
        try:
            while not self.over.is_set():
                group.send_many([b"%d" % number for number in range(count, count + 20)])
                count += 20
                self.over.wait(0.002)
            group.send(b"-1", mode="acknowledged").delivered(WITHIN_S)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.errors.append(error)
        self.sent[group.me] = count

    def _read(self, group: blocking.Group, found: dict[Any, list[int]]) -> None:
        left = len(self.groups)
        try:
            while left:
                message = group.receive(WITHIN_S)
                assert message is not None
                number = int(message.payload)
                if number < 0:
                    left -= 1
                else:
                    found.setdefault(message.sender, []).append(number)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.errors.append(error)

    def stop(self) -> None:
        self.over.set()
        for thread in (*self._senders, *self._readers):
            thread.join(WITHIN_S)
        assert self.errors == []


@contextmanager
def traffic(groups: list[blocking.Group]) -> Iterator[Traffic]:
    found = Traffic(groups)
    found.start()
    yield found
    found.stop()


def change_file(
    path: Path, groups: list[blocking.Group], step: Callable[[Keyring], Keyring]
) -> None:
    """Write a changed keyring, and wait until every member uses it."""
    changed = step(Keyring.read(path))
    changed.write(path)
    for group in groups:
        seal = transport_of(group).seal
        until(lambda seal=seal: seal.ring.keys == changed.ring.keys, "the member reads its file")  # type: ignore[misc]


@TRANSPORTS
def test_rotations_under_load_lose_and_repeat_nothing(
    path: Path, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="gapless")
    rounds = 2
    with threads(3, each={"keys": path, "transport": transport}) as groups:
        with traffic(groups) as running:
            for _ in range(rounds):
                former = Keyring.read(path).sealing_key.key.key_id
                change_file(path, groups, lambda keyring: keyring.rotate(RotationStep.ADD))
                change_file(path, groups, lambda keyring: keyring.rotate(RotationStep.SEAL))
                key = Keyring.read(path).sealing_key.label
                for group in groups:
                    # What was sealed before has arrived when this message has.
                    group.send(b"0", mode="unreliable", loopback=False, to=group.me)
                    receipt = group.send(b"%d" % 10**9, mode="acknowledged", loopback=False)
                    receipt.delivered(WITHIN_S)
                change_file(path, groups, lambda keyring, former=former: keyring.retire(former))  # type: ignore[misc]
                assert f"key {key} seals" in caplog.text
        for found in running.found:
            assert found.keys() == running.sent.keys()
            for sender, numbers in found.items():
                in_order = [number for number in numbers if number < 10**9]
                assert in_order == list(range(running.sent[sender]))
        for group in groups:
            counters = group.snapshot().counters
            assert [name for name in counters if name.startswith("rejected.")] == []
            assert counters.get("events.lost", 0) == 0
            assert len(group.view or ()) == 3


def test_a_retired_key_opens_nothing(path: Path) -> None:
    """A member whose file has not been rotated is heard no more, and says why."""
    former, ports = Keyring.read(path), free_ports(3)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(blocking.join(GROUP, keys=path, **options(ports))) for _ in range(2)
        ]
        groups[0].wait_for_members(2, WITHIN_S)
        change_file(path, groups, lambda keyring: keyring.rotate(RotationStep.ADD))
        change_file(path, groups, lambda keyring: keyring.rotate(RotationStep.SEAL))
        key = former.sealing_key.key.key_id
        change_file(path, groups, lambda keyring: keyring.retire(key))
        late = stack.enter_context(blocking.join(GROUP, keys=former, **options(ports)))
        event = _mismatch(late)
        assert event.reason == "key"
        assert f"key {Keyring.read(path).sealing_key.label}, which" in event.text
        assert [len(group.view or ()) for group in groups] == [2, 2]
        assert transport_of(groups[0]).seal.rejected["key"] > 0


# Errors


def test_keys_that_cannot_be_used_are_refused(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("ring = 'x'\n")
    bad.chmod(0o600)
    public = tmp_path / "public.toml"
    public.write_text(path.read_text())
    public.chmod(0o644)
    wrong: Any = b"secret bytes"
    opened = InProcessNetwork().open()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"keys": bad}, "bad.toml: the keyring has no keys"),
        ({"keys": public}, "other users can access the file"),
        ({"keys": tmp_path / "none.toml"}, "no such keyring; run gapless keys new"),
        ({"keys": tmp_path}, "not a regular file"),
        ({"keys": wrong}, "expected the path of a keyring file, a Keyring, or None"),
        ({"keys": path, "insecure": True}, "contradict each other"),
        ({"insecure": 1}, "insecure=1: expected True or False"),
        ({"keys": path, "transport": opened}, "an open transport has its own"),
    ]
    for more, text in cases:
        for module in (blocking, gapless):
            with pytest.raises(ConfigError, match=text) as error:
                open_group(module, more)
            assert "secret bytes" not in str(error.value)
    opened.close()


def open_group(module: Any, more: dict[str, Any]) -> None:
    """Join and leave, with either API."""
    if module is blocking:
        module.join(GROUP, **more).open().close()
        return

    async def story() -> None:
        async with module.join(GROUP, **more):
            pass

    asyncio.run(story())


def test_the_environment_names_the_keys_unless_insecure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAPLESS_KEYS", str(path))
    with threads(2) as groups:
        assert [transport_of(group).seal is not None for group in groups] == [True, True]
    with blocking.join(GROUP, insecure=True, **options(free_ports(1))) as open_one:
        assert transport_of(open_one).seal is None


def test_without_the_package_a_ring_authenticates(path: Path) -> None:
    keyring = Keyring.read(path)
    stored = keyring.keys[0]
    plain = Keyring(keyring.secret, (stored._replace(key=stored.key._replace(cipher="blake2b")),))
    with threads(2, each={"keys": plain}) as (one, two):
        one.send(b"readable, and true")
        assert _next(two) == b"readable, and true"

"""The short path of the machine: equal to the general path, and short."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from struct import pack_into
from typing import Any
from zlib import crc32

import pytest

from gapless.config import Config
from gapless.identity import Address, Marks, View, group_id
from gapless.payloads import Payloads
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.header_prediction import HeaderPrediction
from gapless.protocol.member import Member
from gapless.protocol.membership.membership import LEAVING
from gapless.protocol.ready import Ready
from gapless.run import NO_LOOPBACK, Run
from gapless.sim.model_check import search
from gapless.sim.model_check.search import SearchBounds, explore
from gapless.sim.runner import simulate
from gapless.sim.short_path import ShortPath
from gapless.wire import Ack, Data, encode
from gapless.wire.expected_frames import RunEncoder
from tests.support.paired_member import Pairing, pair_members, paired
from tests.support.virtual_membership import MembershipGroup

GROUP = group_id("prediction")
A, B, C = (Address(node, 1) for node in (1, 2, 3))
MS = 1_000_000
HOUR_NS = 3600 * 10**9
CONNECTION = 1 << 63 | 5

WORLDS: list[dict[str, Any]] = [
    *({"profile": "nakack4", "character": character} for character in ("swarm", "loss", "calm")),
    *({"profile": profile} for profile in ("ordered", "classic", "nakack")),
    *(
        {"profile": profile, "character": character}
        for profile in ("unicast3", "unicast2", "unicast")
        for character in ("swarm", "calm")
    ),
    *({"membership": True, "profile": "nakack4", "character": one} for one in ("calm", "gentle")),
    {"membership": True},
]


@pytest.mark.parametrize(
    "options", WORLDS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_both_paths_answer_alike_in_every_world(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every input goes to a member with the short path and to twins: see paired_member.py."""
    pairing = pair_members(monkeypatch)
    for seed in range(4):
        outcome = simulate(seed, short_path="on", fail_fast=True, **options)
        assert outcome.ok, outcome.violations[0]
    assert pairing.whole_states > 4
    if options.get("profile") == "nakack4" and options["character"] in {"loss", "calm"}:
        assert set(pairing.expected) == {"run", "ack", "send"}, "every kind of input is seen"


@pytest.mark.parametrize("membership", [False, True])
def test_a_run_has_one_digest_whatever_the_path(membership: bool) -> None:
    for seed in range(6):
        digests = {
            simulate(seed, membership=membership, short_path=path).digest
            for path in ("on", "off", "drawn")
        }
        assert len(digests) == 1, f"seed {seed}: {digests}"


@pytest.mark.parametrize(
    "bounds",
    [
        SearchBounds(receivers=1, capacity=2, messages=3, in_flight=2),
        SearchBounds(receivers=2, capacity=2, messages=2, in_flight=2, ack_threshold=2),
        SearchBounds(profile="unicast3", receivers=1, capacity=2, messages=3, in_flight=2),
        SearchBounds(profile="unicast2", receivers=1, capacity=2, messages=2, in_flight=2),
    ],
    ids=lambda bounds: f"{bounds.profile}-{bounds.receivers}",
)
def test_every_state_of_a_small_group_has_the_same_steps(
    bounds: SearchBounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second machine repeats every step on the general path."""
    monkeypatch.setattr(search, "_RECHECK_EVERY", 1)
    paths: tuple[ShortPath, ...] = ("on", "off", "drawn")
    found = [explore(bounds, short_path=path) for path in paths]
    assert all(one.ok and one.complete for one in found), found[0].counterexample
    assert len({(one.states, one.transitions, one.steps, one.depth) for one in found}) == 1


# Datagrams that are nearly expected


def endpoint(me: Address, kind: type[Endpoint], **knobs: Any) -> Endpoint:
    made = kind(me, GROUP, Config.make(jitter_percent=0, **knobs), Random(1))
    view = View.of(1, A, B, C)
    made.install(view, HOUR_NS, dict.fromkeys(view.members, Marks(0, 0, 0)))
    return made


def near_misses(datagram: bytes) -> list[bytes]:
    """Return a datagram with one changed byte each, with the old checksum and with a right one."""
    found = [datagram[:-1], datagram + b"\0", datagram[:40], datagram[:75]]
    for at in range(len(datagram)):
        for change in (0x01, 0x40, 0xFF):
            changed = bytearray(datagram)
            changed[at] ^= change
            found.append(bytes(changed))
            pack_into("<I", changed, 4, crc32(changed[8:], changed[3]))
            found.append(bytes(changed))
    return found


def exchange(kind: type[Endpoint], **knobs: Any) -> dict[str, tuple[Endpoint, bytes]]:
    """Return a receiver for each kind of expected datagram, and the datagram."""
    sender, receiver = (endpoint(me, kind, **knobs) for me in (A, B))
    now_ns = HOUR_NS + MS
    for number in range(2):
        for to in (None, B):
            (sent, *_) = sender.send([b"%d" % number], now_ns, to=to).transmits
            receiver.receive(sent.datagram, now_ns)
    found = {}
    for name, to in (("run", None), ("run of a connection", B)):
        (sent,) = sender.send([b"the next"], now_ns + MS, to=to).transmits
        found[name] = (deepcopy(receiver), sent.datagram)
    receiver.receive(found["run"][1], now_ns + MS)
    (sent,) = sender.send([b"without loopback"], now_ns + MS, loopback=False).transmits
    found["run without loopback"] = (deepcopy(receiver), sent.datagram)
    epoch = sender.connections.outgoing[B].stream.epoch
    buffer_bytes = receiver.config.receive_buffer_bytes
    for name, ack in (
        ("ack", Ack(A, 2, buffer_bytes)),
        ("ack of a connection", Ack(A, 2, buffer_bytes, epoch)),
    ):
        for at, peer in enumerate((C, B)):
            first = encode(GROUP, peer, [ack._replace(seqno=1)], A.incarnation)
            if at or not ack.epoch:
                sender.receive(first, now_ns + 2 * MS)
        found[name] = (deepcopy(sender), encode(GROUP, B, [ack], A.incarnation))
    return found


KINDS = ("run", "run without loopback", "run of a connection", "ack", "ack of a connection")


@pytest.mark.parametrize("checksum", ["all", "headers"])
@pytest.mark.parametrize("name", KINDS)
def test_a_near_miss_has_the_effect_of_the_general_path(name: str, checksum: str) -> None:
    receiver, datagram = exchange(paired(Endpoint, Pairing()), checksum=checksum)[name]
    assert deepcopy(receiver).prediction.receive(datagram, HOUR_NS + 3 * MS) is not None
    for changed in near_misses(datagram):
        deepcopy(receiver).receive(changed, HOUR_NS + 3 * MS)


@pytest.mark.interpreted("copies an endpoint")
@pytest.mark.parametrize("name", KINDS)
def test_the_short_path_of_a_near_miss_changes_nothing(name: str) -> None:
    receiver, datagram = exchange(Endpoint)[name]
    before = receiver.snapshot()
    refused = 0
    for changed in near_misses(datagram):
        candidate = deepcopy(receiver)
        if candidate.prediction.receive(changed, HOUR_NS + 3 * MS) is None:
            refused += 1
            assert candidate.snapshot() == before
            assert candidate.counters == receiver.counters
    assert refused > 2 * len(datagram)


def group_runs(*firsts: int, count: int = 1) -> list[bytes]:
    """Return datagrams of A with runs to the group."""
    return [
        encode(GROUP, A, [Data(Run.of(A, first, [b"%d" % first] * count, 0, 1, 9))])
        for first in firsts
    ]


def member_runs(*firsts: int) -> list[bytes]:
    """Return datagrams of A with runs of a connection to B."""
    return [
        encode(
            GROUP,
            A,
            [Data(Run.of(A, first, [b"%d" % first], 0, 1, 9), False, CONNECTION, first == 1)],
            B.incarnation,
        )
        for first in firsts
    ]


@pytest.mark.parametrize(
    ("datagrams", "knobs"),
    [
        pytest.param(group_runs(1, count=3), {"capacity": 2}, id="no room in the window"),
        pytest.param(group_runs(1, count=3), {"unread_limit": 2}, id="no room to read"),
        pytest.param(group_runs(1, 2), {"unread_limit": 1}, id="the application is full"),
        pytest.param(group_runs(1, 3, 4), {}, id="behind a gap"),
        pytest.param(group_runs(1, 3, 2), {}, id="into a gap"),
        pytest.param(group_runs(1, 2, 2), {}, id="again"),
        pytest.param(member_runs(1), {}, id="the first of a connection"),
        pytest.param(member_runs(1, 3, 4), {"unicast": "unicast"}, id="behind a gap, no naks"),
        pytest.param(member_runs(1, 3, 4), {"unicast": "unicast3"}, id="behind a gap, naks"),
    ],
)
def test_an_unusual_state_takes_the_general_path(
    datagrams: list[bytes], knobs: dict[str, Any]
) -> None:
    receiver = endpoint(B, paired(Endpoint, Pairing()), **knobs)
    *before, last = datagrams
    for datagram in before:
        receiver.receive(datagram, HOUR_NS + MS)
    assert receiver.receive_expected(last, HOUR_NS + 2 * MS) is None
    receiver.receive(last, HOUR_NS + 2 * MS)
    receiver.check_invariants()


@pytest.mark.interpreted("copies an endpoint")
def test_a_datagram_is_handled_once() -> None:
    receiver, datagram = exchange(Endpoint)["run"]
    assert receiver.receive_expected(datagram, HOUR_NS) is not None
    assert receiver.receive_expected(datagram, HOUR_NS) is None, "the second copy is a duplicate"


# Encoding


@pytest.mark.parametrize("checksum", ["all", "headers", "none"])
@pytest.mark.parametrize("messages", [[b""], [b"one"], [b"a", b"bc"], [bytes(3000)] * 3])
def test_an_expected_run_has_the_bytes_of_the_codec(messages: list[bytes], checksum: str) -> None:
    bare, checked = checksum != "all", checksum != "none"
    encoder = RunEncoder(GROUP, A, bare=bare, checked=checked)
    run = Run.of(A, 7, messages, NO_LOOPBACK, 3, 99)
    assert encoder.to_all(run) == encode(GROUP, A, [Data(run)], bare=bare, checked=checked)
    run = Run.of(A, 7, messages, 0, 3, 99)
    assert encoder.to_all(run) == encode(GROUP, A, [Data(run)], bare=bare, checked=checked)
    frame = Data(run, False, CONNECTION)
    assert encoder.to_member(run, CONNECTION, 8) == encode(
        GROUP, A, [frame], 8, bare=bare, checked=checked
    )


# The length of the path


class CallCounter:
    """The functions of the package that a call enters."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _hook(self, frame: Any, event: str, _: object) -> None:
        if event == "call" and "gapless" in frame.f_code.co_filename:
            self.names.append(frame.f_code.co_name)

    def count(self, function: Any, *args: Any, **options: Any) -> Any:
        self.names = []
        sys.setprofile(self._hook)
        try:
            return function(*args, **options)
        finally:
            sys.setprofile(None)


@pytest.fixture
def quiet_group() -> MembershipGroup:
    group = MembershipGroup(3, unread_limit=1000)
    group.join("a", "b", "c")
    group.settle()
    group.run(2)
    for host in group.hosts.values():
        assert host.member is not None
        host.member.endpoint.out.tracing = 0
    return group


@pytest.mark.parametrize("capacity", [3, 8])
def test_a_small_window_lets_a_send_wait_or_be_refused(capacity: int) -> None:
    """The limits of messages and of bytes, with the empty window as the exception."""
    sender = endpoint(A, paired(Endpoint, Pairing()), capacity=capacity, window_bytes="1KiB")
    for payloads in ([b"1"], [bytes(900)], [bytes(200)], [b"2"], [b"3"], [b"4"], [b"5"] * 3):
        for wait in (False, True):
            sender.send(payloads, HOUR_NS + MS, wait=wait)
    assert sender.waiting_sends > 0
    sender.check_invariants()


def test_a_lone_message_takes_few_calls(quiet_group: MembershipGroup) -> None:
    sender, receiver, now_ns = quiet_group["a"], quiet_group["b"], quiet_group.now_ns
    message, counter = Payloads.of([bytes(100)]), CallCounter()
    for to, loopback in ((None, True), (None, False), (receiver.me, None)):
        options: dict[str, Any] = {"to": to, "loopback": loopback, "wait": False}
        for _ in range(2):  # the first message opens a connection
            now_ns += MS
            (sent,) = sender.send(message, now_ns, **options).transmits
            receiver.receive_all([sent.datagram], now_ns)
        now_ns += MS
        ready: Ready = counter.count(sender.send, message, now_ns, **options)
        assert len(counter.names) <= (12 if to is None else 22), counter.names
        counter.count(receiver.receive_all, [ready.transmits[0].datagram], now_ns)
        assert len(counter.names) <= 15, counter.names


# Who takes it


def test_only_profiles_that_release_by_acks_take_the_short_path() -> None:
    for profile in ("nakack", "ordered", "classic"):
        receiver = endpoint(B, Endpoint, profile=profile)
        sent = endpoint(A, Endpoint, profile=profile).send([b"x"], HOUR_NS + MS)
        assert receiver.receive_expected(sent.transmits[0].datagram, HOUR_NS + MS) is None


UNSTEADY: dict[str, Callable[[Member], object]] = {
    "leaving": lambda member: setattr(member.membership, "phase", LEAVING),
    "a pending view": lambda member: setattr(member.membership, "pending", member.roster),
    "an unannounced start": lambda member: member.endpoint.unannounced.append(C),
    "a closed stream": lambda member: setattr(member.outbound, "closed", True),
    "a state under way": lambda member: setattr(member.state_transfer, "engaged", True),
    "held deliveries": lambda member: setattr(member.credit, "held", True),
    "own messages without credit": lambda member: setattr(
        member.outbound.window, "delivered", member.outbound.window.high - 1
    ),
}


@pytest.mark.parametrize("case", ["nothing", *UNSTEADY, "a pause of the process"])
def test_a_member_that_is_not_steady_takes_the_general_path(
    case: str, quiet_group: MembershipGroup
) -> None:
    sender, receiver, now_ns = quiet_group["a"], quiet_group["b"], quiet_group.now_ns
    first, second = (sender.send([b"x"], now_ns).transmits[0].datagram for _ in range(2))
    receiver.receive(first, now_ns)
    receiver.send([b"own"], now_ns)
    if case in UNSTEADY:
        UNSTEADY[case](receiver)
    elif case != "nothing":
        now_ns += 10**10
    is_expected = receiver.receive_expected(second, now_ns) is not None
    assert is_expected == (case == "nothing")
    payloads = Payloads.of([b"y"])
    sent = receiver.endpoint.prediction.send(payloads, now_ns, None, None, True, None, None)
    assert (sent is not None) == (case == "nothing")


def test_a_search_or_a_simulation_can_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("_on_group_run", "_on_ack", "_send_run"):
        monkeypatch.setattr(
            HeaderPrediction,
            name,
            lambda *_args, _name=name, **_options: calls.append(_name),
        )
    assert simulate(1, short_path="off").ok
    assert explore(SearchBounds(receivers=1, messages=1), short_path="off").ok
    assert calls == []

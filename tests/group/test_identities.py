"""Groups with identities, with real members: joining, roles, names, and changes of the list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gapless import blocking
from gapless.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from gapless.keys.ciphers import suites_of, view_seal_key, view_suites
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.run import Run
from gapless.spool.collector import Collector
from gapless.wire.codec import encode
from gapless.wire.frames import Data, Unreliable
from gapless.wire.identities import Certificate, Role
from gapless.wire.seal import Seal
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, options
from tests.support.strangers import GROUP, ask, runtime_of, until

pytestmark = pytest.mark.xdist_group("identities")


@contextmanager
def members(
    roles: dict[str, Role], *, path: Path | None = None, transport: str = "auto", **more: Any
) -> Iterator[dict[str, blocking.Group]]:
    """Join a member for each name, with an identity in this role."""
    own = {name: Identity.new() for name in roles}
    keys = Keyring.new()
    for name, identity in own.items():
        keys = keys.allow(GROUP, Certificate(name, roles[name], identity.public_key))
    if path is not None:
        keys.create(path)
    ports = free_ports(len(roles))
    with ExitStack() as stack:
        found = {}
        for name, identity in own.items():
            given = {"durable_name": name} if roles[name] is Role.COLLECTOR else {}
            if roles[name] is Role.PUBLISHER:
                given["listen"] = False  # type: ignore[assignment]
            group = blocking.join(
                GROUP,
                keys=path or keys,
                identity=identity,
                transport=transport,
                **given,  # type: ignore[arg-type]
                **options(ports, leave_timeout="500ms"),
                **more,
            )
            found[name] = stack.enter_context(group)
        for group in found.values():
            group.wait_for_members(len(roles), WITHIN_S)
        yield found


@pytest.mark.parametrize("transport", ["mesh", "tcp"])
def test_members_with_identities_send_to_each_other(transport: str) -> None:
    with members({"anna": Role.MEMBER, "bert": Role.MEMBER}, transport=transport) as found:
        for group in found.values():
            group.send(b"hello", mode="acknowledged", loopback=False).delivered(WITHIN_S)
        for group in found.values():
            message = group.receive(WITHIN_S)
            assert message is not None
            assert message.payload == b"hello"


def test_a_killed_member_is_expelled_and_the_others_go_on() -> None:
    roles = dict.fromkeys(("anna", "bert", "carl"), Role.MEMBER)
    with members(roles) as found:
        found["anna"]._session.handle._runtime.calls.append(_stop(found["anna"]))
        found["bert"].send(b"wake")
        for name in ("bert", "carl"):
            until(lambda name=name: len(found[name].view.members) == 2, name)  # type: ignore[misc,union-attr]


def _stop(group: blocking.Group) -> Any:
    from gapless.runtime.member_runtime import PendingCall

    return PendingCall(group._session.handle._runtime.stop)


def test_a_holder_of_the_keys_without_an_identity_cannot_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identity = Identity.new()
    keys = Keyring.new().allow(GROUP, Certificate("anna", Role.MEMBER, identity.public_key))
    ports = free_ports(1)
    with pytest.raises(ConfigError, match="gapless keys identity"):
        blocking.join(GROUP, keys=keys, **options(ports)).open()
    with pytest.raises(ConfigError, match="may not join"):
        blocking.join(GROUP, keys=keys, identity=Identity.new(), **options(ports)).open()
    monkeypatch.setenv("GAPLESS_IDENTITY", "/missing.toml")
    with pytest.raises(ConfigError, match=r"/missing\.toml: no such identity"):
        blocking.join(GROUP, keys=keys, **options(ports)).open()


def test_a_copy_of_the_keyring_without_identities_does_not_help() -> None:
    """Members drop what is not signed, and the joiner stays alone."""
    anna = Identity.new()
    keys = Keyring.new()
    strict = keys.allow(GROUP, Certificate("anna", Role.MEMBER, anna.public_key))
    ports = free_ports(2)
    with (
        blocking.join(GROUP, keys=strict, identity=anna, **options(ports)) as group,
        blocking.join(GROUP, keys=keys, **options(ports)) as other,
    ):
        until(lambda: _dropped(group, "unsigned"), "a JOIN is dropped")
        assert len(group.view.members) == len(other.view.members) == 1  # type: ignore[union-attr]


def test_a_collector_has_the_name_of_its_identity_also_after_a_restart(tmp_path: Path) -> None:
    anna, store = Identity.new(), Identity.new()
    keys = Keyring.new()
    for name, role, identity in (("anna", Role.MEMBER, anna), ("store", Role.COLLECTOR, store)):
        keys = keys.allow(GROUP, Certificate(name, role, identity.public_key))
    given = options(free_ports(2), leave_timeout="500ms")
    with blocking.join(GROUP, keys=keys, identity=anna, **given) as group:
        for number in (1, 2):
            with Collector(
                tmp_path / "spool", GROUP, name="store", keys=keys, identity=store, **given
            ) as collector:
                group.wait_for_member("store", WITHIN_S)
                group.send(b"kept", mode="acknowledged", loopback=False).delivered(WITHIN_S)
                until(lambda n=number: collector.status.spool_messages == n, "stored")  # type: ignore[misc]
                (found,) = set(group.view.members) - {group.me}  # type: ignore[union-attr]
                assert found.node == store.node


def _dropped(group: blocking.Group, reason: str) -> int:
    return int(ask(group, lambda member: member.counters.get(f"dropped.{reason}", 0)))


def test_an_identity_for_a_group_without_identities_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="identity= has no effect"):
        blocking.join(
            GROUP, keys=Keyring.new(), identity=Identity.new(), **options(free_ports(1))
        ).open()


@pytest.mark.parametrize(
    ("role", "given", "words"),
    [
        (Role.MEMBER, {"durable_name": "anna"}, "only a collector"),
        (Role.COLLECTOR, {"durable_name": "other"}, "the durable name of this identity is 'anna'"),
        (Role.PUBLISHER, {}, "listen=False"),
        (Role.MEMBER, {"node": 7}, "omit node="),
        (Role.MEMBER, {"config": {"max_frame_bytes": 300}}, "512 or more"),
    ],
)
def test_options_that_a_role_does_not_permit(role: Role, given: dict[str, Any], words: str) -> None:
    anna = Identity.new()
    keys = Keyring.new().allow(GROUP, Certificate("anna", role, anna.public_key))
    joining = {**options(free_ports(1)), **given}
    with pytest.raises(ConfigError, match=words):
        blocking.join(GROUP, keys=keys, identity=anna, **joining).open()


def test_an_observer_receives_and_does_not_send() -> None:
    with members({"anna": Role.MEMBER, "eye": Role.OBSERVER}) as found:
        for attempt in (found["eye"].send, found["eye"].try_send):
            with pytest.raises(LocalProtocolError, match="observer"):
                attempt(b"no")
        found["anna"].send(b"yes", mode="acknowledged", loopback=False).delivered(WITHIN_S)
        message = found["eye"].receive(WITHIN_S)
        assert message is not None
        assert message.payload == b"yes"


def test_messages_of_an_observer_are_dropped_by_the_others() -> None:
    """An observer with a changed program."""
    with members({"anna": Role.MEMBER, "eye": Role.OBSERVER}) as found:
        found["eye"]._session._receives_only = False
        found["eye"].send(b"ordered", loopback=False)
        found["eye"].send(b"unreliable", mode="unreliable", loopback=False)
        until(lambda: _dropped(found["anna"], "role") >= 2, "messages are dropped")
        assert found["anna"].unread == 0


def test_a_publisher_sends_and_gets_no_state() -> None:
    with members({"anna": Role.MEMBER, "press": Role.PUBLISHER}) as found:
        found["press"].send(b"news")
        message = found["anna"].receive(WITHIN_S)
        assert message is not None
        assert message.payload == b"news"


def test_a_member_that_is_struck_off_the_list_is_expelled(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "keys.toml"
    roles = dict.fromkeys(("anna", "bert", "carl"), Role.MEMBER)
    with members(roles, path=path, rejoin=False) as found:
        Keyring.read(path).disallow(GROUP, "carl").write(path)
        for name in ("anna", "bert"):
            until(lambda name=name: len(found[name].view.members) == 2, name)  # type: ignore[misc,union-attr]
        until(lambda: not found["carl"]._session.is_open, "the member ends")
        assert "any more" in str(found["carl"]._session.handle.error)
        found["anna"].send(b"among us", mode="acknowledged").delivered(WITHIN_S)


def test_a_second_process_with_the_identity_replaces_the_first() -> None:
    own = {name: Identity.new() for name in ("anna", "bert", "carl")}
    keys = Keyring.new()
    for name, identity in own.items():
        keys = keys.allow(GROUP, Certificate(name, Role.MEMBER, identity.public_key))
    ports = free_ports(4)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(blocking.join(GROUP, keys=keys, identity=one, **options(ports)))
            for one in (*own.values(), own["carl"])
        ]
        first, second = groups[2:]
        until(lambda: not first._session.is_open, "the first ends")
        assert "identity" in str(first._session.handle.error)
        until(lambda: second.me in groups[0].view.members, "the second is a member")  # type: ignore[union-attr]


def test_an_identity_that_is_allowed_later_joins_without_a_restart(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path, new = tmp_path / "keys.toml", Identity.new()
    with members(dict.fromkeys(("anna", "bert"), Role.MEMBER), path=path) as found:
        keys = Keyring.read(path).allow(GROUP, Certificate("new", Role.MEMBER, new.public_key))
        keys.write(path)
        locators = [runtime_of(group).transport.locator for group in found.values()]
        joining = options(free_ports(1))
        joining["discover"] = f"seeds://{','.join(map(str, locators))}"
        with blocking.join(GROUP, keys=path, identity=new, **joining) as late:
            for group in (*found.values(), late):
                group.wait_for_members(3, WITHIN_S)


@pytest.mark.parametrize(
    ("transport", "more"),
    [("mesh", {}), ("tcp", {}), ("tcp", {"xmit_interval": "0s"})],
    ids=["mesh", "tcp", "tcp without retransmission"],
)
def test_no_message_is_lost_while_views_and_their_keys_change(
    transport: str, more: dict[str, Any]
) -> None:
    """Two members send all the time, while a third joins, leaves and joins again."""
    own = {name: Identity.new() for name in ("anna", "bert", "carl")}
    keys = Keyring.new()
    for name, identity in own.items():
        keys = keys.allow(GROUP, Certificate(name, Role.MEMBER, identity.public_key))
    ports = free_ports(4)

    def join(name: str) -> blocking.Group:
        given = options(ports, leave_timeout="500ms", **more)
        return blocking.join(GROUP, keys=keys, identity=own[name], transport=transport, **given)

    with join("anna") as anna, join("bert") as bert, ThreadPoolExecutor(1) as pool:
        for group in (anna, bert):
            group.wait_for_members(2, WITHIN_S)
        ended = threading.Event()
        traffic = pool.submit(_exchange, ((anna, bert), (bert, anna)), ended)
        try:
            for _ in range(4):
                with join("carl") as carl:
                    for group in (anna, bert, carl):
                        group.wait_for_members(3, WITHIN_S)
                until(lambda: len(anna.view.members) == len(bert.view.members) == 2, "gone")  # type: ignore[union-attr]
        finally:
            ended.set()
        assert traffic.result() > 100


def _exchange(pairs: Any, ended: threading.Event) -> int:
    """Send one message after the other each way, and check that it arrives next; count them."""
    sent = 0
    while not ended.is_set():
        for sender, receiver in pairs:
            sender.send(b"%d" % sent, loopback=False)
            message = receiver.receive(WITHIN_S)
            assert message is not None
            assert message.payload == b"%d" % sent
        sent += 1
    return sent


def test_a_member_that_is_struck_off_the_list_cannot_read_or_forge(tmp_path: Path) -> None:
    """It keeps the keyring, the keys of the views that it was in, and its place in the network."""
    tmp_path.chmod(0o700)
    path = tmp_path / "keys.toml"
    with members(dict.fromkeys(("anna", "bert", "carl"), Role.MEMBER), path=path) as found:
        anna, bert, carl = (runtime_of(found[name]) for name in ("anna", "bert", "carl"))
        plain = encode(
            anna.member.group,
            anna.member.me,
            (Data(Run.of(anna.member.me, 1, [b"x"])),),
            view_key=True,
        )
        ask(found["anna"], lambda _: carl.transport.seal.open(anna.transport.seal.seal(plain)))
        Keyring.read(path).disallow(GROUP, "carl").write(path)
        for name in ("anna", "bert"):
            until(lambda name=name: len(found[name].view.members) == 2, name)  # type: ignore[misc,union-attr]
        until(lambda: len(_view_keys(bert)) == 1, "the former key is retired")
        kept = carl.transport.seal
        sealed = ask(found["anna"], lambda _: anna.transport.seal.seal(plain))
        with pytest.raises(RemoteProtocolError) as caught:
            kept.open(sealed)
        assert caught.value.reason == "view key"
        forger = Seal(kept.ring, suites_of(kept.ring))
        forger.replace_view_keys(list(kept._view_keys.values()), view_suites())
        with pytest.raises(RemoteProtocolError) as caught:
            ask(found["bert"], lambda _: bert.transport.seal.open(forger.seal(plain)))
        assert caught.value.reason == "view key"


def _view_keys(runtime: Any) -> Any:
    return runtime.transport.seal._view_keys


@pytest.mark.parametrize("transport", ["mesh", "tcp"])
def test_a_message_that_arrives_before_its_view_is_read_with_the_view(transport: str) -> None:
    roles = dict.fromkeys(("anna", "bert"), Role.MEMBER)
    with members(roles, transport=transport) as found:
        anna, bert = (runtime_of(found[name]) for name in ("anna", "bert"))
        ahead = Seal(anna.transport.seal.ring, suites_of(anna.transport.seal.ring))
        coming = bytes(33)
        ahead.replace_view_keys([view_seal_key(coming)], view_suites())
        run = Run.of(anna.member.me, 1, [b"early"])
        sealed = ahead.seal(
            encode(anna.member.group, anna.member.me, (Unreliable(run),), view_key=True)
        )

        def install(member: Any) -> None:
            with pytest.raises(RemoteProtocolError):
                bert.transport.seal.open(sealed)
            bert._use_view_keys((coming, *member.guard.view_keys.in_use))

        ask(found["bert"], install)
        message = found["bert"].receive(WITHIN_S)
        assert message is not None
        assert message.payload == b"early"

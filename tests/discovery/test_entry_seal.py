import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import gapless
from gapless.discovery import Directory, Discovery, SharedFile
from gapless.discovery.entry_seal import EntrySeal, ForgedEntryError
from gapless.keys.keyring import Keyring
from gapless.transport.tcp.transport import TcpMesh
from gapless.transport.udp import UdpMesh
from gapless.units import NS_PER_S
from gapless.wire.cipher import BLAKE2B
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import SECRET_BYTES, KeyRing, KeyState, SealKey
from tests.support.announcements import announced, at, crash, texts

DAY_NS = 24 * 3600 * NS_PER_S
RING = EntrySeal(bytes(range(32)), "3f9a77b1")
OTHER_RING = EntrySeal(bytes(range(1, 33)), "77b13f9a")

Kind = Literal["dir", "file"]
both = pytest.mark.parametrize("kind", ["dir", "file"])


class Share:
    """A shared directory or file, its members, and the stored entries."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.path = folder if kind == "dir" else folder / "orders.json"

    def source(self, seal: EntrySeal | None, group: str = "orders") -> Directory | SharedFile:
        kind: Callable[..., Directory | SharedFile] = (
            Directory if self.kind == "dir" else SharedFile
        )
        made = kind(self.path, group=group, refresh_ns=DAY_NS, stale_ns=2 * DAY_NS)
        if seal is not None:
            made.seal_entries(seal)
        return made

    def member(
        self, node: int, seal: EntrySeal | None, group: str = "orders", incarnation: int = 1
    ) -> Directory | SharedFile:
        source = self.source(seal, group)
        announced(source, at(f"127.0.0.1:{7000 + node}", node, incarnation))
        return source

    def entries(self) -> list[dict[str, Any]]:
        if self.kind == "file":
            found: list[dict[str, Any]] = json.loads(self.path.read_text())["members"]
            return found
        return [json.loads(one.read_text()) for one in sorted(self.path.iterdir())]

    def replace(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace every entry, as somebody can who may write here."""
        if self.kind == "file":
            members = [change(entry) for entry in self.entries()]
            self.path.write_text(json.dumps({"gapless": 1, "members": members}))
            return
        for one in self.path.iterdir():
            one.write_text(json.dumps(change(json.loads(one.read_text()))))


def reasons(source: Directory | SharedFile) -> dict[str, int]:
    return {problem.reason: problem.times for problem in source.problems.of("")}


def sentence(source: Directory | SharedFile, reason: str) -> str:
    return next(one.last for one in source.problems.of("") if one.reason == reason)


@both
def test_members_with_one_ring_find_each_other(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    a, b = share.member(1, RING), share.member(2, RING)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    assert a.wait(10)
    assert texts(a.locate(0)) == ["127.0.0.1:7002"]
    b.close()
    assert a.wait(10)
    assert a.locate(0) == []
    a.close()
    assert reasons(a) == reasons(b) == {}
    if kind == "dir":
        assert list(tmp_path.iterdir()) == []


@both
def test_an_entry_hides_the_name_of_the_group(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    a = share.member(0x5F, RING)
    (entry,) = share.entries()
    entry.pop("written_ns", None)
    label = entry.pop("sealed_group")
    tag = entry.pop("mac")
    assert entry == {
        "gapless": 1,
        "ring": "3f9a77b1",
        "node": "5f",
        "incarnation": "1",
        "locator": "127.0.0.1:7095",
    }
    assert len(label) == len(tag) == 32
    # The label depends on the name and on the ring.
    assert label == RING.label("orders") not in (OTHER_RING.label("orders"), RING.label("order"))
    # Neither the name nor what follows from the name alone is in a file or in a file's name.
    unsealed = Share("dir", tmp_path / "unsealed")
    unsealed.path.mkdir()
    b = unsealed.member(0x5F, None)
    (name,) = unsealed.path.iterdir()
    for file in (one for one in tmp_path.iterdir() if one.is_file()):
        assert b"orders" not in file.read_bytes()
        assert name.name.partition("-")[0] not in file.name + file.read_text()
    a.close()
    b.close()


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("locator", "192.0.2.9:7800"),
        ("node", "5"),
        ("incarnation", "9"),
        ("mac", "0" * 32),
        ("mac", "ä"),
        ("mac", 7),
        ("more", "text"),
    ],
)
def test_an_altered_entry_is_ignored_and_counted(
    kind: Kind, field: str, value: object, tmp_path: Path
) -> None:
    share = Share(kind, tmp_path)
    crash(share.member(1, RING))
    share.replace(lambda entry: {**entry, field: value})
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"seal": 1}
    assert "its tag does not match" in sentence(b, "seal")
    b.close()


@both
def test_an_entry_without_a_tag_is_ignored(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    crash(share.member(1, RING))
    share.replace(lambda entry: {name: entry[name] for name in entry if name != "mac"})
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"seal": 1}
    b.close()


def test_the_time_of_writing_in_a_shared_file_is_covered(tmp_path: Path) -> None:
    share = Share("file", tmp_path)
    crash(share.member(1, RING))
    share.replace(lambda entry: {**entry, "written_ns": entry["written_ns"] + 1})
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"seal": 1}
    b.close()


@both
def test_an_entry_made_with_another_key_is_ignored(kind: Kind, tmp_path: Path) -> None:
    # A stranger sees label and ring of an entry, and makes a tag without the key.
    share = Share(kind, tmp_path)
    crash(share.member(1, RING))
    share.replace(
        lambda entry: OTHER_RING.seal(
            {name: value for name, value in entry.items() if name != "mac"}
        )
    )
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"seal": 1}
    b.close()


@both
def test_an_entry_copied_to_another_group_is_ignored(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    crash(share.member(1, RING, "payments"))
    if kind == "dir":
        (copy,) = tmp_path.iterdir()
        copy.rename(copy.with_name(copy.name.replace(label("payments"), label("orders"))))
    else:
        share.replace(lambda entry: {**entry, "sealed_group": RING.label("orders")})
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"seal": 1}
    b.close()


def label(group: str) -> str:
    return RING.label(group)[:16]


@both
def test_groups_of_one_ring_share_a_place_in_silence(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    a, b = share.member(1, RING, "payments"), share.member(2, RING)
    assert a.wait(10)
    assert a.locate(0) == b.locate(0) == []
    assert reasons(a) == reasons(b) == {}
    a.close()
    b.close()


@both
def test_a_member_without_keys_is_ignored_and_named(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    a = share.member(1, None)
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"unsealed": 1}
    assert "without keys" in sentence(b, "unsealed")
    # The entry of the other group stays: its members still find each other.
    c = share.member(3, None)
    assert texts(c.locate(0)) == ["127.0.0.1:7001"]
    for source in (a, b, c):
        source.close()


@both
def test_a_member_without_keys_ignores_sealed_entries_and_says_so(
    kind: Kind, tmp_path: Path
) -> None:
    share = Share(kind, tmp_path)
    a = share.member(1, RING)
    before = [entry for entry in share.entries() if "sealed_group" in entry]
    b = share.member(2, None)
    assert b.locate(0) == []
    assert reasons(b) == {"sealed": 1}
    assert "1 entries are those of sealed groups" in sentence(b, "sealed")
    assert "this member has no keys" in sentence(b, "sealed")
    # The sealed entry is not changed, so members with the ring still find each other.
    assert [entry for entry in share.entries() if "sealed_group" in entry] == before
    c = share.member(3, RING)
    assert texts(c.locate(0)) == ["127.0.0.1:7001"]
    # In company a member has no reason to speak.
    d = share.member(4, None)
    assert texts(d.locate(0)) == ["127.0.0.1:7002"]
    assert reasons(d) == {}
    for source in (a, b, c, d):
        source.close()


@both
def test_another_ring_is_named(kind: Kind, tmp_path: Path) -> None:
    share = Share(kind, tmp_path)
    a, b = share.member(1, RING), share.member(2, OTHER_RING)
    assert b.locate(0) == []
    assert reasons(b) == {"sealed": 1}
    assert "this member has the ring 77b13f9a" in sentence(b, "sealed")
    a.close()
    b.close()


@both
def test_a_forged_entry_does_not_silence_a_member(kind: Kind, tmp_path: Path) -> None:
    # A later incarnation of the node would make the member keep silent.
    share = Share(kind, tmp_path)
    crash(share.member(1, RING))
    share.replace(lambda entry: {**entry, "incarnation": "ff"})
    a = share.member(1, RING)
    assert "superseded" not in reasons(a)
    b = share.member(2, RING)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    a.close()
    b.close()


def test_an_old_entry_that_returns_is_only_an_old_locator(tmp_path: Path) -> None:
    # The tag says who wrote, not when: docs/about/security.md has this limit.
    share = Share("dir", tmp_path)
    a = share.member(1, RING)
    (path,) = tmp_path.iterdir()
    old = path.read_bytes()
    a.close()
    path.write_bytes(old)
    b = share.member(2, RING)
    assert texts(b.locate(0)) == ["127.0.0.1:7001"]
    b.close()


def test_nested_fields_are_garbage_not_an_exception(tmp_path: Path) -> None:
    share = Share("file", tmp_path)
    crash(share.member(1, RING))
    deep = json.loads("[" * 500 + "]" * 500)
    share.replace(lambda entry: {**entry, "ring": "00000000", "more": deep})
    b = share.member(2, RING)
    assert b.locate(0) == []
    assert reasons(b) == {"garbage": 1}
    b.close()


def test_known_answers_for_other_implementations() -> None:
    # The vector of docs/internals/discovery.md.
    key = SealKey(1, bytes(SECRET_BYTES), KeyState.SEAL)
    ring = KeyRing(bytes(range(0x20, 0x40)), (key,))
    assert ring.entry_key.hex() == (
        "7e8666f48a76de752ebb0b02be1643908761b22b775d0339cc414fd39de93e29"
    )
    seal = EntrySeal(ring.entry_key, ring.label)
    fields = {
        "gapless": 1,
        "sealed_group": "d58dc3def56fc18463aa4f0197be73b5",
        "ring": "282d8ab4",
        "node": "5f",
        "incarnation": "3",
        "locator": "192.0.2.1:7800",
    }
    assert (ring.label, seal.label("orders")) == (fields["ring"], fields["sealed_group"])
    sealed = seal.seal(fields)
    assert sealed == {**fields, "mac": "4b4f80b57f59cdce4e5ed115453ca8ee"}
    seal.check(sealed)
    page = (Path(__file__).parents[2] / "docs" / "internals" / "discovery.md").read_text()
    assert all(str(value) in page for value in (ring.entry_key.hex(), *sealed.values()))
    for name in sealed:
        with pytest.raises(ForgedEntryError):
            seal.check({**sealed, name: "0"})
    with pytest.raises(ForgedEntryError):
        OTHER_RING.check(sealed)


@pytest.mark.parametrize("kind", [UdpMesh, TcpMesh])
def test_a_transport_with_a_seal_seals_the_entries(
    kind: type[UdpMesh | TcpMesh], tmp_path: Path
) -> None:
    ring = Keyring.new(cipher="blake2b").ring
    discovery = Discovery.parse(f"dir://{tmp_path}", group="orders")
    transport = kind("127.0.0.1", 0, discovery=discovery, seal=Seal(ring, {BLAKE2B.name: BLAKE2B}))
    transport.book.announce(at("127.0.0.1:7001"))
    assert discovery.wait(10)
    (path,) = tmp_path.iterdir()
    entry = json.loads(path.read_text())
    EntrySeal(ring.entry_key, ring.label).check(entry)
    assert entry["ring"] == ring.label
    transport.close()
    discovery.close()


@both
def test_groups_with_a_ring_meet_and_say_who_has_none(kind: Kind, tmp_path: Path) -> None:
    ring = Keyring.new(cipher="blake2b")
    share = Share(kind, tmp_path)
    discover = f"{kind}://{share.path}?refresh=100ms"
    config = {"found_after": "200ms"}

    def options(keys: Keyring | None) -> dict[str, Any]:
        return {"discover": discover, "config": config, "timeout": 30, "keys": keys}

    with (
        gapless.blocking.join("orders", **options(ring)) as a,
        gapless.blocking.join("orders", min_members=2, **options(ring)) as b,
        gapless.blocking.join("orders", insecure=True, **options(None)) as stranger,
    ):
        assert failure(stranger) == "sealed"
        assert failure(a) == "unsealed"
        views = [group.view.members for group in (a, b, stranger) if group.view is not None]
        assert list(map(len, views)) == [2, 2, 1]


def failure(group: gapless.blocking.Group) -> str:
    """Return the reason of the first failure of discovery."""
    while True:
        event = group.receive_event(timeout=30)
        if isinstance(event, gapless.events.DiscoveryFailed):
            return event.reason

"""The wrapped key and the datagram of docs/reference/wire.md: other implementations need them."""

from __future__ import annotations

from pathlib import Path

from gapless.config import Config
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.keys.ciphers import suites_of, view_seal_key, view_suites
from gapless.keys.identities import Identity
from gapless.protocol.membership.view_keys import ViewKeys
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.wire.codec import encode
from gapless.wire.frames import Ack
from gapless.wire.identities import WRAPPED_BYTES, AllowList, Certificate, Role
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey

PAGE = (Path(__file__).parents[3] / "docs/reference/wire.md").read_text(encoding="utf-8")
GROUP = 0x0B00DDCD614FC615
RING = KeyRing(bytes(32), (SealKey(1, bytes(32), KeyState.SEAL),))


def on_the_page(data: bytes) -> bool:
    """Return whether the page has these bytes as a block."""
    text = data.hex()
    words = [text[at : at + 16] for at in range(0, len(text), 16)]
    lines = [" ".join(words[at : at + 4]) for at in range(0, len(words), 4)]
    return "```\n" + "\n".join(lines) + "\n```" in PAGE


def test_the_page_has_the_bytes_of_the_code() -> None:
    anna, bert = Identity(bytes(range(32))), Identity(bytes(range(32, 64)))
    allowed = AllowList(
        Certificate(name, Role.MEMBER, identity.public_key)
        for name, identity in (("anna", anna), ("bert", bert))
    )
    exchange = anna.credentials(allowed).exchange._replace(
        draw=lambda: b"\0" + bytes(range(0x40, 0x60))
    )
    me, other = Address(anna.node, 1), Address(bert.node, 2)
    keys = ViewKeys(me, GROUP, exchange, allowed.find)
    roster = Roster(ViewId(7, me), (RosterEntry(me), RosterEntry(other)))
    assert on_the_page(keys.wrap(roster)[WRAPPED_BYTES : 2 * WRAPPED_BYTES])
    keys.install(roster, Config.make(), ReadyBuilder(me, GROUP, Config.make(), None, tracing=0))
    key = view_seal_key(keys.in_use[0])
    assert f"The key id of the view is {key.label}." in PAGE
    seal = Seal(RING, suites_of(RING))
    seal.replace_view_keys([key], view_suites())
    frames = (Ack(other, 5, 4096),)
    plain = encode(GROUP, me, frames, other.incarnation, view_key=True, checked=False)
    assert on_the_page(seal.seal(plain))

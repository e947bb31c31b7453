"""The signed datagram of docs/reference/wire.md: other implementations depend on each byte."""

from __future__ import annotations

import re
from pathlib import Path

from gapless.identity import Address
from gapless.keys.identities import Identity
from gapless.protocol.membership.signatures import SignatureGuard
from gapless.wire.codec import encode
from gapless.wire.frames import Leave
from gapless.wire.identities import AllowList, Certificate, Role

PAGE = (Path(__file__).parents[3] / "docs/reference/wire.md").read_text(encoding="utf-8")
SECRET = bytes(range(32))
GROUP = 0x0B00DDCD614FC615


def signed_leave() -> bytes:
    """Return the LEAVE of the page, signed."""
    identity = Identity(SECRET)
    allowed = AllowList([Certificate("anna", Role.MEMBER, identity.public_key)])
    credentials = identity.credentials(allowed)
    me = Address(identity.node, 1)
    guard = SignatureGuard(me, GROUP, credentials)
    guard._view_number = 7
    return encode(GROUP, me, [Leave(me), guard.sign(None, [Leave(me)])])


def test_the_page_has_the_bytes_of_the_code() -> None:
    found = re.search(r"gives the datagram\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found
    assert bytes.fromhex(found[1]) == signed_leave()

"""The seal of discovery entries: only members with the keyring can make an entry of a sealed group.

An entry of a sealed group has a *label* in the place of the group's name, the ring, and a tag:

    {"gapless": 1, "sealed_group": "<32 hexadecimal digits>", "ring": "3f9a77b1", "node": "5f",
     "incarnation": "3", "locator": "192.0.2.1:7800", "mac": "<32 hexadecimal digits>"}

Label and tag are keyed hashes. A stranger can neither compute the label of a guessed name nor make
a tag for another entry. The tag covers every other field, and in a shared file also the time of
writing. The hash is pure: a key of 32 bytes is given, derived from the secret of the ring.

A tag proves who made an entry, not when. If a stranger who can write to the directory restores an
old entry, members send sealed datagrams to an old locator, and nothing else happens.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.discovery.entry_file import InvalidEntryError

if TYPE_CHECKING:
    from collections.abc import Mapping

TAG_BYTES = 16
"""Size of a label and of a tag."""

_LABEL_PERSON = b"gapless-elabel-1"
_TAG_PERSON = b"gapless-entry-1"


class ForgedEntryError(InvalidEntryError):
    """The tag of an entry is missing or does not match: no member with the ring made the entry."""


class EntrySeal(NamedTuple):
    """The key of a ring for discovery entries, and the ring's public label."""

    key: bytes
    ring: str

    def label(self, group: str) -> str:
        """Return the label of a group, which only members with the ring can compute."""
        digest = blake2b(group.encode(), key=self.key, person=_LABEL_PERSON, digest_size=TAG_BYTES)
        return digest.hexdigest()

    def seal(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an entry with their tag."""
        return {**fields, "mac": self._tag(fields)}

    def check(self, fields: Mapping[str, Any]) -> None:
        """Check the tag of the fields of an entry that ``DiscoveryEntry.from_json`` accepts.

        Raises:
            ForgedEntryError: The tag is missing or does not match.
        """
        tag = fields.get("mac")
        rest = {name: value for name, value in fields.items() if name != "mac"}
        # compare_digest refuses text that is not ASCII, so bytes are compared.
        if not isinstance(tag, str) or not compare_digest(
            tag.encode(errors="replace"), self._tag(rest).encode()
        ):
            raise ForgedEntryError("its tag does not match; no member with this ring wrote it")

    def _tag(self, fields: Mapping[str, Any]) -> str:
        text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"))
        digest = blake2b(text.encode(), key=self.key, person=_TAG_PERSON, digest_size=TAG_BYTES)
        return digest.hexdigest()

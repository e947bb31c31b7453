"""Why a member stays alone beside others: keys, datagrams or certificates do not fit.

A member whose datagrams the others cannot open gets no answer, and learns nothing of that. While
the member is alone, ``UnansweredMembers`` therefore watches whom it hears. Members that seal with
the same key open its datagrams, so their silence has other reasons. Members that seal with another
key of the ring may have retired the key of this member, or not have it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import member_label
from gapless.locator import Locator
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gapless.identity import Address
    from gapless.transport.base import Transport
    from gapless.wire.seal import HeardMember, Seal

MIN_DATAGRAMS = 3
"""How many datagrams or connections of a kind are a reason to speak: one is no group."""
_CERTIFICATE_ADVICE = "give every member a valid certificate of one authority, with tls="
_IDENTITY_PROBLEMS = {
    "signed": "signed frames: the keyring of another member names identities that may join",
    "unsigned": "frames without a signature: the keyring of another member names no identities",
    "identity": "frames of an identity that the keyring of this member does not allow",
}
_ADVICE = "give every member a copy of one keyring file, with keys= or GAPLESS_KEYS"
MIN_UNANSWERED_NS = 3 * NS_PER_S
"""Minimum time that a lone member hears others without an answer before this is reported."""
UNANSWERED_BEACONS = 3
"""The same in intervals of the others' beacons: two views that hear each other merge sooner."""
MAX_NAMED = 5
"""Maximum number of members that a sentence names."""


class _Sighting(NamedTuple):
    """What was heard of a member under one key, since this member is alone."""

    highest: int
    since_ns: int | None = None
    """When the first newer datagram was noticed; None until then."""


class UnansweredMembers:
    """The members that a lone member hears without an answer, under keys it does not seal with.

    ``after_ns`` is how long a member must be heard: longer than a merge of two views takes.
    """

    def __init__(self, after_ns: int) -> None:
        self._after_ns = after_ns
        self._sightings: dict[tuple[Address, int], _Sighting] = {}
        self._unanswered: dict[Address, HeardMember] = {}
        self._sealing_id: int | None = None

    def reset(self) -> None:
        """Forget everything: this member is not alone, or seals with another key."""
        self._sightings.clear()
        self._unanswered.clear()

    def check(self, seal: Seal, now_ns: int) -> Sequence[HeardMember]:
        """Return the members that were heard for long enough, while this member is alone."""
        if seal.ring.sealing_key.key_id != self._sealing_id:
            self._sealing_id = seal.ring.sealing_key.key_id
            self.reset()
        if len(seal.ring.opening_keys) > 1:
            for heard in seal.heard_members():
                if heard.key_id != self._sealing_id:
                    self._note(heard, now_ns)
        return tuple(self._unanswered.values())

    def _note(self, heard: HeardMember, now_ns: int) -> None:
        name = heard.member, heard.key_id
        before = self._sightings.get(name)
        if before is None:
            # Perhaps it was heard before this member was alone.
            self._sightings[name] = _Sighting(heard.highest)
        elif heard.highest > before.highest:
            since_ns = now_ns if before.since_ns is None else before.since_ns
            self._sightings[name] = _Sighting(heard.highest, since_ns)
            if now_ns - since_ns >= self._after_ns:
                self._unanswered[heard.member] = heard


def describe_unanswered(transport: Transport, found: Sequence[HeardMember]) -> str:
    """Return the sentence about members that are heard and do not answer."""
    seal = transport.seal
    assert seal is not None, "only a sealed group has keys"
    names = [_where(transport, one.member) for one in found[:MAX_NAMED]]
    if len(found) > MAX_NAMED:
        names.append(f"{len(found) - MAX_NAMED} more")
    own, order = seal.ring.sealing_key, [key.key_id for key in seal.ring.keys]
    one = found[0]
    theirs = f"they seal with the key {one.key_id:08x}"
    if order.index(one.key_id) > order.index(own.key_id):
        problem = (
            f"{theirs}, and may have retired the key {own.label} that this member seals with; copy"
            " the newest keyring of the group to this member"
        )
    else:
        problem = (
            f"{theirs}, and may lack the newer key {own.label} that this member seals with; copy"
            " the keyring of this member to them"
        )
    return (
        f"hears members of the group that do not answer, {', '.join(names)}: {problem}; gapless"
        " keys check compares files"
    )


def _where(transport: Transport, member: Address) -> str:
    """Return a member for people: the address where its datagrams come from, and the short id."""
    target = transport.book.lookup(member)
    where = Locator.from_sockaddr(target) if isinstance(target, tuple) else target
    return member_label(member, "" if where is None else str(where))


class KeyMismatchWatch:
    """The reasons why one member may be alone beside others."""

    def __init__(self, transport: Transport, merge_interval_ns: int) -> None:
        self._transport = transport
        self._unanswered = UnansweredMembers(
            max(MIN_UNANSWERED_NS, UNANSWERED_BEACONS * merge_interval_ns)
        )

    def check(self, now_ns: int, dropped: Mapping[str, int], *, is_alone: bool) -> dict[str, str]:
        """Return a sentence by reason; ``dropped`` are the counters of the machine."""
        if not is_alone:
            self._unanswered.reset()
            return {}
        found = describe_mismatches(self._transport, dropped)
        seal = self._transport.seal
        if seal is not None and (heard := self._unanswered.check(seal, now_ns)):
            found["retired"] = describe_unanswered(self._transport, heard)
        return found


def describe_mismatches(transport: Transport, dropped: Mapping[str, int]) -> dict[str, str]:
    """Return a sentence by reason; ``dropped`` are the counters of the machine."""
    seal = transport.seal
    found: dict[str, str] = {}
    certificates = transport.certificates
    if certificates is not None and certificates.refused >= MIN_DATAGRAMS:
        found["certificate"] = (
            f"{certificates.refused:,} connections were refused; the last: "
            f"{certificates.last_refusal}; {_CERTIFICATE_ADVICE}"
        )
    times = transport.problems.counters["stream.tls"]
    if certificates is None and times >= MIN_DATAGRAMS:
        found["certificate"] = (
            f"{times:,} connections of members with certificates, and this member has none;"
            f" {_CERTIFICATE_ADVICE}"
        )
    for reason, problem in _IDENTITY_PROBLEMS.items():
        if (times := dropped.get(f"dropped.{reason}", 0)) >= MIN_DATAGRAMS:
            found[reason] = f"heard {times:,} {problem}; {_ADVICE}"
    if seal is None:
        times = dropped.get("dropped.sealed", 0) + transport.problems.counters["stream.sealed"]
        if times >= MIN_DATAGRAMS:
            found["sealed"] = (
                f"heard {times:,} datagrams of a sealed group, and this member has no keys;"
                f" {_ADVICE}"
            )
        return found
    # The ids of strangers are invented, each once; those of a group repeat.
    key_id, times = max(seal.foreign_keys.items(), key=lambda item: item[1], default=(0, 0))
    if times >= MIN_DATAGRAMS:
        mark = f"{key_id:08x}"[:4]
        if mark == seal.ring.label[:4]:
            problem = f"key {key_id:08x}, which this member does not have or has retired"
        else:
            problem = f"ring {mark}…, which the ring {seal.ring.label} of this member cannot open"
        found["key"] = f"heard {times:,} datagrams sealed with {problem}; {_ADVICE}"
    times = seal.rejected["unsealed"]
    if times >= MIN_DATAGRAMS:
        found["unsealed"] = (
            f"heard {times:,} datagrams without a seal: another member has no keys; {_ADVICE}"
        )
    return found

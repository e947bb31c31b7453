"""Why a member stays alone beside others: keys, datagrams or certificates do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.transport.base import Transport

MIN_DATAGRAMS = 3
"""How many datagrams or connections of a kind are a reason to speak: one is no group."""
_CERTIFICATE_ADVICE = "give every member a valid certificate of one authority, with tls="
_IDENTITY_PROBLEMS = {
    "signed": "signed frames: the keyring of another member names identities that may join",
    "unsigned": "frames without a signature: the keyring of another member names no identities",
    "identity": "frames of an identity that the keyring of this member does not allow",
}
_ADVICE = "give every member a copy of one keyring file, with keys= or GAPLESS_KEYS"


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

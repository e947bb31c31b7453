"""The offer of a state: the size, the coverage, and a hash of each block.

On sending: an offer is encoded to bytes, which travel in the parts of STATE_OFFER frames.

On reception: the parts, end to end, decode to an offer, or raise RemoteProtocolError. An offer has
a single form.
"""

from __future__ import annotations

from struct import Struct, error as StructError  # noqa: N812
from typing import NamedTuple

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import NO_MEMBER, U32_MAX, Address
from gapless.wire.frames import Range, StreamProgress
from gapless.wire.primitives import (
    PROGRESS,
    SEQNO_MAX,
    check_exact_length,
    check_first_origin,
    check_member,
    check_min_length,
    check_progress,
    check_ranges,
    unpack_progress,
)

HASH_BYTES = 16
"""Length of the hash of one block."""

_OFFER = Struct("<QIIHH")
_OUT_OF_BAND = Struct("<QQI")
_RANGE = Struct("<QQ")


class OfferContent(NamedTuple):
    """A state of ``size_bytes`` in blocks of ``block_bytes``, with the hash of each block.

    The last block may be shorter. ``digest`` has the covered position of each stream,
    ``out_of_band`` the covered out-of-band messages of each member. ``epoch`` is the epoch of the
    streams in the digest.
    """

    size_bytes: int
    block_bytes: int
    digest: tuple[StreamProgress, ...]
    out_of_band: tuple[tuple[Address, tuple[Range, ...]], ...]
    hashes: tuple[bytes, ...]
    epoch: int = 0


def encode_offer(offer: OfferContent) -> bytes:
    """Return the bytes of ``offer``."""
    try:
        _check_offer(offer)
        parts = [
            _OFFER.pack(
                offer.size_bytes,
                offer.block_bytes,
                offer.epoch,
                len(offer.digest),
                len(offer.out_of_band),
            )
        ]
        parts += [
            PROGRESS.pack(*origin, delivered, high) for origin, delivered, high in offer.digest
        ]
        for origin, ranges in offer.out_of_band:
            parts.append(_OUT_OF_BAND.pack(*origin, len(ranges)))
            parts += [_RANGE.pack(first, last) for first, last in ranges]
    except (StructError, RemoteProtocolError) as error:
        raise LocalProtocolError(
            f"a value of the offer does not fit the wire format: {error}"
        ) from error
    return b"".join([*parts, *offer.hashes])


def decode_offer(body: bytes) -> OfferContent:
    """Return the offer in ``body``."""
    end = len(body)
    check_min_length(0, end, _OFFER.size)
    size_bytes, block_bytes, epoch, digest_count, out_of_band_count = _OFFER.unpack_from(body)
    at = _OFFER.size + digest_count * PROGRESS.size
    check_min_length(0, end, at + out_of_band_count * _OUT_OF_BAND.size)
    digest = unpack_progress(body, _OFFER.size, at)
    out_of_band: list[tuple[Address, tuple[Range, ...]]] = []
    for _ in range(out_of_band_count):
        check_min_length(at, end, _OUT_OF_BAND.size)
        node, incarnation, count = _OUT_OF_BAND.unpack_from(body, at)
        table = at + _OUT_OF_BAND.size
        check_min_length(table, end, count * _RANGE.size)
        at = table + count * _RANGE.size
        out_of_band.append((Address(node, incarnation), tuple(_RANGE.iter_unpack(body[table:at]))))
    _check_blocks(size_bytes, block_bytes)
    check_exact_length(at, end, _block_count(size_bytes, block_bytes) * HASH_BYTES)
    hashes = tuple([body[start : start + HASH_BYTES] for start in range(at, end, HASH_BYTES)])
    offer = OfferContent(size_bytes, block_bytes, digest, tuple(out_of_band), hashes, epoch)
    _check_offer(offer)
    return offer


def _block_count(size_bytes: int, block_bytes: int) -> int:
    return -(-size_bytes // block_bytes)


def _check_blocks(size_bytes: int, block_bytes: int) -> None:
    if not 0 <= size_bytes <= SEQNO_MAX:
        raise RemoteProtocolError("range", f"a state of {size_bytes} bytes")
    if not 0 < block_bytes <= U32_MAX:
        raise RemoteProtocolError("range", f"blocks of {block_bytes} bytes")


def _check_offer(offer: OfferContent) -> None:
    _check_blocks(offer.size_bytes, offer.block_bytes)
    check_progress(offer.digest)
    check_first_origin(offer.digest)
    before = NO_MEMBER
    for origin, ranges in offer.out_of_band:
        check_member(origin)
        if origin <= before:
            raise RemoteProtocolError("order", f"{origin} after {before}")
        if not ranges:
            raise RemoteProtocolError("count", f"no out-of-band range of {origin}")
        check_ranges(ranges)
        before = origin
    wanted = _block_count(offer.size_bytes, offer.block_bytes)
    if len(offer.hashes) != wanted or any(len(found) != HASH_BYTES for found in offer.hashes):
        raise RemoteProtocolError(
            "count", f"{wanted} blocks need as many hashes of {HASH_BYTES} bytes"
        )

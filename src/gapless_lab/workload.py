"""The messages of producers, the lossy network, and the ledgers of sent messages.

A message begins with a number. A checked message adds the producer and a checksum. Numbers continue
over the incarnations of a producer, so no two messages are alike.

A ledger is a file of JSON lines, and remains after the end of the producer. Each line is a single
write, so a kill damages at most the last line; a reader skips an incomplete line:

    {"origin": A, "first": N}          an incarnation begins: the stream, the first number
    {"tried": N}                       messages up to number N may have been sent
    {"acknowledged": S}                the incarnation's messages up to seqno S are acknowledged
    {"acked": [N, M, A, S, T]}         numbers N to M are acknowledged, as seqnos S to T of stream A
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from gapless.discovery import Discovery
from gapless.faults.faults import Fault, Loss
from gapless.faults.faulty_transport import FaultyTransport
from gapless.group.group_keys import choose_keys
from gapless.group.join_options import MemberOptions
from gapless.output.private_files import make_private_folder
from gapless.rng import split
from gapless.transport.base import Transport
from gapless.transport.udp import UdpMesh
from gapless.wire.seal import Seal

NUMBER_BYTES = 4
"""Bytes of a message's number: the minimum size of a message."""
LARGE_SHARE = 0.005
"""Share of random messages that are sent in fragments."""
_NUMBER = Struct("<I")
_CHECKED = Struct("<IIH")


# Messages


def numbered_messages(start: int, count: int, size_bytes: int) -> list[bytes]:
    """Return ``count`` messages of equal size, with numbers from ``start`` on."""
    pack, filling = _NUMBER.pack, bytes(size_bytes - NUMBER_BYTES)
    return [pack(number) + filling for number in range(start, start + count)]


class NumberedMessage(NamedTuple):
    """The header of a checked message; ``is_intact`` is False after a wrong checksum."""

    producer: int
    number: int
    is_intact: bool


def encode_message(producer: int, number: int, filling: bytes) -> bytes:
    """Return the payload of a checked message."""
    return _CHECKED.pack(number, _checksum(producer, number, filling), producer) + filling


def random_message(rng: Random, producer: int, number: int, most_bytes: int) -> bytes:
    """Return a checked message with up to ``most_bytes`` of filling; a few are far larger."""
    is_large = rng.random() < LARGE_SHARE
    size_bytes = rng.randint(2_000, 20_000) if is_large else rng.randint(0, most_bytes)
    return encode_message(producer, number, rng.randbytes(size_bytes))


def decode_message(payload: bytes) -> NumberedMessage:
    """Return the header of a checked message; a payload too short for a header is not intact."""
    if len(payload) < _CHECKED.size:
        return NumberedMessage(0, 0, is_intact=False)
    number, checksum, producer = _CHECKED.unpack_from(payload)
    filling = memoryview(payload)[_CHECKED.size :]
    return NumberedMessage(
        producer, number, is_intact=checksum == _checksum(producer, number, filling)
    )


def _checksum(producer: int, number: int, filling: bytes | memoryview) -> int:
    return crc32(filling, producer << 32 ^ number & 0xFFFF_FFFF)


# The network


def loopback_transport(
    group: str,
    discover: str,
    faults: Sequence[Fault] = (),
    *,
    kind: Callable[..., Transport] = UdpMesh,
    address: tuple[str, int] = ("127.0.0.1", 0),
    name: str = "me",
    seal: Seal | None = None,
) -> Transport:
    """Return a transport on loopback, with ``faults`` on incoming datagrams."""
    transport = kind(*address, discovery=Discovery.parse(discover, group=group), seal=seal)
    return FaultyTransport(transport, faults, name=name, call=str) if faults else transport


def lossy_transport(group: str, folder: Path, loss: float, seed: int, name: str) -> Transport:
    """Return a transport with a loss of incoming datagrams.

    Members find each other in ``folder``.
    """
    make_private_folder(folder)
    faults = [Loss(split(seed, f"loss of {name}"), [loss])] if loss else []
    return loopback_transport(group, f"dir://{folder}", faults, name=name, seal=default_seal(group))


def default_seal(group: str) -> Seal | None:
    """Return the seal that ``join`` takes by default, so that a member of the lab meets others."""
    return choose_keys(MemberOptions(group=group)).new_seal()


# Ledgers


@dataclass
class ProducerIncarnation:
    """An incarnation of a producer: the stream, the first number, the acknowledged seqnos."""

    origin: str
    first: int
    acknowledged: int = 0

    @property
    def next_number(self) -> int:
        """The first unacknowledged number, for messages of a single seqno each."""
        return self.first + self.acknowledged


class AckedBatch(NamedTuple):
    """Acknowledged numbers with the seqnos; ``origin`` is empty if the stream is unknown."""

    first: int
    last: int
    origin: str
    low: int
    high: int


@dataclass
class LedgerContents:
    """The contents of a ledger."""

    incarnations: list[ProducerIncarnation] = field(default_factory=list)
    tried: int = 0
    """The highest number that may have been sent."""
    acked: list[AckedBatch] = field(default_factory=list)

    @property
    def next_number(self) -> int:
        """The first unacknowledged number of the last incarnation."""
        return self.incarnations[-1].next_number if self.incarnations else 1

    def add(self, line: dict[str, Any]) -> None:
        """Add a line."""
        if "origin" in line:
            self.incarnations.append(ProducerIncarnation(line["origin"], line["first"]))
        elif "tried" in line:
            self.tried = max(self.tried, line["tried"])
        elif "acked" in line:
            self.acked.append(AckedBatch(*line["acked"]))
        elif self.incarnations and "acknowledged" in line:
            self.incarnations[-1].acknowledged = line["acknowledged"]


def ledger_path(folder: Path, producer: int) -> Path:
    """Return the ledger of a producer, in the folder of all ledgers."""
    return folder / f"{producer}.jsonl"


def read_ledger(path: Path) -> LedgerContents:
    """Read a ledger; a missing file counts as empty, and an incomplete line is skipped."""
    contents = LedgerContents()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for text in lines:
        try:
            contents.add(json.loads(text))
        except ValueError:
            continue
    return contents


def read_incarnations(folder: Path) -> list[ProducerIncarnation]:
    """Return the incarnations of all producers, from the ledgers in a folder."""
    paths = sorted(folder.glob("*.jsonl"))
    return [incarnation for path in paths for incarnation in read_ledger(path).incarnations]


class ProducerLedger:
    """The ledger of a producer, open for more lines."""

    def __init__(self, path: Path) -> None:
        self.contents = read_ledger(path)
        make_private_folder(path.parent)
        self._file = path.open("ab", buffering=0)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # an incarnation that was killed may leave half a line

    def begin(self, origin: str, first: int) -> None:
        """Begin an incarnation."""
        self._write({"origin": origin, "first": first})

    def attempt(self, last: int) -> None:
        """Record, before a send, the highest number to be sent."""
        self._write({"tried": last})

    def acknowledge(self, seqno: int) -> None:
        """Record the highest acknowledged seqno of the last incarnation."""
        if seqno > self.contents.incarnations[-1].acknowledged:
            self._write({"acknowledged": seqno})

    def acknowledge_batch(self, batch: AckedBatch) -> None:
        """Record the acknowledgement of a batch."""
        self._write({"acked": batch})

    def _write(self, line: dict[str, Any]) -> None:
        self.contents.add(line)
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

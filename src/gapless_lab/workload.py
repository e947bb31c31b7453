"""What producers of the lab send, over which network, and what they write down of it.

A message begins with its number. A checked message adds its producer and a checksum. Numbers go on
over the incarnations of a producer, so no two messages are alike, whatever is killed.

A ledger is a file of JSON lines that outlasts its producer. Each line is one write, so a kill
leaves no other harm than half a last line, which a reader skips:

    {"origin": A, "first": N}          an incarnation begins: its stream, its first number
    {"tried": N}                       messages up to number N may have been sent
    {"acknowledged": S}                the incarnation's messages up to seqno S are acknowledged
    {"acked": [N, M, A, S, T]}         numbers N to M are acknowledged, as seqnos S to T of stream A
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from gapless.discovery import Discovery
from gapless.faults.faults import Fault, Loss
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.transport.base import Transport
from gapless.transport.udp import UdpMesh

NUMBER_BYTES = 4
"""Bytes of a message's number: the minimum size of a message."""
_NUMBER = Struct("<I")
_CHECKED = Struct("<IIH")


# Messages


def numbered_messages(start: int, count: int, size_bytes: int) -> list[bytes]:
    """Return ``count`` messages of one size, with numbers from ``start`` on."""
    pack, filling = _NUMBER.pack, bytes(size_bytes - NUMBER_BYTES)
    return [pack(number) + filling for number in range(start, start + count)]


class NumberedMessage(NamedTuple):
    """A checked message; ``is_intact`` says whether its checksum is right."""

    producer: int
    number: int
    is_intact: bool


def encode_message(producer: int, number: int, filling: bytes) -> bytes:
    """Return the payload of a checked message."""
    return _CHECKED.pack(number, _checksum(producer, number, filling), producer) + filling


def decode_message(payload: bytes) -> NumberedMessage:
    """Return the header of a checked message; a payload too short for one is not intact."""
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
) -> Transport:
    """Return a transport of this machine, with ``faults`` on incoming datagrams."""
    transport = kind(*address, discovery=Discovery.parse(discover, group=group))
    return FaultyTransport(transport, faults, name=name, call=str) if faults else transport


def lossy_transport(group: str, folder: Path, loss: float, seed: int, name: str) -> Transport:
    """Return a transport that loses a share of incoming datagrams.

    Members find each other in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    faults = [Loss(split(seed, f"loss of {name}"), [loss])] if loss else []
    return loopback_transport(group, f"dir://{folder}", faults, name=name)


# Ledgers


@dataclass
class ProducerIncarnation:
    """One incarnation of a producer: its stream, its first number, its acknowledged seqnos."""

    origin: str
    first: int
    acknowledged: int = 0

    @property
    def next_number(self) -> int:
        """The first number that is not acknowledged, where each message is one seqno."""
        return self.first + self.acknowledged


class AckedBatch(NamedTuple):
    """Acknowledged numbers, with their seqnos; ``origin`` is empty if the stream is unknown."""

    first: int
    last: int
    origin: str
    low: int
    high: int


@dataclass
class LedgerContents:
    """What a ledger says."""

    incarnations: list[ProducerIncarnation] = field(default_factory=list)
    tried: int = 0
    """The highest number that may have been sent."""
    acked: list[AckedBatch] = field(default_factory=list)

    @property
    def next_number(self) -> int:
        """The first number that the last incarnation has not got acknowledged."""
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
    """Read a ledger; a missing file is an empty one, and half a line says nothing."""
    contents = LedgerContents()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for text in lines:
        try:
            contents.add(json.loads(text))
        except ValueError:
            continue
    return contents


def read_incarnations(folder: Path) -> list[ProducerIncarnation]:
    """Return the incarnations of all producers whose ledgers are in a folder."""
    paths = sorted(folder.glob("*.jsonl"))
    return [incarnation for path in paths for incarnation in read_ledger(path).incarnations]


class ProducerLedger:
    """The ledger of one producer, open for more lines."""

    def __init__(self, path: Path) -> None:
        self.contents = read_ledger(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # an incarnation that was killed may leave half a line

    def begin(self, origin: str, first: int) -> None:
        """Begin an incarnation."""
        self._write({"origin": origin, "first": first})

    def attempt(self, last: int) -> None:
        """Record, before a send, up to which number messages may be sent."""
        self._write({"tried": last})

    def acknowledge(self, seqno: int) -> None:
        """Record up to which seqno the messages of the last incarnation are acknowledged."""
        if seqno > self.contents.incarnations[-1].acknowledged:
            self._write({"acknowledged": seqno})

    def acknowledge_batch(self, batch: AckedBatch) -> None:
        """Record that a batch is acknowledged."""
        self._write({"acked": batch})

    def _write(self, line: dict[str, Any]) -> None:
        self.contents.add(line)
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

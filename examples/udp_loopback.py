"""The protocol over real sockets: three members on loopback, 10 % of datagrams dropped, none lost.

A shell has only three tasks: put transmits on the network, hand deliveries to the application, call
``tick`` at the deadline.
"""

from __future__ import annotations

import select
import socket
import time
from random import Random

from gapless.config import Config
from gapless.identity import Address, Marks, View, group_id
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.ready import Ready

MESSAGES = 2000
PATIENCE_S = 30

config = Config.make(max_frame_bytes=1400)
addresses = [Address(node, time.time_ns()) for node in (1, 2, 3)]
sockets = {address: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for address in addresses}
members = {
    address: Endpoint(address, group_id("demo"), config, Random(address.node))
    for address in addresses
}
received: dict[Address, dict[Address, list[bytes]]] = {
    a: {b: [] for b in addresses} for a in addresses
}
dice = Random(7)
thrown_away: list[bytes] = []


def pump(address: Address, ready: Ready) -> None:
    """Act on the answer of the machine."""
    for to, datagram in ready.transmits:
        for target in (
            [to] if to is not None else [other for other in addresses if other != address]
        ):
            if dice.random() < 0.1:
                thrown_away.append(datagram)
            else:
                sockets[address].sendto(datagram, sockets[target].getsockname())
    for delivery in ready.deliveries:
        received[address][delivery.origin] += delivery.messages()


def wait_s() -> float:
    """Return how long to wait for the next deadline."""
    deadlines_ns = [
        member.deadline_ns for member in members.values() if member.deadline_ns is not None
    ]
    return max(0.0, (min(deadlines_ns) - time.monotonic_ns()) / 1e9) if deadlines_ns else 0.1


for sock in sockets.values():
    sock.bind(("127.0.0.1", 0))
view = View.of(1, *addresses)
start = dict.fromkeys(addresses, Marks(0, 0, 0))
for address, member in members.items():
    pump(address, member.install(view, time.monotonic_ns(), start))
sent = [b"message %d" % number for number in range(MESSAGES)]
for address, member in members.items():
    pump(address, member.send(sent, time.monotonic_ns()))

give_up_s = time.monotonic() + PATIENCE_S
while any(stream != sent for streams in received.values() for stream in streams.values()):
    readable, _, _ = select.select(list(sockets.values()), [], [], wait_s())
    for address, sock in sockets.items():
        if sock in readable:
            pump(address, members[address].receive(sock.recv(65536), time.monotonic_ns()))
    for address, member in members.items():
        if member.deadline_ns is not None and member.deadline_ns <= time.monotonic_ns():
            pump(address, member.tick(time.monotonic_ns()))
    if time.monotonic() > give_up_s:
        raise SystemExit("not everything arrived in time")

for sock in sockets.values():
    sock.close()
repairs = sum(member.counters.get("sent.repair", 0) for member in members.values())
print(
    f"3 members x {MESSAGES} messages delivered everywhere; "
    f"{len(thrown_away)} datagrams lost, {repairs} repairs"
)

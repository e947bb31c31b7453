"""Two members on one multicast group: what the first sends, both hear."""

import json
import sys

from gapless.discovery import Multicast


def main(address: str, interface: str) -> None:
    source = Multicast(address, 7799, interface=interface)
    pairs = [source.open(), source.open()]
    received: list[str] | None = []
    for pair in pairs:
        if pair is None or received is None:
            received = None
            continue
        pair.send_socket.sendto(b"hello", pair.target)
        if pair is pairs[0]:
            for one in pairs:
                assert one is not None
                one.receive_socket.settimeout(5)
                received.append(one.receive_socket.recv(10).decode())
    print(json.dumps({"heard": received, "problems": source.problems.of("")}))


main(*sys.argv[1:])

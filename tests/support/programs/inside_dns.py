"""A tiny name server on port 53 of loopback, and a source that asks the system's resolver."""

import json
import socket
import struct
import threading
from ipaddress import ip_address

from gapless.discovery import Discovery
from tests.support.announcements import texts

KINDS = {1: "A", 28: "AAAA"}
SERVFAIL = 2


class NameServer(threading.Thread):
    """Answers every question about any name with ``records``; with none of them, that it cannot."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.records: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))

    def run(self) -> None:
        while True:
            query, source = self._socket.recvfrom(4096)
            self._socket.sendto(self.answer(query), source)

    def answer(self, query: bytes) -> bytes:
        labels, end = [], 12
        while query[end]:
            labels.append(query[end + 1 : end + 1 + query[end]].decode())
            end += 1 + query[end]
        (kind,) = struct.unpack_from(">H", query, end + 1)
        question = query[12 : end + 5]
        self.asked.append((".".join(labels), KINDS.get(kind, str(kind))))
        wanted = {"A": 4, "AAAA": 16}.get(KINDS.get(kind, ""))
        packed = [
            data for record in self.records if len(data := ip_address(record).packed) == wanted
        ]
        code = 0 if self.records else SERVFAIL
        header = query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(packed), 0, 0)
        # 0xC00C points back at the name in the question.
        answers = [struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(data)) + data for data in packed]
        return header + question + b"".join(answers)


def main() -> None:
    server = NameServer()
    server.records = ["127.0.0.2", "127.0.0.3", "fd00::5", "fd00::6"]
    server.start()
    found = Discovery.parse("dns://orders.internal:7800?rest=10ms", group="orders")

    def look() -> list[str]:
        assert found.wait(30)
        return sorted(texts(found.locate(0)))

    answer: dict[str, object] = {"first": look()}
    server.records = []
    answer["while_it_fails"] = look()
    answer["problems_while_it_fails"] = [problem.reason for problem in found.problems()]
    server.records = ["127.0.0.3", "127.0.0.4"]
    answer["later"] = look()
    print(json.dumps({**answer, "asked": server.asked}))


main()

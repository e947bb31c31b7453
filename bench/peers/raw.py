"""The limit: bare sockets in plain Python. No order, repair or flow control; overflow is lost.

``udp`` sends datagrams of up to 60 KB to each other process; with ``segments``, datagrams fit a
path of 1500 bytes, with up to 64 in a call (UDP_SEGMENT), received together (UDP_GRO). ``tcp``
fills a stream to each other. A receiver only counts. Missing messages count as lost, and are not
judged.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

from bench.peers.base import Member
from bench.peers.tally import Tally

FRAME_BYTES = 60_000
SEGMENT_BYTES = 1_400
UDP_SEGMENT = 103
UDP_GRO = 104
BUFFER_BYTES = 4 << 20


class Count(Tally):
    """Counts bytes, and looks at no message."""

    def take_bytes(self, got_bytes: int) -> None:
        """Count received bytes; of a stream the bytes may end within a message."""
        whole, self._rest_bytes = divmod(self._rest_bytes + got_bytes, self._size_bytes)
        self.count += whole

    _rest_bytes = 0

    def lost(self, sent: Sequence[int], senders: Sequence[int]) -> int:
        """Return the number of missing messages of the senders."""
        return sum(sent[at] for at in senders) - self.count


class Adapter(Member):
    """A process with bare sockets."""

    promises = "nothing"
    greets = False

    def open(self) -> None:
        """Open the sockets."""
        task = self.task
        self.tally: Count = Count(len(task.hosts))
        if task.transport == "tcp":
            self._open_streams()
            return
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((task.host, task.port))
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        if "segments" in task.options:
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self._places = [(task.hosts[at], task.ports[at]) for at in task.others]
        if task.mode != "rtt":
            threading.Thread(target=self._read, args=(self._socket,), daemon=True).start()

    def _open_streams(self) -> None:
        task = self.task
        listener = socket.create_server((task.host, task.port))
        listener.settimeout(30)
        self._streams = []
        for at in range(task.at):
            self._streams.append(patient_connection(task.hosts[at], task.ports[at]))
        for _ in range(task.at + 1, len(task.hosts)):
            self._streams.append(listener.accept()[0])
        for one in self._streams:
            one.settimeout(None)
            threading.Thread(target=self._read, args=(one,), daemon=True).start()

    def _read(self, one: socket.socket) -> None:
        """Count received messages."""
        buffer = bytearray(1 << 18)
        while got := one.recv_into(buffer):
            self.tally.take_bytes(got)

    def send(self, messages: list[bytes]) -> None:
        """Send as many bytes as in the messages, in the largest possible pieces."""
        data = b"".join(messages)
        if self.task.transport == "tcp":
            for one in self._streams:
                one.sendall(data)
            return
        size_bytes = len(messages[0])
        per_frame = max(1, FRAME_BYTES // size_bytes) * size_bytes
        for start in range(0, len(data), per_frame):
            frame = data[start : start + per_frame]
            for place in self._places:
                self._send_to(frame, size_bytes, place)

    def _send_to(self, frame: bytes, size_bytes: int, place: tuple[str, int]) -> None:
        if "segments" not in self.task.options or size_bytes > SEGMENT_BYTES:
            self._socket.sendto(frame, place)
            return
        segment = SEGMENT_BYTES // size_bytes * size_bytes
        ancillary = [(socket.IPPROTO_UDP, UDP_SEGMENT, segment.to_bytes(2, "little"))]
        self._socket.sendmsg([frame], ancillary, 0, place)

    def ask(self, message: bytes) -> None:
        """Send a datagram, and wait for the echo."""
        self._socket.sendto(message, self._places[0])
        self._socket.recv(1 << 16)

    def serve(self) -> None:
        """Echo received messages."""
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        while True:
            self._socket.sendto(self._socket.recv(1 << 16), self._places[0])


def patient_connection(host: str, port: int) -> socket.socket:
    """Connect to a member that may not listen yet."""
    until_s = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)

"""A bad network for TCP: relays in front of listening ports, which cut connections at any byte."""

import selectors
import socket
import struct
import threading
from contextlib import suppress
from random import Random
from typing import Any, Self


class Half:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.other: Half
        self.data = b""
        self.closed = False


class Relays:
    """Relays ``relays.at[port]`` to ``port``, and cuts after ``least`` to ``most`` bytes."""

    def __init__(self, ports: list[int], seed: int, least: int = 1, most: int = 200_000) -> None:
        self.rng = Random(seed)
        self.least, self.most = least, most
        self.cuts = 0
        self.cutting = True
        self.frozen = threading.Event()
        """While it is set, bytes are taken and go nowhere."""
        self.at: dict[int, int] = {}
        self.left: dict[Half, int] = {}
        self.selector = selectors.DefaultSelector()
        self.listeners: list[socket.socket] = []
        for port in ports:
            listener = socket.create_server(("127.0.0.1", 0))
            self.listeners.append(listener)
            self.at[port] = listener.getsockname()[1]
            self.selector.register(listener, selectors.EVENT_READ, port)
        self.bell, self.rope = socket.socketpair()
        self.selector.register(self.bell, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rope.send(b"\0")
        self.thread.join(10)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self.rope.close()

    def calm(self) -> None:
        """Cut nothing from now on."""
        self.cutting = False

    def run(self) -> None:
        while True:
            for key, mask in self.selector.select():
                if key.data is None:
                    return
                if isinstance(key.data, int):
                    self.lead(key.fileobj, key.data)
                elif not key.data.closed:
                    self.carry(key.data, mask)

    def lead(self, listener: Any, port: int) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            near.close()
            return
        there, back = Half(near, far), Half(far, near)
        there.other, back.other = back, there
        self.left[there] = self.left[back] = self.rng.randint(self.least, self.most)
        for half in (there, back):
            half.source.setblocking(False)
            self.selector.register(half.source, selectors.EVENT_READ, half)

    def carry(self, half: Half, mask: int) -> None:
        """Read from one socket, or write the backlog of the other direction."""
        try:
            if mask & selectors.EVENT_WRITE:
                self.write(half.other)
            if mask & selectors.EVENT_READ and not half.data:
                half.data = half.source.recv(65536)
                if not half.data:
                    self.cut(half)
                elif self.frozen.is_set():
                    half.data = b""
                else:
                    self.write(half)
        except BlockingIOError:
            return
        except OSError:
            self.cut(half)

    def write(self, half: Half) -> None:
        allowed = self.left[half] if self.cutting else len(half.data)
        with suppress(BlockingIOError):
            sent = half.target.send(half.data[:allowed])
            half.data = half.data[sent:]
            if self.cutting:
                self.left[half] -= sent
                if self.left[half] <= 0:
                    self.cuts += 1
                    self.cut(half)
                    return
        for one in (half, half.other):
            if one.source.fileno() >= 0:
                events = selectors.EVENT_READ if not one.data else 0
                events |= selectors.EVENT_WRITE if one.other.data else 0
                self.selector.modify(one.source, events or selectors.EVENT_WRITE, one)

    def cut(self, half: Half) -> None:
        """End both ends, one way or another."""
        for one in (half, half.other):
            if not one.closed:
                one.closed = True
                self.left.pop(one)
                self.selector.unregister(one.source)
                if self.rng.random() < 0.5:
                    with suppress(OSError):
                        one.source.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                one.source.close()

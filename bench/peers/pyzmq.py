"""pyzmq over TCP: XPUB with XPUB_NODROP to all, PUSH and PULL one to one, PAIR for round trips.

Guarantees: with XPUB_NODROP a sender waits for the slowest subscriber instead of dropping; in
order, none lost as long as no peer disconnects. Nothing is repaired after a disconnect.

Configured: each sender binds an XPUB socket, each receiver connects a SUB socket to every sender.
High-water marks of 16384 messages, the capacity of a Gapless window; the default of 1000 is slower.
A member sends in a thread and receives in another, with an I/O thread each, as by default.

Batching: a call for each message, as users do; libzmq gathers messages into larger writes by
itself.
"""

from __future__ import annotations

import threading

import zmq

from bench.peers.base import Member, until

HIGH_WATER = 16_384


class Adapter(Member):
    """A process with its sockets."""

    promises = "each sender's messages once, in order, none lost while connected"
    keeps_all = True

    def open(self) -> None:
        """Bind, connect, and wait for the subscribers."""
        self._out = zmq.Context()
        task = self.task
        mine, *theirs = [
            f"tcp://{task.hosts[at]}:{task.ports[at]}" for at in (task.at, *task.others)
        ]
        if task.mode == "rtt":
            self._pair = self._socket(zmq.PAIR)
            if task.at:
                self._pair.connect(theirs[0])
            else:
                self._pair.bind(mine)
            return
        if task.is_sender:
            self._out = self._socket(zmq.XPUB if task.mode == "all" else zmq.PUSH)
            if task.mode == "all":
                self._out.setsockopt(zmq.XPUB_NODROP, 1)
            self._out.bind(mine)
            self._out.setsockopt(zmq.SNDTIMEO, 60_000)
        if task.sources:
            inward = self._socket(zmq.SUB if task.mode == "all" else zmq.PULL)
            if task.mode == "all":
                inward.setsockopt(zmq.SUBSCRIBE, b"")
            for at in task.sources:
                inward.connect(f"tcp://{task.hosts[at]}:{task.ports[at]}")
            threading.Thread(target=self._read, args=(inward,), daemon=True).start()
        if task.is_sender and task.mode == "all":
            self._await_subscribers((task.members or len(task.hosts)) - 1)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._out.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, HIGH_WATER)
        made.setsockopt(zmq.RCVHWM, HIGH_WATER)
        return made

    def _await_subscribers(self, count: int) -> None:
        """Wait until so many have subscribed; XPUB_VERBOSE reports repeated subscriptions too."""
        self._out.setsockopt(zmq.XPUB_VERBOSE, 1)
        seen = 0

        def all_there() -> bool:
            nonlocal seen
            while self._out.poll(0):
                self._out.recv()
                seen += 1
            return seen >= count

        until(all_there, f"{count} subscribers")

    def _read(self, inward: zmq.Socket[bytes]) -> None:
        take, recv = self.tally.take, inward.recv
        while True:
            take(recv())

    def send(self, messages: list[bytes]) -> None:
        """Send messages one by one; each call waits for room."""
        send = self._out.send
        for message in messages:
            send(message)

    def ask(self, message: bytes) -> None:
        """Send a message, and wait for the echo."""
        self._pair.send(message)
        self._pair.recv()

    def serve(self) -> None:
        """Echo received messages."""
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        while True:
            self._pair.send(self._pair.recv())

"""Eclipse Cyclone DDS with its Python binding, over UDP (RTPS), multicast where possible.

Guarantees: with reliability RELIABLE and history KEEP_ALL a writer waits for its readers instead of
dropping, and repairs losses of the network; in order for each writer.

Configured: reliable, keep-all, a writer may block for 30 s; socket buffers as large as the kernel
grants (Cyclone asks for the maximum of ``net.core.rmem_max``); a participant each on the measured
interface. The type is a sequence of octets.

Batching: a ``write`` for each message, as users do; with ``WriteBatch`` on, Cyclone gathers small
samples into a packet until a flush, and the adapter flushes after every batch, where the binding
can.
"""

import os
import threading
from dataclasses import dataclass
from typing import Any

from cyclonedds.core import (
    InstanceState,
    Policy,
    Qos,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct, types
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from bench.peers.base import PATIENCE_S, Member, Task

CONFIG = """<CycloneDDS><Domain id="any">
<General><Interfaces><NetworkInterface address="{host}" multicast="true"/></Interfaces>
<AllowMulticast>true</AllowMulticast><MaxMessageSize>65500B</MaxMessageSize><FragmentSize>{fragment}B</FragmentSize>
</General>
<Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>100</MaxAutoParticipantIndex>
<Peers>{peers}</Peers></Discovery>
<Internal><SocketReceiveBufferSize min="default" max="4MB"/></Internal>
</Domain></CycloneDDS>"""


@dataclass
class Sample(IdlStruct, typename="Sample"):  # type: ignore[misc,call-arg,unused-ignore]
    """The written sample; the binding reads the type at the creation of the class."""

    payload: types.sequence[types.uint8]  # type: ignore[valid-type,unused-ignore]


class Adapter(Member):
    """A participant."""

    promises = "each writer's samples once, in order, none lost"
    keeps_all = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        hosts = dict.fromkeys(task.hosts)
        peers = "".join(f'<Peer address="{host}"/>' for host in hosts)
        fragment = 65_000 if task.host.startswith("127.") else 1_300
        os.environ["CYCLONEDDS_URI"] = CONFIG.format(host=task.host, peers=peers, fragment=fragment)

    def open(self) -> None:
        """Make a participant, with a writer of its own and readers of the others."""
        task = self.task
        qos = Qos(Policy.Reliability.Reliable(duration(seconds=30)), Policy.History.KeepAll)
        domain = task.ports[0] % 200 + 1
        self._participant = DomainParticipant(domain)
        topics = [
            Topic(self._participant, f"bench{at}", Sample, qos=qos) for at in range(len(task.hosts))
        ]
        self._writer = DataWriter(self._participant, topics[task.at], qos=qos)
        self._echoed = threading.Semaphore(0)
        sources = task.others if task.mode == "rtt" else task.sources
        self._readers = [DataReader(self._participant, topics[at], qos=qos) for at in sources]
        if self._readers:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        waiting = WaitSet(self._participant)
        mask = SampleState.Any | InstanceState.Any | ViewState.Any
        for reader in self._readers:
            waiting.attach(ReadCondition(reader, mask))
        handle = self._handle()
        while True:
            waiting.wait(duration(seconds=10))
            for reader in self._readers:
                for sample in reader.take(N=512):
                    payload = getattr(sample, "payload", None)
                    if payload is not None:
                        handle(bytes(payload))

    def _handle(self) -> Any:
        if self.task.mode != "rtt":
            return self.tally.take
        return self._echo if self.task.at else lambda _: self._echoed.release()

    def _echo(self, message: bytes) -> None:
        self._writer.write(Sample(message))

    def send(self, messages: list[bytes]) -> None:
        """Write messages one by one; each call waits for room."""
        write = self._writer.write
        for message in messages:
            write(Sample(message))

    def ask(self, message: bytes) -> None:
        """Send a message, and wait for the echo; the peer may miss the first messages."""
        self._echo(message)
        while not self._echoed.acquire(timeout=0.2 if not self._met else PATIENCE_S):
            self._echo(message)
        self._met = True

    _met = False

    def serve(self) -> None:
        """Do nothing: the reader echoes."""

"""A court: two real members before a judge, and hand-made steps that no honest member would take."""

from random import Random

from gapless.config import Config
from gapless.identity import Address, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.ready import Ready, TraceEntry
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.oracle.model import MemberModel
from gapless.sim.oracle.oracle import Oracle
from gapless.units import NS_PER_S
from gapless.wire import Datagram, Frame, decode, encode

GROUP = 7
A, B = Address(1, 1), Address(2, 1)
BOUNDS_NS = (NS_PER_S, 2 * NS_PER_S)


class Court:
    """Members ``a`` and ``b`` in view 1, both at seqno 0. Members take honest steps; forged ones are made by hand."""

    def __init__(self, *, calm_ns: int = 1 << 60, **knobs: object) -> None:
        self.config = Config().replace(**knobs)
        self.judge = Oracle(self.config, CHECKERS, calm_ns=calm_ns, bounds_ns=BOUNDS_NS)
        self.now_ns = 0
        self.lives: dict[Address, MemberModel] = {}
        view = View.of(1, A, B)
        for address, name in ((A, "a"), (B, "b")):
            member = Endpoint(address, GROUP, self.config, Random(1), tracing=True)
            self.lives[address] = life = self.judge.on_incarnation_start(address, name, member)
            zero = {A: Marks(0, 0, 0), B: Marks(0, 0, 0)}
            self.judge.on_install(life, view, zero, 0)
            self.take(address, "install", member.install(view, 0, zero))

    # Honest steps

    def send(self, who: Address, *payloads: bytes) -> bytes:
        """Let a member send, and return its first datagram."""
        life = self.lives[who]
        ready = life.member.send(payloads, self.now_ns)
        self.judge.on_send(life, payloads, ready)
        self.take(who, "send", ready)
        return ready.transmits[0].datagram if ready.transmits else b""

    def receive(self, who: Address, datagram: bytes) -> Ready:
        """Let a member receive a datagram."""
        life = self.lives[who]
        said = decode(datagram)
        before = self.judge.fingerprint_if_refused(life, said)
        ready = life.member.receive(datagram, self.now_ns)
        self.take(who, "receive", ready, said, before)
        return ready

    def tick(self, who: Address) -> Ready:
        """Let a member's timers fire."""
        ready = self.lives[who].member.tick(self.now_ns)
        self.take(who, "tick", ready)
        return ready

    def take(
        self,
        who: Address,
        cause: str,
        ready: Ready,
        said: Datagram | None = None,
        before: object = None,
    ) -> None:
        """Show a step to the judge."""
        outgoing = [(to, decode(datagram)) for to, datagram in ready.transmits]
        self.judge.on_step(
            self.lives[who], cause, said, ready, outgoing, self.now_ns, self.now_ns, before
        )

    # Forged steps

    def forge(
        self,
        who: Address,
        *frames: Frame,
        to: Address | None = None,
        cause: str = "tick",
        rows: tuple[TraceEntry, ...] = (),
        ready: Ready | None = None,
        said: Datagram | None = None,
        before: object = None,
    ) -> None:
        """Show the judge a step that the member did not take: frames that go out, rows, or a whole answer."""
        ready = ready or Ready()
        ready.trace += rows
        outgoing = [(to, Datagram(GROUP, who, frames))] if frames else []
        self.judge.on_step(
            self.lives[who], cause, said, ready, outgoing, self.now_ns, self.now_ns, before
        )

    @property
    def broken(self) -> set[str]:
        """The names of the checks that have found something."""
        return {violation.check for violation in self.judge.violations}


def says(who: Address, *frames: Frame) -> bytes:
    """Return the datagram in which ``who`` says ``frames``."""
    return encode(GROUP, who, frames)

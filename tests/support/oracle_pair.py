"""Two real members before an oracle, and forged steps that no honest member would take."""

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


class OraclePair:
    """Members ``a`` and ``b`` in view 1, both at seqno 0; steps are honest or forged."""

    def __init__(self, *, calm_ns: int = 1 << 60, **knobs: object) -> None:
        self.config = Config().replace(**knobs)
        self.oracle = Oracle(self.config, CHECKERS, calm_ns=calm_ns, bounds_ns=BOUNDS_NS)
        self.now_ns = 0
        self.models: dict[Address, MemberModel] = {}
        view = View.of(1, A, B)
        for address, name in ((A, "a"), (B, "b")):
            member = Endpoint(address, GROUP, self.config, Random(1), tracing=True)
            self.models[address] = model = self.oracle.on_incarnation_start(address, name, member)
            zero = {A: Marks(0, 0, 0), B: Marks(0, 0, 0)}
            self.oracle.on_install(model, view, zero, 0)
            self.take(address, "install", member.install(view, 0, zero))

    # Honest steps

    def send(self, who: Address, *payloads: bytes) -> bytes:
        """Let a member send, and return its first datagram."""
        model = self.models[who]
        ready = model.member.send(payloads, self.now_ns)
        self.oracle.on_send(model, payloads, ready)
        self.take(who, "send", ready)
        return ready.transmits[0].datagram if ready.transmits else b""

    def receive(self, who: Address, datagram: bytes) -> Ready:
        """Let a member receive a datagram."""
        model = self.models[who]
        decoded = decode(datagram)
        before = self.oracle.fingerprint_if_refused(model, decoded)
        ready = model.member.receive(datagram, self.now_ns)
        self.take(who, "receive", ready, decoded, before)
        return ready

    def tick(self, who: Address) -> Ready:
        """Let a member's timers fire."""
        ready = self.models[who].member.tick(self.now_ns)
        self.take(who, "tick", ready)
        return ready

    def take(
        self,
        who: Address,
        cause: str,
        ready: Ready,
        datagram: Datagram | None = None,
        before: object = None,
    ) -> None:
        """Show a step to the oracle."""
        outgoing = [(to, decode(datagram)) for to, datagram in ready.transmits]
        self.oracle.on_step(
            self.models[who], cause, datagram, ready, outgoing, self.now_ns, self.now_ns, before
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
        datagram: Datagram | None = None,
        before: object = None,
    ) -> None:
        """Show the oracle a forged step: outgoing frames, trace rows, or a whole Ready."""
        ready = ready or Ready()
        ready.trace += rows
        outgoing = [(to, Datagram(GROUP, who, frames))] if frames else []
        self.oracle.on_step(
            self.models[who], cause, datagram, ready, outgoing, self.now_ns, self.now_ns, before
        )

    @property
    def broken(self) -> set[str]:
        """The names of the checks that have found something."""
        return {violation.check for violation in self.oracle.violations}


def datagram_of(who: Address, *frames: Frame) -> bytes:
    """Return a datagram of ``who`` with ``frames``."""
    return encode(GROUP, who, frames)

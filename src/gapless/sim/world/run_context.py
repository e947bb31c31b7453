"""The shared parts of a simulated run: script, time, network, hosts, oracle and tracer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.faults import FaultChain
from gapless.protocol.buggify import SHED
from gapless.sim.checkers.liveness import bounds_ns, connection_slack_ns
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import MembershipCoverage
from gapless.sim.coverage.stream_coverage import StreamCoverage
from gapless.sim.oracle.oracle import Oracle
from gapless.sim.script import ScriptedFates
from gapless.sim.sealing.sealed_group import SealedGroup
from gapless.sim.world.network import SimulatedNetwork
from gapless.sim.world.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.config import Config
    from gapless.faults.faults import Fault, LateTimers
    from gapless.sim.oracle.checker import InvariantChecker
    from gapless.sim.script import Script
    from gapless.sim.sealing.plan import SealingPlan
    from gapless.sim.short_path import ShortPath
    from gapless.sim.world.host import Host
    from gapless.sim.world.tracer import RunTracer


class RunContext:
    """The shared parts of a run; ``hosts`` has hosts by name, ``by_node`` by node number."""

    def __init__(
        self,
        config: Config,
        script: Script,
        *,
        faults: Iterable[Fault] | None = None,
        late_timers: LateTimers | None = None,
        checkers: Iterable[type[InvariantChecker]] | None = None,
        record: bool = False,
        tracer: RunTracer | None = None,
        fail_fast: bool = False,
        member_configs: Mapping[str, Config] | None = None,
        sealing: SealingPlan | None = None,
        short_path: ShortPath = "drawn",
    ) -> None:
        self.config = config
        self.member_configs = member_configs or {}
        every_config = [config, *self.member_configs.values()]
        self.connection_slack_ns = max(map(connection_slack_ns, every_config))
        self.script = script
        self.short_path = short_path
        self.tracer = tracer
        self.record = record
        self.late_timers = late_timers
        self.hosts: dict[str, Host] = {}
        self.by_node: dict[int, Host] = {}
        self.oracle = Oracle(
            config,
            (
                *(CHECKERS if checkers is None else checkers),
                *([MembershipCoverage] if script.membership else []),
                StreamCoverage,
            ),
            calm_ns=script.calm_ns,
            bounds_ns=max(bounds_ns(one, script.delay_ns) for one in every_config),
            membership=script.membership,
        )
        self.oracle.sheds = SHED in script.rare
        stream_coverage = self.oracle.checkers[-1]
        assert isinstance(stream_coverage, StreamCoverage)
        self.stream_coverage = stream_coverage
        self.membership_coverage = next(
            (check for check in self.oracle.checkers if isinstance(check, MembershipCoverage)), None
        )
        self.scheduler = Scheduler(self.oracle.violations if fail_fast else ())
        self.sealed_group: SealedGroup | None = None
        if sealing is not None:
            self.sealed_group = SealedGroup(sealing, self.scheduler, self.oracle)
            faults = [self.sealed_group.adversary, *(faults or ())]
        chain = _fault_chain(script, faults)
        self.network = SimulatedNetwork(chain, script.delay_ns, record=record, fifo=script.fifo)
        self.names_matter = record or script.only_loss or chain.names_matter or tracer is not None

    def running(self) -> Iterable[Host]:
        """Return the hosts with a running process."""
        return (host for host in self.hosts.values() if host.member is not None)


def _fault_chain(script: Script, faults: Iterable[Fault] | None) -> FaultChain:
    if faults is None:
        return FaultChain([ScriptedFates(script.fates)])
    return FaultChain(faults, script.calm_ns)

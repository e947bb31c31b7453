"""Two hosts with a common cable: times of the meeting, of a noticed death, and after a cut.

The hosts are network namespaces with a virtual cable and no default route. The experiment starts
again as root of a user namespace, and so needs no rights on the machine: ``unshare`` and ``ip``
must be installed, and the kernel must allow user namespaces.

Both members send acknowledged messages during the cut. A message counts as lost if the sender got
the confirmation of every member although the other host, a member before and after, has not
delivered the message.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.failures.member import MemberTask
from experiments.failures.processes import (
    ROOT,
    MemberHandle,
    load_average,
    wait_for_view,
)
from gapless.keys.keyring import Keyring
from gapless_lab.process import LabError, Testbed, lab_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOSTS = ("a", "b")
LOAD_RATE = 50
"""Messages a second of each member while the cable is cut."""
CALM_S = 1.3
"""How long a group rests before a fault: longer than a heartbeat interval."""
SEEDS = ("10.66.0.1:7800", "10.66.0.2:7800")
NETWORK = """
mount -t tmpfs tmpfs /run
ip link set lo up
for host in a b; do ip netns add $host; ip -n $host link set lo up; done
ip link add cable-a netns a type veth peer name cable-b netns b
ip -n a addr add 10.66.0.1/24 dev cable-a
ip -n b addr add 10.66.0.2/24 dev cable-b
ip -n a link set cable-a up
ip -n b link set cable-b up
"""
"""The commands that make two hosts with a cable."""


@dataclass(frozen=True)
class Case:
    """A way to find and reach each other."""

    name: str
    options: dict[str, Any]
    multicast: bool = True


CASES = (
    Case("udp, multicast", {}),
    Case("udp, seeds", {"seeds": list(SEEDS)}),
    Case("udp, seeds, no multicast", {"seeds": list(SEEDS)}, multicast=False),
    Case("mesh, seeds", {"transport": "mesh", "seeds": list(SEEDS)}),
    Case("tcp, seeds", {"transport": "tcp", "seeds": list(SEEDS)}),
    Case("tcp, seeds, no multicast", {"transport": "tcp", "seeds": list(SEEDS)}, multicast=False),
)


@dataclass
class CaseResult:
    """The times of a case, in seconds."""

    name: str
    start_s: list[float] = field(default_factory=list)
    """From the start of both processes to the first message of the other, at both."""
    join_s: list[float] = field(default_factory=list)
    """The same from the later of the two calls of join."""
    kill_s: list[float] = field(default_factory=list)
    """From SIGKILL to the view without the dead member."""
    cut_s: list[float] = field(default_factory=list)
    """From the cut to a view of one at both hosts; empty if the cut was not noticed."""
    rejoin_s: list[float] = field(default_factory=list)
    """From the repaired cable to one view of two at both hosts."""
    acknowledged: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)


def two_hosts(
    cases: Sequence[str] = (), rounds: int = 3, cut_s: float = 10.0
) -> tuple[list[CaseResult], float]:
    """Run the cases in namespaces; return the results and the load of the machine."""
    for tool in ("unshare", "ip", "mount"):
        if shutil.which(tool) is None:
            raise LabError(f"two hosts need the command {tool!r}: install it")
    asked = json.dumps({"cases": list(cases), "rounds": rounds, "cut_s": cut_s})
    shell = f'set -e; {NETWORK.strip().replace(chr(10), "; ")}; exec "$0" "$@"'
    ran = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", shell),
            *(sys.executable, "-m", "experiments.failures.two_hosts", asked),
        ],
        capture_output=True,
        text=True,
        env=lab_environ(ROOT),
        check=False,
    )
    if ran.returncode:
        reason = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LabError(f"the hosts could not be made, or the run failed: {reason}")
    return [CaseResult(**row) for row in json.loads(ran.stdout)], load_average()


class _Hosts(Testbed[MemberHandle]):
    """The member of each host."""

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__(folder)
        self.case = case
        self.keys = folder / "keys.toml"
        if not self.keys.exists():
            Keyring.new().create(self.keys)

    def launch(self, *hosts: str) -> list[MemberHandle]:
        """Start the members of some hosts."""
        for host in hosts:
            prefix = ("ip", "netns", "exec", host)
            options = {**self.case.options, "keys": str(self.keys), "timeout": 30}
            task = MemberTask("two hosts", HOSTS.index(host), options, greet=True)
            name = f"{host}{self.incarnations[host]}"
            self.start(host, self._maker(name, task, prefix))
        return [self.processes[host] for host in hosts]

    def _maker(
        self, name: str, task: MemberTask, prefix: Sequence[str]
    ) -> Callable[[int], MemberHandle]:
        return lambda _: MemberHandle(name, task, self.folder, prefix)

    def meet(self, row: CaseResult) -> None:
        """Wait until both hosts have a message of the other; record how long it took."""
        both = [self.processes[host] for host in HOSTS]
        for member, other in zip(both, reversed(both), strict=True):
            member.wait_to_meet(other.task.index)
        met_s = max(max(member.met.values()) for member in both)
        row.start_s.append(round(met_s - min(member.started_s for member in both), 3))
        row.join_s.append(
            round(met_s - max(member.latest["joining"]["at_s"] for member in both), 3)
        )


def _run_case(case: Case, rounds: int, cut_s: float, folder: Path) -> CaseResult:
    row = CaseResult(case.name)
    _ip("a", "link", "set", "cable-a", "multicast", "on" if case.multicast else "off")
    _ip("b", "link", "set", "cable-b", "multicast", "on" if case.multicast else "off")
    try:
        for turn in range(rounds):
            with _Hosts(case, folder) as hosts:
                hosts.launch(*HOSTS)
                hosts.meet(row)
                if turn == 0 and cut_s:
                    _cut(hosts, row, cut_s)
                _kill(hosts, row)
    except LabError as error:
        row.problems.append(str(error))
    return row


def _kill(hosts: _Hosts, row: CaseResult) -> None:
    time.sleep(CALM_S)
    victim, survivor = hosts.processes["b"], hosts.processes["a"]
    start_s = time.monotonic()
    victim.die()
    row.kill_s.append(round(wait_for_view([survivor], 1) - start_s, 3))


def _cut(hosts: _Hosts, row: CaseResult, cut_s: float) -> None:
    """Pull the cable under load, plug the cable in again, and wait for a common view."""
    both = [hosts.processes[host] for host in HOSTS]
    hosts.ask("go", rate=LOAD_RATE, acknowledged=True)
    time.sleep(CALM_S)
    before = [len(member.views) for member in both]
    cut_at_s = time.monotonic()
    _ip("a", "link", "set", "cable-a", "down")
    time.sleep(cut_s)
    apart_s = [
        next((at_s for at_s, members in m.views[seen:] if len(members) == 1), None)
        for m, seen in zip(both, before, strict=True)
    ]
    up_at_s = time.monotonic()
    _ip("a", "link", "set", "cable-a", "up")
    seen_s = [at_s for at_s in apart_s if at_s is not None]
    if len(seen_s) == len(both):
        row.cut_s.append(round(max(seen_s) - cut_at_s, 3))
    if seen_s:
        row.rejoin_s.append(round(max(0.0, wait_for_view(both, 2) - up_at_s), 3))
    time.sleep(CALM_S)
    _count_lost(both, row)


def _count_lost(both: list[MemberHandle], row: CaseResult) -> None:
    ended = [member.ask("halt") for member in both]
    time.sleep(CALM_S)
    for member, other, end in zip(both, reversed(both), ended, strict=True):
        if end["stuck"]:
            row.problems.append(f"the load of host {member.name} is stuck")
        received = {
            number
            for first, last in other.ask("numbers", index=member.task.index)["runs"]
            for number in range(first, last + 1)
        }
        promised = [number for number, view in end["acknowledged"] if len(view[1:]) == len(both)]
        row.acknowledged += len(promised)
        row.lost += len(set(promised) - received)


def _ip(host: str, *arguments: str) -> None:
    subprocess.run(["ip", "-n", host, *arguments], check=True)


def main() -> None:
    """Run the cases inside of the namespaces; print the results as JSON."""
    asked = json.loads(sys.argv[1])
    chosen = [case for case in CASES if not asked["cases"] or case.name in asked["cases"]]
    with tempfile.TemporaryDirectory(prefix="gapless-hosts-") as folder:
        rows = []
        for number, case in enumerate(chosen):
            own = Path(folder) / str(number)
            own.mkdir(mode=0o700)
            rows.append(asdict(_run_case(case, asked["rounds"], asked["cut_s"], own)))
    sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()

"""Run a soak: start the processes, let them be killed and stopped, wait for rest, and check their traces.

    gather ── load, kill -9, SIGSTOP … SIGCONT ── halt ── rest ── end ── check

Every choice is drawn from the seed: who is killed or stopped, when, and for how long. What the
processes do in between is theirs, so two soaks with one seed are alike, not equal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import ConfigError, GaplessError
from gapless.rng import split
from gapless.trace import TraceRow, check, read
from gapless.units import NS_PER_S
from gapless_lab.bench.processes import SOURCE_ROOT, free_ports
from gapless_lab.soak.plan import SoakPlan, SoakReport, SoakTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

REST_TIMEOUT_S = 60.0
"""So long a group may take to come to rest after the load."""
MAX_EXTRA_S = 180.0
"""So much longer than its load a soak takes at the very most."""
POLL_INTERVAL_S = 0.1
"""How often it is looked whether it has."""
MEMORY_SAMPLES = 30
"""So often the memory of each process is measured during the load."""


class SoakNemesisOp(NamedTuple):
    """Something that is done to a member at a time after the beginning of the load."""

    at_s: float
    member: int
    signal_number: signal.Signals | None
    """None: it is started again."""


def draw_nemesis_ops(plan: SoakPlan) -> list[SoakNemesisOp]:
    """Draw who is killed and stopped, and when.

    Blows follow each other evenly, all before four fifths of the time, so that everybody is back
    under load. Whoever is stopped stands still until the others have expelled it. Nobody is struck
    twice before everybody was.
    """
    rng = split(plan.seed, "blows")
    config = plan.config()
    expelled_s = (
        config.suspect_after_ns + config.verify_timeout_ns + config.heartbeat_interval_ns
    ) / NS_PER_S
    blows: list[SoakNemesisOp] = []
    total = plan.kills + plan.stops
    victims = rng.sample(range(plan.members), plan.members) * 2
    for turn, at in enumerate(rng.sample(range(total), total)):
        start_s = plan.seconds * 0.8 * (turn + rng.uniform(0.2, 0.4)) / total
        if at < plan.kills:
            back_s = start_s + rng.choice((0.05, expelled_s))
            blows += (
                SoakNemesisOp(start_s, victims[at], signal.SIGKILL),
                SoakNemesisOp(back_s, victims[at], None),
            )
        else:
            back_s = start_s + expelled_s * rng.uniform(1.3, 1.6)
            blows += (
                SoakNemesisOp(start_s, victims[at], signal.SIGSTOP),
                SoakNemesisOp(back_s, victims[at], signal.SIGCONT),
            )
    return sorted(blows)


class SoakNetwork:
    """Where the processes are: all on the loopback interface. Others may put each on a host of its own."""

    def addresses(self, count: int) -> list[str]:
        """Return where so many members are to be, as host:port."""
        return [f"127.0.0.1:{port}" for port in free_ports(count)]

    def command_prefix(self, task: SoakTask) -> list[str]:  # noqa: ARG002
        """Return what stands in the command line before the command of a process."""
        return []

    def connect(self, task: SoakTask, process: subprocess.Popen[str]) -> None:
        """Let a process that has just been started have its network."""


class SoakProcess:
    """One process of the soak, and how its memory was over time."""

    def __init__(self, task: SoakTask, network: SoakNetwork) -> None:
        self.task = task
        self.memory: list[float] = []
        self._pending_replies = 0
        self.stderr_path = Path(task.folder) / f"member-{task.node}-{task.start}.err"
        with self.stderr_path.open("w") as complaints:
            self.process = subprocess.Popen(  # noqa: S603 - the command is our own
                [
                    *network.command_prefix(task),
                    sys.executable,
                    "-m",
                    "gapless_lab.soak.worker",
                    task.encode(),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
            )
        network.connect(task, self.process)

    @property
    def name(self) -> str:
        """Which member it is, and its how-manyth process."""
        return f"{self.task.node}.{self.task.start}"

    def send_command(self, words: str) -> None:
        """Say a line."""
        print(words, file=self.process.stdin, flush=True)
        self._pending_replies += 1

    def read_reply(self) -> dict[str, Any]:
        """Return the answer to the last line; those before it are of no interest any more."""
        while self._pending_replies > 1:
            self._read_one_reply()
        return self._read_one_reply()

    def _read_one_reply(self) -> dict[str, Any]:
        self._pending_replies -= 1
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.stderr_path.read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise GaplessError(
                f"process {self.name} has ended before its time: {''.join(said) or 'it said nothing'}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GaplessError(f"process {self.name} has failed: {answer['error']}")
        return answer

    def sample_memory(self) -> None:
        """Take down how much memory it has."""
        if (megabytes := resident_mb(self.process.pid)) is not None:
            self.memory.append(round(megabytes, 1))

    def kill(self) -> None:
        """Be rid of it."""
        self.process.kill()
        self.process.communicate()


def resident_mb(pid: int) -> float | None:
    """Return the resident memory of a process in megabytes, if the system tells."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return None
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6 if len(words) > 1 else None


class SoakTestbed:
    """The processes of one soak, with their traces in ``folder``."""

    def __init__(self, plan: SoakPlan, folder: Path, network: SoakNetwork) -> None:
        self.plan = plan
        self.folder = folder
        self.network = network
        self.addresses = network.addresses(plan.members)
        self.members: list[SoakProcess] = []
        self.exited: list[SoakProcess] = []
        self._timer = threading.Timer(plan.seconds + MAX_EXTRA_S, self._kill_all)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        for at in range(self.plan.members):
            self.members.append(self._start(at, 1))
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for member in self.members:
            member.kill()

    def _kill_all(self) -> None:
        """Kill all processes; whoever listens to one is told that it has ended."""
        for member in self.members:
            member.process.kill()

    def _start(self, at: int, start: int) -> SoakProcess:
        return SoakProcess(
            SoakTask(self.plan, self.addresses, at, start, str(self.folder)), self.network
        )

    def command_all(self, words: str) -> list[dict[str, Any]]:
        """Say a line to all, then hear what each has to say."""
        for member in self.members:
            member.send_command(words)
        return [member.read_reply() for member in self.members]

    def wait_for_members(self) -> None:
        """Wait until all are in one view."""
        if not all(answer["met"] for answer in self.command_all(f"members {self.plan.members}")):
            raise GaplessError(
                f"not all of {self.plan.members} members have come; is the machine overloaded?"
            )

    def run_load(self, progress: Callable[[float], None]) -> None:
        """Let everybody send, and let the blows fall. What is late makes all that follows late."""
        self.command_all("go")
        plan, began_s = self.plan, time.monotonic()
        agenda = [(blow.at_s, blow) for blow in draw_nemesis_ops(plan)]
        every_s = plan.seconds / MEMORY_SAMPLES
        times = sorted(
            [*agenda, *((every_s * turn, None) for turn in range(1, MEMORY_SAMPLES + 1))],
            key=lambda one: one[0],
        )
        for at_s, blow in times:
            left_s = began_s + at_s - time.monotonic()
            threading.Event().wait(max(0.0, left_s))
            began_s -= min(0.0, left_s)
            if blow is not None:
                self._apply(blow)
            else:
                for member in self.members:
                    member.sample_memory()
                progress(at_s)

    def _apply(self, blow: SoakNemesisOp) -> None:
        member = self.members[blow.member]
        if blow.signal_number is not None:
            member.process.send_signal(blow.signal_number)
            return
        member.kill()
        self.exited.append(member)
        again = self.members[blow.member] = self._start(blow.member, member.task.start + 1)
        again.send_command("go")

    def wait_for_rest(self) -> bool:
        """Let nobody send any more, and wait until everything has arrived everywhere; return whether it has."""
        self.command_all("halt")
        until_s = time.monotonic() + REST_TIMEOUT_S
        while not (rested := is_at_rest(self.command_all("look"))) and time.monotonic() < until_s:
            threading.Event().wait(POLL_INTERVAL_S)
        return rested


def is_at_rest(seen: list[dict[str, Any]]) -> bool:
    """Return whether all are in one view, nothing waits, and everybody has what everybody has sent."""
    lives = sorted(one["me"] for one in seen)
    return all(
        one["idle"]
        and one["low"] == one["high"]
        and sorted(one["members"]) == lives
        and all(other["heard"].get(one["me"], 0) == one["high"] for other in seen if one["high"])
        for one in seen
    )


def _make_testbed(
    plan: SoakPlan, folder: Path | None, temporary: str, network: SoakNetwork | None
) -> SoakTestbed:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty: name an empty folder for the traces, or a new one"
            )
    return SoakTestbed(plan, folder or Path(temporary), network or SoakNetwork())


def soak(
    plan: SoakPlan,
    folder: Path | None = None,
    *,
    network: SoakNetwork | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> SoakReport:
    """Run a soak and check its traces, which stay in ``folder`` if there is one."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as temporary,
        _make_testbed(plan, folder, temporary, network) as group,
    ):
        group.wait_for_members()
        group.run_load(progress)
        rested = group.wait_for_rest()
        ends = group.command_all("end")
        struck = sum((Counter(end["struck"]) for end in ends), Counter())
        memory = {
            member.name: member.memory
            for member in (*group.members, *group.exited)
            if member.memory
        }
        return report(
            plan, list(read(group.folder)), rested=rested, struck=dict(struck), memory=memory
        )


def _messages(rows: list[TraceRow], event: str) -> int:
    """Return how many messages rows of an event are about; the pieces of one count each."""
    return sum(row.seqno_last - row.seqno + 1 for row in rows if row.event == event)


def report(
    plan: SoakPlan,
    rows: list[TraceRow],
    *,
    rested: bool,
    struck: dict[str, int],
    memory: dict[str, list[float]],
) -> SoakReport:
    """Check a trace and count what is in it."""
    events = Counter(row.event for row in rows)
    return SoakReport(
        rested=rested,
        violations=check(rows),
        rows=len(rows),
        lives=events["BEGIN"],
        sent=_messages(rows, "SEND"),
        delivered=_messages(rows, "DELIVER"),
        views=len({(row.view, row.origin) for row in rows if row.event == "MEMBERS"}),
        expelled=events["EXPELLED"],
        naks=events["NAK_OUT"],
        repairs=events["REPAIR"],
        struck=struck,
        kills=plan.kills,
        stops=plan.stops,
        memory=memory,
    )

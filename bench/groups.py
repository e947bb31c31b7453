"""A contender at work: its processes and its server; none outlives the measurement."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.environment import ROOT
from bench.peers import jgroups
from bench.peers.base import Task
from gapless_lab.ports import free_ports
from gapless_lab.process import SOURCE_ROOT, LabError, LabProcess

if TYPE_CHECKING:
    from typing import Self

    from bench.contenders import Contender
    from bench.environment import Environment
    from bench.network import Network

ANSWER_S = 100.0
"""How long to wait for an answer."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def surroundings() -> dict[str, str]:
    """Return the environment of a process; Python compiles this package only once."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join((str(ROOT), str(SOURCE_ROOT)))
    return {**kept, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "bytecode")}


class FailedError(Exception):
    """A contender has failed; the message has the reason."""


@dataclass(frozen=True)
class Shape:
    """The number of members, the number of senders, and the receivers."""

    members: int
    senders: int
    mode: str = "all"
    late: int = 0
    """So many of the members come later."""
    begin: tuple[int, int] = (1, 8)


@dataclass(frozen=True)
class Mark:
    """The messages and the cost of all processes at a moment."""

    answers: list[dict[str, Any]]
    server_cpu_s: float


class Group:
    """The processes of a contender."""

    def __init__(
        self,
        contender: Contender,
        shape: Shape,
        environment: Environment,
        network: Network | None = None,
        loss: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.contender, self.shape = contender, shape
        self._environment, self._network = environment, network
        self._folder = Path(tempfile.mkdtemp(prefix="gapless-bench-"))
        self._processes: list[LabProcess] = []
        self._server: LabProcess | None = None
        self._turn = 0
        members = shape.members
        hosts = [network.host(at) for at in range(members)] if network else ["127.0.0.1"] * members
        ports = free_ports(members + 1)
        self._task = Task(
            contender.peer,
            0,
            hosts,
            ports[:members],
            shape.senders,
            shape.mode,
            contender.transport,
            f"{network.host(members) if network else '127.0.0.1'}:{ports[-1]}",
            members=members - shape.late,
            loss=loss,
            begin=shape.begin,
            options={**contender.options, **(options or {})},
        )
        self.started_ns: list[int] = []
        self.ready: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Coming and going

    def start(self) -> None:
        """Start all members except the late members, and wait until all reach each other."""
        self._start_server()
        for at in range(self.shape.members - self.shape.late):
            self.spawn(at)
        self.ready = self.answers()

    def spawn(self, at: int, *, joins_late: bool = False) -> None:
        """Start a process."""
        task = replace(self._task, at=at, joins_late=joins_late)
        if joins_late:
            task = replace(task, members=self.shape.members)
        command = self._network.prefix(at) if self._network else []
        if self.contender.peer == "jgroups":
            made = self._environment
            command = command + jgroups.command(
                task, made.java, Path(made.jar), made.classes, self._folder
            )
        else:
            command = [
                *command,
                str(self._environment.python),
                "-m",
                "bench.peers.base",
                task.encode(),
            ]
        self.started_ns.append(time.monotonic_ns())
        self._processes.append(LabProcess(f"process {at}", command, self._folder, surroundings()))

    def _start_server(self) -> None:
        name = self.contender.peer
        if name not in ("nats", "redis"):
            return
        host, _, port = self._task.broker.partition(":")
        path = self._environment.server(name)
        if name == "nats":
            settings = self._folder / "nats.conf"
            settings.write_text("max_pending: 512MB\nwrite_deadline: 30s\n", encoding="utf-8")
            command = [path, "-a", host, "-p", port, "-c", str(settings)]
        else:
            command = [
                path,
                "--bind",
                host,
                "--port",
                port,
                "--save",
                "",
                "--appendonly",
                "no",
                "--protected-mode",
                "no",
            ]
        prefix = self._network.prefix(self.shape.members) if self._network else []
        self._server = LabProcess(
            "server", [*prefix, *command], self._folder, surroundings(), merged=True
        )
        self._await_server()

    def _await_server(self) -> None:
        """Wait until the server takes connections; an early member would give up."""
        host, _, port = self._task.broker.partition(":")
        look = f"import socket; socket.create_connection(({host!r}, {port}), 1)"
        prefix = self._network.prefix(0) if self._network else []
        until_s = time.monotonic() + 20
        while subprocess.run(
            [*prefix, sys.executable, "-c", look], capture_output=True, check=False
        ).returncode:
            if self._server is None or self._server.has_exited or time.monotonic() > until_s:
                raise FailedError(f"the server does not come up: {self._said()}")

    def close(self) -> None:
        """End every process, and wait for each end."""
        for process in self._all:
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [process.pid for process in self._all]

    @property
    def _all(self) -> list[LabProcess]:
        return [*self._processes, *([self._server] if self._server else ())]

    # Commands

    def ask(self, what: str, **words: Any) -> list[dict[str, Any]]:
        """Send a command to all processes; return the answers."""
        for process in self._processes:
            process.send(what, **words)
        return self.answers()

    def ask_one(self, at: int, what: str, **words: Any) -> dict[str, Any]:
        """Send a command to a process; return the answer."""
        self._processes[at].send(what, **words)
        return self.answers([at])[0]

    def answers(self, whom: list[int] | None = None) -> list[dict[str, Any]]:
        """Return the next answer of each."""
        asked = [self._processes[at] for at in whom] if whom is not None else self._processes
        try:
            return [process.answer(ANSWER_S) for process in asked]
        except LabError:
            raise FailedError(self._why()) from None

    def _why(self) -> str:
        late = f"was not done within {ANSWER_S:.0f} s"
        return f"a process has ended before its time, or {late}: {self._said()}"

    def _said(self) -> str:
        found = []
        for process in self._all:
            errors = process.stderr_path.read_text(errors="replace").splitlines()
            lines = [line.strip() for line in (*process.lines, *errors) if line.strip()]
            found += lines[-1:]
        return "; ".join(dict.fromkeys(found)) or "it said nothing"

    # What is asked of it

    def mark(self) -> Mark:
        """Let all processes report messages and cost so far."""
        return Mark(self.ask("mark"), self.server_cpu_s())

    def server_cpu_s(self) -> float:
        """Return the CPU time of the server so far."""
        if self._server is None:
            return 0.0
        fields = (
            Path(f"/proc/{self._server.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()
        )
        return sum(map(int, fields[11:13])) / _TICKS_PER_S

    def server_memory_bytes(self) -> int:
        """Return the memory of the server."""
        return 0 if self._server is None else self._server.rss_bytes()

    def stop_one(self, at: int) -> None:
        """Stop a process by SIGSTOP."""
        self._processes[at].signal(signal.SIGSTOP)

    def continue_one(self, at: int) -> None:
        """Continue a stopped process."""
        self._processes[at].signal(signal.SIGCONT)

    def next_turn(self) -> int:
        """Return the number of the next round."""
        self._turn = self._turn % 60_000 + 1
        return self._turn

    def end_round(self) -> list[dict[str, Any]]:
        """Stop the senders; return how many messages were lost, repeated, out of order."""
        sent = [answer["sent"] for answer in self.ask("stop")]
        sent += [0] * (self.shape.members - len(sent))
        checks = self.ask("check", sent=sent)
        return [{**check, "sent": count} for check, count in zip(checks, sent, strict=False)]

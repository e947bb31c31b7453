"""Start members in separate processes, and wait for views."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.failures.member import MemberTask
from gapless_lab.ports import free_ports
from gapless_lab.process import LabError, LabProcess, Testbed, lab_environ, worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the packages ``experiments`` and ``src``."""
PATIENCE_S = 60.0
"""How long a group may take to form, or a view to come, before the experiment fails."""


class MemberHandle(LabProcess):
    """A member in a process, with the reported views."""

    def __init__(
        self, name: str, task: MemberTask, folder: Path, prefix: Sequence[str] = ()
    ) -> None:
        self.task = task
        self.views: list[tuple[float, frozenset[str]]] = []
        self.met: dict[int, float] = {}
        self.started_s = time.monotonic()
        command = [*prefix, *worker_command("experiments.failures.member", task)]
        (folder / name).mkdir(exist_ok=True)
        environ = lab_environ(ROOT, TMPDIR=str(folder / name)) if prefix else lab_environ(ROOT)
        super().__init__(name, command, folder, environ)

    def on_event(self, name: str, fields: dict[str, Any]) -> None:
        """Record a view, or the first message of another member."""
        if name == "view":
            self.views.append((fields["at_s"], frozenset(fields["members"])))
        elif name == "met":
            self.met[fields["index"]] = fields["at_s"]

    @property
    def members(self) -> frozenset[str]:
        """The members of the last view."""
        return self.views[-1][1] if self.views else frozenset()

    def wait_for_size(self, size: int, within_s: float = PATIENCE_S) -> None:
        """Wait until the last view has ``size`` members."""
        self.wait_until(lambda: len(self.members) == size, f"no view of {size} members", within_s)

    def wait_to_meet(self, index: int, within_s: float = PATIENCE_S) -> None:
        """Wait for the first message of another member."""
        self.wait_until(lambda: index in self.met, f"no message of member {index}", within_s)

    def die(self) -> None:
        """Send SIGKILL, without any further step: the moment is exact."""
        self.killed = True
        self.signal(signal.SIGKILL)


class MemberGroup(Testbed[MemberHandle]):
    """The members of a group on the local machine, in a temporary folder."""

    def __init__(self, name: str, options: dict[str, Any] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="gapless-failures-")
        super().__init__(Path(self._temporary.name))
        self.group = f"{name}-{os.getpid()}"
        self.options = {"host": "127.0.0.1"} if options is None else options
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._temporary.cleanup()

    def add(self, count: int = 1, **more: Any) -> list[MemberHandle]:
        """Start members without waiting."""
        options = {**self.options, **more.pop("options", {})}
        added = []
        for _ in range(count):
            self._count += 1
            task = MemberTask(self.group, self._count, options, **more)
            name = f"member {self._count}"
            added.append(self.start(name, self._maker(name, task)))
        return added

    def _maker(self, name: str, task: MemberTask) -> Callable[[int], MemberHandle]:
        return lambda _: MemberHandle(name, task, self.folder)

    def remove(self, members: Iterable[MemberHandle]) -> None:
        """Forget ended members."""
        for member in members:
            member.kill()
            self.processes.pop(member.name, None)

    def wait_for_size(self, size: int, within_s: float = PATIENCE_S) -> float:
        """Wait until every process reports a view of ``size``; return the last report's time."""
        return wait_for_view(self.processes.values(), size, within_s)


def wait_for_view(
    members: Collection[MemberHandle], size: int, within_s: float = PATIENCE_S
) -> float:
    """Wait until all report the same view of ``size`` members; return the last report's time."""
    until_s = time.monotonic() + within_s
    for member in members:
        member.wait_for_size(size, max(0.1, until_s - time.monotonic()))
    if len({member.members for member in members}) != 1:
        raise LabError(f"the members have different views of {size}")
    return max(member.views[-1][0] for member in members)


def mesh_options(count: int, transport: str = "mesh") -> dict[str, Any]:
    """Return options for ``count`` members with each other as seeds on loopback."""
    ports = free_ports(count)
    return {
        "transport": transport,
        "host": "127.0.0.1",
        "ports": ports,
        "seeds": [f"127.0.0.1:{port}" for port in ports],
    }


def load_average() -> float:
    """Return the load of the machine in the last minute."""
    return round(os.getloadavg()[0], 1)

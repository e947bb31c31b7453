"""The supervisor of all processes of the lab, and the line protocol with workers.

A line is a JSON object. The supervisor sends commands, ``{"do": NAME, …arguments}``. For each
command the worker calls the method of the same name and answers with an object, in the order of the
commands. A command without an answer is ``{"notify": NAME, …arguments}``. A worker sends events,
``{"event": NAME, …}``, at any time; an event is never an answer. Any other line is plain output,
kept for error messages.

No worker outlives the supervisor. The kernel kills a process at the end of the thread of the
supervisor that started the process. Where the kernel cannot, a worker exits at the end of its
standard input.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_type_hints

import gapless
from gapless.errors import GaplessError

T = TypeVar("T")
P = TypeVar("P", bound="LabProcess")
Message = dict[str, Any]

SOURCE_ROOT = Path(gapless.__file__).resolve().parent.parent
"""The folder this package is imported from; workers import the same code."""
POLL_INTERVAL_S = 0.02
"""How long between two checks of a condition that nothing signals."""
TIMEOUT_S = 600.0
"""How long a process may take to answer, or a condition to hold, on a busy machine."""
MAX_LINES = 5000
"""Maximum number of output lines kept of a process."""
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)
"""Ask the kernel for SIGKILL when the parent ends (PR_SET_PDEATHSIG), then run the program."""
_SPAWN_THREAD = ThreadPoolExecutor(1, thread_name_prefix="spawn")
"""To the kernel the parent is the thread that forked, so a thread that never ends forks."""
_WRITE_LOCK = threading.Lock()


class LabError(GaplessError):
    """A run cannot continue: a condition was not met in time, or a process ended unexpectedly."""


# The supervisor's end


class LabProcess:
    """A supervised process with the standard error in ``folder/NAME.err``."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
        *,
        merged: bool = False,
    ) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.latest: dict[str, Message] = {}
        """The last event of each name."""
        self.killed = False
        self.changed = threading.Condition()
        self.stderr_path = folder / f"{name}.err"
        self._answers: deque[Message] = deque()
        self._ended = threading.Event()
        with self.stderr_path.open("ab") as errors:
            self._process = _SPAWN_THREAD.submit(
                subprocess.Popen[bytes],
                die_with_parent(command),
                cwd=folder,
                env=lab_environ() if environ is None else dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else errors,
                start_new_session=True,  # Ctrl-C ends the supervisor, and with it the process
            ).result()
        threading.Thread(target=self._read, name=f"read {name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return self.exit_code is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            with self.changed:
                self.lines.append(text)
                self.on_line(text)
                self.changed.notify_all()
        self._process.wait()
        self._ended.set()
        with self.changed:
            self.changed.notify_all()

    def on_line(self, line: str) -> None:
        """Sort a line of output into events and answers."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        if "event" not in message:
            self._answers.append(message)
            return
        name = message.pop("event")
        self.latest[name] = message
        self.on_event(name, message)

    def on_event(self, name: str, fields: Message) -> None:
        """Handle an event; subclasses count events."""

    # Commands and answers

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command; :meth:`answer` waits for the answer."""
        self.write_line(json.dumps({"do": command, **arguments}))

    def notify(self, command: str, **arguments: Any) -> None:
        """Send a command without an answer; any thread may call ``notify``."""
        self.write_line(json.dumps({"notify": command, **arguments}))

    def write_line(self, line: str) -> None:
        """Write a line to the standard input; the line is dropped if the process has died."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def answer(self, within_s: float = TIMEOUT_S) -> Message:
        """Wait for the next answer."""
        self.wait_until(lambda: bool(self._answers), "no answer", within_s)
        answer = self._answers.popleft()
        if "error" in answer:
            raise LabError(f"{self.name} failed: {answer['error']}")
        return answer

    def ask(self, command: str, within_s: float = TIMEOUT_S, **arguments: Any) -> Message:
        """Send a command and wait for the answer."""
        self.send(command, **arguments)
        return self.answer(within_s)

    # Waiting

    def wait_for_event(self, name: str, within_s: float = TIMEOUT_S) -> Message:
        """Wait for an event of the worker; return the last event of the name."""
        self.wait_until(lambda: name in self.latest, f"no event {name!r}", within_s)
        return self.latest[name]

    def wait_until(self, holds: Callable[[], T], what: str, within_s: float = TIMEOUT_S) -> T:
        """Wait for a condition on the output; raise if the process ends before."""
        with self.changed:
            self.changed.wait_for(lambda: holds() or self._ended.is_set(), within_s)
            if found := holds():
                return found
        reason = (
            f"ended with code {self.exit_code}"
            if self._ended.is_set()
            else f"not within {within_s:.0f} s; is the machine overloaded?"
        )
        raise LabError(f"{self.name}: {what}: {reason}; {self.output_tail()}")

    def wait_for_output(self, pattern: str, within_s: float = TIMEOUT_S) -> re.Match[str]:
        """Wait until a line of output matches ``pattern``."""

        def seen() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        found = self.wait_until(seen, f"no line with {pattern!r}", within_s)
        assert found is not None
        return found

    def wait_exit(self, within_s: float = TIMEOUT_S) -> int:
        """Wait until the process ends; return the exit code."""
        if not self._ended.wait(within_s):
            raise LabError(f"{self.name} has not ended in {within_s:.0f} s; {self.output_tail()}")
        self._close_pipes()
        return self._process.wait()

    def output_tail(self) -> str:
        """Return the last lines of output and standard error as a single line."""
        output = " | ".join(list(self.lines)[-5:])
        errors = self.stderr_path.read_text(encoding="utf-8", errors="replace")[-2000:]
        return f"output: {output or 'none'}; errors: {' | '.join(errors.splitlines()) or 'none'}"

    # Signals

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self, *, children: bool = True) -> None:
        """Kill the process, with all descendants or alone, and wait until all have ended."""
        self.killed = True
        if not self.has_exited:  # else its pid may belong to another process by now
            tree = [self.pid, *descendants(self.pid)]
            victims = tree if children else [self.pid]
            signal_all(victims, signal.SIGSTOP)  # so that none starts another while they die
            signal_all(victims, signal.SIGKILL)
            self._process.wait()
            wait_exited(tree)
        self._ended.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def rss_bytes(self) -> int:
        """Return the resident memory; 0 if the process has ended."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


class Testbed(Generic[P]):
    """The processes of a run, by name; all are killed at the end of the block.

    Every poll of :meth:`wait_until` calls ``on_poll``, which may raise.
    """

    def __init__(self, folder: Path, on_poll: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.on_poll = on_poll
        self.processes: dict[str, P] = {}
        """The last incarnation of each."""
        self.former: list[P] = []
        self.incarnations: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()

    def start(self, name: str, make: Callable[[int], P]) -> P:
        """Start the next incarnation of a process: ``make`` takes the number of the incarnation."""
        self.incarnations[name] += 1
        process = make(self.incarnations[name])
        before, self.processes[name] = self.processes.get(name), process
        if before is not None:
            self.former.append(before)
        return process

    def ask(self, command: str, within_s: float = TIMEOUT_S, **arguments: Any) -> list[Message]:
        """Send a command to every process at once; return the answers."""
        for process in self.processes.values():
            process.send(command, **arguments)
        return [process.answer(within_s) for process in self.processes.values()]

    def wait_for_event(self, name: str, within_s: float = TIMEOUT_S) -> list[Message]:
        """Wait until every process has sent an event."""
        return [process.wait_for_event(name, within_s) for process in self.processes.values()]

    def check(self) -> None:
        """Raise if a process has failed without a kill."""
        for process in self.processes.values():
            if process.exit_code and not process.killed:
                raise LabError(f"{process.name} has ended by itself; {process.output_tail()}")

    def wait_until(self, holds: Callable[[], T], what: str, within_s: float = TIMEOUT_S) -> T:
        """Wait for a condition; raise if a process fails before."""

        def checked() -> T:
            self.on_poll()
            self.check()
            return holds()

        return wait_until(checked, what, within_s)


class ProcessGroup(Testbed[LabProcess]):
    """Workers started together, in a temporary folder."""

    def __init__(
        self, commands: Iterable[Sequence[str]], environ: Mapping[str, str] | None = None
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="gapless-lab-")
        super().__init__(Path(self._temporary.name))
        for number, command in enumerate(commands, 1):
            name = f"process {number}"
            self.processes[name] = LabProcess(name, command, self.folder, environ)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._temporary.cleanup()


def worker_command(module: str, task: Any) -> list[str]:
    """Return the command line of a worker: a module, and a dataclass as the only argument."""
    return [sys.executable, "-m", module, json.dumps(asdict(task), default=str)]


def die_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command, killed by the kernel at the end of the current process, on Linux."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def lab_environ(*paths: Path, **more: str) -> dict[str, str]:
    """Return an environment for workers: the same package, and no settings of Spark or Gapless."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "GAPLESS_"))
    }
    path = os.pathsep.join(map(str, (SOURCE_ROOT, *paths)))
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


# The worker's end


def read_task(kind: type[T]) -> T:
    """Return the task on the command line, a dataclass."""
    task: T = _restore(kind, json.loads(sys.argv[1]))
    return task


def _restore(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{name: _restore(hints[name], field) for name, field in value.items()})
    return Path(value) if kind is Path else value


def emit(event: str, **fields: Any) -> None:
    """Send an event to the supervisor."""
    _write({"event": event, **fields})


def _write(message: Message) -> None:
    with _WRITE_LOCK:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def serve_commands(worker: object) -> None:
    """Run each command as a method of ``worker`` and answer, until the supervisor ends."""
    for line in sys.stdin:
        arguments = json.loads(line)
        if name := arguments.pop("notify", ""):
            getattr(worker, name)(**arguments)
            continue
        try:
            answer = getattr(worker, arguments.pop("do"))(**arguments)
        except (GaplessError, TimeoutError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _write(answer or {})


def serve_in_background(worker: object, ended: threading.Event) -> None:
    """Serve commands in a thread; set ``ended`` when the supervisor ends, or a command fails."""

    def serve() -> None:
        try:
            serve_commands(worker)
        finally:
            ended.set()

    threading.Thread(target=serve, name="commands", daemon=True).start()


# What the system knows of processes


def wait_until(holds: Callable[[], T], what: str, within_s: float = TIMEOUT_S) -> T:
    """Poll until a condition holds; return the value of ``holds``."""
    until_s = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > until_s:
            raise LabError(f"{what} within {within_s:.0f} s")
        time.sleep(POLL_INTERVAL_S)
    return found


def wait_exited(pids: Sequence[int], within_s: float = TIMEOUT_S) -> None:
    """Wait until none of the processes runs."""
    wait_until(lambda: not any(map(is_running, pids)), f"processes {pids} do not end", within_s)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; skip ended processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def descendants(pid: int, containing: str = "") -> list[int]:
    """Return all descendants of a process, parents first.

    With ``containing``, return only processes with the text in the command line.
    """
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return [each for each in found[1:] if not containing or containing in command_line(each)]


def command_line(pid: int) -> str:
    """Return the command line of a process; empty for an ended process."""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return line.replace(b"\0", b" ").decode(errors="replace")
    return ""

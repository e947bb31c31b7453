"""Commands as real processes of one group on loopback, each read with a limit in time."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless_lab.ports import free_ports
from tests.support.processes import CLI, ENVIRONMENT, ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(ChildProcess):
    """A ``gapless`` command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*CLI, *arguments, environment={**ENVIRONMENT, "COLUMNS": "120"})
        self._passed = {"stdout": 0, "stderr": 0}

    def next_line(self, words: str, where: str = "stdout") -> str:
        """Return the next line with ``words``, after the last one that was returned."""
        lines, start = self.output if where == "stdout" else self.errors, self._passed[where]

        def found() -> list[int]:
            return [at for at in range(start, len(lines)) if words in lines[at]]

        at: int = self.until(found, f"{words!r} never came")[0]
        self._passed[where] = at + 1
        return lines[at] + "\n"

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.signal(signal.SIGINT)

    def end(self) -> tuple[int, bytes, str]:
        """Close its input; return its exit code, standard output and standard error."""
        self.close_input()
        code = self.wait()
        return code, self.output_bytes, "".join(f"{line}\n" for line in self.errors)


class CommandGroup:
    """A group on loopback whose members are commands."""

    def __init__(self, members: int) -> None:
        ports = free_ports(members)
        self._commands: list[Command] = []
        where = f"{ports[0]}-{ports[-1]}"
        self.options = [
            "--host",
            "127.0.0.1",
            "--ports",
            where,
            "--discover",
            f"seeds://127.0.0.1:{where}",
        ]
        self.options += ["--properties", "found_after=200ms;join_interval=50ms"]

    def start(self, name: str, *arguments: str) -> Command:
        """Start a command of the group."""
        command = Command(name, "talk", *arguments, *self.options)
        self._commands.append(command)
        return command

    def close(self) -> None:
        """End every command that still runs."""
        for command in self._commands:
            command.close()


@contextmanager
def command_group(members: int) -> Iterator[CommandGroup]:
    """Yield a group for up to ``members`` commands, and end them all."""
    group = CommandGroup(members)
    try:
        yield group
    finally:
        group.close()

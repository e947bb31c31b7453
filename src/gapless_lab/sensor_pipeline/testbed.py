"""The members of a pipeline, each a process; no producer runs far ahead of the others.

Each producer sends one reading when it has joined. From ``start_load`` on, producers may send up to
MAX_LEAD readings more than the slowest of them has acknowledged: the readings of a slow producer
would be too late for the watermark otherwise. A producer that is down holds the others back too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gapless_lab.process import LabError, LabProcess, Message, Testbed, worker_command
from gapless_lab.sensor_pipeline.worker import SensorTask

log = logging.getLogger("gapless.pipeline")

MAX_LEAD: Final = 1000
"""Maximum number of readings one producer may be ahead of another."""
PACE_INTERVAL_S: Final = 0.02
"""How long between two checks of how far the producers are."""
EXIT_TIMEOUT_S: Final = 30.0
"""How long a member may take to leave."""


class MemberProcess(LabProcess):
    """One member, and its progress."""

    def __init__(self, task: SensorTask, logs: Path, before: MemberProcess | None) -> None:
        self.task = task
        self.sent = 0
        self.acknowledged: int = before.acknowledged if before else 0
        """Up to which reading all are acknowledged; of the collector, how many it has."""
        self.first_acknowledged: int | None = before.first_acknowledged if before else None
        """How many were acknowledged before this run; None until it is known."""
        self.limit = 0
        """Up to which reading it may send."""
        command = worker_command("gapless_lab.sensor_pipeline.worker", task)
        super().__init__(f"{task.member_name}.{task.incarnation}", command, logs)

    @property
    def newly_acknowledged(self) -> int:
        """How many readings were acknowledged in this run."""
        first = self.first_acknowledged
        return 0 if first is None else self.acknowledged - first

    def on_event(self, name: str, fields: Message) -> None:
        """Keep how far it is; log its warnings."""
        if name == "warning":
            log.warning("%s: %s", self.name, fields["text"])
            return
        self.sent = fields["sent"]
        self.acknowledged = max(self.acknowledged, fields["acknowledged"])
        if self.first_acknowledged is None:
            self.first_acknowledged = self.acknowledged


def send_limit(acknowledged: Iterable[int], messages: int | None) -> int | None:
    """Return up to which reading producers may send; None if all have sent everything."""
    behind = [count for count in acknowledged if messages is None or count < messages]
    return min(behind) + MAX_LEAD if behind else None


class SensorTestbed(Testbed[MemberProcess]):
    """The members of a pipeline: ``task`` is that of all, but for the number of each."""

    def __init__(self, task: SensorTask, logs: Path) -> None:
        super().__init__(logs)
        self._task = task
        self._ended = threading.Event()

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        super().__exit__(*details)

    @property
    def producers(self) -> list[MemberProcess]:
        """The last incarnation of each producer."""
        # A copy: other threads ask while members are started.
        return [process for process in list(self.processes.values()) if process.task.number]

    @property
    def acknowledged(self) -> int:
        """How many readings are acknowledged, over all runs with these ledgers."""
        return sum(process.acknowledged for process in self.producers)

    @property
    def newly_acknowledged(self) -> int:
        """How many readings were acknowledged in this run."""
        return sum(process.newly_acknowledged for process in self.producers)

    @property
    def left(self) -> int | None:
        """How many readings are not acknowledged yet; None without producers, or without an end."""
        producers, messages = self.producers, self._task.messages
        if messages is None or not producers:
            return None
        return sum(max(0, messages - process.acknowledged) for process in producers)

    @property
    def sent(self) -> int:
        """How many readings were sent by all incarnations of this run."""
        return sum(process.sent for process in (*self.producers, *self.former))

    @property
    def is_done(self) -> bool:
        """Whether each producer has everything acknowledged."""
        return self.left == 0

    def start_member(self, number: int, messages: int | None = None) -> MemberProcess:
        """Start the next incarnation of a producer, or of the collector (0)."""
        task = replace(self._task, number=number, messages=messages or self._task.messages)
        before = self.processes.get(task.member_name)
        self.folder.mkdir(parents=True, exist_ok=True)

        def make(incarnation: int) -> MemberProcess:
            return MemberProcess(replace(task, incarnation=incarnation), self.folder, before)

        return self.start(task.member_name, make)

    def start_load(self) -> None:
        """Let the producers send everything."""
        threading.Thread(target=self._pace, name="pace", daemon=True).start()

    def _pace(self) -> None:
        while not self._ended.wait(PACE_INTERVAL_S):
            producers = self.producers
            limit = send_limit((process.acknowledged for process in producers), self._task.messages)
            for process in producers:
                if limit is not None and limit > process.limit and not process.has_exited:
                    process.limit = limit
                    process.notify("allow", number=limit)

    def stop(self) -> None:
        """Make the producers leave; kill those that do not leave in time."""
        for process in self.producers:
            process.notify("end")
        for process in self.producers:
            try:
                process.wait_exit(EXIT_TIMEOUT_S)
            except LabError:
                process.kill()

    def end(self) -> None:
        """Make the members leave one after the other: one that stays releases one that leaves."""
        for process in sorted(self.processes.values(), key=lambda process: not process.task.number):
            process.notify("end")
            process.wait_success(EXIT_TIMEOUT_S)

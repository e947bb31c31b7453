"""The members of a pipeline, each a process; no producer runs far ahead of the others.

Each producer sends one reading after joining. From ``start_load`` on, producers may send up to
MAX_LEAD readings more than the slowest producer has acknowledged: otherwise the readings of a slow
producer would be too late for the watermark. A stopped producer holds the others back too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gapless.logger import logger_of
from gapless.output.private_files import make_inner_folder
from gapless_lab.process import LabError, LabProcess, Message, Testbed, worker_command
from gapless_lab.sensor_pipeline.worker import SensorTask

log = logger_of("pipeline")

MAX_LEAD: Final = 1000
"""Maximum number of readings one producer may be ahead of another."""
PACE_INTERVAL_S: Final = 0.02
"""How long between two checks of how far the producers are."""
EXIT_TIMEOUT_S: Final = 30.0
"""How long a member may take to leave."""


class MemberProcess(LabProcess):
    """A member process, with the progress of the member."""

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
        """How many readings were acknowledged in the run."""
        first = self.first_acknowledged
        return 0 if first is None else self.acknowledged - first

    def on_event(self, name: str, fields: Message) -> None:
        """Record the progress; log warnings."""
        if name == "warning":
            log.warning("%s: %s", self.name, fields["text"])
            return
        self.sent = fields["sent"]
        self.acknowledged = max(self.acknowledged, fields["acknowledged"])
        if self.first_acknowledged is None:
            self.first_acknowledged = self.acknowledged


def send_limit(acknowledged: Iterable[int], messages: int | None) -> int | None:
    """Return the last reading that producers may send; None if all producers are done."""
    behind = [count for count in acknowledged if messages is None or count < messages]
    return min(behind) + MAX_LEAD if behind else None


class SensorTestbed(Testbed[MemberProcess]):
    """The members of a pipeline; all have the same ``task``, with different numbers."""

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
        """How many readings are acknowledged, over all runs with the same ledgers."""
        return sum(process.acknowledged for process in self.producers)

    @property
    def newly_acknowledged(self) -> int:
        """How many readings were acknowledged in the run."""
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
        """How many readings were sent by all incarnations of the run."""
        return sum(process.sent for process in (*self.producers, *self.former))

    @property
    def is_done(self) -> bool:
        """Whether all readings of all producers are acknowledged."""
        return self.left == 0

    def start_member(self, number: int, messages: int | None = None) -> MemberProcess:
        """Start the next incarnation of a producer, or of the collector (0)."""
        task = replace(self._task, number=number, messages=messages or self._task.messages)
        before = self.processes.get(task.member_name)
        make_inner_folder(self.folder)

        def make(incarnation: int) -> MemberProcess:
            return MemberProcess(replace(task, incarnation=incarnation), self.folder, before)

        return self.start(task.member_name, make)

    def start_load(self) -> None:
        """Start the load of the producers."""
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
        """Make the producers leave, then the collector; kill members after EXIT_TIMEOUT_S."""
        collector = [each for each in self.processes.values() if not each.task.number]
        for leaving in (self.producers, collector):
            for process in leaving:
                process.notify("end")
            for process in leaving:
                try:
                    process.wait_exit(EXIT_TIMEOUT_S)
                except LabError as error:
                    log.warning("%s; killed", error)
                    process.kill()
        self.check()

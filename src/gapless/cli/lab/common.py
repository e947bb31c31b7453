"""Shared parts of bench, soak, chaos, demo and pipeline: options, progress, the verdict.

Progress goes to standard error, the result to standard output. The exit code is 0 if the result is
sound, else 1.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gapless.cli.parameters import SHARE
from gapless.cli.rendering import console, make_table, print_json, read_config, short_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rich.console import RenderableType

    from gapless_lab.sensor_pipeline.runner import PipelineProgress

MAX_SHOWN = 20
"""Maximum number of findings that soak prints, and chaos of each seed."""
LINE_INTERVAL_S = 1.0
"""How long between two lines of progress without a terminal."""
BAR = 60
"""Width of the bar."""
RIGHT = ("rows", "rows/s")
"""Columns that are aligned to the right."""

option = partial(click.option, show_default=True)
"""An option whose default is part of its help."""
flag_option = partial(click.option, is_flag=True)
number_option = partial(option, metavar="N", type=int)
loss_option = partial(option, "--loss", type=SHARE, help="Share of datagrams to drop.")
folder_option = partial(option, metavar="DIR", type=click.Path(path_type=Path))


def pop_changed_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the three config options from ``options``; return the changed settings."""
    from gapless.config import Config

    usual = Config().as_dict()
    chosen = read_config(*(options.pop(name) for name in ("profile", "config_file", "properties")))
    return {
        key: value
        for key, value in chosen.as_dict().items()
        if value != usual[key] or key in chosen.given
    }


class RunDisplay:
    """The progress of a run: a check-list of phases, and how many messages reached each stage.

    A terminal shows a table, redrawn in place. A log gets a line a second, and for each new phase.
    """

    def __init__(self, title: str, labels: Mapping[str, str] | None = None) -> None:
        self.title = title
        self.labels = labels or {}
        self.per_s: dict[str, float] = {}
        """Messages a second of each stage, from two samples at least a second apart."""
        self._before: PipelineProgress | None = None

    @contextmanager
    def shown(self, *, quiet: bool) -> Iterator[Callable[[PipelineProgress], None]]:
        """Show the progress on standard error; yield a function to update the progress."""
        if quiet:
            yield lambda _: None
            return
        # A copy of the descriptor: while Spark starts, the other one leads to its log.
        with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
            screen = console(file=file)
            if screen.is_terminal:
                with Live(console=screen, auto_refresh=False, transient=True) as live:
                    yield lambda progress: live.update(self.view(progress), refresh=True)
                return

            def write(progress: PipelineProgress) -> None:
                if text := self.line(progress):
                    screen.print(text, soft_wrap=True, markup=False, highlight=False)

            yield write

    def sample(self, progress: PipelineProgress) -> bool:
        """Take a sample; return whether a second has passed or a new phase has begun since."""
        before = self._before
        passed_s = LINE_INTERVAL_S if before is None else progress.seconds - before.seconds
        if before is not None and before.phase == progress.phase and passed_s < LINE_INTERVAL_S:
            return False
        self._before = progress
        if before is not None and passed_s > 0:
            rows, former = counts(progress), counts(before)
            self.per_s = {name: (rows[name] - former[name]) / passed_s for name in rows}
        return True

    def view(self, progress: PipelineProgress) -> Group:
        """Return the progress as a table under a check-list."""
        self.sample(progress)
        head = Text.assemble(
            (self.title, "bold"), "  ", (progress.phase, "cyan"), f"  {progress.seconds:.0f} s"
        )
        parts: list[RenderableType] = [head]
        if progress.steps:
            parts.append(self._check_list(progress))
        if progress.expected:
            bar = Table.grid()
            bar.add_row(ProgressBar(total=progress.expected, completed=progress.arrived, width=BAR))
            parts.append(bar)
        return Group(*parts, self._stages(progress))

    def _check_list(self, progress: PipelineProgress) -> Table:
        steps = Table.grid(padding=(0, 1))
        for name, took_s in progress.steps.items():
            now, is_over = name == progress.phase, took_s is not None
            mark = Text("▸", "cyan") if now else Text("✓", "green") if is_over else Text("·", "dim")
            label = Text(self.labels.get(name, name), "" if is_over else "dim")
            time_text = "" if took_s is None else f"{took_s:.1f} s"
            steps.add_row(mark, label, time_text, progress.note if now else "", style="dim")
        return steps

    def _stages(self, progress: PipelineProgress) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("stage", *RIGHT, ""):
            table.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
        behind = f", {progress.lag:,} behind" if progress.lag else ", all read"
        spool = f"spool {short_size(progress.spool_bytes)}"
        more = {
            "sent": f"of {progress.expected:,}" if progress.expected else "",
            "acknowledged": spool + behind if progress.rows else spool,
            **{name: f"{count:,} batches" for name, count in progress.batches.items()},
        }
        for name, count in counts(progress).items():
            style = {"bronze": "orange3", "silver": "bright_white", "gold": "gold1"}.get(name, "")
            speed = f"{self.per_s.get(name, 0):,.0f}"
            table.add_row(Text(name, style), f"{count:,}", speed, Text(more.get(name, ""), "dim"))
        return table

    def line(self, progress: PipelineProgress) -> str:
        """Return the progress in a line; empty if no line is due."""
        if not self.sample(progress) or not progress.phase:
            return ""
        expected = f" of {progress.expected:,}" if progress.expected else ""
        parts = [f"sent {progress.sent:,}{expected}", f"acknowledged {progress.acknowledged:,}"]
        parts.append(f"spool {short_size(progress.spool_bytes)} with {progress.lag:,} unread")
        parts += [
            f"{name} {rows:,} (+{self.per_s.get(name, 0):,.0f}/s)"
            for name, rows in progress.rows.items()
        ]
        label = self.labels.get(progress.phase, progress.phase)
        return f"{progress.seconds:5.0f} s  {label}: {progress.note or ', '.join(parts)}"


def counts(progress: PipelineProgress) -> dict[str, int]:
    """Return how many messages have reached each stage."""
    return {"sent": progress.sent, "acknowledged": progress.acknowledged, **progress.rows}


def print_result(
    found: Mapping[str, Any], show: Callable[[], None], *, as_json: bool, is_sound: bool
) -> int:
    """Print a result as JSON, or with ``show``; return the exit code."""
    if as_json:
        print_json(found)
    else:
        show()
    return 0 if is_sound else 1


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table."""
    console().print(make_table(title, columns, rows))


def print_verdict(findings: Iterable[object], good: str, bad: str, *, is_sound: bool) -> None:
    """Print the findings, and a verdict in a sentence."""
    print_findings(findings)
    console().print(good if is_sound else bad, style=f"bold {'green' if is_sound else 'red'}")


def print_findings(findings: Iterable[object], indent: str = "") -> None:
    """Print the findings, a line each."""
    for finding in findings:
        console().print(f"{indent}{finding}", style="red", markup=False)

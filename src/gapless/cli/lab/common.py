"""What bench, soak, chaos, demo and pipeline share: options, progress, the verdict at the end.

Progress goes to standard error, the result to standard output. The exit code is 0 if the result is
sound, else 1.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.live import Live

from gapless.cli.rendering import console, docs_page, print_json, read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rich.console import RenderableType

MAX_SHOWN = 20
"""Maximum number of findings that soak prints, and chaos of each seed."""
LINE_INTERVAL_S = 1.0
"""How long between two lines of progress without a terminal."""
ProgressT = TypeVar("ProgressT")

option = partial(click.option, show_default=True)
"""An option whose default is part of its help."""
number_option = partial(option, metavar="N", type=int)
folder_option = partial(option, metavar="DIR", type=click.Path(path_type=Path))
master_option = click.option(
    "--master", metavar="URL", help=f"Where Spark runs; local[*] by default: {docs_page('spark')}"
)


def pop_changed_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Take the three config options out of ``options``; return the settings that they change."""
    from gapless.config import Config

    usual = Config().as_dict()
    chosen = read_config(*(options.pop(name) for name in ("profile", "config_file", "properties")))
    return {key: value for key, value in chosen.as_dict().items() if value != usual[key]}


class LineThrottle:
    """Lets one line a second through, and the first of each phase."""

    def __init__(self) -> None:
        self._last = ("", 0.0)

    def is_due(self, phase: str, now_s: float) -> bool:
        """Return whether a line is due now."""
        last_phase, last_s = self._last
        if phase == last_phase and now_s - last_s < LINE_INTERVAL_S:
            return False
        self._last = (phase, now_s)
        return True


@contextmanager
def live_display(
    draw: Callable[[ProgressT], RenderableType],
    line: Callable[[ProgressT], str],
    *,
    quiet: bool,
    **live_options: Any,
) -> Iterator[Callable[[ProgressT], None]]:
    """Show progress: redrawn in place on a terminal, else as lines; an empty line is skipped.

    Yield a function that takes the progress.
    """
    if quiet:
        yield lambda _: None
        return
    # A copy of the descriptor: while Spark starts, the other one leads to its log.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as file:
        screen = Console(file=file)
        if screen.is_terminal:
            with Live(console=screen, **live_options) as live:
                yield lambda progress: live.update(draw(progress), refresh=True)
            return

        def write(progress: ProgressT) -> None:
            if text := line(progress):
                screen.print(text, soft_wrap=True, markup=False, highlight=False)

        yield write


def print_result(
    found: Mapping[str, Any], show: Callable[[], None], *, as_json: bool, is_sound: bool
) -> int:
    """Print a result as JSON, or with ``show``; return the exit code."""
    if as_json:
        print_json(found)
    else:
        show()
    return 0 if is_sound else 1


def print_verdict(findings: Iterable[object], good: str, bad: str, *, is_sound: bool) -> None:
    """Print the findings, and a verdict in one sentence."""
    print_findings(findings)
    console().print(good if is_sound else bad, style=f"bold {'green' if is_sound else 'red'}")


def print_findings(findings: Iterable[object], indent: str = "") -> None:
    """Print the findings, a line each."""
    for finding in findings:
        console().print(f"{indent}{finding}", style="red", markup=False)

"""What the commands share: options, tables, progress, JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from gapless.config import GROUP_PROFILE_NAMES, UNICAST_PROFILE_NAMES, Config
from gapless.errors import ConfigError
from gapless.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DOCS_URL = "https://gapless.readthedocs.io/en/latest"
"""Where the docs are; the same as Documentation in the package's metadata."""


def docs_page(name: str) -> str:
    """Return the address of one page of the docs."""
    return f"{DOCS_URL}/{name}.html"


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."
)
"""``--json``, the same for every command."""

PROFILE_NAMES = (*GROUP_PROFILE_NAMES, *UNICAST_PROFILE_NAMES)
"""Every profile by name: those of messages to all, and those of messages to one member."""

profile_option = click.option(
    "--profile", default=None, metavar="NAME", help=f"Protocol: {', '.join(PROFILE_NAMES)}."
)
config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="TOML file with a [gapless] table of settings.",
)
properties_option = click.option(
    "--properties",
    metavar="NAME=VALUE;…",
    help='Settings as one line, such as "capacity=4;xmit_interval=100".',
)
mutant_option = click.option(
    "--mutant", metavar="NAME", default="", help="Plant this bug first (see: gapless mutants)."
)
"""``--mutant``, for commands that can plant a bug; :func:`resolve_mutant` reads it."""


def resolve_mutant(name: str) -> str:
    """Return the full name of a planted bug; "" for none.

    Raises:
        ConfigError: no planted bug has this name.
    """
    if not name:
        return ""
    from gapless.sim.mutants.catalogue import mutant_by_name

    return mutant_by_name(name).name


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the three ways to set settings."""
    return profile_option(config_option(properties_option(command)))


def read_config(profile: str | None, config_file: Path | None, properties: str | None) -> Config:
    """Return the config that the options describe."""
    if config_file is not None and properties is not None:
        raise ConfigError("--config and --properties both change settings; give one of them")
    if profile is not None and profile not in PROFILE_NAMES:
        near = get_close_matches(profile, PROFILE_NAMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"profile = {profile!r}: expected one of {', '.join(PROFILE_NAMES)}{hint}"
        )
    chosen = (
        {}
        if profile is None
        else {"unicast" if profile in UNICAST_PROFILE_NAMES else "profile": profile}
    )
    if config_file is not None:
        return Config.load(config_file).replace(**chosen)
    if properties is not None:
        return Config.from_properties(properties).replace(**chosen)
    return Config.make(**chosen)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    click.echo(json.dumps(value, default=str))


def console() -> Console:
    """Return the console that tables go to."""
    return Console()


def make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table; numbers are aligned to the right."""
    table = Table(title=title, title_justify="left", header_style="bold")
    body = [tuple(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[at], (int, float)) for row in body)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(_shown(cell) for cell in row))
    return table


def short_size(size_bytes: int) -> str:
    """Return a size rounded to three digits."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes} B"


def _shown(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@contextmanager
def progress_bar(label: str, total: int | None, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Yield a function that takes how much is done, and optionally another label.
    """
    if quiet or not Console(stderr=True).is_terminal:
        yield lambda _done, _label=None: None
        return
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done, label=None: progress.update(task, completed=done, description=label)

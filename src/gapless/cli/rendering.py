"""The common part of all commands: options, tables, progress, JSON."""

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
from rich.text import Text

from gapless.config import GROUP_PROFILE_NAMES, UNICAST_PROFILE_NAMES, Config
from gapless.errors import ConfigError
from gapless.output.printable import printable
from gapless.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

DOCS_URL = "https://gapless.readthedocs.io/en/latest"
"""The address of the docs, the same as Documentation in the package's metadata."""


def docs_page(name: str) -> str:
    """Return the address of one page of the docs."""
    return f"{DOCS_URL}/{name}.html"


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."
)
"""``--json``, the same for every command."""

PROFILE_NAMES = (*GROUP_PROFILE_NAMES, *UNICAST_PROFILE_NAMES)
"""The names of all profiles: for messages to the group, then for messages to one member."""

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
"""``--mutant``, for commands that can plant a bug; ``resolve_mutant`` reads the option."""


SPARK_EXTRA = frozenset({"msgpack", "numpy", "pandas", "pyarrow", "pyspark", "pyspark_gapless"})
"""The packages that only the extra ``spark`` installs."""

master_option = click.option(
    "--master",
    metavar="URL",
    help=f"Where Spark runs; local[*] by default: {docs_page('guides/spark')}",
)
"""``--master``, for commands that start Spark."""


@contextmanager
def spark_extra_needed(why: str) -> Iterator[None]:
    """Raise ConfigError with the package to install if an import of the extra ``spark`` fails.

    Other import errors are bugs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SPARK_EXTRA:
            raise
        raise ConfigError(f"{error}: {why}; pip install 'gapless[spark]'") from None


def resolve_mutant(name: str) -> str:
    """Return the full name of a planted bug; "" for none.

    Raises:
        ConfigError: No planted bug has this name.
    """
    if not name:
        return ""
    from gapless.sim.mutants.catalogue import mutant_by_name

    return mutant_by_name(name).name


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the three ways to change settings."""
    return profile_option(config_option(properties_option(command)))


def read_config(profile: str | None, config_file: Path | None, properties: str | None) -> Config:
    """Return the config described by the options."""
    if config_file is not None and properties is not None:
        raise ConfigError("--config and --properties exclude each other; give one of them")
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


class PrintableConsole(Console):
    """A console that shows control characters of a text as escapes, and ``[bold]`` as written.

    Only the styles of Rich reach the terminal as control sequences. A command that wants a style
    inside a text passes a ``Text``.
    """

    def render_str(self, text: str, **style: Any) -> Text:
        """Turn a string into a ``Text``; Rich alone would drop or expand some controls."""
        return super().render_str(printable(text, keep_newlines=True), **style)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; every text of the object is printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=printable(segment.text, keep_newlines=True))


def console(*, file: IO[str] | None = None, stderr: bool = False, **more: Any) -> PrintableConsole:
    """Return a console for tables and progress bars."""
    return PrintableConsole(file=file, stderr=stderr, markup=False, emoji=False, **more)


def echo(text: str) -> None:
    """Print a text for people; only newlines remain as control characters."""
    click.echo(printable(text, keep_newlines=True))


def make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table; numbers are aligned to the right. A ``Text`` keeps its styles."""
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


def _shown(cell: object) -> str | Text:
    if isinstance(cell, Text):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


@contextmanager
def progress_bar(label: str, total: int | None, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, if standard error is a terminal.

    Yield a function that takes the completed amount, and optionally another label.
    """
    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _done, _label=None: None
        return
    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done, label=None: progress.update(task, completed=done, description=label)

"""``gapless report``: a run or a sweep as one page."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from gapless.cli.rendering import (
    console,
    docs_page,
    json_option,
    make_table,
    print_json,
    spark_extra_needed,
)
from gapless.errors import ConfigError, GaplessError
from gapless.report import formatting, render, validate_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIGURES = "figures.json"
"""The name of a file with figures."""
PAGE = "report.html"
"""The name of the page in the folder of a run."""
MAX_BYTES = 200_000_000
"""Maximum size of a file with figures, whose lists are bounded."""


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page (default: beside PATH).",
)
@click.option("--title", default=None, metavar="TEXT", help="The title of the page.")
@click.option(
    "--master",
    metavar="URL",
    help=f"Where Spark runs, for a trace; local[*] by default: {docs_page('guides/spark')}",
)
@json_option
def report(
    path: Path, output: Path | None, title: str | None, master: str | None, as_json: bool
) -> int:
    """Make one page of a run or a sweep: the verdict first, then pictures, each with a table.

    PATH is the folder of a trace, which is checked and measured on Spark first; the --output of
    gapless sweep; a folder with a figures.json, such as the folder of gapless demo; or a
    figures.json. The page is one file and needs no network. With --json the figures are printed and
    no page is made; a file with this output is a PATH, too. The exit code is 1 if the page reports
    violations.
    """
    with _shown(quiet=as_json) as tell:
        figures = load_figures(path, master=master, progress=tell)
    if title is not None:
        figures["title"] = title
    elif not figures.get("title"):
        figures["title"] = path.resolve().name
    whole = _validated(path, figures)
    if as_json:
        print_json(figures)
    else:
        page = output or _beside(path)
        page.write_text(render(whole), encoding="utf-8")
        _show(page, whole)
    return 1 if _violations(whole) else 0


def _beside(path: Path) -> Path:
    return path / PAGE if path.is_dir() else path.with_suffix(".html")


def _validated(path: Path, figures: dict[str, Any]) -> dict[str, Any]:
    try:
        return validate_figures(figures)
    except GaplessError as error:
        raise ConfigError(f"{path}: {error}") from None


def _violations(figures: dict[str, Any]) -> int:
    if figures["kind"] == "sweep":
        return int(figures["violations"] or figures["failed"])
    verdict = figures["verdict"]
    return int(verdict["violations"]) or int(figures["judged"] and not verdict["ok"])


# What is given


def load_figures(
    path: Path, *, master: str | None = None, progress: Callable[[str, float], None] | None = None
) -> dict[str, Any]:
    """Return the figures of ``path``: a file, a trace, a sweep, or a folder with figures."""
    if path.is_file():
        return _read(path)
    if not path.is_dir():
        raise ConfigError(
            f"{path}: no such file or folder; expected a trace, a sweep, or a {FIGURES}"
        )
    if (path / FIGURES).is_file():
        return _read(path / FIGURES)
    if (
        next((path / "runs").glob("[!.]*.parquet"), None) is not None
        and not (path / "lives.jsonl").exists()
    ):
        return _sweep(path)
    if next(path.rglob("lives.jsonl"), None) is not None:
        return _trace(path, master, progress)
    raise ConfigError(
        f"{path}: no trace, sweep or figures found; expected the folder of a trace (with "
        f"lives.jsonl), the --output of "
        f"gapless sweep (with runs/*.parquet), or a folder with {FIGURES}"
    )


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(
            f"{path}: larger than {formatting.size(MAX_BYTES)}, the maximum of figures;"
            f" expected a {FIGURES}"
        )
    try:
        headline_figures = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: expected figures as JSON, as gapless report --json prints them: {error}"
        ) from None
    return dict(_looks_like_figures(path, headline_figures))


def _looks_like_figures(path: Path, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object with the figures of a run or a sweep")
    if "kind" not in found and {"cells", "hunts", "failures"} <= found.keys():
        # What gapless sweep --json prints is the same, without a kind.
        return {"kind": "sweep", **found}
    return found


def _sweep(path: Path) -> dict[str, Any]:
    with spark_extra_needed("the results of a sweep are read with pyarrow"):
        from pyspark_gapless.sweep.report_input import figures
    return figures(path)


def _trace(
    path: Path, master: str | None, tell: Callable[[str, float], None] | None
) -> dict[str, Any]:
    with spark_extra_needed("a trace is checked on Spark"):
        from pyspark_gapless.trace_report import trace_figures
    return trace_figures(path, master=master, tell=tell)


# What is shown


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show the current step on standard error, if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _share: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


def _show(page: Path, figures: dict[str, Any]) -> None:
    """Print the verdict of the page, and the path on a line of its own."""
    from gapless.report.page import judgement

    screen, verdict = console(), judgement(figures)
    rows = [
        ("verdict", verdict.headline),
        ("found", found(figures)),
        ("size", formatting.size(page.stat().st_size)),
    ]
    screen.print(make_table(figures["title"], ("what", "value"), rows))
    screen.print(f"page: {page}", soft_wrap=True, markup=False, highlight=False)


def found(figures: dict[str, Any]) -> str:
    """Return the headline numbers: failed runs, or messages sent, delivered and lost."""
    if figures["kind"] == "sweep":
        failed = formatting.count(figures["failed"])
        return f"{failed} of {formatting.count(figures['runs'])} runs failed"
    words = {
        "sent": "sent",
        "delivered": "delivered",
        "lost": "lost",
        "duplicates": "duplicated",
        "repaired": "repaired",
    }
    summary = figures["summary"]
    return ", ".join(
        f"{formatting.count(summary[part])} {word}"
        for part, word in words.items()
        if summary[part] is not None
    )


__all__ = ["load_figures", "report"]

"""Regenerate the generated parts of the docs and check every relative link.

A page marks a generated part with ``<!-- generated: name -->`` and ``<!-- end generated -->``; the
text between them comes from the code. ``--check`` writes nothing and fails if a part is stale. Each
relative link in the pages must lead to an existing file and, if it names an anchor, to a heading of
that file.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click

from gapless import errors
from gapless.cli.app import GROUPS, cli
from gapless.cli.rendering import DOCS_URL
from gapless.config import Config
from gapless.events import EVENTS as GROUP_EVENTS, LOGGED_EVENTS
from gapless.invariants import INVARIANTS
from gapless.protocol.ready import TraceEntry
from gapless.spool import errors as spool_errors
from gapless.trace.journal import FIELDS as JOURNAL_FIELDS
from gapless.trace.schema import COLUMNS, EVENTS
from pyspark_gapless.sweep.schema import column_table as sweep_table
from pyspark_gapless.trace.schema import COLUMNS as SPARK_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.shape import shape_table  # noqa: E402  # the folder of this script alone is on the path

MEASURED = frozenset({"shape"})
"""Generated parts that change with every line of code: written by this tool, never called stale."""

_BLOCK = re.compile(
    r"(<!-- generated: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end generated -->)", re.DOTALL
)
_OPENING = re.compile(r"<!-- generated: ([\w-]+) -->")
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n.*?^ {0,3}\1[ \t]*$", re.DOTALL | re.MULTILINE)
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
INLINE_LINK = re.compile(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+[\"'][^)]*)?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]\n]+\]:\s*<?([^\s<>]+)>?", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_DOCUMENTED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)  # mkdocstrings gives it this anchor
_HTML_ANCHOR = re.compile(r"<[a-z]+[^>]*\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def setting_table() -> str:
    """Return the table of every setting, from the declarations in :mod:`gapless.config`."""
    lines = ["| setting | kind | default | allowed | meaning |", "|---|---|---|---|---|"]
    for row in Config().explain():
        default = str(row.default).lower() if isinstance(row.default, bool) else row.default
        lines.append(f"| `{row.key}` | {row.kind} | `{default}` | {row.allowed} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def example_table() -> str:
    """Return the table of the examples, each with the first sentence of its docstring."""
    lines = ["| program | what it shows |", "|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"| [`{path.name}`](../../examples/{path.name}) | {_first_paragraph(said)} |")
    return "\n".join(lines) + "\n"


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].replace("``", "`").split())


def column_table() -> str:
    """Return the table of the columns of a trace, from :mod:`gapless.trace.schema`."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += (
        f"| `{name}` | {column.type} | {column.meaning} |" for name, column in COLUMNS.items()
    )
    return "\n".join(lines) + "\n"


def field_table() -> str:
    """Return the way of every field of a trace, from the machine to Spark."""
    lines = [
        "| field | from the machine | in the journal | on disk | in Spark |",
        "|---|---|---|---|---|",
    ]
    for name, column in COLUMNS.items():
        machine = "yes" if name in TraceEntry._fields else ""
        journal = "yes" if name in JOURNAL_FIELDS else ""
        lines.append(
            f"| `{name}` | {machine} | {journal} | {column.type} | {SPARK_COLUMNS[name]} |"
        )
    return "\n".join(lines) + "\n"


def event_table() -> str:
    """Return the table of the events of a trace, from :mod:`gapless.trace.schema`."""
    lines = ["| event | code | meaning |", "|---|---|---|"]
    lines += (f"| {name} | {event.code} | {event.meaning} |" for name, event in EVENTS.items())
    return "\n".join(lines) + "\n"


def group_event_sections() -> str:
    """Return a section for every event of a group, from :mod:`gapless.events`."""
    sections = []
    for kind, event in GROUP_EVENTS.items():
        signature = ", ".join(one.name for one in fields(event) if one.name != "names")
        logged = " Logged if nobody reads it." if event in LOGGED_EVENTS else ""
        text = (inspect.getdoc(event) or "").replace("``", "`").replace("What to do:", "**Do:**")
        head = f"### {event.__name__}\n\n`{event.__name__}({signature})`, kind `{kind}`.{logged}"
        sections.append(f"{head}\n\n{text}\n")
    return "\n".join(sections)


def command_sections() -> str:
    """Return a section for every command: its help, its usage and a table of its options."""
    sections = []
    for heading, commands in GROUPS.items():
        sections.append(f"### {heading}\n")
        for command in commands:
            context = click.Context(
                command, info_name=command.name, parent=click.Context(cli, info_name="gapless")
            )
            sections.append(_command_section(command, context))
    return "\n".join(sections)


def _command_section(command: click.Command, context: click.Context) -> str:
    lines = [
        f"#### {context.command_path}\n",
        inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n",
    ]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [
        f"```text\n{context.command_path} {usage}\n```\n",
        "| option | meaning |",
        "|---|---|",
    ]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[1] and parameter.name != "help":
            lines.append(f"| `{_escaped(record[0])}` | {_meaning(record[1])} |")
    section = "\n".join(lines) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            section += "\n" + _command_section(
                inner, click.Context(inner, info_name=name, parent=context)
            )
    return section


def _meaning(text: str) -> str:
    linked = re.sub(rf"{DOCS_URL}/reference/([\w/-]+)\.html", r"[\1](\1.md)", text)
    linked = re.sub(rf"{DOCS_URL}/([\w/-]+)\.html", r"[\1](../\1.md)", linked)
    linked = re.sub(r"\[([^][]*)\]$", r"(`\1`)", " ".join(linked.split()))  # the default, the range
    return _escaped(linked)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def error_table(module: ModuleType) -> str:
    """Return the table of the exceptions of a module: bases, and the text of the docstring."""
    lines = ["| error | also a | meaning |", "|---|---|---|"]
    for name, error in vars(module).items():
        if not inspect.isclass(error) or error.__module__ != module.__name__:
            continue
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        text = " ".join((inspect.getdoc(error) or "").replace("``", "`").split())
        lines.append(f"| `{name}` | {bases} | {text} |")
    return "\n".join(lines) + "\n"


def invariant_table(kind: str) -> str:
    """Return the table of the invariants whose id begins with ``kind``."""
    lines = ["| id | name | what holds | checked by |", "|---|---|---|---|"]
    lines += (
        f"| {one.id} | {one.name} | {one.rule} | {', '.join(one.checked_by)} |"
        for one in INVARIANTS.values()
        if one.id.startswith(kind)
    )
    return "\n".join(lines) + "\n"


def not_in_trace_table() -> str:
    """Return the table of the invariants that no trace can show, and why."""
    lines = ["| id | why |", "|---|---|"]
    lines += (
        f"| {one.id} | {one.not_in_trace} |" for one in INVARIANTS.values() if one.not_in_trace
    )
    return "\n".join(lines) + "\n"


GENERATORS: dict[str, Callable[[], str]] = {
    "commands": command_sections,
    "errors": partial(error_table, errors),
    "examples": example_table,
    "group-events": group_event_sections,
    "liveness-invariants": partial(invariant_table, "L"),
    "not-in-trace": not_in_trace_table,
    "safety-invariants": partial(invariant_table, "S"),
    "settings": setting_table,
    "spool-errors": partial(error_table, spool_errors),
    "trace-columns": column_table,
    "trace-events": event_table,
    "trace-fields": field_table,
    "shape": shape_table,
    "sweep-columns": sweep_table,
}
"""The generators of the parts, by name."""


def pages(root: Path) -> list[Path]:
    """Return the Markdown pages of the project: those at the top and those under ``docs``."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def regenerate(text: str, generators: dict[str, Callable[[], str]] = GENERATORS) -> str:
    """Return the text of a page with each generated part made again."""
    prose = without_code(text)
    closed = [match["name"] for match in _BLOCK.finditer(prose)]
    for name in _OPENING.findall(prose):
        if name not in generators:
            raise ValueError(
                f"nothing generates {name!r}; known are {', '.join(sorted(generators))}"
            )
        if name not in closed:
            raise ValueError(f"the part {name!r} has no <!-- end generated -->")
    return _BLOCK.sub(
        lambda match: (
            f"{match[1]}{generators[match['name']]()}{match[4]}"
            if match["name"] in closed
            else match[0]
        ),
        text,
    )


def _without_measured(text: str) -> str:
    return _BLOCK.sub(lambda match: match[1] if match["name"] in MEASURED else match[0], text)


def slug(heading: str) -> str:
    """Return the anchor that a heading gets on the usual Markdown hosts."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return every anchor of a page; a repeated heading gets a number."""
    found: set[str] = {*_HTML_ANCHOR.findall(text), *_DOCUMENTED.findall(text)}
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        base = candidate = slug(heading)
        number = 0
        while candidate in found:
            number += 1
            candidate = f"{base}-{number}"
        found.add(candidate)
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and target of each relative link of a page, except links inside code."""
    prose = without_code(text)
    for pattern in (INLINE_LINK, REFERENCE):
        for match in pattern.finditer(prose):
            if not SCHEME.match(match[1]):
                yield prose.count("\n", 0, match.start(1)) + 1, unquote(match[1])


def broken_links(root: Path) -> list[str]:
    """Return one line for each relative link without a target."""
    problems = []
    for page in pages(root):
        for line, target in sorted(links(page.read_text(encoding="utf-8"))):
            name, _, anchor = target.partition("#")
            goal = (page.parent / name).resolve() if name else page
            where = f"{page.relative_to(root)}:{line}: {target}"
            if not goal.is_relative_to(root.resolve()) and name:
                problems.append(f"{where} leads out of the project")
            elif not goal.exists():
                problems.append(f"{where} leads to no file")
            elif (
                anchor
                and goal.suffix == ".md"
                and anchor not in anchors(goal.read_text(encoding="utf-8"))
            ):
                problems.append(f"{where} names no heading of {goal.name}")
    return problems


def refresh(root: Path, *, write: bool) -> list[str]:
    """Regenerate generated parts, or, without ``write``, report stale ones; return the problems."""
    problems = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            fresh = regenerate(text)
        except ValueError as error:
            problems.append(f"{page.relative_to(root)}: {error}")
            continue
        if (fresh == text) if write else (_without_measured(fresh) == _without_measured(text)):
            continue
        if write:
            page.write_text(fresh, encoding="utf-8")
            print(f"regenerated {page.relative_to(root)}")
        else:
            problems.append(f"{page.relative_to(root)}: a generated part is stale; run make docs")
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a generated part is stale"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = parser.parse_args(argv)
    problems = refresh(options.root, write=not options.check) + broken_links(options.root)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"docs: {len(pages(options.root))} pages in order")
    return 1 if problems else 0


def without_code(text: str) -> str:
    """Blank out code, keeping the line breaks so that line numbers stay true."""
    for pattern in (_FENCE, _CODE_SPAN):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


if __name__ == "__main__":
    sys.exit(main())

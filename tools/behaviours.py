"""List every behaviour of the ledger and its tests: ``python tools/behaviours.py``.

The ledger is docs/internals/behaviours.md: each table row with an id (N4-24) in the first cell is a
behaviour. A test names its behaviours by a mark, ``@pytest.mark.behaviour("N4-24")``, on the
function, on the class or for the whole module (``pytestmark``). The tool reads both as text, and
imports or runs no test.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gapless.cli.rendering import console, json_option, make_table, print_json
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = Path("docs/internals/behaviours.md")
"""The ledger, in a checkout."""
TESTS = Path("tests")
"""The tests, in a checkout."""

_ROW = re.compile(r"^\|\s*([A-Z][A-Z0-9]?-\d{2})\s*\|\s*(.*?)\s*\|")
_SHOWN_TESTS = 2


class LedgerError(GaplessError):
    """The ledger is missing, or the ledger or a mark cannot be read."""


class BehaviourLedger(NamedTuple):
    """The behaviours by id, and the tests of each; a test may name an id without a row."""

    behaviours: dict[str, str]
    tests: dict[str, list[str]]

    @property
    def untested(self) -> list[str]:
        """The ids without a test."""
        return [name for name in self.behaviours if name not in self.tests]

    @property
    def unknown(self) -> list[str]:
        """The ids in marks of tests that are missing from the ledger."""
        return sorted(name for name in self.tests if name not in self.behaviours)

    def as_dict(self) -> dict[str, Any]:
        """Return the ``--json`` output."""
        return {
            "ids": len(self.behaviours),
            "tested": len(self.behaviours) - len(self.untested),
            "untested": self.untested,
            "unknown": self.unknown,
            "tests": self.tests,
        }


@click.command()
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=None,
    help="The checkout (default: from here upwards).",
)
@json_option
def behaviours(root: Path | None, as_json: bool) -> int:
    """List every documented behaviour and the tests that show it.

    Reads docs/internals/behaviours.md and the marks in tests/ of a checkout. Exits with 1 if a
    behaviour has no test, or if a test names one that is not in the list.
    """
    ledger = read_ledger(find_root(Path.cwd()) if root is None else root)
    if as_json:
        print_json(ledger.as_dict())
    else:
        _show(ledger)
    return 1 if ledger.untested or ledger.unknown else 0


def run(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    try:
        result = behaviours.main(
            args=list(arguments), prog_name="behaviours", standalone_mode=False
        )
    except (click.ClickException, GaplessError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        sys.stderr.write(f"behaviours: {' '.join(text.split())}\n")
        return 2
    return result if isinstance(result, int) else 0


def _show(ledger: BehaviourLedger) -> None:
    rows = [
        (name, text, _shortened(ledger.tests.get(name, [])))
        for name, text in ledger.behaviours.items()
    ]
    shown = len(rows) - len(ledger.untested)
    screen = console()
    screen.print(make_table("Behaviours", ("id", "behaviour", "tests"), rows))
    screen.print(f"{len(rows)} behaviours, {shown} of them shown by a test")
    for name in ledger.untested:
        screen.print(f"no test shows {name}", highlight=False)
    for name in ledger.unknown:
        screen.print(
            f"{name} is not in {PAGE}: see {', '.join(ledger.tests[name])}", highlight=False
        )


def _shortened(tests: list[str]) -> str:
    names = [test.rpartition("::")[2] for test in tests]
    more = len(names) - _SHOWN_TESTS
    return "\n".join(names[:_SHOWN_TESTS] + ([f"and {more} more"] if more > 0 else [])) or "none"


def find_root(start: Path) -> Path:
    """Return the checkout with ``start``."""
    for folder in (start, *start.parents):
        if (folder / PAGE).is_file():
            return folder
    raise LedgerError(
        f"there is no {PAGE} in {start} or above it: go to a checkout, or name one with --root"
    )


def read_ledger(root: Path) -> BehaviourLedger:
    """Return the ledger of the checkout ``root``, with the marked tests of the checkout."""
    for part in (PAGE, TESTS):
        if not (root / part).exists():
            raise LedgerError(
                f"{root} is no checkout of Gapless: there is no {part} in it; name one with --root"
            )
    behaviours = _rows(_text(root / PAGE))
    if not behaviours:
        raise LedgerError(
            f"{root / PAGE} has no row that begins with an id, such as | N4-24 | ... |"
        )
    tests: dict[str, list[str]] = {}
    for path in sorted((root / TESTS).rglob("test_*.py")):
        for test, name in marks(_text(path), str(path)):
            tests.setdefault(name, []).append(f"{path.relative_to(root).as_posix()}::{test}")
    in_order = [name for name in behaviours if name in tests] + sorted(
        tests.keys() - behaviours.keys()
    )
    return BehaviourLedger(behaviours, {name: tests[name] for name in in_order})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"cannot read {path}: {error}") from error


def _rows(page: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in page.splitlines():
        if (row := _ROW.match(line)) is None:
            continue
        if row[1] in found:
            raise LedgerError(f"{PAGE} has two rows for {row[1]}: keep one")
        found[row[1]] = row[2].replace("`", "")
    return found


def marks(source: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield every test of a module with each id of its marks, in the order of the text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise LedgerError(f"{path} is not Python: {error}") from error
    yield from _marks_in(tree, "", [], path)


def _marks_in(
    parent: ast.Module | ast.ClassDef, prefix: str, inherited: list[str], path: str
) -> Iterator[tuple[str, str]]:
    inherited = inherited + [name for value in _pytestmarks(parent) for name in _ids(value, path)]
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = inherited + [name for value in node.decorator_list for name in _ids(value, path)]
        if isinstance(node, ast.ClassDef):
            if node.name.startswith("Test"):
                yield from _marks_in(node, f"{prefix}{node.name}::", own, path)
        elif node.name.startswith("test"):
            yield from ((prefix + node.name, name) for name in dict.fromkeys(own))


def _pytestmarks(parent: ast.Module | ast.ClassDef) -> Iterator[ast.expr]:
    for node in parent.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is not None and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets
        ):
            yield value


def _ids(value: ast.expr, path: str) -> Iterator[str]:
    """Yield the ids of every behaviour mark in a decorator, a list of marks or parameters."""
    for node in ast.walk(value):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.behaviour")):
            continue
        for argument in node.args:
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise LedgerError(
                    f"{path}:{node.lineno}: a behaviour mark names ids as plain text,"
                    ' such as "N4-24"'
                )
            yield argument.value


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

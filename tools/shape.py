"""Measure the shape of the source tree, and fail if a limit is broken.

Counted: import cycles between modules and between the packages of every folder, breaks of the
layers (``tools/tidy.py``), files in each package, public classes that share a name, lines, asserts
and comments. Imports inside functions and for annotations only close no cycle when a program
starts; a cycle through a late import is counted apart. ``--messages`` also counts the calls and
files of one message (``tools/message_path.py``); the limits are half of the figures of version 0.1.
``--json`` prints everything for a program, ``--write`` writes the tables into docs/internals.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools import tidy  # noqa: E402  # the folder of this script alone is on the path

PACKAGES = ("gapless", "pyspark_gapless", "gapless_lab")
MAX_FILES = 20
"""Maximum number of a package's own files, without ``__init__``."""
MIN_PROTOCOL_ASSERTS = 0.5
"""Minimum number of asserts per function of ``gapless.protocol`` and the packages inside it."""
MESSAGE_LIMITS = {"send": {"calls": 103, "files": 21}, "receive": {"calls": 99, "files": 19}}
"""Maximum calls and files of one message with threads: half of version 0.1 (207, 42; 199, 39)."""
PAGE = ROOT / "docs" / "internals" / "shape.md"
TWINS = frozenset({"gapless.aio", "gapless.blocking"})
"""Modules whose classes may share names: the same API for asyncio and for threads."""

_Graph = dict[str, set[str]]


@dataclass
class PackageShape:
    """Figures of a package, without its inner packages."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    asserts: int = 0
    comments: int = 0


@dataclass
class TreeShape:
    """Figures of the whole tree."""

    modules: int = 0
    module_cycles: list[list[str]] = field(default_factory=list)
    package_cycles: list[list[str]] = field(default_factory=list)
    late_package_cycles: list[list[str]] = field(default_factory=list)
    late_imports: int = 0
    layer_breaks: list[str] = field(default_factory=list)
    duplicate_classes: dict[str, list[str]] = field(default_factory=dict)
    packages: dict[str, PackageShape] = field(default_factory=dict)

    @property
    def protocol_asserts(self) -> float:
        """Asserts per function of the machine, all its packages together."""
        machine = [
            package
            for name, package in self.packages.items()
            if f"{name}.".startswith("gapless.protocol.")
        ]
        functions = sum(package.functions for package in machine)
        return _ratio(sum(package.asserts for package in machine), functions)


MessageCosts = dict[str, dict[str, dict[str, int]]]
"""Calls and files of one message, by API and side."""


@dataclass
class _Module:
    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]


def measure(root: Path = ROOT) -> TreeShape:
    """Return the figures of the sources under ``root``."""
    modules = _read(root / "src")
    shape = TreeShape(modules=len(modules))
    at_start, late = _imports(modules)
    shape.late_imports = sum(len(targets) for targets in late.values())
    shape.module_cycles = _cycles(at_start)
    shape.package_cycles = _package_cycles(modules, at_start)
    both = {name: at_start[name] | late[name] for name in modules}
    known = {tuple(cycle) for cycle in shape.package_cycles}
    shape.late_package_cycles = [
        cycle for cycle in _package_cycles(modules, both) if tuple(cycle) not in known
    ]
    classes: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        dotted = ".".join(module.path.relative_to(root / "src").with_suffix("").parts)
        shape.layer_breaks += [
            f"{module.path.relative_to(root)}:{offence}"
            for offence in tidy.layer_breaks(module.source, dotted)
        ]
        _count(module, shape.packages.setdefault(module.package, PackageShape()))
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(module.name)
    shape.duplicate_classes = {
        name: owners
        for name, owners in sorted(classes.items())
        if len(owners) > 1 and not set(owners) <= TWINS
    }
    shape.packages = dict(sorted(shape.packages.items()))
    return shape


def broken_limits(shape: TreeShape) -> list[str]:
    """Return a line for each broken limit of the tree."""
    problems = [f"import cycle of modules: {' '.join(cycle)}" for cycle in shape.module_cycles]
    problems += [f"import cycle of packages: {' '.join(cycle)}" for cycle in shape.package_cycles]
    problems += [f"layer break: {offence}" for offence in shape.layer_breaks]
    problems += [
        f"{name} has {package.files} files, at most {MAX_FILES} are allowed"
        for name, package in shape.packages.items()
        if package.files > MAX_FILES
    ]
    problems += [
        f"class {name} is defined in {', '.join(owners)}"
        for name, owners in shape.duplicate_classes.items()
    ]
    if shape.protocol_asserts < MIN_PROTOCOL_ASSERTS:
        problems.append(
            f"protocol/ has {shape.protocol_asserts:.2f} asserts per function, at least"
            f" {MIN_PROTOCOL_ASSERTS} are required"
        )
    return problems


def broken_message_limits(costs: MessageCosts) -> list[str]:
    """Return a line for each broken limit of a message with threads."""
    return [
        f"{side} takes {costs['threads'][side][unit]} {unit}, at most {limit} are allowed"
        for side, limits in MESSAGE_LIMITS.items()
        for unit, limit in limits.items()
        if costs and costs["threads"][side][unit] > limit
    ]


def table(shape: TreeShape) -> str:
    """Return the figures as the Markdown of docs/internals/shape.md."""
    largest = max(shape.packages.values(), key=lambda package: package.files)
    asserts = shape.protocol_asserts
    lines = [
        "| figure | value | limit |",
        "|---|---:|---:|",
        f"| modules | {shape.modules} | |",
        f"| import cycles between modules | {len(shape.module_cycles)} | 0 |",
        f"| import cycles between packages | {len(shape.package_cycles)} | 0 |",
        f"| cycles that need a late or type-only import | {len(shape.late_package_cycles)} | |",
        f"| breaks of the layers | {len(shape.layer_breaks)} | 0 |",
        f"| public classes that share a name | {len(shape.duplicate_classes)} | 0 |",
        f"| files of the largest package | {largest.files} | {MAX_FILES} |",
        f"| asserts per function of protocol/ | {asserts:.2f} | ≥ {MIN_PROTOCOL_ASSERTS} |",
        "",
        "| package | files | lines | functions | asserts per function | comments per 100 lines |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, package in shape.packages.items():
        lines.append(
            f"| `{name}` | {package.files} | {package.lines:,} | {package.functions} |"
            f" {_ratio(package.asserts, package.functions):.2f} |"
            f" {100 * _ratio(package.comments, package.lines):.1f} |"
        )
    return "\n".join(lines) + "\n"


def message_table(costs: MessageCosts) -> str:
    """Return the calls and files of one message as Markdown."""
    lines = ["| API | side | calls | limit | files | limit |", "|---|---|---:|---:|---:|---:|"]
    for api, sides in costs.items():
        for side, cost in sides.items():
            limits = MESSAGE_LIMITS[side] if api == "threads" else {"calls": "", "files": ""}
            lines.append(
                f"| {api} | {side} | {cost['calls']} | {limits['calls']} |"
                f" {cost['files']} | {limits['files']} |"
            )
    return "\n".join(lines) + "\n"


def write_page(page: Path, shape: TreeShape, costs: MessageCosts) -> None:
    """Write the tables into their places in ``page``."""
    text = _replace_block(page.read_text(encoding="utf-8"), "generated: shape", table(shape))
    if costs:
        text = _replace_block(text, "measured: messages", message_table(costs))
    page.write_text(text, encoding="utf-8")


def _replace_block(text: str, name: str, body: str) -> str:
    end = f"<!-- end {name.partition(':')[0]} -->"
    pattern = re.compile(rf"(<!-- {name} -->\n).*?({end})", re.DOTALL)
    replaced, times = pattern.subn(lambda found: found[1] + body + found[2], text)
    if times != 1:
        raise ValueError(f"the page has {times} parts called {name!r}, expected one")
    return replaced


def measure_messages() -> MessageCosts:
    """Return the calls and files of one message, measured with real processes."""
    from tools import message_path

    return {
        api: {
            side: {unit: cost[unit] for unit in ("calls", "files")}
            for side, cost in message_path.measure(api).items()
        }
        for api in message_path.APIS
    }


def shape_table() -> str:
    """Return the table of this checkout, for the page written by ``tools/docs.py``."""
    return table(measure())


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _read(src: Path) -> dict[str, _Module]:
    modules = {}
    for path in sorted(file for name in PACKAGES for file in (src / name).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = path.read_text(encoding="utf-8")
        modules[name] = _Module(name, path, source, ast.parse(source))
    return modules


def _count(module: _Module, package: PackageShape) -> None:
    package.files += module.path.stem != "__init__"
    package.lines += len(module.source.splitlines())
    for node in tidy.statements(module.tree):
        package.functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        package.asserts += isinstance(node, ast.Assert)
    tokens = tokenize.generate_tokens(io.StringIO(module.source).readline)
    package.comments += sum(token.type == tokenize.COMMENT for token in tokens)


def _imports(modules: Mapping[str, _Module]) -> tuple[_Graph, _Graph]:
    """Return the imports of each module: at load time, and late or for types only."""
    at_start: _Graph = {name: set() for name in modules}
    late: _Graph = {name: set() for name in modules}
    for name, module in modules.items():
        apart = {
            id(inner)
            for node in tidy.statements(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            for inner in tidy.statements(node)
        }
        for node in tidy.statements(module.tree):
            found = {target for target in _targets(node, module, modules) if target != name}
            (late if id(node) in apart else at_start)[name] |= found
    return at_start, late


def _targets(node: ast.AST, module: _Module, modules: Mapping[str, _Module]) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in modules]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = node.module or ""
    if node.level:
        base = module.package.split(".")[: len(module.package.split(".")) - node.level + 1]
        start = ".".join([*base, start] if start else base)
    names = [f"{start}.{alias.name}" for alias in node.names]
    return [name if name in modules else start for name in names if start in modules]


def _package_cycles(modules: Mapping[str, _Module], graph: _Graph) -> list[list[str]]:
    """Return the cycles among the children of each package."""
    found = []
    for package in sorted({module.package for module in modules.values()}):
        inside: _Graph = defaultdict(set)
        prefix = f"{package}."
        for name, targets in graph.items():
            child = _child(name, prefix)
            goals = {_child(target, prefix) for target in targets}
            if child:
                inside[child] |= {goal for goal in goals if goal and goal != child}
        found += _cycles(inside)
    top: _Graph = defaultdict(set)
    for name, targets in graph.items():
        root = name.partition(".")[0]
        top[root] |= {target.partition(".")[0] for target in targets} - {root}
    return found + _cycles(top)


def _child(name: str, prefix: str) -> str:
    """Return the child of a package that holds a module; the package's own file is no child."""
    return prefix + name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else ""


def _cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one node (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--messages", action="store_true", help="count the calls and files of one message, too"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables into docs/internals/shape.md"
    )
    options = parser.parse_args(argv)
    shape = measure()
    costs = measure_messages() if options.messages else {}
    problems = broken_limits(shape) + broken_message_limits(costs)
    if options.json:
        print(json.dumps(asdict(shape) | {"problems": problems, "messages": costs}))
    else:
        print(table(shape), end="")
        if costs:
            print("\n" + message_table(costs), end="")
    if options.write:
        write_page(PAGE, shape, costs)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

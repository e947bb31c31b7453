"""The house rules beyond a linter, as functions from source text to violations.

Each rule takes the text of a file and returns a line for each violation. ``tests/test_tidy.py``
runs the rules over the project, and over planted snippets to show that each rule can fail.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 900

IMPURE = frozenset(
    [
        "asyncio",
        "datetime",
        "importlib",
        "logging",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
        "signal",
        "socket",
        "subprocess",
        "threading",
        "time",
        "uuid",
    ]
)
"""Imports forbidden in the pure part: callers pass in time, randomness and bytes."""

_VALUES = frozenset({"delivery_mode", "errors", "identity", "payloads", "profiles", "run"})
_TYPES = _VALUES | {
    *("compilation", "config", "config_fields", "fork_guard", "invariants", "locator", "logger"),
    *("output", "rng", "units"),
}
"""Modules that every layer may import; none imports a module of a higher layer."""

PURE = _VALUES | {"wire", "protocol"}
"""Modules and packages of ``gapless`` that own no clock, socket, thread or randomness."""

_MACHINE = _TYPES | {"wire", "protocol"}
_SHELL = _MACHINE | {"trace", "discovery", "transport", "runtime"}
_API = _SHELL | {"group", "events", "aio", "blocking"}
_ALL = _API | {"keys", "metrics", "spool", "faults", "sim", "report", "doctor", "cli"}

LAYERS = {
    **dict.fromkeys(_TYPES, _TYPES),
    **dict.fromkeys(_VALUES, _VALUES),
    "wire": _VALUES | {"wire"},
    "protocol": _MACHINE,
    "faults": _MACHINE | {"faults"},
    "faults.faulty_transport": _MACHINE | {"faults", "transport"},
    "trace": _MACHINE | {"trace"},
    "discovery": _TYPES | {"discovery"},
    "transport": _MACHINE | {"discovery", "transport"},
    "runtime": _SHELL | {"events", "keys"},
    "keys": frozenset({"errors", "keys", "units", "wire"}),
    "group": _SHELL | {"events", "keys", "group"},
    "events": _TYPES,
    "aio": _SHELL | {"group", "events", "keys", "aio"},
    "blocking": _SHELL | {"group", "events", "keys", "blocking"},
    "metrics": _API | {"metrics"},
    "spool": _API | {"keys", "metrics", "spool"},
    "doctor": _API | {"doctor", "keys"},
    "sim": _MACHINE | {"faults", "trace", "sim"},
    "report": frozenset({"errors", "invariants", "report"}),
    "cli": _ALL,
    "__main__": frozenset({"cli"}),
    "__init__": _API,
}
"""The allowed imports of ``gapless`` in each module or package of ``gapless``."""

_CONNECTOR = frozenset(
    {
        *("datasource", "message_columns", "option_error", "quiet_session", "runtime", "session"),
        *("tables", "trace"),
    }
)
SPARK_LAYERS = {
    **{name: _CONNECTOR | {name} for name in ("source", "sink", "verify", "analytics", "sweep")},
    "runtime": frozenset({"runtime", "session"}),
    "session": frozenset({"runtime", "session", "datasource"}),
    "quiet_session": frozenset({"runtime", "session", "quiet_session"}),
    "tables": frozenset({"message_columns", "session", "tables"}),
    "trace": frozenset({"tables", "trace"}),
    "datasource": frozenset({"source", "sink"}),
}
"""The imports of each part of ``pyspark_gapless``: the five workers never import each other."""

_LATE = {
    "cli": frozenset({"gapless_lab", "pyspark_gapless"}),
    "doctor": frozenset({"pyspark_gapless"}),
}
"""Packages that a module of ``gapless`` may import inside a function, for an optional extra."""

NOT_IN_BYTES = frozenset({"become_server_queue_size", "max_batch_size", "max_xmit_req_size"})
"""Names of JGroups that say size and count messages, kept because users know the names."""

_TIME_WORDS = frozenset(
    {"deadline", "delay", "duration", "elapsed", "interval", "latency", "period", "timeout"}
)
_SIZE_WORDS = frozenset({"bytes", "size"})
_TIME_SUFFIXES = ("_ns", "_us", "_ms", "_s", "_percent")
_SIZE_SUFFIXES = ("_bytes", "_percent")

# The lookbehind lets a longer path or a URL that merely contains such a folder pass.
_MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:farm|home|root|tmp|work|Users)/\w")
_UNFINISHED = re.compile("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "X" * 3)))

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def impure_imports(source: str) -> list[str]:
    """Return imports of clocks, randomness, sockets and the like; ``Random`` only as a type."""
    tree = ast.parse(source)
    type_only = {node for block in _type_checking_blocks(tree) for node in ast.walk(block)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            only_random = node.module == "random" and [alias.name for alias in node.names] == [
                "Random"
            ]
            names = [] if only_random and node in type_only else [str(node.module)]
        else:
            continue
        found += [
            f"{node.lineno}: imports {name}" for name in names if name.partition(".")[0] in IMPURE
        ]
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement inside ``node``; expressions, which are most of a tree, are skipped."""
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        children = getattr(node, part, ())
        for child in children if isinstance(children, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def layer_breaks(source: str, module: str) -> list[str]:
    """Return imports that go against the layers.

    ``module`` is the dotted name of the file, a package's with ``.__init__``.
    """
    tree = ast.parse(source)
    found = list(statements(tree))
    late = {
        id(inner) for node in found if isinstance(node, _Function) for inner in statements(node)
    }
    # Annotations need no module at run time, so a type-only import counts as a late one does.
    late |= {
        id(inner) for block in _type_checking_blocks(tree) for inner in (block, *statements(block))
    }
    return [
        f"{getattr(node, 'lineno', 0)}: {module} imports {target}"
        for node in found
        for target in _imported_modules(node, module)
        if not _may_import(module, target, is_late=id(node) in late)
    ]


def _may_import(module: str, target: str, *, is_late: bool) -> bool:
    package, _, inside = module.partition(".")
    goal, _, rest = target.partition(".")
    if goal not in ("gapless", "gapless_lab", "pyspark_gapless"):
        return True
    if package == "gapless_lab":
        return goal == "gapless_lab" or rest.partition(".")[0] != "cli"
    if package == "pyspark_gapless":
        if goal != package:
            return goal == "gapless" and rest.partition(".")[0] != "cli"
        allowed = SPARK_LAYERS.get(inside.partition(".")[0])
        return allowed is None or rest.partition(".")[0] in {*allowed, ""}
    unit = inside.partition(".")[0]
    if goal != "gapless":
        return is_late and goal in _LATE.get(unit, ())
    allowed = LAYERS.get(inside, LAYERS.get(unit))
    top = rest.partition(".")[0]
    # The version is a value that every layer may print; the API as a whole is for the top alone.
    return (
        top == "__version__"
        or (top == "" and unit in ("cli", "doctor", "spool"))
        or (allowed is not None and top in allowed)
    )


def long_functions(source: str) -> list[str]:
    """Return functions with more lines than a screen holds, their docstrings not counted."""
    return [
        f"{node.lineno}: {node.name} has {lines} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _Function)
        and (lines := _line_count(node) - _docstring_lines(node)) > MAX_FUNCTION_LINES
    ]


def _line_count(node: _Function | ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: _Function) -> int:
    return 0 if ast.get_docstring(node) is None else _line_count(node.body[0])


def long_file(source: str) -> list[str]:
    """Return the length of the file if it exceeds the limit."""
    lines = len(source.splitlines())
    return [f"1: the file has {lines} lines"] if lines > MAX_FILE_LINES else []


def missing_docstrings(source: str) -> list[str]:
    """Return the public modules, classes, functions and methods without a docstring."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) else ["1: the module has no docstring"]
    for name, node in _public(tree, ""):
        if not ast.get_docstring(node):
            found.append(f"{node.lineno}: {name} has no docstring")
    return found


def checkless_tests(source: str) -> list[str]:
    """Return the file if no test in it can fail: no assert, no ``raises``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) or (
            isinstance(node, ast.Attribute) and node.attr == "raises"
        ):
            return []
    return ["1: the file has tests but neither an assert nor a raises"]


def sleeps(source: str) -> list[str]:
    """Return calls that let a test wait for a while instead of for an event."""
    tree = ast.parse(source)
    found = [
        f"{node.lineno}: imports sleep from time"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "time"
        and any(a.name == "sleep" for a in node.names)
    ]
    clocks = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "time"
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "sleep"
            and isinstance(node.value, ast.Name)
        ):
            found += [f"{node.lineno}: {node.value.id}.sleep"] if node.value.id in clocks else []
    return found


def machine_paths(text: str) -> list[str]:
    """Return lines with a folder of a specific machine."""
    return _lines_with(_MACHINE_PATH, text, "names a folder of one machine")


def unfinished_marks(text: str) -> list[str]:
    """Return lines that postpone work."""
    return _lines_with(_UNFINISHED, text, "leaves work for later")


def numbers_without_unit(source: str) -> list[str]:
    """Return numeric parameters and fields for a time or a size without a unit in the name."""
    return [
        f"{line}: {name} is a number of what? end it in {suffixes[0]}"
        for line, name in sorted(_numbers(ast.parse(source)))
        if (suffixes := _suffixes(name))
        and not name.lower().endswith(suffixes)
        and name not in NOT_IN_BYTES
    ]


def _suffixes(name: str) -> tuple[str, ...]:
    words = set(name.lower().split("_"))
    if words & _TIME_WORDS:
        return _TIME_SUFFIXES
    return _SIZE_SUFFIXES if words & _SIZE_WORDS else ()


def _numbers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and _is_number(node.annotation):
            yield node.lineno, node.arg
        elif isinstance(node, ast.AnnAssign) and _is_number(node.annotation):
            if isinstance(node.target, ast.Name):
                yield node.lineno, node.target.id
            elif isinstance(node.target, ast.Attribute):
                yield node.lineno, node.target.attr


def _is_number(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return _is_number(annotation.left) or _is_number(annotation.right)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        wrappers = {"ClassVar", "Final", "Optional"}
        return annotation.value.id in wrappers and _is_number(annotation.slice)
    return isinstance(annotation, ast.Name) and annotation.id in {"int", "float"}


def _public(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | _Function]]:
    for node in ast.iter_child_nodes(parent):
        if (
            isinstance(node, ast.ClassDef | _Function)
            and not node.name.startswith("_")
            and not _is_repeat(node)
        ):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public(node, f"{prefix}{node.name}.")


def _is_repeat(node: ast.ClassDef | _Function) -> bool:
    """Return whether a decorator means that another definition has the docstring."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"deleter", "overload", "override", "setter"})


def _type_checking_blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        }:
            yield from node.body


def _imported_modules(node: ast.AST, importer: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = importer.split(".")[: -node.level] if node.level else []
    start = ".".join([*base, node.module] if node.module else base)
    # "from gapless import core" names the module only in its list.
    return [f"{start}.{alias.name}" for alias in node.names] if start == "gapless" else [start]


def _lines_with(pattern: re.Pattern[str], text: str, problem: str) -> list[str]:
    return [
        f"{number}: {problem}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]

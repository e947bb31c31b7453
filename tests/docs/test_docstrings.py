"""The examples in docstrings run, and print what their comments show."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import gapless
from gapless import aio, blocking, config, sim, units
from gapless.transport import InProcessNetwork, in_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

QUICK = {"found_after": "50ms", "join_interval": "20ms"}
MODULES = (aio, blocking, config, in_process, sim.group, units)
NEED_AN_EXAMPLE = [
    "gapless.aio.Group.events",
    "gapless.aio.Group.receive",
    "gapless.aio.Group.request",
    "gapless.aio.Group.send",
    "gapless.aio.Group.send_many",
    "gapless.aio.Group.serve",
    "gapless.aio.Group.snapshot",
    "gapless.aio.Group.wait_for_members",
    "gapless.aio.join",
    "gapless.blocking.join",
    "gapless.config.Config.make",
    "gapless.sim.group.SimulatedGroup",
]


def docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The docstrings of the public classes, functions and methods that a module defines."""
    yield module.__name__, module.__doc__ or ""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        yield f"{module.__name__}.{name}", value.__doc__ or ""
        if inspect.isclass(value):
            for inner, method in vars(value).items():
                if not inner.startswith("_") and getattr(method, "__doc__", None):
                    yield f"{module.__name__}.{name}.{inner}", method.__doc__ or ""


def programs() -> Iterator[tuple[str, str]]:
    """The programs in fenced blocks, each with the name that it documents."""
    for module in MODULES:
        for name, text in docstrings(module):
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                yield name, textwrap.dedent(block)


def expected_output(program: str) -> list[str]:
    """The comments behind the calls of ``print``."""
    return re.findall(r"print\(.*\)  # (.*)", program)


@pytest.mark.parametrize(("name", "program"), [*programs()], ids=lambda text: text.split("\n")[0])
def test_an_example_prints_what_its_comments_show(
    name: str,
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = InProcessNetwork()
    for api in (aio, blocking):
        join: Any = api.join

        def joined(group: str, join: Any = join, **options: object) -> Any:
            transport = options.pop("transport", None) or network.open()
            return join(group, transport=transport, config=QUICK, **options)

        monkeypatch.setattr(api, "join", joined)
    code = compile(program, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, {"gapless": gapless, "blocking": blocking})
    if running is not None:
        asyncio.run(running)
    assert expected_output(program) == capsys.readouterr().out.splitlines() != []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_interactive_examples_show_their_results(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted == sum(text.count(">>> ") for _, text in docstrings(module))


@pytest.mark.parametrize("name", NEED_AN_EXAMPLE)
def test_the_most_used_names_have_an_example(name: str) -> None:
    texts = dict(pair for module in MODULES for pair in docstrings(module))
    assert "```python\n" in texts[name] or ">>> " in texts[name]

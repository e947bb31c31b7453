"""The build of compiled wheels: asked for, and without a compiler a pure wheel."""

from __future__ import annotations

from typing import Any

import pytest
from hatchling.bridge.app import Application

from tools import compiled

ROOT = compiled.ROOT


def hook() -> compiled.CompiledWheelHook:
    arguments: Any = (str(ROOT), {}, None, None, "", "wheel", Application())
    return compiled.CompiledWheelHook(*arguments)


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every C compiler."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    monkeypatch.setattr(compiled, "find_spec", lambda _: None)


def test_a_wheel_is_pure_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAPLESS_COMPILE", raising=False)
    build_data: dict[str, Any] = {"force_include": {}}
    hook().initialize("standard", build_data)
    assert build_data == {"force_include": {}}
    assert hook().dependencies() == []


def test_a_compiled_build_needs_mypyc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_COMPILE", "1")
    assert hook().dependencies() == list(compiled.REQUIREMENTS)


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_the_wheel_is_pure_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAPLESS_COMPILE", "1")
    monkeypatch.setattr(compiled, "_key", lambda _: "no build has this key")
    build_data: dict[str, Any] = {"force_include": {}}
    hook().initialize("standard", build_data)
    assert build_data == {"force_include": {}}
    assert "no C compiler with the headers of Python was found" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_compiler")
def test_a_compiler_that_fails_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(compiled.NoCompilerError):
        compiled.compiler()

"""The shape of the tree: what the tool counts, its limits, and the page with the figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools import shape
from tools.shape import PackageShape, TreeShape

ROOT = Path(__file__).resolve().parents[2]
COSTS = {
    "threads": {"send": {"calls": 103, "files": 21}, "receive": {"calls": 99, "files": 19}},
    "asyncio": {"send": {"calls": 300, "files": 30}, "receive": {"calls": 300, "files": 30}},
}


@pytest.fixture(scope="module")
def measured() -> TreeShape:
    return shape.measure(ROOT)


def figures(text: str) -> dict[str, tuple[str, str]]:
    """Return value and limit of each figure in the first table of a text."""
    rows = re.findall(r"^\| ([^|`]+) \| ([\d.]+) \| ([^|]*) ?\|$", text, re.MULTILINE)
    return {name: (value, limit.strip()) for name, value, limit in rows}


def write(folder: Path, modules: dict[str, str]) -> None:
    for name, source in modules.items():
        path = folder / "src" / "gapless" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def test_the_tree_keeps_every_limit(
    measured: TreeShape, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shape, "measure", lambda: measured)
    assert shape.main([]) == 0, capsys.readouterr().err
    assert "asserts per function of protocol/" in capsys.readouterr().out


def test_the_machine_has_an_assert_in_every_second_function(measured: TreeShape) -> None:
    assert measured.protocol_asserts >= 0.5
    packages = {name for name in measured.packages if name.startswith("gapless.protocol")}
    assert packages == {
        "gapless.protocol",
        "gapless.protocol.membership",
        "gapless.protocol.state_transfer",
        "gapless.protocol.stream",
    }


def test_the_page_has_the_figures_of_the_tool_within_their_limits(measured: TreeShape) -> None:
    page = figures(shape.PAGE.read_text(encoding="utf-8"))
    assert page.keys() == figures(shape.table(measured)).keys()
    for name, (value, limit) in page.items():
        if limit.startswith("≥"):
            assert float(value) >= float(limit.removeprefix("≥")), name
        elif limit:
            assert float(value) <= float(limit), name


def test_too_few_asserts_in_the_machine_break_a_limit(measured: TreeShape) -> None:
    bare = {name: replace(package, asserts=0) for name, package in measured.packages.items()}
    (problem,) = shape.broken_limits(replace(measured, packages=bare))
    assert problem.startswith("protocol/ has 0.00 asserts per function")


def test_asserts_of_other_packages_do_not_count() -> None:
    packages = {
        "gapless.protocol": PackageShape(functions=4, asserts=1),
        "gapless.protocol.stream": PackageShape(functions=4, asserts=2),
        "gapless.protocols": PackageShape(functions=1, asserts=100),
        "gapless": PackageShape(functions=1, asserts=100),
    }
    assert TreeShape(packages=packages).protocol_asserts == 3 / 8


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    modules = {
        "__init__": "",
        "wire/__init__": "",
        "wire/a": "from gapless.wire import b\n\n\nclass Same: ...\n",
        "wire/b": "from gapless.wire import a  # why\n\n\nclass Same: ...\n",
        "wire/c": "def f():\n    assert f\n    from gapless.wire import a\n",
    }
    write(tmp_path, modules)
    found = shape.measure(tmp_path)
    assert found.module_cycles == [["gapless.wire.a", "gapless.wire.b"]]
    assert found.duplicate_classes == {"Same": ["gapless.wire.a", "gapless.wire.b"]}
    assert found.late_imports == 1
    assert found.packages["gapless.wire"] == PackageShape(3, 11, 1, 1, 1)


def test_a_crowded_package_breaks_a_limit(tmp_path: Path) -> None:
    modules = {f"wire/m{number}": "" for number in range(shape.MAX_FILES + 1)}
    write(tmp_path, {"__init__": "", "wire/__init__": ""} | modules)
    found = shape.measure(tmp_path)
    assert "gapless.wire has 21 files, at most 20 are allowed" in shape.broken_limits(found)


def test_the_limits_of_a_message_are_those_of_threads() -> None:
    assert shape.broken_message_limits(COSTS) == []
    assert shape.broken_message_limits({}) == []
    slower = COSTS | {"threads": COSTS["asyncio"]}
    assert len(shape.broken_message_limits(slower)) == 4
    assert "| threads | send | 103 | 103 | 21 | 21 |" in shape.message_table(COSTS)
    assert "| asyncio | receive | 300 |  | 30 |  |" in shape.message_table(COSTS)


def test_the_tables_are_written_into_their_parts_of_the_page(
    tmp_path: Path, measured: TreeShape
) -> None:
    page = tmp_path / "shape.md"
    page.write_text(shape.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    shape.write_page(page, measured, COSTS)
    text = page.read_text(encoding="utf-8")
    assert shape.table(measured) in text
    assert shape.message_table(COSTS) in text
    assert text.count("| figure | value | limit |") == 1
    shape.write_page(page, measured, {})
    assert page.read_text(encoding="utf-8") == text
    page.write_text("no parts\n", encoding="utf-8")
    with pytest.raises(ValueError, match="0 parts called 'generated: shape'"):
        shape.write_page(page, measured, {})


def test_figures_for_a_program(
    measured: TreeShape, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shape, "measure", lambda: measured)
    shape.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["messages"] == {}
    assert found["packages"]["gapless.protocol"]["asserts"] > 0

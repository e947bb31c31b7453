"""``tools/behaviours.py``: what it reads, what it prints, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.behaviours import LedgerError, marks, run

PAGE = """# Behaviours

| ids | what |
|---|---|
| X1 | a heading, not a behaviour |

| id | behaviour | knob |
|---|---|---|
| X1-01 | The `first` thing. | `capacity` |
| X1-02 | The second thing. | |
"""

TESTS = """import pytest

@pytest.mark.behaviour("X1-01", "X1-02")
def test_both() -> None: ...

@pytest.mark.behaviour("X1-01")
def helper() -> None: ...
"""


def checkout(root: Path, tests: str = TESTS, page: str = PAGE) -> Path:
    for name, text in {
        "docs/internals/behaviours.md": page,
        "tests/protocol/test_x.py": tests,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = run([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert not err
    result: dict[str, object] = json.loads(out)
    return code, result


# The command


def test_all_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = "tests/protocol/test_x.py::test_both"
    assert answer(capsys, "--root", str(checkout(tmp_path))) == (
        0,
        {
            "ids": 2,
            "tested": 2,
            "untested": [],
            "unknown": [],
            "tests": {"X1-01": [test], "X1-02": [test]},
        },
    )


def test_a_behaviour_without_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "--root", str(checkout(tmp_path, TESTS.replace('"X1-01", ', ""))))
    assert (code, found["ids"], found["tested"], found["untested"]) == (1, 2, 1, ["X1-01"])


def test_a_mark_that_names_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(
        capsys, "--root", str(checkout(tmp_path, TESTS.replace('"X1-02"', '"X1-02", "X1-99"')))
    )
    assert (code, found["untested"], found["unknown"]) == (1, [], ["X1-99"])
    assert found["tests"]["X1-99"] == ["tests/protocol/test_x.py::test_both"]  # type: ignore[index]


def test_the_checkout_is_found_from_a_folder_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout(tmp_path) / "tests" / "protocol")
    assert answer(capsys)[0] == 0


def test_a_table_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = TESTS.replace('"X1-01", ', "").replace('"X1-02"', '"X1-02", "Y-01"')
    assert run(["--root", str(checkout(tmp_path, tests))]) == 1
    out = capsys.readouterr().out
    assert "━" in out
    for text in (
        "The first thing.",
        "test_both",
        "2 behaviours, 1 of them",
        "no test shows X1-01",
        "Y-01 is not in",
    ):
        assert text in out


def test_many_tests_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = "import pytest\npytestmark = pytest.mark.behaviour('X1-01', 'X1-02')\n"
    tests += "".join(f"def test_{name}(): ...\n" for name in "abcde")
    assert run(["--root", str(checkout(tmp_path, tests))]) == 0
    out = capsys.readouterr().out
    assert "test_b" in out
    assert "and 3 more" in out
    assert "test_c" not in out


@pytest.mark.parametrize(
    ("spoil", "hint"),
    [
        ("docs/internals/behaviours.md", "--root"),
        ("tests", "--root"),
        ("page without rows", "has no row"),
        ("page with a row twice", "two rows for X1-01"),
        ("page that is not text", "cannot read"),
        ("test that is not Python", "test_x.py is not Python"),
        ("mark that is worked out", "test_x.py:3: a behaviour mark"),
    ],
)
def test_a_bad_checkout_gets_one_clear_line(
    spoil: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = checkout(tmp_path)
    page, test = root / "docs/internals/behaviours.md", root / "tests/protocol/test_x.py"
    actions: dict[str, Callable[[], object]] = {
        "docs/internals/behaviours.md": page.unlink,
        "tests": lambda: (root / "tests").rename(root / "other"),
        "page without rows": lambda: page.write_text("# Behaviours\n"),
        "page with a row twice": lambda: page.write_text(PAGE + "| X1-01 | Again. | |\n"),
        "page that is not text": lambda: page.write_bytes(bytes(range(256))),
        "test that is not Python": lambda: test.write_text("def test_(:\n"),
        "mark that is worked out": lambda: test.write_text(
            TESTS.replace('"X1-01", "X1-02"', "*IDS")
        ),
    }
    actions[spoil]()
    _complains(["--root", str(root)], hint, capsys)


def test_a_root_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _complains(["--root", str(tmp_path / "nowhere")], "no checkout", capsys)


def test_outside_of_any_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _complains([], "there is no docs/internals/behaviours.md", capsys)


def _complains(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert hint in err


# Marks


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_a(): ...", []),
        ("@pytest.mark.behaviour('A')\ndef test_a(): ...", [("test_a", "A")]),
        (
            "@pytest.mark.behaviour('A')\n@pytest.mark.behaviour('B', 'A')\ndef test_a(): ...",
            [("test_a", x) for x in "AB"],
        ),
        ("@mark.behaviour('A')\nasync def test_a(): ...", [("test_a", "A")]),
        ("@pytest.mark.slow('A')\ndef test_a(): ...", []),
        ("@pytest.mark.behaviour('A')\ndef other(): ...", []),
        ("pytestmark = pytest.mark.behaviour('A')\ndef test_a(): ...", [("test_a", "A")]),
        ("pytestmark = [mark.slow, mark.behaviour('A')]\ndef test_a(): ...", [("test_a", "A")]),
        ("pytestmark: list[object] = [mark.behaviour('A')]\ndef test_a(): ...", [("test_a", "A")]),
        ("other = pytest.mark.behaviour('A')\ndef test_a(): ...", []),
        (
            (
                "@mark.behaviour('A')\nclass TestX:\n"
                " def test_a(self): ...\n @mark.behaviour('B')\n def test_b(self): ..."
            ),
            [("TestX::test_a", "A"), ("TestX::test_b", "A"), ("TestX::test_b", "B")],
        ),
        (
            "class TestX:\n  pytestmark = mark.behaviour('A')\n  def test_a(self): ...",
            [("TestX::test_a", "A")],
        ),
        ("@mark.behaviour('A')\nclass Helper:\n  def test_a(self): ...", []),
        (
            "@mark.parametrize('x', [param(1, marks=mark.behaviour('A')), 2])\ndef test_a(x): ...",
            [("test_a", "A")],
        ),
    ],
)
def test_marks_are_read_from_the_text(source: str, found: list[tuple[str, str]]) -> None:
    assert list(marks(source, "x.py")) == found


@pytest.mark.parametrize("argument", ["1", "NAME", "*IDS", "f'{x}'"])
def test_a_mark_names_ids_as_plain_text(argument: str) -> None:
    with pytest.raises(LedgerError, match=r"x\.py:1: a behaviour mark names ids as plain text"):
        list(marks(f"@mark.behaviour({argument})\ndef test_a(): ...", "x.py"))

"""Imports follow the layers of ``tools/tidy.py``, in the whole of src."""

from __future__ import annotations

from pathlib import Path

from tools import shape, tidy

ROOT = Path(__file__).resolve().parent.parent


def test_imports_follow_the_layers() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for offence in tidy.layer_breaks(path.read_text(encoding="utf-8"), name):
            found.append(f"{path.relative_to(ROOT)}:{offence}")
    assert found == []


def test_every_part_of_the_package_has_a_layer() -> None:
    """A new folder without a rule would be free to import anything below it."""
    parts = {path.stem for path in (ROOT / "src" / "gapless").iterdir() if path.name != "py.typed"}
    assert parts - {"__pycache__"} - set(tidy.LAYERS) == set()


def test_the_shape_keeps_its_limits() -> None:
    assert shape.broken_limits(shape.measure(ROOT)) == []

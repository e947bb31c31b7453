"""Imports follow the layers of ``tools/tidy.py``, in the whole of src."""

from __future__ import annotations

import re
from pathlib import Path

from tools import shape, tidy

ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = frozenset(
    {
        ("gapless.aio", "gapless.metrics"),
        ("gapless.blocking", "gapless.metrics"),
        ("gapless.group", "gapless.metrics"),
    }
)
"""Pairs of packages that break the layers today; one that no longer occurs fails the test."""

KNOWN_LIMITS = set(
    """
import cycle of packages: gapless.protocol.dispatch gapless.protocol.endpoint \
gapless.protocol.state_transfer
import cycle of packages: gapless.sim.mutants gapless.sim.runner gapless.sim.scenario \
gapless.sim.swarm gapless.sim.world
""".strip().splitlines()
)
"""Limits that the tree breaks today."""


def _unit(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_imports_follow_the_layers() -> None:
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for offence in tidy.layer_breaks(path.read_text(encoding="utf-8"), name):
            match = re.fullmatch(r"\d+: (\S+) imports (\S+)", offence)
            assert match
            found[_unit(match[1]), _unit(match[2])] = f"{path.relative_to(ROOT)}:{offence}"
    assert {found[pair] for pair in found.keys() - EXCEPTIONS} == set()
    assert EXCEPTIONS - found.keys() == set(), "no longer needed: remove these exceptions"


def test_every_part_of_the_package_has_a_layer() -> None:
    """A new folder without a rule would be free to import anything below it."""
    parts = {path.stem for path in (ROOT / "src" / "gapless").iterdir() if path.name != "py.typed"}
    assert parts - {"__pycache__"} - set(tidy.LAYERS) == set()


def test_the_shape_keeps_its_limits() -> None:
    broken = shape.broken_limits(shape.measure(ROOT))
    found = {problem for problem in broken if not problem.startswith("layer break")}
    assert found == KNOWN_LIMITS

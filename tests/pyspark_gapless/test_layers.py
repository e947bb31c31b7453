"""The packages of the connector are independent, and none of them knows the bytes of a spool."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pyspark_gapless

ROOT = Path(pyspark_gapless.__file__).parent
INDEPENDENT = ("source", "sink", "verify", "analytics", "sweep")
SHARED = ("runtime", "tables", "trace")
BYTES_OF_A_SPOOL = re.compile(
    r"\b(HEADER(_BYTES)?|MAGIC|PREAMBLE_BYTES|checksum_seed|parse_header|segment_path|index_path)\b"
    r"|[}*]\.(run|idx)[\"']|[\"'](segments|committed|readers|spool\.json)[\"']|020d"
)


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def packages_used(package: str) -> set[str]:
    """Return the other packages of the connector that the files of a package import."""
    modules = {name for path in (ROOT / package).rglob("*.py") for name in imports_of(path)}
    parts = {name.split(".")[1] for name in modules if name.startswith("pyspark_gapless.")}
    return parts - {package}


@pytest.mark.parametrize("package", INDEPENDENT)
def test_a_package_imports_no_other_one(package: str) -> None:
    assert packages_used(package).isdisjoint(INDEPENDENT)


@pytest.mark.parametrize("package", SHARED)
def test_what_is_shared_imports_none_that_share_it(package: str) -> None:
    assert packages_used(package).isdisjoint({*INDEPENDENT, "session", "datasource"})


def test_the_bytes_of_a_spool_are_known_to_the_spool_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BYTES_OF_A_SPOOL.search(line)
    ]
    assert found == []

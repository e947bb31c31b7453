"""Every example runs, as a new user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


SPARK = {"pipeline"}
"""Examples that start Spark, which is slow and writes noise to standard error."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xdist_group("cluster")] if path.stem in SPARK else [],
        )
        for path in EXAMPLES
    ],
)
def test_example(example: Path) -> None:
    """An example ends well and says something."""
    patience_s = 600 if example.stem in SPARK else 60
    done = subprocess.run(
        [sys.executable, str(example)],
        env={**os.environ, "JDK_JAVA_OPTIONS": FAST_START_JVM_OPTIONS},
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr or example.stem in SPARK


def test_the_story_of_the_readme_is_an_example() -> None:
    """The simulator program of the README runs here; its first program runs in tests/group."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [part.split("```", 1)[0] for part in readme.split("```python\n")[1:]]
    story = (ROOT / "examples" / "lossy_story.py").read_text(encoding="utf-8")

    def code(text: str) -> list[str]:
        lines = (
            line.split("#")[0].strip() for line in text.splitlines() if not line.startswith('"""')
        )
        return [line for line in lines if line]

    assert code(story) in [code(text) for text in shown]

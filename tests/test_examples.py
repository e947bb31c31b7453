"""Every example runs, as a new user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path) -> None:
    """An example ends well and says something."""
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


def test_the_story_of_the_readme_is_an_example() -> None:
    """What the README shows of the simulator is what runs here; its first program runs in tests/channel."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [part.split("```", 1)[0] for part in readme.split("```python\n")[1:]]
    story = (ROOT / "examples" / "lossy_story.py").read_text(encoding="utf-8")

    def code(text: str) -> list[str]:
        lines = (line.split("#")[0].strip() for line in text.splitlines() if not line.startswith('"""'))
        return [line for line in lines if line]

    assert code(story) in [code(text) for text in shown]

"""Print how often docstrings use a pronoun or a relative word, per 100 words, for each package.

A docstring with "it" in the place of a noun has to be read twice. The rate is a figure to look at,
not a limit: aioquic has 2.6, websockets 3.5, h11 5.6.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = frozenset(
    [
        "it",
        "its",
        "itself",
        "they",
        "them",
        "their",
        "this",
        "that",
        "these",
        "those",
        "what",
        "which",
        "who",
        "whom",
        "whose",
        "whoever",
        "whatever",
        "one",
        "ones",
        "somebody",
        "nobody",
        "anybody",
        "everybody",
        "something",
        "nothing",
        "anything",
        "everything",
        "he",
        "she",
        "him",
        "her",
    ]
)
_WORD = re.compile(r"[A-Za-z]+")


def rates(src: Path) -> dict[str, tuple[float, int]]:
    """Return the rate and the number of docstring words for each package under ``src``."""
    words: Counter[str] = Counter()
    pointing: Counter[str] = Counter()
    for path in sorted(src.rglob("*.py")):
        package = ".".join(path.parent.relative_to(src).parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                found = [word.lower() for word in _WORD.findall(text)]
                words[package] += len(found)
                pointing[package] += sum(word in WORDS for word in found)
    return {name: (100 * pointing[name] / words[name], words[name]) for name in sorted(words)}


def main() -> int:
    """Print the table."""
    for name, (rate, words) in rates(ROOT / "src").items():
        print(f"{name:40} {rate:5.1f} of 100 words, {words:6} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Check the spelling of the pages and of the docstrings: ``python tools/spelling.py``.

A word is known from the English dictionary of pyspellchecker or from ``tools/words.txt``: the terms
of the field, names of products, and the British spellings that the project uses. Code blocks, code
spans, links and names with digits, dots or underscores are not checked.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spellchecker import SpellChecker

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools import docs  # noqa: E402  # the folder of this script alone is on the path

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD_LIST = ROOT / "tools" / "words.txt"
"""The words that the dictionary lacks, one a line, in alphabetical order."""

FOLDERS = ("src", "tools", "bench", "examples", "experiments")
"""The folders whose docstrings are checked."""

_WORD = re.compile(r"(?<![\w-])[A-Za-z][a-z]+(?:'[a-z]+)?(?!\w)")
_NOT_PROSE = re.compile(
    r":[a-z]+: |\]\([^)]*\)|<[^<>]*>|https?://\S+|[^\s\[\]]*[/_.=(\\][^\s\[\]]*[\w)]", re.DOTALL
)


def words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the lower-case form of every word of a text that is prose."""
    prose = _NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), docs.without_code(text))
    for match in _WORD.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, match[0].lower().removesuffix("'s")


def texts(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield file, first line and text of every page and of every docstring under ``root``."""
    for page in docs.pages(root):
        yield page, 1, page.read_text(encoding="utf-8")
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
                    yield path, node.body[0].lineno, text


def misspelled(root: Path, listed: set[str]) -> list[str]:
    """Return a line for each place of a word unknown to dictionary and list."""
    places: dict[str, list[str]] = {}
    for path, first, text in texts(root):
        for line, word in words(text):
            if word not in listed:
                places.setdefault(word, []).append(f"{path.relative_to(root)}:{first + line - 1}")
    unknown = SpellChecker().unknown(places)
    return sorted(f"{place}: {word}" for word in unknown for place in places[word])


def word_list() -> set[str]:
    """Return the words of the word list."""
    return set(WORD_LIST.read_text(encoding="utf-8").split())


def main() -> int:
    """Print every misspelled word with its place; return 1 if there is any."""
    problems = misspelled(ROOT, word_list())
    for problem in problems:
        print(problem)
    if problems:
        print("correct the word, or add it to tools/words.txt if it is right", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

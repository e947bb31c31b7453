"""Print how often docstrings and docs use a pronoun or a relative word, per 100 words.

A sentence with "it" in the place of a noun has to be read twice. The rate is a figure to look at,
not a limit: aioquic has 2.6, websockets 3.5, h11 5.6. Docstrings are counted for each package, docs
for each page and each folder. Only prose counts: code blocks, code spans, link targets, comments
and the generated parts of a page are left out, and so is the changelog.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent

SCRIPT_FOLDERS = ("bench", "examples", "experiments", "tools")
"""Folders with Python files outside ``src``; each counts as a package."""

WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        it its itself they them their this that these those
        what which who whom whose whoever whatever one ones
        somebody nobody anybody everybody something nothing anything everything
        he she him her
        """,
    )
)

_WORD = re.compile(r"[A-Za-z]+")
_NOT_PROSE = tuple(
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        r"\A---\n.*?^---$",
        r"<!-- generated: .*?<!-- end generated -->",
        r"^[ \t]*(```+|~~~+)[^\n]*\n.*?^[ \t]*\1[ \t]*$",
        r"<!--.*?-->",
        r"^::: .*?(?=^\S|\Z)",
        r"(`+)(?!`).*?(?<!`)\1(?!`)",
        r"<[a-z/][^>]*>",
        r"(?<=\])\([^()\s]*(?:\([^()\s]*\)[^()\s]*)?(?:\s+\"[^\"]*\")?\)",
        r"^ {0,3}\[[^\]\n]+\]:[^\n]*$",
        r"(?<=[\w)\"'])\{[^}\n]*\}|https?://\S+",
    )
)


class Rate(NamedTuple):
    """Counts of a package, page or folder."""

    words: int
    pronouns: int

    @property
    def per_100(self) -> float:
        """Return the pronouns and relatives per 100 words."""
        return 100 * self.pronouns / self.words if self.words else 0.0

    def plus(self, text: str) -> Rate:
        """Return these counts with the words of ``text`` added."""
        found = [word.lower() for word in _WORD.findall(text)]
        return Rate(self.words + len(found), self.pronouns + sum(word in WORDS for word in found))


def prose(page: str) -> str:
    """Return the prose of a Markdown page, without code, link targets and generated parts."""
    for pattern in _NOT_PROSE:
        page = pattern.sub(" ", page)
    return page


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def docstring_rates(root: Path, *, by_file: bool = False) -> dict[str, Rate]:
    """Return the rate of each package, or of each module, that has docstrings."""
    rates: dict[str, Rate] = {}
    for folder, base in ((root / "src", root / "src"), *((root / f, root) for f in SCRIPT_FOLDERS)):
        for path in sorted(folder.rglob("*.py")):
            package = ".".join(path.parent.relative_to(base).parts)
            name = path.relative_to(root).as_posix() if by_file else package
            for text in docstrings(path.read_text(encoding="utf-8")):
                rates[name] = rates.get(name, Rate(0, 0)).plus(text)
    return dict(sorted(rates.items()))


def page_rates(root: Path) -> dict[str, Rate]:
    """Return the rate of README, of each docs page, and of each docs folder (``name/``)."""
    rates: dict[str, Rate] = {}
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        if not path.is_file() or path.stem.lower() == "changelog":
            continue
        text = prose(path.read_text(encoding="utf-8"))
        folder = path.parent.relative_to(root).as_posix() + "/"
        for name in (path.relative_to(root).as_posix(), *([folder] if folder != "./" else [])):
            rates[name] = rates.get(name, Rate(0, 0)).plus(text)
    return dict(sorted(rates.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rates; with ``--over``, return 1 if a rate is above the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--files", action="store_true", help="count docstrings for each module")
    parser.add_argument(
        "--over", type=float, metavar="RATE", help="print only rates above RATE; exit 1 if any is"
    )
    options = parser.parse_args(arguments)
    limit = -1.0 if options.over is None else options.over
    tables = {
        "docstrings": docstring_rates(ROOT, by_file=options.files),
        "docs": page_rates(ROOT),
    }
    shown = {
        kind: {name: rate for name, rate in rates.items() if rate.per_100 > limit}
        for kind, rates in tables.items()
    }
    if options.json:
        rows = {
            kind: {
                name: {"rate": round(rate.per_100, 2), "words": rate.words}
                for name, rate in rates.items()
            }
            for kind, rates in shown.items()
        }
        print(json.dumps(rows, indent=2))
    else:
        for kind, rates in shown.items():
            print(f"{kind}: {len(rates)} of {len(tables[kind])} rates")
            for name, rate in rates.items():
                print(f"  {name:42} {rate.per_100:5.1f} of 100 words, {rate.words:6} words")
    return 1 if options.over is not None and any(shown.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

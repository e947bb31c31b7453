"""MkDocs hooks for pages that are written for a Markdown host: links out of ``docs`` work.

A page may link to a file of the project that is no page: a source file, a folder, CONTRIBUTING.md.
On the host the link opens that file. For the site, each such file becomes a page of its own, and
the link is changed to lead there. So one link works in both places. ``mkdocs.yml`` names this file
as a hook.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(
    0, str(ROOT)
)  # MkDocs loads a hook by its path, so its neighbours cannot be imported without this

from tools import docs  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

TOP = {
    name: name.lower() for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
}
"""Pages at the top of the project, and their names on the site."""

LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}
"""How files are coloured, by their suffix; others are shown as plain text."""

_NOT_SHOWN = {"__pycache__"}


def site_path(target: str) -> str:
    """Return the path of a project file or folder on the site; paths are relative, with slashes."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target in TOP:
        return TOP[target]
    return f"source/{target}.md"


def outward(text: str, folder: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and goal of each link of a page that MkDocs would not find.

    ``folder`` is the folder of the page in the project; the goal is relative to the project.
    """
    prose = docs.without_code(text)
    for pattern in (docs.INLINE_LINK, docs.REFERENCE):
        for match in pattern.finditer(prose):
            name = match[1].partition("#")[0]
            if name and not docs.SCHEME.match(match[1]):
                goal = posixpath.normpath(posixpath.join(folder, name))
                if folder != "docs" or not goal.startswith("docs/"):
                    yield match.start(1), match.start(1) + len(name), goal


def rewritten(text: str, folder: str, page: str) -> str:
    """Return a page whose outward links lead to pages of the site; ``page`` is its own path."""
    for start, end, goal in sorted(outward(text, folder), reverse=True):
        link = posixpath.relpath(site_path(goal), posixpath.dirname(page) or ".")
        text = text[:start] + link + text[end:]
    return text


def top_page(name: str, root: Path = ROOT) -> str:
    """Return a page at the top of the project as it is on the site, out of the search index."""
    head = "---\nsearch:\n  exclude: true\n---\n\n" if name == "CHANGELOG.md" else ""
    return head + rewritten((root / name).read_text("utf-8"), ".", TOP[name])


def shown(goal: str, root: Path = ROOT) -> str:
    """Return the page that shows a file or a folder of the project."""
    path = root / goal
    head = f"---\ntitle: {goal}\nsearch:\n  exclude: true\n---\n\n# `{goal}`\n\n"
    if path.is_dir():
        return (
            head
            + "\n".join(f"* [`{name}`]({path.name}/{name}.md)" for name in _entries(path))
            + "\n"
        )
    text = path.read_text(encoding="utf-8")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text) or [""]))
    return f"{head}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def _entries(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.is_file() and path.name not in _NOT_SHOWN
    )


def linked(
    root: Path, first: Iterable[str] = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
) -> set[str]:
    """Return ``first``, and what ``docs`` and ``first`` link to outside the pages of ``docs``.

    A folder adds its files, a page at the top of the project its own links.
    """
    found: set[str] = set()
    left = {*first, *(path.relative_to(root).as_posix() for path in root.glob("docs/**/*.md"))}
    while left:
        name = left.pop()
        if not name.startswith("docs/"):
            found.add(name)
        if (root / name).is_dir():
            left |= {f"{name}/{entry}" for entry in _entries(root / name)} - found
        elif name in TOP or name.startswith("docs/"):
            goals = {
                goal
                for _, _, goal in outward(
                    (root / name).read_text("utf-8"), posixpath.dirname(name) or "."
                )
            }
            left |= {
                goal
                for goal in goals - found
                if not goal.startswith("docs/") and (root / goal).exists()
            }
    return found


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the project, and one for each linked file."""
    from mkdocs.structure.files import File, InclusionLevel

    for name in sorted(linked(ROOT)):
        uri = site_path(name)
        content = top_page(name) if name in TOP else shown(name)
        inclusion = (
            InclusionLevel.UNDEFINED
            if name in TOP and name != "README.md"
            else InclusionLevel.NOT_IN_NAV
        )
        files.append(File.generated(config, uri, content=content, inclusion=inclusion))
    return files


_DOCS_FILE = re.compile(r"\bdocs/([\w/-]+)\.md\b")


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make a link of each page that a docstring names by its path in the project."""
    here = posixpath.dirname(page.file.src_uri) or "."

    def link(match: re.Match[str]) -> str:
        return f'<a href="{posixpath.relpath(match[1], here)}.html">{match[1]}</a>'

    return _DOCS_FILE.sub(link, html) if here == "reference/api" else html


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let the outward links of a page lead to what :func:`on_files` has added."""
    if page.file.generated_by:
        return markdown
    where = page.file.src_uri
    return rewritten(markdown, posixpath.join("docs", posixpath.dirname(where)).rstrip("/"), where)

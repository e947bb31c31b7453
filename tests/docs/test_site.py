"""The docs as a site: it has every page, every link works, and it loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from mkdocs.utils.yaml import yaml_load

from tools import docs, docsite

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
MADE = {name for source, name in docsite.TOP.items() if source != "README.md"}
STRUCTURE = {
    "h1",
    "h2",
    "h3",
    "h4",
    "ul",
    "ol",
    "li",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "blockquote",
}

pytestmark = pytest.mark.xdist_group("site")


def built(page: str) -> str:
    """Return the file that mkdocs makes of a page; a README is the index of its folder."""
    return page.removesuffix(".md").replace("README", "index") + ".html"


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in inner for leaf in leaves(part)]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
        "PYTHONWARNINGS": "error",
    }
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


class Parts(HTMLParser):
    """What a page is made of: its structure, its anchors, where it links to, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.structure: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in STRUCTURE:
            self.structure.append(tag)
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif "href" in found and found.get("rel") not in {"next", "prev", "canonical"}:
            self.loads.append(found["href"])
        elif "src" in found:
            self.loads.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parts]:
    """The pages of the built site, by their path."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    said = [
        line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO ")
    ]
    assert said == [], "a build that is well says nothing but what it does"
    found = {
        path.relative_to(folder).as_posix(): Parts(path.read_text("utf-8"))
        for path in folder.rglob("*.html")
    }
    found["/files"] = Parts("")
    found["/files"].ids = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return found


# The project's own site


def test_every_page_is_in_the_navigation_once() -> None:
    nav = leaves(yaml_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert sorted(nav) == sorted({*PAGES, *MADE}), (
        "put a new page into the nav of mkdocs.yml, where newcomers look for it"
    )


def test_every_page_is_reached_from_the_first(site: dict[str, Parts]) -> None:
    reached, left = set(), ["index.html"]
    while left:
        page = left.pop()
        if page in site and page not in reached:
            reached.add(page)
            left += [target for target, _ in goals(page, site[page]) if target is not None]
    assert {built(page) for page in PAGES} <= reached
    assert {page for page in site if page.startswith("source/")} <= reached


def goals(page: str, parts: Parts) -> list[tuple[str | None, str]]:
    """Return the target of each link: its path in the site (None for elsewhere), and its anchor."""
    found: list[tuple[str | None, str]] = []
    for link in parts.links:
        split = urlsplit(link)
        if split.scheme or split.netloc:
            found.append((None, link))
            continue
        path = (
            (PurePosixPath("/", page).parent / unquote(split.path))
            if split.path
            else PurePosixPath("/", page)
        )
        clean: list[str] = []
        for part in path.parts[1:]:
            clean = clean[:-1] if part == ".." else [*clean, *([part] if part != "." else [])]
        found.append(("/".join(clean), unquote(split.fragment)))
    return found


def test_every_link_of_the_site_leads_somewhere(site: dict[str, Parts]) -> None:
    lost = []
    for page, parts in site.items():
        if page == "404.html":
            continue  # it is shown for any address, so its links are those of the root
        for target, anchor in goals(page, parts):
            if target is None:
                continue
            if target not in site["/files"].ids or (
                anchor and target in site and anchor not in site[target].ids
            ):
                lost.append(f"{page} -> {target}#{anchor}")
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site: dict[str, Parts]) -> None:
    foreign = {
        load for parts in site.values() for load in parts.loads if re.match(r"[a-z]+:|//", load)
    }
    assert foreign == set()
    assert any(load.endswith("iframe-worker.js") for load in site["index.html"].loads), (
        "or there is no search offline"
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_the_same_here_and_on_a_markdown_host(page: str, site: dict[str, Parts]) -> None:
    """Both parsers agree on lists, tables and code; Python-Markdown needs four spaces."""
    there = Parts(
        MarkdownIt("commonmark").enable("table").render((ROOT / "docs" / page).read_text("utf-8"))
    ).structure
    here = site[built(page)].structure
    start = here.index("h1")
    assert here[start : start + len(there)] == there


# The hook


def project(root: Path, page: str) -> None:
    """A small project with one page, and with what the hook needs."""
    for name in ("mkdocs.yml", "tools/docs.py", "tools/docsite.py", *docsite.TOP):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in docsite.TOP:
        (root / name).write_text(f"# {name}\n\n[the page](docs/index.md#one)\n")
    shutil.copytree(ROOT / "docs" / "assets", root / "docs" / "assets")
    (root / "src").mkdir()
    (root / "src" / "code.py").write_text('"""Some ``code``."""\n')
    (root / "docs" / "index.md").write_text(page)
    config = (root / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    nav = "nav: [index.md, contributing.md, security.md, changelog.md]"
    (root / "mkdocs.yml").write_text(f"{config}\n{nav}\n")


def test_what_a_page_links_to_is_on_the_site(tmp_path: Path) -> None:
    project(
        tmp_path,
        "# Page\n\n## One\n\n[code](../src/code.py), [folder](../src), [top](../CONTRIBUTING.md),"
        " [up](#one)\n",
    )
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    parts = Parts((tmp_path / "site" / "index.html").read_text())
    for link in ("source/src/code.py.html", "source/src.html", "contributing.html"):
        assert link in parts.links
        assert (tmp_path / "site" / link).exists()
    assert not (tmp_path / "site" / "readme.html").exists(), "nobody links to it"


def test_a_build_fails_for_what_leads_nowhere(tmp_path: Path) -> None:
    project(
        tmp_path,
        "# Page\n\n[1](missing.md), [2](#absent), [3](../src/away.py), [4](../README.md#gone)\n",
    )
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for problem in (
        "missing.md",
        "#absent",
        "src/away.py",
        "#gone",
        "forgotten.md",
        "index.md#one",
    ):
        assert problem in done.stderr


@pytest.mark.parametrize(
    ("text", "folder", "page", "expected"),
    [
        ("[a](b.md)", "docs", "x.md", "[a](b.md)"),
        ("[a](../src/b.py#L1)", "docs", "x.md", "[a](source/src/b.py.md#L1)"),
        ("`[a](../src/b.py)`", "docs", "x.md", "`[a](../src/b.py)`"),
        ("[a](../CHANGELOG.md)", "docs", "x.md", "[a](changelog.md)"),
        ("[a](docs/b.md#c), [d](LICENSE)", ".", "readme.md", "[a](b.md#c), [d](source/LICENSE.md)"),
        ("[a](https://example.org/b)", "docs", "x.md", "[a](https://example.org/b)"),
        ("[a]: ../b.txt", "docs", "x.md", "[a]: source/b.txt.md"),
    ],
)
def test_links_out_of_the_docs_are_rewritten(
    text: str, folder: str, page: str, expected: str
) -> None:
    assert docsite.rewritten(text, folder, page) == expected


def test_anchors_are_those_of_a_markdown_host(site: dict[str, Parts]) -> None:
    """An anchor of ``tools/docs.py`` is one on the site, except numbers of repeated headings."""
    lacking = []
    for page in PAGES:
        wanted = {
            name
            for name in docs.anchors((ROOT / "docs" / page).read_text("utf-8"))
            if name[-2:] != "-1"
        }
        lacking += [f"{page}#{anchor}" for anchor in wanted - site[built(page)].ids]
    assert lacking == []

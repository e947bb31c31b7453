import ast
import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.cli.rendering import DOCS_URL
from gapless.config import SETTINGS, Config
from tools import docs

ROOT = Path(__file__).resolve().parent.parent


def fenced(path: Path, language: str) -> Iterator[str]:
    for match in re.finditer(
        rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE
    ):
        yield match[1]


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# The project's own pages


def test_docs_are_in_order() -> None:
    """A process of its own: another test may have changed what the commands say of themselves."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "docs.py"), "--check"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", docs.pages(ROOT), ids=lambda page: page.name)
def test_examples_do_what_they_show(page: Path) -> None:
    text = "\n".join(fenced(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    results = doctest.DocTestRunner().run(test)
    assert results.failed == 0
    assert results.attempted == text.count(">>> ")


def test_the_three_forms_of_configuration_agree() -> None:
    page = ROOT / "docs/reference/settings.md"
    (toml,) = fenced(page, "toml")
    (properties,) = fenced(page, "properties")
    expected = Config.make(capacity=64, xmit_interval="200ms", window_bytes="4MiB")
    assert Config.from_toml(toml) == expected
    assert Config.from_properties(properties) == expected


def test_every_setting_is_in_the_table() -> None:
    text = (ROOT / "docs/reference/settings.md").read_text()
    assert [key for key in SETTINGS if f"| `{key}` |" not in text] == []


def test_the_glossary_stays_short() -> None:
    nouns = re.findall(
        r"^- \*\*([a-z -]+)\*\*: [A-Z]",
        (ROOT / "docs/reference/glossary.md").read_text(),
        re.MULTILINE,
    )
    assert 20 <= len(nouns) <= 30
    assert len(nouns) == len(set(nouns))


# Generated parts


GENERATED = "a\n<!-- generated: x -->\nold\n<!-- end generated -->\nb\n"


def test_generated_part_is_replaced_and_the_rest_kept() -> None:
    fresh = docs.regenerate(GENERATED, {"x": lambda: "new\n"})
    assert fresh == GENERATED.replace("old", "new")
    assert docs.regenerate(fresh, {"x": lambda: "new\n"}) == fresh


def test_unknown_or_open_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing generates 'x'; known are y"):
        docs.regenerate(GENERATED, {"y": str})
    with pytest.raises(ValueError, match="'x' has no <!-- end generated -->"):
        docs.regenerate("<!-- generated: x -->\n", {"x": str})


def test_a_marker_shown_as_code_is_no_marker() -> None:
    text = "write `<!-- generated: x -->` to begin\n"
    assert docs.regenerate(text, {}) == text


def test_stale_page_fails_the_check_and_is_mended_by_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = "<!-- generated: settings -->\n<!-- end generated -->\n"
    write(tmp_path, "docs/page.md", stale)
    run = ["--root", str(tmp_path)]
    assert docs.main([*run, "--check"]) == 1
    assert "docs/page.md: a generated part is stale; run make docs" in capsys.readouterr().err
    assert (tmp_path / "docs/page.md").read_text() == stale
    assert docs.main(run) == 0
    assert "`xmit_interval`" in (tmp_path / "docs/page.md").read_text()
    assert docs.main([*run, "--check"]) == 0


def test_bad_marker_is_a_problem_of_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "README.md", "<!-- generated: nonsense -->\n<!-- end generated -->\n")
    assert docs.main(["--root", str(tmp_path)]) == 1
    assert "README.md: nothing generates 'nonsense'" in capsys.readouterr().err


# Links


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Two Words", "two-words"),
        ("The `low` mark, and *high*", "the-low-mark-and-high"),
        ("max_frame_bytes: why?", "max_frame_bytes-why"),
        ("See [the wire](wire.md)", "see-the-wire"),
        ("a - b", "a---b"),
    ],
)
def test_slug(heading: str, anchor: str) -> None:
    assert docs.slug(heading) == anchor


def test_anchors_number_repeats_and_skip_code() -> None:
    text = '# One\n## One\n```sh\n# not a heading\n```\n<a id="hand-made"></a>\n'
    assert docs.anchors(text) == {"one", "one-1", "hand-made"}


def test_links_outside_code_are_found() -> None:
    text = """[a](a.md) and ![b](img/b.png "title") and [c](#here)
`[no](code.md)` [web](https://example.org) [mail](mailto:x@example.org)
```
[no](fence.md)
```
[ref]: d%20e.md#f
"""
    assert list(docs.links(text)) == [(1, "a.md"), (1, "img/b.png"), (1, "#here"), (6, "d e.md#f")]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("other.md", None),
        ("other.md#top", None),
        ("#page", None),
        ("../README.md#title", None),
        ("..", None),
        ("missing.md", "docs/page.md:3: missing.md leads to no file"),
        ("other.md#nowhere", "docs/page.md:3: other.md#nowhere names no heading of other.md"),
        ("#nowhere", "docs/page.md:3: #nowhere names no heading of page.md"),
        ("../../outside.md", "docs/page.md:3: ../../outside.md leads out of the project"),
    ],
)
def test_broken_links_are_listed(tmp_path: Path, link: str, problem: str | None) -> None:
    write(tmp_path, "README.md", "# Title\n")
    write(tmp_path, "docs/other.md", "# Top\n")
    write(tmp_path, "docs/page.md", f"# Page\n\n[x]({link})\n")
    assert docs.broken_links(tmp_path) == ([] if problem is None else [problem])


def test_broken_link_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "README.md", "[x](missing.md)\n")
    assert docs.main(["--root", str(tmp_path)]) == 1
    assert "README.md:1: missing.md leads to no file" in capsys.readouterr().err


def test_links_of_the_readme_work_on_a_package_index() -> None:
    """A package index shows the README without the repository around it."""
    text = docs.without_code((ROOT / "README.md").read_text(encoding="utf-8"))
    targets = [match[1] for match in docs.INLINE_LINK.finditer(text)]
    assert targets
    for target in targets:
        assert target.startswith(f"{DOCS_URL}/"), target
        name, _, anchor = target.removeprefix(f"{DOCS_URL}/").partition("#")
        if not name.endswith(".html"):
            assert (ROOT / "docs" / name).is_file(), target
            continue
        page = ROOT / "docs" / f"{name.removesuffix('.html')}.md"
        page = page if page.exists() else page.with_name("README.md")
        top = ROOT / f"{name.removesuffix('.html').upper()}.md"
        page = page if page.exists() else top
        assert page.exists(), target
        assert not anchor or anchor in docs.anchors(page.read_text(encoding="utf-8")), target


# Names of files


_FILE_NAME = re.compile(r"(?<![\w*/.-])((?:\w+/)*\w+\.py)\b")
READERS_FILES = {
    *("hello.py", "orders.py", "slow.py", "test_orders.py", "published.py", "where.py", "stock.py"),
    *("test_stock.py", "test_shop.py", "test_third_message.py", "ledger.py", "till.py"),
    *("service.py", "pod.py", "prices.py", "app_fastapi.py", "app_aiohttp.py", "sender.py"),
    *("reader.py", "squares.py", "counters.py", "joining.py", "reading_thread.py"),
    "test_lost_change.py",
}
"""Programs that a page tells its reader to write."""


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def unknown_files(text: str) -> set[str]:
    """Return the Python files that a text names and that the project does not have."""
    known = {f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py")}
    named = set(_FILE_NAME.findall(text)) - READERS_FILES
    return {name for name in named if not any(path.endswith(f"/{name}") for path in known)}


def test_every_file_that_a_page_or_a_docstring_names_exists() -> None:
    folders = ("src", "tools", "bench", "examples", "experiments")
    texts = {page: page.read_text(encoding="utf-8") for page in docs.pages(ROOT)}
    del texts[ROOT / "CHANGELOG.md"]  # it names what there was
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        texts[path] = "\n".join(docstrings(path))
    named = "\n".join(texts.values())
    stale = unknown_files(named)
    assert {
        str(path): names for path, text in texts.items() if (names := _named(text, stale))
    } == {}


def _named(text: str, stale: set[str]) -> set[str]:
    return stale & set(_FILE_NAME.findall(text))


def test_a_stale_name_is_found() -> None:
    assert unknown_files("see `outbox.py`, runtime/reactor.py and handle.py") == {"outbox.py"}

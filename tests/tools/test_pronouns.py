"""The rate of pronouns: counted words, skipped parts of a page, and the output of the tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tools import pronouns
from tools.pronouns import Rate

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """# Title words

It sends `that` to [a member](which-page.md#what "they").

```python
this = that
```

| setting | meaning |
|---|---|
| `it` | Its default |

    ```sh
    who
    ```

<!-- generated: settings -->
everything generated
<!-- end generated -->
<!-- nobody -->
Last words.
"""


def test_only_the_prose_of_a_page_counts() -> None:
    kept = " ".join(pronouns.prose(PAGE).split())
    assert kept.startswith("# Title words It sends to [a member] . | setting | meaning |")
    assert kept.endswith("| | Its default | Last words.")
    assert Rate(0, 0).plus(pronouns.prose(PAGE)) == (13, 2)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "src/pack/__init__.py": '"""Send a message."""\n',
        "src/pack/deep/a.py": 'def f():\n    """Send it now."""\n    "not this"\n',
        "bench/run.py": '"""Measure the group."""\n',
        "README.md": "Read this.\n",
        "docs/index.md": "Four words are here.\n",
        "docs/start/a.md": "It runs.\n",
        "docs/start/b.md": "Members run.\n",
        "docs/about/changelog.md": "It it it.\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(pronouns, "ROOT", tmp_path)
    return tmp_path


def test_docstrings_count_for_their_package_and_pages_for_their_folder(tree: Path) -> None:
    assert pronouns.docstring_rates(tree) == {"bench": (3, 0), "pack": (3, 0), "pack.deep": (3, 1)}
    assert pronouns.docstring_rates(tree, by_file=True)["src/pack/deep/a.py"] == (3, 1)
    assert pronouns.page_rates(tree) == {
        "README.md": (2, 1),
        "docs/": (4, 0),
        "docs/index.md": (4, 0),
        "docs/start/": (4, 1),
        "docs/start/a.md": (2, 1),
        "docs/start/b.md": (2, 0),
    }


@pytest.mark.usefixtures("tree")
def test_over_shows_the_rates_above_the_limit_and_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pronouns.main(["--over", "30", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["docstrings"] == {"pack.deep": {"rate": 33.33, "words": 3}}
    assert set(shown["docs"]) == {"README.md", "docs/start/a.md"}
    assert pronouns.main(["--over", "60"]) == 0
    assert pronouns.main([]) == 0
    assert "docs/start/a.md" in capsys.readouterr().out

"""The words of the pages and of the docstrings are in a dictionary or in tools/words.txt."""

from __future__ import annotations

from pathlib import Path

from tools import spelling


def test_every_word_is_spelled_correctly() -> None:
    assert spelling.misspelled(spelling.ROOT, spelling.word_list()) == [], (
        "correct the word, or add it to tools/words.txt if it is right"
    )


def test_a_misspelled_word_is_found_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Title\n\nA recieved `mesage`, https://exmaple.org.\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text(
        'x = 1\n\n\ndef f():\n    """Return\n    nothign."""\n'
    )
    assert spelling.misspelled(tmp_path, set()) == [
        "README.md:3: recieved",
        "src/code.py:6: nothign",
    ]
    assert spelling.misspelled(tmp_path, {"recieved", "nothign"}) == []


def test_code_links_and_names_are_not_prose() -> None:
    text = "A ``SpoolWritr``, :class:`Grop`, [lnk](pge.md), max_frme, a.bcd and `cde`. Ends."
    assert [word for _, word in spelling.words(text)] == ["lnk", "and", "ends"]


def test_the_word_list_is_in_order() -> None:
    listed = spelling.WORD_LIST.read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))

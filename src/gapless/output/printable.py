"""Text for a terminal or a log, with letters and signs only.

Payloads, names, headers and errors of other members are bytes of strangers. A terminal obeys ESC
and other control characters in such a text, and a bidirectional override shows a line in another
order than the bytes have.
"""

from __future__ import annotations

from unicodedata import category

_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls, format characters (such as U+202E), lone surrogates, line and paragraph separators."""


def printable(text: str, *, keep_newlines: bool = False) -> str:
    r"""Return ``text`` with every character that is not for reading as a visible escape.

    Args:
        text: Any text; a text without such characters is returned unchanged.
        keep_newlines: Whether newlines stay. If not, the text cannot pretend to be several lines.

    >>> printable("a\x1b[2Jb\u202e\n")
    'a\\x1b[2Jb\\u202e\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if category(character) in _ESCAPED_CATEGORIES and not (keep_newlines and character == "\n")
        else character
        for character in text
    )

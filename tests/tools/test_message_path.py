"""The way of one message stays short: a limit for the functions and the files that it passes."""

from __future__ import annotations

from tools.message_path import measure
from tools.shape import broken_message_limits


def test_one_message_with_threads_passes_few_functions_and_files() -> None:
    found = {"threads": measure("threads")}
    assert broken_message_limits(found) == [], found

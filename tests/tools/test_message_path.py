"""The way of one message stays short: a limit for the functions and the files that it passes."""

from __future__ import annotations

from tools.message_path import measure

LIMITS = {"send": (103, 21), "receive": (99, 19)}
"""Maximum calls and files per side with threads: half of what version 0.1 needed."""


def test_one_message_with_threads_passes_few_functions_and_files() -> None:
    found = measure("threads")
    for side, (calls, files) in LIMITS.items():
        functions = found[side]["functions"]
        assert found[side]["calls"] <= calls, functions
        assert found[side]["files"] <= files, functions

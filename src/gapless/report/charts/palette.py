"""The light and dark colours of the page, distinguishable with red-green blindness.

The contrast of text with the background is at least 4.5 : 1, of lines at least 3 : 1
(``tests/report/test_page.py``). No colour is the only sign: lines have dashes, marks have
shapes, states have words.
"""

from __future__ import annotations

LIGHT = {
    "ground": "#f6f7f9",
    "card": "#ffffff",
    "raised": "#eef1f5",
    "edge": "#d5dbe3",
    "grid": "#e4e8ee",
    "text": "#17202b",
    "soft": "#515d6c",
    "link": "#0a5bb0",
    "focus": "#0a5bb0",
    "good": "#116a43",
    "good-ground": "#e3f4ea",
    "bad": "#b3261e",
    "bad-ground": "#fdeceb",
    "warn": "#7d5200",
    "warn-ground": "#fdf3dc",
    "c1": "#0b65b4",
    "c2": "#c2410c",
    "c3": "#0d7a57",
    "c4": "#8e3b9e",
    "c5": "#8a6100",
    "c6": "#2a7f9e",
    "c7": "#5b6675",
    "c8": "#b0255f",
    "view-a": "#cfe0f3",
    "view-b": "#a5c6e8",
}
"""Colours on paper, and on a system with a light theme."""

DARK = {
    "ground": "#0e1319",
    "card": "#161d26",
    "raised": "#1f2833",
    "edge": "#364352",
    "grid": "#26303c",
    "text": "#e8edf3",
    "soft": "#a8b4c2",
    "link": "#7cb8ff",
    "focus": "#7cb8ff",
    "good": "#5fd49a",
    "good-ground": "#12301f",
    "bad": "#ff938a",
    "bad-ground": "#3a1917",
    "warn": "#f0c05a",
    "warn-ground": "#33270d",
    "c1": "#66b2ff",
    "c2": "#ff9b5e",
    "c3": "#4ccf9f",
    "c4": "#d795e6",
    "c5": "#e3bd4f",
    "c6": "#7cd3ee",
    "c7": "#aab6c4",
    "c8": "#ff86b0",
    "view-a": "#28425f",
    "view-b": "#386090",
}
"""Colours on a system with a dark theme."""


def css() -> str:
    """Return the rules that set every colour for the active theme."""
    light = "".join(f"--{name}:{colour};" for name, colour in LIGHT.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and "
        f"(prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}\n"
    )

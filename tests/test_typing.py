"""mypy rejects calls of the public API that would fail at run time."""

from pathlib import Path

import pytest

HEAD = "import gapless\nfrom gapless import blocking\n\ndef use(group: blocking.Group) -> None:\n"
RIGHT = [
    'group.send(b"x", mode="acknowledged")',
    "group.send(b'x', mode=gapless.DeliveryMode.OUT_OF_BAND)",
    "group.send(b'x', mode=gapless.Mode.ORDERED)",
    'blocking.join("x", seeds=["127.0.0.1:7800"], display_name="a", durable_name="b")',
]
WRONG = {
    'group.send(b"x", mode="acked")': "mode",
    'group.send("text")': "arg-type",
    'blocking.join("x", durable="b")': 'Unexpected keyword argument "durable"',
    'gapless.join("x", timout=3)': 'Unexpected keyword argument "timout"',
}


def check(path: Path, lines: list[str]) -> str:
    api = pytest.importorskip("mypy.api")
    file = path / "program.py"
    file.write_text(HEAD + "".join(f"    {line}\n" for line in lines))
    told: str = api.run(["--strict", "--no-incremental", "--config-file=", str(file)])[0]
    return told


def test_mypy_accepts_what_works_and_rejects_what_does_not(tmp_path: Path) -> None:
    told = check(tmp_path, [*RIGHT, *WRONG]).splitlines()
    start = HEAD.count("\n") + 1
    for at, line in enumerate(RIGHT, start):
        assert not [row for row in told if f"program.py:{at}:" in row], line
    for at, (line, reason) in enumerate(WRONG.items(), start + len(RIGHT)):
        assert any(f"program.py:{at}:" in row and reason in row for row in told), (line, told)

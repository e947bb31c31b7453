"""Every block of code on the pages does what it says.

Python runs in a sandbox (tests/support/programs/sandbox.py), or as a program of its own
(test_programs.py). Shell blocks are parsed by the shell, and each ``gapless`` command in them by
the command itself. TOML, YAML, JSON, INI and Docker files go through their parsers.
"""

from __future__ import annotations

import configparser
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml

from gapless.cli.app import cli
from gapless.config import Config
from tools import docs

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = ROOT / "tests" / "support" / "programs" / "sandbox.py"

NEEDS = {
    "docs/guides/receiving.md": "group",
    "docs/guides/report.md": "figures",
    "docs/guides/requests.md": "group",
    "docs/guides/sending.md": "group",
    "docs/guides/pipeline.md": "pipeline",
    "docs/internals/sweeps.md": "sweep",
    "docs/reference/events.md": "group",
    "docs/reference/metrics.md": "group",
    "docs/reference/traces.md": "gapless",
    "docs/start/tutorial.md": "group",
}
"""What the first block of a page takes for granted: see ``setup`` in the sandbox."""

SPARK_SETUPS = {"figures", "pipeline", "spark", "sweep"}
SPARK = re.compile(r"pyspark|\bspark\.")
"""Blocks that need Spark; the pages that have one share a sandbox, and so a session."""

PAGES_WITH_A_TEST = {"docs/guides/spark-reading.md": "test_source_page.py"}
"""Pages whose blocks need data of their own, and the test that provides the data."""

QUICK_COMMANDS = {"chat", "collect", "config", "doctor", "listen", "send", "spool", "top"}
"""Commands that are run as the pages show them. The others take minutes; each has its own tests."""

LANGUAGES = {
    *("dockerfile", "ini", "json", "mermaid", "properties", "promql", "py", "pycon", "python"),
    *("sh", "text", "toml", "yaml"),
}
"""Languages of blocks. A block without a language, or in ``text``, is output or a formula."""


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in one of the languages, without their indentation."""
    found = []
    for path in docs.pages(ROOT):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(
            r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE
        ):
            body = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
            line = text.count("\n", 0, match.start()) + 1
            if not languages or match[2] in languages:
                found.append(Block(path.relative_to(ROOT).as_posix(), line, match[2], body))
    return found


def test_every_block_is_in_a_language_that_is_checked() -> None:
    assert {block.language for block in blocks()} <= {*LANGUAGES, ""}


# Python


def python_pages(*, spark: bool) -> list[str]:
    """Return the pages with Python blocks: those where a block needs Spark, or the others."""
    texts: dict[str, str] = {}
    for block in blocks("python", "py"):
        if not re.match(r"# \w+\.py\n", block.text):
            texts[block.page] = texts.get(block.page, "") + block.text
    return sorted(
        page
        for page, text in texts.items()
        if page not in PAGES_WITH_A_TEST
        and (NEEDS.get(page) in SPARK_SETUPS or bool(SPARK.search(text))) == spark
    )


def page_task(page: str) -> str:
    """Return the task of a page for the sandbox."""
    return f"{ROOT / page}+{NEEDS[page]}" if page in NEEDS else str(ROOT / page)


def run_sandbox(folder: Path, tasks: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(SANDBOX), str(folder / "sandbox"), *tasks],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", python_pages(spark=False))
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    run_sandbox(tmp_path, [page_task(page)])


@pytest.mark.xdist_group("spark")
def test_the_python_of_the_pages_about_spark_runs(tmp_path: Path) -> None:
    run_sandbox(tmp_path, [page_task(page) for page in python_pages(spark=True)])


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2, x\n```\n")
    with pytest.raises(
        AssertionError, match=r"page.md:8: the block fails\n(.*\n)+ *AssertionError: 1"
    ):
        run_sandbox(tmp_path, [str(page)])


# Commands


def commands(text: str) -> list[list[str]]:
    """Return the ``gapless`` commands of a shell block, each as its words."""
    found = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if "gapless" not in line:
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for is_operator, group in itertools.groupby(
            lexer, lambda word: set(word) <= set("|&;<>()")
        ):
            words = [word for word in group if not re.match(r"[A-Z_]+=", word)]
            if not is_operator and words and words[0].rpartition("/")[2] == "gapless":
                found.append(words[1:])
    return found


def parse(arguments: list[str]) -> None:
    """Let the command read its options and arguments, without doing anything."""
    context, command = click.Context(cli, info_name="gapless"), cli.get_command
    name, *rest = arguments
    found = command(context, name)
    assert found is not None, f"there is no command {name!r}"
    inner = found.make_context(name, rest, parent=context)
    if isinstance(found, click.Group):
        sub, *tail = rest
        leaf = found.get_command(inner, sub)
        assert leaf is not None, f"there is no command {name} {sub}"
        leaf.make_context(sub, tail, parent=inner)


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_a_shell_block_is_right(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    for words in commands(script):
        if "--help" in words or not words or words[0] == "--version":
            continue
        for word in words:  # files that the reader has
            if re.fullmatch(r"[\w./-]+\.(toml|txt|csv|json|html)", word) and "/" not in word:
                Path(word).write_text("")
        try:
            parse(words)
        except click.ClickException as error:
            if "does not exist" not in error.message:
                raise AssertionError(
                    f"{block}: gapless {' '.join(words)}: {error.message}"
                ) from None


def test_a_wrong_command_is_found() -> None:
    assert commands("A=1 gapless top orders --once | less  # look\npip install gapless\n") == [
        ["top", "orders", "--once"]
    ]
    with pytest.raises(click.ClickException, match="No such option"):
        parse(["top", "orders", "--onec"])
    with pytest.raises(AssertionError, match="there is no command 'tpo'"):
        parse(["tpo"])


def test_the_commands_of_the_pages_run(tmp_path: Path) -> None:
    """Every command for members, spools and settings, as it stands on its page."""
    wanted = {
        json.dumps(words)
        for block in blocks("sh")
        for words in commands(block.text)
        if words and words[0] in QUICK_COMMANDS and "--help" not in words
    }
    assert len(wanted) > 10
    run_sandbox(tmp_path, sorted(wanted))


# Data


@pytest.mark.parametrize("block", blocks("toml", "yaml", "json", "ini", "dockerfile"), ids=str)
def test_a_data_block_is_right(block: Block) -> None:
    if block.language == "toml":
        table = tomllib.loads(block.text)
        if set(table) == {"gapless"}:
            Config.from_toml(block.text)
    elif block.language == "yaml":
        assert all(document for document in yaml.safe_load_all(block.text))
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "ini":
        parser = configparser.RawConfigParser(strict=False)
        text = block.text if block.text.lstrip().startswith("[") else f"[Service]\n{block.text}"
        parser.read_string(text)
        assert parser.sections()
    else:
        instructions = [
            line.split()[0] for line in block.text.splitlines() if re.match(r"[A-Z]", line)
        ]
        assert instructions[0] == "FROM"

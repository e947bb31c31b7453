"""Run the Python blocks of pages, and commands, in a sandbox: ``sandbox.py FOLDER TASK…``.

A task is the path of a page, with what its blocks take for granted behind a plus sign, or the words
of a command as a JSON list. The blocks of one page run in order and share their names, as a reader
would type them. Inside the sandbox, every group lives on a network in this process, where a
companion is the second member of each group: it reads all messages, sends a few, and answers
requests. Paths outside the working folder, such as ``/data/spool``, lie below ``FOLDER``, which
holds spools and a trace. A block that reads for ever is stopped after a while; every other one has
to end by itself. A command that runs until it is interrupted gets Ctrl-C after a while.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gapless
import gapless.trace
from gapless import blocking
from gapless.cli.app import run as run_cli
from gapless.group import join_options
from gapless.keys.keyring import Keyring
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless.transport import InProcessNetwork
from gapless_lab.sensor_pipeline.readings import reading

PATIENCE_S = 100.0
"""How long a block may take to end."""
READING_S = 1.5
"""How long a block that reads for ever is watched."""
QUICK = {"found_after": "20ms", "join_interval": "10ms", "leave_timeout": "1s"}
OUTER_PATHS = re.compile(r"(?<=[\"' :=/])/(data|shared|srv|var|mnt)/")
ENDLESS = re.compile(
    r"^\s*(async for \w+ in [\w.]+group|for \w+ in [\w.]*group|while |handle\.wait)|"
    r"async for .+ in group|for .+ in group(:|\.)|serve_forever|uvicorn\.run|web\.run_app",
    re.MULTILINE,
)
UNTIL_INTERRUPTED = {"chat", "collect", "listen", "top"}
"""Commands that end with Ctrl-C."""
FENCE = re.compile(
    r"(?:<!-- needs: (?P<package>\w+) -->\n+)?"
    r"^(?P<indent> *)```(?:python|py)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
"""A Python block, with the mark of a package that the tests do not install."""

SPOOLS = ("data/spool", "data/orders", "var/spool/orders", "lounge.spool", "gapless-pipeline/spool")
"""The spools that pages read, below the folder."""
PROGRAM = re.compile(r"\s*# \w+\.py\n")
"""The beginning of a block that is a file; tests/docs/test_programs.py runs it as one."""

stack = ExitStack()


class Network:
    """The network of one page, and the groups on it that have a companion."""

    def __init__(self, companion: str) -> None:
        self.network = InProcessNetwork()
        self.groups: set[str] = set()
        self.companion = companion

    def open_transport(self, options: join_options.MemberOptions) -> Any:
        """Check the address options of a member, and open a transport in this process instead."""
        join_options.read_discovery(options.discover, options.group, options.seeds).close()
        if options.group not in self.groups:
            self.groups.add(options.group)
            names = options.group, self.companion
            threading.Thread(target=be_companion, args=names, daemon=True).start()
        return self.network.open()


def be_companion(name: str, durable_name: str) -> None:
    """Be the other member of a group."""
    config = {"suspect_after": "60s"}
    with blocking.join(name, durable_name=durable_name, config=config, timeout=20) as group:
        group.serve(lambda request: b"42")
        group.wait_for_members(2)
        for number in range(120):
            group.send(b'{"id": %d}' % number)
        for _ in group:
            pass


_read_config = join_options.read_config


def patch(companion: str = "collector") -> None:
    """Put every group that this process joins from now on on a network of the sandbox."""
    network = Network(companion)
    options: Any = join_options.MemberOptions
    options._open_transport = lambda self, *_: network.open_transport(self)
    join_options.read_config = lambda config: _read_config(config).replace(**QUICK)


def run_block(
    text: str, names: dict[str, Any], where: str, loop: asyncio.AbstractEventLoop
) -> None:
    """Run one block: in the event loop if it awaits, otherwise in a thread of its own."""
    code = compile(text, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    awaits = bool(code.co_flags & inspect.CO_COROUTINE)
    endless = bool(ENDLESS.search(text))
    errors: list[BaseException] = []

    def call() -> None:
        try:
            if awaits:
                asyncio.run_coroutine_threadsafe(evaluate(), loop).result()
            else:
                exec(code, names)
        except BaseException as error:  # noqa: BLE001  # the thread hands it over
            errors.append(error)

    async def evaluate() -> None:
        await eval(code, names)

    if not awaits and not endless:
        exec(code, names)  # in this thread, which is the one where Spark's session is active
        return
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(READING_S if endless else PATIENCE_S)
    if errors:
        raise errors[0]
    if thread.is_alive() and not endless:
        raise TimeoutError(f"the block does not end within {PATIENCE_S:.0f} s")


def setup(needs: str, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Define what the first block of a page takes for granted."""
    if needs == "group":
        member = gapless.join("orders")

        async def enter() -> gapless.Group:
            await member.open()
            await member.wait_for_members(2, timeout=20)
            return member

        group = asyncio.run_coroutine_threadsafe(enter(), loop).result(30)
        peers = [peer for peer in group.view.members if peer != group.me]  # type: ignore[union-attr]
        names.update(gapless=gapless, group=group, member=peers[0], other=peers[0])
    elif needs == "blocking":
        group_ = stack.enter_context(blocking.join("orders", timeout=20))
        group_.wait_for_members(2, timeout=20)
        names.update(gapless=gapless, group=group_)
    elif needs == "gapless":
        names.update(gapless=gapless)
    elif needs == "spark":
        from pyspark_gapless.session import session

        names.update(spark=session("docs", settings={"spark.sql.shuffle.partitions": 1}))
    elif needs == "pipeline":
        from pyspark_gapless.session import session
        from pyspark_gapless.tables.pipeline import Pipeline

        pipeline = Pipeline("gapless-pipeline", spool="gapless-pipeline/spool")
        pipeline.prepare()
        pipeline.catch_up(session())
    elif needs == "sweep":
        from pyspark_gapless.session import session

        assert (
            run_cli(["sweep", "--preset", "hunt", "--seeds", "2", "--output", "gapless-sweep"]) == 0
        )
        names.update(spark=session())
    elif needs == "figures":
        from pyspark_gapless.analytics import figures
        from pyspark_gapless.session import session
        from pyspark_gapless.trace import Trace

        found = figures(Trace.read(session(), "traces"))
        Path("figures.json").write_text(json.dumps(found), encoding="utf-8")
    else:
        raise ValueError(f"no set-up is called {needs!r}")


def prepare(folder: Path) -> None:
    """Write what pages read: spools with the messages of a shop, and a trace of the shop."""
    for name in SPOOLS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        network, group = InProcessNetwork(), "lounge" if "lounge" in name else "orders"
        with (
            Collector(folder / name, group, transport=network.open(), config=QUICK),
            blocking.join(
                group,
                transport=network.open(),
                durable_name="shop",
                trace=folder / "traces" if name == SPOOLS[0] else None,
                config=QUICK,
                timeout=20,
            ) as shop,
        ):
            shop.wait_for_member("collector", timeout=20)
            shop.send_many([reading(1, 1, number).payload() for number in range(300)], timeout=20)
            shop.send(b"closing", mode="acknowledged").delivered(timeout=20)
        for reader in ("OLD-READER", "OLD-QUERY"):
            SpoolReader(folder / name).register(reader, {})
    (folder / "group.toml").write_text("[gapless]\ncapacity = 64\n")
    (folder / "photos.tar").write_bytes(bytes(100_000))
    Keyring.new().create(folder / "spool-keys.toml")
    (folder / "trace").symlink_to(folder / "traces")


def run_command(words: list[str]) -> None:
    """Run a command of the sandbox; Ctrl-C ends one that runs until it is interrupted."""
    patch("" if words[0] == "collect" else "collector")
    timer = threading.Timer(READING_S, lambda: os.kill(os.getpid(), signal.SIGINT))
    if words[0] in UNTIL_INTERRUPTED:
        timer.start()
    try:
        status = run_cli(words)
    finally:
        timer.cancel()
    if status not in {0, 130}:
        raise AssertionError(f"exit code {status}")


def run_page(page: str, folder: Path, loop: asyncio.AbstractEventLoop) -> int:
    """Run the blocks of a page; print those that fail, and return their number."""
    failed = 0
    path, *needs = page.split("+")
    text = Path(path).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    # A page with a collector of its own shares no durable name with the companion.
    patch("" if "Collector(" in text else "collector")
    for need in needs:
        setup(need, names, loop)
    for match in FENCE.finditer(text):
        if PROGRAM.match(match["text"]):
            continue
        line = text.count("\n", 0, match.start("indent")) + 2
        block = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        block = "\n" * (line - 1) + block
        if match["package"] and find_spec(match["package"]) is None:
            compile(block, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            continue
        try:
            run_block(OUTER_PATHS.sub(rf"{folder}/\1/", block), names, path, loop)
        except BaseException:  # noqa: BLE001  # every error is reported with its block
            failed += 1
            print(f"{path}:{line}: the block fails\n{traceback.format_exc(-3)}", flush=True)
    return failed


def main(folder: Path, tasks: list[str]) -> int:
    """Run every page and command; print what fails, and return 1 if something does."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    prepare(folder)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    failed = 0
    for task in tasks:
        if not task.startswith("["):
            failed += run_page(task, folder, loop)
            continue
        try:
            words = json.loads(task)
            run_command([OUTER_PATHS.sub(rf"{folder}/\1/", f" {word}")[1:] for word in words])
        except BaseException:  # noqa: BLE001  # every error is reported with its command
            failed += 1
            print(f"{task}: the command fails\n{traceback.format_exc(-3)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(status)  # blocks that read for ever are still at it

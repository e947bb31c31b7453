"""Real members that start at the same moment, with default settings, end in one group."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import gapless
from tests.support.multicast import need_multicast
from tests.support.networks import free_ports
from tests.support.real_groups import run

if TYPE_CHECKING:
    from pathlib import Path

STARTS = 50
TCP_STARTS = 20
BLOCKS = 5
"""The real starts run in so many tests, each with its share of the seeds."""


async def start(name: str, options: list[dict[str, Any]], rng: Random) -> None:
    """Start members in one moment, and wait until each has a message of every other."""
    count = len(options)
    pauses_s = [rng.choice([0, 0, 0.005, 0.07]) for _ in range(count)]
    async with AsyncExitStack() as stack:

        async def one(pause_s: float, own: dict[str, Any]) -> gapless.Group:
            await asyncio.sleep(pause_s)
            return await stack.enter_async_context(gapless.join(name, host="127.0.0.1", **own))

        groups = await asyncio.gather(*map(one, pauses_s, options))
        for group in groups:
            await group.wait_for_members(count, timeout=30)
        for group in groups:
            await group.send(b"hello")
        for group in groups:
            senders = {(await group.receive(timeout=30)).sender for _ in groups}  # type: ignore[union-attr]
            assert len(senders) == count


@pytest.mark.parametrize("block", range(BLOCKS))
def test_simultaneous_starts_end_in_one_group(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_multicast()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for seed in range(block, STARTS, BLOCKS):
        rng = Random(seed)
        run(start(f"starts-{os.getpid()}-{seed}", [{}] * rng.randint(2, 8), rng))


@pytest.mark.parametrize("seeds", [False, True], ids=["directory", "seeds"])
def test_simultaneous_starts_over_tcp_end_in_one_group(
    seeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A founder over TCP has been refused by every seed, or is alone in the directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for seed in range(TCP_STARTS):
        rng = Random(seed)
        count = rng.randint(2, 8)
        options: list[dict[str, Any]] = [{"transport": "tcp"} for _ in range(count)]
        if seeds:
            ports = free_ports(count)
            known = [f"127.0.0.1:{port}" for port in ports]
            for own, port in zip(options, ports, strict=True):
                own.update(ports=port, seeds=known)
        run(start(f"tcp-{os.getpid()}-{seed}", options, rng))

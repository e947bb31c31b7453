"""The end of a process on this machine is noticed at once; no other is taken for it."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from gapless.transport import process_watch
from gapless.transport.process_watch import _TOKEN, ProcessWatch, _identity
from gapless.transport.shared_memory import process_of
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not process_watch.AVAILABLE, reason="needs pidfd_open")
WAIT = ("-c", "input()")
HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


@pytest.fixture
def sent() -> list[tuple[bytes, object]]:
    return []


@pytest.fixture
def watch(sent: list[tuple[bytes, object]]) -> Iterator[ProcessWatch]:
    made = ProcessWatch(lambda datagram, target: sent.append((datagram, target)))
    yield made
    made.close()


def token_of(process: int) -> bytes:
    return _TOKEN.pack(*_identity(process))


def test_the_end_of_a_process_makes_the_poller_readable(watch: ProcessWatch) -> None:
    with ChildProcess(*WAIT) as child, ChildProcess(*WAIT) as other:
        watch.on_process(child.process.pid, token_of(child.process.pid), HERE)
        watch.on_process(other.process.pid, token_of(other.process.pid), THERE)
        assert not watch.ended()
        child.process.kill()
        assert select.select([watch.poller], [], [], 20)[0]
        assert watch.ended() == [HERE]
        assert not watch.ended()


def test_a_process_with_another_start_or_another_space_of_ids_is_not_watched(
    watch: ProcessWatch,
) -> None:
    with ChildProcess(*WAIT) as child:
        space, start = _identity(child.process.pid)
        for token in (_TOKEN.pack(space, start + 1), _TOKEN.pack(space + 1, start)):
            watch.on_process(child.process.pid, token, HERE)
        child.process.kill()
        child.process.wait()
        assert not watch.ended()
    watch.on_process(child.process.pid, token, HERE)
    assert not watch.ended(), "and one that has ended is nobody"


def test_peers_are_told_once_and_whoever_was_not_told_is_answered(
    watch: ProcessWatch, sent: list[tuple[bytes, object]]
) -> None:
    watch.announce([HERE])
    watch.announce([HERE, THERE])
    watch.on_process(os.getpid(), token_of(os.getpid()), THERE)
    assert [target for _, target in sent] == [HERE, THERE]
    assert process_of(sent[0][0]) == (os.getpid(), token_of(os.getpid()))
    watch.announce([])
    watch.on_process(os.getpid(), token_of(os.getpid()), THERE)
    assert len(sent) == 3
    assert process_of(sent[0][0][:-1]) is None


def test_a_process_that_is_no_peer_any_more_is_not_watched(watch: ProcessWatch) -> None:
    with ChildProcess(*WAIT) as child:
        watch.announce([HERE])
        watch.on_process(child.process.pid, token_of(child.process.pid), HERE)
        watch.announce([THERE])
        child.process.kill()
        child.process.wait()
        assert not watch.ended()

"""The load generator: how far it goes ahead of its confirmations, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gapless_lab.producer import LoadBatch, LoadGenerator, batch_size


def batches(*sizes: int) -> Iterator[LoadBatch]:
    first = 1
    for size in sizes:
        yield LoadBatch(range(first, first + size))
        first += size


def test_sends_wait_for_the_oldest_when_too_many_are_unconfirmed() -> None:
    log: list[str] = []

    def send(batch: LoadBatch) -> int:
        log.append(f"send {batch.numbers[0]}")
        return batch.numbers[0]

    def confirm(sent: int, timeout_s: float | None) -> None:
        assert timeout_s is None or timeout_s >= 0
        log.append(f"confirm {sent}")

    load = LoadGenerator(send, confirm, max_in_flight=2)
    load.run(batches(1, 1, 1), threading.Event())
    assert log == ["send 1", "send 2", "confirm 1", "send 3", "confirm 2"]
    load.drain(None)
    assert log[5:] == ["confirm 3"]
    assert not load.in_flight


def test_a_send_that_is_not_confirmed_keeps_its_place_until_the_stop() -> None:
    stop = threading.Event()

    def confirm(sent: LoadBatch, timeout_s: float | None) -> None:
        stop.set()
        raise TimeoutError

    load = LoadGenerator(lambda batch: batch, confirm, max_in_flight=1)
    load.run(batches(5, 5), stop)
    assert [sent.numbers for sent in load.in_flight] == [range(1, 6)]


def test_a_batch_holds_the_messages_of_a_tick() -> None:
    assert batch_size(None, 200) == 200
    assert batch_size(100, 200) == 2
    assert batch_size(1, 200) == 1
    assert batch_size(1_000_000, 200) == 200

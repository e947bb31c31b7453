"""The checker over tables that are right, and over tables with one fault each."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gapless_lab import exactness
from gapless_lab.exactness import FAULTS, ExactnessVerdict, FileRows, TableCheck
from gapless_lab.workload import (
    AckedBatch,
    LedgerContents,
    ProducerLedger,
    decode_message,
    encode_message,
    read_ledger,
)

A, B = "a.1", "b.1"


@dataclass
class World:
    """Two producers of ten messages in two batches each; one of the first died early."""

    ledgers: dict[int, LedgerContents] = field(default_factory=dict)
    rows: list[list[tuple[str, int, bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, stream in ((1, A), (2, B)):
            acked = [AckedBatch(1, 5, stream, 1, 5), AckedBatch(6, 10, stream, 6, 10)]
            ledger = LedgerContents(tried=10, acked=acked if number == 2 else acked[:1])
            self.ledgers[number] = ledger
        # Each inner list is the file of a micro-batch; what was not acknowledged is there by half.
        self.rows = [
            [row(1, A, seqno) for seqno in range(1, 4)]
            + [row(2, B, seqno) for seqno in range(1, 8)],
            [row(1, A, seqno) for seqno in range(4, 8)]
            + [row(2, B, seqno) for seqno in range(8, 11)],
        ]

    def check(self) -> ExactnessVerdict:
        files = [
            FileRows(
                at,
                Path(f"part-{at}"),
                [row[0] for row in file],
                [row[1] for row in file],
                [row[2] for row in file],
            )
            for at, file in enumerate(self.rows)
        ]
        return TableCheck(self.ledgers).run(files)


def row(number: int, stream: str, seqno: int, count: int | None = None) -> tuple[str, int, bytes]:
    return (
        stream,
        seqno,
        encode_message(number, seqno if count is None else count, b"filling"),
    )


def test_a_table_that_is_right_is_sound() -> None:
    verdict = World().check()
    assert verdict.is_sound, verdict.findings
    assert (verdict.sent, verdict.acknowledged, verdict.undecided, verdict.rows) == (20, 15, 5, 17)
    assert (verdict.batches, verdict.streams) == (2, 2)


def lose(world: World) -> None:
    del world.rows[1][-1]


def lose_all_of_a_producer(world: World) -> None:
    world.rows = [[one for one in file if one[0] == A] for file in world.rows]


def repeat_in_a_file(world: World) -> None:
    world.rows[1].append(world.rows[1][-1])


def repeat_in_a_later_batch(world: World) -> None:
    world.rows.append([world.rows[0][-1]])


def give_a_message_two_places(world: World) -> None:
    world.rows.append([row(2, B, 11, count=10)])


def swap_in_a_file(world: World) -> None:
    file = world.rows[0]
    file[0], file[1] = file[1], file[0]


def swap_batches(world: World) -> None:
    world.rows.reverse()


def swap_contents(world: World) -> None:
    world.rows[0][0], world.rows[0][1] = row(1, A, 1, count=2), row(1, A, 2, count=1)


def lose_in_the_middle_of_what_is_not_acknowledged(world: World) -> None:
    world.ledgers[1].acked.clear()
    del world.rows[0][1]


def move_to_another_stream(world: World) -> None:
    world.rows = [[(A, *one[1:]) if one[0] == B else one for one in file] for file in world.rows]
    world.rows = [
        [one for one in file if decode_message(one[2]).producer == 2] for file in world.rows
    ]
    del world.ledgers[1]


def change_a_byte(world: World) -> None:
    stream, seqno, payload = world.rows[0][0]
    world.rows[0][0] = stream, seqno, payload[:-1] + b"?"


def cut_a_payload(world: World) -> None:
    world.rows[0][0] = (*world.rows[0][0][:2], b"")


def add_what_nobody_sent(world: World) -> None:
    world.rows[1].append(row(2, B, 11))


def add_an_unknown_producer(world: World) -> None:
    world.rows[1].append(row(3, "c.1", 1))


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (lose, "missing"),
        (lose_all_of_a_producer, "missing"),
        (repeat_in_a_file, "repeated"),
        (repeat_in_a_later_batch, "repeated"),
        (give_a_message_two_places, "repeated"),
        (swap_in_a_file, "out_of_order"),
        (swap_batches, "out_of_order"),
        (swap_contents, "out_of_order"),
        (lose_in_the_middle_of_what_is_not_acknowledged, "out_of_order"),
        (move_to_another_stream, "out_of_order"),
        (change_a_byte, "damaged"),
        (cut_a_payload, "damaged"),
        (add_what_nobody_sent, "foreign"),
        (add_an_unknown_producer, "foreign"),
    ],
)
def test_every_fault_is_found(plant: Callable[[World], None], fault: str) -> None:
    world = World()
    plant(world)
    verdict = world.check()
    assert not verdict.is_sound
    assert getattr(verdict, fault) > 0, verdict.findings
    assert fault in FAULTS


def test_findings_stay_few_and_their_count_is_right() -> None:
    world = World()
    world.ledgers[2].tried = 1010
    world.ledgers[2].acked.append(AckedBatch(11, 1010, B, 11, 1010))
    verdict = world.check()
    assert verdict.missing == 1000
    assert len(verdict.findings) <= 20


def test_what_failed_counts_as_undecided() -> None:
    world = World()
    del world.ledgers[2].acked[-1]
    verdict = world.check()
    assert verdict.is_sound
    assert verdict.undecided == 10


def test_a_log_is_read_as_it_was_written_and_the_count_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    batch = AckedBatch(1, 7, A, 1, 9)
    assert read_ledger(path).tried == 0
    with closing(ProducerLedger(path)) as ledger:
        ledger.attempt(7)
    with closing(ProducerLedger(path)) as ledger:
        assert ledger.contents.tried == 7
        ledger.attempt(12)
        ledger.acknowledge_batch(batch)
    assert read_ledger(path) == LedgerContents(tried=12, acked=[batch])


def test_only_committed_files_are_read_by_their_batches(tmp_path: Path) -> None:
    folder = tmp_path / "a table"
    (folder / exactness.LOG).mkdir(parents=True)
    for number in range(12):
        content = pa.table({"origin": [A], "seqno": [number], "payload": [b"x"]})
        pq.write_table(content, folder / f"part-{number}.parquet")
    entries = [
        json.dumps({"path": (folder / f"part-{at}.parquet").as_uri(), "action": "add"})
        for at in range(12)
    ]
    for batch in (7, 8, 10):
        (folder / exactness.LOG / str(batch)).write_text(f"v1\n{entries[batch]}")
    (folder / exactness.LOG / "9.compact").write_text("\n".join(["v1", *entries[:10]]))
    found = [(rows.batch, rows.seqnos) for rows in exactness.read_rows(folder)]
    assert found == [(7, [7]), (8, [8]), *((9, [at]) for at in (*range(7), 9)), (10, [10])]

"""Traces in files: what is written is read again, whatever was cut off is left out, nonsense is named."""

import json
from pathlib import Path

import pytest

from gapless.core.ready import Delivery, Expelled, Lost, Started, StateReceived, Step, ViewInstalled
from gapless.errors import GaplessError
from gapless.identity import Address, View, ViewId
from gapless.run import Run
from gapless.trace import Row, Writer, merged, read

A, B = Address(1, 5), Address(2, 6)


def written(path: Path) -> list[Row]:
    writer = Writer(path, seed=3, reach=8)
    writer.steps(0, A, [Step("VIEW", A, last=4), Step("STATE", B, low=1, delivered=2, high=3)])
    writer.offer(A, b"one")
    writer.accept(A, 1, 1, b"one")
    run = Run.of(B, 7, [b"x", b"yy"])
    items = [
        ViewInstalled(View.of(4, A, B)),
        Started(B, 6),
        Delivery(B, 7, 8, run),
        Delivery(B, 9, 11, b"pieces"),
        Lost(B, 12, 13),
        StateReceived(B, b"state"),
        Expelled(ViewId(5, B)),
    ]
    writer.items(1, items)
    writer.rest(A)
    writer.close()
    return list(read(path))


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.jsonl")
    assert [row.idx for row in rows] == list(range(len(rows)))
    assert {(row.member, row.seed) for row in rows} == {("1.5", 3)}
    events = "BEGIN VIEW STATE OFFER ACCEPT MEMBERS START DELIVER DELIVER DELIVER LOST STATE_IN EXPELLED REST"
    assert [row.event for row in rows] == events.split()
    assert [row.view for row in rows[:4]] == [0, 4, 4, 4]
    assert (rows[0].high, rows[2].origin, rows[2].high) == (8, "2.6", 3)
    assert rows[3].hash == rows[4].hash > 0
    assert (rows[5].origin, rows[5].reason) == ("1.5", "1.5 2.6")
    assert [(row.seqno, row.seqno_last, row.size_bytes) for row in rows[7:10]] == [(7, 7, 1), (8, 8, 2), (9, 11, 6)]
    assert len({row.hash for row in rows[7:10]}) == 3


def test_a_line_that_a_killed_process_could_not_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = written(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read(path)) == rows[:-1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [("nonsense", "one line of JSON"), ('{"step": 1}', "columns are missing"), ('{"colour": 1}', "called colour")],
)
def test_nonsense_is_named_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    written(path)
    count = len(path.read_text().splitlines())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(GaplessError, match=rf"a\.jsonl:{count + 1}: .*{reason}"):
        list(read(path))


def test_files_are_read_together_in_the_order_of_time(tmp_path: Path) -> None:
    for name, times_ns in (("a", (1, 4, 5)), ("b", (2, 3, 9))):
        rows = [Row(0, name, 0, 1, t_ns, "TIMER")._asdict() for t_ns in times_ns]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(merged([tmp_path / "a", tmp_path / "b"]))
    assert [row.t_ns for row in found] == [1, 2, 3, 4, 5, 9]
    assert [row.member for row in found] == ["a", "b", "b", "a", "a", "b"]

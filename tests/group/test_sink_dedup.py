"""What is remembered of sinks: a row is seen once, and none that was not seen is kept back."""

import pytest
from hypothesis import given, settings, strategies as st

from gapless.errors import GaplessError
from gapless.group.headers import attach_headers
from gapless.group.sink_dedup import (
    MAX_QUERIES,
    MAX_QUERY_BYTES,
    MAX_RANGES,
    SINK,
    SinkDedup,
    SinkRowId,
    parse_row_id,
)


def headers(query: str, batch: int, row: int, partition: int = 0) -> dict[str, bytes]:
    return {SINK: SinkRowId(query, batch, partition, row).encode()}


class Model:
    """A simple model: every row that was ever seen, and the present batch of each query."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, int]] = set()
        self.batch: dict[str, int] = {}

    def fresh(self, query: str, batch: int, row: int) -> bool:
        if batch < self.batch.get(query, 0) or (query, batch, row) in self.seen:
            return False
        self.batch[query] = batch
        self.seen.add((query, batch, row))
        return True


rows = st.tuples(st.sampled_from(["a", "b/c", "ö"]), st.integers(0, 3), st.integers(0, 30))


@given(st.lists(rows, max_size=200), st.sets(st.integers(0, 200)))
def test_as_the_model_also_when_it_was_written_down_in_between(
    story: list[tuple[str, int, int]], kept: set[int]
) -> None:
    memory, model = SinkDedup(), Model()
    for at, (query, batch, row) in enumerate(story):
        if at in kept:
            memory = SinkDedup.decode(memory.encode())
        assert memory.is_new(headers(query, batch, row)) == model.fresh(query, batch, row)


@given(st.integers(1, 400), st.lists(st.integers(0, 400), min_size=1, max_size=6))
def test_lives_of_a_sink_that_begin_a_batch_again(count: int, reached: list[int]) -> None:
    """However far each life came before it ended, the rows are seen once and in their order."""
    memory = SinkDedup()
    seen = [
        row
        for upto in [*reached, count]
        for row in range(min(upto, count))
        if memory.is_new(headers("q", 7, row))
    ]
    assert seen == list(range(count))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
@settings(max_examples=50)
def test_sifting_a_run_is_asking_for_each_message(story: list[tuple[bool, int]]) -> None:
    messages = [
        attach_headers(b"x%d" % row, headers("q", 0, row) if sunk else {"k": b"v"})
        for sunk, row in story
    ]
    one, other = SinkDedup(), SinkDedup()
    kept = one.new_ranges(b"".join(messages), lambda: messages)
    expected = [
        at for at, (sunk, row) in enumerate(story) if not sunk or other.is_new(headers("q", 0, row))
    ]
    found = (
        range(len(story))
        if kept is None
        else [at for first, last in kept for at in range(first, last + 1)]
    )
    assert list(found) == expected
    assert one.repeated == other.repeated == len(story) - len(expected)
    assert (kept is None) == (len(expected) == len(story))


def test_messages_of_others_cost_nothing_and_are_never_kept_back() -> None:
    memory = SinkDedup()
    for _ in range(2):
        assert memory.new_ranges(b"payload" * 100, list) is None
        assert memory.is_new({})
        assert memory.is_new({"kind": b"order"})
        for value in (
            b"",
            b"q/1/2",
            b"q/1/2/x",
            b"/1/2/3",
            b"q/-1/2/3",
            b"\xff/1/2/3",
            b"x" * 256 + b"/1/2/3",
        ):
            assert parse_row_id({SINK: value}) is None
            assert memory.is_new({SINK: value})
    assert len(memory) == memory.repeated == 0


def test_a_row_reads_as_it_was_written() -> None:
    row = SinkRowId("q" * MAX_QUERY_BYTES, 2**60, 3, 2**60)
    assert parse_row_id({SINK: row.encode()}) == row


def test_memory_is_bounded_and_forgets_the_quiet_ones() -> None:
    memory = SinkDedup()
    for number in range(MAX_QUERIES):
        assert memory.is_new(headers(f"q{number}", 0, 0))
    assert not memory.is_new(headers("q0", 0, 0))
    assert memory.is_new(headers("new", 0, 0))
    assert len(memory) == MAX_QUERIES
    assert not memory.is_new(headers("q0", 0, 0)), "it was heard of lately"
    assert memory.is_new(headers("q1", 0, 0)), "it was quiet for the longest"
    for row in range(0, 4 * MAX_RANGES, 2):
        assert memory.is_new(headers("holes", 0, row))
    assert len(memory.encode()) < 32 * MAX_QUERIES + 16 * MAX_RANGES + 100
    assert not memory.is_new(headers("holes", 0, 4 * MAX_RANGES - 2))


def test_what_was_not_written_by_this_is_refused() -> None:
    memory = SinkDedup()
    memory.is_new(headers("q", 0, 0))
    assert len(SinkDedup.decode(b"")) == 0
    with pytest.raises(GaplessError, match="version 9"):
        SinkDedup.decode(b"\x09" + memory.encode()[1:])
    with pytest.raises(GaplessError, match="damaged"):
        SinkDedup.decode(memory.encode()[:-1])


@pytest.mark.parametrize(
    "value",
    [
        b"q/18446744073709551616/0/0",
        b"q/0/0/99999999999999999999",
        b"q/0/0/" + b"9" * 5000,
        b"garbage",
        b"",
    ],
)
def test_a_header_that_only_looks_like_that_of_a_sink_loses_nothing_and_breaks_nothing(
    value: bytes,
) -> None:
    memory = SinkDedup()
    messages = [
        attach_headers(b"x", {SINK: each}) for each in (b"q/0/0/0", value, value, b"q/0/0/1")
    ]
    assert memory.new_ranges(b"".join(messages), lambda: messages) is None
    assert memory.is_new({SINK: value})
    assert SinkDedup.decode(memory.encode()).encode() == memory.encode()

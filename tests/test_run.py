import copy
import pickle
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.run import (
    FIRST_FRAGMENT,
    FRAGMENT,
    LENGTH_BYTES,
    MAX_ENTRY_BYTES,
    NO_LOOPBACK,
    DatagramRun,
    GatherRun,
    Run,
    length_table,
    total_bytes,
)
from gapless.wire import Data, decode, encode

ORIGIN = Address(1, 1)
MESSAGES = [b"a", b"", b"ccc", b"dd"]

message_lists = st.lists(st.binary(max_size=9), min_size=1, max_size=12)


def run_of(*messages: bytes, first: int = 5) -> Run:
    return Run.of(ORIGIN, first, messages, NO_LOOPBACK, view=3, sent_ns=99)


def test_a_run_knows_its_messages() -> None:
    run = run_of(*MESSAGES)
    assert (run.first, run.last, run.count) == (5, 8, 4)
    assert run.messages() == MESSAGES
    assert run.message_lengths() == (1, 0, 3, 2)
    assert list(run) == [(5, b"a"), (6, b""), (7, b"ccc"), (8, b"dd")]
    assert [run.message(seqno) for seqno in range(5, 9)] == MESSAGES


def test_lengths_have_the_form_of_the_wire() -> None:
    run = run_of(b"x" * 0x1234, b"")
    assert run.lengths == b"\x34\x12\x00\x00"
    assert run.payload == b"x" * 0x1234


@given(st.lists(st.integers(0, MAX_ENTRY_BYTES), min_size=1, max_size=5), st.integers(1, 80))
def test_a_length_table_adds_up_whether_its_entries_are_equal_or_not(
    sizes: list[int], times: int
) -> None:
    table = length_table(sizes * times)
    assert table == b"".join(size.to_bytes(LENGTH_BYTES, "little") for size in sizes * times)
    assert total_bytes(table) == sum(sizes) * times


def test_what_a_run_costs_is_its_messages_and_their_length_entries() -> None:
    assert run_of(*MESSAGES).size_bytes == 6 + 4 * LENGTH_BYTES
    assert run_of(b"").size_bytes == LENGTH_BYTES


def test_a_run_of_one_message() -> None:
    run = run_of(b"only")
    assert run.messages() == [b"only"]
    assert run.message(5) == b"only"
    assert run.first == run.last == 5


def test_the_longest_message_fits_and_one_byte_more_does_not() -> None:
    longest = b"m" * MAX_ENTRY_BYTES
    assert run_of(longest, b"").messages() == [longest, b""]
    with pytest.raises(
        LocalProtocolError,
        match=f"65536 bytes does not fit a run .at most {MAX_ENTRY_BYTES}.*fragments",
    ):
        run_of(b"", longest + b"!")


def test_no_message_is_no_run() -> None:
    with pytest.raises(LocalProtocolError, match="at least one message"):
        run_of()


def test_what_is_not_bytes_is_the_mistake_it_is() -> None:
    with pytest.raises(TypeError):
        Run.of(ORIGIN, 1, [5])  # type: ignore[list-item]


def test_the_whole_part_is_the_run_itself() -> None:
    run = run_of(*MESSAGES)
    assert run.part(5, 8) is run
    assert run.parts([(5, 8)])[0] is run


@pytest.mark.parametrize(("first", "last"), [(4, 6), (6, 9), (7, 6), (1, 3), (9, 9)])
def test_a_part_outside_of_the_run_is_refused(first: int, last: int) -> None:
    with pytest.raises(LocalProtocolError, match=rf"{first}\.\.{last} is not a part of 5\.\.8"):
        run_of(*MESSAGES).part(first, last)


@pytest.mark.parametrize("seqno", [4, 9])
def test_a_message_outside_of_the_run_is_refused(seqno: int) -> None:
    with pytest.raises(LocalProtocolError):
        run_of(*MESSAGES).message(seqno)


def test_a_part_keeps_what_the_origin_said() -> None:
    part = Run.of(ORIGIN, 5, [b"a", b"b"], NO_LOOPBACK, view=3, sent_ns=99).part(6, 6)
    assert (part.origin, part.flags, part.view, part.sent_ns) == (ORIGIN, NO_LOOPBACK, 3, 99)
    assert part == Run.of(ORIGIN, 6, [b"b"], NO_LOOPBACK, view=3, sent_ns=99)


@given(message_lists, st.data())
def test_any_part_holds_exactly_its_messages(messages: list[bytes], data: st.DataObject) -> None:
    run = run_of(*messages)
    first = data.draw(st.integers(run.first, run.last))
    last = data.draw(st.integers(first, run.last))
    part = run.part(first, last)
    assert (part.first, part.last) == (first, last)
    assert part.messages() == messages[first - 5 : last - 4]
    assert part.size_bytes == sum(map(len, part.messages())) + part.count * LENGTH_BYTES


@given(message_lists, st.lists(st.integers(0, 11), max_size=8, unique=True))
def test_parts_are_the_parts_one_by_one(messages: list[bytes], cuts: list[int]) -> None:
    run = run_of(*messages)
    seqnos = sorted(run.first + cut for cut in cuts if cut < run.count)
    ranges = list(zip(seqnos[::2], seqnos[1::2], strict=False))
    assert run.parts(ranges) == [run.part(first, last) for first, last in ranges]


def test_a_part_does_not_hold_on_to_the_whole() -> None:
    tracemalloc.start()
    try:
        small = run_of(b"x" * 60_000, b"y").part(6, 6)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert small.messages() == [b"y"]
    assert held_bytes < 10_000


@given(message_lists, st.integers(-3, 150))
def test_fitting_counts_from_the_front(messages: list[bytes], limit_bytes: int) -> None:
    fitting = run_of(*messages).count_fitting(limit_bytes)
    costs = [len(message) + LENGTH_BYTES for message in messages]
    assert sum(costs[:fitting]) <= max(0, limit_bytes)
    assert fitting == len(messages) or sum(costs[: fitting + 1]) > limit_bytes


@pytest.mark.parametrize(
    ("limit_bytes", "count"), [(-1, 0), (0, 0), (2, 0), (3, 1), (5, 2), (9, 2), (10, 3), (14, 4)]
)
def test_fitting_to_the_byte(limit_bytes: int, count: int) -> None:
    assert run_of(*MESSAGES).count_fitting(limit_bytes) == count


@given(message_lists, st.integers(0, 40))
def test_a_run_is_cut_to_frames_that_are_as_full_as_can_be(
    messages: list[bytes], room_bytes: int
) -> None:
    run = run_of(*messages)
    parts = run.split_to_fit(room_bytes)
    assert [message for part in parts for message in part] == list(run)
    assert all(part.size_bytes <= room_bytes or part.count == 1 for part in parts)
    for part, after in pairwise(parts):
        assert part.size_bytes + after.part(after.first, after.first).size_bytes > room_bytes


def test_runs_compare_by_all_they_say() -> None:
    def same() -> Run:
        return Run.of(ORIGIN, 5, [b"a"], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=99)

    others: list[object] = [
        Run.of(Address(1, 2), 5, [b"a"], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=99),
        Run.of(ORIGIN, 6, [b"a"], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=99),
        Run.of(ORIGIN, 5, [b"b"], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=99),
        Run.of(ORIGIN, 5, [b"a", b""], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=99),
        Run.of(ORIGIN, 5, [b"a"], FRAGMENT, view=3, sent_ns=99),
        Run.of(ORIGIN, 5, [b"a"], FRAGMENT | FIRST_FRAGMENT, view=4, sent_ns=99),
        Run.of(ORIGIN, 5, [b"a"], FRAGMENT | FIRST_FRAGMENT, view=3, sent_ns=98),
        (5, b"a"),
    ]
    assert same() == same()
    assert hash(same()) == hash(same())
    assert [other for other in others if same() == other] == []


def test_a_run_prints_what_a_person_needs() -> None:
    assert repr(run_of(b"ab", b"c")) == "Run(1.1 5..6, 3 bytes, flags=8)"


def within(*messages: bytes) -> Run:
    """A large run, as it comes out of a datagram."""
    made = Run.of(ORIGIN, 5, messages, NO_LOOPBACK, view=3, sent_ns=99)
    (frame,) = decode(encode(1, ORIGIN, [Data(made)])).frames
    assert isinstance(frame, Data)
    assert isinstance(frame.run, DatagramRun)
    return frame.run


def test_a_large_run_is_what_a_plain_one_is() -> None:
    messages = [bytes((at,)) * (100 + at) for at in range(60)]
    plain = Run.of(ORIGIN, 5, messages, NO_LOOPBACK, view=3, sent_ns=99)
    for touch in (bool, lambda run: run.payload):
        run = within(*messages)
        touch(run)
        assert bytes(run.buffer) == plain.payload
        assert run.messages() == messages
        assert run.part(9, 20) == plain.part(9, 20)
        assert run.parts([(5, 6), (60, 64)]) == plain.parts([(5, 6), (60, 64)])
        assert run.split_to_fit(1000) == plain.split_to_fit(1000)
        assert (run.size_bytes, run.count_fitting(1000)) == (
            plain.size_bytes,
            plain.count_fitting(1000),
        )
        assert run == plain == run
        assert hash(run) == hash(plain)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))]
)
def test_a_large_run_can_be_handed_to_another_process(again: Callable[[Run], Run]) -> None:
    run = within(*[b"x" * 100] * 60)
    assert again(run) == run


def test_a_large_run_lets_its_datagram_go_when_it_is_copied_out() -> None:
    run = within(*[b"x" * 100] * 60)
    assert len(run.buffer.obj) > 6000  # type: ignore[arg-type]
    assert len(run.payload) == len(run.buffer.obj) == 6000  # type: ignore[arg-type]
    assert run.payload is run.payload


def test_a_large_run_is_put_together_when_somebody_wants_it_so() -> None:
    messages = [b"%d" % at * 400 for at in range(1, 30)]
    apart = Run.of(ORIGIN, 7, messages, view=3, sent_ns=9)
    whole = Run(ORIGIN, 7, apart.lengths, b"".join(messages), 0, 3, 9)
    assert isinstance(apart, GatherRun)
    assert list(apart.buffers) == apart.messages() == messages, "nothing was copied yet"
    assert (apart.count, apart.last, apart.size_bytes) == (
        whole.count,
        whole.last,
        whole.size_bytes,
    )
    bare = encode(1, ORIGIN, [Data(apart)], None, bare=True)
    assert bare == encode(1, ORIGIN, [Data(whole)], None, bare=True)
    assert len(apart.buffers) == 29, "to be sent it need not be put together by itself"
    assert pickle.loads(pickle.dumps(apart)) == whole
    assert apart == whole
    assert apart.buffers == (whole.payload,)
    assert apart.messages() == messages
    assert apart.part(9, 12) == whole.part(9, 12)
    assert encode(1, ORIGIN, [Data(apart)]) == encode(1, ORIGIN, [Data(whole)])

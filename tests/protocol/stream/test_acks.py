"""The ack table of a sender, and what a receiver owes."""

import pytest
from hypothesis import given, strategies as st

from gapless.config import Config
from gapless.identity import Address
from gapless.profiles import AckPolicy
from gapless.protocol.stream.acks import AckScheduler, AckTable
from tests.support.virtual_group import A, B, C, D


def table(**acks: int) -> AckTable:
    """A table of members a, b, c, d, each with its ack."""
    members = {"a": A, "b": B, "c": C, "d": D}
    result = AckTable()
    result.set_members([members[name] for name in acks], 0)
    for name, seqno in acks.items():
        result.on_ack(members[name], seqno)
    return result


# The table


@pytest.mark.behaviour("N4-30")
def test_s31_the_minimum_follows_the_slowest_member() -> None:
    """S-31; JGroups lets the minimum fall to 0 when members return, here it stays (N4-30)."""
    acks = table(a=200, b=250, c=500, d=600)
    assert acks.minimum == 200
    assert not acks.on_ack(A, 150)
    assert not acks.on_ack(B, 250)
    assert (acks[A], acks[B], acks.minimum) == (200, 250, 200)
    assert acks.set_members([C, D], 0)
    assert acks.minimum == 500
    assert not acks.set_members([A, B, C, D], 0)
    assert (acks[A], acks[B], acks.minimum) == (0, 0, 500)


@pytest.mark.behaviour("N4-23", "N4-21")
def test_n4_23_an_old_ack_is_ignored() -> None:
    """N4-23, N4-21: acks are cumulative, the highest one counts."""
    acks = table(a=0, b=0)
    assert not acks.on_ack(A, 5)
    assert acks.on_ack(B, 3)
    assert not acks.on_ack(B, 2)
    assert not acks.on_ack(B, 3)
    assert (acks[A], acks[B]) == (5, 3)


@pytest.mark.behaviour("N4-24")
def test_n4_24_a_rising_minimum_is_reported_once() -> None:
    """N4-24, W-17."""
    acks = table(a=4, b=2)
    assert acks.on_ack(B, 3)
    assert acks.minimum == 3
    assert not acks.on_ack(A, 9)
    assert acks.on_ack(B, 20)
    assert acks.minimum == 9


@pytest.mark.behaviour("N4-25", "I-06")
def test_n4_25_one_silent_member_holds_the_minimum() -> None:
    """N4-25, I-06: nothing is stable while a single member has not acknowledged it."""
    acks = table(a=0, b=0, c=0)
    assert not acks.on_ack(A, 10)
    assert not acks.on_ack(B, 10)
    assert acks.minimum == 0
    assert acks.lagging(1) == [C]
    assert acks.lagging(11) == [A, B, C]


@pytest.mark.behaviour("N4-27")
def test_n4_27_an_ack_of_somebody_else_counts_for_nothing() -> None:
    """N4-27, W-17: an ack adds neither a stranger nor a former member to the table."""
    acks = table(a=5, b=9)
    assert not acks.on_ack(C, 3)
    assert C not in acks
    acks.set_members([A], 0)
    assert not acks.on_ack(B, 100)
    assert dict(acks.items()) == {A: 5}


@pytest.mark.behaviour("N4-29")
def test_n4_29_a_departure_may_raise_the_minimum() -> None:
    """N4-29, W-18."""
    acks = table(a=7, b=2)
    assert acks.set_members([A], 0)
    assert acks.minimum == 7
    assert not acks.set_members([A], 0)


@pytest.mark.behaviour("N4-30", "I-21")
def test_n4_30_a_joiner_never_lowers_the_minimum() -> None:
    """N4-30, I-21: its entry begins at its start."""
    acks = table(a=7, b=7)
    assert not acks.set_members([A, B, C], 9)
    assert (acks[C], acks.minimum) == (9, 7)
    assert not acks.set_members([A, B, C, D], 3)
    assert (acks[D], acks.minimum) == (3, 7)


def test_one_that_entered_below_the_minimum_can_be_the_last_to_raise_it() -> None:
    """A wake-up must not be lost because the entry that frees the minimum was never equal to it."""
    acks = table(a=5, b=5)
    acks.set_members([A, B, C], 2)
    assert not acks.on_ack(A, 9)
    assert not acks.on_ack(B, 9)
    assert acks.on_ack(C, 9)
    assert acks.minimum == 9


def test_w19_an_empty_table_keeps_its_minimum() -> None:
    """W-19."""
    acks = table(a=100)
    assert not acks.set_members([], 0)
    assert acks.minimum == 100
    assert acks.lagging(1000) == []


entries = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C, D]), st.integers(0, 12)),
        st.tuples(st.sets(st.sampled_from([A, B, C, D])), st.integers(0, 12)),
    ),
    max_size=40,
)


@pytest.mark.behaviour("N4-23", "N4-24", "N4-25", "N4-27", "N4-29", "N4-30")
@given(entries)
def test_the_minimum_is_the_highest_that_the_least_entry_ever_was(
    inputs: list[tuple[Address | set[Address], int]],
) -> None:
    """N4-23, N4-24, N4-25, N4-27, N4-29 and N4-30 against a plain dictionary."""
    acks, minimum = AckTable(), 0
    model: dict[Address, int] = {}
    for who, seqno in inputs:
        if isinstance(who, set):
            rose = acks.set_members(sorted(who), seqno)
            model = {member: model.get(member, seqno) for member in sorted(who)}
        else:
            rose = acks.on_ack(who, seqno)
            model |= {who: max(seqno, model[who])} if who in model else {}
        before, minimum = minimum, max(minimum, min(model.values(), default=0))
        assert (acks.minimum, rose, dict(acks.items())) == (minimum, minimum > before, model)


def test_a_snapshot_is_the_whole_table() -> None:
    acks, other = table(a=3, b=8), AckTable()
    other.restore(acks.snapshot())
    assert (other.minimum, dict(other.items())) == (3, {A: 3, B: 8})
    assert other.snapshot() == acks.snapshot()
    hash(acks.snapshot())


# Owed acks


def owed_after(threshold: int) -> AckScheduler:
    return AckScheduler(Config(ack_threshold=threshold), AckPolicy.COUNTED)


@pytest.mark.behaviour("N4-20")
def test_n4_20_an_ack_is_due_after_so_many_messages() -> None:
    """N4-20, A-01."""
    owed = owed_after(10)
    assert not owed.on_delivery(9, 0, 1000, 0, False)
    assert owed.pending
    assert owed.on_delivery(1, 0, 1000, 0, False)
    owed.on_ack_sent(10)
    assert (owed.pending, owed.last_sent_ns) == (False, 10)
    assert not owed.on_delivery(9, 0, 1000, 0, False), "the count starts anew with every ack"


def test_an_ack_is_due_after_so_many_bytes() -> None:
    """Design rule 7: a sender that has filled its share must not wait for the ack timer."""
    owed = owed_after(10)
    assert not owed.on_delivery(1, 999, 1000, 0, False)
    assert owed.on_delivery(1, 1, 1000, 0, False)
    owed.on_ack_sent(2)
    assert not owed.on_delivery(1, 999, 1000, 0, False)


@pytest.mark.behaviour("N4-22")
def test_n4_22_nothing_new_nothing_owed() -> None:
    """N4-22."""
    owed = owed_after(1)
    assert not owed.pending
    owed.on_delivery(1, 1, 1, 0, False)
    owed.on_ack_sent(1)
    assert not owed.pending


def test_what_is_owed_survives_a_snapshot() -> None:
    owed, other = owed_after(3), owed_after(3)
    owed.on_delivery(2, 50, 1000, 0, False)
    other.restore(owed.snapshot())
    assert other.pending
    assert other.on_delivery(1, 0, 1000, 0, False)

"""S18: the books of every link balance, whatever the faults do; and frames have names that stay."""

from random import Random

import pytest
from hypothesis import given, strategies as st

from gapless.faults.faults import (
    INTACT,
    BurstLoss,
    Copy,
    Corrupt,
    Crossing,
    Delay,
    Duplicate,
    Fault,
    FaultChain,
    Foreign,
    Garbage,
    Loss,
    Refuse,
    Stranger,
    Truncate,
)
from gapless.faults.frame_names import (
    FrameName,
    Label,
    incarnation_address,
    incarnation_name,
    label_of,
    node_name,
    node_number,
)
from gapless.identity import Address
from gapless.run import Run
from gapless.sim.link_counters import LinkCounters
from gapless.sim.world.network import CopyInFlight, SimulatedNetwork
from gapless.wire import Ack, Data, Datagram, Gone, Nak, Tail, encode

A, B = Address(1, 1), Address(2, 1)
DATAGRAM = encode(7, A, [Data(Run.of(A, 1, [b"x"]))])
LABEL = Label("DATA", "a", 1, 1)


def every_fault(seed: int) -> list[Fault]:
    rng = Random(seed)
    return [
        Refuse(rng, 0.1),
        Loss(rng, [0.2]),
        BurstLoss(rng, 3, 20),
        Corrupt(rng, 0.2),
        Truncate(rng, 0.2),
        Garbage(rng, 0.2),
        Foreign(rng, 0.2),
        Stranger(rng, 0.2),
        Duplicate(rng, 0.3, 1000),
        Delay(rng, 1, 10),
    ]


@given(
    seed=st.integers(0, 2**32),
    arrive=st.lists(st.sampled_from(["arrive", "drop", "fly"]), min_size=60),
)
def test_the_books_balance_at_every_moment(seed: int, arrive: list[str]) -> None:
    network = SimulatedNetwork(FaultChain(every_fault(seed)), 10)
    flying: list[CopyInFlight] = []
    books = network.link_counters.setdefault(("a", "b"), LinkCounters())
    for what in arrive:
        network.transmits += 1
        flying += (
            parcel for _, parcel in network.send_with_faults("a", "b", DATAGRAM, LABEL, 0)[0]
        )
        if flying and what != "fly":
            getattr(network, what)(flying.pop(0))
        assert books.balance() == 0
        assert books.mislabelled == 0
        assert books.in_flight == len(flying)
    assert books.sent == len(arrive)


@given(seed=st.integers(0, 2**32))
def test_what_comes_out_went_in_unless_it_is_marked(seed: int) -> None:
    network = SimulatedNetwork(FaultChain(every_fault(seed)), 10)
    for _ in range(50):
        parcels, _, _ = network.send_with_faults("a", "b", DATAGRAM, LABEL, 0)
        intact = [datagram for _, (datagram, _, _, mark) in parcels if mark == INTACT]
        assert intact in ([], [DATAGRAM])


class Multiplies:
    """A dishonest fault: two originals out of one."""

    name = "multiplies"

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        return [*copies, *copies]


class Rewrites:
    """A dishonest fault: other bytes under the mark of the original."""

    name = "rewrites"

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        return [Copy(copy.delay_ns, b"other") for copy in copies]


@pytest.mark.parametrize("fault", [Multiplies(), Rewrites()])
def test_a_dishonest_fault_is_found_out(fault: Fault) -> None:
    network = SimulatedNetwork(FaultChain([fault]), 10)
    for _, parcel in network.send_with_faults("a", "b", DATAGRAM, LABEL, 0)[0]:
        network.arrive(parcel)
    books = network.link_counters["a", "b"]
    assert books.mislabelled or books.balance()


def test_lost_data_is_counted_by_frame_and_by_burst() -> None:
    class Alternates:
        name = "loss"

        def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
            return [] if crossing.nth in {1, 2, 5} else copies

    network = SimulatedNetwork(FaultChain([Alternates()]), 10)
    for _ in range(6):
        network.send_with_faults("a", "b", DATAGRAM, LABEL, 0)
    network.send_with_faults("a", "b", DATAGRAM, Label("ACK", "b", 1, 1), 0)
    assert (network.data_lost, network.data_bursts) == (3, 2)


# Names


def test_a_frame_is_named_by_what_it_says_and_how_often() -> None:
    network = SimulatedNetwork(FaultChain([Loss(Random(1), [1.0])]), 10, record=True)
    for target in "bcb":
        network.send_with_faults("a", target, DATAGRAM, LABEL, 0)
    assert list(map(str, network.fates)) == [
        "DATA a1 a->b #1",
        "DATA a1 a->c #1",
        "DATA a1 a->b #2",
    ]
    assert all(fate.lost for fate in network.fates.values())


@given(
    st.builds(
        FrameName,
        st.sampled_from(["DATA", "REPAIR", "ACK", "NAK", "TAIL", "GONE"]),
        st.sampled_from(["a", "b'", "zz''"]),
        st.just(3),
        st.integers(3, 9),
        st.sampled_from(["a", "c'"]),
        st.sampled_from(["b", "ab"]),
        st.integers(1, 99),
    )
)
def test_a_name_is_read_back(name: FrameName) -> None:
    assert FrameName.parse(str(name)) == name


def test_what_is_no_name_is_said_so() -> None:
    with pytest.raises(ValueError, match="DATA a7"):
        FrameName.parse("DATA a->b")


@pytest.mark.parametrize("node", [1, 2, 26, 27, 52, 703])
def test_nodes_and_lives_have_letters(node: int) -> None:
    assert node_number(node_name(node)) == node
    address = Address(node, 3)
    assert incarnation_name(address) == node_name(node) + "''"
    assert incarnation_address(incarnation_name(address)) == address


def test_a_datagram_is_named_by_its_most_telling_frame() -> None:
    data, repair = Data(Run.of(A, 7, [b"x", b"y"])), Data(Run.of(A, 3, [b"x"]), repair=True)
    ack, nak, tail, gone = Ack(B, 4, 0), Nak(B, ((2, 3), (6, 9))), Tail(A, 1, 8, None), Gone(A, 5)
    assert label_of(Datagram(0, A, (ack, data, repair)), incarnation_name) == Label(
        "DATA", "a", 7, 8
    )
    assert label_of(Datagram(0, A, (ack, repair)), incarnation_name) == Label("REPAIR", "a", 3, 3)
    assert label_of(Datagram(0, A, (ack, tail, nak)), incarnation_name) == Label("NAK", "b", 2, 9)
    assert label_of(Datagram(0, A, (ack, tail, gone)), incarnation_name) == Label("GONE", "a", 5, 5)
    assert label_of(Datagram(0, A, (ack, tail)), incarnation_name) == Label("TAIL", "a", 1, 8)
    assert label_of(Datagram(0, A, (ack,)), incarnation_name) == Label("ACK", "b", 4, 4)
    assert label_of(Datagram(0, A, (Nak(B, ()),)), incarnation_name) == Label("NAK", "b", 0, 0)

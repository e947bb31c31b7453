import pytest

from gapless.discovery import Discovery, DiscoveryProblem, DiscoveryProblems, Multicast, Seeds
from gapless.discovery.composite import MAX_REMEMBERED
from gapless.errors import ConfigError, LocalProtocolError
from gapless.identity import Address, RosterEntry
from gapless.locator import Locator
from tests.support.announcements import at, texts


class Broken:
    """A source of somebody else's that breaks at everything."""

    name = "broken://"

    def __init__(self) -> None:
        self.problems = DiscoveryProblems()

    def announce(self, place: RosterEntry) -> None:
        raise RuntimeError("announce")

    def withdraw(self) -> None:
        raise RuntimeError("withdraw")

    def locate(self, now_ns: int) -> list[Locator]:
        raise RuntimeError("locate")

    def wait(self, timeout_s: float) -> bool:
        raise RuntimeError("wait")

    def close(self) -> None:
        raise RuntimeError("close")


def test_the_union_has_no_repeats_and_not_the_own_place() -> None:
    found = Discovery(
        [Seeds(["192.0.2.1:1", "192.0.2.2:1-2"]), Seeds(["192.0.2.3:1", "192.0.2.2:2"])]
    )
    everything = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.2:2", "192.0.2.3:1"]
    assert texts(found.locate(0)) == everything
    found.announce(at("192.0.2.2:1"))
    assert texts(found.locate(0)) == [place for place in everything if place != "192.0.2.2:1"]


def test_whoever_was_met_counts_too_within_bounds() -> None:
    found = Discovery([Seeds(["192.0.2.1:1"])])
    found.announce(at("192.0.2.9:1"))
    for text in ("192.0.2.1:1", "192.0.2.2:1", "192.0.2.9:1", "192.0.2.2:1"):
        found.remember(Locator.parse(text))
    assert texts(found.locate(0)) == ["192.0.2.1:1", "192.0.2.2:1"]
    for port in range(1, MAX_REMEMBERED):
        found.remember(Locator.of("192.0.2.3", port))
    assert texts(found.locate(0))[:2] == ["192.0.2.1:1", "192.0.2.2:1"]
    found.remember(Locator.of("192.0.2.3", MAX_REMEMBERED))
    assert texts(found.locate(0))[:2] == ["192.0.2.1:1", "192.0.2.3:1"]
    assert len(found.locate(0)) == 1 + MAX_REMEMBERED


def test_a_source_that_breaks_stops_no_other() -> None:
    found = Discovery([Broken(), Seeds(["192.0.2.1:1"])])
    found.announce(at("192.0.2.9:1"))
    assert texts(found.locate(0)) == ["192.0.2.1:1"]
    assert not found.wait(10)
    found.withdraw()
    found.close()
    assert found.problems() == [DiscoveryProblem("broken://", "failed", 5, "RuntimeError: close")]


def test_problems_are_told_by_source_and_reason() -> None:
    one, two = Seeds(["192.0.2.1:1"]), Seeds(["192.0.2.2:1"])
    found = Discovery([one, two])
    for reason, text in [("b", "first"), ("a", "only"), ("b", "second")]:
        two.problems.add(reason, text)
    one.problems.add("c", "other")
    assert found.problems() == [
        DiscoveryProblem("seeds://192.0.2.1:1", "c", 1, "other"),
        DiscoveryProblem("seeds://192.0.2.2:1", "a", 1, "only"),
        DiscoveryProblem("seeds://192.0.2.2:1", "b", 2, "second"),
    ]


def test_a_place_without_a_locator_is_the_callers_mistake() -> None:
    for locator in (b"", b"nonsense"):
        with pytest.raises(LocalProtocolError, match="the member cannot be announced: "):
            Discovery([Seeds(["192.0.2.1:1"])]).announce(RosterEntry(Address(1, 1), "", locator))


def test_the_same_source_twice_is_a_mistake() -> None:
    with pytest.raises(
        ConfigError, match=r"multicast://239\.255\.1\.1:7799 is given more than once"
    ):
        Discovery([Multicast("239.255.1.1"), Multicast("239.255.1.1")])


def test_no_source_at_all_is_allowed() -> None:
    with Discovery() as found:
        found.announce(at("192.0.2.9:1"))
        assert found.locate(0) == []
        assert found.wait(0)
        assert found.multicasts == ()

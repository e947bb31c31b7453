import threading
from collections.abc import Iterator

import pytest

from gapless.discovery import Discovery, Dns, Seeds
from gapless.discovery.source import MAX_LOCATORS
from gapless.units import NS_PER_S
from tests.support.announcements import at, settled, texts


class Book:
    """A resolver with given answers, for cases that the system's resolver cannot show."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        if name not in self.answers:
            raise OSError(f"no answer for {name}")
        return self.answers[name]


def test_literal_seeds_are_known_at_once_and_cost_no_thread() -> None:
    before = threading.active_count()
    seeds = Seeds(["192.0.2.1:7800", "192.0.2.2:7800-7802", "192.0.2.1:7800"])
    seeds.announce(at("192.0.2.9:1"))
    assert texts(seeds.locate(0)) == [
        "192.0.2.1:7800",
        "192.0.2.2:7800",
        "192.0.2.2:7801",
        "192.0.2.2:7802",
    ]
    assert seeds.wait(0)
    seeds.withdraw()
    assert threading.active_count() == before


def test_every_record_counts_at_every_port() -> None:
    dns = Dns("orders:7800-7801", resolve=Book(orders=["192.0.2.1", "2001:db8::1", "192.0.2.1"]))
    assert dns.wait(10)
    assert texts(dns.locate(0)) == [
        "192.0.2.1:7800",
        "192.0.2.1:7801",
        "[2001:db8::1]:7800",
        "[2001:db8::1]:7801",
    ]
    dns.close()


def test_the_real_resolver_knows_localhost() -> None:
    with Discovery([Dns("localhost:7800")]) as found:
        assert found.wait(30)
        assert set(texts(found.locate(0))) & {"127.0.0.1:7800", "[::1]:7800"}
        assert found.problems() == []


def test_a_name_that_is_not_there_is_a_problem_and_no_more() -> None:
    with Discovery([Seeds(["nobody.invalid:7800", "192.0.2.1:7800"])]) as found:
        assert found.wait(60)
        assert texts(found.locate(0)) == ["192.0.2.1:7800"]
        (problem,) = found.problems()
        assert (problem.source, problem.reason) == (
            "seeds://nobody.invalid:7800,192.0.2.1:7800",
            "lookup",
        )
        assert problem.last.startswith("cannot look up nobody.invalid: ")


def test_a_failure_keeps_the_last_answer_and_the_next_answer_counts() -> None:
    book = Book(orders=["192.0.2.1"])
    dns = Dns("orders:1", resolve=book)
    assert dns.wait(10)
    answer = book.answers.pop("orders")
    assert dns.wait(10)
    assert dns.wait(10)
    assert texts(dns.locate(0)) == ["192.0.2.1:1"]
    assert [(problem.reason, problem.times) for problem in dns.problems.of("")] == [("lookup", 2)]
    book.answers["orders"] = ["192.0.2.2", *answer]
    assert dns.wait(10)
    assert texts(dns.locate(0)) == ["192.0.2.2:1", "192.0.2.1:1"]
    dns.close()


def test_a_record_that_leads_nowhere_is_left_out() -> None:
    dns = Dns("orders:1", resolve=Book(orders=["0.0.0.0", "192.0.2.1", "239.1.1.1"]))
    assert dns.wait(10)
    assert texts(dns.locate(0)) == ["192.0.2.1:1"]
    assert [(problem.reason, problem.times) for problem in dns.problems.of("")] == [("record", 2)]
    dns.close()


def test_a_flood_of_records_is_cut() -> None:
    dns = Dns("orders:1-1000", resolve=Book(orders=[f"192.0.2.{last}" for last in range(1, 9)]))
    assert dns.wait(10)
    assert len(dns.locate(0)) == MAX_LOCATORS
    assert [problem.reason for problem in dns.problems.of("")] == ["crowded"]
    dns.close()


def test_names_rest_between_two_look_ups_in_the_callers_time() -> None:
    book = Book(orders=["192.0.2.1"])
    dns = Dns("orders:1", rest_ns=5 * NS_PER_S, resolve=book)

    def asks(now_ns: int) -> int:
        before = dns._wanted
        dns.locate(now_ns)
        settled(dns)
        return dns._wanted - before

    assert [asks(second * NS_PER_S) for second in (0, 1, 4, 5, 6, 9, 10)] == [1, 0, 0, 1, 0, 0, 1]
    assert book.asked == ["orders"] * 3
    dns.close()


class Stuck:
    """A resolver that hangs until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()
        self.times = 0

    def __call__(self, name: str) -> Iterator[str]:
        self.times += 1
        self.asked.set()
        assert self.go.wait(30)
        return iter(["192.0.2.1"])


def test_a_look_up_that_hangs_blocks_nobody_and_is_not_piled_up() -> None:
    stuck = Stuck()
    slow, fast = (
        Seeds(["slow:1", "192.0.2.9:1"], resolve=stuck),
        Dns("fast:1", resolve=Book(fast=["192.0.2.8"])),
    )
    found = Discovery([slow, fast])
    assert texts(found.locate(0)) == ["192.0.2.9:1"]
    assert stuck.asked.wait(10)
    assert fast.wait(10)
    for second in range(1, 100):
        assert texts(found.locate(second * NS_PER_S)) == ["192.0.2.9:1", "192.0.2.8:1"]
    stuck.go.set()
    settled(slow)
    # It rests after its work, however long that took.
    assert texts(found.locate(100 * NS_PER_S)) == ["192.0.2.1:1", "192.0.2.9:1", "192.0.2.8:1"]
    settled(slow)
    assert stuck.times == 1
    found.close()


def test_waiting_for_a_look_up_that_hangs_ends() -> None:
    stuck = Stuck()
    dns = Dns("slow:1", resolve=stuck)
    assert not dns.wait(0.01)
    stuck.go.set()
    assert dns.wait(10)
    dns.close()


def test_closing_does_not_wait_for_a_look_up_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.discovery.source.CLOSE_S", 0.05)
    stuck = Stuck()
    dns = Dns("slow:1", resolve=stuck)
    dns.locate(0)
    assert stuck.asked.wait(10)
    dns.close()
    thread = dns._thread
    assert thread is not None
    assert thread.is_alive()
    assert thread.daemon
    stuck.go.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_bug_in_a_resolver_is_reported_and_does_not_end_the_source() -> None:
    asked: list[str] = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        if len(asked) == 1:
            raise KeyError("boom")
        return ["192.0.2.1"]

    dns = Dns("orders:1", resolve=resolve)
    assert dns.wait(10)
    assert [(problem.reason, problem.last) for problem in dns.problems.of("")] == [
        ("failed", "KeyError: 'boom'")
    ]
    assert dns.wait(10)
    assert texts(dns.locate(0)) == ["192.0.2.1:1"]
    dns.close()

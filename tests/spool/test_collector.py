"""A collector in this process, over real sockets: what it stores, how it joins and leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gapless import blocking
from gapless.errors import (
    ClosedError,
    ConfigError,
    LocalProtocolError,
    NameInUseError,
    TimedOutError,
)
from gapless.events import RetentionEnded
from gapless.group.headers import detach_headers
from gapless.group.message import Batch
from gapless.protocol.ready import Delivery
from gapless.spool import MESSAGE, SpoolGone, SpoolLocked, SpoolMismatch, SpoolReader
from gapless.spool.collector import Collector
from gapless.spool.collector.appender import GAP_TIMEOUT_NS, DeliveryAppender
from tests.support import deliveries as scenes
from tests.support.collectors import KNOBS, wait_until

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "orders"


@pytest.fixture
def where(tmp_path: Path) -> dict[str, Any]:
    """Options by which members of one test find each other."""
    (tmp_path / "meeting").mkdir()
    discover = f"dir://{tmp_path / 'meeting'}"
    return {
        "discover": discover,
        "transport": "mesh",
        "host": "127.0.0.1",
        "ports": 0,
        "config": KNOBS,
    }


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def rows(spool: Path) -> list[tuple[int, bytes]]:
    """Return all messages of a spool that has one stream."""
    view = SpoolReader(spool)
    view.refresh()
    found = list(scenes.rows_of(view).values())
    return found[0] if found else []


def send(group: blocking.Group, *payloads: bytes, **more: Any) -> None:
    group.send_many(payloads, mode="acknowledged", **more).delivered(timeout=60)


def test_what_is_acknowledged_is_in_the_spool(spool: Path, where: dict[str, Any]) -> None:
    with Collector(spool, GROUP, **where) as collector, blocking.join(GROUP, **where) as group:
        group.wait_for_member("collector", timeout=60)
        for index in range(20):
            send(group, b"%d" % index)
            assert [payload for _, payload in rows(spool)] == [
                b"%d" % each for each in range(index + 1)
            ]
        status = collector.status
        assert (status.state, status.members, status.lives, status.messages) == (
            "collecting",
            2,
            1,
            20,
        )
        assert status.commits >= 1
        assert status.commit_ns > 0
    assert collector.status.state == "stopped"
    view = SpoolReader(spool)
    assert (view.group, view.info.name) == (GROUP, "collector")


def test_many_messages_share_a_commit(spool: Path, where: dict[str, Any]) -> None:
    with Collector(spool, GROUP, **where) as collector, blocking.join(GROUP, **where) as group:
        group.wait_for_member("collector", timeout=60)
        for _ in range(100):
            group.send_many([b"x" * 100] * 100)
        send(group, b"the last one")
        status = collector.status
        assert status.messages == 10_001
        assert status.commits < status.batches, "one sync for many runs"


def test_large_messages_and_headers_are_kept_as_they_came(
    spool: Path, where: dict[str, Any]
) -> None:
    large = bytes(range(256)) * 1000
    with (
        Collector(spool, GROUP, **where),
        blocking.join(GROUP, durable_name="shop", **where) as group,
    ):
        group.wait_for_member("collector", timeout=60)
        send(group, b"with", headers={"kind": b"order"})
        send(group, large)
    view = SpoolReader(spool)
    view.refresh()
    records = list(view.records(view.slices({}, view.high())))
    assert [detach_headers(message) for message in records[0].messages()] == [
        ({"kind": b"order"}, b"with")
    ]
    assert records[-1].kind == MESSAGE
    assert records[-1].messages() == [large]
    assert {record.name for record in records} == {"shop"}
    assert all(record.sent_ns and record.view for record in records)


def test_what_is_no_part_of_a_stream_is_counted_and_not_kept(
    spool: Path, where: dict[str, Any]
) -> None:
    with Collector(spool, GROUP, **where) as collector, blocking.join(GROUP, **where) as group:
        group.wait_for_member("collector", timeout=60)
        me = next(member for member, name in group.names.items() if name == "collector")
        send(group, b"kept")
        group.send(b"aside", mode="out-of-band").delivered(timeout=60)
        group.send(b"to you", to=me)

        def all_counted() -> bool:
            group.send(b"may be lost", mode="unreliable")
            told = collector.status.uncollected
            return (told["out_of_band"], told["private"]) == (1, 1) and told["unreliable"] > 0

        wait_until(all_counted, "not everything is counted")
    assert [payload for _, payload in rows(spool)] == [b"kept"]


def test_what_is_sent_while_it_is_away_comes_when_it_is_back(
    spool: Path, where: dict[str, Any]
) -> None:
    with blocking.join(GROUP, **where) as group:
        with Collector(spool, GROUP, **where):
            group.wait_for_member("collector", timeout=60)
            send(group, b"before")
        waiting = group.send(b"while it is away", mode="acknowledged")
        with pytest.raises(TimedOutError):
            waiting.delivered(timeout=0.5)
        with Collector(spool, GROUP, **where) as collector:
            waiting.delivered(timeout=60)
            assert collector.status.messages == 1, "what it had does not come again"
        assert rows(spool) == [(1, b"before"), (2, b"while it is away")]


def test_a_place_that_was_released_leaves_a_hole_that_is_told(
    spool: Path, where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    where["config"] = {**KNOBS, "retention_timeout": "200ms"}
    with blocking.join(GROUP, **where) as group:
        with Collector(spool, GROUP, **where):
            group.wait_for_member("collector", timeout=60)
            send(group, b"1", b"2")
        group.send_many([b"3", b"4"])
        while not isinstance(group.receive_event(timeout=30), RetentionEnded):
            pass
        with Collector(spool, GROUP, **where) as collector:
            group.wait_for_member("collector", timeout=60)
            send(group, b"5")
            assert (collector.status.lost, collector.status.unexplained) == (2, 0)
        me = str(group.me)
    view = SpoolReader(spool)
    view.refresh()
    assert [(hole.stream, hole.first, hole.last) for hole in view.lost()] == [(me, 3, 4)]
    assert rows(spool) == [(1, b"1"), (2, b"2"), (5, b"5")]
    assert "messages 3..4" in caplog.text


def test_a_message_that_is_too_large_for_it_is_a_hole(spool: Path, where: dict[str, Any]) -> None:
    small = {**where, "config": {**KNOBS, "max_message_bytes": "100KiB"}}
    with Collector(spool, GROUP, **small) as collector, blocking.join(GROUP, **where) as group:
        group.wait_for_member("collector", timeout=60)
        send(group, b"before")
        send(group, bytes(300_000))
        send(group, b"after")
        assert collector.status.oversized == 1
        assert collector.status.unexplained == 0
    found = rows(spool)
    assert [payload for _, payload in found] == [b"before", b"after"]
    view = SpoolReader(spool)
    view.refresh()
    (hole,) = view.lost()
    assert (hole.first, hole.last) == (2, found[1][0] - 1)


def test_the_oldest_is_dropped_only_if_asked_for_and_that_is_counted_and_told(
    spool: Path, where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = {**where, "max_bytes": "200kB", "on_full": "drop-oldest"}
    with Collector(spool, GROUP, **more) as collector, blocking.join(GROUP, **where) as group:
        group.wait_for_member("collector", timeout=60)
        view = SpoolReader(spool)
        view.register("spark", {})
        for _ in range(50):
            send(group, *[b"x" * 1000] * 20)
        assert collector.status.state == "collecting"
    status = collector.status
    assert status.used_bytes <= 200_000
    view.refresh()
    (low,) = view.low().values()
    assert low > 0
    assert sum(view.dropped().values()) == status.dropped == low, (
        "what is not there any more was not read"
    )
    assert len(rows(spool)) == 1000 - low
    assert "dropped" in caplog.text


def test_one_spool_has_one_collector(spool: Path, where: dict[str, Any]) -> None:
    with (
        Collector(spool, GROUP, **where),
        pytest.raises(SpoolLocked, match="another process writes"),
    ):
        Collector(spool, GROUP, **where).start()


def test_one_name_has_one_collector(tmp_path: Path, where: dict[str, Any]) -> None:
    with Collector(tmp_path / "one", GROUP, **where) as first:
        second = Collector(tmp_path / "two", GROUP, **where).start()
        with pytest.raises(
            NameInUseError, match=f"'collector' is in use in {GROUP} by the member at"
        ) as error:
            second.wait_joined()
        assert str(error.value.holder) == first.status.me
        with pytest.raises(NameInUseError, match="is in use"):
            second.stop()
        assert second.status.state == "failed"
        assert "is in use" in second.status.waits_for
    with Collector(tmp_path / "two", GROUP, **where):
        pass  # the name is free now, and so is the spool


def test_a_former_incarnation_that_is_still_in_the_view_is_no_other_collector(
    spool: Path, where: dict[str, Any]
) -> None:
    """The view may change late: a collector waits for the end of its own former incarnation."""
    collector = Collector(spool, GROUP, name="store", **where)
    with collector:
        node = collector.status.me.partition(".")[0]
    with (
        blocking.join(GROUP, durable_name="store", node=int(node, 16), **where),
        Collector(spool, GROUP, **where) as again,
    ):
        assert again.status.me.partition(".")[0] == node


def test_a_spool_keeps_its_name_and_its_group(spool: Path, where: dict[str, Any]) -> None:
    with Collector(spool, GROUP, name="store", **where):
        pass
    with Collector(spool, GROUP, **where) as again:
        assert again.name == "store"
    with pytest.raises(SpoolMismatch, match="not of 'other'"):
        Collector(spool, "other", **where).start()
    with pytest.raises(SpoolMismatch, match="not of 'depot'"):
        Collector(spool, GROUP, name="depot", **where).start()


def test_it_may_be_stopped_before_it_has_joined(spool: Path, where: dict[str, Any]) -> None:
    where["config"] = {**KNOBS, "found_after": "30s"}
    collector = Collector(spool, GROUP, **where).start()
    assert collector.status.state == "joining"
    with pytest.raises(TimedOutError):
        collector.wait_joined(0.05)
    collector.stop()
    assert collector.status.state == "stopped"
    with pytest.raises(ClosedError):
        collector.wait_joined()
    with pytest.raises(LocalProtocolError, match="started before"):
        collector.start()


def test_one_that_cannot_commit_at_its_end_says_so(spool: Path, where: dict[str, Any]) -> None:
    with blocking.join(GROUP, **where) as group:
        collector = Collector(spool, GROUP, **where).start()
        collector.wait_joined()
        group.wait_for_member("collector", timeout=60)
        send(group, b"first")
        spool.rename(spool.with_name("away"))
        waiting = group.send(b"second", mode="acknowledged")
        wait_until(lambda: collector.status.state == "waiting", "it has not noticed")
        with pytest.raises(SpoolGone):
            collector.stop()
        with pytest.raises(TimedOutError):
            waiting.delivered(timeout=0.2)
        spool.with_name("away").rename(spool)
        with Collector(spool, GROUP, **where):
            waiting.delivered(timeout=60)
    assert [payload for _, payload in rows(spool)] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_byte": 1}, "did you mean 'max_bytes'"),
        ({"max_bytes": "ten"}, "max_bytes = 'ten': expected a size"),
        ({"max_bytes": -1}, "max_bytes = -1: expected a number of bytes"),
        ({"max_age": "12 parsecs"}, "max_age = '12 parsecs': unknown unit"),
        ({"rotate": -1}, "rotate = -1: expected a number of seconds"),
        ({"on_full": "explode"}, "on_full = 'explode': expected one of wait, drop-oldest"),
        ({"sync": "perhaps"}, "sync = 'perhaps': expected true or false"),
        ({"ports": "many"}, "ports = 'many'"),
        ({"discover": "nowhere"}, "nowhere"),
        ({"config": "/no/such/file.toml"}, "/no/such/file.toml"),
        ({"config": {}, "properties": "capacity=4"}, "pass only one of them"),
        ({"transport": "pigeon"}, "pigeon"),
    ],
)
def test_options_that_cannot_be(spool: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        Collector(spool, GROUP, **options).start()


def test_options_may_be_text(spool: Path) -> None:
    told = {
        "max_bytes": "1GiB",
        "max_age": "12h",
        "rotate": "30",
        "sync": "false",
        "line_bytes": "8MiB",
        "ports": "0",
    }
    choices = Collector(spool, GROUP, **told)._options
    assert choices.limits.max_bytes == 1024**3
    assert choices.limits.max_age_ns == 12 * 3600 * 10**9
    assert choices.limits.segment_age_ns == 30 * 10**9
    assert (choices.sync, choices.line_bytes, choices.join["ports"]) == (False, 8 * 1024**2, 0)


# Holes, one by one


def batch(delivery: Delivery) -> Batch:
    return Batch(delivery, {})


def test_a_loss_that_is_told_behind_the_messages_after_it(spool: Path) -> None:
    with scenes.opened(spool) as writer:
        intake = DeliveryAppender(writer)
        intake.append_batch(batch(scenes.run(scenes.A, 1, 5)))
        intake.append_batch(batch(scenes.run(scenes.A, 9, 10)))
        intake.append_batch(batch(scenes.run(scenes.A, 11, 12)))
        intake.append_batch(batch(scenes.run(scenes.B, 1, 2)))
        assert writer.commit() == {scenes.A: 5, scenes.B: 2}, "nothing goes beyond the hole"
        assert intake.blocked_streams == 1
        assert intake.pending_bytes > 0
        intake.append_lost(scenes.A, 6, 8)
        assert writer.commit()[scenes.A] == 12
        assert (intake.blocked_streams, intake.lost, intake.pending_bytes) == (0, 3, 0)
    view = SpoolReader(spool)
    view.refresh()
    assert [(hole.first, hole.last) for hole in view.lost()] == [(6, 8)]
    kept = scenes.rows_of(view)[str(scenes.A)]
    assert kept == scenes.expected(scenes.A, 1, 5) + scenes.expected(scenes.A, 9, 12)


def test_losses_that_come_in_any_order(spool: Path) -> None:
    with scenes.opened(spool) as writer:
        intake = DeliveryAppender(writer)
        intake.append_batch(batch(scenes.run(scenes.A, 1, 2)))
        intake.append_lost(scenes.A, 5, 6)
        intake.append_batch(batch(scenes.run(scenes.A, 7, 8)))
        intake.append_lost(scenes.A, 2, 4)
        assert writer.commit()[scenes.A] == 8
        assert intake.blocked_streams == 0


def test_a_hole_that_nobody_explains_is_told_and_stepped_over(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scenes.opened(spool) as writer:
        intake = DeliveryAppender(writer)
        intake.append_batch(batch(scenes.run(scenes.A, 1, 5)))
        intake.append_batch(batch(scenes.run(scenes.A, 9, 10)))
        writer.commit()
        assert intake.expire_gaps() == [], "it may be explained yet"
        monkeypatch.setattr("gapless.spool.collector.appender.GAP_TIMEOUT_NS", -GAP_TIMEOUT_NS)
        (said,) = intake.expire_gaps()
        assert "6..8" in said
        assert writer.commit()[scenes.A] == 10
        assert (intake.unexplained, intake.blocked_streams) == (3, 0)

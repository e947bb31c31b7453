"""Figures: what members count, how their windows stand, and the text that Prometheus reads."""

from __future__ import annotations

import json
import logging
import re
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gapless import blocking
from gapless.errors import GaplessError, TransportError
from gapless.group.snapshot import decode_snapshot, encode_snapshot
from gapless.metrics.exporters import MetricsEndpoint, observe
from gapless.metrics.prometheus import help_of, prometheus, samples
from gapless.transport import ErrorLog
from gapless.units import NS_PER_S
from gapless_lab.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = {
    "found_after": "100ms",
    "join_interval": "20ms",
    "capacity": 64,
    "ack_threshold": 1,
    "unread_limit": 16,
}


@contextmanager
def members(count: int, **options: Any) -> Iterator[list[blocking.Group]]:
    """Members of one group, all in one view."""
    ports = free_ports(count)
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                blocking.join(
                    "figures",
                    host="127.0.0.1",
                    ports=port,
                    transport="udp",
                    discover=f"seeds://127.0.0.1:{ports[0]}-{ports[-1]}",
                    config=QUICK,
                    timeout=60,
                    **options,
                )
            )
            for port in ports
        ]
        for group in found:
            group.wait_for_members(count, timeout=60)
        yield found


def test_a_look_at_itself_and_at_another() -> None:
    with members(2) as (a, b):
        for number in range(10):
            a.send(b"%d" % number, loopback=False)
            assert b.receive(timeout=60) is not None
        own, other = a.snapshot(), a.snapshot(b.me)
        assert (own.me, own.phase, own.view) == (a.me, "member", other.view)
        assert other.me == b.me
        assert own.view == other.view == a.view
        assert (own.streams[0].high, own.gauges["sent"]) == (10, 10)
        (peer,) = other.peers
        assert (peer.member, peer.delivered, peer.missing, peer.gap_ns) == (a.me, 10, 0, None)
        assert other.counters["received"] >= 10
        assert other.counters["events.view_changed"] == 1
        assert decode_snapshot(encode_snapshot(other)) == other
        assert b.snapshot().counters["received.data"] >= 10
        assert b.snapshot().gauges["members"] == 2
        assert own.display_name == a.display_name
        assert other.display_name == b.display_name != a.display_name


def _send_until_blocked(group: blocking.Group) -> None:
    for _ in range(10_000):
        group.send(b"x", loopback=False, timeout="200ms")


def test_who_does_not_read_is_seen_from_afar_and_named() -> None:
    with members(2) as (a, b):
        with pytest.raises(GaplessError):
            _send_until_blocked(a)
        seen = a.snapshot(b.me)
        assert seen.unread >= seen.unread_limit == 16
        own = a.snapshot()
        assert [blocker.member for blocker in own.blockers] == [b.me]
        assert own.streams[0].stalled_ns is not None
        assert own.streams[0].stalled_ns >= 2e8
        assert own.counters["blocked"] >= 1
        (peer,) = own.peers
        assert peer.unacked == own.streams[0].high - peer.acked > 0
        assert (
            f'gapless_window_blocked_by{{group="figures",member="{a.me}",name="{a.display_name}",'
            f'peer="{b.me}",peer_name="{own.blockers[0].name}"}} 1'
        ) in prometheus(own)


LINE = re.compile(
    r'^[a-z_]+\{[a-z_]+="[^"\n]*"(,[a-z_]+="(\\.|[^"\\\n])*")*\} -?\d+(\.\d+)?(e[+-]?\d+)?$'
)


def test_the_text_is_what_prometheus_reads() -> None:
    with members(2) as (a, b):
        a.send(b"hello", loopback=False)
        assert b.receive(timeout=60) is not None
        text = prometheus([a.snapshot(), a.snapshot(b.me)])
    lines = text.splitlines()
    samples = [line for line in lines if not line.startswith("# ")]
    assert [line for line in samples if not LINE.match(line)] == []
    names = [line.partition("{")[0] for line in samples]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert sorted(set(names)) == sorted(types)
    assert [
        name for at, name in enumerate(names) if name in names[:at] and names[at - 1] != name
    ] == []
    assert 'kind="data"' in text
    assert "gapless_peer_unacked" in text


def test_messages_and_frames_are_counted_apart() -> None:
    """No metric mixes what may not be added: messages and frames, or a part and its whole."""
    with members(2) as (a, b):
        a.send_many([b"x"] * 10, loopback=False)
        for _ in range(10):
            assert b.receive(timeout=60) is not None
        look = b.snapshot()
    found: dict[str, dict[str, float]] = {}
    for name, _, labels, value in samples(look):
        found.setdefault(name, {})[labels.get("kind", "")] = value
    assert found["gapless_messages_received_total"] == {"": 10} == {"": look.counters["received"]}
    assert found["gapless_frames_received_total"] == {
        key.partition(".")[2]: value
        for key, value in look.counters.items()
        if key.startswith("received.")
    }
    assert found["gapless_frames_sent_total"].keys() >= {"ack"}
    mixed = [
        name
        for name, kinds in found.items()
        if "" in kinds and len(kinds) > 1 and not help_of(name).startswith("Deprecated: ")
    ]
    assert mixed == []
    look = replace(look, counters={"sent.data": 7, "sent.repair": 2, "received": 3})
    assert [
        (name, labels.get("kind"), value)
        for name, kind, labels, value in samples(look)
        if kind == "counter" and not help_of(name).startswith("Deprecated: ")
    ] == [
        ("gapless_messages_received_total", None, 3),
        ("gapless_frames_sent_total", "data", 7),
        ("gapless_repairs_sent_total", None, 2),
    ]
    old = {name: help_of(name) for name, *_ in samples(look) if name == "gapless_received_total"}
    assert "gapless_messages_received_total" in old["gapless_received_total"]


def test_labels_are_quoted() -> None:
    with members(1) as (a,):
        look = a.snapshot()
    odd = replace(look, group='a"b\\c\nd')
    assert r'group="a\"b\\c\nd"' in prometheus(odd)


def test_the_endpoint() -> None:
    with members(1) as (a,), MetricsEndpoint(lambda: [a.snapshot()], port=0) as endpoint:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60
        ) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "gapless_members{" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/other", timeout=60)
        with pytest.raises(TransportError, match="another port"):
            MetricsEndpoint(list, port=endpoint.port)
        a.close()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60)


def test_opentelemetry_reads_the_same_figures() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    with members(1) as (a,):
        observe(lambda: [a.snapshot()], provider.get_meter("gapless"))
        data = json.loads(reader.get_metrics_data().to_json())
        provider.shutdown()
    (scope,) = data["resource_metrics"][0]["scope_metrics"]
    found = {metric["name"]: metric["data"]["data_points"] for metric in scope["metrics"]}
    assert found["gapless.members"][0]["value"] == 1
    assert found["gapless.members"][0]["attributes"]["group"] == "figures"
    assert found["gapless.events_total"]


def test_without_opentelemetry_there_is_a_clear_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(GaplessError, match="pip install"):
        observe(list)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"streams": 3}', b"\xff"])
def test_what_is_no_look_is_an_error(text: bytes) -> None:
    with pytest.raises(GaplessError, match="not a member snapshot"):
        decode_snapshot(text)


def test_views_are_news_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gapless")
    with members(2):
        pass
    assert [
        record
        for record in caplog.records
        if "view" in record.getMessage() and record.levelno == logging.INFO
    ]
    assert {record.name.partition(".")[0] for record in caplog.records} == {"gapless"}


def test_the_same_news_come_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gapless")
    news = ErrorLog(logging.INFO, NS_PER_S * 60)
    for number in range(100):
        news.add("view", number)
        news.add("expelled", number)
    assert [record.args[1] for record in caplog.records if record.args] == ["view", "expelled"]  # type: ignore[index]
    assert news.counters == {"view": 100, "expelled": 100}

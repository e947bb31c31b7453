"""A member that finds nobody says so: a warning, an event, its health, and an error if asked."""

from __future__ import annotations

from typing import Any

import pytest

from gapless import blocking
from gapless.cli.app import run
from gapless.errors import TimedOutError
from gapless.events import DiscoveryFailed, NoPeersFound
from gapless.runtime import discovery_monitor
from tests.support.multicast import free_port

UNRESOLVABLE = "nowhere.invalid:7800"


def next_event(group: blocking.Group, kind: type) -> object:
    while True:
        event = group.receive_event(timeout=20)
        if isinstance(event, kind):
            return event


def test_a_name_that_does_not_resolve_is_a_warning_an_event_and_part_of_health(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with blocking.join("alone", seeds=[UNRESOLVABLE], host="127.0.0.1", ports=0) as group:
        event = next_event(group, DiscoveryFailed)
        assert isinstance(event, DiscoveryFailed)
        health = group.snapshot().health
    assert (event.source, event.reason) == (f"seeds://{UNRESOLVABLE}", "lookup")
    assert "cannot look up nowhere.invalid" in event.text
    assert not health.ok
    assert "cannot look up nowhere.invalid" in str(health)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warnings == [f"alone: {event}"]


@pytest.mark.parametrize("transport", ["mesh", "tcp"])
def test_a_member_that_stays_alone_although_seeds_were_given_says_so(
    transport: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_monitor, "ALONE_AFTER_NS", 1)
    seed = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"host": "127.0.0.1", "ports": 0, "transport": transport}
    with blocking.join("alone", seeds=[seed], **options) as group:
        event = next_event(group, NoPeersFound)
        assert isinstance(event, NoPeersFound)
        assert event.found == (f"{seed} refuses: no process listens on this port",)
        assert str(event) in group.snapshot().health.problems
        assert caplog.text.count("no other member was found") == 1
        with blocking.join(
            "alone",
            seeds=[str(group._session.handle.transport.locator)],
            min_members=2,
            timeout=20,
            **options,
        ):
            group.wait_for_members(2, timeout=20)
            assert not any("no other member" in one for one in group.snapshot().health.problems)


def test_a_seed_that_is_the_member_itself_is_no_reason_to_complain(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_monitor, "ALONE_AFTER_NS", 1)
    port = free_port()
    with blocking.join("alone", seeds=[f"127.0.0.1:{port}"], ports=port) as group:
        reported = group._session.handle._runtime.discovery_monitor
        while not reported._alone_reported:
            with pytest.raises(TimedOutError):
                group.receive(timeout="10ms")
        assert group.snapshot().health.ok
    assert caplog.text == ""


def test_too_few_members_are_an_error_that_names_what_discovery_found() -> None:
    seed = f"127.0.0.1:{free_port()}"
    with (
        pytest.raises(TimedOutError) as caught,
        blocking.join("alone", seeds=[seed, UNRESOLVABLE], ports=0, min_members=2, timeout=3),
    ):
        pass
    text = str(caught.value)
    assert text.startswith("alone has 1 of 2 members after the timeout; discovery found:")
    assert f"{seed} refuses: no process listens on this port" in text
    assert "cannot look up nowhere.invalid" in text


def test_a_command_that_needs_others_fails_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    seed = f"127.0.0.1:{free_port()}"
    where = ["--discover", f"seeds://{seed}", "--ports", "0"]
    options = ["--min-members", "2", "--join-timeout", "1.5s"]
    assert run(["listen", "alone", *where, *options]) != 0
    assert f"{seed} refuses: no process listens on this port" in capsys.readouterr().err

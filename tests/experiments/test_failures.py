"""Real processes that die, come and go, and are attacked: short versions of the experiments."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from experiments.__main__ import run
from experiments.failures import sealed_fuzz
from experiments.failures.attacker import DATAGRAMS, AttackTask, FloodSource
from experiments.failures.churn import Churn
from experiments.failures.floods import FloodResult
from experiments.failures.mass_death import MassDeath
from experiments.failures.rotation import Operator, _wait_for
from gapless.errors import RemoteProtocolError
from gapless.wire.codec import decode
from gapless.wire.seal import SEAL_REASONS, ReplayWindow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the evidence is that of Linux")


def report(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    found = run([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert found == code, err or out
    return json.loads(out)


def test_several_that_die_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """How long it takes is not asserted here: the machine may be busy."""
    run(["mass-death", "--members", "6", "--killed", "3", "--rounds", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert len(found["one_s"]) == len(found["many_s"]) == 1
    assert found["views"][0] >= 1


def test_processes_that_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "churn", "--processes", "8", "--at-once", "4", "--seed", "3")
    assert found["ok"]
    assert found["peak"] >= 2
    assert found["killed"] >= 1
    assert found["sent"] > 0


def test_a_flood_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "floods", "--seconds", "2", "--kind", "join", "--kind", "tcp hello")
    assert [row["kind"] for row in found["floods"]] == ["join", "join", "tcp hello"]
    for row in found["floods"]:
        assert row["sent"] > 0
        assert row["flood_rate"] > 0
        assert (row["expelled"], row["problems"]) == (0, [])


@pytest.mark.parametrize("more", [(), ("--identities",)], ids=["keys", "identities"])
def test_mutated_sealed_datagrams_change_nothing(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    found = report(capsys, "sealed-fuzz", "--datagrams", "5000", "--seed", "7", *more)
    assert found["ok"]
    assert sum(found["sent"].values()) == sum(found["rejected"].values()) == 5000
    assert found["rejected"].keys() <= set(SEAL_REASONS)
    assert all(found["rejected"][reason] for reason in ("key", "replay", "seal", "unsealed"))
    assert len(found["sent"]) == 8
    assert found["messages_delivered"] == 3 * found["messages_sent"] > 0
    names = ("state_changes", "views_changed", "exceptions", "answers", "problems")
    assert [found[name] for name in names] == [0, 0, 0, 0, []]


def test_a_datagram_that_gets_through_fails_the_experiment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplayWindow, "is_new", lambda _window, _counter: True)
    monkeypatch.setattr(sealed_fuzz, "STALLED_S", 0.1)
    found = report(capsys, "sealed-fuzz", "--datagrams", "2000", code=1)
    assert not found["ok"]
    assert any("rejected" in problem for problem in found["problems"])


def test_a_rotation_under_load_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "rotation", "--rotations", "2", "--members", "3", "--calm", "0.2")
    assert [row["transport"] for row in found["transports"]] == ["udp", "tcp"]
    for row in found["transports"]:
        assert row["rotations"] == 2
        assert row["sent"] > 0
        assert row["delivered"] == 3 * row["sent"]
        assert (row["lost"], row["repeated"], row["problems"]) == (0, 0, [])
        assert row["rejected"].get("key", 0) == 0
        assert row["pause_s"] > 0


def test_a_member_without_the_new_key_fails_the_rotation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def promote_first(self: Operator) -> None:
        """Let one member seal with a key that was never added, and then the others."""
        ring = self._ring.add().promote()
        ring.write(self._copies[0])
        others = self.members[1:]
        _wait_for(
            lambda: all(one.ask("look")["counters"].get("rejected.key") for one in others),
            "the others open the new key",
        )
        self._replace(ring)

    monkeypatch.setattr(Operator, "rotate", promote_first)
    arguments = ("rotation", "--rotations", "1", "--members", "3", "--calm", "0", "--transport")
    (row,) = report(capsys, *arguments, "udp", code=1)["transports"]
    assert row["rejected"]["key"] > 0
    assert not row["ok"]


def test_two_hosts_meet_again_after_a_cut(capsys: pytest.CaptureFixture[str]) -> None:
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.call(probe):
        pytest.skip("this system allows no namespaces")
    arguments = ("two-hosts", "--case", "mesh, seeds", "--rounds", "1", "--cut", "8")
    (row,) = report(capsys, *arguments)["cases"]
    assert (row["lost"], row["problems"]) == (0, [])
    assert row["acknowledged"] > 0
    assert len(row["cut_s"]) == len(row["rejoin_s"]) == len(row["kill_s"]) == 1


@pytest.mark.parametrize("kind", DATAGRAMS)
def test_what_a_stranger_sends_is_valid_except_where_it_should_not_be(kind: str) -> None:
    task = AttackTask(kind, [], "g", ["1.1", "2.1", "3.1"], 4, 1.0, 1)
    source = FloodSource(task)
    for _ in range(50):
        datagram = DATAGRAMS[kind](source)
        if kind in {"garbage", "truncated"}:
            with pytest.raises(RemoteProtocolError):
                decode(datagram)
        else:
            assert decode(datagram).frames


def test_results_that_are_not_good() -> None:
    assert not Churn(1, longest_send_s=9, detection_s=8, exact_after_s=0).ok
    assert not Churn(1, detection_s=8).ok
    assert Churn(1, detection_s=8, exact_after_s=9).ok
    flat = FloodResult("x", 1, before_mb=30, half_mb=40, peak_mb=44)
    assert flat.ok
    assert not FloodResult("x", 1, before_mb=30, half_mb=40, peak_mb=60).ok
    assert not FloodResult("x", 1, before_mb=30, half_mb=200, peak_mb=200).ok
    assert not FloodResult("x", 1, before_mb=30, half_mb=40, peak_mb=40, expelled=1).ok
    assert MassDeath(30, 16, [0.1, 0.1], [0.3, 0.1, 0.2]).ratio == 2


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["mass-death", "--members", "5", "--killed", "5"], "fewer than --members"),
        (["floods", "--kind", "rain"], "rain"),
        (["two-hosts", "--case", "pigeon"], "pigeon"),
        (["churn", "--processes", "0"], "processes"),
    ],
)
def test_wrong_input(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert hint in capsys.readouterr().err

"""``gapless top`` and ``gapless doctor``."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest

from gapless import doctor
from gapless.cli.app import run
from gapless.keys.identities import Identity, default_identity_path
from gapless.keys.keyring import Keyring, default_path
from gapless.wire.identities import Certificate, Role
from tests.support.certificates import Authority
from tests.support.commands import command_group
from tests.support.missing_packages import without


def test_top_asks_every_member_how_it_stands() -> None:
    with command_group(3) as group:
        talker = group.start("chat", "--json", "--nick", "ann", "--display-name", "talker")
        talker.next_line('"kind": "view_changed"')
        reader = group.start("listen", "--json", "--durable-name", "reader")
        talker.next_line('"joined"')
        talker.write("hello\n")
        reader.next_line("hello")
        watcher = group.start(
            *("top", "--once", "--json", "--interval", "100ms", "--display-name", "watcher")
        )
        code, out, err = watcher.end()
        assert (code, err) == (0, "")
        seen = json.loads(out)
        names = {row["snapshot"]["display_name"] for row in seen["members"]}
        assert names == {"talker", "reader", "watcher"}
        assert len(seen["members"]) == 3
        assert seen["slow"] == []
        looks = {row["member"]: row["snapshot"] for row in seen["members"]}
        assert all(look["phase"] == "member" for look in looks.values())
        talks = [look for look in looks.values() if look["streams"][0]["high"] == 1]
        assert len(talks) == 1
        assert [(peer["acked"], peer["unacked"]) for peer in talks[0]["peers"]] == [(1, 0), (1, 0)]


def test_top_names_who_is_silent_and_holds_a_window() -> None:
    with command_group(3) as group:
        group.options[-1] += ";suspect_after=50s;capacity=64;ack_threshold=1"
        reader = group.start("listen", "--json", "--events")
        reader.next_line('"kind": "view_changed"')
        sender = group.start("send", "--json")
        reader.next_line('"joined"')
        watcher = group.start("top", "--json", "--interval", "200ms")
        watcher.next_line('"slow": []')
        reader.signal(signal.SIGSTOP)
        sender.write("".join(f"{number}\n" for number in range(200)))
        while True:
            seen = json.loads(watcher.next_line('"slow": [{'))
            reasons = " ".join(trouble["reason"] for trouble in seen["slow"])
            if "did not answer" in reasons and "blocks the window" in reasons:
                break
        assert len({trouble["member"] for trouble in seen["slow"]}) == 1
        reader.signal(signal.SIGCONT)
        assert sender.end()[0] == 0
        watcher.interrupt()
        assert watcher.end()[0] == 0


def test_top_as_a_picture() -> None:
    with command_group(2) as group:
        reader = group.start("listen", "--json", "--events")
        reader.next_line('"kind": "view_changed"')
        code, out, err = group.start("top", "--once", "--interval", "10ms").end()
    assert (code, err) == (0, "")
    assert "2 members" in out.decode()
    assert "no member is slow" in out.decode()
    assert "unread" in out.decode()


def test_the_doctor_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "127.0.0.1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    found = json.loads(out)
    assert found["verdict"] == "ok"
    checks = {finding["check"]: finding for finding in found["findings"]}
    assert {
        "interfaces",
        "multicast, IPv4",
        "receive buffer",
        "offload",
        "ports",
        "clock",
        "java",
    } <= set(checks)
    assert "127.0.0.1" in checks["interfaces"]["found"]
    assert checks["group of two"]["verdict"] == "ok"
    assert [
        name for name, one in checks.items() if one["verdict"] != "ok" and not one["advice"]
    ] == []


def test_the_doctor_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "::1"]) in {0, 1}
    assert "interfaces" in capsys.readouterr().out


def test_ports_that_are_taken_are_bad(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert run(["doctor", "--host", "127.0.0.1", "--ports", str(port), "--json"]) == 1
    (finding,) = [
        one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "ports"
    ]
    assert finding["verdict"] == "bad"
    assert str(port) in finding["found"]
    assert finding["advice"]


def test_an_address_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--host", "203.0.113.9", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["check"] for one in found if one["verdict"] == "bad"][:2] == [
        "address",
        "group of two",
    ]


def test_a_small_buffer_is_a_warning_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "RECEIVE_BUFFER_BYTES", 1 << 30)
    finding = doctor.buffer("receive", socket.SO_RCVBUF, "rmem_max")
    assert finding.verdict == "warning"
    assert "sysctl -w net.core.rmem_max" in finding.advice


def test_a_java_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    finding = doctor.java()
    assert finding.verdict == "note"
    assert "/nowhere" in finding.found
    assert finding.advice


def test_the_doctor_checks_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    folder = authority.write(tmp_path / "tls")
    finding = doctor.certificates(folder)
    assert (finding.check, finding.verdict) == ("certificates", "ok")
    assert f"{folder / 'cert.pem'} is valid until 2" in finding.found
    monkeypatch.setattr(doctor, "MIN_VALID_S", 20 * 86_400)
    assert doctor.certificates(folder).verdict == "warning"
    authority.write(folder, expired=True)
    assert "certificate has expired" in doctor.certificates(folder).found
    authority.write(folder, early=True)
    assert "certificate is not yet valid" in doctor.certificates(folder).found
    authority.write(folder)
    (folder / "key.pem").chmod(0o644)
    finding = doctor.certificates(folder)
    assert "other users can access the private key" in finding.found
    assert finding.advice.startswith(f"run: chmod 600 {folder / 'key.pem'}")
    (folder / "key.pem").unlink()
    assert run(["doctor", "--host", "127.0.0.1", "--tls", str(folder), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    bad = [one for one in findings if one["verdict"] == "bad"]
    assert [one["check"] for one in bad] == ["certificates"]
    assert f"there is no file {folder / 'key.pem'}" in bad[0]["found"]


def test_the_doctor_names_the_groups_of_an_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("GAPLESS_KEYS", "GAPLESS_IDENTITY"):
        monkeypatch.delenv(name, raising=False)
    path, own = default_identity_path(), Identity.new()
    finding = doctor.identity()
    assert finding.verdict == "ok"
    assert f"no identity in {path}, and no group here needs one" in finding.found
    ring = Keyring.new()
    for group in ("orders", "payments"):
        other = Certificate("other", Role.MEMBER, Identity.new().public_key)
        ring = ring.allow(group, other)
    ring.create(default_path())
    finding = doctor.identity()
    assert (finding.verdict, finding.found.endswith("may join orders, payments")) == ("note", True)
    assert "gapless keys identity" in finding.advice
    own.create(path)
    assert "allowed in no group of the keyring; not allowed in orders" in doctor.identity().found
    ring = ring.allow("orders", Certificate("store", Role.COLLECTOR, own.public_key))
    ring.write(default_path())
    finding = doctor.identity()
    assert finding.verdict == "note"
    assert "allowed in orders (as 'store', collector); not allowed in payments" in finding.found
    public = own.public_key.hex()
    assert f"gapless keys allow NAME {public} --group payments" in finding.advice
    ring = ring.allow("payments", Certificate("desk", Role.OBSERVER, own.public_key))
    ring.write(default_path())
    assert doctor.identity().verdict == "ok"
    elsewhere = tmp_path / "elsewhere.toml"
    default_path().rename(elsewhere)
    assert "no group of the keyring" in doctor.identity().found
    options = ["--keys", str(elsewhere), "--identity", str(path), "--json"]
    assert run(["doctor", "--host", "127.0.0.1", *options]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    shown = {one["check"]: one["found"] for one in findings}
    assert "payments (as 'desk', observer)" in shown["identity"]
    assert ring.ring.label in shown["keys"]
    path.chmod(0o644)
    finding = doctor.identity()
    assert (finding.verdict, "make a new identity" in finding.advice) == ("bad", True)


def test_the_doctor_names_an_identity_that_this_python_cannot_use(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "identity.toml"
    Identity.new().create(path)
    arguments = ["doctor", "--host", "127.0.0.1", "--identity", str(path), "--json"]
    done = without("cryptography", arguments=arguments)
    assert done.returncode == 1, done.stderr
    (bad,) = [one for one in json.loads(done.stdout)["findings"] if one["verdict"] == "bad"]
    assert bad["check"] == "identity"
    assert bad["advice"] == "run pip install 'gapless[secure]'"


def test_the_doctor_names_the_package_that_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.extras()
    assert finding.verdict == "ok"
    assert "installed: cryptography (encryption" in finding.found
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr("gapless.keys.ciphers.find_spec", lambda name: None)
    finding = doctor.extras()
    assert finding.verdict == "note"
    assert "missing: cryptography (encryption" in finding.found
    assert "do not encrypt" in finding.found
    assert "pip install 'gapless[secure]'" in finding.advice


def test_the_doctor_knows_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_MASTER", "spark://there:7077")
    finding = doctor.spark()
    assert finding.verdict == "ok"
    assert f"PySpark {version('pyspark')} in" in finding.found
    assert "pyarrow" in finding.found
    assert "runs on spark://there:7077" in finding.found


def test_the_doctor_refuses_a_spark_of_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    finding = doctor.spark()
    assert finding.verdict == "note"
    assert "Spark 3.5.1" in finding.found
    assert "unset SPARK_HOME" in finding.advice


def test_the_doctor_refuses_a_master_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_MASTER", "mesos://there:5050")
    finding = doctor.spark()
    assert finding.verdict == "note"
    assert "GAPLESS_MASTER: 'mesos://there:5050' is not a Spark master" in finding.found


def test_top_serves_the_figures_of_all_members() -> None:
    with command_group(2) as group:
        reader = group.start("listen", "--json", "--events")
        reader.next_line('"kind": "view_changed"')
        watcher = group.start("top", "--json", "--interval", "100ms", "--serve", "0")
        address = watcher.next_line("serving ", "stderr").split()[1]
        watcher.next_line('"slow": []')
        with urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()
        members = {
            line.split('member="')[1].partition('"')[0]
            for line in text.splitlines()
            if "gapless_view{" in line
        }
        assert len(members) == 2
        watcher.interrupt()
        assert watcher.end()[0] == 0


@pytest.mark.parametrize("place", ["here", ":", ":9464", "99999", "host:"])
def test_a_place_to_serve_that_is_none(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "talk", "--serve", place]) == 2
    assert "--serve" in capsys.readouterr().err

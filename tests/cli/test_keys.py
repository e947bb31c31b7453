"""``gapless keys`` and the line "keys" of ``gapless doctor``: tables, JSON, and no secret."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless import doctor
from gapless.cli.app import run
from gapless.cli.use.keys import MAX_SEALING_DAYS, differences
from gapless.keys.keyring import Keyring, default_path, local_path
from tests.support.closed_folders import entered_by_nobody, open_home
from tests.support.missing_packages import without

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A keyring with one key."""
    path = tmp_path / "keys.toml"
    Keyring.new().create(path)
    return path


@pytest.fixture
def open_config(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for configurations of a user with a keyring; ``entered_by_nobody`` closes it."""
    with open_home() as folder:
        monkeypatch.delenv("GAPLESS_KEYS", raising=False)
        monkeypatch.delenv("GAPLESS_IDENTITY", raising=False)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setenv("HOME", str(folder))
        Keyring.new().create(default_path())
        yield default_path().parent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any keyring."""
    monkeypatch.delenv("GAPLESS_KEYS", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert run(["keys", *map(str, arguments), "--json"]) == code
    out, err = capsys.readouterr()
    assert not err
    result: dict[str, Any] = json.loads(out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line of a command that ends with exit code 2."""
    assert run(["keys", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    return err


def states(path: Path) -> list[str]:
    return [stored.state.value for stored in Keyring.read(path).keys]


def copy_of(file: Path, name: str, ring: Keyring | None = None) -> Path:
    path = file.with_name(name)
    (ring or Keyring.read(file)).write(path)
    return path


# new


def test_new_makes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "keys.toml"
    made = answer(capsys, "new", path)
    ring = Keyring.read(path)
    assert made["ring"] == ring.ring.label
    assert (made["step"], made["key"]) == ("new", ring.sealing_key.label)
    assert "copy the file to every member" in made["next"]


def test_new_refuses_to_replace_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    assert f"{file}: the file exists" in refusal(capsys, "new", file)
    assert file.read_bytes() == before


def test_without_a_file_every_command_takes_the_keyring_of_this_user(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = default_path()
    assert answer(capsys, "new")["path"] == str(path)
    assert answer(capsys, "show")["path"] == str(path)
    former = answer(capsys, "rotate")["keys"][0]["key"]
    assert answer(capsys, "rotate")["step"] == "seal"
    assert answer(capsys, "retire", former)["path"] == str(path)
    assert answer(capsys, "check")["files"][0]["path"] == str(path)
    assert states(path) == ["retired", "seal"]
    monkeypatch.setenv("GAPLESS_KEYS", str(home / "named.toml"))
    assert answer(capsys, "new")["path"] == str(home / "named.toml")


def test_new_says_that_the_keys_do_not_encrypt(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    done = without("cryptography", arguments=["keys", "new", str(path), "--json"])
    assert done.returncode == 0
    assert json.loads(done.stdout)["keys"][0]["cipher"] == "blake2b"
    assert done.stderr.count("\n") == 1
    assert "does not encrypt" in done.stderr
    assert f"pip install 'gapless[secure]', remove {path}, and run" in done.stderr
    chosen = ["keys", "new", str(tmp_path / "chosen.toml"), "--cipher", "blake2b"]
    assert without("cryptography", arguments=chosen).stderr == ""


def test_show_check_and_doctor_say_that_the_keys_do_not_encrypt(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = default_path()
    Keyring.new(cipher="blake2b").create(path)
    (note,) = answer(capsys, "show")["notes"]
    assert answer(capsys, "check")["notes"] == [note]
    label = Keyring.read(path).sealing_key.label
    assert note.startswith(f"{path}: the key {label} authenticates datagrams and does not encrypt")
    assert note.endswith(f"gapless keys rotate {path} --cipher aes-256-gcm")
    for command in ("show", "check"):
        assert run(["keys", command]) == 0
        assert f"Note: {note}" in capsys.readouterr().out
    finding = doctor.keys()
    assert (finding.verdict, "does not encrypt" in finding.found) == ("warning", True)
    assert "1 key, " in finding.found
    path.rename(local_path())
    finding = doctor.keys()
    assert (finding.verdict, "does not encrypt" in finding.found) == ("note", True)
    assert f"gapless keys rotate {local_path()} --cipher" in finding.advice
    assert "gapless[secure]" not in finding.advice
    monkeypatch.setattr("gapless.keys.ciphers.find_spec", lambda name: None)
    assert "pip install 'gapless[secure]'" in doctor.keys().advice


def test_a_rotation_reaches_a_cipher_that_encrypts(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Keyring.new(cipher="blake2b").write(file)
    answer(capsys, "rotate", file, "--cipher", "aes-256-gcm")
    assert "omit the cipher" in refusal(capsys, "rotate", file, "--cipher", "aes-256-gcm")
    rows = answer(capsys, "rotate", file)["keys"]
    assert [row["cipher"] for row in rows] == ["blake2b", "aes-256-gcm"]
    assert answer(capsys, "show", file)["notes"] == []
    assert answer(capsys, "retire", file, rows[0]["key"])["next_step"] == "add"
    assert answer(capsys, "rotate", file)["keys"][2]["cipher"] == "aes-256-gcm"


# show


def test_show(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    created = datetime.now(UTC) - timedelta(days=40)
    ring = Keyring.new(now=created).add()
    ring.write(file)
    shown = answer(capsys, "show", file)
    assert shown["ring"] == ring.ring.label
    assert [row["key"] for row in shown["keys"]] == [stored.label for stored in ring.keys]
    assert [row["state"] for row in shown["keys"]] == ["seal", "open"]
    assert [row["fingerprint"] for row in shown["keys"]] == [
        stored.fingerprint for stored in ring.keys
    ]
    assert 0 <= shown["keys"][0]["age_s"] - 40 * 86_400 < 600
    assert shown["next_step"] == "seal"
    assert run(["keys", "show", str(file)]) == 0
    out = capsys.readouterr().out
    for word in (ring.ring.label, "40 days", "open", created.strftime("%Y-%m-%dT")):
        assert word in out
    assert f"gapless keys rotate {file} --step seal" in " ".join(out.split())


def test_no_command_prints_a_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = copy_of(file, "other.toml", Keyring.new())
    broken = copy_of(file, "broken.toml")
    text = broken.read_text()
    broken.write_text(text.replace('state = "seal"', f'state = "{text.split(chr(34))[1]}"'))
    secrets = set()
    commands = [
        ["show", file],
        ["rotate", file],
        ["rotate", file],
        ["rotate", file],
        ["retire", file, Keyring.read(file).keys[0].label],
        ["check", file, other, broken],
        ["show", broken],
        ["new", file.with_name("new.toml")],
    ]
    shown = ""
    for command in commands:
        for options in ([], ["--json"]):
            run(["keys", *map(str, command), *options])
            out, err = capsys.readouterr()
            shown += out + err
            for ring in map(Keyring.read, (file, other)):
                secrets |= {ring.secret.hex(), *(each.key.secret.hex() for each in ring.keys)}
    shown = "".join(shown.split())
    assert len(secrets) >= 5
    assert Keyring.read(file).ring.label in shown
    assert not [secret for secret in secrets if secret[:16] in shown]


# rotate and retire


def test_a_rotation_says_after_each_step_what_is_next(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = Keyring.read(file).sealing_key.label
    added = answer(capsys, "rotate", file)
    assert (added["step"], added["next_step"]) == ("add", "seal")
    assert "copy the file to every member" in added["next"]
    assert f"gapless keys rotate {file} --step seal" in added["next"]
    assert states(file) == ["seal", "open"]
    sealed = answer(capsys, "rotate", file)
    assert (sealed["step"], sealed["key"]) == ("seal", added["key"])
    assert "copy the file to every member" in sealed["next"]
    assert f"gapless keys retire {file} {former}" in sealed["next"]
    assert "retention_timeout" in sealed["next"]
    assert states(file) == ["open", "seal"]
    retired = answer(capsys, "retire", file, former)
    assert (retired["step"], retired["key"], retired["next_step"]) == ("retire", former, "add")
    assert states(file) == ["retired", "seal"]


def test_a_rotation_for_people(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "rotate", str(file)]) == 0
    out = capsys.readouterr().out
    key = Keyring.read(file).keys[1].label
    assert f"the key {key} is added, and open\nNext: copy the file to every member" in out
    assert run(["keys", "rotate", str(file), "--step", "seal"]) == 0
    assert f"the key {key} seals" in capsys.readouterr().out


def test_steps_that_are_not_possible(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    assert "--step add" in refusal(capsys, "rotate", file, "--step", "seal")
    assert "add" in refusal(capsys, "rotate", file, "--step", "retire")
    sealing = Keyring.read(file).sealing_key.label
    assert "cannot be retired" in refusal(capsys, "retire", file, sealing)
    assert sealing in refusal(capsys, "retire", file, "00000000")
    assert "8 hexadecimal digits" in refusal(capsys, "retire", file, "key")
    assert "KEY_ID" in refusal(capsys, "retire")
    assert file.read_bytes() == before
    assert run(["keys", "rotate", str(file)]) == 0
    capsys.readouterr()
    assert "--step seal" in refusal(capsys, "rotate", file, "--step", "add")


def test_a_file_that_is_missing_or_not_private(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = file.with_name("missing.toml")
    for command in (["show", missing], ["rotate", missing], ["retire", missing, "00000000"]):
        assert f"gapless keys new {missing}" in refusal(capsys, *command)
    file.chmod(0o644)
    for command in (["show", file], ["rotate", file], ["retire", file, "00000000"]):
        assert f"chmod 600 {file}" in refusal(capsys, *command)


@pytest.mark.parametrize("command", [["show"], ["rotate"], ["check"], ["identity"]])
def test_a_folder_that_this_user_may_not_enter(
    open_config: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with entered_by_nobody(open_config):
        code = run(["keys", *command])
    out, err = capsys.readouterr()
    assert code == (1 if command == ["check"] else 2)
    assert "permission denied" in out + err
    assert f"may not enter the folder {open_config}" in " ".join((out + err).split())
    assert "sudo chown -R " in out + err or f"chmod u+rwx {open_config}" in out + err


def test_a_folder_above_that_this_user_may_not_enter(
    open_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with entered_by_nobody(open_config.parent):
        assert f"may not enter the folder {open_config.parent};" in refusal(capsys, "show")
        finding = doctor.keys()
    assert (finding.verdict, "permission denied" in finding.found) == ("bad", True)


def test_a_file_that_this_user_may_not_read(
    open_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_config.chmod(0o755)
    with entered_by_nobody(default_path()):
        assert f"{default_path()}: permission denied: this user may not read the file" in refusal(
            capsys, "show"
        )


# check


def test_check_of_one_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "check", file)
    assert (found["safe"], found["problems"], found["notes"]) == (True, [], [])
    assert run(["keys", "check", str(file)]) == 0
    assert "The file is in order." in capsys.readouterr().out
    file.chmod(0o644)
    found = answer(capsys, "check", file, code=1)
    assert not found["safe"]
    assert "chmod 600" in found["problems"][0]
    assert run(["keys", "check", str(file)]) == 1
    assert "The next step is not safe." in capsys.readouterr().out


def test_copies_are_safe_at_every_step(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = file.with_name("copy.toml")
    for step in ("add", "seal", "retire"):
        Keyring.read(file).write(copy)
        found = answer(capsys, "check", file, copy)
        assert (found["safe"], found["problems"]) == (True, [])
        assert found["files"][0]["next_step"] == step
        if step == "retire":
            break
        answer(capsys, "rotate", file)
    assert run(["keys", "check", str(file), str(copy)]) == 0
    assert "The files agree." in capsys.readouterr().out


def test_a_missing_key_is_named_with_its_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, late = copy_of(file, "copy.toml"), copy_of(file, "late.toml")
    key = answer(capsys, "rotate", file)["key"]
    Keyring.read(file).write(copy)
    found = answer(capsys, "check", file, copy, late, code=1)
    assert found["problems"] == [f"the key {key} is missing in {late}"]
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["keys", "check", *map(str, (file, copy, late))]) == 1
    out = capsys.readouterr().out
    assert [line.split("│")[4].strip() for line in out.splitlines() if f"{late} │" in line] == [
        "seal",
        "missing",
    ]
    answer(capsys, "rotate", file)
    former = Keyring.read(late).sealing_key.label
    found = answer(capsys, "check", file, copy, late, code=1)
    assert found["problems"] == [
        f"the key {former} has different states: open in {file}; seal in {copy}, {late}",
        f"the key {key} seals in {file}, and cannot be opened: missing in {late}",
    ]


def test_differences_of_keyrings() -> None:
    one = Keyring.new()
    two = one.add()
    three = two.promote()
    first, second = (stored.key.key_id for stored in two.keys)
    four = three.retire(first)
    assert differences({"a": two, "b": two, "c": two}) == []
    assert differences({"a": two, "b": three}) == [
        f"the key {first:08x} has different states: open in b; seal in a",
        f"the key {second:08x} has different states: open in a; seal in b",
    ]
    assert differences({"a": two, "b": four})[0] == (
        f"the key {first:08x} seals in a, and cannot be opened: retired in b"
    )
    assert differences({"a": one, "b": three})[1] == (
        f"the key {second:08x} seals in b, and cannot be opened: missing in a"
    )
    assert differences({"a": three, "b": four}) == [
        f"the key {first:08x} has different states: open in a; retired in b"
    ]


def test_a_retired_key_may_be_deleted() -> None:
    ring = Keyring.new().add().promote()
    retired = ring.retire(ring.keys[0].key.key_id)
    deleted = Keyring(ring.secret, ring.keys[1:])
    assert differences({"a": retired, "b": deleted}) == []
    assert differences({"a": ring, "b": deleted}) == [
        f"the key {ring.keys[0].label} is missing in b"
    ]


def test_other_rings_and_other_secrets_are_found() -> None:
    ring, foreign = Keyring.new().add(), Keyring.new()
    (problem,) = differences({"a": ring, "b": foreign, "c": ring})
    assert f"{ring.ring.label} in a, c" in problem
    assert f"{foreign.ring.label} in b" in problem
    last = ring.keys[1]
    damaged = last._replace(key=last.key._replace(secret=bytes(32)))
    assert differences({"a": ring, "b": Keyring(ring.secret, (ring.keys[0], damaged))}) == [
        f"the key {last.label} has different secrets in a, b"
    ]


def test_a_damaged_file_does_not_hide_the_others(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy_of(file, "other.toml", Keyring.new())
    broken = copy_of(file, "broken.toml")
    broken.write_text("")
    found = answer(capsys, "check", broken, file, other, code=1)
    assert "has no ring" in found["problems"][0]
    assert "different rings" in found["problems"][1]
    assert [bool(row["problem"]) for row in found["files"]] == [True, False, False]


def test_ages_are_notes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    Keyring.new(now=now - timedelta(days=MAX_SEALING_DAYS + 2)).write(file)
    found = answer(capsys, "check", file)
    assert found["safe"]
    (note,) = found["notes"]
    assert f"{MAX_SEALING_DAYS + 2} days old" in note
    assert f"gapless keys rotate {file}" in note
    Keyring.new(now=now + timedelta(days=2)).write(file)
    assert "in the future" in answer(capsys, "check", file)["notes"][0]
    assert run(["keys", "check", str(file)]) == 0
    assert "Note: " in capsys.readouterr().out


# doctor


def test_the_doctor_without_a_keyring(home: Path) -> None:
    finding = doctor.keys()
    assert (finding.check, finding.verdict) == ("keys", "note")
    assert str(default_path()) in finding.found
    assert str(local_path()) in finding.found
    assert "gapless keys new" in finding.advice
    assert not default_path().exists()
    assert not local_path().exists()


def test_the_doctor_names_a_user_without_keys(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keyring.new().create(default_path())
    monkeypatch.setenv("GAPLESS_INSECURE", "1")
    finding = doctor.keys()
    assert (finding.verdict, "GAPLESS_INSECURE" in finding.found) == ("warning", True)
    monkeypatch.setenv("GAPLESS_INSECURE", "perhaps")
    assert doctor.keys().verdict == "bad"


def test_the_doctor_names_the_ring(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring.new()
    ring.create(default_path())
    finding = doctor.keys()
    assert finding.verdict == "ok"
    assert f"ring {ring.ring.label} in {default_path()}" in finding.found
    assert finding.advice == ""
    other = Keyring.new()
    other.create(home / "other.toml")
    monkeypatch.setenv("GAPLESS_KEYS", str(home / "other.toml"))
    assert f"ring {other.ring.label} in {home / 'other.toml'}" in doctor.keys().found


def test_the_doctor_explains_a_member_with_an_old_keyring(home: Path) -> None:
    """Its members seal with a key that the others may have retired."""
    ring = Keyring.new().add()
    ring.create(default_path())
    finding = doctor.keys()
    former, new = (stored.label for stored in ring.keys)
    assert (finding.verdict, f"the newer key {new} is open" in finding.found) == ("note", True)
    assert f"may have retired {former}: copy the newest keyring" in finding.advice
    assert "gapless keys check" in finding.advice
    ring.promote().write(default_path())
    assert doctor.keys().verdict == "ok"


def test_a_keyring_that_cannot_be_used_is_bad(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keyring.new().create(default_path())
    default_path().chmod(0o644)
    finding = doctor.keys()
    assert finding.verdict == "bad"
    assert str(default_path()) in finding.found
    assert f"chmod 600 {default_path()}" in finding.advice
    monkeypatch.setenv("GAPLESS_KEYS", str(home / "missing.toml"))
    finding = doctor.keys()
    assert finding.verdict == "bad"
    assert "gapless keys new" in finding.advice


def test_the_doctor_has_the_line_keys(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.new().create(default_path())
    default_path().write_text("")
    assert run(["doctor", "--host", "127.0.0.1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["check"] for one in found if one["verdict"] == "bad"] == ["keys"]

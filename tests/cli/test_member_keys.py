"""``gapless keys … --group``: real members, each with a copy of the keyring file of its own."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gapless import blocking
from gapless.cli.use.member_keys import KeyStep, key_problem
from gapless.errors import GaplessError
from gapless.group.snapshot import decode_snapshot, encode_snapshot
from gapless.identity import Address
from gapless.keys.keyring import Keyring, RotationStep
from gapless.protocol.snapshot import KeysSnapshot, MemberSnapshot
from gapless.transport.in_process import InProcessNetwork
from tests.support.commands import Command, CommandGroup, command_group
from tests.support.networks import free_ports
from tests.support.real_groups import QUICK, options


class Operator:
    """The operator of a group of commands: the keyring file, and a copy for each member."""

    def __init__(self, group: CommandGroup, folder: Path, stack: ExitStack) -> None:
        self.group = group
        self.file = folder / "keys.toml"
        self._folder = folder
        self._stack = stack
        Keyring.new(cipher="blake2b").create(self.file)

    def copy(self, name: str) -> Path:
        """Copy the present file to a member, in one step, like every careful operator."""
        path = self._folder / f"{name}.toml"
        temporary = path.with_suffix(".new")
        shutil.copy2(self.file, temporary)
        return temporary.replace(path)

    def member(self, name: str, *more: str) -> Command:
        """Start a member with a copy of the file."""
        found = self.group.start(
            "listen",
            "--json",
            "--events",
            "--keys",
            str(self.copy(name)),
            "--display-name",
            name,
            *more,
        )
        found.next_line('"kind": "view_changed"')
        return found

    def keys(self, command: str, *arguments: str) -> Command:
        """Start ``gapless keys COMMAND FILE …`` for the group of the members."""
        return self._stack.enter_context(
            Command(
                "keys",
                command,
                str(self.file),
                *arguments,
                "--group",
                "talk",
                *self.group.options,
            )
        )

    def states(self) -> list[str]:
        return [stored.state.value for stored in Keyring.read(self.file).keys]

    def labels(self) -> list[str]:
        return [stored.label for stored in Keyring.read(self.file).keys]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with command_group(5) as group, ExitStack() as stack:
        yield Operator(group, tmp_path, stack)


def test_a_rotation_that_asks_every_member(operator: Operator) -> None:
    ann = operator.member("ann")
    operator.member("bob")
    ann.next_line('"joined"')

    # To add a key no member needs to be ready.
    code, out, _ = operator.keys("rotate").end()
    assert code == 0
    assert b"--step seal --group talk --wait" in out, "the next step asks the members, too"
    assert operator.states() == ["seal", "open"]
    former, new = operator.labels()

    # Without --wait the step is refused, and both members are named.
    before = operator.file.read_bytes()
    code, out, err = operator.keys("rotate").end()
    assert (code, err) == (1, "")
    for name in ("ann", "bob"):
        assert f"Problem: {name} (" in out.decode()
    assert out.decode().count(f"lacks the key {new}; the member opens {former}") == 2
    assert "the step seal is not safe yet" in out.decode()
    assert operator.file.read_bytes() == before

    # With --wait the command waits for both.
    waiting = operator.keys("rotate", "--wait", "--json")
    waiting.next_line("waiting: 0 of 2 members are ready", "stderr")
    operator.copy("ann")
    waiting.next_line("waiting: 1 of 2 members are ready", "stderr")
    assert "bob" in waiting.next_line("lacks the key", "stderr")
    operator.copy("bob")
    code, out, _ = waiting.end()
    assert code == 0
    found = json.loads(out)
    assert (found["step"], found["key"]) == ("seal", new)
    assert {row["name"]: row["opens"] for row in found["members"]} == {
        "ann": sorted([former, new]),
        "bob": sorted([former, new]),
    }
    assert operator.states() == ["open", "seal"]

    # The members still seal with the former key.
    code, out, _ = operator.keys("retire", former, "--wait", "--timeout", "100ms", "--json").end()
    assert code == 1
    found = json.loads(out)
    assert (found["step"], found["refused"], len(found["problems"])) == (None, "retire", 2)
    assert all("still seals with the key" in problem for problem in found["problems"])
    for name in ("ann", "bob"):
        operator.copy(name)
    assert operator.keys("retire", former, "--wait").end()[0] == 0
    assert operator.states() == ["retired", "seal"]


def test_an_absent_durable_member_is_a_reason_to_wait(operator: Operator) -> None:
    for step in ("add", "seal"):
        Keyring.read(operator.file).rotate(step).write(operator.file)
    ann = operator.member("ann")
    store = operator.member("store", "--durable-name", "store")
    ann.next_line('"joined"')
    store.signal(signal.SIGKILL)
    ann.next_line('"kind": "view_changed"')
    former = operator.labels()[0]
    code, out, _ = operator.keys("retire", former).end()
    assert code == 1
    (problem,) = [line for line in out.decode().splitlines() if line.startswith("Problem: ")]
    assert "the durable member store is absent: wait" in problem
    assert operator.states() == ["open", "seal"]


def test_ctrl_c_ends_the_wait_and_changes_nothing(operator: Operator) -> None:
    operator.member("ann")
    Keyring.read(operator.file).add().write(operator.file)
    waiting = operator.keys("rotate", "--wait")
    waiting.next_line("lacks the key", "stderr")
    waiting.interrupt()
    code, out, err = waiting.end()
    assert (code, out) == (130, b"")
    assert err.endswith("gapless: interrupted\n")
    assert operator.states() == ["seal", "open"]


def test_a_group_without_other_members_is_not_ready(operator: Operator) -> None:
    Keyring.read(operator.file).add().write(operator.file)
    code, out, _ = operator.keys("rotate").end()
    assert code == 1
    assert "Problem: no other member of talk was found" in out.decode()
    assert operator.states() == ["seal", "open"]


def test_a_file_that_changes_meanwhile_is_not_overwritten(operator: Operator) -> None:
    operator.member("ann")
    Keyring.read(operator.file).add().write(operator.file)
    waiting = operator.keys("rotate", "--wait")
    waiting.next_line("lacks the key", "stderr")
    Keyring.read(operator.file).add().write(operator.file)
    operator.copy("ann")
    code, _, err = waiting.end()
    assert code == 2
    assert "the file has changed while this command asked the members" in err
    assert operator.states() == ["seal", "open", "open"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--wait"], "--wait needs --group"), (["--timeout", "1s"], "--timeout needs --wait")],
)
def test_options_that_need_others(arguments: list[str], words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    Keyring.new().create(file)
    with Command("keys", "rotate", str(file), *arguments) as command:
        code, _, err = command.end()
    assert code == 2
    assert words in err
    assert len(Keyring.read(file).keys) == 1


# What members tell


def test_every_member_tells_the_ids_of_its_keys_and_no_secret() -> None:
    ring = Keyring.new(cipher="blake2b").add()
    former, new = ring.keys
    ports = free_ports(2)
    with (
        blocking.join("x", keys=ring, **options(ports)) as a,
        blocking.join("x", keys=ring, min_members=2, **options(ports)) as b,
    ):
        expected = KeysSnapshot(
            ring.ring.label, former.label, tuple(sorted([former.label, new.label]))
        )
        a.wait_for_members(2, 20)
        assert b.me is not None
        for found in (a.snapshot(), a.snapshot(b.me, timeout=20)):
            assert found.keys == expected
            text = json.dumps(found.as_dict()) + str(found) + repr(found)
            for secret in (ring.secret, former.key.secret, new.key.secret):
                assert secret.hex() not in text


def test_a_member_without_keys_tells_none() -> None:
    with blocking.join("x", transport=InProcessNetwork().open(), config=QUICK) as group:
        assert group.snapshot().keys is None
        assert group.snapshot().absent == ()


def snapshot(keys: KeysSnapshot | None) -> MemberSnapshot:
    return MemberSnapshot(me=Address(1, 1), phase="member", keys=keys)


def test_a_snapshot_of_an_earlier_version_is_read_and_its_keys_are_unknown() -> None:
    fields = json.loads(encode_snapshot(snapshot(KeysSnapshot("3f9a", "a", ("a", "b")))))
    assert decode_snapshot(json.dumps(fields).encode()).keys == KeysSnapshot(
        "3f9a", "a", ("a", "b")
    )
    del fields["keys"], fields["absent"]
    earlier = decode_snapshot(json.dumps(fields).encode())
    assert (earlier.keys, earlier.absent) == (None, ())
    problem = key_problem(earlier, KeyStep(RotationStep.SEAL, "b", "b"))
    assert problem.startswith("does not tell its keys")


@pytest.mark.parametrize("value", [7, "text", {}, {"ring": "a", "seals": "b", "opens": 7}])
def test_keys_that_are_none_make_no_snapshot(value: object) -> None:
    fields = json.loads(encode_snapshot(snapshot(None)))
    fields["keys"] = value
    with pytest.raises(GaplessError, match="not a member snapshot"):
        decode_snapshot(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("step", "seals", "opens", "problem"),
    [
        ("seal", "a", ("a", "b"), ""),
        ("seal", "a", ("a",), "lacks the key b; the member opens a"),
        ("retire", "b", ("a", "b"), ""),
        ("retire", "a", ("a", "b"), "still seals with the key a"),
        ("retire", "c", ("a", "c"), "lacks the key b; the member opens a, c"),
        ("retire", "b", ("b",), ""),
    ],
)
def test_when_a_member_is_ready(
    step: str, seals: str, opens: tuple[str, ...], problem: str
) -> None:
    key = "b" if step == "seal" else "a"
    found = key_problem(
        snapshot(KeysSnapshot("ring", seals, opens)), KeyStep(RotationStep(step), key, "b")
    )
    assert found == problem
    assert key_problem(None, KeyStep(RotationStep(step), key, "b")) == "does not answer"

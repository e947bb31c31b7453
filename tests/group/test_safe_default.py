"""Without keys of an operator a group stays on its machine, sealed for this user alone."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ConfigError, TimedOutError, TransportError
from gapless.events import KeyMismatch
from gapless.group import group_keys
from gapless.group.group_keys import INSECURE_VARIABLE, GroupKeys, choose_keys
from gapless.group.join_options import MemberOptions
from gapless.keys.keyring import Keyring, default_path, local_path
from gapless.locator import Locator
from gapless.transport import InProcessNetwork, UdpMesh
from gapless.wire.cipher import BLAKE2B
from tests.support.closed_folders import entered_by_nobody, open_home
from tests.support.networks import free_ports
from tests.support.processes import CLI, ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "safe-default"
WITHIN_S = 20.0
ELSEWHERE = "192.0.2.77"
"""An address of a network that no machine has."""
STEPS = (
    r"run gapless keys new, and copy .*keys.toml to every machine.*join\(keys=…\) or GAPLESS_KEYS"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def transport_of(group: blocking.Group) -> Any:
    return group._session.handle.transport


def open_and_close(module: Any, **options: Any) -> None:
    if module is blocking:
        blocking.join(GROUP, timeout=WITHIN_S, **options).open().close()
        return

    async def story() -> None:
        async with gapless.join(GROUP, timeout=WITHIN_S, **options):
            pass

    asyncio.run(story())


def meet(**options: Any) -> list[Any]:
    """Join twice with the same options, exchange a message, and return the transports."""
    ports = free_ports(2)
    options = {"seeds": [f"127.0.0.1:{port}" for port in ports], "ports": ports, **options}
    with blocking.join(GROUP, **options) as one, blocking.join(GROUP, **options) as two:
        one.wait_for_members(2, WITHIN_S)
        two.send(b"tea", loopback=False)
        received = one.receive(WITHIN_S)
        assert received is not None
        assert received.payload == b"tea"
        return [transport_of(one), transport_of(two)]


# Nothing is given


@pytest.mark.parametrize("transport", ["mesh", "auto", "tcp"])
def test_a_group_without_configuration_is_sealed_and_stays_on_loopback(transport: str) -> None:
    found = meet(transport=transport)
    for one in found:
        assert one.locator.ip.is_loopback
        assert one.seal is not None
    path = local_path()
    assert path.name == "local.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert found[0].seal.ring.secret == found[1].seal.ring.secret == Keyring.read(path).secret


def test_a_member_without_any_option_uses_loopback() -> None:
    with blocking.join(GROUP, ports=free_ports(1)) as member:
        assert str(transport_of(member).locator.ip) == "127.0.0.1"
    with blocking.join(GROUP, ports=free_ports(1), discover="multicast://?family=6") as member:
        assert str(transport_of(member).locator.ip) == "::1"


def test_a_stranger_without_the_keys_of_this_user_does_not_meet_the_group(home: Path) -> None:
    ports = free_ports(2)
    options: dict[str, Any] = {
        "seeds": [f"127.0.0.1:{port}" for port in ports],
        "ports": ports,
        "transport": "mesh",
    }
    stranger = home / "stranger.toml"
    Keyring.new().create(stranger)
    for theirs in ({"insecure": True}, {"keys": stranger}):
        with (
            blocking.join(GROUP, **options) as member,
            blocking.join(GROUP, **theirs, **options) as other,
        ):
            while not isinstance(event := other.receive_event(WITHIN_S), KeyMismatch):
                assert event is not None
            assert [len(group.view or ()) for group in (member, other)] == [1, 1]


# An address of a network


@pytest.mark.parametrize("module", [blocking, gapless])
@pytest.mark.parametrize(
    "options",
    [
        {"host": ELSEWHERE},
        {"host": "2001:db8::1"},
        {"host": ELSEWHERE, "transport": "tcp"},
        {"host": ELSEWHERE, "seeds": ["127.0.0.1:7800"]},
    ],
)
def test_an_address_of_a_network_is_refused_with_the_steps_to_take(
    module: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"no keyring of an operator.*{local_path()}; {STEPS}"):
        open_and_close(module, **options)


def test_seeds_of_a_network_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_keys, "required_host", lambda discovery: ELSEWHERE)
    with pytest.raises(ConfigError, match=f"{ELSEWHERE} is an address of a network.*{STEPS}"):
        open_and_close(blocking, seeds=["192.0.2.78:7800"])


def test_the_command_line_refuses_the_address_with_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, *CLI, "listen", GROUP, "--host", ELSEWHERE],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "gapless keys new" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_of_a_network_is_used_with_keys_or_insecure(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.new().create(home / "named.toml")
    refused_by_the_kernel = pytest.raises(TransportError, match=ELSEWHERE)
    with refused_by_the_kernel:
        open_and_close(blocking, host=ELSEWHERE, keys=home / "named.toml")
    with refused_by_the_kernel:
        open_and_close(blocking, host=ELSEWHERE, insecure=True)
    with refused_by_the_kernel, monkeypatch.context() as here:
        here.setenv(INSECURE_VARIABLE, "1")
        open_and_close(blocking, host=ELSEWHERE)
    with refused_by_the_kernel, monkeypatch.context() as here:
        here.setenv("GAPLESS_KEYS", str(home / "named.toml"))
        open_and_close(blocking, host=ELSEWHERE)
    Keyring.new().create(default_path())  # gapless keys new
    with refused_by_the_kernel:
        open_and_close(blocking, host=ELSEWHERE)


def test_the_keyring_of_the_user_comes_before_the_local_one() -> None:
    made = Keyring.new()
    made.create(default_path())
    assert {one.seal.ring.secret for one in meet()} == {made.secret}
    assert not local_path().exists()


def test_a_damaged_keyring_is_an_error_and_not_replaced_by_the_local_one() -> None:
    Keyring.new().create(default_path())
    default_path().write_text("")
    with pytest.raises(ConfigError, match=r"keys\.toml: the keyring has no ring"):
        open_and_close(blocking)
    assert not local_path().exists()


def test_a_missing_file_that_the_environment_names_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAPLESS_KEYS", str(home / "misspelled.toml"))
    with pytest.raises(ConfigError, match="no such keyring"):
        open_and_close(blocking)
    assert list(home.iterdir()) == []


# Without keys


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_the_environment_can_say_insecure(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSECURE_VARIABLE, text)
    assert [one.seal for one in meet()] == [None, None]


@pytest.mark.parametrize("text", ["", "0", "false", "no"])
def test_the_environment_can_say_secure(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSECURE_VARIABLE, text)
    assert all(one.seal is not None for one in meet())


def test_the_environment_is_refused_where_it_says_nothing_or_two_things(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.new().create(home / "named.toml")
    monkeypatch.setenv(INSECURE_VARIABLE, "perhaps")
    with pytest.raises(ConfigError, match="GAPLESS_INSECURE='perhaps': expected 1 or 0, or unset"):
        open_and_close(blocking)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    monkeypatch.setenv("GAPLESS_KEYS", str(home / "named.toml"))
    with pytest.raises(ConfigError, match="contradict each other: unset one"):
        open_and_close(blocking)
    monkeypatch.delenv("GAPLESS_KEYS")
    # What a program says itself counts more.
    assert all(one.seal is not None for one in meet(keys=home / "named.toml"))


def test_a_group_without_keys_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gapless")
    open_and_close(blocking, insecure=True, host="127.0.0.1", ports=0)
    (line,) = [record for record in caplog.records if "insecure" in record.message]
    assert line.levelno == logging.INFO
    assert f"{GROUP}: insecure: every user of this machine can take part" in line.message
    caplog.clear()
    transport = InProcessNetwork().open()
    monkeypatch.setattr(transport, "locator", Locator.of("192.0.2.7", 1))
    with pytest.raises(ConfigError, match=r"the open transport at .* has no keys"):
        blocking.join(GROUP, transport=transport).open()
    with blocking.join(GROUP, transport=transport, insecure=True):
        pass
    (line,) = [record for record in caplog.records if "insecure" in record.message]
    assert line.levelno == logging.WARNING
    assert "everybody who reaches 192.0.2.7:1 can send, read and expel members" in line.message


def test_an_open_transport_on_loopback_needs_no_keys() -> None:
    transport = UdpMesh("127.0.0.1", 0)
    with blocking.join(GROUP, transport=transport):
        assert transport.seal is None


# What a lone member says


def test_a_group_that_cannot_leave_its_machine_says_so_when_members_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "default_host", lambda: ELSEWHERE)
    with pytest.raises(TimedOutError, match=f"no keyring of an operator.*{local_path()}; {STEPS}"):
        blocking.join(GROUP, ports=free_ports(1), min_members=2, timeout=0.5).open()
    monkeypatch.setattr(group_keys, "default_host", lambda: "127.0.0.1")
    with pytest.raises(TimedOutError) as error:
        blocking.join(GROUP, ports=free_ports(1), min_members=2, timeout=0.5).open()
    assert "stays on this machine" not in str(error.value)


# Where the local keyring is


@pytest.mark.parametrize("config", ["a file", "none"])
def test_without_a_folder_for_configurations_the_keyring_is_beside_the_temporary_files(
    home: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(home))
    if config == "a file":
        (home / "config").write_text("")
    else:
        monkeypatch.delenv("XDG_CONFIG_HOME")

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
    path = local_path()
    assert path == home / f"gapless-{os.getuid()}" / "local.toml"
    assert all(one.seal is not None for one in meet())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.unlink()
    path.parent.chmod(0o777)  # others could plant a keyring
    with pytest.raises(ConfigError, match="set XDG_CONFIG_HOME to it, name a keyring"):
        open_and_close(blocking)


def test_a_local_keyring_of_another_python_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_cryptography(_: object) -> Mapping[str, object]:
        raise ConfigError("the keys need the package cryptography")

    meet()
    monkeypatch.setattr(group_keys, "suites_of", without_cryptography)
    with pytest.raises(ConfigError, match=r"local\.toml: .*cryptography; or remove the file"):
        open_and_close(blocking)


def test_a_python_without_the_package_cryptography_makes_keys_that_authenticate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gapless.keys.ciphers.find_spec", lambda name: None)
    meet()
    assert Keyring.read(local_path()).sealing_key.key.cipher == BLAKE2B.name


def test_a_join_warns_of_keys_that_do_not_encrypt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for the keyring that this join makes, and wherever the datagrams leave the machine."""
    caplog.set_level(logging.INFO, logger="gapless")
    with monkeypatch.context() as patch:
        patch.setattr("gapless.keys.ciphers.find_spec", lambda name: None)
        assert unencrypted_levels(caplog, ports=0) == [logging.WARNING]
        assert unencrypted_levels(caplog, ports=0) == [logging.INFO]
        ring = Keyring.read(local_path())
        transport = InProcessNetwork().open()
        transport.seal = GroupKeys(ring).new_seal()
        patch.setattr(transport, "locator", Locator.of("192.0.2.7", 1))
        assert unencrypted_levels(caplog, transport=transport) == [logging.WARNING]
    ring.rotate(cipher="aes-256-gcm").promote().write(local_path())
    assert unencrypted_levels(caplog, ports=0) == []


def unencrypted_levels(caplog: pytest.LogCaptureFixture, **options: Any) -> list[int]:
    """Join, and return the levels of the lines about keys that do not encrypt."""
    caplog.clear()
    open_and_close(blocking, **options)
    found = [record for record in caplog.records if "does not encrypt" in record.message]
    assert all("gapless keys rotate" in record.message for record in found)
    return [record.levelno for record in found]


def test_a_keyring_that_this_user_may_not_reach_is_not_replaced_by_the_local_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_home() as home:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        Keyring.new().create(default_path())
        with (
            entered_by_nobody(home / ".config"),
            pytest.raises(ConfigError, match=rf"{default_path()}: permission denied: .*; .*ch"),
        ):
            open_and_close(blocking)


def test_a_home_of_another_user_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_home() as home:
        temporary = home / "tmp"
        temporary.mkdir()
        temporary.chmod(0o777)
        (home / "user").mkdir()
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", str(home / "user"))
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))
        with entered_by_nobody(home / "user"):
            found = choose_keys(MemberOptions(group=GROUP)).path
        assert found == temporary / f"gapless-{os.getuid()}" / "local.toml"


def child_environment() -> dict[str, str]:
    return {**ENVIRONMENT, "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}

"""The keys of a joining member: no group leaves this machine without keys unless the user says so.

In this order:

1. ``insecure=True``, or the environment variable ``GAPLESS_INSECURE``: no keys, and a warning.
2. The keyring of the operator: ``keys=``, the file that ``GAPLESS_KEYS`` names, or the file
   ``gapless/keys.toml`` in the folder for configurations of this user.
3. With ``tls=`` no keys: the certificates protect every connection, also on a network.
4. The local keyring of this user (``local.toml`` beside ``keys.toml``), which the first member
   makes, with a warning if its keys do not encrypt. Other machines do not have it, so such a group
   stays on loopback: an address of a network is refused, with the steps to take.
"""

from __future__ import annotations

import logging
import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import ConfigError
from gapless.keys.ciphers import encryption_steps, plain_problem, suites_of
from gapless.keys.keyring import (
    ENVIRONMENT_VARIABLE,
    Keyring,
    default_path,
    load_or_create,
    local_path,
)
from gapless.keys.secret_files import KeyringError, exists
from gapless.logger import log
from gapless.transport.socket_options import default_host, required_host
from gapless.wire.seal import Seal

if TYPE_CHECKING:
    from gapless.discovery import Discovery
    from gapless.group.join_options import MemberOptions
    from gapless.transport.base import Transport

INSECURE_VARIABLE = "GAPLESS_INSECURE"
"""The environment variable that has the effect of ``insecure=True``."""
"""The values are those of a flag: 1, true, yes, on, or 0, false, no, off."""
_FLAG_VALUES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
}


class GroupKeys(NamedTuple):
    """The keys of a joining member."""

    keyring: Keyring | None
    """None for a group without keys."""
    path: Path | None = None
    """The file of the keyring, which a running member follows; None without a file."""
    is_local: bool = False
    """Whether the keys are those of this user on this machine: only loopback is safe."""
    is_new: bool = False
    """Whether this member has made the keyring."""

    def new_seal(self) -> Seal | None:
        """Return the envelope of the member; None for a group without keys."""
        if self.keyring is None:
            return None
        ring = self.keyring.ring
        try:
            return Seal(ring, suites_of(ring))
        except ConfigError as error:
            if not self.is_local:
                raise
            raise ConfigError(
                f"{self.path}: {error}; or remove the file: the next member on this machine makes"
                " a new one with the ciphers of its Python"
            ) from None

    def choose_host(self, host: str | None, discovery: Discovery) -> str | None:
        """Return the address to use, or None for any; local keys are good for loopback only.

        Raises:
            ConfigError: The keys are local, and ``host``, a seed or an interface belongs to a
                network.
        """
        if not self.is_local:
            return host
        chosen = host or required_host(discovery)
        if chosen is None:
            if not _is_loopback(default_host()):
                discovery.confined = f"this group stays on this machine: {self._why_local()}"
            versions = {group.address.version for group in discovery.multicasts}
            return "::1" if versions == {6} else "127.0.0.1"
        if not _is_loopback(chosen):
            raise ConfigError(
                f"{chosen} is an address of a network, and this group stays on this machine:"
                f" {self._why_local()}"
            )
        return chosen

    def _why_local(self) -> str:
        return (
            "there is no keyring of an operator, and other machines do not have the local keyring"
            f" of this user, {self.path}; {steps_to_keys()}"
        )


def choose_keys(options: MemberOptions, *, makes: bool = True) -> GroupKeys:
    """Return the keys of a member that opens a transport of its own.

    ``makes`` is whether a missing local keyring is made; otherwise there are no keys yet.

    Raises:
        ConfigError: The keyring cannot be used; the text says what to do.
    """
    if is_insecure(options):
        return GroupKeys(None)
    if isinstance(options.keys, Keyring):
        return GroupKeys(options.keys)
    path = _operator_path(options.keys)
    if path is not None:
        return GroupKeys(Keyring.read(path), path)
    if options.tls is not None:
        return GroupKeys(None)
    path = local_path()
    is_new = not exists(path)
    if is_new and not makes:
        return GroupKeys(None)
    return GroupKeys(load_or_create(path), path, is_local=True, is_new=is_new)


def is_insecure(options: MemberOptions) -> bool:
    """Return whether the user has asked for a group without keys.

    Raises:
        ConfigError: ``GAPLESS_INSECURE`` is no flag, or contradicts ``GAPLESS_KEYS``.
    """
    flag = insecure_by_environment()
    if options.insecure or options.keys is not None:
        return options.insecure
    if flag and os.environ.get(ENVIRONMENT_VARIABLE):
        raise ConfigError(
            f"{INSECURE_VARIABLE} and {ENVIRONMENT_VARIABLE} contradict each other: unset one"
        )
    return flag


def insecure_by_environment() -> bool:
    """Return whether the environment asks for groups without keys.

    Raises:
        ConfigError: ``GAPLESS_INSECURE`` is no flag.
    """
    text = os.environ.get(INSECURE_VARIABLE, "")
    flag = _FLAG_VALUES.get(text.strip().lower())
    if flag is None:
        raise ConfigError(f"{INSECURE_VARIABLE}={text!r}: expected 1 or 0, or unset")
    return flag


def check_open_transport(options: MemberOptions, transport: Transport) -> None:
    """Refuse a transport of the caller that has neither keys nor certificates on a network.

    Raises:
        ConfigError: The transport has no seal and no certificates, its address belongs to a
            network, and the user has not asked for a group without keys.
    """
    if (
        transport.seal is None
        and transport.certificates is None
        and not (transport.locator.ip.is_loopback or is_insecure(options))
    ):
        raise ConfigError(
            f"the open transport at {transport.locator} has no keys: everybody on the network could"
            " send, read and expel members; open the transport with seal= or tls=, name the"
            " transport (transport='mesh'), or pass insecure=True"
        )


def log_protection(options: MemberOptions, transport: Transport, keys: GroupKeys) -> None:
    """Say that a group has no keys, or keys that do not encrypt.

    The line is a warning where others can reach the member, and for a new keyring.
    """
    if transport.seal is not None:
        if problem := plain_problem(transport.seal.ring):
            is_open = keys.is_new or not transport.locator.ip.is_loopback
            level = logging.WARNING if is_open else logging.INFO
            steps = encryption_steps(keys.path or "FILE")
            log.log(level, "%s: %s; %s", options.group, problem, steps)
        return
    is_open = not isinstance(options.transport, str)
    if os.environ.get(ENVIRONMENT_VARIABLE):
        log.warning(
            "%s: %s names a keyring, and the group is not sealed: %s",
            options.group,
            ENVIRONMENT_VARIABLE,
            "the open transport has no seal" if is_open else "insecure=True",
        )
    elif transport.certificates is not None:
        log.info("%s: protected by certificates, without keys", options.group)
    elif not transport.locator.ip.is_loopback:
        log.warning(
            "%s: insecure: everybody who reaches %s can send, read and expel members; %s",
            options.group,
            transport.locator,
            steps_to_keys(),
        )
    elif not is_open:
        log.info("%s: insecure: every user of this machine can take part", options.group)


def steps_to_keys() -> str:
    """Return what an operator does so that a group may leave this machine."""
    try:
        copied = str(default_path())
    except KeyringError:
        copied = "the file"
    return (
        f"run gapless keys new, and copy {copied} to every machine, or name the file with"
        f" join(keys=…) or {ENVIRONMENT_VARIABLE}; insecure=True joins without keys"
    )


def _operator_path(given: str | Path | None) -> Path | None:
    """Return the keyring of the operator; None if there is none."""
    named = os.environ.get(ENVIRONMENT_VARIABLE) if given is None else given
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(f"keys={str(named)!r}: {error}; name the file in full") from None
    try:
        found = default_path()
    except KeyringError:
        return None  # without a home directory
    # A file that cannot be read is an error, not a missing file.
    return found if exists(found) else None


def _is_loopback(host: str) -> bool:
    """Return whether an address is one of this machine alone; text that is no address is none."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return True  # binding the address says what is wrong with it

"""The identity of a joining member, in a group whose keyring names the allowed identities.

In this order: ``identity=``, the file that ``GAPLESS_IDENTITY`` names, the file ``identity.toml``
beside the default keyring. A group without identities needs none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless.errors import ConfigError
from gapless.group.group_keys import choose_keys
from gapless.keys.identities import (
    ENVIRONMENT_VARIABLE,
    Identity,
    default_identity_path,
    make_credentials,
)
from gapless.keys.secret_files import KeyringError, exists
from gapless.wire.identities import Role

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.group.group_keys import GroupKeys
    from gapless.group.join_options import MemberOptions
    from gapless.wire.identities import Certificate, Credentials

MIN_FRAME_BYTES = 512
"""Minimum ``max_frame_bytes`` in a group with identities, so that a signature fits each frame."""


def choose_identity(options: MemberOptions, keys: GroupKeys, config: Config) -> Credentials | None:
    """Return the credentials of a member; None in a group without identities.

    Raises:
        ConfigError: The identity cannot be used, or may not join as the options say.
    """
    allowed = None if keys.keyring is None else keys.keyring.allow_list(options.group)
    if allowed is None or keys.keyring is None:
        if options.identity is None:
            return None
        raise ConfigError(
            f"identity= has no effect: the keyring names no identities of {options.group!r}; run"
            " gapless keys allow, or omit identity="
        )
    found = make_credentials(keys.keyring, options.group, _read_identity(options))
    assert found is not None, "the group has identities"
    _check_role(options, _certificate(found))
    if options.node is not None and not options.stores:  # that of a spool is a mere default
        raise ConfigError("node= and an identity contradict each other: omit node=")
    if config.max_frame_bytes < MIN_FRAME_BYTES:
        raise ConfigError(
            f"max_frame_bytes={config.max_frame_bytes}: a group with identities needs"
            f" {MIN_FRAME_BYTES} or more"
        )
    return found


def check_may_send(options: MemberOptions) -> None:
    """Refuse a member that wants to send with an identity that may only receive.

    To be called before joining, because joining replaces the running member of the identity.

    Raises:
        ConfigError: The identity has the role observer, or cannot be used.
    """
    keyring = choose_keys(options, makes=False).keyring
    if keyring is None or keyring.allow_list(options.group) is None:
        return
    found = make_credentials(keyring, options.group, _read_identity(options))
    assert found is not None, "the group has identities"
    certificate = _certificate(found)
    if certificate.role is Role.OBSERVER:
        raise ConfigError(
            f"the identity {certificate.name!r} has the role observer in {options.group}, which"
            " only receives: ask the operator for the role member or publisher"
        )


def _certificate(credentials: Credentials) -> Certificate:
    certificate = credentials.allowed.find(credentials.node)
    assert certificate is not None, "only an allowed identity has credentials"
    return certificate


def _read_identity(options: MemberOptions) -> Identity | None:
    if isinstance(options.identity, Identity):
        return options.identity
    if options.identity is not None:
        return Identity.read(options.identity)
    try:
        path = default_identity_path()
    except KeyringError:
        return None  # without a home directory
    # A named file, and a file that cannot be read, is an error if missing.
    is_there = bool(os.environ.get(ENVIRONMENT_VARIABLE)) or exists(path)
    return Identity.read(path) if is_there else None


def _check_role(options: MemberOptions, certificate: Certificate) -> None:
    name, role = certificate.name, certificate.role
    if options.durable_name and role is not Role.COLLECTOR:
        raise ConfigError(
            f"durable_name={options.durable_name!r}: the identity {name!r} has the role {role}, and"
            " only a collector has a durable name"
        )
    if options.durable_name not in {"", name}:
        raise ConfigError(
            f"durable_name={options.durable_name!r}: the durable name of this identity is {name!r}"
        )
    if role is Role.PUBLISHER and (options.listen or options.state is not None):
        raise ConfigError(
            f"the identity {name!r} has the role publisher, which only sends: pass listen=False,"
            " and omit state="
        )

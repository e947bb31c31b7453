"""``gapless keys identity|allow|disallow``: the identities that may join a group.

No command prints a private key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.rendering import echo, json_option, print_json
from gapless.errors import ConfigError
from gapless.keys.identities import Identity, default_identity_path
from gapless.keys.keyring import Keyring, default_path, is_plain
from gapless.keys.secret_files import exists
from gapless.wire.identities import PUBLIC_KEY_BYTES, Certificate, Role

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = re.compile(rf"[0-9a-f]{{{2 * PUBLIC_KEY_BYTES}}}")


def _keyring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--group", required=True, metavar="GROUP", help="The group of the identity."
    )(command)
    return click.option(
        "--keys",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The keyring; by default that of GAPLESS_KEYS, else of this user.",
    )(command)


@click.command("identity")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def identity(file: Path | None, as_json: bool) -> None:
    """Make the identity of a member, or show the public key of an existing identity.

    The file is for this user only (mode 0600), and stays on its machine. The public key is no
    secret: the operator adds it to the keyring with gapless keys allow. Without FILE the command
    uses $GAPLESS_IDENTITY, else the file gapless/identity.toml in the folder for configurations of
    this user.
    """
    path = file or default_identity_path()
    made = not exists(path)
    if made:
        Identity.new().create(path)
    found = Identity.read(path)
    public = found.public_key.hex()
    if as_json:
        print_json({"path": str(path), "made": made, "public_key": public})
        return
    echo(f"{path}: {'new identity' if made else 'identity'} {public}")
    echo(f"Next: on the machine of the operator, gapless keys allow NAME {public} --group GROUP")


@click.command("allow")
@click.argument("name")
@click.argument("public_key", metavar="PUBLIC_KEY")
@_keyring_options
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.MEMBER.value,
    show_default=True,
    help="member: sends and receives; observer: receives only; publisher: sends only; collector:"
    " a member with the durable name NAME.",
)
@json_option
def allow(
    name: str, public_key: str, group: str, role: str, file: Path | None, as_json: bool
) -> None:
    """Allow the identity NAME with PUBLIC_KEY to join a group.

    From the first allowed identity on, the group takes no member without an allowed identity. Copy
    the keyring to every member, and restart the members of a group that had no identities before.
    """
    for what, text in (("NAME", name), ("--group", group)):
        if not is_plain(text):
            raise ConfigError(f"{what} {text!r}: expected printable text without quotes")
    if not _KEY.fullmatch(public_key.lower()):
        raise ConfigError(
            f"PUBLIC_KEY: expected {2 * PUBLIC_KEY_BYTES} hexadecimal digits; see: gapless keys"
            " identity"
        )
    certificate = Certificate(name, Role(role), bytes.fromhex(public_key))
    path = file or default_path()
    after = Keyring.read(path).allow(group, certificate)
    after.write(path)
    _print_identities(path, after, f"{group}: {name} is allowed as {role}", as_json=as_json)


@click.command("disallow")
@click.argument("name")
@_keyring_options
@json_option
def disallow(name: str, group: str, file: Path | None, as_json: bool) -> None:
    """Remove the identity NAME from the identities that may join a group.

    When the members have loaded the keyring, they ignore the member with the identity, and expel
    the member. The former member still has the keys: rotate them afterwards.
    """
    path = file or default_path()
    after = Keyring.read(path).disallow(group, name)
    after.write(path)
    _print_identities(path, after, f"{group}: {name} is not allowed any more", as_json=as_json)


def _print_identities(path: Path, ring: Keyring, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), "identities": identity_rows(ring)})
        return
    echo(f"{path}: {done}")
    echo("Next: copy the file to every member")


def identity_rows(ring: Keyring) -> list[dict[str, str]]:
    """Return a row for every allowed identity of a keyring."""
    return [
        {
            "group": each.group,
            "name": each.certificate.name,
            "role": each.certificate.role.value,
            "public_key": each.certificate.public_key.hex(),
        }
        for each in ring.identities
    ]

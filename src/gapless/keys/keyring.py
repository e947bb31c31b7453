"""The keyring file: the keys of sealed groups on disk.

A keyring is a TOML file, readable for the owner only. Every member of a group has a copy:

    ring = "<64 hexadecimal digits>"

    [[keys]]
    id = "3f9a77b1"
    secret = "<64 hexadecimal digits>"
    created = 2026-11-18T20:00:00Z
    state = "seal"
    cipher = "aes-256-gcm"

    [[identities]]
    group = "orders"
    name = "store"
    role = "collector"
    key = "<64 hexadecimal digits>"

A group with ``[[identities]]`` takes only members with one of these identities (identities.py).

The keys are in the order of their creation. A rotation has three steps, and after each step the
operator copies the file to every member: *add* a key in the state ``open``, *seal* with the new key
(the former key stays open), *retire* the former key. At every moment each member therefore opens
the datagrams of every other member.

The upper 16 bits of a key id are the first digits of the ring's label. On a datagram of another
ring, a member can therefore name the other ring; and reading a file detects a damaged ring secret.

No error, no ``repr`` and no log line contains a secret: an error names the place, never the value.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.keys.ciphers import SUITE_NAMES, default_suite
from gapless.keys.secret_files import (
    MAX_FILE_BYTES,
    KeyringError,
    check_fields,
    check_folder,
    create_private,
    damaged,
    decode_text,
    errors_name,
    exists,
    make_folders,
    may_enter,
    parse_toml,
    read_private,
    read_secret,
    read_tables,
    replace_private,
)
from gapless.units import format_count
from gapless.wire.identities import AllowList, Certificate, Role
from gapless.wire.seal_keys import SECRET_BYTES, KeyRing, KeyState, SealKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

ENVIRONMENT_VARIABLE = "GAPLESS_KEYS"
"""The environment variable that names the keyring file."""
MAX_KEYS = 64
"""Maximum number of keys in a keyring: members announce the keys that they open."""

LOCAL_NAME = "local.toml"
"""The file name of the keyring that members of one user on one machine share."""

_ID_SPACE = 2**16
_PRINT_PERSON = b"gapless-print-1"
_HEADER = """\
# The keys of sealed groups. Whoever reads this file can join the groups: keep the file secret.
# Change the file with `gapless keys`, then copy it to every member.
"""
_ID = re.compile(r"[0-9a-f]{8}")
_FIELDS = ("id", "secret", "created", "state", "cipher")


class KeyringExistsError(KeyringError):
    """The file of a new keyring exists already, and was left unchanged."""


class RotationStep(StrEnum):
    """A step of a rotation; a copy of the file to every member follows each step."""

    ADD = "add"
    SEAL = "seal"
    RETIRE = "retire"


class StoredKey(NamedTuple):
    """A key of a keyring file, with the time of creation (UTC, whole seconds)."""

    key: SealKey
    created: datetime

    @property
    def label(self) -> str:
        """The id of the key: eight hexadecimal digits."""
        return self.key.label

    @property
    def state(self) -> KeyState:
        """The use of the key."""
        return self.key.state

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits: equal for equal secrets, without revealing the secret.

        Operators compare fingerprints to compare the files of two machines.
        """
        return blake2b(key=self.key.secret, person=_PRINT_PERSON, digest_size=4).hexdigest()


class AllowedIdentity(NamedTuple):
    """An identity that a group takes."""

    group: str
    certificate: Certificate


@dataclass(frozen=True, slots=True, repr=False)
class Keyring:
    """The content of a keyring file: the secret of the ring, and the ring's keys, oldest first.

    A keyring does not change: ``add``, ``promote``, ``retire`` and ``rotate`` return another one.

    Raises:
        ConfigError: The keys contradict each other; the text says how, and what to do.
    """

    secret: bytes
    keys: tuple[StoredKey, ...]
    identities: tuple[AllowedIdentity, ...] = ()

    def __post_init__(self) -> None:
        for group in self.groups_with_identities:
            self.allow_list(group)
        if len(self.keys) > MAX_KEYS:
            raise KeyringError(
                f"the keyring has {len(self.keys)} keys, the maximum is {MAX_KEYS}",
                "delete the [[keys]] tables of retired keys",
            )
        ring = self.ring
        # Two keys with one secret would seal two datagrams with the same nonce.
        if len({self.secret, *(stored.key.secret for stored in self.keys)}) <= len(self.keys):
            raise KeyringError(
                "two secrets of the keyring are the same",
                "each secret must be random: copy the file of another member",
            )
        for stored in self.keys:
            if stored.label[:4] != ring.label[:4]:
                raise KeyringError(
                    f"the key {stored.label} does not belong to the ring {ring.label}: an id"
                    f" begins with the first four digits of its ring",
                    "copy the file of another member",
                )

    def __repr__(self) -> str:
        return f"Keyring({self.ring.label}, {format_count(len(self.keys), 'key')})"

    # Making and changing

    @classmethod
    def new(cls, *, now: datetime | None = None, cipher: str = "") -> Keyring:
        """Return a keyring with random secrets and a single key, the sealing key with ``cipher``.

        The default is the best cipher available on the current machine.

        Raises:
            ConfigError: The cipher is unknown.
        """
        cipher = cipher or default_suite()
        _check_cipher(cipher)
        # The mark of the key id depends on the secret of the ring, so a key comes second.
        secret = secrets.token_bytes(SECRET_BYTES)
        key = SealKey(0, secrets.token_bytes(SECRET_BYTES), KeyState.SEAL, cipher)
        mark = int(KeyRing(secret, (key,)).label[:4], 16)
        key = key._replace(key_id=mark * _ID_SPACE + secrets.randbelow(_ID_SPACE))
        return cls(secret, (StoredKey(key, _whole_seconds(now)),))

    @property
    def ring(self) -> KeyRing:
        """The ring for the wire layer."""
        return KeyRing(self.secret, tuple(stored.key for stored in self.keys))

    @property
    def sealing_key(self) -> StoredKey:
        """The sealing key."""
        return self.keys[self._sealing_index]

    @property
    def new_keys(self) -> tuple[StoredKey, ...]:
        """The open keys younger than the sealing key, oldest first."""
        return tuple(key for key in self.keys[self._sealing_index :] if _is_open(key))

    @property
    def former_keys(self) -> tuple[StoredKey, ...]:
        """The open keys older than the sealing key, oldest first."""
        return tuple(key for key in self.keys[: self._sealing_index] if _is_open(key))

    @property
    def next_step(self) -> RotationStep:
        """The next step; an incomplete rotation comes first."""
        if self.new_keys:
            return RotationStep.SEAL
        return RotationStep.RETIRE if self.former_keys else RotationStep.ADD

    @property
    def _sealing_index(self) -> int:
        return next(at for at, key in enumerate(self.keys) if key.state is KeyState.SEAL)

    def add(self, *, now: datetime | None = None, cipher: str = "") -> Keyring:
        """Return this keyring with a new random key in the state ``open``.

        The default of ``cipher`` is the cipher of the sealing key.

        Raises:
            ConfigError: The cipher is unknown.
        """
        mark = int(self.ring.label[:4], 16) * _ID_SPACE
        used = {stored.key.key_id for stored in self.keys}
        while (key_id := mark + secrets.randbelow(_ID_SPACE)) in used:
            pass
        cipher = cipher or self.sealing_key.key.cipher
        _check_cipher(cipher)
        key = SealKey(key_id, secrets.token_bytes(SECRET_BYTES), KeyState.OPEN, cipher)
        return replace(self, keys=(*self.keys, StoredKey(key, _whole_seconds(now))))

    def promote(self) -> Keyring:
        """Return this keyring with the newest open key as the sealing key.

        The former sealing key stays open, until every member seals with the new key.

        Raises:
            ConfigError: No open key is newer than the sealing key.
        """
        if not self.new_keys:
            raise KeyringError(
                f"no open key is newer than the sealing key {self.sealing_key.label}",
                f"run first: gapless keys rotate --step {RotationStep.ADD}",
            )
        chosen = self.new_keys[-1].key.key_id
        former = self.sealing_key.key.key_id
        return self._with_states({former: KeyState.OPEN, chosen: KeyState.SEAL})

    def retire(self, key_id: int) -> Keyring:
        """Return this keyring with a key in the state ``retired``.

        Raises:
            ConfigError: The keyring has no such key, or the key seals, or is retired.
        """
        label = f"{key_id:08x}"
        stored = next((each for each in self.keys if each.key.key_id == key_id), None)
        if stored is None:
            raise KeyringError(
                f"the ring {self.ring.label} has no key {label}",
                f"its keys are {', '.join(each.label for each in self.keys)}",
            )
        if stored.state is KeyState.SEAL:
            raise KeyringError(
                f"the key {label} seals, and cannot be retired",
                "rotate to another key first: gapless keys rotate",
            )
        if stored.state is KeyState.RETIRED:
            raise KeyringError(f"the key {label} is retired", "no further step is needed")
        return self._with_states({key_id: KeyState.RETIRED})

    def rotate(
        self, step: str | None = None, *, now: datetime | None = None, cipher: str = ""
    ) -> Keyring:
        """Return this keyring after a step of a rotation: ``add`` or ``seal``.

        Without ``step``, take the next step. A former key is retired by ``retire`` alone, because
        the operator decides when no member seals with the former key. ``cipher`` is that of an
        added key; by default that of the sealing key.

        Raises:
            ConfigError: The step is not possible now; the text names the step that is.
        """
        chosen = self.next_step if step is None else step
        if step is None and chosen == RotationStep.RETIRE:
            former = ", ".join(key.label for key in self.former_keys)
            raise KeyringError(
                f"the last rotation is not complete: the former key {former} is still open",
                "retire the key (gapless keys retire), or begin another rotation with --step add",
            )
        if chosen == RotationStep.SEAL:
            if cipher:
                raise KeyringError(
                    f"the next step seals with a key that has its cipher ({cipher} was given)",
                    "omit the cipher, or begin another rotation when this one is complete",
                )
            return self.promote()
        if chosen != RotationStep.ADD:
            raise KeyringError("unknown step of a rotation", "expected add or seal")
        if self.new_keys:
            raise KeyringError(
                f"the key {self.new_keys[-1].label} is open, and does not seal yet",
                "copy the file to every member, then run: gapless keys rotate --step seal",
            )
        return self.add(now=now, cipher=cipher)

    def _with_states(self, states: dict[int, KeyState]) -> Keyring:
        changed = (
            stored._replace(
                key=stored.key._replace(state=states.get(stored.key.key_id, stored.state))
            )
            for stored in self.keys
        )
        return replace(self, keys=tuple(changed))

    # Identities

    @property
    def groups_with_identities(self) -> tuple[str, ...]:
        """The groups that take only members with an allowed identity."""
        return tuple(dict.fromkeys(each.group for each in self.identities))

    def allow_list(self, group: str) -> AllowList | None:
        """Return the identities that ``group`` takes; None if the group has no identities.

        Raises:
            ConfigError: Two identities of the group have the same name or the same key.
        """
        found = [each.certificate for each in self.identities if each.group == group]
        return AllowList(found) if found else None

    def allow(self, group: str, certificate: Certificate) -> Keyring:
        """Return this keyring with another identity of ``group``.

        Raises:
            ConfigError: The group has an identity with this name or key.
        """
        return replace(self, identities=(*self.identities, AllowedIdentity(group, certificate)))

    def disallow(self, group: str, name: str) -> Keyring:
        """Return this keyring without the identity ``name`` of ``group``.

        Raises:
            ConfigError: The group has no such identity, or no other: a group whose last identity
                is removed would take every holder of the keys.
        """
        rest = tuple(
            each for each in self.identities if (each.group, each.certificate.name) != (group, name)
        )
        if len(rest) == len(self.identities):
            raise KeyringError(
                f"the group {group!r} has no identity {name!r}", "see: gapless keys show"
            )
        if not any(each.group == group for each in rest):
            raise KeyringError(
                f"{name!r} is the last identity of {group!r}: without identities the group takes"
                " every holder of the keys",
                "allow another identity first",
            )
        return replace(self, identities=rest)

    # Text

    def to_toml(self) -> str:
        """Return the text of the file; ``from_toml`` is the inverse. The text has the secrets."""
        tables = [
            f'\n[[keys]]\nid = "{stored.label}"\nsecret = "{stored.key.secret.hex()}"\n'
            f"created = {format_time(stored.created)}\n"
            f'state = "{stored.state}"\n'
            f'cipher = "{stored.key.cipher}"\n'
            for stored in self.keys
        ]
        tables += [
            f'\n[[identities]]\ngroup = "{each.group}"\nname = "{each.certificate.name}"\n'
            f'role = "{each.certificate.role}"\nkey = "{each.certificate.public_key.hex()}"\n'
            for each in self.identities
        ]
        return f'{_HEADER}\nring = "{self.secret.hex()}"\n{"".join(tables)}'

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Return the keyring of the text of a file.

        Raises:
            ConfigError: The text is damaged; the error names the place, and shows no value.
        """
        values = parse_toml(text)
        identities = read_tables(values.pop("identities", []), "identities")
        check_fields(values, ("ring", "keys"), "the keyring")
        secret = read_secret(values["ring"], "ring")
        tables = read_tables(values["keys"], "keys")
        return cls(
            secret,
            tuple(_read_key(table, at) for at, table in enumerate(tables, 1)),
            tuple(_read_identity(table, at) for at, table in enumerate(identities, 1)),
        )

    # Files

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the keyring of a file.

        Raises:
            ConfigError: The file cannot be read, other users can read or replace the file, or its
                content is damaged; the text names the file, the problem and the remedy.
        """
        path = Path(path)
        with errors_name(path, "cannot be read", "run as the owner of the file"):
            try:
                return cls.from_toml(decode_text(read_private(path)))
            except FileNotFoundError:
                raise KeyringError(
                    "no such keyring",
                    f"run gapless keys new {path}, or copy the file of another member",
                ) from None

    def write(self, path: str | Path) -> None:
        """Replace a file atomically: readers see the old content or the new content.

        Raises:
            ConfigError: The file cannot be written, or other users can write to its folder.
        """
        replace_private(path, self._file_text(path))

    def create(self, path: str | Path) -> None:
        """Write a new file, and its missing folders, for this user only.

        Raises:
            KeyringExistsError: The file exists, and is left unchanged.
            ConfigError: The file cannot be written, or other users can write to its folder.
        """
        try:
            create_private(path, self._file_text(path))
        except FileExistsError:
            raise KeyringExistsError(
                f"{path}: the file exists, and a new keyring would replace its keys",
                "name another file; gapless keys rotate changes the keys of a ring",
            ) from None

    def _file_text(self, path: str | Path) -> str:
        """Return the text of the file; raise ConfigError if no member would read the file."""
        text = self.to_toml()
        if len(text.encode()) > MAX_FILE_BYTES:
            raise KeyringError(
                f"{path}: the keyring has more than {MAX_FILE_BYTES} bytes with"
                f" {len(self.identities)} identities",
                "remove identities that are not in use (gapless keys disallow), or use another"
                " keyring for some of the groups",
            )
        return text


def default_path() -> Path:
    """Return the path of the keyring of this user.

    ``$GAPLESS_KEYS``, else ``$XDG_CONFIG_HOME/gapless/keys.toml``, else
    ``~/.config/gapless/keys.toml``.

    Raises:
        ConfigError: This user has no home directory.
    """
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        with _without_home():
            return Path(named).expanduser()
    return config_folder() / "keys.toml"


def config_folder() -> Path:
    """Return the folder of Gapless for configurations of this user.

    Raises:
        ConfigError: This user has no home directory, or may not enter it.
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The specification of XDG_CONFIG_HOME says that a relative path is to be ignored.
    if config.is_absolute():
        return config / "gapless"
    with _without_home():
        home = Path.home()
    if not may_enter(home):
        # HOME is that of another user, for example behind sudo -u.
        raise KeyringError(
            f"this user may not enter the home directory {home}",
            f"set HOME, or name the file: {ENVIRONMENT_VARIABLE}=FILE",
        )
    return home / ".config" / "gapless"


@contextmanager
def _without_home() -> Iterator[None]:
    """Turn the error of a user without a home directory into one about the keyring."""
    try:
        yield
    except RuntimeError:
        raise KeyringError(
            "this user has no home directory for a keyring",
            f"name the file: {ENVIRONMENT_VARIABLE}=FILE",
        ) from None


def local_path() -> Path:
    """Return the path of the keyring that the members of this user on this machine share.

    The file ``local.toml`` beside the keyring of this user; without a folder for configurations
    that this user can write to, in the folder for temporary files, in a folder of this user.

    Raises:
        ConfigError: No such folder can be used; the text says what to do.
    """
    problem = ""
    try:
        folder = config_folder()
        if _is_usable(folder):
            return folder / LOCAL_NAME
        problem = f"{folder} cannot be written"
    except KeyringError as error:
        problem = error.problem
    import tempfile  # slow to import, and seldom needed

    folder = Path(tempfile.gettempdir()).absolute() / f"gapless-{os.getuid()}"
    if not _is_usable(folder):
        raise KeyringError(
            f"{problem}, and {folder} belongs to another user or cannot be written",
            f"make a folder of this user and set XDG_CONFIG_HOME to it, name a keyring with"
            f" {ENVIRONMENT_VARIABLE}, or join with insecure=True",
        )
    return folder / LOCAL_NAME


def _is_usable(folder: Path) -> bool:
    """Return whether this user can keep a keyring in ``folder``, which is made if it is missing."""
    try:
        make_folders(folder)
        check_folder(folder)
    except (OSError, KeyringError):
        return False
    return os.path.lexists(folder / LOCAL_NAME) or os.access(folder, os.W_OK | os.X_OK)


def load_or_create(path: Path) -> Keyring:
    """Return the keyring of a file; the first call makes the file and its folder.

    Processes that call this function at the same time return the same keyring.

    Raises:
        ConfigError: The file or its folder cannot be used; the text says what to do.
    """
    if not exists(path):
        made = Keyring.new()
        with suppress(KeyringExistsError):
            made.create(path)
            return made
    return Keyring.read(path)


def format_time(when: datetime) -> str:
    """Return a time of a keyring as text, such as ``2026-11-18T20:00:00Z``."""
    return f"{when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def parse_key_id(text: str) -> int:
    """Return the key id in eight hexadecimal digits.

    Raises:
        ConfigError: The text is no key id.
    """
    if not _ID.fullmatch(text.lower()):
        # Perhaps the text is a secret in the place of an id.
        raise KeyringError("not a key id", "expected 8 hexadecimal digits; see: gapless keys show")
    return int(text, 16)


def _is_open(stored: StoredKey) -> bool:
    return stored.state is KeyState.OPEN


def _whole_seconds(now: datetime | None) -> datetime:
    return (now or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)


# Reading text


def _read_key(table: dict[str, Any], number: int) -> StoredKey:
    check_fields(table, _FIELDS, f"key {number}")
    label, created, state = table["id"], table["created"], table["state"]
    if not isinstance(label, str) or not _ID.fullmatch(label):
        raise damaged(f"id of key {number}: expected 8 hexadecimal digits, 0-9 and a-f")
    secret = read_secret(table["secret"], f"secret of key {label}")
    if not isinstance(state, str) or state not in set(KeyState):
        raise damaged(f"state of key {label}: expected {', '.join(KeyState)}")
    if not isinstance(created, datetime) or created.tzinfo is None:
        raise damaged(f"created of key {label}: expected a time such as 2026-11-18T20:00:00Z")
    try:
        when = _whole_seconds(created)
    except OverflowError:
        raise damaged(f"created of key {label}: the time is out of range") from None
    if not isinstance(table["cipher"], str) or table["cipher"] not in SUITE_NAMES:
        raise damaged(f"cipher of key {label}: expected {', '.join(SUITE_NAMES)}")
    return StoredKey(SealKey(int(label, 16), secret, KeyState(state), table["cipher"]), when)


def _read_identity(table: dict[str, Any], number: int) -> AllowedIdentity:
    check_fields(table, ("group", "name", "role", "key"), f"identity {number}")
    for name in ("group", "name"):
        if not isinstance(table[name], str) or not is_plain(table[name]):
            raise damaged(f"{name} of identity {number}: expected printable text without quotes")
    if not isinstance(table["role"], str) or table["role"] not in set(Role):
        raise damaged(f"role of identity {number}: expected {', '.join(Role)}")
    key = read_secret(table["key"], f"key of identity {number}")
    return AllowedIdentity(table["group"], Certificate(table["name"], Role(table["role"]), key))


def is_plain(text: str) -> bool:
    """Return whether a name can stand in the file as it is."""
    return bool(text) and text.isprintable() and not set(text) & {'"', "\\"}


def _check_cipher(cipher: str) -> None:
    if cipher not in SUITE_NAMES:
        raise KeyringError(
            f"the cipher {cipher!r} is unknown", f"expected {', '.join(SUITE_NAMES)}"
        )

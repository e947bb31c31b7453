"""Identity files, and the identities of a keyring: permissions, damage, and no key in text."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gapless.errors import ConfigError
from gapless.identity import Address, RosterEntry
from gapless.keys.identities import (
    Identity,
    IdentityExistsError,
    default_identity_path,
    make_credentials,
    verify,
    x25519_key,
    x25519_public,
)
from gapless.keys.keyring import Keyring, RotationStep
from gapless.wire.identities import WRAPPED_BYTES, AllowList, Certificate, Role, node_of

SECRET = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of an identity."""
    path = tmp_path / "identity.toml"
    Identity(SECRET).create(path)
    return path


def certificate(
    name: str, role: Role = Role.MEMBER, identity: Identity | None = None
) -> Certificate:
    return Certificate(name, role, (identity or Identity.new()).public_key)


# Files


def test_a_file_holds_an_identity_for_its_owner_only(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.read(path).public_key == Identity(SECRET).public_key


def test_a_file_is_never_replaced(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(IdentityExistsError, match="the file exists"):
        Identity.new().create(path)
    assert path.read_bytes() == before


def test_a_file_that_others_can_read_is_refused(path: Path) -> None:
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can access the file") as caught:
        Identity.read(path)
    text = str(caught.value)
    assert f"chmod 600 {path}" in text
    assert "make a new identity" in text
    assert "gapless keys disallow" in text
    assert "rotate the keys" not in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("secret", "other", "the identity has no secret"),
        ('"0001', '"zz01', "expected 64 hexadecimal digits"),
        ('"0001', '"0101', "not the public key of secret"),
        ("secret = ", "secret : ", "not TOML"),
    ],
)
def test_a_damaged_file_is_refused_without_its_content(
    path: Path, old: str, new: str, words: str
) -> None:
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=words) as caught:
        Identity.read(path)
    assert str(path) in str(caught.value)
    assert SECRET.hex()[4:] not in str(caught.value)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gapless keys identity"):
        Identity.read(tmp_path / "none.toml")


def test_no_text_shows_the_private_key() -> None:
    assert SECRET.hex() not in repr(Identity(SECRET))


def test_the_default_file_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAPLESS_IDENTITY", str(tmp_path / "one.toml"))
    assert default_identity_path() == tmp_path / "one.toml"
    monkeypatch.delenv("GAPLESS_IDENTITY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_identity_path() == tmp_path / "gapless" / "identity.toml"


# Signatures


def test_a_signature_is_good_for_one_text_and_one_identity() -> None:
    one, other = Identity.new(), Identity.new()
    signature = one.sign(b"text")
    assert verify(one.public_key, signature, b"text")
    assert not verify(one.public_key, signature, b"texT")
    assert not verify(other.public_key, signature, b"text")
    assert not verify(one.public_key, signature[:-1] + bytes([signature[-1] ^ 1]), b"text")


def test_the_node_of_an_identity_is_fixed() -> None:
    """The derivation is a part of the wire format."""
    assert Identity(SECRET).public_key.hex() == (
        "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    )
    assert node_of(bytes(32)) == 0xAB527110837519A1


# The identities of a keyring


def test_a_keyring_keeps_its_identities_through_text_and_rotation() -> None:
    keys = Keyring.new().allow("orders", certificate("store", Role.COLLECTOR))
    keys = keys.allow("orders", certificate("anna")).allow("bills", certificate("anna"))
    assert Keyring.from_toml(keys.to_toml()) == keys
    rotated = keys.rotate(RotationStep.ADD).rotate(RotationStep.SEAL)
    assert rotated.identities == keys.identities
    assert keys.groups_with_identities == ("orders", "bills")
    assert keys.allow_list("other") is None
    assert len(keys.allow_list("orders").certificates) == 2  # type: ignore[union-attr]


def test_a_keyring_without_identities_is_written_as_before() -> None:
    assert "identities" not in Keyring.new().to_toml()


def test_names_and_keys_of_a_group_are_unique() -> None:
    identity = Identity.new()
    keys = Keyring.new().allow("orders", certificate("anna", identity=identity))
    with pytest.raises(ConfigError, match="the same name"):
        keys.allow("orders", certificate("anna"))
    with pytest.raises(ConfigError, match="the same public key"):
        keys.allow("orders", certificate("bert", identity=identity))


def test_the_last_identity_of_a_group_stays() -> None:
    keys = Keyring.new().allow("orders", certificate("anna"))
    with pytest.raises(ConfigError, match="the last identity"):
        keys.disallow("orders", "anna")
    with pytest.raises(ConfigError, match="no identity 'bert'"):
        keys.disallow("orders", "bert")
    both = keys.allow("orders", certificate("bert"))
    assert both.disallow("orders", "bert") == keys


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("role", "king", "role of identity 1: expected member"),
        ("key", "77", "key of identity 1"),
        ("name", "a\\u0007b", "name of identity 1"),
        ("group", "", "group of identity 1"),
    ],
)
def test_a_damaged_identity_is_refused(field: str, value: str, words: str) -> None:
    lines = Keyring.new().allow("orders", certificate("anna")).to_toml().splitlines()
    at = max(index for index, line in enumerate(lines) if line.startswith(f"{field} = "))
    lines[at] = f'{field} = "{value}"'
    with pytest.raises(ConfigError, match=words):
        Keyring.from_toml("\n".join(lines))


def test_only_a_collector_has_a_durable_name_and_only_its_own() -> None:
    allowed = AllowList([one := certificate("store", Role.COLLECTOR), two := certificate("anna")])
    store, anna = Address(one.node, 1), Address(two.node, 1)
    refusals = [
        allowed.refusal(RosterEntry(store, "store")),
        allowed.refusal(RosterEntry(store, "")),
        allowed.refusal(RosterEntry(store, "anna")),
        allowed.refusal(RosterEntry(anna, "anna")),
        allowed.refusal(RosterEntry(anna, "store")),
        allowed.refusal(RosterEntry(Address(7, 1), "")),
    ]
    assert refusals == ["", "", "name", "name", "name", "identity"]


def test_credentials_need_an_allowed_identity() -> None:
    anna = Identity.new()
    keys = Keyring.new().allow("orders", certificate("anna", identity=anna))
    assert make_credentials(keys, "other", None) is None
    found = make_credentials(keys, "orders", anna)
    assert found is not None
    assert found.node == anna.node
    with pytest.raises(ConfigError, match="this member has none"):
        make_credentials(keys, "orders", None)
    with pytest.raises(ConfigError, match="may not join"):
        make_credentials(keys, "orders", Identity.new())


def test_both_sides_of_an_exchange_derive_one_key_from_their_identities() -> None:
    for number in range(20):
        identity = Identity(bytes([number]) * 32)
        found = x25519_key(bytes([number]) * 32).public_key().public_bytes_raw()
        assert x25519_public(identity.public_key).public_bytes_raw() == found


def test_a_wrapped_key_opens_for_one_identity_of_one_other_in_one_context() -> None:
    anna, bert, carl = (Identity.new() for _ in range(3))
    key = b"\0" + bytes(range(32))
    wrapped = anna.wrap(bert.public_key, key, b"here")
    assert len(wrapped) == WRAPPED_BYTES
    assert bert.unwrap(anna.public_key, wrapped, b"here") == key
    assert bert.unwrap(anna.public_key, wrapped, b"there") is None
    assert carl.unwrap(anna.public_key, wrapped, b"here") is None
    assert bert.unwrap(carl.public_key, wrapped, b"here") is None
    assert bert.unwrap(anna.public_key, bytes(WRAPPED_BYTES), b"here") is None


@pytest.mark.parametrize("number", [1, 2**255 - 20, 0, 2**255 - 19])
def test_a_public_key_of_nobody_wraps_and_unwraps_nothing(number: int) -> None:
    """An operator may have allowed any 32 bytes."""
    anna, nobody = Identity.new(), number.to_bytes(32, "little")
    assert anna.wrap(nobody, bytes(33), b"") == bytes(WRAPPED_BYTES)
    assert anna.unwrap(nobody, bytes(WRAPPED_BYTES), b"") is None


def test_a_key_for_an_unknown_cipher_is_refused() -> None:
    anna, bert = Identity.new(), Identity.new()
    for key in (b"\2" + bytes(32), bytes(32), b""):
        wrapped = anna.wrap(bert.public_key, key, b"")
        assert bert.unwrap(anna.public_key, wrapped, b"") is None


def test_a_view_is_sealed_with_the_cipher_of_the_ring_or_one_that_encrypts() -> None:
    for cipher, first in (("chacha20-poly1305", 1), ("aes-256-gcm", 0), ("blake2b", 0)):
        anna = Identity.new()
        keys = Keyring.new(cipher=cipher).allow("orders", certificate("anna", identity=anna))
        found = make_credentials(keys, "orders", anna)
        assert found is not None
        drawn = found.exchange.draw()
        assert drawn[0] == first
        assert len(drawn) == 33

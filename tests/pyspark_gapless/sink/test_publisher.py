"""The member of a process that publishes batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.errors import ConfigError
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.wire.identities import Certificate, Role
from pyspark_gapless.sink.options import SinkOptions
from pyspark_gapless.sink.publisher import PublisherMember


def test_an_observer_publishes_nothing_and_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joined would replace the running member with this identity."""
    tmp_path.chmod(0o700)
    observer, path = Identity.new(), tmp_path / "keys.toml"
    certificate = Certificate("watch", Role.OBSERVER, observer.public_key)
    Keyring.new().allow("orders", certificate).create(path)
    observer.create(tmp_path / "identity.toml")
    monkeypatch.setenv("GAPLESS_IDENTITY", str(tmp_path / "identity.toml"))
    member = PublisherMember(SinkOptions("orders", keys=str(path)))
    with pytest.raises(ConfigError, match="'watch' has the role observer in orders"):
        member._join()
    assert member.joins == 0

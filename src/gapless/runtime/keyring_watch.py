"""The keyring file of a running member: a rotation reaches the member without a restart.

While running: ``check`` looks at the file every ``CHECK_NS``, and gives a changed file to the seal.
A file that cannot be used changes nothing: the member keeps its keys, says what is wrong once, and
reads the file again at every check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.logger import log
from gapless.output.private_files import file_stamp
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

    from gapless.wire.seal import Seal

CHECK_NS = NS_PER_S
"""How often the file is looked at."""


class KeyringWatch:
    """Follows the keyring file of one member of ``group``; the first check reads the file."""

    def __init__(self, group: str, path: Path, seal: Seal) -> None:
        self.due_ns = 0
        """When the next check is due."""
        self.keyring: Keyring | None = None
        """The content of the file when it was last read."""
        self._group = group
        self._path = path
        self._seal = seal
        self._read_stamp: tuple[int, ...] | None = None
        self._problem = ""

    def check(self, now_ns: int) -> bool:
        """Read the file if it has changed; return whether the keys of the member have changed."""
        self.due_ns = now_ns + CHECK_NS
        # The stamp comes first: a file that is replaced while it is read is read again.
        stamp = file_stamp(self._path)
        if stamp is not None and stamp == self._read_stamp:
            return False
        try:
            keyring = Keyring.read(self._path)
            ring = keyring.ring
            changed = ring.keys != self._seal.ring.keys or ring.secret != self._seal.ring.secret
            if changed:
                self._seal.replace_ring(ring, suites_of(ring))
        except GaplessError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("%s: the keys stay as they are: %s", self._group, error)
            return False
        self._read_stamp, self._problem, self.keyring = stamp, "", keyring
        if changed:
            log.info(
                "%s: key %s seals; keys %s open",
                self._group,
                ring.sealing_key.label,
                ", ".join(f"{key_id:08x}" for key_id in sorted(ring.opening_keys)),
            )
        return changed

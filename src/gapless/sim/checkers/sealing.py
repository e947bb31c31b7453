"""The checks of sealed groups: S24 to S27."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.sim.oracle.checker import InvariantChecker

if TYPE_CHECKING:
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.sim.sealing.attempt import OpeningAttempt, SealedDatagram
    from gapless.wire.seal import Seal
    from gapless.wire.seal_keys import SealKey


class ValidSealChecker(InvariantChecker):
    """Valid seals: a member receives only datagrams of members, unchanged, and each once."""

    id = "S24"

    def opening(self, model: MemberModel, attempt: OpeningAttempt, seal: Seal) -> None:
        """Check that an opened datagram was fit, and has the bytes of the sender."""
        if attempt.rejection:
            return
        if attempt.unfit:
            self.fail(f"{model.name} opens a datagram, but {attempt.unfit}")
        elif not attempt.intact:
            self.fail(f"{model.name} opens a datagram with other bytes than the sender sealed")


class StrangerChecker(InvariantChecker):
    """Strangers: a rejected datagram changes one counter, and no key but its own is tried."""

    id = "S25"

    def opening(self, model: MemberModel, attempt: OpeningAttempt, seal: Seal) -> None:
        """Check that a rejection left no trace."""
        if attempt.changed:
            self.fail(
                f"{model.name} rejects a datagram ({attempt.rejection}), and its seal has changed"
            )
        if attempt.decryptions > attempt.has_key:
            keys = "one key" if attempt.has_key else "a key that is not in the keyring"
            self.fail(
                f"{model.name} tries {attempt.decryptions} keys for a datagram that names {keys}"
            )
        try:
            seal.check_invariants()
        except AssertionError as error:
            self.fail(f"{model.name} violates an invariant of its seal: {error}")


class NonceChecker(InvariantChecker):
    """Nonces: a pair of key and nonce never occurs twice in a run."""

    id = "S26"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._used: set[tuple[bytes, bytes]] = set()

    def encryption(self, key: bytes, nonce: bytes) -> None:
        """Check a pair of key and nonce before its use."""
        pair = key, nonce
        if pair in self._used:
            counter = int.from_bytes(nonce[4:], "little")
            self.fail(f"nonce {counter} is used twice under the key {key.hex()[:8]}")
        self._used.add(pair)


class RotationChecker(InvariantChecker):
    """Rotation: each first arrival opens while its key opens; the sealing key seals."""

    id = "S27"

    def sealed(self, model: MemberModel, sealed: SealedDatagram, key: SealKey) -> None:
        """Check that a member seals with the sealing key of its keyring."""
        if sealed.key_id != key.key_id:
            self.fail(f"{model.name} seals with key {sealed.key_id}, and key {key.key_id} seals")

    def opening(self, model: MemberModel, attempt: OpeningAttempt, seal: Seal) -> None:
        """Check that a datagram that must open opened."""
        if attempt.rejection and not attempt.unfit:
            self.fail(f"{model.name} rejects a datagram of a member ({attempt.rejection})")


SEALING_CHECKERS: tuple[type[InvariantChecker], ...] = (
    ValidSealChecker,
    StrangerChecker,
    NonceChecker,
    RotationChecker,
)
"""The checks of sealed groups; they see nothing in a run without seals."""

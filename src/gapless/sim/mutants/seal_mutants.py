"""Planted bugs in sealed groups: nonces, replay windows, the choice of keys, rotations."""

from __future__ import annotations

from gapless.sim.mutants.planting import Mutant

_SEAL = "gapless.wire.seal:Seal"

SEAL_MUTANTS = (
    # Nonces
    Mutant(
        "nonce of before",
        "the counter of a key does not rise",
        f"{_SEAL}._number",
        "own.counter += 1",
        "own.counter = own.counter or 1",
        sealed=True,
    ),
    Mutant(
        "nonce of the run",
        "the datagrams of a run share one counter",
        f"{_SEAL}.seal_run",
        "                own.counter += 1\n",
        "",
        sealed=True,
    ),
    Mutant(
        "counter from one again",
        "a key that seals again after a rotation begins with counter 1",
        f"{_SEAL}._select_own_key",
        "own = self._own_keys.get((key.secret, sender_fields))",
        "own = None",
        sealed=True,
    ),
    Mutant(
        "one key for all lives",
        "the key does not depend on the incarnation",
        f"{_SEAL}._derive",
        "blake2b(sender_fields, ",
        "blake2b(sender_fields[:_NODE_END], ",
        sealed=True,
    ),
    Mutant(
        "one key for all members",
        "the key depends on the group alone",
        f"{_SEAL}._derive",
        "blake2b(sender_fields, ",
        "blake2b(sender_fields[:8], ",
        sealed=True,
    ),
    Mutant(
        "the clock never goes back",
        "the number of an incarnation has no random bits",
        "gapless.wire.seal_keys:sealed_incarnation",
        "clock_ns & ~_RANDOM_MASK | rng.getrandbits(_RANDOM_MASK.bit_length())",
        "clock_ns",
        sealed=True,
        membership=True,
    ),
    # Replay windows
    Mutant(
        "window one too wide",
        "a datagram as old as the window opens",
        "gapless.wire.seal:ReplayWindow.is_new",
        "behind >= WINDOW",
        "behind > WINDOW",
        sealed=True,
        character="swarm",
    ),
    Mutant(
        "window one too narrow",
        "the oldest datagram of the window is rejected",
        "gapless.wire.seal:ReplayWindow.is_new",
        "behind >= WINDOW",
        "behind >= WINDOW - 1",
        sealed=True,
        character="swarm",
    ),
    Mutant(
        "run too long",
        "a datagram that is missing before an unbroken run counts as opened",
        "gapless.wire.seal:ReplayWindow.is_new",
        "behind < self._run ",
        "behind < self._run + 2 ",
        sealed=True,
    ),
    Mutant(
        "late and again",
        "a datagram that arrives late is recorded one place off",
        "gapless.wire.seal:ReplayWindow.add",
        "self._seen |= 1 << -ahead",
        "self._seen |= 1 << -ahead - 1",
        sealed=True,
    ),
    Mutant(
        "seen before it is true",
        "the window moves before the tag is checked",
        f"{_SEAL}._open",
        "        front = path.front\n",
        "        front = path.front\n        window.add(counter)\n",
        sealed=True,
    ),
    Mutant(
        "gap in a run",
        "the datagrams before the next one of a run count as opened",
        f"{_SEAL}.open_run",
        "is_next = counter == top + 1",
        "is_next = counter > top",
        sealed=True,
    ),
    Mutant(
        "windows end with the file",
        "a changed keyring file forgets all windows",
        f"{_SEAL}.replace_ring",
        "known = {**self._parked, **self._senders}",
        "known: dict[bytes, _Sender] = {}",
        sealed=True,
    ),
    Mutant(
        "windows end with the key",
        "the windows of a retired key are forgotten, and the key returns",
        f"{_SEAL}.replace_ring",
        "known = {**self._parked, **self._senders}",
        "known = {f: s for f, s in self._senders.items() if self._is_open(s.key, is_view=False)}",
        sealed=True,
    ),
    Mutant(
        "my own words",
        "a member opens its own datagrams when they come back",
        f"{_SEAL}._new_sender",
        "if sender_fields in self._own_incarnations:",
        "if False:",
        sealed=True,
    ),
    # The choice of the key
    Mutant(
        "every key is tried",
        "a datagram of an unknown key is tried with the sealing key",
        f"{_SEAL}._new_sender",
        "key = (self._view_keys if is_view else self._opening).get(key_id)",
        "key = self._opening.get(key_id, self.ring.sealing_key)",
        sealed=True,
    ),
    Mutant(
        "retired keys open",
        "a retired key of the ring still opens",
        "gapless.wire.seal_keys:KeyRing.opening_keys",
        "if key.state is not KeyState.RETIRED",
        "if key.state",
        sealed=True,
    ),
    Mutant(
        "stranger at the table",
        "a sender gets its place before its datagram has opened",
        f"{_SEAL}._open",
        "        front = path.front\n",
        "        front = path.front\n        self._remember_path(path, header)\n",
        sealed=True,
    ),
    # The tag
    Mutant(
        "any tag",
        "the tag is not compared",
        "gapless.wire.cipher:Blake2b._check",
        "if not compare_digest(",
        "if data is None and compare_digest(",
        sealed=True,
    ),
    Mutant(
        "header for free",
        "the tag leaves out the header",
        "gapless.wire.cipher:Blake2b._tag",
        "        tag.update(associated_data)\n",
        "",
        sealed=True,
    ),
    Mutant(
        "counter for free",
        "the tag leaves out the counter",
        "gapless.wire.cipher:Blake2b._tag",
        "blake2b(nonce, ",
        "blake2b(b'', ",
        sealed=True,
    ),
    # Rotation
    Mutant(
        "the old key seals on",
        "a member seals with the former key after a rotation",
        f"{_SEAL}.replace_ring",
        "        self._own = None\n",
        "",
        sealed=True,
    ),
    Mutant(
        "the new key is not read",
        "a changed keyring file changes no key that opens",
        f"{_SEAL}.replace_ring",
        "        self._opening = ring.opening_keys\n",
        "",
        sealed=True,
    ),
)
"""Planted bugs in the seal; the hunt uses sealed groups."""

TRANSPORT_MUTANTS = (
    Mutant(
        "address before the seal",
        "the source of a datagram is learnt before the datagram has opened",
        "gapless.transport.udp:UdpMesh._receive_sealed",
        "        try:\n            datagram = seal.open(sealed)\n",
        "        self._note_source(sealed, source)\n"
        "        try:\n            datagram = seal.open(sealed)\n",
        sealed=True,
    ),
    Mutant(
        "address of an old datagram",
        "a datagram that was overtaken teaches the address of its sender",
        "gapless.transport.udp:UdpMesh._receive_sealed",
        "if seal.was_newest:",
        "if found:",
        sealed=True,
    ),
    Mutant(
        "address in another's datagram",
        "a datagram for another member teaches the address of its sender",
        "gapless.transport.udp:UdpMesh._note_source",
        " and self._is_for_me(datagram)",
        "",
        sealed=True,
    ),
)
"""Planted bugs in the sockets, which no simulated run has: each has a test in place of a hunt."""

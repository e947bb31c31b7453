"""Sealed groups in the simulator: seals, rotations of keys, and an adversary on the network."""

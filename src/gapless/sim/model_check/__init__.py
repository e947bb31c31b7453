"""Bounded model checking: all interleavings of a small group of real machines."""

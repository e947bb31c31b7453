"""Deterministic simulation of whole groups: one thread, one seed, virtual time, every check after every step."""

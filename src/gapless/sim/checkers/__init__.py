"""Checkers: one class for each invariant, called after every step."""

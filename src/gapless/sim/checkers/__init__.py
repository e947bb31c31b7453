"""Checkers: a class for each invariant, called after every step."""

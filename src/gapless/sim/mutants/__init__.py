"""Mutants: planted bugs that the checkers must catch."""

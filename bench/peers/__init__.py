"""A small adapter for each measured library, all of the same shape: see base.py."""

"""Measurements behind pages of the docs, not part of the wheel: ``python -m experiments``."""

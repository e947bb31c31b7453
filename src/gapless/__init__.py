"""Gapless: brokerless, reliable, ordered group messaging for Python."""

__version__ = "0.1.0"

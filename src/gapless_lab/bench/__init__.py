"""Throughput and round trips of a group of real processes: ``gapless bench``."""

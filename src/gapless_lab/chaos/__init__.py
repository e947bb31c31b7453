"""Kill every process of a pipeline under load, and check that its table is exact.

``gapless chaos`` and ``make chaos`` run it; docs/chaos.md describes the victims and the checks.
"""

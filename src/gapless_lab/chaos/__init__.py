"""Kill every process of a pipeline under load, and check the table: ``gapless chaos``.

docs/internals/chaos.md describes the victims and the checks.
"""

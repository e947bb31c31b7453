"""The whole pipeline on one machine: ``gapless demo`` and ``make demo``; see docs/start/demo.md."""

"""The main job from end to end, on one machine: ``gapless demo`` and ``make demo``; docs/demo.md says what it shows."""

"""A make-believe plant whose sensors send readings: what ``gapless pipeline`` shows the way from a group to tables with."""

"""A make-believe plant whose sensors send readings: what ``gapless pipeline`` brings through a group into tables."""

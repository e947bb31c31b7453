"""A simulated plant whose readings go through a group into tables: ``gapless pipeline``."""

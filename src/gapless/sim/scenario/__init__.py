"""Scenario files: the grammar, the actions, and the diagram of the run."""

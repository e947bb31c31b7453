"""Commands to simulate, measure and break groups."""

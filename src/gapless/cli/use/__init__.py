"""Commands of people who use a group."""

"""Commands for using a group."""

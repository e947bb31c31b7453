"""The runtime: one protocol thread for all groups of a process, and the machines it runs."""

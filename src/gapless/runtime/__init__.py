"""One protocol thread for all groups of a process: it runs the machines over their transports."""

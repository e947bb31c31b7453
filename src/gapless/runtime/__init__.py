"""One protocol thread for all groups of a process: it runs the machines and serves their transports."""

"""The simulated world: scheduler, network, hosts, processes and their applications."""

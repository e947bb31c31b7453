"""Swarm testing: draw a whole run, its faults and its settings, from one seed."""

"""Swarm testing: draw a whole run, with faults and settings, from a seed."""

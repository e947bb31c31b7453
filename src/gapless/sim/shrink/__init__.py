"""Shrinking: a failing run becomes the shortest scenario that still fails."""

"""The pure protocol machine: each input (bytes, time, a call) returns one ``Ready``."""

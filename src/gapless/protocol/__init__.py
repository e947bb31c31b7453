"""The pure protocol machine: bytes, time and randomness come in, one ``Ready`` goes out."""

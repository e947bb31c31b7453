"""Output of Gapless for people and on disks: printable text, and files for one user."""

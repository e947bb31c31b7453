"""The lab: real processes on this machine, hurt on purpose. Nothing in gapless imports it but the CLI, late."""

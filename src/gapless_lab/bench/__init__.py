"""What a group of real processes on this machine does in a second: ``gapless bench``."""

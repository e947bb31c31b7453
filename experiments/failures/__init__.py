"""Kill, cut off and attack real processes, and measure when the other members react."""

"""Coverage: the situations that a sweep must have seen at least once."""

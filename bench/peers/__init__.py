"""One small adapter for each library that is measured, all of the same shape: see base.py."""

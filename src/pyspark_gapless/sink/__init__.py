"""The Spark sink: rows published to a group, each once."""

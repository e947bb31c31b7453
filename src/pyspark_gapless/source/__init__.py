"""The Spark source: a spool read as a batch or as a stream."""

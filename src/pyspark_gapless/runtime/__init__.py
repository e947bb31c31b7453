"""What Spark needs on this machine: Java, configuration, packages for executors."""

"""The needs of Spark on this machine: Java, configuration, packages for executors."""

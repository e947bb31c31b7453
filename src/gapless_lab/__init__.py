"""Real processes on the local machine, under load and injected faults.

Only the commands of the CLI import the lab, inside their functions; gapless and pyspark_gapless do
not depend on the lab.
"""

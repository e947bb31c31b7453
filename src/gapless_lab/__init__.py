"""Real processes on this machine, hurt on purpose.

Nothing in gapless or pyspark_gapless imports the lab, except the commands of the CLI, late.
"""

"""Many simulated runs: a grid of parameters times seeds, on Spark, in one resumable table.

``schema.py`` is the table, ``cells.py`` one combination of parameters, ``grid.py`` the file that a
person writes, ``work.py`` what a task does, ``engines.py`` who runs the tasks, ``results.py`` the
files, ``run.py`` all of it together, ``summary.py`` what came of it.
"""

"""Many simulated runs: a grid of parameters times seeds, on Spark, in a resumable table.

``schema.py`` is the table, ``cell.py`` a combination of parameters, ``grid_file.py`` the grid file
of the user, ``task.py`` the work of a task, ``executors.py`` runs the tasks, ``results.py`` has the
files, ``runner.py`` runs a sweep, ``summary.py`` summarizes the results.
"""

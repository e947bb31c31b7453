"""Many simulated runs: a grid of parameters times seeds, on Spark, in one resumable table.

``schema.py`` is the table, ``cell.py`` one combination of parameters, ``grid_file.py`` the file
that a person writes, ``task.py`` the work of a task, ``executors.py`` runs the tasks,
``results.py`` has the files, ``runner.py`` runs a sweep, ``summary.py`` sums it up.
"""

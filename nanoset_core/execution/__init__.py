"""Execution: tasks in processes of this machine or on Dask workers, and their progress."""

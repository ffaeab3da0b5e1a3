"""Execution: tasks in processes of this machine or on clusters, and their progress."""

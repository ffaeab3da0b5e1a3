"""Dagster's history of a project: open it, and compare it with the outputs that exist."""

"""Dagster's history of all tests of this room."""

from helpers.dagster_history import quick_history  # noqa: F401

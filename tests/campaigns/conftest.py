"""Fixtures of all tests of this folder."""

from helpers.dagster_history import quick_history  # noqa: F401 - of the builds of campaigns

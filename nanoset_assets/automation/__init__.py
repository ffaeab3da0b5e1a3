"""Decide which runs are requested without a person: sensors, and the schedule."""

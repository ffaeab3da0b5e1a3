"""The built project whose handoffs are verified."""

from helpers.built_project import built, copy, project

__all__ = ["built", "copy", "project"]

"""The built project of all tests of this folder."""

from helpers.built_project import built, copy, project

__all__ = ["built", "copy", "project"]

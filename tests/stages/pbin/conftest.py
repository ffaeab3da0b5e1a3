"""The built project of the tests of this folder."""

from helpers.built_project import built, copy, project

__all__ = ["built", "copy", "project"]

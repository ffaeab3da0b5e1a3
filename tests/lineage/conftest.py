"""The built project that all tests of this folder use."""

from helpers.built_project import built, copy, project

__all__ = ["built", "copy", "project"]

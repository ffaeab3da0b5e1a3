"""The built project of the tests of this folder."""

from built_project import built, copy, project

__all__ = ["built", "copy", "project"]

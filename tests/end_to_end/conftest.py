"""Built projects that several tests of this folder start from."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from helpers.building import build_all
from helpers.dagster_history import quick_history  # noqa: F401
from helpers.sample_project import write_project
from nanoset_core.project.project import Project


class BuiltProject:
    """A built project in a folder that is always the same, since handoffs name it."""

    def __init__(self, folder: Path) -> None:
        """Keep a copy of a project as it was built.

        Args:
            folder: Its folder.
        """
        self.folder = folder
        self._copy = shutil.copytree(folder, folder.with_name("copy"), symlinks=True)
        self._state = _state_of(folder)

    def restore(self) -> None:
        """Undo what a test has changed."""
        if _state_of(self.folder) == self._state:
            return
        shutil.rmtree(self.folder)
        shutil.copytree(self._copy, self.folder, symlinks=True)
        self._state = _state_of(self.folder)


def _state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and the time of the last change of each file and folder in a folder.

    Unlike the modification time, the time of the last change cannot be set by a program.
    """
    state = {}
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(parent, name)
            stat = os.lstat(path)
            state[path] = (stat.st_ino, stat.st_ctime_ns)
    return state


@pytest.fixture(scope="session")
def _projects(tmp_path_factory, tokenizer_file):
    """A function that builds a project once, and returns it."""

    @cache
    def build(replacements: str) -> BuiltProject:
        folder = tmp_path_factory.mktemp("built") / "project"
        build_all(write_project(folder, tokenizer_file, json.loads(replacements)))
        return BuiltProject(folder)

    return build


@pytest.fixture
def built_from(_projects):
    """A function that returns a built project, always in the same place, since handoffs name it."""

    def make(replacements=None) -> Project:
        built = _projects(json.dumps(replacements or {}))
        built.restore()
        return Project.open(built.folder / "nanoset.yaml")

    return make

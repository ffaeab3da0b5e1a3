"""Built projects that several tests of this folder start from."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from helpers.building import build_all
from helpers.dagster_history import quick_history  # noqa: F401
from helpers.sample_project import write_project
from nanoset_core.project.project import Project


@pytest.fixture(scope="session")
def _projects(tmp_path_factory, tokenizer_file):
    """A function that builds a project once; returns its folder and a copy of it as it was built."""

    @cache
    def build(replacements: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("built") / "project"
        build_all(write_project(folder, tokenizer_file, json.loads(replacements)))
        return folder, shutil.copytree(folder, folder.with_name("copy"), symlinks=True)

    return build


@pytest.fixture
def built_from(_projects):
    """A function that returns a built project, always in the same place, since handoffs name it."""

    def make(replacements=None) -> Project:
        folder, copy = _projects(json.dumps(replacements or {}))
        shutil.rmtree(folder)
        shutil.copytree(copy, folder, symlinks=True)
        return Project.open(folder / "nanoset.yaml")

    return make

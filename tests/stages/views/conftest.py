"""A project whose views are built once for all tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.building import make_corpora, make_view
from helpers.sample_project import write_project
from helpers.views import CHANGES, DROPPED
from nanoset_core.project.project import Project


@pytest.fixture(scope="session")
def project_with_views(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project whose views are built; tests must not write to the project."""
    file = write_project(tmp_path_factory.mktemp("views") / "project", tokenizer_file, CHANGES)
    (file.parent / "drop").mkdir()
    (file.parent / "drop" / "1.txt").write_text(
        "# a request of May\n" + "\n".join(DROPPED) + "\nnobody\n"
    )
    project = Project.open(file)
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    return file


@pytest.fixture
def project(project_with_views: Path, tmp_path: Path) -> Project:
    """A copy of the built project."""
    shutil.copytree(project_with_views.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / "nanoset.yaml")

"""A project that is built once, copies of it to change, and a fast history of Dagster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.changing import build, rebuild
from helpers.dagster_history import quick_history  # noqa: F401
from helpers.sample_project import CONFIG, write_raw
from nanoset_core.project.project import Project


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project with all its outputs; tests must not write to it."""
    folder = tmp_path_factory.mktemp("operations")
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG + "pbin: [books]\n")
    build(folder)
    return folder


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that copies the project with all outputs, and returns the folder of the copy."""

    def make(name: str = "project") -> Path:
        return shutil.copytree(built, tmp_path / name, symlinks=True)

    return make


@pytest.fixture(scope="session")
def built_twice(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after a change of the corpus web, with the outputs of two builds."""
    folder = shutil.copytree(built, tmp_path_factory.mktemp("twice") / "project", symlinks=True)
    rebuild(folder)
    return folder


@pytest.fixture
def changed(built_twice: Path, tmp_path: Path) -> tuple[Project, Path]:
    """A copy of the project with the outputs of two builds, and its folder."""
    folder = shutil.copytree(built_twice, tmp_path / "project", symlinks=True)
    return Project.open(folder / "nanoset.yaml"), folder

"""The projects whose outputs are compared with stored ones.

Together they have every stage, every trainer, and the settings on which bytes depend.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.building import build_all
from helpers.locations import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "outputs"
RAW = GOLDEN / "raw"
TOKENIZER = GOLDEN / "tokenizer.json"
NEOX = GOLDEN.parent / "webdataset" / "tokenizer" / "tokenizer.json"


def project_names() -> tuple[str, ...]:
    """Return the names of the projects, each of which has a file of settings."""
    files = (GOLDEN / "projects").glob("*.yaml")
    return tuple(sorted(path.stem for path in files))


PROJECTS = project_names()


def write_inputs(folder: Path) -> None:
    """Write the raw text and the tokenizers that all projects and commands use."""
    shutil.copytree(RAW, folder / "raw")
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    shutil.copyfile(NEOX, folder / "neox.json")


def make_project(name: str, folder: Path) -> Path:
    """Build a project below a folder, with the core alone, and return the project's folder."""
    project = folder / name
    project.mkdir(parents=True)
    write_inputs(project)
    settings = project / "nanoset.yaml"
    shutil.copyfile(GOLDEN / "projects" / f"{name}.yaml", settings)

    build_all(settings)
    return project

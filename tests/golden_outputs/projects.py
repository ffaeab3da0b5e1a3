"""The projects whose outputs are held: together every stage, every trainer and the settings that
reach bytes.
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
PROJECTS = tuple(sorted(path.stem for path in (GOLDEN / "projects").glob("*.yaml")))


def make_project(name: str, folder: Path) -> Path:
    """Build one of the projects into a folder of its own, by the core alone; → that folder."""
    project = folder / name
    project.mkdir(parents=True)
    shutil.copytree(RAW, project / "raw")
    shutil.copyfile(TOKENIZER, project / "tokenizer.json")
    shutil.copyfile(NEOX, project / "neox.json")
    shutil.copyfile(GOLDEN / "projects" / f"{name}.yaml", project / "nanoset.yaml")
    build_all(project / "nanoset.yaml")
    return project

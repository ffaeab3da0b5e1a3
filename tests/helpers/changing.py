"""Change the raw text or the settings of a project, and build it again."""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.building import build_all
from helpers.sample_project import jsonl, sentences, tree
from nanoset_core.project.project import Project


def build(folder: Path) -> Project:
    """Build the project in a folder."""
    return build_all(folder / "nanoset.yaml")


def rebuild(folder: Path, word: str = "late") -> Project:
    """Add documents to the corpus web, and build."""
    change_web(folder, word)
    return build(folder)


def change_web(folder: Path, word: str = "late") -> Path:
    """Add documents to one of the files of the corpus web, and return that file."""
    file = folder / "raw/web/part-1/web-3.jsonl"
    file.write_bytes(file.read_bytes() + jsonl(sentences(word, 3)))
    return file


def tree_of_fresh_build(folder: Path, *, without: str = "") -> dict[str, str]:
    """Build the text of a project where nothing was built before, and return its outputs' `tree`.

    Args:
        folder: The folder of the project, which is not changed.
        without: Part of nanoset.yaml that is left out of the fresh project.
    """
    fresh_folder = folder.with_name(f"{folder.name}-fresh")
    shutil.copytree(folder, fresh_folder, ignore=shutil.ignore_patterns("data"))
    config = fresh_folder / "nanoset.yaml"
    if without:
        config.write_text(config.read_text().replace(without, ""))
    build(fresh_folder)
    digest_by_file = tree(fresh_folder / "data")
    shutil.rmtree(fresh_folder)
    return digest_by_file


def change_setting(project: Project, old: str, new: str) -> Project:
    """Replace text in the nanoset.yaml of a project, and open the project again."""
    file = project.config.file
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return Project.open(file)

"""Change the raw text or the settings of a project, and build it again."""

from __future__ import annotations

from pathlib import Path

from helpers.building import build_all
from helpers.sample_project import jsonl, sentences
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


def change_setting(project: Project, old: str, new: str) -> Project:
    """Replace text in the nanoset.yaml of a project, and open the project again."""
    file = project.config.file
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return Project.open(file)

"""What the tests of operations do to the small project."""

from __future__ import annotations

from pathlib import Path

from helpers.building import build_all
from helpers.sample_project import jsonl, sentences
from nanoset_core.project.project import Project
from nanoset_core.stages.pbin.stage import PBIN
from nanoset_core.stages.stage import Key


def build(folder: Path) -> Project:
    """Every stage, the packed corpora too."""
    project = build_all(folder / "nanoset.yaml")
    for corpus in project.config.pbin:
        PBIN.make(project, Key(corpus))
    return project


def rebuild(folder: Path, word: str = "late") -> Project:
    """Build after documents were added to web."""
    change_web(folder, word)
    return build(folder)


def change_web(folder: Path, word: str = "late") -> Path:
    """Add documents to one of the files of the corpus web."""
    file = folder / "raw/web/part-1/web-3.jsonl"
    file.write_bytes(file.read_bytes() + jsonl(sentences(word, 3)))
    return file

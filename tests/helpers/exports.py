"""The sample project with a view, and exports of that view and of a corpus."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.building import make_corpora, make_export, make_view
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.token_check import StoredArray

EXPORTS = """\
views:
  kept: {of: web, where: tokens < 100, repeat: 2.5, order: {seed: 3}}
exports:
  web-ds: {of: web, format: datatrove, tokenizer_name: some/name}
  kept-ds: {of: kept, format: datatrove}
  web-olmo: {of: web, format: olmo-core}
  web-mds: {of: web, format: mds, sequence_length: 65}
  kept-lit: {of: kept, format: litdata, sequence_length: 32}
nanosets:
"""
CHANGES = {"nanosets:\n": EXPORTS}
"""Replacements in the sample project's settings."""
NAMES = ("web-ds", "kept-ds", "web-olmo", "web-mds", "kept-lit")


def build_exports(project: Project) -> dict[str, Manifest]:
    """Make the exports with what they are made of; return them by name."""
    make_corpora(project, "web")
    make_view(project, "kept")
    return {name: make_export(project, name) for name in NAMES}


def note_ranges_read(monkeypatch: pytest.MonkeyPatch, ending: str) -> list[tuple[int, int]]:
    """Note which ranges of tokens verifications read from now on.

    Args:
        monkeypatch: Undoes this at the end of the test.
        ending: Ending of the files of tokens, such as ".ds".

    Returns:
        A list to which the first token and the last one plus 1 of each range are added.
    """
    ranges_read: list[tuple[int, int]] = []
    read = StoredArray.read

    def read_and_note(array: StoredArray, start: int, stop: int) -> Any:
        if array.name.endswith(ending):
            ranges_read.append((start, stop))
        return read(array, start, stop)

    monkeypatch.setattr(StoredArray, "read", read_and_note)
    return ranges_read

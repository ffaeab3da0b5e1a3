"""The names of the outputs that are stored below a root."""

from __future__ import annotations

from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess


def test_names_are_sorted_and_without_hidden_folders(tmp_path):
    for folder in ("web", "code", ".given"):
        (tmp_path / "views" / folder / "3f9c").mkdir(parents=True)
    outputs = OutputRoot(FileAccess(tmp_path))

    assert outputs.names("views") == ["code", "web"]


def test_a_stage_without_outputs_has_no_names(tmp_path):
    outputs = OutputRoot(FileAccess(tmp_path))

    assert outputs.names("views") == []

"""How a split is planned from the datasets of a project."""

from __future__ import annotations

import pytest

from helpers.building import make_corpora
from helpers.sample_project import SPLITS
from nanoset_core.project.project import Project
from nanoset_core.sampling import split_data
from nanoset_core.stages.mappings.planning import NanosetContext


@pytest.mark.parametrize("limits", ["", "\n    max_epochs: 50\n    on_exhaustion: redistribute"])
def test_a_plan_reads_each_dataset_once(make_project, monkeypatch, limits):
    samples = "    samples: {train: 400}"
    project = Project.open(make_project(replacements={samples: samples + limits}))
    make_corpora(project)
    read: list[object] = []
    original = split_data.read_idx
    monkeypatch.setattr(split_data, "read_idx", lambda path: read.append(path) or original(path))

    for split in SPLITS:
        read.clear()
        NanosetContext(project, "pretrain").plan(split)
        assert len(read) == len(set(read)) == 2

"""How a split is planned from the datasets of a project."""

from __future__ import annotations

import pytest

from helpers.building import make_corpora
from helpers.sample_project import SPLITS
from nanoset_core.project.project import Project
from nanoset_core.sampling import split_data
from nanoset_core.stages.mappings.planning import NanosetContext

SAMPLES = "    samples: {train: 400}"


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param("", id="without limits"),
        pytest.param("\n    max_epochs: 50\n    on_exhaustion: redistribute", id="with limits"),
    ],
)
def test_a_plan_reads_each_dataset_once(make_project, monkeypatch, limits):
    project = Project.open(make_project(replacements={SAMPLES: SAMPLES + limits}))
    make_corpora(project)
    read_paths: list[object] = []
    read_idx = split_data.read_idx

    def record_path(path):
        read_paths.append(path)
        return read_idx(path)

    monkeypatch.setattr(split_data, "read_idx", record_path)

    for split in SPLITS:
        read_paths.clear()
        NanosetContext(project, "pretrain").plan(split)

        assert len(read_paths) == 2  # the blend has two members
        assert len(set(read_paths)) == 2

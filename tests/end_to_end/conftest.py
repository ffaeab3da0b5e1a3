"""Dagster's history of all tests of this room, and projects that several of them begin with."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from helpers.building import build_all
from helpers.dagster_history import quick_history  # noqa: F401
from helpers.sample_project import write_project
from nanoset_core import load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS

IDENTIFIERS = {"class": "Stub", "tokenizer_path": ["stub"]}
"""Of the tokenizer that megatron-core is given here."""


def check_megatron_core(project, name, cache, sizes, step, **settings):
    """Megatron-core's builder finds every file that it needs in the cache, and reads the samples
    that we read.
    """
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    class Tokenizer:
        unique_identifiers = IDENTIFIERS
        eod, pad, vocab_size = 0, 1, 400

    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings |= {
        **dict.fromkeys(masks, False),
        "tokenizer": Tokenizer(),
        "mid_level_dataset_surplus": 0.005,
    }
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in cache.iterdir()}
    config = GPTDatasetConfig(path_to_cache=str(cache), **settings)
    theirs = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    after = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in cache.iterdir()}
    assert after == before, "the trainer built something that should have been a hit"
    for split, dataset in zip(SPLITS, theirs, strict=True):
        if dataset is not None:
            ours = load_nanoset(project.config.root_folder, name, split)
            assert len(ours) == len(dataset)
            for k in range(0, len(ours), step):
                assert np.array_equal(ours[k]["tokens"], dataset[k]["tokens"].numpy())
                assert np.array_equal(ours[k]["labels"], dataset[k]["labels"].numpy())
    return theirs


@pytest.fixture(scope="session")
def _projects(tmp_path_factory, tokenizer_file):
    """Gives, for replacements in the settings, a project's folder and a copy of it as it was built."""

    @cache
    def build(replacements: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("built") / "project"
        build_all(write_project(folder, tokenizer_file, json.loads(replacements)))
        return folder, shutil.copytree(folder, folder.with_name("copy"), symlinks=True)

    return build


@pytest.fixture
def built_from(_projects):
    """Gives a project that was built, always in the same place, since a handoff names it."""

    def make(replacements=None) -> Project:
        folder, copy = _projects(json.dumps(replacements or {}))
        shutil.rmtree(folder)
        shutil.copytree(copy, folder, symlinks=True)
        return Project.open(folder / "nanoset.yaml")

    return make

"""Megatron-core's own datasets over the index files of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from helpers.sample_project import SPLITS
from nanoset_core import load_nanoset
from nanoset_core.project.project import Project

IDENTIFIERS = {"class": "Stub", "tokenizer_path": ["stub"]}
"""Identifiers of the tokenizer that megatron-core is given."""


def check_megatron_core(
    project: Project, name: str, cache: Path, sizes: list[int], step: int, **settings: Any
) -> Any:
    """Check that megatron-core builds nothing, and reads the samples that we read.

    Args:
        project: A built project.
        name: Of a nanoset.
        cache: The folder of index files, in which it must find every file that it needs.
        sizes: Samples of train, valid and test.
        step: Every how many samples are compared.
        settings: Further settings of megatron-core.

    Returns:
        Its datasets of train, valid and test.
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

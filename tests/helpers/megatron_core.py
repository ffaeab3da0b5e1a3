"""The datasets of megatron-core, which read the index files of a project."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers.sample_project import SPLITS
from nanoset_core import load_nanoset
from nanoset_core.project.project import Project

IDENTIFIERS = {"class": "Stub", "tokenizer_path": ["stub"]}
"""Identifiers of the tokenizer, which megatron-core hashes to find its index files."""


MASK_SETTINGS = (
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
    "create_attention_mask",
)


def check_megatron_core(
    project: Project, name: str, cache: Path, sizes: list[int], step: int, **settings: Any
) -> Any:
    """Check that megatron-core builds no index file, and reads the same samples as we do.

    Args:
        project: A built project.
        name: The name of a nanoset.
        cache: The folder of index files, in which megatron-core must find every file that it needs.
        sizes: How many samples train, valid and test have.
        step: The distance between two samples that are compared.
        settings: Further settings of megatron-core.

    Returns:
        The datasets of megatron-core for train, valid and test.
    """
    files_before = file_states(cache)
    datasets = build_datasets(cache, sizes, settings)
    assert file_states(cache) == files_before, "the trainer built an index file itself"

    for split, dataset in zip(SPLITS, datasets, strict=True):
        if dataset is not None:
            nanoset = load_nanoset(project.config.root_folder, name, split)
            check_same_samples(nanoset, dataset, step)
    return datasets


def build_datasets(cache: Path, sizes: list[int], settings: dict[str, Any]) -> Any:
    """Let megatron-core build its datasets of train, valid and test."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    tokenizer = SimpleNamespace(unique_identifiers=IDENTIFIERS, eod=0, pad=1, vocab_size=400)
    settings |= dict.fromkeys(MASK_SETTINGS, False)
    config = GPTDatasetConfig(
        path_to_cache=str(cache),
        tokenizer=tokenizer,
        mid_level_dataset_surplus=0.005,
        **settings,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


def check_same_samples(nanoset: Any, dataset: Any, step: int) -> None:
    """Check that some samples of a nanoset are those of a dataset of megatron-core."""
    assert len(nanoset) == len(dataset)
    for number in range(0, len(nanoset), step):
        sample = nanoset[number]
        expected_sample = dataset[number]
        for name in ("tokens", "labels", "loss_mask"):
            assert np.array_equal(sample[name], expected_sample[name].numpy()), name


def file_states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the time and the inode of each file, which show whether it was written again."""
    states = {}
    for path in folder.iterdir():
        status = path.stat()
        states[path.name] = (status.st_mtime_ns, status.st_ino)
    return states

"""Nanosets of two datasets as their trainers see them, without building anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core import NanosetConfig
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.handoff.description import DatasetCounts, Handoff
from nanoset_core.stages.handoff.trainer_files import handoff_files
from nanoset_core.stages.mappings.resolved import ResolvedNanoset

TRAINER_PATHS = {"/here/web": "/lustre/web", "/here/code": "/lustre/code"}
"""Prefix of each dataset on this machine → where the trainer runs."""
WEIGHTS = {"/here/web": 0.7, "/here/code": 0.30000000000000004}
"""The blend. One weight needs all its digits: the trainers derive the order of samples from it."""
TRAINER_WEIGHTS = {"/lustre/web": 0.7, "/lustre/code": 0.30000000000000004}
"""The same blend where the trainer runs."""


def nanoset_config(preset: str = "megatron", *, is_per_split: bool = False) -> NanosetConfig:
    """Return the settings of a nanoset, which fit a run of 50 iterations with 8 samples each.

    Args:
        preset: The trainer.
        is_per_split: Whether each split has its own data, and the split `test` has none.
    """
    samples: dict[SplitName, int | None] = {"train": 400, "valid": 48, "test": 16}
    if is_per_split:
        samples["test"] = None
    if preset == "nanotron":
        samples["valid"] = None
        samples["test"] = None

    data: dict[str, Any] = {"data_path": WEIGHTS}
    if is_per_split:
        data = {"blend_per_split": [WEIGHTS, "/here/code", None]}
    return NanosetConfig(
        **data,
        sequence_length=1024,
        split="90,5,5",
        random_seed=7,
        preset=preset,
        trainer_paths=TRAINER_PATHS,
        train_split_samples=samples["train"],
        valid_split_samples=samples["valid"],
        test_split_samples=samples["test"],
    )


def handoff_of(
    config: NanosetConfig,
    *,
    settings: Mapping[str, Any] | None = None,
    dtype: str = "uint16",
    vocab_size: int = 50_000,
    **fields: Any,
) -> Handoff:
    """Return a nanoset as its trainer sees it.

    Args:
        config: The settings that it was built with.
        settings: Its settings in nanoset.yaml, such as `schedule`, `phases` and `span`.
        dtype: Type of the tokens.
        vocab_size: Number of tokens of the tokenizer.
        fields: Other fields of the result.
    """
    samples: dict[str, int] = {}
    datasets = {}
    for split in ("train", "valid", "test"):
        # A split without a number of samples was built for one epoch, here of 9 samples.
        samples[split] = config.samples(split) or 9
    for number, path in enumerate(TRAINER_PATHS.values()):
        datasets[path] = DatasetCounts(10 + number, 11 + number, dtype)
    return Handoff(
        **{
            "name": "pretrain",
            "spec": ResolvedNanoset(1024, "books", **(settings or {})),
            "config": config,
            "samples": samples,
            "folder": "/lustre/h",
            "cache": "/lustre/cache",
            "datasets": datasets,
            "vocab_size": vocab_size,
            **fields,
        }
    )


def handoff_texts(handoff: Handoff) -> dict[str, str]:
    """Return the files that the trainer is started with: name → text."""
    files, _notes = handoff_files(handoff)
    return {name: content.decode() for name, content in files.items()}


def handoff_notes(handoff: Handoff) -> list[str]:
    """Return the notes for the user of a nanoset."""
    _files, notes = handoff_files(handoff)
    return notes


def megatron_arguments(handoff: Handoff) -> list[str]:
    """Return the lines of Megatron-LM's arguments.txt."""
    return handoff_texts(handoff)["arguments.txt"].splitlines()

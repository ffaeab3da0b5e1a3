"""A run's arguments → the configuration whose index files it will look for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoset_core.config.nanoset import ScheduleSpec
from nanoset_core.errors import ConfigError
from nanoset_core.handoff.data_args import blend_from_words, read_data_args, read_per_split
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.naming import read_identifiers
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, SplitName


def config_from_arguments(options: Mapping[str, Any], splits: Sequence[SplitName] = SPLITS) -> NanosetConfig:
    """The configuration that a run with these arguments has.

    Args:
        options: by Megatron-LM's names with underscores; None, "" or () for what was not given.
        splits: those that matter.

    Raises:
        ConfigError: arguments are missing, or contradict each other.
        MissingError, FormatError: a file of data arguments is not there, or not one.
    """
    if options["seq_length"] is None:
        raise ConfigError(
            "the length of a sample is not given", where="--seq-length", remedy="give the run's --seq-length"
        )
    data = _data(options)
    config = NanosetConfig(
        **data,
        sequence_length=options["seq_length"],
        random_seed=options["seed"],
        split=options["split"],
        path_to_cache=None if options["data_cache_path"] is None else str(options["data_cache_path"]),
        preset=options["preset"],
        tokenizer_identifiers=_identifiers(options["tokenizer_identifiers"]),
        trainer_paths=_trainer_paths(data, options["trainer_path"]),
        compensated_sums=get_preset(options["preset"]).compensates(options.get("trainer_python")),
    )
    return config.with_samples({split: count for split, count in _samples(options).items() if split in splits})


_SOURCES = ("data_path", "data_args_path", *(f"{split}_data_path" for split in SPLITS), "per_split_data_args_path")


def _data(options: Mapping[str, Any]) -> dict[str, Any]:
    own = [options[f"{split}_data_path"] for split in SPLITS]
    given = [options["data_path"], options["data_args_path"], any(own), options["per_split_data_args_path"]]
    if sum(map(bool, given)) != 1:
        raise ConfigError(
            "the data must be given once",
            found=", ".join(f"--{key.replace('_', '-')}" for key in _SOURCES if options[key]),
            expected="one of --data-path, --data-args-path, --per-split-data-args-path, or those of the splits",
            remedy="leave all but one of them out",
        )
    if options["data_path"]:
        return {"data_path": blend_from_words(options["data_path"], "--data-path")}
    if options["data_args_path"]:
        return {"data_path": read_data_args(options["data_args_path"])}
    if options["per_split_data_args_path"]:
        return {"blend_per_split": read_per_split(options["per_split_data_args_path"])}
    flags = [f"--{split}-data-path" for split in SPLITS]
    return {
        "blend_per_split": [
            blend_from_words(words, flag) if words else None for words, flag in zip(own, flags, strict=True)
        ]
    }


def _samples(options: Mapping[str, Any]) -> dict[SplitName, int | None]:
    samples: dict[SplitName, int | None] = {split: options[f"{split}_samples"] for split in SPLITS}
    steps, batch = options["train_iters"], options["global_batch_size"]
    if (steps is None) != (batch is None):
        raise ConfigError(
            "one of two arguments that belong together is missing",
            where="--train-iters, --global-batch-size",
            found=f"{steps} and {batch}",
            remedy="give both, or neither",
        )
    if steps is None:
        return samples
    if any(count is not None for count in samples.values()):
        given = ", ".join(f"--{split}-samples" for split in SPLITS if samples[split] is not None)
        raise ConfigError(
            "the samples are given twice",
            where="--train-iters",
            found=f"{given} beside it",
            remedy="leave one of them out",
        )
    return {**ScheduleSpec(steps, batch, options["eval_interval"], options["eval_iters"]).samples()}


def _identifiers(text: str) -> dict[str, Any]:
    where = "--tokenizer-identifiers"
    if not text.lstrip().startswith("{"):
        return read_identifiers(Path(text), where)
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "not a JSON object",
            where=where,
            found=error,
            expected='an object such as {"class": "…"}',
            remedy="put it in single quotes for the shell, or name a file that holds it",
        ) from error


def _trainer_paths(data: dict[str, Any], spellings: tuple[str, ...]) -> dict[str, str]:
    pairs = [spelling.partition("=") for spelling in spellings]
    for spelling, (here, _, there) in zip(spellings, pairs, strict=True):
        if not here or not there:
            raise ConfigError(
                "not two paths",
                where="--trainer-path",
                found=repr(spelling),
                expected="HERE=THERE",
                remedy="name the beginning of paths here, =, and what the trainer has in its place",
            )
    blends = [data["data_path"]] if "data_path" in data else data["blend_per_split"]
    found: dict[str, str] = {}
    for blend in blends:
        for prefix in [] if blend is None else [blend] if isinstance(blend, str) else blend:
            for here, _, there in pairs:
                if prefix.startswith(here):
                    found[prefix] = there + prefix.removeprefix(here)
    return found

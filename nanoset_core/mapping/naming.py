"""Make the trainers' descriptions, hashes and file names, which differ between any two nanosets."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.planned import MemberPlan
from nanoset_core.mapping.presets import Preset
from nanoset_core.mapping.splits import SplitName, parse_split, split_bookends
from nanoset_core.storage.regular_files import read_regular

SIDECAR = "sidecar"
"""The part that is our own file, beside the trainer's."""
_SIDECAR_ENDING = "nanoset.json"
_INDICES = ("document_index", "sample_index", "shuffle_index")


def describe_member(config: NanosetConfig, split: SplitName, prefix: str, requested: int | None) -> str:
    """Return the text that the trainer hashes for one dataset (Megatron-LM `MegatronDataset`, nanotron `Nanoset`).

    Args:
        config: of the nanoset.
        split: train, valid or test.
        prefix: of the dataset.
        requested: samples that are built, the blend's margin included; None is one epoch.
    """
    rules, path = config.rules, config.trainer_path(prefix)
    shared = config.blend_per_split is None
    facts = {
        "class": rules.member_kind,
        "dataset_path": path,
        "path_prefix": path,
        "data_prefix": path,
        "num_samples": requested,
        "index_split": split,
        "random_seed": config.random_seed,
        "sequence_length": config.sequence_length,
        "split": config.split if shared else None,
        "split_matrix": split_bookends(parse_split(config.split)) if shared else None,
        "tokenizer": config.tokenizer_identifiers,
    }
    return _text(rules.member_keys, facts)


def describe_blend(
    rules: Preset, split: SplitName, members: Sequence[MemberPlan], weights: Sequence[float], size: int | None
) -> str:
    """Return the text that the trainer hashes for a blend (Megatron-LM `BlendedDataset`, nanotron `BlendedNanoset`).

    Args:
        rules: of the trainer.
        split: train, valid or test.
        members: plans of the datasets, in the order of the blend.
        weights: normalised, or the datasets' lengths where all their samples are taken once.
        size: samples of the blend; None where all samples are taken once.
    """
    facts = {
        "class": rules.blend_kind,
        "datasets": [json.loads(member.description) for member in members],
        "split": split,
        "weights": list(weights),
        "size": size,
        "dataset_sizes": [member.samples_given for member in members],
        "renormalize_blend_weights": False,
    }
    return _text(rules.blend_keys, facts)


def member_files(
    config: NanosetConfig, split: SplitName, prefix: str, requested: int | None, digest: str
) -> dict[str, str]:
    """Return part → file name of one dataset's index files, with the description last and SIDECAR for ours."""
    rules = config.rules
    endings = dict(zip(_INDICES, rules.member_parts, strict=True))
    named = partial(
        rules.member_file.format,
        hash=digest,
        kind=rules.member_kind,
        split=split,
        basename=os.path.basename(config.trainer_path(prefix)),
        samples=requested,
        sequence_length=config.sequence_length,
        seed=config.random_seed,
    )
    return _files(named, endings, describes=rules.describes)


def blend_files(rules: Preset, split: SplitName, digest: str) -> dict[str, str]:
    """Return part → file name of a blend's index files, with the description last and SIDECAR for ours."""
    endings = {part: f"{part}.npy" for part in ("dataset_index", "dataset_sample_index")}
    return _files(partial(rules.blend_file.format, hash=digest, kind=rules.blend_kind, split=split), endings)


def _files(named: Callable[..., str], endings: dict[str, str], *, describes: bool = True) -> dict[str, str]:
    described = {"description": "description.txt"} if describes else {}
    return {part: named(part=ending) for part, ending in (endings | described | {SIDECAR: _SIDECAR_ENDING}).items()}


def read_identifiers(path: Path, where: object) -> dict[str, Any]:
    """Read a trainer's tokenizer identifiers from a JSON file, or from a description that the trainer wrote.

    Args:
        path: of the JSON object itself, or of a …-description.txt, of which it is the `tokenizer`.
        where: who names the file, for the message.

    Raises:
        ConfigError: there are no identifiers in it.
    """
    try:
        value = json.loads(read_regular(path))
        found = value["datasets"][0] if isinstance(value.get("datasets"), list) else value
        found = found.get("tokenizer", found) if "class" in found and "dataset_path" in found else found
        if not isinstance(found, dict):
            raise TypeError(f"{found!r} is no JSON object")
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "this file holds no tokenizer identifiers",
            where=where,
            found=f"{path}: {error}",
            expected='a …-GPTDataset-train-description.txt of the trainer, or JSON such as {"class": "…"}',
            remedy="name such a file, or give the identifiers themselves",
        ) from error
    return dict(found)


def md5(text: str) -> str:
    """Return the trainers' hash of a description."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _text(keys: Sequence[str], facts: Mapping[str, Any]) -> str:
    return json.dumps({key: facts[key] for key in keys}, indent=4, default=dict)

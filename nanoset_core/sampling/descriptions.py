"""The trainers' descriptions of index files, from which they hash the files' names.

Before a trainer builds index files, it describes in a JSON text what they depend on, and looks for
files whose names contain the md5 of that text. Each key, its order and the indentation matters.
Descriptions and names differ between any two nanosets, unless their index files are the same.

For example, the md5 of the following text begins a name such as 5ce5…-GPTDataset-train-….npy:

    {
        "class": "GPTDataset",
        "dataset_path": "/data/web",
        "num_samples": 1000,
        …
    }
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import MemberPlan
from nanoset_core.sampling.presets import Preset
from nanoset_core.sampling.splits import SplitName, parse_split, split_bookends
from nanoset_core.storage.regular_files import read_regular

_DESCRIPTION_ENDING = "description.txt"
_SIDECAR_ENDING = "nanoset.json"
_ENDINGS_OF_BLEND = {
    "dataset_index": "dataset_index.npy",
    "dataset_sample_index": "dataset_sample_index.npy",
    "description": _DESCRIPTION_ENDING,
}
"""Part of a blend's index → ending of the name of its file."""


@dataclass(frozen=True, slots=True)
class IndexNames:
    """A trainer's description of index files, and the names that follow from it."""

    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: dict[str, str]
    """Part, such as sample_index, → file name. The part `description` is the last, if the trainer
    writes one.
    """
    sidecar: str
    """Name of our own file next to them."""


def member_names(
    config: NanosetConfig, split: SplitName, prefix: str, requested: int | None
) -> IndexNames:
    """Return the names of the index files of one dataset's part of a split.

    The trainer describes the part by a text, and most trainers name the files by its hash. So the
    text must be exactly that of the trainer. Sources: Megatron-LM `MegatronDataset`, nanotron
    `Nanoset`.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        prefix: Path of the dataset without .bin and .idx.
        requested: Samples that are built, including the blend's margin; None is one epoch.
    """
    rules = config.rules
    described_values = _values_of_member(config, split, prefix, requested)
    fields_of_names = {
        "kind": rules.member_kind,
        "split": split,
        "basename": os.path.basename(config.trainer_path(prefix)),
        "samples": requested,
        "sequence_length": config.sequence_length,
        "seed": config.random_seed,
    }
    return _names(
        _description(rules.member_keys, described_values),
        rules.member_file,
        fields_of_names,
        _endings_of_member(rules),
    )


def _values_of_member(
    config: NanosetConfig, split: SplitName, prefix: str, requested: int | None
) -> dict[str, Any]:
    """Return all values by which a trainer may describe one dataset's part of a split.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        prefix: Path of the dataset without .bin and .idx.
        requested: Samples that are built, including the blend's margin; None is one epoch.

    Returns:
        Key in the description → value. The preset says which of the keys its trainer has.
    """
    path = config.trainer_path(prefix)
    values: dict[str, Any] = {
        "class": config.rules.member_kind,
        "dataset_path": path,
        "path_prefix": path,
        "data_prefix": path,
        "num_samples": requested,
        "index_split": split,
        "random_seed": config.random_seed,
        "sequence_length": config.sequence_length,
        "split": None,
        "split_matrix": None,
        "tokenizer": config.tokenizer_identifiers,
    }
    # If splits have separate blends, a split has all data of its blend, and no shares are needed.
    if config.blend_per_split is None:
        values["split"] = config.split
        values["split_matrix"] = split_bookends(parse_split(config.split))
    return values


def _endings_of_member(rules: Preset) -> dict[str, str]:
    """Return part of a dataset's index → ending of the name of its file."""
    document_ending, sample_ending, shuffle_ending = rules.member_parts
    endings = {
        "document_index": document_ending,
        "sample_index": sample_ending,
        "shuffle_index": shuffle_ending,
    }
    if rules.describes:
        endings["description"] = _DESCRIPTION_ENDING
    return endings


def blend_names(
    rules: Preset,
    split: SplitName,
    members: Sequence[MemberPlan],
    weights: Sequence[float],
    size: int | None,
) -> IndexNames:
    """Return the names of the index files of a blend.

    The trainer describes the blend by a text, and most trainers name the files by its hash. So the
    text must be exactly that of the trainer. Sources: Megatron-LM `BlendedDataset`, nanotron
    `BlendedNanoset`.

    Args:
        rules: Preset of the nanoset.
        split: The split.
        members: Plans of its datasets.
        weights: Weights of the datasets, or their lengths if all samples are taken once.
        size: Samples of the blend; None if all samples of the datasets are taken once.
    """
    # All values by which a trainer may describe the blend. The preset says which of them it has.
    described_values = {
        "class": rules.blend_kind,
        "datasets": [json.loads(member.description) for member in members],
        "split": split,
        "weights": list(weights),
        "size": size,
        "dataset_sizes": [member.samples_given for member in members],
        "renormalize_blend_weights": False,  # an option of Megatron-LM; this is its default
    }
    return _names(
        _description(rules.blend_keys, described_values),
        rules.blend_file,
        {"kind": rules.blend_kind, "split": split},
        _ENDINGS_OF_BLEND,
    )


def _description(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return some values as JSON, byte for byte as the trainer writes them.

    Args:
        keys: Keys of the values that belong to the description, in the trainer's order.
        values: Key → value. Values without a key in `keys` are left out.
    """
    described = {key: values[key] for key in keys}
    # `default` converts frozen mappings to plain ones.
    return json.dumps(described, indent=4, default=dict)


def _names(
    description: str, pattern: str, fields: Mapping[str, object], endings: Mapping[str, str]
) -> IndexNames:
    """Return the names of index files, which contain the hash of the trainer's description of them.

    For example, the pattern "{hash}-{kind}-{split}-{part}" gives names such as
    "d41d…-GPTDataset-train-sample_index.npy".

    Args:
        description: Text of the description.
        pattern: Pattern of file names. `hash` and `part` are filled in here.
        fields: Values of the other fields of the pattern, such as {"split": "train"}.
        endings: Kind of file, such as "sample_index" → what replaces `part`: "sample_index.npy".
    """
    digest = hashlib.md5(description.encode("utf-8"), usedforsecurity=False).hexdigest()
    files = {}
    for kind, ending in endings.items():
        files[kind] = pattern.format(hash=digest, part=ending, **fields)
    sidecar = pattern.format(hash=digest, part=_SIDECAR_ENDING, **fields)
    return IndexNames(description, digest, files, sidecar)


def read_identifiers(path: Path, where: object) -> dict[str, Any]:
    """Read the unique identifiers of a trainer's tokenizer from a file.

    Args:
        path: A JSON file of them, or a description that the trainer wrote.
        where: The setting that names the file, for messages.

    Raises:
        ConfigError: The file contains no identifiers.
    """
    try:
        return _identifiers_in(json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "this file contains no tokenizer identifiers",
            where=where,
            found=f"{path}: {error}",
            expected="a …-GPTDataset-train-description.txt of the trainer, "
            'or JSON such as {"class": "…"}',
            remedy="name such a file, or give the identifiers themselves",
        ) from error


def _identifiers_in(content: Any) -> dict[str, Any]:
    """Return the identifiers of a tokenizer from the content of a JSON file.

    They are values by which a trainer recognises a tokenizer. The file has one of

        the identifiers             {"class": "GPT2Tokenizer", "path": "…"}
        a dataset's description     {"class": …, "dataset_path": …, "tokenizer": identifiers}
        a blend's description       {"datasets": [a dataset's description, …]}

    Args:
        content: The content of the file.

    Raises:
        AttributeError, TypeError: The content or the identifiers are not a JSON object.
        LookupError: The description of a blend has no datasets.
    """
    # All datasets of a blend have the same tokenizer.
    datasets_of_blend = content.get("datasets")
    if isinstance(datasets_of_blend, list):
        content = datasets_of_blend[0]

    is_dataset = "class" in content and "dataset_path" in content
    identifiers = content
    if is_dataset and "tokenizer" in content:
        identifiers = content["tokenizer"]
    if not isinstance(identifiers, dict):
        raise TypeError(f"{identifiers!r} is no JSON object")
    return dict(identifiers)

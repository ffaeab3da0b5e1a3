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
RECEIPT_ENDING = "nanoset.json"
"""How the name of our receipt ends, the file next to index files that says what made them."""
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
    receipt_name: str
    """Name of our own file next to them, their receipt."""


def member_names(
    config: NanosetConfig, split: SplitName, prefix: str, requested: int | None
) -> IndexNames:
    """Return the names under which a trainer looks for the index files of a dataset.

    Each trainer has a pattern for the names. Most of them contain the hash of a description, a text
    that must be the same to the byte. For Megatron-LM:

        description    {"class": "GPTDataset", "dataset_path": "/data/web", "num_samples": 1000,
                       ...}
        pattern        {hash}-{kind}-{split}-{part}
        name           5ce5...-GPTDataset-train-sample_index.npy

    NeMo has no hash, but {basename}_{split}_indexmap_{samples}ns_{sequence_length}sl_{seed}s_{part}
    gives web_train_indexmap_1000ns_2048sl_1234s_sample_idx.npy.

    Sources: Megatron-LM `MegatronDataset`, nanotron `Nanoset`.

    Args:
        config: What is trained, and with which trainer.
        split: The split of the data: train, valid or test.
        prefix: Path of the dataset without .bin and .idx.
        requested: How many samples are built of it; None for each sample once.
    """
    rules = config.rules  # of the trainer: which values its description has, and its pattern
    described_values = _values_of_member(config, split, prefix, requested)
    description = _description(rules.member_keys, described_values)

    # What the pattern may contain in addition to the hash, which is computed from the description.
    values_of_pattern = {
        "kind": rules.member_kind,  # "GPTDataset"
        "split": split,
        "basename": os.path.basename(config.trainer_path(prefix)),  # "web"
        "samples": requested,
        "sequence_length": config.sequence_length,
        "seed": config.random_seed,
    }
    endings = _endings_of_member(rules)  # values of {part}, such as "sample_index.npy"
    return _names(description, rules.member_file, values_of_pattern, endings)


def _values_of_member(
    config: NanosetConfig, split: SplitName, prefix: str, requested: int | None
) -> dict[str, Any]:
    """Return all values with which any trainer describes the index files of a dataset.

    A trainer looks for index files by the hash of a description, which lists the settings that
    decide their content. Each trainer describes them by other keys, and may have another key for
    the same value. For example:

        value                           keys of different trainers
        path of the dataset             dataset_path, path_prefix, data_prefix
        shares of train, valid, test    split: "969,30,1"
        borders between these           split_matrix: [[0, 0.969], [0.969, 0.999], [0.999, 1.0]]

    The result has all keys of all trainers. The caller takes those of one trainer.

    Args:
        config: What is trained.
        split: The split of the data: train, valid or test.
        prefix: Path of the dataset without .bin and .idx.
        requested: How many samples are built of it; None for each sample once.

    Returns:
        Key → value, such as {"dataset_path": "/data/web", "num_samples": 1000, ...}.
    """
    path = config.trainer_path(prefix)  # on the machine that trains
    values: dict[str, Any] = {
        "class": config.rules.member_kind,
        "dataset_path": path,
        "path_prefix": path,
        "data_prefix": path,
        "num_samples": requested,
        "index_split": split,
        "random_seed": config.random_seed,
        "sequence_length": config.sequence_length,
        "split": None,  # both are filled in below, if the splits share their datasets
        "split_matrix": None,
        "tokenizer": config.tokenizer_identifiers,
    }
    # The shares of train, valid and test, such as "969,30,1"; unless each has its own datasets.
    if config.blend_per_split is None:
        values["split"] = config.split
        # Where the documents of each split start and stop, as shares of all.
        values["split_matrix"] = split_bookends(parse_split(config.split))
    return values


def _endings_of_member(rules: Preset) -> dict[str, str]:
    """Return how the names of a trainer's index files for a dataset end.

    For Megatron-LM, it is {"document_index": "document_index.npy", ...}, and for NeMo
    {"document_index": "doc_idx.npy", ...}.

    Args:
        rules: The rules of the trainer.

    Returns:
        Kind of a file → end of its name. Some trainers also have a text with a description of the
        files.
    """
    document_ending, sample_ending, shuffle_ending = rules.member_parts
    endings = {
        "document_index": document_ending,
        "sample_index": sample_ending,
        "shuffle_index": shuffle_ending,
    }
    has_description = rules.describes
    if has_description:
        endings["description"] = _DESCRIPTION_ENDING
    return endings


def blend_names(
    rules: Preset,
    split: SplitName,
    members: Sequence[MemberPlan],
    weights: Sequence[float],
    size: int | None,
) -> IndexNames:
    """Return the names of the files that say from which dataset a trainer takes each sample.

    Most trainers describe the files in a text, and use its hash in the names. So the text must be
    the same to the byte. For Megatron-LM:

        description    {"datasets": [...], "split": "train", "weights": [0.75, 0.25], "size": 1000}
        pattern        {hash}-{kind}-{split}-{part}
        name           9f3c...-BlendedDataset-train-dataset_index.npy

    Sources: Megatron-LM `BlendedDataset`, nanotron `BlendedNanoset`.

    Args:
        rules: The rules of the trainer: which values its text has, and the pattern of its names.
        split: The split of the data: train, valid or test.
        members: What is planned for each dataset. Each has a description of its own, which is JSON,
            too.
        weights: Weight of each dataset: [0.75, 0.25]. If each sample is read once, there are no
            weights. Then trainers write the numbers of samples in their place: [300, 100].
        size: Number of samples: 1000; None if each is read once.
    """
    described_values = {
        "class": rules.blend_kind,  # "BlendedDataset"
        "datasets": [json.loads(member.description) for member in members],
        "split": split,
        "weights": list(weights),
        "size": size,
        "dataset_sizes": [member.samples_given for member in members],
        "renormalize_blend_weights": False,  # an option of Megatron-LM; this is its default
    }
    # Each trainer writes only some of these, its `blend_keys`.
    description = _description(rules.blend_keys, described_values)

    # What the pattern contains in addition to the hash and the part.
    values_of_pattern = {"kind": rules.blend_kind, "split": split}
    return _names(description, rules.blend_file, values_of_pattern, _ENDINGS_OF_BLEND)


def _description(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """Write values as JSON, byte for byte as a trainer writes its description of index files.

    The trainer hashes this text to get the names of the files, so order and indentation matter.

    Args:
        keys: Which values belong to the text, in the trainer's order: ("class", "num_samples").
        values: Key → value, of any trainer: {"num_samples": 1000, "class": "GPTDataset", "split":
            ...}.
    """
    described = {key: values[key] for key in keys}
    # `default` converts frozen mappings to plain ones.
    return json.dumps(described, indent=4, default=dict)


def is_description(name: str) -> bool:
    """Return whether an index file is a description, the text that a trainer looks for.

    If a trainer finds it, it takes the other files of the set for complete. So a description is
    written and uploaded last, and deleted first. Some trainers have none.

    Args:
        name: Name of the file, such as "5ce5…-GPTDataset-train-description.txt".
    """
    return name.endswith(_DESCRIPTION_ENDING)


def _names(
    description: str, pattern: str, fields: Mapping[str, object], endings: Mapping[str, str]
) -> IndexNames:
    """Return the names of a trainer's index files, which say in which order it reads samples.

    The trainer looks for files with these names, and builds them if they do not exist. A name
    contains the hash of a description, a text with everything that decides the content:

        description    {"class": "GPTDataset", "num_samples": 1000, ...}
        pattern        {hash}-{kind}-{split}-{part}
        name           5ce5...-GPTDataset-train-sample_index.npy

    Args:
        description: The text.
        pattern: Pattern of the names, as in the example.
        fields: Values for the pattern, such as {"kind": "GPTDataset", "split": "train"}. `hash` and
            `part` are added here.
        endings: Each file → its `part`: {"sample_index": "sample_index.npy"}.
    """
    digest = hashlib.md5(description.encode("utf-8"), usedforsecurity=False).hexdigest()
    files = {}
    for file, ending in endings.items():
        files[file] = pattern.format(hash=digest, part=ending, **fields)
    # The receipt is a file of ours that says what the others were made from.
    receipt_name = pattern.format(hash=digest, part=RECEIPT_ENDING, **fields)
    return IndexNames(description, digest, files, receipt_name)


def read_identifiers(path: Path, where: object) -> dict[str, Any]:
    """Read from a file how a trainer describes its tokenizer.

    For example, {"class": "GPT2Tokenizer", "path": "/data/tokenizer"}. The trainer hashes this into
    the names of its files, so it must be known to write files that the trainer finds.

    Args:
        path: A JSON file with these values, or a description of a dataset that the trainer wrote.
        where: The setting that names the file, for messages.

    Raises:
        ConfigError: The file contains no such values.
    """
    try:
        return _identifiers_in(json.loads(read_regular(path)))
    # Whatever else is in the file: it may be missing, not JSON, or of any other form.
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
    """Find in a JSON file by which values a trainer recognises its tokenizer.

    The values are {"class": "GPT2Tokenizer", ...} in all examples. There are three kinds of files:

        1. the values alone                {"class": "GPT2Tokenizer", ...}
        2. description of a dataset        {"class": "GPTDataset", "dataset_path": ..., "tokenizer":
                                            {"class": "GPT2Tokenizer", ...}}
        3. description of several ones     {"datasets": [description of a dataset, ...]}

    So in the third kind, take the first dataset, which is of the second kind; and there, take what
    is in "tokenizer".

    Args:
        content: The content of the file.

    Raises:
        AttributeError, TypeError: The content or the values are not a JSON object.
        LookupError: There are several datasets, but the list is empty.
    """
    # The third kind. All its datasets have the same tokenizer, so take the first one.
    datasets_of_blend = content.get("datasets")
    if isinstance(datasets_of_blend, list):
        content = datasets_of_blend[0]

    # The second kind, or else the first one.
    is_dataset = "class" in content and "dataset_path" in content
    identifiers = content
    if is_dataset and "tokenizer" in content:
        identifiers = content["tokenizer"]

    if not isinstance(identifiers, dict):
        raise TypeError(f"{identifiers!r} is no JSON object")
    return dict(identifiers)

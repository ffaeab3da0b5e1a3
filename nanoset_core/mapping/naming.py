"""The trainers' descriptions, hashes and file names: how one nanoset's index files are told from another's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nanoset_core.mapping.planned import MemberPlan
from nanoset_core.mapping.presets import Preset
from nanoset_core.mapping.splits import SplitName, parse_split, split_bookends

if TYPE_CHECKING:
    from nanoset_core.mapping.config import NanosetConfig

SIDECAR = "sidecar"
"""The part that is our own file, beside the trainer's."""
_SIDECAR_ENDING = "nanoset.json"
_INDICES = ("document_index", "sample_index", "shuffle_index")


def describe_member(config: NanosetConfig, split: SplitName, prefix: str, requested: int | None) -> str:
    """The text that the trainer hashes for one dataset (Megatron-LM `MegatronDataset`, nanotron `Nanoset`)."""
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
    """The text that the trainer hashes for a blend (Megatron-LM `BlendedDataset`, nanotron `BlendedNanoset`)."""
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
    """Part → file name of one dataset's index files, with the description last and SIDECAR for ours."""
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
    """Part → file name of a blend's index files, with the description last and SIDECAR for ours."""
    endings = {part: f"{part}.npy" for part in ("dataset_index", "dataset_sample_index")}
    return _files(partial(rules.blend_file.format, hash=digest, kind=rules.blend_kind, split=split), endings)


def _files(named: Callable[..., str], endings: dict[str, str], *, describes: bool = True) -> dict[str, str]:
    described = {"description": "description.txt"} if describes else {}
    return {part: named(part=ending) for part, ending in (endings | described | {SIDECAR: _SIDECAR_ENDING}).items()}


def md5(text: str) -> str:
    """The trainers' hash of a description."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _text(keys: Sequence[str], facts: Mapping[str, Any]) -> str:
    return json.dumps({key: facts[key] for key in keys}, indent=4, default=dict)

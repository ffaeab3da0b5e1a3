"""The plan of a split as plain values, with the trainers' descriptions, hashes and file names.

Descriptions and hashes differ between any two nanosets.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.presets import Preset
from nanoset_core.sampling.splits import Rows, SplitName, parse_split, split_bookends
from nanoset_core.storage.regular_files import read_regular

_INDICES = ("document_index", "sample_index", "shuffle_index")
_BLEND_INDICES = {part: f"{part}.npy" for part in ("dataset_index", "dataset_sample_index")}
_DEFAULTS = {"seed": None, "order": None, "begin": 0}
"""Fields that JSON leaves out where they have these values."""


class _Part:
    __slots__ = ()
    files: Mapping[str, str]
    sidecar: str

    @property
    def cache_files(self) -> tuple[str, ...]:
        """The trainer's file names."""
        return tuple(self.files.values())


@dataclass(frozen=True, slots=True)
class MemberPlan(_Part):
    """The plan of one dataset's part of a split."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
    trainer_path: str
    """The same as the trainer spells it."""
    idx_sha256: str
    split: SplitName
    weight: float | None
    """Share in the blend, normalised once; None without weights."""
    rows: Rows
    """Sequences of the dataset that are the split's, (begin, end excl)."""
    tokens: int
    """Tokens of one epoch: of those sequences."""
    samples_target: int | None
    """Samples that the blend plans to take, or that were asked for; None is one epoch."""
    samples_requested: int | None
    """The same with the blend's margin: what goes into the trainer's description."""
    epochs: int
    """Epochs in the document index."""
    separate_last_epoch: bool
    """Whether the last epoch is shuffled apart from the others."""
    samples_built: int
    """Samples in the sample index."""
    repeats: int
    """How often the shuffle index repeats them."""
    samples_given: int
    """Length of the dataset: samples_built * repeats."""
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: document_index, sample_index, shuffle_index, the trainer's description if it writes one."""
    sidecar: str
    """Name of our own file beside them."""
    order: Order | None = None
    """How earlier phases of the run read it, where it goes on; its first phase's order is that of `epochs` then."""
    begin: int = 0
    """Position in the shuffle index at which the run goes on."""


@dataclass(frozen=True, slots=True)
class BlendPlan(_Part):
    """The plan of a blend."""

    size: int
    """Samples of the blend."""
    weights: tuple[float, ...] | tuple[int, ...]
    """Normalised weights; or the datasets' lengths when all their samples are taken once."""
    exhaustive: bool
    """Whether all samples of all datasets are taken once."""
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: dataset_index, dataset_sample_index, description."""
    sidecar: str
    """Name of our own file beside them."""
    seed: int | None = None
    """Of the shuffle of its epoch, for trainers that shuffle it."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The plan of a split."""

    split: SplitName
    preset: str
    members: tuple[MemberPlan, ...]
    """Its datasets, in the order of the blend."""
    blend: BlendPlan | None
    """How they are mixed; None for a plain dataset."""

    @property
    def samples(self) -> int:
        """Length of the split."""
        return self.members[0].samples_given if self.blend is None else self.blend.size

    def to_json(self) -> dict[str, Any]:
        """Return plain types, for `from_json`."""
        values = asdict(self)
        for part in (*values["members"], *filter(None, [values["blend"]])):
            for name, default in _DEFAULTS.items():
                if part.get(name, part) == default:
                    del part[name]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan of `to_json`."""
        members = tuple(map(_member, values["members"]))
        blend = values["blend"]
        if blend is not None:
            blend = BlendPlan(**blend | {"weights": tuple(blend["weights"])})
        return cls(values["split"], values["preset"], members, blend)


def _member(values: Mapping[str, Any]) -> MemberPlan:
    order = values.get("order")
    changed = {} if order is None else {"order": Order(**order | {"rows": tuple(order["rows"])})}
    return MemberPlan(**{**values, "rows": tuple(values["rows"]), **changed})


class Names(TypedDict):
    """Names of the index files of a member or a blend: the trainer's description, its hash, and file names."""

    description: str
    hash: str
    files: dict[str, str]
    """Part → file name, the description last."""
    sidecar: str


def member_names(config: NanosetConfig, split: SplitName, prefix: str, requested: int | None) -> Names:
    """Return the names of one dataset's part of a split (Megatron-LM `MegatronDataset`, nanotron `Nanoset`).

    `requested` are the samples that are built, the blend's margin included; None is one epoch.
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
    endings = dict(zip(_INDICES, rules.member_parts, strict=True))
    return _names(
        *(rules.member_keys, facts, rules.member_file, endings),
        describes=rules.describes,
        kind=rules.member_kind,
        split=split,
        basename=os.path.basename(path),
        samples=requested,
        sequence_length=config.sequence_length,
        seed=config.random_seed,
    )


def blend_names(
    rules: Preset, split: SplitName, members: Sequence[MemberPlan], weights: Sequence[float], size: int | None
) -> Names:
    """Return the names of a blend (Megatron-LM `BlendedDataset`, nanotron `BlendedNanoset`).

    Where all samples are taken once, its weights are the datasets' lengths, and `size` is None.
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
    return _names(rules.blend_keys, facts, rules.blend_file, _BLEND_INDICES, kind=rules.blend_kind, split=split)


def _names(
    keys: Sequence[str],
    facts: Mapping[str, Any],
    pattern: str,
    endings: Mapping[str, str],
    *,
    describes: bool = True,
    **parts: object,
) -> Names:
    text = json.dumps({key: facts[key] for key in keys}, indent=4, default=dict)
    digest = hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()
    described = {"description": "description.txt"} if describes else {}
    named = partial(pattern.format, hash=digest, **parts)
    files = {part: named(part=ending) for part, ending in (*endings.items(), *described.items())}
    return {"description": text, "hash": digest, "files": files, "sidecar": named(part="nanoset.json")}


def read_identifiers(path: Path, where: object) -> dict[str, Any]:
    """Read a trainer's tokenizer identifiers from a JSON file, or from a description that the trainer wrote.

    ConfigError where it holds none; `where` says which setting names the file.
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

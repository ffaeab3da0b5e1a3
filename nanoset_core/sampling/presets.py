"""The differences between trainers, in one table; `handoff.writers` chooses what writes their arguments.

Sources: `megatron` Megatron-LM core 0.11 and newer (read at 0.16.1); `megatron-0.10` core 0.9 and 0.10; `nemo` NeMo's
Megatron collection (`nlp/data/language_modeling/megatron`, 8cfedd72); `nanotron` 896473d; `nanotron-000` 31ff34c for a
single dataset and 698c85b4 for blends (31ff34c has none); `nanotron-main` the `Nanoset` of 2411b022, and
`nanotron-main-bytes` its TokenizedBytes, by which its `run_train.py` trains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.splits import SplitName, normalize, plain_sum

_HASHED = "{hash}-{kind}-{part}"
_HASHED_SPLIT = "{hash}-{kind}-{split}-{part}"
_OWN_MARGIN = 1.005
_DEFAULT_SURPLUS = 0.005
_COMPENSATED_SINCE = 12


@dataclass(frozen=True, slots=True)
class Preset:
    """How one trainer builds, names and returns samples."""

    name: str
    """Name in configurations."""
    member_kind: str
    """The trainer's class for one dataset: in descriptions and file names."""
    member_keys: tuple[str, ...]
    """Keys of a dataset's description, in order."""
    member_file: str
    """Pattern of a dataset's file names."""
    member_parts: tuple[str, str, str]
    """Endings of the document, sample and shuffle index."""
    blend_kind: str
    """The trainer's class for a blend."""
    blend_keys: tuple[str, ...]
    """Keys of a blend's description, in order."""
    blend_file: str
    """Pattern of a blend's file names."""
    blend_dtype: str
    """Type of dataset_index."""
    most_datasets: int
    """Most datasets in a blend."""
    sample_form: Literal["megatron", "nemo", "text", "input_ids"]
    """What `[k]` returns."""
    pads: Literal["always", "unless eod", "never"] = "never"
    """Whether the pad token fills short samples and is masked; "unless eod": unless it is the end token too."""
    empty_end: bool = False
    """Whether the last, short sample of a split may end in an empty sequence (the others refuse to build that)."""
    describes: bool = True
    """Whether it writes description.txt beside a dataset's indices."""
    folder: str = "{prefix}/cache/{kind}_indices"
    """Where it keeps a dataset's indices without a cache folder."""
    split_rule: Literal["bookends", "cuts"] = "bookends"
    """How shares become sequences."""
    exactly_three_shares: bool = False
    """Whether the split must be three numbers."""
    empty_split: Literal["build", "skip", "refuse"] = "build"
    """What a split with a share but without sequences becomes: an empty dataset, none, or an error."""
    drops_short_members: bool = False
    """Whether a dataset without a sample counts as absent from a blend of shared splits."""
    zero_samples: Literal["any", "no blend", "never"] = "any"
    """What may have no samples at all: anything, anything but a blend, or nothing."""
    one_epoch: bool = False
    """Whether it draws samples from one epoch, and repeats them, instead of shuffling several epochs together."""
    windows: bool = False
    """Whether a dataset's samples lie side by side in its order and share no token, as datatrove reads a .ds file: then
    there is no split, and a dataset alone is a blend too."""
    shuffles_blend: bool = False
    """Whether the blend of one epoch, of as many samples as its datasets have, is shuffled and repeated."""
    samples_asked: Literal["any", "always", "train"] = "any"
    """Which splits take a number of samples: any may; all must (where none is given, that of one epoch); train only."""
    blend_margin: Literal["surplus", "ceil", "floor", "none"] = "surplus"
    """How many more samples than its share a dataset of a blend gets."""
    blend_size: Literal["targets", "buffers", "asked"] = "targets"
    """How long a weighted blend is: the datasets' shares, the same with margin, or what was asked for."""
    weights_normalized: Literal["numpy", "numpy twice", "sum, numpy"] = "numpy twice"
    """How weights are made to add up to 1 (the last bit matters)."""
    unweighted_blends: bool = True
    """Whether a blend may come without weights."""
    per_split_blends: bool = True
    """Whether splits may have blends of their own."""
    lone_weight_is_plain: bool = False
    """Whether a blend of one dataset of a split of its own is that dataset, weight or not."""
    per_split_size: Literal["targets", "buffers", "asked"] | None = None
    """`blend_size` where splits have blends of their own, if it differs."""
    wraps: Literal["never", "built", "read"] = "never"
    """Where a blend starts a dataset again that is used up: nowhere, in dataset_sample_index, or when reading."""
    names_dataset: bool = False
    """Whether a blend's samples carry dataset_id."""
    extra_token_only: bool = False
    """Whether samples always have the extra token."""
    shuffles_optionally: bool = False
    """Whether shuffling documents can be switched off."""
    sums_by_python: bool = False
    """Whether shares are divided by the built-in sum of the trainer's Python, which is compensated from 3.12 on."""
    masks: tuple[str, ...] = ()
    """Options that the trainer takes for masking at ends of documents."""
    goes_on: bool = False
    """Whether it reads whatever index files lie under its names, samples in their order: then a run can go on with
    another blend without repeating samples."""
    starts_without_scanning: bool = False
    """Whether the trainer takes --per-dataset-sequences-path and --dataloader-fast-cache-load."""

    @property
    def hashes_tokenizer(self) -> bool:
        """Whether names of index files depend on the trainer's tokenizer."""
        return "tokenizer" in self.member_keys

    def check_options(self, *, add_extra_token: bool, shuffle_documents: bool, surplus: float) -> None:
        """Raise ConfigError for an option that this trainer does not have."""
        if self.extra_token_only and not add_extra_token:
            raise self._cannot("add_extra_token=False", "add_extra_token=True")
        if not self.shuffles_optionally and not shuffle_documents:
            raise self._cannot("shuffle_documents=False", "shuffle_documents=True")
        if self.blend_margin != "surplus" and surplus != _DEFAULT_SURPLUS:
            raise self._cannot(f"surplus={surplus}", f"surplus={_DEFAULT_SURPLUS}, its own constant")

    def compensates(self, python: str | None) -> bool:
        """Return whether the trainer, run by a Python such as "3.12" (None: older), adds shares up with compensation.

        ConfigError where that is no Python 3, or the trainer does not depend on it.
        """
        if python is None:
            return False
        if not self.sums_by_python:
            raise self._cannot(f"trainer_python={python!r}", "none: its splits are the same in every Python")
        version = re.fullmatch(r"3\.(\d{1,3})(\.\d+)?", python, re.ASCII)
        if version is None:
            raise ConfigError(
                "not a version of Python 3", where="trainer_python", found=repr(python), expected='such as "3.12"'
            )
        return int(version[1]) >= _COMPENSATED_SINCE

    def normalized(self, weights: Sequence[float]) -> list[float]:
        """Return weights as the datasets' sizes are computed from them."""
        if self.weights_normalized != "sum, numpy":
            return normalize(weights)
        total = plain_sum(weights)
        return [weight / total for weight in weights]

    def blend_weights(self, weights: Sequence[float]) -> list[float]:
        """Return normalised weights as the blend itself uses them."""
        return list(weights) if self.weights_normalized == "numpy" else normalize(weights)

    def member_sizes(self, size: int, weight: float, surplus: float) -> tuple[int, int]:
        """Return (samples that the blend plans to take, samples that are built) of a dataset of normalised weight."""
        if self.blend_margin == "surplus":
            target = math.ceil(size * weight)
            return target, math.ceil(target * (1 + surplus))
        if self.blend_margin == "none":
            return math.ceil(size * weight), math.ceil(size * weight)
        if self.blend_margin == "ceil":
            buffer = math.ceil(size * weight * _OWN_MARGIN)
            return buffer, buffer
        return round(size * weight), int(size * weight * _OWN_MARGIN)

    def weighted_size(self, size: int, targets: Sequence[int], buffers: Sequence[int], *, per_split: bool) -> int:
        """Return the samples of a weighted blend of which `size` were asked for."""
        rule = (self.per_split_size or self.blend_size) if per_split else self.blend_size
        return {"targets": sum(targets), "buffers": sum(buffers), "asked": size}[rule]

    @property
    def names_tell_versions(self) -> bool:
        """Whether the names of index files hold a hash over the dataset's path, and so differ when it changes."""
        return "{hash}" in self.member_file

    def takes_samples(self, split: SplitName) -> bool:
        """Return whether a number of samples can be asked for; otherwise the split is one epoch."""
        return self.samples_asked != "train" or split == "train"

    def needs_samples(self, split: SplitName) -> bool:
        """Return whether a blend with weights must be given a number of samples."""
        return self.takes_samples(split) and not self.shuffles_blend

    def repeats(self, asked: int | None, samples: int) -> int:
        """Return how often the shuffled samples of an epoch are written one after the other (nanotron `Nanoset`)."""
        return int(asked / samples) + 1 if self.one_epoch and not self.windows and asked is not None else 1

    def _cannot(self, found: str, expected: str) -> ConfigError:
        return ConfigError(f"preset {self.name} has no such option", found=found, expected=expected)


_MEGATRON = Preset(
    name="megatron",
    member_kind="GPTDataset",
    member_keys=(
        *("class", "dataset_path", "num_samples", "index_split", "random_seed", "sequence_length"),
        *("split", "split_matrix", "tokenizer"),
    ),
    member_file=_HASHED_SPLIT,
    member_parts=("document_index.npy", "sample_index.npy", "shuffle_index.npy"),
    blend_kind="BlendedDataset",
    blend_keys=("class", "datasets", "split", "weights", "size"),
    blend_file=_HASHED_SPLIT,
    blend_dtype="int16",
    most_datasets=32766,
    sample_form="megatron",
    pads="unless eod",
    lone_weight_is_plain=True,
    names_dataset=True,
    masks=(
        "reset_position_ids",
        "reset_attention_mask",
        "eod_mask_loss",
        "create_attention_mask",
        "inter_document_masking",
    ),
    starts_without_scanning=True,
    goes_on=True,
)

_MEGATRON_010 = replace(
    _MEGATRON,
    name="megatron-0.10",
    masks=_MEGATRON.masks[:-1],
    blend_keys=(*_MEGATRON.blend_keys, "renormalize_blend_weights"),
    pads="always",
    blend_margin="ceil",
    blend_size="buffers",
    starts_without_scanning=False,
)

_NEMO = Preset(
    name="nemo",
    member_kind="GPTDataset",
    member_keys=("class", "data_prefix", "index_split", "num_samples", "sequence_length", "random_seed"),
    member_file="{basename}_{split}_indexmap_{samples}ns_{sequence_length}sl_{seed}s_{part}",
    member_parts=("doc_idx.npy", "sample_idx.npy", "shuffle_idx.npy"),
    blend_kind="BlendableDataset",
    blend_keys=("class", "datasets", "split", "weights", "size"),
    blend_file=_HASHED_SPLIT,  # NeMo keeps no blends: ours alone
    blend_dtype="uint8",
    most_datasets=254,
    sample_form="nemo",
    empty_end=True,
    describes=False,
    folder="{folder}",
    split_rule="cuts",
    exactly_three_shares=True,
    empty_split="skip",
    drops_short_members=True,
    samples_asked="always",
    blend_margin="ceil",
    blend_size="buffers",
    per_split_size="asked",
    weights_normalized="sum, numpy",
    unweighted_blends=False,
    wraps="read",
    shuffles_optionally=True,
    sums_by_python=True,
    goes_on=True,
    masks=("eod_mask_loss",),  # it has the others too, but fails with them
)

_NANOTRON_000 = Preset(
    name="nanotron-000",
    member_kind="Nanoset",
    member_keys=("class", "path_prefix", "num_samples", "index_split", "split", "random_seed", "sequence_length"),
    member_file=_HASHED,
    member_parts=_MEGATRON.member_parts,
    blend_kind="BlendedNanoset",
    blend_keys=("class", "datasets", "weights", "size"),
    blend_file=_HASHED,
    blend_dtype="int16",
    most_datasets=32766,
    sample_form="text",
    split_rule="cuts",
    empty_split="refuse",
    zero_samples="never",
    samples_asked="always",
    blend_margin="ceil",
    blend_size="buffers",
    unweighted_blends=False,
    per_split_blends=False,
    extra_token_only=True,
)

_NANOTRON = replace(
    _NANOTRON_000,
    name="nanotron",
    member_keys=tuple(key for key in _NANOTRON_000.member_keys if key != "num_samples"),
    blend_keys=(*_NANOTRON_000.blend_keys, "dataset_sizes"),
    blend_dtype="uint64",
    sample_form="input_ids",
    zero_samples="no blend",
    one_epoch=True,
    samples_asked="train",
    blend_margin="floor",
    blend_size="asked",
    weights_normalized="numpy",
    wraps="built",
)

_NANOTRON_MAIN = replace(
    _NANOTRON,
    name="nanotron-main",
    member_kind="DatatroveFolderDataset",
    member_keys=("class", "path_prefix", "num_samples", "random_seed", "sequence_length"),
    blend_kind="Nanoset",
    blend_keys=("class", "datasets", "weights", "size"),
    describes=False,  # it keeps no index files: ours alone
    windows=True,
    shuffles_blend=True,
    blend_margin="none",
    unweighted_blends=True,
    masks=("reset_position_ids",),
)

_NANOTRON_MAIN_BYTES = replace(
    _NANOTRON_MAIN,
    name="nanotron-main-bytes",
    blend_kind="BlendableDataset",
    blend_dtype="int16",
    shuffles_blend=False,
    unweighted_blends=False,
    wraps="never",
)

_ALL = (_MEGATRON, _MEGATRON_010, _NEMO, _NANOTRON, _NANOTRON_000, _NANOTRON_MAIN, _NANOTRON_MAIN_BYTES)
PRESETS = {preset.name: preset for preset in _ALL}


def get_preset(name: str) -> Preset:
    """Return the preset of a name; ConfigError where there is none."""
    if name not in PRESETS:
        raise ConfigError("unknown preset", where="preset", found=repr(name), expected=f"one of {', '.join(PRESETS)}")
    return PRESETS[name]

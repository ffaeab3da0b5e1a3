"""The differences between trainers, in one table of presets; `stages/handoff/writers.py` writes
their arguments.

A preset describes what one version of a trainer does:

- `megatron`: Megatron-LM core 0.11 and newer (read at 0.16.1).
- `megatron-0.10`: Megatron-LM core 0.9 and 0.10.
- `nemo`: NeMo's Megatron collection (`nlp/data/language_modeling/megatron`, 8cfedd72).
- `nanotron`: nanotron 896473d.
- `nanotron-000`: nanotron 31ff34c for a single dataset, and 698c85b4 for blends, which 31ff34c does not have.
- `nanotron-main`: the `Nanoset` of nanotron 2411b022.
- `nanotron-main-bytes`: its `TokenizedBytes`, with which its `run_train.py` trains.
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
_FIXED_MARGIN = 1.005
"""Factor for the samples of a dataset in a blend, in trainers that have no option for it."""
_DEFAULT_SURPLUS = 0.005
_COMPENSATED_SINCE = 12
"""Python 3.x from which on the built-in `sum` of floats is compensated."""


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
    max_datasets: int
    """Most datasets in a blend."""
    sample_form: Literal["megatron", "nemo", "text", "input_ids"]
    """What `[k]` returns."""
    pads: Literal["always", "unless eod", "never"] = "never"
    """Whether the pad token fills short samples and is masked; "unless eod": unless it is also the
    end token.
    """
    empty_end: bool = False
    """Whether the last, short sample of a split may end in an empty sequence; other trainers refuse
    to build that.
    """
    describes: bool = True
    """Whether it writes description.txt next to a dataset's index files."""
    folder: str = "{prefix}/cache/{kind}_indices"
    """Where it stores a dataset's index files if it is given no cache folder."""
    split_rule: Literal["bookends", "cuts"] = "bookends"
    """How shares become sequences."""
    exactly_three_shares: bool = False
    """Whether the split must be three numbers."""
    empty_split: Literal["build", "skip", "refuse"] = "build"
    """What becomes of a split that has a share but no sequences: an empty dataset, no dataset, or
    an error.
    """
    drops_short_members: bool = False
    """Whether a dataset without a sample counts as absent from a blend of shared splits."""
    zero_samples: Literal["any", "no blend", "never"] = "any"
    """What may have no samples at all: anything, anything except a blend, or nothing."""
    one_epoch: bool = False
    """Whether it draws samples from one epoch, and repeats them, instead of shuffling several
    epochs together.
    """
    windows: bool = False
    """Whether samples are neighbouring windows of the dataset that share no token, as datatrove
    reads a .ds file. Such a trainer has no splits, and treats a single dataset as a blend."""
    shuffles_blend: bool = False
    """Whether a blend has as many samples as its datasets together, and is shuffled once and then
    repeated.
    """
    sample_requests: Literal["any", "always", "train"] = "any"
    """Which splits have a number of samples: any may, all must (the default is one epoch), or only
    train can.
    """
    blend_margin: Literal["surplus", "ceil", "floor", "none"] = "surplus"
    """How many more samples than its share a dataset of a blend gets."""
    blend_size: Literal["targets", "buffers", "requested"] = "targets"
    """How long a weighted blend is: the sum of the datasets' shares, the same with margin, or what
    was requested.
    """
    weights_normalized: Literal["numpy", "numpy twice", "sum, numpy"] = "numpy twice"
    """How weights are made to add up to 1 (the last bit matters)."""
    unweighted_blends: bool = True
    """Whether a blend may have no weights."""
    per_split_blends: bool = True
    """Whether splits may have blends of their own."""
    lone_weight_is_plain: bool = False
    """Whether a blend of one dataset, given for a single split, is a plain dataset even if it has a
    weight.
    """
    per_split_size: Literal["targets", "buffers", "requested"] | None = None
    """`blend_size` for splits with blends of their own; None if it is the same."""
    wraps: Literal["never", "built", "read"] = "never"
    """Where a dataset that is used up starts again: nowhere, in dataset_sample_index, or when
    samples are read.
    """
    names_dataset: bool = False
    """Whether a blend's samples carry dataset_id."""
    extra_token_only: bool = False
    """Whether samples always have the extra token."""
    shuffles_optionally: bool = False
    """Whether shuffling documents can be switched off."""
    sums_by_python: bool = False
    """Whether shares are divided by the built-in sum of the trainer's Python, which is compensated
    from 3.12 on.
    """
    masks: tuple[str, ...] = ()
    """Options that the trainer takes for masking at ends of documents."""
    continues_runs: bool = False
    """Whether it reads any index files that have the right names, and the samples in their order.
    Then a run can continue with another blend without repeating samples."""
    starts_without_scanning: bool = False
    """Whether the trainer takes --per-dataset-sequences-path and --dataloader-fast-cache-load."""

    @property
    def hashes_tokenizer(self) -> bool:
        """Whether names of index files depend on the trainer's tokenizer."""
        return "tokenizer" in self.member_keys

    def check_options(
        self, *, add_extra_token: bool, shuffle_documents: bool, surplus: float
    ) -> None:
        """Check that the trainer has options with these values.

        Raises:
            ConfigError: It has not.
        """
        if self.extra_token_only and not add_extra_token:
            raise self._cannot("add_extra_token=False", "add_extra_token=True")
        if not self.shuffles_optionally and not shuffle_documents:
            raise self._cannot("shuffle_documents=False", "shuffle_documents=True")
        if self.blend_margin != "surplus" and surplus != _DEFAULT_SURPLUS:
            raise self._cannot(
                f"surplus={surplus}", f"surplus={_DEFAULT_SURPLUS}, its own constant"
            )

    def compensates(self, python: str | None) -> bool:
        """Return whether the trainer computes the sum of the shares with compensation.

        Args:
            python: Version of the trainer's Python, such as "3.12"; None for an older one.

        Raises:
            ConfigError: This is not a version of Python 3, or the trainer does not depend on it.
        """
        if python is None:
            return False
        if not self.sums_by_python:
            raise self._cannot(
                f"trainer_python={python!r}", "none: its splits are the same in every Python"
            )
        version = re.fullmatch(r"3\.(\d{1,3})(\.\d+)?", python, re.ASCII)
        if version is None:
            raise ConfigError(
                "not a version of Python 3",
                where="trainer_python",
                found=repr(python),
                expected='such as "3.12"',
            )
        return int(version[1]) >= _COMPENSATED_SINCE

    def normalized(self, weights: Sequence[float]) -> list[float]:
        """Return weights that add up to 1, with the rounding with which the trainer computes the
        datasets' sizes.
        """
        if self.weights_normalized != "sum, numpy":
            return normalize(weights)
        total = plain_sum(weights)
        return [weight / total for weight in weights]

    def blend_weights(self, weights: Sequence[float]) -> list[float]:
        """Return the weights that the blend itself uses, from those that `normalized` returned."""
        if self.weights_normalized == "numpy":
            return list(weights)
        return normalize(weights)

    def member_sizes(self, size: int, weight: float, surplus: float) -> tuple[int, int]:
        """Return (samples that the blend plans to take, samples that are built) of a dataset.

        Args:
            size: Samples of the blend.
            weight: The dataset's weight, normalised.
            surplus: Share of samples that are built in addition, for trainers with an option for
                it.
        """
        if self.blend_margin == "surplus":
            target = math.ceil(size * weight)
            return target, math.ceil(target * (1 + surplus))
        if self.blend_margin == "none":
            target = math.ceil(size * weight)
            return target, target
        if self.blend_margin == "ceil":
            with_margin = math.ceil(size * weight * _FIXED_MARGIN)
            return with_margin, with_margin
        return round(size * weight), int(size * weight * _FIXED_MARGIN)

    def weighted_size(
        self, size: int, targets: Sequence[int], buffers: Sequence[int], *, per_split: bool
    ) -> int:
        """Return the samples of a blend with weights.

        Args:
            size: Samples that were requested.
            targets: Samples that the blend plans to take of each dataset.
            buffers: Samples that are built of each dataset.
            per_split: Whether splits have blends of their own.
        """
        rule = self.blend_size
        if per_split and self.per_split_size is not None:
            rule = self.per_split_size
        if rule == "targets":
            return sum(targets)
        if rule == "buffers":
            return sum(buffers)
        return size

    @property
    def index_names_have_versions(self) -> bool:
        """Whether names of index files contain a hash of the dataset's path, so that each version
        has its own.
        """
        return "{hash}" in self.member_file

    def takes_samples(self, split: SplitName) -> bool:
        """Return whether a number of samples can be requested; otherwise the split is one epoch."""
        return self.sample_requests != "train" or split == "train"

    def needs_samples(self, split: SplitName) -> bool:
        """Return whether a number of samples must be requested for a blend with weights."""
        return self.takes_samples(split) and not self.shuffles_blend

    def repeats(self, asked: int | None, samples: int) -> int:
        """Return how often the shuffle index repeats the samples of an epoch.

        Source: nanotron `Nanoset`, which repeats them once more than necessary.

        Args:
            asked: Samples that were requested; None is one epoch.
            samples: Samples of an epoch.
        """
        if not self.one_epoch or self.windows or asked is None:
            return 1
        return int(asked / samples) + 1

    def _cannot(self, found: str, expected: str) -> ConfigError:
        return ConfigError(
            f"preset {self.name} has no such option",
            found=found,
            expected=expected,
        )


_MEGATRON = Preset(
    name="megatron",
    member_kind="GPTDataset",
    member_keys=(
        "class",
        "dataset_path",
        "num_samples",
        "index_split",
        "random_seed",
        "sequence_length",
        "split",
        "split_matrix",
        "tokenizer",
    ),
    member_file=_HASHED_SPLIT,
    member_parts=("document_index.npy", "sample_index.npy", "shuffle_index.npy"),
    blend_kind="BlendedDataset",
    blend_keys=("class", "datasets", "split", "weights", "size"),
    blend_file=_HASHED_SPLIT,
    blend_dtype="int16",
    max_datasets=32766,
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
    continues_runs=True,
)

_MEGATRON_010 = replace(
    _MEGATRON,
    name="megatron-0.10",
    masks=("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"),
    blend_keys=(*_MEGATRON.blend_keys, "renormalize_blend_weights"),
    pads="always",
    blend_margin="ceil",
    blend_size="buffers",
    starts_without_scanning=False,
)

_NEMO = Preset(
    name="nemo",
    member_kind="GPTDataset",
    member_keys=(
        "class",
        "data_prefix",
        "index_split",
        "num_samples",
        "sequence_length",
        "random_seed",
    ),
    member_file="{basename}_{split}_indexmap_{samples}ns_{sequence_length}sl_{seed}s_{part}",
    member_parts=("doc_idx.npy", "sample_idx.npy", "shuffle_idx.npy"),
    blend_kind="BlendableDataset",
    blend_keys=("class", "datasets", "split", "weights", "size"),
    blend_file=_HASHED_SPLIT,  # NeMo stores no blends: only we read these files
    blend_dtype="uint8",
    max_datasets=254,
    sample_form="nemo",
    empty_end=True,
    describes=False,
    folder="{folder}",
    split_rule="cuts",
    exactly_three_shares=True,
    empty_split="skip",
    drops_short_members=True,
    sample_requests="always",
    blend_margin="ceil",
    blend_size="buffers",
    per_split_size="requested",
    weights_normalized="sum, numpy",
    unweighted_blends=False,
    wraps="read",
    shuffles_optionally=True,
    sums_by_python=True,
    continues_runs=True,
    masks=("eod_mask_loss",),  # it has the other options, too, but fails with them
)

_NANOTRON_000 = Preset(
    name="nanotron-000",
    member_kind="Nanoset",
    member_keys=(
        "class",
        "path_prefix",
        "num_samples",
        "index_split",
        "split",
        "random_seed",
        "sequence_length",
    ),
    member_file=_HASHED,
    member_parts=_MEGATRON.member_parts,
    blend_kind="BlendedNanoset",
    blend_keys=("class", "datasets", "weights", "size"),
    blend_file=_HASHED,
    blend_dtype="int16",
    max_datasets=32766,
    sample_form="text",
    split_rule="cuts",
    empty_split="refuse",
    zero_samples="never",
    sample_requests="always",
    blend_margin="ceil",
    blend_size="buffers",
    unweighted_blends=False,
    per_split_blends=False,
    extra_token_only=True,
)

_NANOTRON = replace(
    _NANOTRON_000,
    name="nanotron",
    member_keys=("class", "path_prefix", "index_split", "split", "random_seed", "sequence_length"),
    blend_keys=(*_NANOTRON_000.blend_keys, "dataset_sizes"),
    blend_dtype="uint64",
    sample_form="input_ids",
    zero_samples="no blend",
    one_epoch=True,
    sample_requests="train",
    blend_margin="floor",
    blend_size="requested",
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
    describes=False,  # it stores no index files: only we read these
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

_ALL = (
    _MEGATRON,
    _MEGATRON_010,
    _NEMO,
    _NANOTRON,
    _NANOTRON_000,
    _NANOTRON_MAIN,
    _NANOTRON_MAIN_BYTES,
)
PRESETS = {preset.name: preset for preset in _ALL}
"""Name → preset."""


def get_preset(name: str) -> Preset:
    """Return the preset with this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in PRESETS:
        raise ConfigError(
            "unknown preset",
            where="preset",
            found=repr(name),
            expected=f"one of {', '.join(PRESETS)}",
        )
    return PRESETS[name]

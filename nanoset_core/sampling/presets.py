"""The differences between trainers that decide which samples they read, in one table of presets.

A preset describes what one version of a trainer does:

- `megatron`: Megatron-LM core 0.11 and newer (read at 0.16.1).
- `megatron-0.10`: Megatron-LM core 0.9 and 0.10.
- `nemo`: NeMo's Megatron collection (`nlp/data/language_modeling/megatron`, 8cfedd72).
- `nanotron`: nanotron 896473d.
- `nanotron-000`: nanotron 31ff34c for a single dataset, and 698c85b4 for blends, which 31ff34c does
  not have.
- `nanotron-main`: the `Nanoset` of nanotron 2411b022.
- `nanotron-main-bytes`: its `TokenizedBytes`, with which its `run_train.py` trains.

The arguments with which a trainer is started are not part of a preset:
`stages/handoff/trainer_files.py` writes them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.splits import SplitName, normalize, plain_sum

_HASHED = "{hash}-{kind}-{part}"
"""Names of index files that depend on the hash of the description."""
_HASHED_SPLIT = "{hash}-{kind}-{split}-{part}"
"""The same with the name of the split."""
_FIXED_MARGIN = 1.005
"""Factor for the samples of a dataset in a blend, in trainers that have no option for it."""
_DEFAULT_SURPLUS = 0.005
"""Megatron-LM's default of the option that other trainers do not have."""
_FIRST_COMPENSATED_MINOR = 12
"""Python 3.12 is the first whose built-in `sum` corrects the rounding errors of floats."""


class MemberSizes(NamedTuple):
    """How many samples a blend needs of one dataset."""

    target: int
    """Samples that the blend plans to take."""
    built: int
    """Samples that are built: the target and a margin, since blends are rounded."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The rules by which one trainer builds, names and returns samples."""

    name: str
    """Name of the preset in configurations."""

    # Names and descriptions of index files.
    member_kind: str
    """The trainer's class for one dataset, as descriptions and file names spell it."""
    member_keys: tuple[str, ...]
    """Keys of a dataset's description, in order."""
    member_file: str
    """Pattern of a dataset's file names."""
    member_parts: tuple[str, str, str]
    """Endings of the document, sample and shuffle index."""
    blend_kind: str
    """The trainer's class for a blend, as descriptions and file names spell it."""
    blend_keys: tuple[str, ...]
    """Keys of a blend's description, in order."""
    blend_file: str
    """Pattern of a blend's file names."""
    blend_dtype: str
    """Type of the numbers in dataset_index."""
    max_datasets: int
    """Largest number of datasets in a blend, so that their numbers fit into `blend_dtype`."""

    # Samples.
    sample_form: Literal["megatron", "nemo", "text", "input_ids"]
    """Which mapping the trainer's dataset returns for a sample.

    - `megatron`, `nemo`: tokens, labels, loss mask, position ids; they differ in details.
    - `text`, `input_ids`: the tokens alone, under this key.
    """
    dataset_format: Literal["bin", "ds"] = "bin"
    """Which files of a dataset the trainer reads.

    - `bin`: its .bin and .idx.
    - `ds`: the .ds files of an export with the format datatrove.
    """
    pads: Literal["always", "unless eod", "never"] = "never"
    """When the pad token fills short samples and is masked from the loss.

    - `unless eod`: unless it is also the end-of-document token.
    - `never`: short samples are filled with -1.
    """
    empty_end: bool = False
    """Whether the last, short sample of a split may end in an empty sequence.

    Other trainers refuse to build such a split.
    """
    describes: bool = True
    """Whether the trainer writes description.txt next to a dataset's index files."""
    folder: str = "{prefix}/cache/{kind}_indices"
    """Where a dataset's index files are stored if no cache folder is configured: a pattern for
    `default_folder`, with the path of the dataset, its folder, and `member_kind`.
    """

    # Splits.
    has_splits: bool = True
    """Whether the trainer divides data into train, valid and test.

    Others train with whole datasets. They do not read validation data, and have no phases.
    """
    removes_spaces_in_split: bool = False
    """Whether the text of shares has no spaces when the trainer hashes it.

    Megatron-LM gets it from a command line, which is cut at spaces.
    """
    split_rule: Literal["bookends", "cuts"] = "bookends"
    """How the shares of splits become ranges of sequences.

    - `bookends`: each border is rounded (Megatron-LM).
    - `cuts`: the size of each split is rounded, and the sizes are added up (NeMo).
    """
    exactly_three_shares: bool = False
    """Whether the text of a split must be three numbers."""
    empty_split: Literal["build", "skip", "refuse"] = "build"
    """What the trainer does with a split that has a share but no sequences.

    - `build`: it is a dataset without samples.
    - `skip`: there is no dataset for it.
    - `refuse`: it is an error.
    """
    drops_short_members: bool = False
    """Whether a dataset without a sample is left out of a blend that all splits share."""
    zero_samples: Literal["any", "no blend", "never"] = "any"
    """What may have no samples at all.

    - `any`: datasets and blends.
    - `no blend`: datasets, but no blend.
    - `never`: neither.
    """
    least_tokens: int = 0
    """How many tokens a dataset must have, even if training takes no sample of it.

    Some trainers check the number when they build index files, and fail if there are fewer.
    """
    one_epoch: bool = False
    """Whether samples are drawn from one epoch, which is repeated if there are too few.

    Other trainers shuffle several epochs together.
    """
    windows: bool = False
    """Whether samples are neighbouring windows of the dataset that have no token in common.

    A window has one token more than `sequence_length`. In other trainers, a sample begins with the
    last token of the previous one.
    """
    shuffles_datasets: bool = True
    """Whether the documents and samples of each dataset are shuffled before datasets are mixed."""

    # Blends.
    always_blends: bool = False
    """Whether a single dataset is treated as a blend of one."""
    shuffles_blend: bool = False
    """Whether a blend has as many samples as its datasets together, in a shuffled order.

    If more samples are requested, these are repeated in the same order.
    """
    sample_requests: Literal["any", "always", "train"] = "any"
    """Which splits have a number of samples.

    - `any`: any split may have one; otherwise it is one epoch.
    - `always`: every split has one; its default is the number of samples in one epoch.
    - `train`: only train can have one.
    """
    blend_margin: Literal["surplus", "ceil", "floor", "none"] = "surplus"
    """How many more samples than its share are built of a dataset in a blend.

    - `surplus`: those of a configured factor, rounded up.
    - `ceil`, `floor`: those of a fixed factor, rounded up or down.
    - `none`: the share alone, rounded up.
    """
    blend_size: Literal["targets", "buffers", "requested"] = "targets"
    """How many samples a weighted blend has.

    - `targets`: the sum of the samples that it plans to take of each dataset.
    - `buffers`: the sum of the samples that are built of each dataset.
    - `requested`: the number that was requested.
    """
    weights_normalized: Literal["once", "twice", "plain sum first"] = "twice"
    """How weights are divided by their sum, which decides their last bit.

    - `once`: by the sum that numpy computes.
    - `twice`: so for the sizes of the datasets, and again for the blend.
    - `plain sum first`: by the sum of a loop for the sizes, and by numpy's for the blend.
    """
    unweighted_blends: bool = True
    """Whether a blend may have no weights."""
    per_split_blends: bool = True
    """Whether each split may have a separate blend."""
    lone_weight_is_plain: bool = False
    """Whether a blend of one dataset for a single split is a plain dataset, even with a weight."""
    per_split_size: Literal["targets", "buffers", "requested"] | None = None
    """`blend_size` for splits with separate blends; None if it is the same."""
    wraps: Literal["never", "built", "read"] = "never"
    """Where a dataset whose samples are used up starts again.

    - `never`: it does not.
    - `built`: in dataset_sample_index.
    - `read`: when samples are read.
    """
    names_dataset: bool = False
    """Whether a blend's samples contain dataset_id."""

    # Options.
    extra_token_only: bool = False
    """Whether samples always have the extra token."""
    shuffles_optionally: bool = False
    """Whether shuffling documents can be switched off."""
    sums_by_python: bool = False
    """Whether shares are divided by the built-in `sum` of the trainer's Python.

    It corrects rounding errors from Python 3.12 on, so splits can depend on the version.
    """
    masks: tuple[str, ...] = ()
    """Options of the trainer for masking at ends of documents."""
    continues_runs: bool = False
    """Whether a run can continue with another blend without repeating samples.

    The trainer must read any index files that have the right names, and samples in their order.
    """
    starts_without_scanning: bool = False
    """Whether the trainer takes --per-dataset-sequences-path and --dataloader-fast-cache-load."""

    @property
    def hashes_tokenizer(self) -> bool:
        """Whether names of index files depend on the trainer's tokenizer."""
        return "tokenizer" in self.member_keys

    @property
    def index_names_have_versions(self) -> bool:
        """Whether versions of a dataset have different names of index files.

        They do if names contain a hash, which covers the dataset's path.
        """
        return "{hash}" in self.member_file

    def default_folder(self, prefix: str) -> str:
        """Return where the trainer keeps the index files of a dataset, if no folder is configured.

        For example, for the dataset data/web:

            data/web/cache/GPTDataset_indices       Megatron-LM
            data                                    NeMo: next to the dataset

        Args:
            prefix: Path of the dataset without .bin and .idx.
        """
        return self.folder.format(
            prefix=prefix, kind=self.member_kind, folder=os.path.dirname(prefix) or "."
        )

    def check_options(
        self, *, add_extra_token: bool, shuffle_documents: bool, surplus: float
    ) -> None:
        """Check that the trainer has the options that the user has set to other than the default.

        For example, only NeMo can leave documents in their order (`shuffle_documents=False`). All
        other trainers always shuffle them, so it is an error for them.

        Args:
            add_extra_token: Whether a sample also has the first token of the next one.
            shuffle_documents: Whether documents are shuffled.
            surplus: How many more samples are built than are taken of each dataset, as a share.

        Raises:
            ConfigError: The trainer does not have an option, and always uses another value.
        """
        if self.extra_token_only and not add_extra_token:
            raise self._unknown_option("add_extra_token=False", "add_extra_token=True")
        if not self.shuffles_optionally and not shuffle_documents:
            raise self._unknown_option("shuffle_documents=False", "shuffle_documents=True")

        has_surplus_option = self.blend_margin == "surplus"
        if not has_surplus_option and surplus != _DEFAULT_SURPLUS:  # 0.005
            raise self._unknown_option(
                f"surplus={surplus}", f"surplus={_DEFAULT_SURPLUS}, its own constant"
            )

    def compensates(self, python: str | None) -> bool:
        """Return whether the trainer divides data in the way of Python 3.12 or newer.

        Some trainers divide a dataset into train, valid and test by shares, which they add up with
        Python's `sum`. From Python 3.12 on, it corrects rounding errors: ten times 0.1 is 1.0, and
        not 0.9999999999999999. This can move a document from one split to another.

        Args:
            python: Version of the Python with which the trainer runs, such as "3.12"; None for one
                before 3.12.

        Raises:
            ConfigError: This is not a version of Python 3; or the trainer does not use `sum`, so
                that no version may be given.
        """
        if python is None:
            return False
        self.check_depends_on_python(f"trainer_python={python!r}")
        version = re.fullmatch(r"3\.(\d{1,3})(\.\d+)?", python, re.ASCII)
        if version is None:
            raise ConfigError(
                "not a version of Python 3",
                where="trainer_python",
                found=repr(python),
                expected='such as "3.12"',
            )
        minor = int(version[1])
        return minor >= _FIRST_COMPENSATED_MINOR

    def check_depends_on_python(self, option: str) -> None:
        """Check that it makes a difference with which version of Python the trainer runs.

        It does if the trainer divides data into train, valid and test by Python's `sum`, which
        rounds in another way since Python 3.12. For all other trainers, an option that tells the
        version is an error.

        Args:
            option: The option, for the message: "trainer_python='3.12'" in nanoset.yaml, or
                "compensated_sums=True" in Python.

        Raises:
            ConfigError: The trainer does not use `sum`.
        """
        if not self.sums_by_python:
            raise self._unknown_option(option, "none: its splits are the same in every Python")

    def _unknown_option(self, found: str, expected: str) -> ConfigError:
        """Return the error for an option that the trainer does not have."""
        return ConfigError(
            f"preset {self.name} has no such option",
            found=found,
            expected=expected,
        )

    def normalized(self, weights: Sequence[float]) -> list[float]:
        """Divide weights by their sum, with the same rounding as the trainer.

        For example, 3 and 1 become 0.75 and 0.25. Even the last digit matters, since it can change
        the number of samples of a dataset by one. It depends on how the sum is computed: one weight
        after another ("plain sum"), or in pairs, as numpy does.

        Args:
            weights: Weight of each dataset.

        Returns:
            Weights whose sum is 1, except for rounding.
        """
        if self.weights_normalized == "plain sum first":
            total = plain_sum(weights)
            return [weight / total for weight in weights]
        return normalize(weights)  # with numpy's sum

    def blend_weights(self, weights: Sequence[float]) -> list[float]:
        """Return the weights with which the trainer mixes datasets, to the last digit.

        They add up to 1. Most trainers divide weights by their sum twice: once to compute how many
        samples of each dataset there are, and once more to mix them. The second division changes at
        most the last digit, but that can change the order of the samples.

        Args:
            weights: Weight of each dataset, as the user has written it: 3 and 1.

        Returns:
            A weight for each dataset: 0.75 and 0.25.
        """
        shares = self.normalized(weights)
        if self.weights_normalized == "once":
            return shares
        return normalize(shares)

    def member_sizes(self, size: int, weight: float, surplus: float) -> MemberSizes:
        """Return how many samples of a dataset the trainer takes, and how many it builds.

        It takes them in proportion to weights, and builds some more, since numbers are rounded.
        Each trainer has its own rule (`blend_margin`). For 0.3 of 1,001 samples, which is 300.3:

            rule         taken (target)                  built
            "surplus"    301: rounded up                 303: 301 * 1.005, rounded up
            "none"       301: rounded up                 301
            "ceil"       302: 300.3 * 1.005, rounded up  302
            "floor"      300: rounded to the nearest     301: 300.3 * 1.005, rounded down

        Args:
            size: Number of samples of all datasets: 1,001.
            weight: The dataset's weight, as a share: 0.3.
            surplus: How many more samples are built by the rule "surplus", as a share: 0.005.
        """
        exact_target = size * weight  # 300.3
        match self.blend_margin:
            case "surplus":
                target = math.ceil(exact_target)
                return MemberSizes(target, built=math.ceil(target * (1 + surplus)))
            case "none":
                target = math.ceil(exact_target)
                return MemberSizes(target, built=target)
            case "ceil":
                with_margin = math.ceil(exact_target * _FIXED_MARGIN)
                return MemberSizes(with_margin, built=with_margin)
            case "floor":
                # As nothing is rounded up, too few samples of a small dataset can be built.
                with_margin = int(exact_target * _FIXED_MARGIN)
                return MemberSizes(round(exact_target), built=with_margin)

    def weighted_size(
        self,
        requested: int,
        taken_by_dataset: Sequence[int],
        built_by_dataset: Sequence[int],
        *,
        per_split: bool,
    ) -> int:
        """Return how many samples the trainer reads in all, if it mixes datasets by weight.

        Some trainers read slightly more than was requested, as they add up rounded numbers. For
        example, 11 samples are requested, and the weights are 2, 2 and 1:

            rule           what is added up                        samples
            "requested"    nothing                                 11
            "targets"      4.4, 4.4 and 2.2, rounded up            5 + 5 + 3 = 13
            "buffers"      these with a reserve                    6 + 6 + 4 = 16

        Args:
            requested: Samples that were requested: 11.
            taken_by_dataset: Samples of each dataset, rounded up: [5, 5, 3].
            built_by_dataset: The same with the trainer's reserve: [6, 6, 4].
            per_split: Whether train, valid and test have separate datasets. A trainer can have
                another rule for these.
        """
        rule = self.blend_size
        if per_split and self.per_split_size is not None:
            rule = self.per_split_size
        if rule == "requested":
            return requested
        if rule == "targets":
            return sum(taken_by_dataset)
        return sum(built_by_dataset)

    def takes_samples(self, split: SplitName) -> bool:
        """Return whether a user can say how many samples the trainer reads of a split.

        Some trainers always read valid and test exactly once.

        Args:
            split: The split of the data: train, valid or test.
        """
        return self.sample_requests != "train" or split == "train"

    def needs_samples(self, split: SplitName) -> bool:
        """Return whether a user must say how many samples the trainer reads of a split.

        This is about datasets with weights. For the weights 3 and 1, the trainer takes 3/4 and 1/4
        of the samples, and so has to know how many these are. Some trainers do not need this: they
        always take as many samples as all datasets have together.

        Args:
            split: The split of the data: train, valid or test.
        """
        return self.takes_samples(split) and not self.shuffles_blend

    def repeats(self, requested: int | None, samples_of_epoch: int) -> int:
        """Return how many times the trainer's index files repeat the samples of a dataset.

        For example, a dataset has 100 samples, and 250 are needed:

            trainer                       how it gets 250 samples                         result
            most                          it cuts them from the tokens of three epochs    1
            some versions of nanotron     its index files repeat the 100 samples          3
            others                        it repeats them when it reads index files       1

        Args:
            requested: Samples that are needed: 250; None for each sample once.
            samples_of_epoch: Samples of the dataset: 100.
        """
        if not self.one_epoch or requested is None:
            return 1
        if self.windows:  # the last row
            return 1
        # This is how nanotron rounds: 200 samples are repeated 3 times, although 2 would be enough.
        return int(requested / samples_of_epoch) + 1


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
    removes_spaces_in_split=True,
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
    blend_file=_HASHED_SPLIT,  # NeMo stores no blends; only nanoset reads these files
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
    least_tokens=2,  # `assert(tokens_per_epoch > 1)` in build_sample_idx of its helpers.cpp
    sample_requests="always",
    blend_margin="ceil",
    blend_size="buffers",
    per_split_size="requested",
    weights_normalized="plain sum first",
    unweighted_blends=False,
    wraps="read",
    shuffles_optionally=True,
    sums_by_python=True,
    continues_runs=True,
    masks=("eod_mask_loss",),  # NeMo has the other options, too, but fails with them
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
    least_tokens=2,  # `assert tokens_per_epoch > 1` in build_sample_idx
    one_epoch=True,
    sample_requests="train",
    blend_margin="floor",
    blend_size="requested",
    weights_normalized="once",
    wraps="built",
)

_NANOTRON_MAIN = replace(
    _NANOTRON,
    name="nanotron-main",
    member_kind="DatatroveFolderDataset",
    member_keys=("class", "path_prefix", "num_samples", "random_seed", "sequence_length"),
    blend_kind="Nanoset",
    blend_keys=("class", "datasets", "weights", "size"),
    describes=False,  # it stores no index files; only nanoset reads these
    dataset_format="ds",
    has_splits=False,
    least_tokens=0,
    windows=True,
    shuffles_datasets=False,
    always_blends=True,
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

_PRESETS = (
    _MEGATRON,
    _MEGATRON_010,
    _NEMO,
    _NANOTRON,
    _NANOTRON_000,
    _NANOTRON_MAIN,
    _NANOTRON_MAIN_BYTES,
)
PRESETS = {preset.name: preset for preset in _PRESETS}
"""Name → preset."""


def get_preset(name: str) -> Preset:
    """Return the rules of the trainer that a preset of this name describes.

    Args:
        name: Name of the preset, such as "megatron".

    Raises:
        ConfigError: No preset has this name.
    """
    if name not in PRESETS:
        raise ConfigError(
            "unknown preset",
            where="preset",
            found=repr(name),
            expected=f"one of {', '.join(PRESETS)}",
        )
    return PRESETS[name]

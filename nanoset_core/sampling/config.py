"""The configuration of a nanoset: its datasets, splits, sizes and seed, and the trainer's rules.

Splits are planned, index files built, and samples read from it. For example, 1,000 samples of two
datasets, mixed 3 to 1, with the rules of Megatron-LM:

    NanosetConfig(
        {"/data/web": 3, "/data/books": 1},
        sequence_length=4096,
        train_split_samples=1000,
        preset="megatron",
    )
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, one_of
from nanoset_core.records.arguments import (
    boolean,
    choice,
    plain_integer,
    token_id,
    whole_number,
)
from nanoset_core.records.frozen import FrozenDict, freeze, set_while_made
from nanoset_core.records.json_records import from_plain, to_plain
from nanoset_core.records.stored_fields import stored
from nanoset_core.sampling.presets import Preset, get_preset
from nanoset_core.sampling.splits import SPLITS, Rows, SplitName, parse_split, sample_count
from nanoset_core.storage.paths import expanded

Blend = str | os.PathLike[str] | Mapping[str, float] | Sequence[str]
"""The data of a split: one dataset, or several with weights, or several without weights.

A dataset is named by its prefix, the path without .bin and .idx.
"""
PlainBlend = str | FrozenDict[str, float] | tuple[str, ...]
"""A `Blend` of plain types that cannot change."""
_STORED_BLEND = str | Mapping[str, float] | tuple[str, ...] | None
"""A `PlainBlend` as it is stored as JSON; None for a split without data."""
DEFAULT_SEED = 1234
"""Default seed of every shuffle; that of Megatron-LM's --seed."""
DEFAULT_SPLIT = "969,30,1"
"""Default shares of train, valid and test; those of Megatron-LM's --split."""

DOCUMENTS = "inter_document_masking"
"""The option with which samples contain the borders of their documents."""
MASKS = (
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
    "create_attention_mask",
    DOCUMENTS,
)
"""Options that change what a sample contains, but no index file."""
_NO_TOKEN = -1
"""Id that no token has."""
_SWITCHES = (
    "add_extra_token",
    "drop_last_partial_validation_sequence",
    "shuffle_documents",
    "compensated_sums",
    "allow_ambiguous_pad_tokens",
    *MASKS,
)
"""The options of `NanosetConfig` that are on or off."""
END_MASKS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
"""The options among `MASKS` that need the id of the end-of-document token."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which the earlier phases of a run read a dataset, and where they stopped.

    A later phase continues this order, so that no sample is repeated too early (`orders.py`).
    """

    taken: int
    """Samples of the dataset that the earlier phases took."""
    rows: Rows
    """Sequences of the dataset that belong to train: a half-open range."""
    epochs: int
    """Epochs that the first of these phases shuffled, as the trainer itself does."""
    separate_last_epoch: bool
    """Whether the last of these epochs was shuffled on its own."""

    @property
    def epochs_shuffled_together(self) -> int:
        """Number of these epochs that were shuffled together: all, or all except for the last."""
        return self.epochs - 1 if self.separate_last_epoch else self.epochs


@dataclass(frozen=True, slots=True)
class NanosetConfig:
    """The settings of a nanoset, in the terms of the trainer that `preset` names.

    The arguments are described in docs/python.md.

    Raises:
        ConfigError: A value is impossible, or the trainer does not have an option.
    """

    data_path: Blend | None = field(default=None, metadata=stored(hint=_STORED_BLEND))
    """Prefix of one dataset, or {prefix: weight}, or [prefix, …]; None with `blend_per_split`."""
    _: KW_ONLY
    sequence_length: int
    """Tokens of a sample, without the extra one."""
    random_seed: int = DEFAULT_SEED
    """Seed of every shuffle, 0 to 2**32 - 1."""
    blend_per_split: Sequence[Blend | None] | None = field(
        default=None, metadata=stored(hint=tuple[_STORED_BLEND, ...] | None)
    )
    """Data of train, valid and test, each like `data_path` or None; replaces `data_path` and
    `split`.
    """
    split: str = DEFAULT_SPLIT
    """Shares of train, valid and test in the sequences of every dataset. With presets that have no
    splits (`windows`), everything is train.
    """
    train_split_samples: int | None = None
    """Minimum number of samples of train; None is one epoch."""
    valid_split_samples: int | None = None
    """Minimum number of samples of valid; None is one epoch."""
    test_split_samples: int | None = None
    """Minimum number of samples of test; None is one epoch."""
    path_to_cache: str | None = None
    """Folder of the index files; None is the trainer's default, next to the data. `~` is replaced
    by the home folder.
    """
    preset: str = "megatron"
    """The trainer whose rules and names are followed, such as megatron, nemo or nanotron-main."""
    tokenizer_identifiers: Mapping[str, Any] = field(default_factory=dict)
    """The unique identifiers of the trainer's tokenizer, which are part of its descriptions and
    hashes.
    """
    add_extra_token: bool = True
    """Whether a sample has sequence_length + 1 tokens."""
    drop_last_partial_validation_sequence: bool = True
    """Whether valid leaves out its last, short sample."""
    surplus: float = 0.005
    """Samples that are built of each dataset of a weighted blend in addition to those that it plans
    to take, as a share of these.
    """
    trainer_paths: Mapping[str, str] = field(default_factory=dict)
    """Prefix → path of the dataset on the machine that trains, which is part of descriptions and
    hashes. Datasets that are no key have the same path there.
    """
    shuffle_documents: bool = True
    """Whether documents are shuffled; only preset nemo can keep their order."""
    compensated_sums: bool = field(default=False, metadata=stored(omit_default=True))
    """Whether the trainer's Python is 3.12 or newer, whose `sum` corrects rounding errors. It
    decides the last bits of the shares (preset nemo).
    """
    orders: Mapping[str, Order] = field(default_factory=dict, metadata=stored(omit_default=True))
    """Prefix → order in which earlier phases of the run read this dataset of train. Empty in the
    first phase.
    """
    consumed_samples: int = field(default=0, metadata=stored(omit_default=True))
    """Position in train at which this phase starts, if the trainer counts the samples of the whole
    run. The positions before it are not read.
    """
    eod_token: int | None = None
    """Id of the end-of-document token; required by `reset_position_ids`, `reset_attention_mask` and
    `eod_mask_loss`.
    """
    pad_token: int | None = None
    """Id of padding, which is masked from the loss, and is 0 in `tokens` and `labels` of samples
    (as in Megatron-LM); None is -1, which no dataset contains.
    """
    allow_ambiguous_pad_tokens: bool = False
    """Whether a pad_token is used even if it is also the eod_token (preset megatron). Core 0.11 to
    0.15 always use it.
    """
    reset_position_ids: bool = False
    """Whether positions restart after an end of document."""
    reset_attention_mask: bool = False
    """Whether attention stops at an end of document."""
    eod_mask_loss: bool = False
    """Whether end-of-document tokens are masked from the loss."""
    create_attention_mask: bool = False
    """Whether samples contain their attention mask, bool, shape (1, sequence_length,
    sequence_length).
    """
    inter_document_masking: bool = field(default=False, metadata=stored(omit_default=True))
    """Whether samples contain the borders of their documents (cu_seqlens, max_seqlen), and
    positions that restart in each document.
    """

    def __post_init__(self) -> None:
        """Check all settings, and convert them to types that cannot be changed afterwards.

        For example, a dictionary becomes a frozen one, and np.int64(2048) becomes 2048.

        Raises:
            ConfigError: A setting is impossible, or the trainer does not have it.
        """
        # Convert and check each setting alone. (This class is frozen, but `set_while_made` can set
        # its attributes here.)
        set_while_made(self, self._whole_numbers())
        set_while_made(self, self._booleans())
        set_while_made(self, {"surplus": self._plain_surplus()})  # a fraction
        set_while_made(self, self._plain_data())  # dictionaries, lists and paths

        # Check settings that depend on each other, or on the trainer. They are converted now.
        self._check_trainer_has_options()
        self._check_split()
        self._check_end_token()

    def _check_trainer_has_options(self) -> None:
        """Check that the trainer has the options that the user has set.

        For example, Megatron-LM always shuffles documents, so `shuffle_documents=False` is an error
        for it. Samples of nanotron are tokens alone, so `eod_mask_loss` is an error for it.

        Raises:
            ConfigError: The trainer is unknown, or does not have one of the options.
        """
        rules = get_preset(self.preset)  # of the trainer, such as "megatron"
        rules.check_options(
            add_extra_token=self.add_extra_token,
            shuffle_documents=self.shuffle_documents,
            surplus=self.surplus,
        )
        # `compensated_sums` means that the trainer runs in Python 3.12 or newer, which adds up
        # floats more exactly. Only some trainers add up floats so that it makes a difference.
        if self.compensated_sums:
            rules.check_depends_on_python("compensated_sums=True")
        self._check_has_masks([mask for mask in MASKS if getattr(self, mask)])

    def _check_split(self) -> None:
        """Check the setting `split`, the shares of train, valid and test, such as "969,30,1".

        With `blend_per_split`, each split has datasets of its own, and `split` is not used. So it
        may be anything that is a text, or None, which Megatron-LM demands in this case.

        Raises:
            ConfigError: It is not a text, or is used and does not consist of shares.
        """
        is_used = self.blend_per_split is None
        if not is_used and self.split is None:
            return
        _check_split_is_text(self.split)
        if is_used:
            self.shares()  # raises an error if the text does not consist of shares

    def _check_end_token(self) -> None:
        """Check that the id of the end-of-document token is known, if an option needs it.

        For example, `eod_mask_loss` hides this token from the loss, so the token must be found in
        samples.

        Raises:
            ConfigError: It is missing.
        """
        needs_eod = any(getattr(self, mask) for mask in END_MASKS)
        if needs_eod and self.eod_token is None:
            raise ConfigError(
                "the end-of-document token is not known",
                where="eod_token",
                expected="its id, since reset_position_ids, reset_attention_mask or eod_mask_loss "
                "is set",
            )

    @property
    def rules(self) -> Preset:
        """The rules of the trainer that `preset` names."""
        return get_preset(self.preset)

    def shares(self) -> tuple[float, float, float]:
        """Return which share of the data train, valid and test have.

        For example, the setting `split: "969,30,1"` means 0.969, 0.03 and 0.001: each number is
        divided by the sum of all.

        Returns:
            Three shares that add up to 1.

        Raises:
            ConfigError: The setting `split` is not the text of three shares.
        """
        if not self.rules.has_splits:
            return 1.0, 0.0, 0.0  # such trainers use all data for training
        return parse_split(
            self.split,
            exactly_three=self.rules.exactly_three_shares,
            # The last digit of the sum can decide which documents a split has. So compute it as the
            # trainer does: newer versions of Python correct the rounding in sums of floats.
            compensated=self.compensated_sums,
        )

    @property
    def step(self) -> int:
        """Tokens from the start of a sample to the start of the next one."""
        return self.sequence_length + int(self.rules.windows)

    @property
    def overlap(self) -> int:
        """Tokens that a sample shares with the next one: 1 or 0."""
        return self.sample_tokens - self.step

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, including the extra one."""
        return self.sequence_length + int(self.add_extra_token)

    @property
    def masked_pad_token(self) -> int | None:
        """`pad_token` if the trainer uses it, or None if it pads with -1."""
        if self.rules.pads == "never":
            return None
        is_ambiguous = self.pad_token == self.eod_token and not self.allow_ambiguous_pad_tokens
        if self.rules.pads == "unless eod" and is_ambiguous:
            return None
        return self.pad_token

    def samples_in(self, tokens: int, *, drop_last_partial: bool = True) -> int:
        """Return how many training samples a number of tokens gives.

        For example, samples have 10 tokens, and also the first token of the next one. So 21 tokens
        give 2 samples.

        Args:
            tokens: Tokens of all documents together, in one epoch.
            drop_last_partial: False counts a last sample that is short, too: 25 tokens give 3.
        """
        return sample_count(tokens, self.step, self.overlap, drop_last_partial=drop_last_partial)

    def samples(self, split: SplitName) -> int | None:
        """Return how many samples are requested of a split; None to read each sample once.

        Args:
            split: The split of the data: `train`, `valid` or `test`.

        Raises:
            ConfigError: There is no such split.
        """
        choice("split", split, SPLITS)
        if split == "train":
            return self.train_split_samples
        if split == "valid":
            return self.valid_split_samples
        return self.test_split_samples

    def with_samples(self, samples: Mapping[SplitName, int | None]) -> NanosetConfig:
        """Return a copy of these settings in which other numbers of samples are requested.

        Args:
            samples: Split of the data → its number of samples: {"train": 1000, "valid": 50}. A
                split that is None or missing is read once.

        Raises:
            ConfigError: There is no such split, or a number is impossible.
        """
        for split in samples:
            choice("split", split, SPLITS)
        return replace(
            self,
            train_split_samples=samples.get("train"),
            valid_split_samples=samples.get("valid"),
            test_split_samples=samples.get("test"),
        )

    def with_masks(self, masks: Collection[str], eod_token: int | None) -> NanosetConfig:
        """Return a copy of these settings in which certain options for masks are on, and others
        off.

        These options decide what samples contain besides tokens, such as positions that restart at
        the end of each document (`reset_position_ids`).

        Args:
            masks: Names of the options that are on, of those in `MASKS`: {"reset_position_ids"}.
            eod_token: Id of the token at the end of documents; None leaves it as it is.

        Raises:
            ConfigError: There is no such option, the trainer does not have it, or something that it
                needs is missing: another option, or the id of the token.
        """
        for name in masks:
            choice("masks", name, MASKS)
        self._check_has_masks(masks)
        check_masks(masks)

        options: dict[str, Any] = {name: name in masks for name in MASKS}  # True or False for each
        if eod_token is not None:
            options["eod_token"] = eod_token
        return replace(self, **options)

    def _check_has_masks(self, masks: Collection[str]) -> None:
        """Check that samples of this trainer can have some masks.

        In most cases, samples are dictionaries with tokens, labels and masks, to which any mask can
        be added, also one that the trainer itself does not have. Some trainers have samples of
        tokens alone, and compute masks themselves. So these can only have the masks that the
        trainer knows.

        Args:
            masks: Names of the options for masks, such as "reset_position_ids".

        Raises:
            ConfigError: The trainer does not know one of the masks, and its samples are tokens.
        """
        has_only_tokens = self.rules.sample_form in ("text", "input_ids")
        if not has_only_tokens:
            return
        unknown_masks = [mask for mask in masks if mask not in self.rules.masks]
        if unknown_masks:
            raise ConfigError(
                "samples of this trainer are tokens, without such masks",
                where=", ".join(unknown_masks),
                found=f"preset {self.preset}",
                expected=one_of(self.rules.masks, "none of the masks"),
                remedy="leave these options out, or use another preset",
            )

    def drops_last_partial(self, split: SplitName) -> bool:
        """Return whether a last sample with too few tokens is left out. Only `valid` may keep it.

        Args:
            split: The split of the data: `train`, `valid` or `test`.

        Raises:
            ConfigError: There is no such split.
        """
        choice("split", split, SPLITS)
        return split != "valid" or self.drop_last_partial_validation_sequence

    def blend(self, split: SplitName) -> tuple[list[str], list[float] | None] | None:
        """Return the datasets that training reads in a split, and their weights.

        The user can write them in three ways:

            "data/web"                            (["data/web"], None)
            ["data/web", "data/books"]            (["data/web", "data/books"], None)
            {"data/web": 3, "data/books": 1}      (["data/web", "data/books"], [3.0, 1.0])

        A dataset is named by its path without .bin and .idx.

        Args:
            split: The split of the data: train, valid or test. Each may have its own datasets.

        Returns:
            Paths and weights, as in the second column. None if the split has no data.

        Raises:
            ConfigError: There is no such split.
        """
        choice("split", split, SPLITS)
        data = self.data_path
        if self.blend_per_split is not None:
            data = self.blend_per_split[SPLITS.index(split)]

        if data is None:
            return None
        if isinstance(data, str | os.PathLike):
            return [os.fspath(data)], None
        if isinstance(data, Mapping):
            return list(data), list(data.values())
        return list(data), None

    def trainer_path(self, prefix: str) -> str:
        """Return the path of a dataset on the machine that trains, where it may be another one.

        Args:
            prefix: Path of the dataset here, without .bin and .idx.

        Returns:
            The path in `trainer_paths`, or `prefix` itself.
        """
        return self.trainer_paths.get(prefix, prefix)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as plain values, which `from_json` reads.

        Returns:
            Name of an option → value, of types that JSON has.
        """
        return to_plain(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NanosetConfig:
        """Return a configuration from the values that `to_json` returned.

        Args:
            values: Name of an option → value.

        Raises:
            ValueError: An option is unknown or missing, or has an impossible value.
        """
        return from_plain(cls, values)

    def _whole_numbers(self) -> dict[str, int]:
        """Convert the options that are whole numbers to plain integers.

        A user may pass integers of numpy. Trainers write these numbers into a text and name their
        files by its hash, and numpy would print 2048 as `np.int64(2048)` there.

        Returns:
            Name of the option → number: {"sequence_length": 2048, "random_seed": 1234}. Options
            that are None are left out.

        Raises:
            ConfigError: An option is not an integer, or out of range.
        """
        ranges = {
            "sequence_length": (1, 2**31 - 2),
            "random_seed": (0, 2**32 - 1),
            "consumed_samples": (0, 2**62),
        }
        for split in SPLITS:
            if self.samples(split) is not None:
                ranges[f"{split}_split_samples"] = (0, 2**62)

        numbers = {}
        for name, (minimum, maximum) in ranges.items():
            numbers[name] = whole_number(name, getattr(self, name), minimum, maximum)
        if self.eod_token is not None:
            numbers["eod_token"] = token_id("eod_token", self.eod_token)
        if self.pad_token is not None:
            numbers["pad_token"] = _pad_token(self.pad_token)
        return numbers

    def _booleans(self) -> dict[str, bool]:
        """Convert the options that are on or off to plain booleans.

        Returns:
            Name of the option → value: {"add_extra_token": True, "eod_mask_loss": False, …}.

        Raises:
            ConfigError: An option is something else, such as the text "no".
        """
        return {name: boolean(name, getattr(self, name)) for name in _SWITCHES}

    def _plain_surplus(self) -> float:
        """Return `surplus`, the share of samples that are built but not needed, as a plain number.

        For example, 0.005 builds 1,005 samples of a dataset of which 1,000 are needed.

        Raises:
            ConfigError: It is negative, infinite or not a number.
        """
        if not _is_number(self.surplus) or not 0 <= self.surplus < math.inf:
            raise ConfigError(
                "this share is impossible",
                where="surplus",
                found=repr(self.surplus),
                expected="a number, 0 or more",
            )
        # JSON, in which plans store the configuration, has no numbers of numpy.
        if isinstance(self.surplus, np.generic):
            return float(self.surplus)
        return self.surplus

    def _plain_data(self) -> dict[str, Any]:
        """Copy the settings that are dictionaries, lists or paths, so that nobody can change them.

        For example, a caller passes a dictionary of datasets and their weights, and later changes
        it. That must not change this object. So

            {Path("data/web"): 3}    becomes    FrozenDict({"data/web": 3.0})

        Returns:
            Name of each such setting → its copy.

        Raises:
            ConfigError: `data_path` and `blend_per_split` are both given or both missing, one of
                them does not name datasets, or another setting has a wrong type.
        """
        self._check_one_kind_of_data()
        values: dict[str, Any] = {}
        if self.data_path is not None:
            values["data_path"] = _plain_blend("data_path", self.data_path)
        if self.blend_per_split is not None:
            values["blend_per_split"] = _plain_blends(self.blend_per_split)
        if self.path_to_cache is not None:
            values["path_to_cache"] = _plain_folder("path_to_cache", self.path_to_cache)
        values["trainer_paths"] = _plain_paths(self.trainer_paths)
        values["orders"] = _plain_orders(self.orders)
        identifiers = _plain_mapping("tokenizer_identifiers", self.tokenizer_identifiers)
        values["tokenizer_identifiers"] = freeze(identifiers)  # may be nested
        return values

    def _check_one_kind_of_data(self) -> None:
        """Check that the user has named the datasets either once for all splits, or for each split.

            data_path           the same datasets for train, valid and test
            blend_per_split     other datasets for each of them

        Raises:
            ConfigError: Both settings are given, or neither.
        """
        has_data_path = self.data_path is not None
        has_blend_per_split = self.blend_per_split is not None
        if has_data_path == has_blend_per_split:
            raise ConfigError(
                "give data_path or blend_per_split",
                where="data_path",
                found="both" if has_data_path else "neither",
            )


def _pad_token(value: Any) -> int:
    """Convert the id of the padding token to a plain integer, or refuse it.

    -1 is allowed: it means the same as None, and SentencePiece gives it for a model without a
    padding token.

    Raises:
        ConfigError: The value is not an integer, or tokens cannot have it.
    """
    if plain_integer(value) == _NO_TOKEN:
        return _NO_TOKEN
    return token_id("pad_token", value)


def _check_split_is_text(split: Any) -> None:
    """Check that the shares of train, valid and test are a text, and not a list of numbers.

    Raises:
        ConfigError: They are not a text.
    """
    if not isinstance(split, str):
        raise ConfigError(
            "the shares of train, valid and test are a text",
            where="split",
            found=repr(split),
            expected='a text, such as "98,1,1"',
        )


def check_masks(masks: Collection[str]) -> None:
    """Check that no option for masks is set that has no effect without another one.

    `reset_attention_mask` says that attention stops at the end of a document. It changes the
    attention mask of a sample. So samples must have one, which is another option,
    `create_attention_mask`.

    Args:
        masks: Names of the options that are set.

    Raises:
        ConfigError: The first one is set without the second.
    """
    if "reset_attention_mask" in masks and "create_attention_mask" not in masks:
        raise ConfigError(
            "samples have no attention mask that could be reset at ends of documents",
            where="reset_attention_mask",
            remedy="set create_attention_mask too",
        )


def _plain_path(where: str, path: Any) -> str:
    """Return a path as a string.

    Args:
        where: The setting, for the message.
        path: The path as the user has given it, which may be of any type.

    Raises:
        ConfigError: It is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("not a path", where=where, found=repr(path), expected="a path")
    return str(os.fspath(path))


def _plain_folder(where: str, path: Any) -> str:
    """Return the path of a folder as a string, with the home folder in place of `~`.

    Args:
        where: The setting, for the message.
        path: The path, or an address such as s3://bucket/cache, which is not changed.

    Raises:
        ConfigError: It is not a path, or there is no such user.
    """
    text = _plain_path(where, path)
    return str(expanded(text, where)) if text.startswith("~") else text


def _plain_mapping(where: str, mapping: Any) -> dict[Any, Any]:
    """Return a setting that is a mapping as a dictionary.

    Args:
        where: The setting, for the message.
        mapping: What the user has given, which may be of any type.

    Raises:
        ConfigError: It is not a mapping.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            "not a dictionary",
            where=where,
            found=repr(mapping),
            expected="a dictionary, which may be empty",
        )
    return dict(mapping)


def _plain_paths(trainer_paths: Any) -> FrozenDict[str, str]:
    """Return prefix → path as a mapping of strings that cannot be changed.

    Raises:
        ConfigError: It is not a mapping, or something in it is not a path.
    """
    paths: dict[str, str] = {}
    for prefix, path in _plain_mapping("trainer_paths", trainer_paths).items():
        plain_prefix = _plain_path("trainer_paths", prefix)
        paths[plain_prefix] = _plain_path(f"trainer_paths, {plain_prefix}", path)
    return FrozenDict(paths)


def _plain_orders(orders: Any) -> FrozenDict[str, Order]:
    """Check and copy the setting `orders`, so that nobody can change it.

    It says how a training run read its datasets before it changed their weights.

    Args:
        orders: What the user has given: path of each dataset → `Order`.

    Raises:
        ConfigError: It is not a mapping, or something in it is not an `Order`.
    """
    order_by_prefix = _plain_mapping("orders", orders)
    for prefix, order in order_by_prefix.items():
        if not isinstance(order, Order):
            raise ConfigError(
                "not the order of a dataset",
                where=f"orders, {prefix}",
                found=repr(order),
                expected="an Order of nanoset_core.sampling.config",
            )
    return FrozenDict(order_by_prefix)


def _plain_blends(blend_per_split: Sequence[Blend | None]) -> tuple[PlainBlend | None, ...]:
    """Copy the datasets of train, valid and test, so that nobody can change them.

    For example, [{Path("data/web"): 3}, "data/held_out", None] becomes
    (FrozenDict({"data/web": 3.0}), "data/held_out", None): test has no data.

    Args:
        blend_per_split: The datasets as the user has given them.

    Raises:
        ConfigError: There are not three entries, none has data, or one does not name datasets.
    """
    blends = list(blend_per_split)
    has_data = any(blend is not None for blend in blends)
    if len(blends) != len(SPLITS) or not has_data:
        raise ConfigError(
            "not a blend per split",
            where="blend_per_split",
            found=blends,
            expected="three entries, for train, valid and test; None for a split without data",
        )
    plain_blends: list[Any] = []
    for split, blend in zip(SPLITS, blends, strict=True):
        if blend:
            plain_blends.append(_plain_blend(f"blend_per_split, {split}", blend))
        else:
            plain_blends.append(blend)
    return tuple(plain_blends)


def _plain_blend(where: str, blend: Blend) -> PlainBlend:
    """Copy the datasets and weights that the user has given, so that nobody can change them.

    A dataset is named by its path without .bin and .idx. There are three forms:

        Path("data/web")                      "data/web"
        ["data/web", "data/books"]            ("data/web", "data/books")
        {"data/web": 3, "data/books": 1}      FrozenDict({"data/web": 3.0, "data/books": 1.0})

    Args:
        where: Name of the setting, for messages.
        blend: One of these forms.

    Raises:
        ConfigError: It is none of these, or a weight is not a number above 0.
    """
    prefixes = _prefixes_in(blend)
    if not prefixes or not all(_is_prefix(prefix) for prefix in prefixes):
        raise ConfigError(
            "not a blend",
            where=where,
            found=repr(blend),
            expected="a prefix, {prefix: weight}, or a list of prefixes, not empty",
        )
    paths = [str(os.fspath(prefix)) for prefix in prefixes]

    if isinstance(blend, str | os.PathLike):
        return paths[0]
    if isinstance(blend, Mapping):
        weights = {}
        for path, weight in zip(paths, blend.values(), strict=True):
            weights[path] = _plain_weight(f"{where}, {path}", weight)
        return FrozenDict(weights)
    return tuple(paths)


def _prefixes_in(blend: object) -> list[Any]:
    """Return what stands for prefixes in a setting; nothing if it cannot be a blend."""
    if isinstance(blend, str | os.PathLike):
        return [blend]
    if isinstance(blend, Mapping | Sequence):
        return list(blend)
    return []


def _plain_weight(where: str, weight: Any) -> float:
    """Return the weight of a dataset as a float, such as 3.0 for 3.

    Args:
        where: The setting, for the message.
        weight: The weight as the user has given it, which may be of any type.

    Raises:
        ConfigError: It is not a number above 0.
    """
    if not _is_number(weight) or not 0 < weight < math.inf:
        raise ConfigError(
            "a weight must be a number above 0",
            where=where,
            found=repr(weight),
            remedy="leave out a dataset that is not to be used",
        )
    return float(weight)


def _is_number(value: object) -> bool:
    """Return whether a value is a number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_prefix(value: object) -> bool:
    """Return whether a value is a path that is not empty."""
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))

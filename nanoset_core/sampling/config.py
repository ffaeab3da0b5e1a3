"""The configuration of a nanoset, which planning, caches and readers share."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from numbers import Real
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.records.parsing import FrozenDict, freeze
from nanoset_core.sampling.presets import Preset, get_preset
from nanoset_core.sampling.splits import SPLITS, Rows, SplitName, parse_split, sample_count

Blend = str | os.PathLike[str] | Mapping[str, float] | Sequence[str]
"""One dataset; datasets with weights; or datasets without weights."""
DEFAULT_SEED = 1234
"""Seed of every shuffle that is not given another; Megatron-LM's --seed."""
DEFAULT_SPLIT = "969,30,1"
"""Shares of train, valid and test; Megatron-LM's --split."""

DOCUMENTS = "inter_document_masking"
MASKS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask", DOCUMENTS)
"""Options that concern samples alone, and no index file."""
END_MASKS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
"""Those that look for end-of-document tokens."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a dataset was read by the phases of a run before this one."""

    taken: int
    """Samples that they took of it."""
    rows: Rows
    """Sequences of the split, (begin, end excl)."""
    epochs: int
    """Epochs of the order that the first of them had, which is the trainer's own."""
    separate_last_epoch: bool
    """Whether the last of these was shuffled apart from the others."""


@dataclass(frozen=True, slots=True)
class NanosetConfig:
    """Data, split, size and seed of a nanoset, as the trainer of `preset` understands them.

    Raises:
        ConfigError: a value is impossible, or the preset has no such option.
    """

    data_path: Blend | None = None
    """Prefix of one dataset, or {prefix: weight}, or [prefix, …]; None with `blend_per_split`."""
    _: KW_ONLY
    sequence_length: int
    """Tokens of a sample, without the extra one."""
    random_seed: int = DEFAULT_SEED
    """Seed of every shuffle, 0 to 2**32 - 1."""
    blend_per_split: Sequence[Blend | None] | None = None
    """Data of train, valid and test, each like `data_path` or None; instead of `data_path` and `split`."""
    split: str = DEFAULT_SPLIT
    """Shares of train, valid and test in the sequences of every dataset; nanotron's main has train alone."""
    train_split_samples: int | None = None
    """Samples of train to have at least; None is one epoch."""
    valid_split_samples: int | None = None
    """Samples of valid to have at least; None is one epoch."""
    test_split_samples: int | None = None
    """Samples of test to have at least; None is one epoch."""
    path_to_cache: str | None = None
    """Folder of the index files; None is the trainer's own place beside the data."""
    preset: str = "megatron"
    """Whose rules, names and samples."""
    tokenizer_identifiers: Mapping[str, Any] = field(default_factory=dict)
    """What the trainer's tokenizer gives as its unique identifiers; goes into descriptions and hashes as it is."""
    add_extra_token: bool = True
    """Whether a sample has sequence_length + 1 tokens."""
    drop_last_partial_validation_sequence: bool = True
    """Whether valid leaves out its last, short sample."""
    surplus: float = 0.005
    """Share of samples that the datasets of a weighted blend get on top of what the blend plans to take."""
    trainer_paths: Mapping[str, str] = field(default_factory=dict)
    """Prefix → path as the trainer will be given it, which goes into descriptions and hashes; default the prefix."""
    shuffle_documents: bool = True
    """False keeps the order of documents, where the trainer can (preset nemo)."""
    compensated_sums: bool = False
    """Whether the trainer's Python is 3.12 or newer, so that shares are divided by its compensated sum (nemo)."""
    orders: Mapping[str, Order] = field(default_factory=dict)
    """Prefix → how a run that goes on has read a dataset of train before; none where it begins."""
    consumed_samples: int = 0
    """Position of train at which such a run goes on: the trainer asks for the samples of the whole run."""
    eod_token: int | None = None
    """Id of the end-of-document token; needed by the three options that look for it."""
    pad_token: int | None = None
    """Id that fills short samples and is masked from the loss; None is -1, which no dataset holds."""
    allow_ambiguous_pad_tokens: bool = False
    """Whether a pad_token that is also the eod_token counts (preset megatron; core 0.11 to 0.15 always count it)."""
    reset_position_ids: bool = False
    """Whether positions begin again after an end of document."""
    reset_attention_mask: bool = False
    """Whether attention stops at an end of document."""
    eod_mask_loss: bool = False
    """Whether the loss leaves out end-of-document tokens."""
    create_attention_mask: bool = False
    """Whether samples carry their attention mask, bool, shape (1, sequence_length, sequence_length)."""
    inter_document_masking: bool = False
    """Whether samples tell where documents begin (cu_seqlens, max_seqlen), with positions of each document."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._set_data()
        rules = get_preset(self.preset)
        rules.check_options(
            add_extra_token=self.add_extra_token, shuffle_documents=self.shuffle_documents, surplus=self.surplus
        )
        if self.compensated_sums and not rules.sums_by_python:
            rules.compensates("3.12")  # says that the trainer does not
        if self.blend_per_split is None:
            self.shares()
        needs_eod = any(getattr(self, mask) for mask in END_MASKS)
        if needs_eod and self.eod_token is None:
            expected = "its id, since reset_position_ids, reset_attention_mask or eod_mask_loss is set"
            raise ConfigError("the end-of-document token is not known", where="eod_token", expected=expected)

    @property
    def rules(self) -> Preset:
        """The preset itself."""
        return get_preset(self.preset)

    def shares(self) -> tuple[float, float, float]:
        """Return the shares of train, valid and test, as the trainer does; ConfigError where `split` holds none."""
        rules = self.rules
        if rules.windows:
            return 1.0, 0.0, 0.0
        return parse_split(self.split, exactly_three=rules.exactly_three_shares, compensated=self.compensated_sums)

    @property
    def step(self) -> int:
        """Tokens from the begin of a sample to that of the next."""
        return self.sequence_length + int(self.rules.windows)

    @property
    def overlap(self) -> int:
        """Tokens that a sample shares with the next: 1 or 0."""
        return self.sample_tokens - self.step

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, the extra one included."""
        return self.sequence_length + int(self.add_extra_token)

    @property
    def masked_pad_token(self) -> int | None:
        """`pad_token` where the trainer uses it; None where it pads with -1, whatever the tokenizer says."""
        ambiguous = self.pad_token == self.eod_token and not self.allow_ambiguous_pad_tokens
        if self.rules.pads == "never" or (self.rules.pads == "unless eod" and ambiguous):
            return None
        return self.pad_token

    def samples_in(self, tokens: int, *, drop_last_partial: bool = True) -> int:
        """Return how many samples a number of tokens gives; see `sample_count`."""
        return sample_count(tokens, self.step, self.overlap, drop_last_partial=drop_last_partial)

    def samples(self, split: SplitName) -> int | None:
        """Return the samples asked for, or None."""
        return (self.train_split_samples, self.valid_split_samples, self.test_split_samples)[SPLITS.index(split)]

    def with_samples(self, samples: Mapping[SplitName, int | None]) -> NanosetConfig:
        """Return a copy with other numbers of samples, and one epoch of each split that is not named."""
        counts: dict[str, Any] = {f"{split}_split_samples": samples.get(split) for split in SPLITS}
        return replace(self, **counts)

    def with_masks(self, masks: Collection[str], eod_token: int | None) -> NanosetConfig:
        """Return a copy with just these of `MASKS` set; ConfigError where the preset or the token allows none."""
        if not set(masks) <= set(self.rules.masks) and self.rules.sample_form in ("text", "input_ids"):
            raise ConfigError(
                "samples of this trainer are tokens, without such masks",
                where=", ".join(masks),
                found=f"preset {self.preset}",
                remedy="leave these options out, or use another preset",
            )
        check_masks(masks)
        chosen: dict[str, Any] = {mask: mask in masks for mask in MASKS}
        return replace(self, eod_token=self.eod_token if eod_token is None else eod_token, **chosen)

    def drops_last_partial(self, split: SplitName) -> bool:
        """Return whether the split leaves out its last, short sample."""
        return split != "valid" or self.drop_last_partial_validation_sequence

    def blend(self, split: SplitName) -> tuple[list[str], list[float] | None] | None:
        """Return (prefixes, weights or None) of the split's data; None where it has none of its own."""
        data = self.data_path if self.blend_per_split is None else self.blend_per_split[SPLITS.index(split)]
        if data is None:
            return None
        if isinstance(data, str | os.PathLike):
            return [os.fspath(data)], None
        if isinstance(data, Mapping):
            return list(data), list(data.values())
        return list(data), None

    def trainer_path(self, prefix: str) -> str:
        """Return the prefix as the trainer spells it."""
        return self.trainer_paths.get(prefix, prefix)

    def to_json(self) -> dict[str, Any]:
        """Return plain types, for `from_json`."""
        values = asdict(self)
        optional = ("compensated_sums", "orders", "consumed_samples", DOCUMENTS)
        return {name: value for name, value in values.items() if name not in optional or value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NanosetConfig:
        """Return the configuration of `to_json`."""
        return cls(**values)

    def _check_numbers(self) -> None:
        """Make numbers plain integers (numpy's would not go into a description), within their ranges."""
        asked = {f"{split}_split_samples": (0, 2**62) for split in SPLITS if self.samples(split) is not None}
        ranges = {"sequence_length": (1, 2**31 - 2), "random_seed": (0, 2**32 - 1), **asked}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
            if number is None or not low <= number <= high:
                raise ConfigError(
                    "not a whole number in range", where=name, found=repr(value), expected=f"{low} to {high}"
                )
            object.__setattr__(self, name, number)
        if not 0 <= self.surplus < math.inf:
            raise ConfigError("this share is impossible", where="surplus", found=self.surplus, expected="0 or more")

    def _set_data(self) -> None:
        if (self.data_path is None) == (self.blend_per_split is None):
            found = "neither" if self.data_path is None else "both"
            raise ConfigError("give data_path or blend_per_split", where="data_path", found=found)
        if self.data_path is not None:
            object.__setattr__(self, "data_path", _plain_blend("data_path", self.data_path))
        if self.blend_per_split is not None:
            blends = list(self.blend_per_split)
            if len(blends) != len(SPLITS) or blends == [None] * len(SPLITS):
                expected = "three entries, for train, valid and test, None where a split has no data"
                raise ConfigError("not a blend per split", where="blend_per_split", found=blends, expected=expected)
            named = zip(SPLITS, blends, strict=True)
            plain = (blend and _plain_blend(f"blend_per_split, {split}", blend) for split, blend in named)
            object.__setattr__(self, "blend_per_split", tuple(plain))
        paths = {os.fspath(prefix): str(path) for prefix, path in self.trainer_paths.items()}
        object.__setattr__(self, "trainer_paths", FrozenDict(paths))
        orders = {prefix: order if isinstance(order, Order) else _order(order) for prefix, order in self.orders.items()}
        object.__setattr__(self, "orders", FrozenDict(orders))
        object.__setattr__(self, "tokenizer_identifiers", freeze(dict(self.tokenizer_identifiers)))


def _order(values: Mapping[str, Any]) -> Order:
    return Order(**{**values, "rows": tuple(values["rows"])})


def check_masks(masks: Collection[str]) -> None:
    """Raise ConfigError for a mask option that would have no effect without another."""
    if "reset_attention_mask" in masks and "create_attention_mask" not in masks:
        what = "samples without an attention mask have none to stop at an end of document"
        raise ConfigError(what, where="reset_attention_mask", remedy="set create_attention_mask too")


def _plain_blend(where: str, blend: Blend) -> str | FrozenDict[str, float] | tuple[str, ...]:
    single = isinstance(blend, str | os.PathLike)
    prefixes: list[Any] = [blend] if single else list(blend) if isinstance(blend, Mapping | Sequence) else []
    if not prefixes or not all(isinstance(prefix, str | os.PathLike) and os.fspath(prefix) for prefix in prefixes):
        expected = "a prefix, {prefix: weight}, or a list of prefixes, not empty"
        raise ConfigError("not a blend", where=where, found=repr(blend), expected=expected)
    names = [str(os.fspath(prefix)) for prefix in prefixes]
    if not isinstance(blend, Mapping):
        return names[0] if single else tuple(names)
    for name, weight in zip(names, blend.values(), strict=True):
        number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not number or not 0 < weight < math.inf:
            what, remedy = "a weight must be a number above 0", "leave out a dataset that is not to be used"
            raise ConfigError(what, where=f"{where}, {name}", found=repr(weight), remedy=remedy)
    return FrozenDict(zip(names, map(float, blend.values()), strict=True))

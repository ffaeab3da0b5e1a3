"""The settings of a shuffle plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nanoset_core.config.webdataset import DEFAULT_SHARD_SIZE, DEFAULT_SHUFFLE_SEED, MemberKind, ShufflePreset
from nanoset_core.errors import ConfigError
from nanoset_core.shuffling.order import check_seed
from nanoset_core.shuffling.sampling import check_frequency

Tail = Literal["drop", "pad", "carry", "pad_always"]
"""What becomes of the tokens after a stream's last full row; `pad_always` is the preset tokshuf's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides a plan beside the sources; every value is checked here."""

    sequence_length: int
    """Tokens in a context, the BOS included: 2049 for a model that trains on 2048."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a shard; the last one may hold fewer."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Of the global order and of the choice of contexts, 64 bits."""
    member: MemberKind = "json.gz"
    """Form of a context in a tar."""
    tail: Tail = "drop"
    """What becomes of the tokens after a stream's last full row.

    `drop`; `pad`; `carry` (the row goes on with the next source's first tokens, so that only the very last one is
    dropped); `pad_always` (pad, and a stream without a rest gets a row of padding alone, as in tokshuf-rust).
    """
    pad_id: int | None = None
    """The pad token, with the tails that pad and only with them."""
    bos_id: int | None = None
    """Token in front of every context, as the first of its `sequence_length`; None = none."""
    eod: int | None = None
    """The token that ends documents, recorded for readers; nothing is added to the streams."""
    vocab_size: int | None = None
    """Where given, `pad_id`, `bos_id` and `eod` must lie below it."""
    streams: Mapping[str, Sequence[int]] | None = None
    """Source → tokens of each stream that it consists of, such as its files, to cut them on their own."""
    frequencies: Mapping[str, float] | None = None
    """Source → how often each of its contexts occurs: 1 where absent, 0.5 half of them, 2 each twice."""
    weights: Mapping[str, float] | None = None
    """Source → share of the contexts, instead of frequencies; sources without a weight are left out."""
    contexts: int | None = None
    """With weights, how many contexts in all; None = as many as repeat no source."""
    even: bool = False
    """Equal shards of at most `samples_per_shard`: fewer contexts than there are shards are left out."""
    preset: ShufflePreset = "default"
    """Whose set of contexts this is, recorded for readers."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, choices in (("member", MemberKind), ("tail", Tail), ("preset", ShufflePreset)):
            _check_choice(name, getattr(self, name), choices)
        for name, least in (("sequence_length", 1 + (self.bos_id is not None)), ("samples_per_shard", 1)):
            if getattr(self, name) < least:
                found = getattr(self, name)
                what, remedy = "the number is too small", "give a greater number"
                raise ConfigError(what, where=name, found=found, expected=f"at least {least}", remedy=remedy)
        if (self.tail in ("pad", "pad_always")) != (self.pad_id is not None):
            found = f"tail {self.tail!r}, pad_id {self.pad_id}"
            what = "a pad token goes with the tails that pad, and only with them"
            remedy = "give pad_id with tail='pad', or neither"
            raise ConfigError(what, where="pad_id", found=found, expected="both or neither", remedy=remedy)
        if self.streams and self.tail == "carry":
            found = f"streams of {', '.join(self.streams)}"
            what = "tail 'carry' joins sources, which streams cut apart"
            remedy = "leave the streams out, or use another tail"
            raise ConfigError(what, where="tail", found=found, expected="sources of one stream each", remedy=remedy)
        for name, frequency in (self.frequencies or {}).items():
            check_frequency(name, frequency, "frequencies")
        if self.weights is not None and (self.frequencies is not None or min(self.weights.values(), default=0) <= 0):
            found = f"{dict(self.weights)}" + (" beside frequencies" if self.frequencies is not None else "")
            expected = "numbers above 0, and no frequencies"
            what = "these weights are not valid"
            remedy = "leave out unwanted sources, and give weights or frequencies alone"
            raise ConfigError(what, where="weights", found=found, expected=expected, remedy=remedy)

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        return self.sequence_length - (self.bos_id is not None)


def _check_choice(where: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        expected, remedy = " or ".join(map(repr, get_args(choices))), "choose one of these"
        raise ConfigError(f"no such {where}", where=where, found=repr(value), expected=expected, remedy=remedy)

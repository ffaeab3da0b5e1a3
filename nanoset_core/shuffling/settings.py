"""What a shuffle is asked for: the settings of a plan, and those of a call of `nanoset shuffle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from nanoset_core.config.webdataset import (
    DEFAULT_SHARD_SIZE,
    DEFAULT_SHUFFLE_SEED,
    ContextTail,
    MemberKind,
    ShuffleEngine,
    ShufflePreset,
)
from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import available_processors
from nanoset_core.raw.rejects import (
    MAX_REJECTED_FRACTION,
    MAX_UNREADABLE_FRACTION,
    OnReject,
    RejectedFraction,
    UnreadableFraction,
)
from nanoset_core.shuffling.order import check_seed
from nanoset_core.shuffling.sampling import check_frequency

if TYPE_CHECKING:  # it would load the engines for whoever reads a shard
    from nanoset_core.tokenization.bpe import EngineName
    from nanoset_core.tokenization.files import TokenizerPath

Tail = Literal["drop", "pad", "carry", "pad_always"]
"""What becomes of the tokens after a stream's last full row; `pad_always` is the preset tokshuf's."""
InputKind = Literal["text", "datasets", "tars"]
"""What `nanoset shuffle` reads."""


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
        _check_choice("kind of member", "member", self.member, MemberKind)
        _check_choice("rule for tails", "tail", self.tail, Tail)
        _check_choice("preset", "preset", self.preset, ShufflePreset)
        _check_least("a context needs at least one token", "sequence_length", self.sequence_length, 1 + self.has_bos)
        _check_least("a shard needs at least one context", "samples_per_shard", self.samples_per_shard, 1)
        if (self.tail in ("pad", "pad_always")) != (self.pad_id is not None):
            raise ConfigError(
                "a pad token goes with the tails that pad, and only with them",
                where="pad_id",
                found=f"tail {self.tail!r}, pad_id {self.pad_id}",
                expected="both or neither",
                remedy="give the tokenizer's pad token with tail='pad', or leave pad_id out with tail='drop'",
            )
        if self.streams and self.tail == "carry":
            raise ConfigError(
                "tail 'carry' joins sources, which streams cut apart",
                where="tail",
                found=f"streams of {', '.join(self.streams)}",
                expected="sources of one stream each",
                remedy="leave the streams out, or use another tail",
            )
        for name, frequency in (self.frequencies or {}).items():
            check_frequency(name, frequency, "frequencies")
        if self.weights is not None and (self.frequencies is not None or min(self.weights.values(), default=0) <= 0):
            raise ConfigError(
                "these weights are not valid",
                where="weights",
                found=f"{dict(self.weights)}" + (" beside frequencies" if self.frequencies is not None else ""),
                expected="numbers above 0, and no frequencies",
                remedy="leave out the sources that are not wanted, and either the weights or the frequencies",
            )

    @property
    def has_bos(self) -> bool:
        """Whether a token in front of every context takes the place of one of the stream's."""
        return self.bos_id is not None

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        return self.sequence_length - self.has_bos


def _check_choice(what: str, where: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigError(
            f"no such {what}",
            where=where,
            found=repr(value),
            expected=" or ".join(map(repr, get_args(choices))),
            remedy="choose one of these",
        )


def _check_least(what: str, where: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(
            what, where=where, found=value, expected=f"at least {least}", remedy=f"set it to {least} or more"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOptions:
    """The settings of one call of `nanoset shuffle`; those that reach the bytes first, and by name its digest."""

    sequence_length: int | None = None
    """Tokens in a context; None = 2049, or that of the tars."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a tar."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Of the order."""
    member: MemberKind = "json.gz"
    """Form of a context."""
    preset: ShufflePreset = "default"
    """Whose set of contexts: that of tokshuf-rust, or our own."""
    tail: ContextTail = "drop"
    """What becomes of the last, short context: drop, pad or carry."""
    even: bool = False
    """Equal shards."""
    tokenizer: TokenizerPath | None = None
    """Its file; needed for text, and to pad."""
    eod: str | None = None
    """Text of the token that ends documents."""
    bos: str | None = None
    """Text of a token that begins documents."""
    context_bos: str | None = None
    """Text of a token that begins contexts."""
    pad: str | None = None
    """Text of the token that pads."""
    text_key: str = "text"
    """Key of the text in each line."""
    data_key: str | None = None
    """Extension of the members to take from tars."""
    max_rejected_fraction: RejectedFraction = MAX_REJECTED_FRACTION
    """Share of lines above which nothing is written."""
    max_unreadable_fraction: UnreadableFraction = MAX_UNREADABLE_FRACTION
    """Share of the stored bytes, in files that cannot be read to their end, above which nothing is written."""
    on_reject: OnReject = "quarantine"
    """What a line that is no document does: quarantine or fail."""
    tokenizer_engine: EngineName = "auto"
    """How text is encoded: auto, numpy, tokenizers or gigatoken; does not change the tars."""
    engine: ShuffleEngine = "auto"
    """How shards are written: auto, mmap, tiled or buckets; does not change the tars."""
    memory_bytes: int | None = None
    """Memory for writing, all workers together; does not change the tars."""
    workers: int | None = None
    """Processes; does not change the tars."""

    @property
    def processes(self) -> int:
        """Worker processes."""
        return self.workers or available_processors()

    def require_tokenizer(self) -> TokenizerPath:
        """The tokenizer of text.

        Raises:
            ConfigError: none is named.
        """
        if self.tokenizer is None:
            raise ConfigError(
                "text needs a tokenizer", where="--tokenizer", remedy="name a tokenizer.json, or its folder"
            )
        return self.tokenizer

    def check(self, kind: InputKind) -> None:
        """Check what the options cannot say of themselves: which go together, and which with this kind of input.

        Raises:
            ConfigError: two of them exclude each other, or one needs another.
        """
        if kind == "text":
            self.require_tokenizer()
        if self.tail == "pad" and (self.pad is None or self.tokenizer is None):
            raise ConfigError(
                "padding needs a pad token",
                where="--tail pad",
                expected='--tokenizer and --pad "<|padding|>"',
                remedy="name it, or use --tail drop",
            )
        if self.preset == "tokshuf" and (kind != "text" or self.tail != "drop" or self.context_bos):
            raise ConfigError(
                "the preset tokshuf cuts each file of text on its own and pads it",
                where="--preset",
                found=f"input {kind}, tail {self.tail}",
                expected="files of text, and neither --tail nor --context-bos",
                remedy="leave them out, or use the default preset",
            )
        if kind == "tars" and (self.tail != "drop" or self.context_bos):
            raise ConfigError(
                "the contexts of tars stay as they are",
                where="--input",
                found=f"tail {self.tail}" + (", --context-bos" if self.context_bos else ""),
                expected="neither --tail nor --context-bos",
                remedy="leave them out",
            )
        if self.context_bos and self.tokenizer is None:
            raise ConfigError("a token needs its tokenizer", where="--context-bos", remedy="name it with --tokenizer")

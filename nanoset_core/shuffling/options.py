"""The settings of one call of `nanoset shuffle`, and those of tokenizing and planning that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nanoset_core.config.webdataset import (
    DEFAULT_LENGTH,
    DEFAULT_SHARD_SIZE,
    DEFAULT_SHUFFLE_SEED,
    ContextTail,
    MemberKind,
    ShuffleEngine,
    ShufflePreset,
)
from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import available_processors
from nanoset_core.raw.rejects import RejectOptions
from nanoset_core.shuffling import tokshuf
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.tokenization.bpe import EngineName
from nanoset_core.tokenization.files import TokenizerPath
from nanoset_core.tokenization.preprocess import PreprocessOptions
from nanoset_core.tokenization.tokenizer import token_id, tokenizer_facts

InputKind = Literal["text", "datasets", "tars"]
"""What `nanoset shuffle` reads."""
NON_RECIPE_OPTIONS = ("tokenizer_engine", "engine", "memory_bytes", "workers", *RejectOptions.__slots__)
"""Options that do not change the tars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOptions(RejectOptions):
    """The settings of one call; the names of those that change the tars are part of its digest."""

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

    def check(self, kind: InputKind) -> None:
        """Check which options go together, and with this kind of input.

        Raises:
            ConfigError: two of them exclude each other, or one needs another.
        """
        if kind == "text":
            self.require_tokenizer()
        if self.tail == "pad" and (self.pad is None or self.tokenizer is None):
            expected, remedy = '--tokenizer and --pad "<|padding|>"', "name both, or use --tail drop"
            raise ConfigError("padding needs a pad token", where="--tail pad", expected=expected, remedy=remedy)
        found = f"tail {self.tail}" + (", --context-bos" if self.context_bos else "")
        changes, expected = self.tail != "drop" or bool(self.context_bos), "neither --tail nor --context-bos"
        if self.preset == "tokshuf" and (kind != "text" or changes):
            raise ConfigError(
                "the preset tokshuf cuts each file of text on its own and pads it",
                where="--preset",
                found=f"input {kind}, {found}",
                expected=f"files of text, and {expected}",
                remedy="leave them out, or use the default preset",
            )
        if kind == "tars" and changes:
            what = "the contexts of tars stay as they are"
            raise ConfigError(what, where="--input", found=found, expected=expected, remedy="leave them out")
        if self.context_bos and self.tokenizer is None:
            raise ConfigError("a token needs its tokenizer", where="--context-bos", remedy="name it with --tokenizer")

    def require_tokenizer(self) -> TokenizerPath:
        """Return the tokenizer of text.

        Raises:
            ConfigError: none is named.
        """
        if self.tokenizer is None:
            remedy = "name a tokenizer.json, or its folder"
            raise ConfigError("text needs a tokenizer", where="--tokenizer", remedy=remedy)
        return self.tokenizer


def text_options(options: ShuffleOptions) -> PreprocessOptions:
    """Return how text is tokenized before it is shuffled.

    Raises:
        ConfigError: the options name no tokenizer, or with the preset tokshuf one that it does not know.
    """
    tokenizer = options.require_tokenizer()
    is_tokshuf = options.preset == "tokshuf"
    return PreprocessOptions(
        tokenizer=tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=tokshuf.tokshuf_tokens(tokenizer).eot if is_tokshuf else options.eod,
        bos=options.bos,
        workers=options.workers,
        engine=options.tokenizer_engine,
        count_by_file=is_tokshuf,
        **options.limits,
    )


def plan_settings(
    options: ShuffleOptions,
    frequencies: Mapping[str, float],
    streams: Mapping[str, Sequence[int]],
    sequence_length: int | None,
) -> PlanSettings:
    """Return the settings of the plan.

    Args:
        options: of the call.
        frequencies: source → how often each of its contexts occurs.
        streams: source → tokens of each of its files, where files are cut on their own.
        sequence_length: tokens in contexts that come ready-made from tars.
    """
    file = options.tokenizer

    def id_of(text: str | None, where: str) -> int | None:
        return token_id(file, text, where) if file is not None and text else None

    settings = PlanSettings(
        sequence_length=sequence_length or options.sequence_length or DEFAULT_LENGTH,
        samples_per_shard=options.samples_per_shard,
        seed=options.seed,
        member=options.member,
        bos_id=id_of(options.context_bos, "--context-bos"),
        streams=streams or None,
        frequencies=frequencies,
        even=options.even,
        preset=options.preset,
    )
    if options.preset == "tokshuf" and file is not None:
        return tokshuf.with_tokens(settings, tokshuf.tokshuf_tokens(file))
    return replace(
        settings,
        tail=options.tail,
        pad_id=id_of(options.pad, "--pad") if options.tail == "pad" else None,
        eod=id_of(options.eod, "--eod"),
        vocab_size=tokenizer_facts(file).max_id + 1 if file is not None else None,
    )

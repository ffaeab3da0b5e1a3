"""The settings of one call of `nanoset shuffle`, and those of tokenizing and planning that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import available_processors
from nanoset_core.formats.tars.members import MemberKind
from nanoset_core.stages.shards.preprocess import PreprocessOptions
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, shared_settings, tokshuf_tokens
from nanoset_core.stages.webdataset.settings import (
    DEFAULT_LENGTH,
    DEFAULT_SHARD_SIZE,
    DEFAULT_SHUFFLE_SEED,
    ContextTail,
    ShuffleEngine,
    ShufflePreset,
)
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

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
    seed: int = DEFAULT_SHUFFLE_SEED
    member: MemberKind = "json.gz"
    preset: ShufflePreset = "default"
    tail: ContextTail = "drop"
    even: bool = False
    tokenizer: TokenizerPath | None = None
    """Its file; needed for text, and to pad."""
    eod: str | None = None
    bos: str | None = None
    context_bos: str | None = None
    pad: str | None = None
    text_key: str = "text"
    data_key: str | None = None
    """Extension of the members to take from tars."""
    tokenizer_engine: EngineName = "auto"
    engine: ShuffleEngine = "auto"
    memory_bytes: int | None = None
    """Memory for writing, all workers together; does not change the tars."""
    workers: int | None = None

    @property
    def processes(self) -> int:
        """Worker processes."""
        return self.workers or available_processors()

    def check(self, kind: InputKind) -> None:
        """Raise ConfigError where two options exclude each other, or one needs another, with this kind of input."""
        nameless, changes = self.tokenizer is None, self.tail != "drop" or bool(self.context_bos)
        no_pad, foreign = self.tail == "pad" and (self.pad is None or nameless), kind != "text" or changes
        leave = "leave --tail and --context-bos out"
        pad = 'name --tokenizer and --pad "<|padding|>", or use --tail drop'
        tokshuf = "the preset tokshuf cuts each file of text on its own and pads it"
        for is_wrong, where, what, remedy in (
            (kind == "text" and nameless, "--tokenizer", "text needs a tokenizer", "name its file, or its folder"),
            (no_pad, "--tail pad", "padding needs a pad token", pad),
            (self.preset == "tokshuf" and foreign, "--preset", tokshuf, f"{leave}, or use the default preset"),
            (kind == "tars" and changes, "--input", "the contexts of tars stay as they are", leave),
            (self.context_bos and nameless, "--context-bos", "a token needs its tokenizer", "name it with --tokenizer"),
        ):
            if is_wrong:
                raise ConfigError(what, where=where, found=f"input {kind}, tail {self.tail}", remedy=remedy)


def text_options(options: ShuffleOptions) -> PreprocessOptions:
    """Return how text is tokenized before it is shuffled."""
    assert options.tokenizer is not None  # `check` asks for it
    is_tokshuf = options.preset == "tokshuf"
    return PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=tokshuf_tokens(options.tokenizer)[0] if is_tokshuf else options.eod,
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
    """Return the settings of the plan: `streams` of files that are cut on their own, the length of contexts of tars."""
    file, ids = options.tokenizer, dict[str, int]()
    if file is not None and options.preset == "default":
        named = {"context_bos": options.context_bos, "pad": options.tail == "pad" and options.pad, "eod": options.eod}
        flags = {name: f"--{name.replace('_', '-')}" for name in named}
        ids = {name: token_id(file, text, flags[name]) for name, text in named.items() if text}
    settings = PlanSettings(
        sequence_length=sequence_length or options.sequence_length or DEFAULT_LENGTH,
        pad_id=ids.get("pad"),
        bos_id=ids.get("context_bos"),
        eod=ids.get("eod"),
        vocab_size=tokenizer_facts(file).max_id + 1 if file is not None else None,
        streams=streams or None,
        frequencies=frequencies,
        **shared_settings(options),
    )
    return settings.of_tokshuf(file) if options.preset == "tokshuf" and file is not None else settings

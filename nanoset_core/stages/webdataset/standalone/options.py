"""The settings of a call of `nanoset shuffle`, from which those of its steps are derived.

A call tokenizes text, plans the tars and writes them. For example, `--tail pad --pad "<pad>"` is
checked here, and becomes the id of the pad token in the settings of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nanoset_core.errors import ConfigError
from nanoset_core.execution.resources import available_processors
from nanoset_core.formats.tars.members import MemberKind
from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, shared_settings
from nanoset_core.stages.webdataset.settings import (
    DEFAULT_LENGTH,
    DEFAULT_SHARD_SIZE,
    DEFAULT_SHUFFLE_SEED,
    ContextTail,
    ShuffleEngine,
    ShufflePreset,
)
from nanoset_core.stages.webdataset.tokshuf import tokshuf_tokens
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

InputKind = Literal["text", "datasets", "tars"]
"""Kind of input: raw text, .bin/.idx pairs, or tars."""
NON_RECIPE_OPTIONS = (
    "tokenizer_engine",
    "engine",
    "memory_bytes",
    "workers",
    *RejectOptions.__slots__,
)
"""Options that are not part of the recipe, since they do not change the tars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOptions(RejectOptions):
    """The settings of a call of `nanoset shuffle`.

    Those that change the tars are part of the recipe, with the names of their fields.
    """

    sequence_length: int | None = None
    """Tokens in a context. None: 2049, or the length of the contexts in tars."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a tar."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Seed of the shuffle, and of the choice of contexts if only some are used."""
    member: MemberKind = "json.gz"
    """Format of a context in a tar."""
    preset: ShufflePreset = "default"
    """`tokshuf` writes the contexts of tokshuf-rust."""
    tail: ContextTail = "drop"
    """What happens to tokens after the last full context of a source."""
    even: bool = False
    """Whether all tars have the same number of contexts."""
    tokenizer: TokenizerPath | None = None
    """File of the tokenizer, which is needed for text and for padding."""
    eod: str | None = None
    """Token that is added after each document of text."""
    bos: str | None = None
    """Token that is added before each document of text."""
    context_bos: str | None = None
    """Token that every context begins with."""
    pad: str | None = None
    """Token that contexts are padded with."""
    text_key: str = "text"
    """Key of the text in each line's JSON object."""
    data_key: str | None = None
    """Extension of the members to read from tars."""
    tokenizer_engine: EngineName = "auto"
    """Engine of the tokenizer; does not change the tars."""
    engine: ShuffleEngine = "auto"
    """How the tars are written; does not change them."""
    memory_bytes: int | None = None
    """Memory for writing, for all workers together; does not change the tars."""
    workers: int | None = None
    """Number of processes. None: one for each processor."""

    @property
    def processes(self) -> int:
        """Number of worker processes."""
        return self.workers or available_processors()

    def check(self, kind: InputKind) -> None:
        """Check that the options fit together and fit this kind of input.

        Args:
            kind: What `--input` names: raw text, .bin/.idx pairs, or tars.

        Raises:
            ConfigError: Two options exclude each other, or one needs another.
        """
        found = f"input {kind}, tail {self.tail}"
        self._check_tokenizer(kind, found)
        self._check_contexts(kind, found)
        if self.context_bos and self.tokenizer is None:
            raise ConfigError(
                "a token needs its tokenizer",
                where="--context-bos",
                found=found,
                remedy="name it with --tokenizer",
            )

    def _check_contexts(self, kind: InputKind, found: str) -> None:
        """Check that contexts are not changed if the preset or existing tars determine them.

        Args:
            kind: Kind of the input.
            found: The input and the setting of padding, for the error.

        Raises:
            ConfigError: An option would change them; or the preset is for another kind of input.
        """
        changes_contexts = self.tail != "drop" or bool(self.context_bos)
        if self.preset == "tokshuf" and (kind != "text" or changes_contexts):
            raise ConfigError(
                "the preset tokshuf cuts each text file separately and pads it",
                where="--preset",
                found=found,
                remedy="leave --tail and --context-bos out, or use the default preset",
            )
        if kind == "tars" and changes_contexts:
            raise ConfigError(
                "the contexts of tars cannot be changed",
                where="--input",
                found=found,
                remedy="leave --tail and --context-bos out",
            )

    def _check_tokenizer(self, kind: InputKind, found: str) -> None:
        """Check that a tokenizer is named for text, and a token of it for padding.

        A tokenizer turns text into tokens, and says which id the pad token has.

        Args:
            kind: Kind of the input.
            found: The input and the setting of padding, for the error.

        Raises:
            ConfigError: One of them is missing.
        """
        if kind == "text" and self.tokenizer is None:
            raise ConfigError(
                "text needs a tokenizer",
                where="--tokenizer",
                found=found,
                remedy="name its file, or its folder",
            )
        if self.tail == "pad" and (self.pad is None or self.tokenizer is None):
            raise ConfigError(
                "padding needs a pad token",
                where="--tail pad",
                found=found,
                remedy='name --tokenizer and --pad "<|padding|>", or use --tail drop',
            )


def text_options(options: ShuffleOptions) -> PreprocessOptions:
    """Return the settings for tokenizing text before it is shuffled.

    `nanoset shuffle` tokenizes text like `nanoset tokenize`, and has fewer options for it.

    Args:
        options: The settings of the shuffle.

    Raises:
        ConfigError: The preset is tokshuf, and tokshuf-rust does not know the tokenizer.
    """
    if options.tokenizer is None:  # `check` has refused this
        raise ValueError("text needs a tokenizer")

    is_tokshuf = options.preset == "tokshuf"
    end_token = options.eod
    if is_tokshuf:
        # tokshuf-rust has an end token of its own: the one with id 0.
        end_token = tokshuf_tokens(options.tokenizer).eot
    return PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=end_token,
        bos=options.bos,
        workers=options.workers,
        engine=options.tokenizer_engine,
        # tokshuf-rust cuts each file separately, so the tokens of each file must be known.
        count_by_file=is_tokshuf,
        # Limits for rejected lines, such as how many are allowed.
        **options.limits,
    )


def plan_settings(
    options: ShuffleOptions,
    frequencies: Mapping[str, float],
    tokens_by_file: Mapping[str, Sequence[int]],
    sequence_length: int | None,
) -> PlanSettings:
    """Return the settings by which the tars of a shuffle are planned.

    Args:
        options: The settings of the call.
        frequencies: Source → how often each of its contexts occurs.
        tokens_by_file: Source → number of tokens of each of its files. Empty unless files are cut
            into contexts separately.
        sequence_length: Length of the contexts if the input is tars, which cannot be changed. None
            for other inputs.

    Returns:
        Everything that decides which tokens go into which tar, except the number of tokens.

    Raises:
        ConfigError: The tokenizer has no such special token; or the preset is tokshuf, and
            tokshuf-rust does not know the tokenizer.
    """
    tokenizer = options.tokenizer
    vocab_size = None
    if tokenizer is not None:
        vocab_size = tokenizer_facts(tokenizer).max_id + 1
    special_ids = _special_ids(options)  # flag → id
    settings = PlanSettings(
        sequence_length=sequence_length or options.sequence_length or DEFAULT_LENGTH,
        pad_id=special_ids.get("--pad"),
        bos_id=special_ids.get("--context-bos"),
        eod=special_ids.get("--eod"),
        vocab_size=vocab_size,
        streams=tokens_by_file or None,
        frequencies=frequencies,
        **shared_settings(options),
    )
    if options.preset == "tokshuf" and tokenizer is not None:
        # This preset has special tokens and a way of padding of its own.
        return settings.of_tokshuf(tokenizer)
    return settings


def _special_ids(options: ShuffleOptions) -> dict[str, int]:
    """Return the ids of the special tokens that a call names.

    The preset tokshuf ignores them, because tokshuf-rust has other special tokens.

    Args:
        options: The settings of the call, with the texts of the tokens.

    Returns:
        Flag that names the token → id, such as `{"--eod": 0}`.

    Raises:
        ConfigError: The tokenizer has no such token.
    """
    if options.tokenizer is None or options.preset != "default":
        return {}
    tokens = {
        "--context-bos": options.context_bos,
        "--pad": options.pad if options.tail == "pad" else None,
        "--eod": options.eod,
    }
    # The vocabulary is searched only for tokens that are named.
    ids: dict[str, int] = {}
    for flag, token in tokens.items():
        if token:
            ids[flag] = token_id(options.tokenizer, token, flag)
    return ids

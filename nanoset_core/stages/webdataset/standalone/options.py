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
from nanoset_core.stages.shards.standalone.options import PreprocessOptions
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
        """Check that the options of `nanoset shuffle` fit together, and fit the input.

        The command shuffles text or tokens into tar files of training samples. For example, text
        needs a tokenizer, and the samples of tars cannot be padded.

        Args:
            kind: What the input is: raw text, .bin/.idx pairs of tokens, or tars.

        Raises:
            ConfigError: Two options exclude each other, or one needs another.
        """
        input_and_tail = f"input {kind}, tail {self.tail}"  # for errors: "input tars, tail pad"
        self._check_tokenizer(kind, input_and_tail)
        self._check_contexts(kind, input_and_tail)

        # Every sample begins with a token, such as --context-bos "<s>". The tokenizer knows its id.
        if self.context_bos and self.tokenizer is None:
            raise ConfigError(
                "a token needs its tokenizer",
                where="--context-bos",
                found=input_and_tail,
                remedy="name it with --tokenizer",
            )

    def _check_contexts(self, kind: InputKind, found: str) -> None:
        """Check that no option changes training samples (contexts) which must stay as they are.

        There are two options that change samples: --tail pads the last one of a text, or continues
        it in the next text, and --context-bos adds a token at the start of each. The mistakes are:

            input tars, with such an option        tars have samples already, which are shuffled
            --preset tokshuf with such an option   it makes the same samples as the program
                                                   tokshuf-rust, which pads each text in its way
            --preset tokshuf, and no text          that program reads only text

        Args:
            kind: What the input is.
            found: The input and the tail in words, for the error: "input tars, tail pad".

        Raises:
            ConfigError: One of these mistakes was made.
        """
        changes_samples = self.tail != "drop" or bool(self.context_bos)
        fits_tokshuf = kind == "text" and not changes_samples
        if self.preset == "tokshuf" and not fits_tokshuf:
            raise ConfigError(
                "the preset tokshuf cuts each text file separately and pads it",
                where="--preset",
                found=found,
                remedy="leave --tail and --context-bos out, or use the default preset",
            )
        if kind == "tars" and changes_samples:
            raise ConfigError(
                "the contexts of tars cannot be changed",
                where="--input",
                found=found,
                remedy="leave --tail and --context-bos out",
            )

    def _check_tokenizer(self, kind: InputKind, found: str) -> None:
        """Check that the user has named a tokenizer if one is needed.

        There are two mistakes:

            text as input, but no --tokenizer      it is needed to turn text into tokens
            --tail pad, but no --tokenizer, or     short samples are filled up with this token,
            no --pad                               such as "<|padding|>"; the tokenizer knows its id

        Args:
            kind: What the input is: text, or something that consists of tokens already.
            found: The input and the tail in words, for the error: "input text, tail pad".

        Raises:
            ConfigError: The tokenizer or the pad token is missing.
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

    `nanoset shuffle` tokenizes text in the same way as `nanoset tokenize`, but with fewer options.

    Args:
        options: The settings of `nanoset shuffle`.

    Raises:
        ConfigError: The preset is tokshuf, and tokshuf-rust does not know the tokenizer.
    """
    if options.tokenizer is None:  # `check` has refused this
        raise ValueError("text needs a tokenizer")

    # --preset tokshuf gives the same tars as the program tokshuf-rust. It has an end-of-document
    # token of its own, and cuts each file into samples separately, for which tokens are counted.
    is_tokshuf = options.preset == "tokshuf"
    end_token = options.eod
    if is_tokshuf:
        end_token = tokshuf_tokens(options.tokenizer).eot
    return PreprocessOptions(
        tokenizer=options.tokenizer,
        keys=(options.text_key,),
        preset="tokshuf" if is_tokshuf else "megatron",
        eod=end_token,
        bos=options.bos,
        workers=options.workers,
        engine=options.tokenizer_engine,
        count_by_file=is_tokshuf,
        **options.limits,  # how many lines without a valid document are allowed
    )


def plan_settings(
    options: ShuffleOptions,
    frequencies: Mapping[str, float],
    tokens_by_file: Mapping[str, Sequence[int]],
    sequence_length: int | None,
) -> PlanSettings:
    """Return the settings that decide which training sample goes into which tar file.

    They follow from the options of `nanoset shuffle`. Options that name special tokens by their
    text, such as --pad "<|padding|>", become ids.

    Args:
        options: The options.
        frequencies: Source of text → how often it is read, such as {"web": 1.0, "code": 2.0}.
        tokens_by_file: Source → tokens of each of its files, if files are cut into samples
            separately; otherwise {}.
        sequence_length: Tokens of a sample, if the input is tars, whose samples keep their length;
            otherwise None.

    Raises:
        ConfigError: The tokenizer has no such special token; or the preset is tokshuf, and
            tokshuf-rust does not know the tokenizer.
    """
    tokenizer = options.tokenizer
    vocab_size = None
    if tokenizer is not None:
        vocab_size = tokenizer_facts(tokenizer).max_id + 1
    special_ids = _special_ids(options)  # such as {"--pad": 3}
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
    """Look up the ids of the special tokens that the user has named by their text.

    For example, --pad "<|padding|>" --eod "<|endoftext|>" give {"--pad": 1, "--eod": 0}. Options
    that are not set are not in the result. With --preset tokshuf the result is {}, since this
    preset has special tokens of its own.

    Args:
        options: The options of `nanoset shuffle`.

    Raises:
        ConfigError: The tokenizer has no such token.
    """
    if options.tokenizer is None or options.preset != "default":
        return {}
    tokens = {
        "--context-bos": options.context_bos,
        "--pad": options.pad if options.tail == "pad" else None,  # it is not used otherwise
        "--eod": options.eod,
    }
    ids: dict[str, int] = {}
    for flag, token in tokens.items():
        if token:  # not None or ""
            ids[flag] = token_id(options.tokenizer, token, flag)
    return ids

"""The key `trainer` of a nanoset: Megatron-LM's version and the options of its tokenizer.

Megatron-LM hashes the identifiers of its tokenizer into the names of its index files. It computes
them from its options, in another way in each version. This module does the same, so that index
files get the names that Megatron-LM will look for.

Sources:
    Megatron-LM core_v0.9.0 to core_v0.16.1 `megatron/training/tokenizer/tokenizer.py` (the legacy
    classes), `megatron/core/datasets/megatron_tokenizer.py`; core_v0.15.0 to main (d98e8a64)
    `megatron/core/tokenizers/text/text_tokenizer.py` (unique_identifiers) and
    `…/utils/build_tokenizer.py`; `megatron/training/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Annotated, Any, Literal

from nanoset_core.errors import ConfigError, raised
from nanoset_core.records.settings import Range
from nanoset_core.sampling.presets import get_preset

MAIN = "main"
"""Name of Megatron-LM's main branch in place of a version."""
_MAIN_BRANCH = 1000
"""Stands for the minor version of the main branch, which is newer than all releases."""
DOCUMENTS_SINCE = 19
"""Minor version of the first release with --dataloader-inter-document-masking: 0.19."""
_OLDEST = 9
"""Minor version of the oldest release that is supported."""
_NEWEST = 19
"""Minor version of the newest release whose identifiers are known."""
_KNOWN_VERSIONS = f"0.{_OLDEST} to 0.{_NEWEST}"
_CORE_TOKENIZERS = 15
"""Minor version of the first release with tokenizers in megatron.core, not megatron.training."""
_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Value of --tiktoken-pattern → its regular expression, an identifier of the legacy class."""
_NUMBER_OF_TOKENS = Annotated[int, Range(0, 1 << 31)]


def _since(first: int, last: int = _MAIN_BRANCH) -> dict[str, Any]:
    """Return the metadata of an option that only some versions of megatron-core have.

    Args:
        first: Minor version of the first one with the option: 16 for core 0.16.
        last: Minor version of the last one with the option.
    """
    return {"versions": (first, last)}


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """Megatron-LM's version and tokenizer options, on which the names of its index files depend."""

    megatron_core: str = field(metadata={"example": '"0.16.1"'})
    """Version of megatron-core, in quotes, such as "0.16.1"; or main, for a checkout of the main
    branch.
    """
    tokenizer_type: Literal[
        "HuggingFaceTokenizer",
        "GPT2BPETokenizer",
        "SentencePieceTokenizer",
        "GPTSentencePieceTokenizer",
        "Llama2Tokenizer",
        "TikTokenizer",
        "NullTokenizer",
    ] = field(metadata={"example": "HuggingFaceTokenizer"})
    """Option --tokenizer-type."""
    tokenizer_model: str | None = field(default=None, metadata={"example": "/models/llama"})
    """Option --tokenizer-model, exactly as the trainer gets it.

    It is a folder or name for HuggingFaceTokenizer, and a file for other types.
    """
    vocab_file: str | None = None
    """Option --vocab-file."""
    merge_file: str | None = None
    """Option --merge-file."""
    vocab_size: Annotated[int, Range(1, 1 << 31)] | None = None
    """Option --vocab-size."""
    vocab_extra_ids: _NUMBER_OF_TOKENS = 0
    """Option --vocab-extra-ids."""
    special_tokens: tuple[str, ...] = ()
    """Option --tokenizer-special-tokens; up to core 0.15 --tiktoken-special-tokens."""
    tiktoken_pattern: Literal["v1", "v2"] | None = None
    """Option --tiktoken-pattern."""
    tiktoken_num_special_tokens: _NUMBER_OF_TOKENS = 1000
    """Option --tiktoken-num-special-tokens."""
    tokenizer_sentencepiece_legacy: bool = field(default=False, metadata=_since(16))
    """Option --tokenizer-sentencepiece-legacy, from core 0.16 on."""
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = field(
        default=True, metadata=_since(18)
    )
    """False for --no-tokenizer-sentencepiece-ignore-extra-whitespaces, from core 0.18 on."""
    tokenizer_hf_use_fast: bool = field(default=False, metadata=_since(16, 17))
    """Option --tokenizer-hf-use-fast, of core 0.16 (in 0.17 it is the default). Without it, some
    tokenizers need more files than tokenizer.json.
    """
    tokenizer_hf_include_special_tokens: bool = field(default=False, metadata=_since(16, 17))
    """Option --tokenizer-hf-include-special-tokens, of core 0.16 (in 0.17 it is the default)."""
    tokenizer_hf_no_use_fast: bool = field(default=False, metadata=_since(17))
    """Option --tokenizer-hf-no-use-fast, from core 0.17 on."""
    tokenizer_hf_no_include_special_tokens: bool = field(default=False, metadata=_since(17))
    """Option --tokenizer-hf-no-include-special-tokens, from core 0.17 on."""
    trust_remote_code: bool = field(default=False, metadata=_since(15))
    """Option --trust-remote-code, from core 0.15 on."""
    chat_template: str | None = field(default=None, metadata=_since(18))
    """Option --chat-template, from core 0.18 on."""
    use_gigatoken: bool = field(default=False, metadata=_since(_MAIN_BRANCH))
    """Option --use-gigatoken, of core's main."""
    null_tokenizer_eod_id: _NUMBER_OF_TOKENS | None = field(default=None, metadata=_since(18))
    """Option --null-tokenizer-eod-id, from core 0.18 on."""
    legacy_tokenizer: bool = field(default=False, metadata=_since(15, 16))
    """Option --legacy-tokenizer, of core 0.15 and 0.16."""

    @property
    def minor(self) -> int:
        """The minor version, such as 16 for 0.16.1; for the main branch, a number above all others.

        Raises:
            ConfigError: The text is not a version of megatron-core from 0.9 on.
        """
        if self.megatron_core == MAIN:
            return _MAIN_BRANCH
        # The minor version is the second number of 0.16.1, of v0.16.1, and of core_v0.16.1.
        version = self.megatron_core.removeprefix("core_").removeprefix("v")
        major, _, rest = version.partition(".")
        minor = rest.partition(".")[0]
        if major != "0" or not minor.isdecimal() or int(minor) < _OLDEST:
            raise ConfigError(
                "not a version of megatron-core",
                where="megatron_core",
                found=repr(self.megatron_core),
                expected=f'{_KNOWN_VERSIONS}, such as "0.16.1", or main',
                remedy="write the version that this prints where the trainer runs: "
                '`python -c "import megatron.core as c; print(c.__version__)"`; '
                "write main for a checkout of the main branch",
            )
        return int(minor)

    def version_warning(self) -> str | None:
        """Return a warning if megatron_core is newer than all known versions; otherwise None.

        The names of index files depend on the version. Suppose that 0.19 is the newest known one,
        and that the user writes "0.20". Then index files are named as for 0.19. If 0.20 looks for
        other names, it will not find them.

        A checkout of the main branch also prints a number such as 0.20, which its user may have
        written. The warning says to write `main` in this case, since main is known.
        """
        is_known = self.minor <= _NEWEST or self.megatron_core == MAIN
        if is_known:
            return None
        return (
            f"megatron_core {self.megatron_core} is not known, only {_KNOWN_VERSIONS} and main: "
            f"index files are named as for 0.{_NEWEST}. For a checkout of Megatron-LM's main "
            "branch, write `megatron_core: main`. Then run preflight.py"
        )

    @property
    def is_legacy(self) -> bool:
        """Whether the tokenizer is one of the old classes, of the package megatron.training.

        Newer versions have other classes, in megatron.core. The identifiers of the two differ.
        """
        return self.minor < _CORE_TOKENIZERS or self.legacy_tokenizer

    @property
    def special_token_list(self) -> list[str] | None:
        """The special tokens as Megatron-LM stores them; None if the option is not given."""
        return list(self.special_tokens) or None

    def identifiers(self) -> dict[str, Any]:
        """Return what Megatron-LM records of its tokenizer, to find the index files that fit it.

        Megatron-LM calls these values the tokenizer's `unique_identifiers`. It names each index
        file by a hash of values, which include them. If one differed here, or came in another
        order, the trainer would not find the files that are built.

        It has two sets of classes for tokenizers, which record different values:

            legacy    megatron.training: in versions before 0.15, or with --legacy-tokenizer
            core      megatron.core: in newer versions

        Returns:
            Name → value, such as `{"class": "…", "tokenizer_path": "/models/llama", …}`.

        Raises:
            ConfigError: This version of Megatron-LM does not have an option that is set, or the
                tokenizer requires an option that is missing.
        """
        self._check()
        if self.is_legacy:
            return self._legacy_identifiers()
        return self._core_identifiers()

    def _core_identifiers(self) -> dict[str, Any]:
        """Return what newer versions of Megatron-LM record of the tokenizer.

        Megatron-LM names its index files by a hash of these values. So their order matters, too.

        Returns:
            Name → value, such as `{"class": "…", "tokenizer_path": "/models/llama", "use_fast":
            "True"}`.
        """
        path = self.tokenizer_model
        if self.tokenizer_type in _FIXED_PATH_BY_TYPE:  # these ignore --tokenizer-model
            path = _FIXED_PATH_BY_TYPE[self.tokenizer_type]
        identifiers: dict[str, Any] = {"class": self._core_class, "tokenizer_path": path}

        # Each type of tokenizer has a function that yields its own options, such as use_fast.
        options_of = _KEYWORDS_BY_TYPE[self.tokenizer_type]
        for name, value in options_of(self):
            identifiers[name] = str(value)  # Megatron-LM records all values as text
        return identifiers

    @property
    def _core_class(self) -> str:
        """Name of the class of a tokenizer: the main branch has another one than releases."""
        if self.megatron_core == MAIN:
            return "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText"
        return "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"

    def _legacy_identifiers(self) -> dict[str, Any]:
        """Return what older versions of Megatron-LM record of the tokenizer, in their order.

        Megatron-LM names its index files by a hash of these values, so the order matters, too.

        Returns:
            Name → value, such as `{"class": "_Llama2Tokenizer", "tokenizer_path":
            ["/models/llama"], …}`.
        """
        class_name = f"_{self.tokenizer_type}"
        if self.tokenizer_type == "TikTokenizer":  # the only class with another name
            class_name = "CustomTikTokenizer"

        paths = [self.tokenizer_model]
        if self.tokenizer_type == "GPT2BPETokenizer":  # the only type with two files
            paths = [self.vocab_file, self.merge_file]

        identifiers: dict[str, Any] = {"class": class_name, "tokenizer_path": paths}
        for name, value in self._legacy_arguments().items():
            identifiers[name] = str(value)  # Megatron-LM records all values as text
        return identifiers

    def _legacy_arguments(self) -> dict[str, object]:
        """Return the options with which old versions of Megatron-LM make a tokenizer.

        Megatron-LM names its index files by a hash of these values. So they must be exactly the
        same, and in the same order.

        Returns:
            Name → value, such as `{"vocab_extra_ids": 0}`. Empty for types that only have files.
        """
        kind = self.tokenizer_type
        if kind == "SentencePieceTokenizer":
            return {"vocab_extra_ids": self.vocab_extra_ids}
        if kind in ("GPTSentencePieceTokenizer", "Llama2Tokenizer"):
            return {"vocab_extra_ids": 0}  # these ignore what the user has set
        if kind == "NullTokenizer":
            return {"vocab_size": self.vocab_size}
        if kind == "TikTokenizer":
            # "v1" or "v2"; `_check` has made sure that it is not None.
            pattern_name = self.tiktoken_pattern or ""
            return {
                "pattern": _PATTERNS[pattern_name],  # a regular expression that finds words
                "vocab_size": self.vocab_size,
                "num_special_tokens": self.tiktoken_num_special_tokens,
                "special_tokens": self.special_token_list,
            }
        return {}

    def arguments(self) -> tuple[str, ...]:
        """Return the options with which Megatron-LM loads the tokenizer.

        They follow from the section `trainer` of nanoset.yaml: `tokenizer_type: TikTokenizer`
        becomes "--tokenizer-type TikTokenizer". Options that have their default value are left out.

        Returns:
            Each option with its values, as one text.

        Raises:
            ConfigError: The version does not have one of the options, the tokenizer requires an
                option that is missing, or a value contains a space, at which the shell would split
                it.
        """
        self._check()
        arguments = []
        for option in fields(self):
            value = getattr(self, option.name)
            # The version is not an option of the trainer.
            if value == option.default or option.name == "megatron_core":
                continue
            words = _words(value)
            if any(character.isspace() for character in "".join(words)):
                raise ConfigError(
                    "the shell cuts the trainer's arguments at spaces",
                    where=option.name,
                    found=repr(value),
                    remedy="give it a name without spaces, or write the identifiers as "
                    "`tokenizer_identifiers`",
                )
            arguments.append(" ".join([self._flag(option.name), *words]))
        return tuple(arguments)

    def _flag(self, name: str) -> str:
        """Return how Megatron-LM spells an option: `vocab_size` is --vocab-size.

        Args:
            name: Name of the option as a field of this class.
        """
        if name == "special_tokens":
            # It was renamed.
            is_renamed = self.minor > _CORE_TOKENIZERS  # after 0.15
            name = "tokenizer_special_tokens" if is_renamed else "tiktoken_special_tokens"
        if name == "tokenizer_sentencepiece_ignore_extra_whitespaces":
            # It is on unless the user sets it to false: then the option has "no" in front.
            name = f"no_{name}"
        return f"--{name.replace('_', '-')}"

    def _check(self) -> None:
        """Check that the user's version of Megatron-LM has all options, and that none is missing.

        For example, --chat-template exists from core 0.18 on, and a HuggingFaceTokenizer needs
        --tokenizer-model.

        Raises:
            ConfigError: An option does not exist in the version, or a required one is missing.
        """
        for option in fields(self):
            is_set = getattr(self, option.name) != option.default
            if is_set:
                self._check_version(option)

        for name in _REQUIRED_BY_TYPE[self.tokenizer_type]:
            if getattr(self, name) is not None:
                continue
            if name == "tiktoken_pattern" and not self.is_legacy:
                continue  # newer versions have a default for this option
            raise ConfigError(
                f"{self.tokenizer_type} needs this option",
                where=name,
                found="nothing",
                remedy="write what the trainer is given",
            )

    def _check_version(self, option: Field[Any]) -> None:
        """Check that the trainer, in the version that the user names, has an option.

        For example, Megatron-LM has --chat-template from core 0.18 on. A user of core 0.16 who sets
        it has probably named the wrong version.

        Args:
            option: The field of the option, whose metadata name the first and the last minor
                version that has it, such as 16 for core 0.16.

        Raises:
            ConfigError: The version does not have the option.
        """
        # Minor versions, such as 16 for 0.16.1. `_MAIN_BRANCH`, the main branch, is the greatest.
        first_version, last_version = option.metadata.get("versions", (0, _MAIN_BRANCH))
        if first_version <= self.minor <= last_version:
            return
        raise ConfigError(
            "this version of the trainer has no such option",
            where=option.name,
            found=f"megatron_core {self.megatron_core}",
            expected=_version_range(first_version, last_version),
            remedy="remove the key",
        )


def _version_range(first: int, last: int) -> str:
    """Return the versions that have an option, such as "core 0.15 to 0.16".

    Args:
        first: Minor version of the first one, or `_MAIN_BRANCH`.
        last: Minor version of the last one, or `_MAIN_BRANCH`.
    """
    if first == _MAIN_BRANCH:
        return "main"
    if last == _MAIN_BRANCH:
        return f"core 0.{first}"
    return f"core 0.{first} to 0.{last}"


def _words(value: object) -> tuple[str, ...]:
    """Return the words of an option's value on the command line; a boolean flag has none."""
    if isinstance(value, bool):
        return ()
    if isinstance(value, tuple):
        return value
    return (str(value),)


def trainer_errors(
    where: str, trainer: TrainerSpec, preset: str, *, has_identifiers: bool
) -> Iterator[ConfigError]:
    """Yield an error for each setting of a trainer that is invalid or contradicts others.

    The section `trainer` of nanoset.yaml names the version of Megatron-LM and its tokenizer.
    Mistakes are, for example:

        a tokenizer is also named by the key `tokenizer_identifiers`
        an option does not exist in this version
        the key `preset` is for another version

    Args:
        where: Text in front of the keys `trainer` and `preset` in messages, such as the file.
        trainer: The settings of the key `trainer`.
        preset: Name of the preset, which stands for a trainer and a range of its versions.
        has_identifiers: Whether the key `tokenizer_identifiers` is also given.

    Yields:
        Errors that name the key, such as "nanosets.pretrain.trainer".
    """
    if has_identifiers:
        yield ConfigError(
            "trainer and tokenizer_identifiers both give the tokenizer's identifiers",
            where=f"{where}trainer",
            found="both",
            remedy="keep one of them",
        )
    # Some trainers name index files by a hash that depends on the tokenizer. The settings are for
    # these alone.
    hashes_tokenizer = get_preset(preset).hashes_tokenizer
    if not hashes_tokenizer:
        yield ConfigError(
            "the cache names of this trainer do not hold its tokenizer",
            where=f"{where}trainer",
            found=f"preset {preset}",
            remedy="remove the key",
        )

    # Try to write the arguments, which raises an error if the version lacks an option.
    errors = raised(trainer.arguments)
    if errors:
        yield errors[0].at(f"{where}trainer.{errors[0].where}")
    elif hashes_tokenizer and not _is_preset_of_version(preset, trainer):
        yield ConfigError(
            "the preset is that of another version of megatron-core",
            where=f"{where}preset",
            found=f"preset {preset}, megatron_core {trainer.megatron_core}",
            remedy="set preset to megatron-0.10 for core 0.9 and 0.10, to megatron for newer ones",
        )


def _is_preset_of_version(preset: str, trainer: TrainerSpec) -> bool:
    """Return whether a preset is for the version of megatron-core that a trainer has.

    One preset is for the old versions, the other for all newer ones.
    """
    is_old_version = trainer.minor <= 10
    is_old_preset = preset == "megatron-0.10"
    return is_old_version == is_old_preset


_EXAMPLE_TEXTS = {
    option.name: option.metadata["example"]
    for option in fields(TrainerSpec)
    if "example" in option.metadata
}
_EXAMPLE_KEYS = [f"{name}: {text}" for name, text in _EXAMPLE_TEXTS.items()]
EXAMPLE = f"{{{', '.join(_EXAMPLE_KEYS)}}}"
"""The settings that most users need, as YAML."""
EXAMPLE_VALUES = {name: text.strip('"') for name, text in _EXAMPLE_TEXTS.items()}
"""The same as plain values."""
UNNAMED = "Megatron-LM will rebuild every index, since {place} does not name its tokenizer"
"""Warning if the settings do not determine the identifiers."""
_SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
_REQUIRED_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "HuggingFaceTokenizer": ("tokenizer_model",),
    "GPT2BPETokenizer": ("vocab_file", "merge_file"),
    **dict.fromkeys(_SENTENCEPIECE, ("tokenizer_model",)),
    "TikTokenizer": ("tokenizer_model", "tiktoken_pattern"),
    "NullTokenizer": ("vocab_size",),
}
"""Type of a tokenizer → options that it requires."""
_FIXED_PATH_BY_TYPE = {"GPT2BPETokenizer": "GPT2BPETokenizer", "NullTokenizer": None}
"""Type of a tokenizer → its tokenizer_path, if that is not --tokenizer-model."""


# The keyword arguments that `build_tokenizer` of megatron.core passes to a tokenizer, in the same
# order. They become identifiers.

_Keywords = Iterator[tuple[str, object]]
"""Name and value of each keyword argument."""


def _hugging_face_keywords(spec: TrainerSpec) -> _Keywords:
    """Yield the options of a HuggingFaceTokenizer, as Megatron-LM records them.

    Megatron-LM names its index files by a hash of these names and values. So each version's names
    have to be the same here, and in the same order.

    Args:
        spec: The settings of the trainer.

    Yields:
        (name, value).
    """
    if spec.minor >= 18:  # megatron-core 0.18 or later
        yield "chat_template", spec.chat_template
    yield "vocab_file", spec.vocab_file
    yield "merges_file", spec.merge_file
    if spec.minor >= 16:
        yield "additional_special_tokens", list(spec.special_tokens)
        yield from _hugging_face_switches(spec)  # use_fast, …


def _gpt2_keywords(spec: TrainerSpec) -> _Keywords:
    """Yield the options of a GPT2BPETokenizer, as Megatron-LM records them.

    Megatron-LM names its index files by a hash of these names and values. So each version's names
    have to be the same here, and in the same order.

    Args:
        spec: The settings of the trainer.

    Yields:
        (name, value).
    """
    has_more_options = spec.minor >= 16  # megatron-core 0.16 or later
    if has_more_options:
        yield "additional_special_tokens", list(spec.special_tokens)
    yield "vocab_file", spec.vocab_file
    yield "merges_file", spec.merge_file
    if has_more_options:
        yield from _hugging_face_switches(spec)  # use_fast, …


def _hugging_face_switches(spec: TrainerSpec) -> _Keywords:
    """Yield the switches of HuggingFaceTokenizer and GPT2BPETokenizer, for core 0.16 or later.

    They are a part of what Megatron-LM hashes for the names of its index files. So each version's
    names and order must be kept:

        use_fast, trust_remote_code, include_special_tokens, and on the main branch use_gigatoken

    Args:
        spec: The settings of the trainer.

    Yields:
        (name, True or False).
    """
    # In core 0.16, two options switch the fast class and the special tokens on. From 0.17 on, both
    # are on, and two other options switch them off.
    if spec.minor == 16:
        use_fast = spec.tokenizer_hf_use_fast
        include_special_tokens = spec.tokenizer_hf_include_special_tokens
    else:
        use_fast = not spec.tokenizer_hf_no_use_fast
        include_special_tokens = not spec.tokenizer_hf_no_include_special_tokens
    yield "use_fast", use_fast
    yield "trust_remote_code", spec.trust_remote_code
    yield "include_special_tokens", include_special_tokens
    if spec.minor == _MAIN_BRANCH:
        yield "use_gigatoken", spec.use_gigatoken


def _sentencepiece_keywords(spec: TrainerSpec) -> _Keywords:
    """Yield the arguments of tokenizers with a SentencePiece model."""
    if spec.minor >= 18:
        yield "chat_template", spec.chat_template
        yield "ignore_extra_whitespaces", spec.tokenizer_sentencepiece_ignore_extra_whitespaces
    if spec.minor >= 16:
        yield "legacy", spec.tokenizer_sentencepiece_legacy
        yield "special_tokens", spec.special_token_list


def _tiktoken_keywords(spec: TrainerSpec) -> _Keywords:
    """Yield the arguments of TikTokenizer."""
    if spec.minor >= 18:
        yield "chat_template", spec.chat_template
    if spec.tiktoken_pattern:
        yield "pattern", spec.tiktoken_pattern
    if spec.vocab_size:
        yield "vocab_size", spec.vocab_size
    yield "num_special_tokens", spec.tiktoken_num_special_tokens
    yield "special_tokens", spec.special_token_list


def _null_keywords(spec: TrainerSpec) -> _Keywords:
    """Yield the arguments of NullTokenizer."""
    yield "vocab_size", spec.vocab_size
    if spec.minor < 18:
        return
    if spec.null_tokenizer_eod_id is not None:
        yield "eod_id", spec.null_tokenizer_eod_id
    yield "pad_id", -1


_KEYWORDS_BY_TYPE: Mapping[str, Callable[[TrainerSpec], _Keywords]] = {
    "HuggingFaceTokenizer": _hugging_face_keywords,
    "GPT2BPETokenizer": _gpt2_keywords,
    **dict.fromkeys(_SENTENCEPIECE, _sentencepiece_keywords),
    "TikTokenizer": _tiktoken_keywords,
    "NullTokenizer": _null_keywords,
}
"""Type of a tokenizer → function that yields its keyword arguments."""

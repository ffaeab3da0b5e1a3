"""Megatron-LM's tokenizer options: settings → its command line and the identifiers in its cache names.

Sources: Megatron-LM core_v0.9.0 to core_v0.16.1 `megatron/training/tokenizer/tokenizer.py` (the legacy classes),
`megatron/core/datasets/megatron_tokenizer.py`; core_v0.15.0 to main (d98e8a64) `megatron/core/tokenizers/text/
text_tokenizer.py` (unique_identifiers) and `…/utils/build_tokenizer.py`; `megatron/training/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.records.settings import Range

MAIN, _MAIN = "main", 1000
"""The newest version's name, and what stands for its second number."""
DOCUMENTS_SINCE = 19
"""First second number of a version with --dataloader-inter-document-masking."""
_FIRST, _CORE_TOKENIZERS = 9, 15
_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Option --tiktoken-pattern → what the legacy class keeps of it."""
_NUMBER_OF_TOKENS = Annotated[int, Range(0, 1 << 31)]


def _since(first: int, last: int = _MAIN) -> dict[str, Any]:
    """Return what a field says of the minor versions of megatron-core that have the option, ends included."""
    return {"versions": (first, last)}


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """Megatron-LM's version and its tokenizer options, by its own names; from them follow its cache names."""

    megatron_core: str = field(metadata={"example": '"0.16.1"'})
    """Version of megatron-core, in quotes, such as "0.16.1"; or main."""
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
    """Option --tokenizer-model, spelled as the trainer is given it: a folder or name for HuggingFaceTokenizer, else a
    file."""
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
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = field(default=True, metadata=_since(18))
    """Absent or true unless --no-tokenizer-sentencepiece-ignore-extra-whitespaces is given, from core 0.18 on."""
    tokenizer_hf_use_fast: bool = field(default=False, metadata=_since(16, 17))
    """Option --tokenizer-hf-use-fast, of core 0.16 (in 0.17 it is the default)."""
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
    use_gigatoken: bool = field(default=False, metadata=_since(_MAIN))
    """Option --use-gigatoken, of core's main."""
    null_tokenizer_eod_id: _NUMBER_OF_TOKENS | None = field(default=None, metadata=_since(18))
    """Option --null-tokenizer-eod-id, from core 0.18 on."""
    legacy_tokenizer: bool = field(default=False, metadata=_since(15, 16))
    """Option --legacy-tokenizer, of core 0.15 and 0.16."""

    @property
    def minor(self) -> int:
        """The second number of the version.

        Raises:
            ConfigError: it is no version of megatron-core from 0.9 on.
        """
        if self.megatron_core == MAIN:
            return _MAIN
        first, _, rest = self.megatron_core.removeprefix("core_").removeprefix("v").partition(".")
        second = rest.partition(".")[0]
        if first != "0" or not second.isdecimal() or int(second) < _FIRST:
            raise ConfigError(
                "not a version of megatron-core",
                where="megatron_core",
                found=repr(self.megatron_core),
                expected='"0.9" or newer, such as "0.16.1", or main',
                remedy='write what `python -c "import megatron.core as c; print(c.__version__)"` prints there',
            )
        return int(second)

    @property
    def is_legacy(self) -> bool:
        """Whether the tokenizer is one of the classes of megatron.training."""
        return self.minor < _CORE_TOKENIZERS or self.legacy_tokenizer

    def identifiers(self) -> dict[str, Any]:
        """Return the trainer's `tokenizer.unique_identifiers`, in its order.

        Raises:
            ConfigError: the version does not have an option, or its tokenizer lacks one that it needs.
        """
        self._check()
        if self.is_legacy:
            return self._legacy_identifiers()
        names = ("text.text_tokenizer.MegatronTokenizerText", "text.models.default_tokenizer.DefaultTokenizerText")
        name = names[0] if self.minor == _MAIN else names[1]
        path = _PATHS.get(self.tokenizer_type, self.tokenizer_model)
        found = {"class": f"megatron.core.tokenizers.{name}", "tokenizer_path": path}
        return found | {key: str(value) for key, value in _OPTIONS[self.tokenizer_type](self)}

    def _legacy_identifiers(self) -> dict[str, Any]:
        kind = self.tokenizer_type
        name = "CustomTikTokenizer" if kind == "TikTokenizer" else f"_{kind}"
        paths = [self.vocab_file, self.merge_file] if kind == "GPT2BPETokenizer" else [self.tokenizer_model]
        options: dict[str, object] = {}
        if kind in _SENTENCEPIECE:
            options = {"vocab_extra_ids": self.vocab_extra_ids if kind == "SentencePieceTokenizer" else 0}
        elif kind == "TikTokenizer":
            options = {
                "pattern": _PATTERNS[self.tiktoken_pattern or ""],
                "vocab_size": self.vocab_size,
                "num_special_tokens": self.tiktoken_num_special_tokens,
                "special_tokens": self._tokens,
            }
        elif kind == "NullTokenizer":
            options = {"vocab_size": self.vocab_size}
        return {"class": name, "tokenizer_path": paths} | {key: str(value) for key, value in options.items()}

    def arguments(self) -> tuple[str, ...]:
        """Return lines of the trainer's command line, an option and its values each.

        Raises:
            ConfigError: as `identifiers`; or a value holds a space, at which the shell would cut it.
        """
        self._check()
        lines = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value == one.default or one.name == "megatron_core":
                continue
            values = value if isinstance(value, tuple) else () if isinstance(value, bool) else (str(value),)
            if any(character.isspace() for text in values for character in text):
                raise ConfigError(
                    "the shell cuts the trainer's arguments at spaces",
                    where=one.name,
                    found=repr(value),
                    remedy="give it a name without spaces, or write the identifiers as `tokenizer_identifiers`",
                )
            lines.append(" ".join((self._flag(one.name), *values)))
        return tuple(lines)

    @property
    def _tokens(self) -> list[str] | None:
        return list(self.special_tokens) or None

    def _flag(self, name: str) -> str:
        if name == "special_tokens":
            name = "tokenizer_special_tokens" if self.minor > _CORE_TOKENIZERS else "tiktoken_special_tokens"
        if name == "tokenizer_sentencepiece_ignore_extra_whitespaces":
            name = f"no_{name}"
        return f"--{name.replace('_', '-')}"

    def _check(self) -> None:
        minor = self.minor
        for one in fields(self):
            first, last = one.metadata.get("versions", (0, _MAIN))
            if not first <= minor <= last and getattr(self, one.name) != one.default:
                versions = "main" if first == _MAIN else f"core 0.{first}" + (f" to 0.{last}" if last < _MAIN else "")
                what, found = "this version of the trainer has no such option", f"megatron_core {self.megatron_core}"
                raise ConfigError(what, where=one.name, found=found, expected=versions, remedy="remove the key")
        for name in _NEEDED[self.tokenizer_type]:
            is_optional = name == "tiktoken_pattern" and not self.is_legacy
            if getattr(self, name) is None and not is_optional:
                what = f"{self.tokenizer_type} needs this option"
                raise ConfigError(what, where=name, found="nothing", remedy="write what the trainer is given")


_EXAMPLES = {one.name: one.metadata["example"] for one in fields(TrainerSpec) if "example" in one.metadata}
EXAMPLE = f"{{{', '.join(map(': '.join, _EXAMPLES.items()))}}}"
"""What most users write, as YAML."""
EXAMPLE_VALUES = {name: text.strip('"') for name, text in _EXAMPLES.items()}
UNNAMED = "Megatron-LM will build every index again, since {place} does not name its tokenizer"
"""Warning where nothing tells the identifiers."""
_SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "HuggingFaceTokenizer": ("tokenizer_model",),
    "GPT2BPETokenizer": ("vocab_file", "merge_file"),
    **dict.fromkeys(_SENTENCEPIECE, ("tokenizer_model",)),
    "TikTokenizer": ("tokenizer_model", "tiktoken_pattern"),
    "NullTokenizer": ("vocab_size",),
}
_PATHS = {"GPT2BPETokenizer": "GPT2BPETokenizer", "NullTokenizer": None}
"""Type → tokenizer_path, where it is not --tokenizer-model."""

_Options = Iterator[tuple[str, object]]


def _hugging_face(spec: TrainerSpec) -> _Options:
    if spec.minor >= 18 and spec.tokenizer_type == "HuggingFaceTokenizer":
        yield "chat_template", spec.chat_template
    if spec.minor >= 16 and spec.tokenizer_type == "GPT2BPETokenizer":
        yield "additional_special_tokens", list(spec.special_tokens)
    yield "vocab_file", spec.vocab_file
    yield "merges_file", spec.merge_file
    if spec.minor < 16:
        return
    if spec.tokenizer_type == "HuggingFaceTokenizer":
        yield "additional_special_tokens", list(spec.special_tokens)
    is_opted_in = spec.minor == 16
    yield "use_fast", spec.tokenizer_hf_use_fast if is_opted_in else not spec.tokenizer_hf_no_use_fast
    yield "trust_remote_code", spec.trust_remote_code
    included = spec.tokenizer_hf_include_special_tokens, not spec.tokenizer_hf_no_include_special_tokens
    yield "include_special_tokens", included[0] if is_opted_in else included[1]
    if spec.minor == _MAIN:
        yield "use_gigatoken", spec.use_gigatoken


def _sentencepiece(spec: TrainerSpec) -> _Options:
    if spec.minor >= 18:
        yield "chat_template", spec.chat_template
        yield "ignore_extra_whitespaces", spec.tokenizer_sentencepiece_ignore_extra_whitespaces
    if spec.minor >= 16:
        yield "legacy", spec.tokenizer_sentencepiece_legacy
        yield "special_tokens", spec._tokens


def _tiktoken(spec: TrainerSpec) -> _Options:
    if spec.minor >= 18:
        yield "chat_template", spec.chat_template
    if spec.tiktoken_pattern:
        yield "pattern", spec.tiktoken_pattern
    if spec.vocab_size:
        yield "vocab_size", spec.vocab_size
    yield "num_special_tokens", spec.tiktoken_num_special_tokens
    yield "special_tokens", spec._tokens


def _null(spec: TrainerSpec) -> _Options:
    yield "vocab_size", spec.vocab_size
    if spec.minor >= 18:
        if spec.null_tokenizer_eod_id is not None:
            yield "eod_id", spec.null_tokenizer_eod_id
        yield "pad_id", -1


_OPTIONS = {
    "HuggingFaceTokenizer": _hugging_face,
    "GPT2BPETokenizer": _hugging_face,
    **dict.fromkeys(_SENTENCEPIECE, _sentencepiece),
    "TikTokenizer": _tiktoken,
    "NullTokenizer": _null,
}
"""Type → what `build_tokenizer` gives its tokenizer, in that order."""

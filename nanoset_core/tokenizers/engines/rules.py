"""The rules of a tokenizer: how the numpy engine turns text into tokens as the tokenizer does.

They are read from the parsed `tokenizer.json`: how text is normalised and cut into words, which
added tokens there are, and the vocabulary with its merges. The reading is strict: a setting that
the engine does not know, such as `"dropout": 0.1`, raises NotRecognisedError, since it could change
tokens. Rules can be saved as arrays, since reading them takes seconds for a large vocabulary.

In a `tokenizer.json`, a *member* is an entry of a JSON object, or one of several normalizers or
pre-tokenizers in a row. The *library* is Hugging Face `tokenizers`, whose tokens the engine has to
give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, get_args
from unicodedata import is_normalized

import numpy as np

from nanoset_core.tokenizers.cache import Arrays, from_array, to_array
from nanoset_core.tokenizers.engines.arrays import Bytes
from nanoset_core.tokenizers.engines.classes import DIGITS, OTHER, probe_classes
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.patterns import (
    GPT2,
    NO_SPANS,
    SPLIT_PATTERNS,
    ContextSpans,
    Prepend,
    SpaceSigns,
    SplitPattern,
)
from nanoset_core.tokenizers.engines.units import SAFE_CUT, Form
from nanoset_core.tokenizers.engines.vocabulary import (
    Vocabulary,
    read_character_vocabulary,
    read_vocabulary,
)
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.untrusted import shortened

_VOCABULARY_ARRAYS = [field.name for field in fields(Vocabulary)]


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitPattern | SpaceSigns
    """How text is cut into pre-tokens; or how spaces are treated, if there is no split pattern."""
    form: Form | None
    """The form that text is normalised to first."""
    runs: dict[str, dict[int, int]]
    """Added tokens that repeat one character: character → length → id. There are tokens of all
    lengths up to the longest, from 2 for spaces and from 1 for others. With a split pattern, the
    character is a space; without one, it is a newline or tab.
    """
    added_tokens: tuple[str, ...]
    """Text of the other tokens that are found before any splitting."""
    leaves_documents: bool
    """Whether a document with one of these is left to the reference as a whole.

    Otherwise, only the text around it is.
    """
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary
    """The words and merges."""
    classes: Bytes
    """uint8, shape (0x110000,): class of every code point. Empty without a split pattern."""

    def to_arrays(self) -> Arrays:
        """Return all rules of a tokenizer as arrays, to save them for later processes.

        Reading them from a tokenizer.json takes seconds if the vocabulary is large. `from_arrays`
        makes the rules from the arrays again.

        Returns:
            Name → array. Everything that is not an array itself is in `settings`, as JSON.
        """
        # The arrays of the vocabulary are stored under the names of its fields.
        arrays = {name: getattr(self.vocabulary, name) for name in _VOCABULARY_ARRAYS}
        arrays["settings"] = to_array(self._settings())
        arrays["classes"] = self.classes
        return arrays

    def _settings(self) -> dict[str, Any]:
        """Return all fields of these rules that are not arrays, in a form for JSON.

        For example, of a tokenizer such as GPT-NeoX's:

            {
                "form": "NFC",                         text is converted to Unicode's NFC first
                "runs": {" ": [(2, 50276), …]},        ids of tokens of 2 spaces, of 3, and so on
                "added_tokens": ("<|endoftext|>",),    other tokens that are found before splitting
                "leaves_documents": False,             see the field of this name
                "whole_words": False,                  see the field of this name
                "regex": ("'s|'t|'re|'ve|'m|…",),      how text is cut into words
            }
        """
        # {" ": {2: 50276, 3: 50275}} in the field. JSON has no numbers as keys, hence the list.
        runs = {}
        for character, id_by_length in self.runs.items():
            runs[character] = list(id_by_length.items())
        return {
            "form": self.form,
            "runs": runs,
            "added_tokens": self.added_tokens,
            "leaves_documents": self.leaves_documents,
            "whole_words": self.whole_words,
            **_settings_of_split(self.split),
        }

    @staticmethod
    def from_arrays(arrays: Arrays) -> Rules:
        """Make the rules of a tokenizer again from the arrays as which they were saved.

        Reading the rules of a large tokenizer takes seconds, so later processes load them instead.

        Args:
            arrays: Name → array, as `to_arrays` returns them.
        """
        vocabulary = Vocabulary(**{name: arrays[name] for name in _VOCABULARY_ARRAYS})
        # Everything that is no array itself, as JSON: {"form": "NFC", "whole_words": false, …}.
        settings = from_array(arrays["settings"])
        # {" ": [[2, 50276]]} becomes {" ": {2: 50276}}, since JSON has no numbers as keys.
        runs = {character: dict(items) for character, items in settings["runs"].items()}
        return Rules(
            split=_split_of(settings),
            form=settings["form"],
            runs=runs,
            added_tokens=tuple(settings["added_tokens"]),
            leaves_documents=settings["leaves_documents"],
            whole_words=settings["whole_words"],
            vocabulary=vocabulary,
            classes=arrays["classes"],
        )

    @property
    def longest_runs(self) -> dict[int, int]:
        """The length of the longest added token that repeats a byte: {32: 3} for three spaces."""
        longest_runs = {}
        for character, id_by_length in self.runs.items():  # such as " " and {2: 50276, 3: 50275}
            longest_runs[ord(character)] = max(id_by_length)
        return longest_runs

    @property
    def context_spans(self) -> ContextSpans:
        """The text that the split pattern leaves to the reference."""
        return self.split.context_spans if isinstance(self.split, SplitPattern) else NO_SPANS

    @property
    def forbidden_bytes(self) -> bytes:
        """The bytes that this engine cannot encode, so that text with them goes to the reference.

        These are zero, with which the engine marks the end of a word, and all bytes that have no
        token. Bytes that never occur in UTF-8 are left out.
        """
        forbidden = [0]
        for byte in (*range(1, 0xC0), *range(0xC2, 0xF5)):
            has_token = self.vocabulary.byte_tokens[byte] >= 0
            if not has_token:
                forbidden.append(byte)
        return bytes(forbidden)

    @property
    def described(self) -> str:
        """How text is split, for logs."""
        if isinstance(self.split, SplitPattern):
            return f"{self.split.name} split pattern"
        return "SentencePiece's spaces and characters"


# Allowed values of a setting, for `_check_members`.
_ANYTHING = object()
_TRUE_FALSE_OR_MISSING = (True, False, None)
_FALSE_OR_MISSING = (False, None)

_FILE_MEMBERS = {
    "version": ("1.0",),
    "model": _ANYTHING,
    "added_tokens": _ANYTHING,
    "normalizer": _ANYTHING,
    "pre_tokenizer": _ANYTHING,
    # These change no token of a document.
    "truncation": _ANYTHING,
    "padding": _ANYTHING,
    "decoder": _ANYTHING,
    "post_processor": _ANYTHING,
}
_ADDED_TOKEN_MEMBERS = {
    "content": _ANYTHING,
    "id": _ANYTHING,
    "special": _ANYTHING,
    "lstrip": _TRUE_FALSE_OR_MISSING,
    "rstrip": _TRUE_FALSE_OR_MISSING,
    "single_word": _TRUE_FALSE_OR_MISSING,
    "normalized": _TRUE_FALSE_OR_MISSING,
}
_BPE_MEMBERS = {
    "type": ("BPE", None),
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": _ANYTHING,  # matters for unknown characters only
    "vocab": _ANYTHING,
    "merges": _ANYTHING,
}
_BPE_OVER_BYTES = {
    **_BPE_MEMBERS,
    "byte_fallback": _FALSE_OR_MISSING,
    # Whether a word that is in the vocabulary is one token, whatever the merges make of it.
    "ignore_merges": _TRUE_FALSE_OR_MISSING,
    "unk_token": (None,),  # every byte has a token, so nothing is unknown
}
_BPE_OVER_CHARACTERS = {
    **_BPE_MEMBERS,
    # A character without a token is replaced by the tokens of its bytes.
    "byte_fallback": (True,),
    "ignore_merges": _FALSE_OR_MISSING,
    "unk_token": _ANYTHING,  # never used, since all characters have bytes
}


def read_rules(tokenizer: Any) -> Rules:
    """Read how a tokenizer encodes text, so that this project's own, faster code can do the same.

    Args:
        tokenizer: A parsed `tokenizer.json` that Hugging Face's tokenizers library can load.

    Raises:
        NotRecognisedError: The tokenizer has a setting that our code does not know.
    """
    try:
        return _read_tokenizer(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotRecognisedError(f"not built like a tokenizer.json: {error!r}") from error


def _settings_of_split(split: SplitPattern | SpaceSigns) -> dict[str, Any]:
    """Return how text is split, in a form for JSON, which `_split_of` reads."""
    if isinstance(split, SplitPattern):
        # All supported patterns are in a list, in which their expressions identify them.
        return {"regex": split.regex}
    return {"space_signs": asdict(split)}


def _split_of(settings: Mapping[str, Any]) -> SplitPattern | SpaceSigns:
    """Return how text is split, from the settings that `Rules.to_arrays` stored."""
    if "regex" in settings:
        return SPLIT_PATTERNS[tuple(settings["regex"])]
    return SpaceSigns(**settings["space_signs"])


def _read_tokenizer(tokenizer: Any) -> Rules:
    """Read from a tokenizer.json all that our own tokenizer needs in order to encode text by it.

    A `tokenizer.json` is Hugging Face's format for tokenizers. Its parts are steps that a text goes
    through. For a tokenizer of the kind of GPT-2:

        added_tokens    find special tokens such as "<|endoftext|>" in the text
        normalizer      change characters                   (GPT-2 changes none)
        pre_tokenizer   cut the text into words             "the cats"  →  "the", " cats"
        model           merge bytes of a word into tokens   " cats"     →  " cat", "s"

    Args:
        tokenizer: The content of the file, parsed.

    Raises:
        NotRecognisedError: The tokenizer has a setting that our tokenizer does not know.
        AttributeError, KeyError, TypeError, ValueError: A part of it has an unexpected type.
    """
    _check_members(tokenizer, "the file", **_FILE_MEMBERS)

    # Some tokenizers, as GPT-2, cut text by a split pattern, and merge bytes. The others, as Llama
    # 2, write spaces as ▁ (a SpaceSigns says how), and merge characters.
    normalizer = tokenizer.get("normalizer")
    split, form = _read_splitting(normalizer, tokenizer.get("pre_tokenizer"))
    model = tokenizer.get("model")
    vocabulary = _read_model(model, over_characters=isinstance(split, SpaceSigns))
    added_tokens = _read_added_tokens(tokenizer.get("added_tokens"), split, form)

    # A split pattern cuts text where the class of characters changes: "ab!" has two letters and a
    # symbol, and is cut into "ab" and "!". Find the class of every Unicode character.
    classes = np.zeros(0, np.uint8)
    if isinstance(split, SplitPattern):
        classes = probe_classes(split.classes, split.rest)
    return Rules(
        split=split,
        form=form,
        runs=added_tokens.runs,
        added_tokens=added_tokens.texts,
        leaves_documents=added_tokens.leaves_documents,
        # With this setting, a word in the vocabulary is one token, and is not made by merges.
        whole_words=bool(model.get("ignore_merges")),
        vocabulary=vocabulary,
        classes=classes,
    )


def _read_splitting(
    normalizer: Any, pre_tokenizer: Any
) -> tuple[SplitPattern | SpaceSigns, Form | None]:
    """Return how a tokenizer cuts text into words, and which Unicode normal form it makes first.

    There are two families of tokenizers:

        as GPT-2      may convert text to a normal form (such as an "é" of two characters to one),
                      and cut it by a regular expression: "the cat" → "the", " cat"
        as Llama 2    write spaces as the sign ▁ instead: "the cat" → "▁the▁cat"

    Args:
        normalizer: The entry of the tokenizer.json that says how characters are changed, or None.
        pre_tokenizer: The entry that says how text is cut, or None.

    Returns:
        (the regular expression or how spaces are written; NFC or NFKC, or None for no normal form)

    Raises:
        NotRecognisedError: The tokenizer changes or cuts text in a way that is not known.
    """
    space_signs = _read_space_signs(normalizer, pre_tokenizer)
    if space_signs is not None:  # as Llama 2
        return space_signs, None
    form = _read_normalizer(normalizer)
    pattern = _read_pre_tokenizer(pre_tokenizer)
    return pattern, form


def _read_model(model: Any, *, over_characters: bool) -> Vocabulary:
    """Return the vocabulary and the merges of a tokenizer.

    Args:
        model: The entry `model` of the tokenizer.json, such as
            {"type": "BPE", "vocab": {…}, "merges": […], "dropout": None}.
        over_characters: Whether merges join characters, as in SentencePiece, or bytes, as in GPT-2.

    Raises:
        NotRecognisedError: The model has a type or a setting that our own tokenizer does not know,
            such as a dropout of 0.1, which makes tokens random.
    """
    if over_characters:
        _check_members(model, "the model", **_BPE_OVER_CHARACTERS)
        return read_character_vocabulary(model["vocab"], model["merges"])
    _check_members(model, "the model", **_BPE_OVER_BYTES)
    return read_vocabulary(model["vocab"], model["merges"])


def _check_members(value: Any, name: str, **allowed: Any) -> None:
    """Check that an object of a JSON file has only known settings, with known values.

    An unknown setting may change how text is encoded, so it is better not to read such a file at
    all. For example, `_check_members(model, "the model", type=("BPE", None), vocab=_ANYTHING)`:

        {"type": "BPE", "vocab": {}}      accepted
        {"vocab": {}}                     accepted: None means that the setting may be missing
        {"type": "Unigram", "vocab": {}}  refused: another value
        {"type": "BPE", "seed": 1}        refused: unknown setting 'seed' in the model

    Args:
        value: The object, as a dictionary.
        name: Name of the object, for messages.
        allowed: For each known setting a tuple of its allowed values, or _ANYTHING.

    Raises:
        NotRecognisedError: A setting is not known, or has another value.
    """
    for key, options in allowed.items():
        if options is _ANYTHING:
            continue
        member = value.get(key)  # None if it is missing
        if not _is_one_of(member, options):
            raise NotRecognisedError(f"{key} of {name} is {shortened(repr(member), 100)}")

    for key in value.keys() - allowed.keys():
        raise NotRecognisedError(f"unknown setting {key!r} in {name}")


def _is_one_of(value: Any, options: tuple[Any, ...]) -> bool:
    """Return whether a value is one of some options, and of the same type: 1 is not True."""
    return any(type(value) is type(option) and value == option for option in options)


def _read_normalizer(value: Any) -> Form | None:
    """Return the Unicode normal form to which a tokenizer converts text: NFC, NFKC, or None.

    Unicode can write the same text in several ways, such as "é" as one character or as an "e" and
    an accent. A normal form chooses one of them. These are the settings that are known:

        None                                                       None
        {"type": "NFC"}                                            NFC
        {"type": "Sequence", "normalizers": []}                    None
        {"type": "Sequence", "normalizers": [{"type": "NFC"}]}     NFC

    Args:
        value: The entry `normalizer` of the tokenizer.json, Hugging Face's format for tokenizers.

    Raises:
        NotRecognisedError: The normalizer does anything else, such as writing all letters small.
    """
    if value is None:
        return None

    # A single normalizer, such as {"type": "NFC"}.
    if value.get("type") != "Sequence":
        known_forms = get_args(Form)  # the names in the type `Form`: NFC, NFKC
        _check_members(value, "the normalizer", type=known_forms)
        form: Form = value["type"]
        return form

    # Several normalizers. NFKC changes all that NFC changes, and more, so it counts.
    _check_members(value, "the normalizer", type=_ANYTHING, normalizers=_ANYTHING)
    forms = {_read_normalizer(member) for member in value["normalizers"]}
    if "NFKC" in forms:
        return "NFKC"
    if "NFC" in forms:
        return "NFC"
    return None


def _read_pre_tokenizer(value: Any) -> SplitPattern:
    r"""Return how a pre-tokenizer cuts text into words, if it does so in one of the known ways.

    The pre-tokenizer is the part of a tokenizer.json (Hugging Face's format) that says how text is
    cut. It consists of any number of splits, each by a regular expression, and of a last part
    `ByteLevel`, which may also split, by the expression of GPT-2:

        Split by "\p{N}{1,3}"    "in 2024"  →  "in ", "202", "4"
        Split by " ?\p{L}+"      "in "      →  "in", " "
        ByteLevel                takes each piece as bytes

    Our own tokenizer does not run these expressions. It has faster code for those of published
    tokenizers, which it recognises by all the expressions together.

    Args:
        value: The entry `pre_tokenizer` of the file.

    Raises:
        NotRecognisedError: It has other members or settings, or expressions that are not known.
    """
    *split_members, byte_level = _members_of_pre_tokenizer(value)
    splits = [_read_split(member) for member in split_members]
    _check_members(
        byte_level,
        "the pre-tokenizer",
        type=("ByteLevel",),
        add_prefix_space=(False,),
        use_regex=_TRUE_FALSE_OR_MISSING,
        trim_offsets=_ANYTHING,
    )

    # The last part has the expression of GPT-2 without writing it down.
    regexes = [split.regex for split in splits]
    if byte_level.get("use_regex") is not False:  # the default is True
        regexes += GPT2.regex
    pattern = _known_pattern(regexes)

    # Most known patterns match all text: a character that is no letter, number or space counts as a
    # symbol. DeepSeek's pattern leaves some characters unmatched. Our code makes a piece of these,
    # which is right only if the tokenizer keeps the text between two matches.
    matches_all_text = pattern.rest == OTHER  # `rest`: the class of all other characters
    if not matches_all_text and not all(split.keeps_all for split in splits):
        raise NotRecognisedError(
            f"a split that drops what is between the matches of {pattern.name}"
        )
    return pattern


def _members_of_pre_tokenizer(value: Any) -> list[Any]:
    """Return the members of a pre-tokenizer of the type Sequence; of others, the only one."""
    if value["type"] != "Sequence":
        return [value]
    _check_members(value, "the pre-tokenizer", type=_ANYTHING, pretokenizers=_ANYTHING)
    # An empty sequence lacks a ByteLevel: the check of an empty member reports that.
    return value["pretokenizers"] or [{}]


def _known_pattern(regexes: list[str]) -> SplitPattern:
    r"""Return the split pattern that cuts text by some regular expressions, if it is a known one.

    A split pattern says how a published tokenizer cuts text into words. The one of GPT-2 has one
    expression: "'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|…". Others have several.

    Args:
        regexes: The expressions by which a tokenizer cuts text, in the order in which it applies
            them.

    Raises:
        NotRecognisedError: No known pattern has just these expressions.
    """
    pattern = SPLIT_PATTERNS.get(tuple(regexes))
    if pattern is None:
        regex_or_all = regexes[0] if len(regexes) == 1 else regexes
        raise NotRecognisedError(f"split pattern {shortened(repr(regex_or_all), 100)}")
    return pattern


class _SplitPreTokenizer(NamedTuple):
    """A pre-tokenizer that splits text by a pattern."""

    regex: str
    """A regular expression, or DIGITS."""
    keeps_all: bool
    """Whether it keeps what is between the matches."""


def _read_split(value: Any) -> _SplitPreTokenizer:
    """Return the regular expression by which a part of a tokenizer cuts text into pieces.

    The tokenizer.json says for each split what happens to the text that the expression matches, and
    to the text between two matches. Two combinations of settings are known. For the expression
    "[a-z]+" and the text "ab, cd":

        behavior    invert     pieces
        Isolated    false      "ab", ", ", "cd"     text between matches is a piece, too
        Removed     true       "ab", "cd"           text between matches is dropped

    There is also a split of the type Digits, which makes each digit a piece.

    Args:
        value: The description of the split, an object of the tokenizer.json.

    Raises:
        NotRecognisedError: It is no split by a regular expression, or has other settings.
    """
    name = "a member of the pre-tokenizer"
    if value.get("type") == "Digits":
        _check_members(value, name, type=_ANYTHING, individual_digits=(True,))
        return _SplitPreTokenizer(DIGITS, keeps_all=True)

    _check_members(
        value,
        name,
        type=("Split",),
        pattern=_ANYTHING,
        behavior=("Isolated", "Removed"),
        invert=_TRUE_FALSE_OR_MISSING,
    )
    _check_members(value["pattern"], "the split pattern", Regex=_ANYTHING)
    regex = value["pattern"]["Regex"]

    # The engine knows two of the possible settings. In both of them, each match is a piece.
    is_inverted = bool(value.get("invert"))
    if value["behavior"] == "Isolated" and not is_inverted:
        # The text between two matches is a piece, too.
        return _SplitPreTokenizer(regex, keeps_all=True)
    if value["behavior"] == "Removed" and is_inverted:
        # Everything but the matches is removed.
        return _SplitPreTokenizer(regex, keeps_all=False)
    raise NotRecognisedError(
        f"behavior {value['behavior']} with invert {value.get('invert')} of the split"
    )


class _AddedTokens(NamedTuple):
    """The added tokens, as fields of `Rules`."""

    runs: dict[str, dict[int, int]]
    texts: tuple[str, ...]
    leaves_documents: bool


def _read_added_tokens(
    value: Any, split: SplitPattern | SpaceSigns, form: Form | None
) -> _AddedTokens:
    """Divide the added tokens into those that our own tokenizer can find, and all others.

    Added tokens are found in a text before it is cut into words: "<|endoftext|>", or several
    spaces. Our tokenizer, called the engine, is faster than Hugging Face's library, but finds only
    tokens that repeat one character, such as several spaces. Text with any other added token is
    left to the library.

    Args:
        value: `added_tokens` of the tokenizer.json (Hugging Face's format for tokenizers).
        split: How text is cut into words.
        form: The Unicode normal form that text is converted to.

    Raises:
        NotRecognisedError: The engine could not even tell which text has one of the other tokens.
    """
    repeatable = _repeatable_characters(split)
    run_tokens = []  # tokens that repeat one character: found while text is split
    other_tokens = []
    leaves_documents = isinstance(split, SpaceSigns) and split.prepends
    for entry in value or []:
        _check_members(entry, "an added token", **_ADDED_TOKEN_MEMBERS)
        token = _AddedToken(entry)
        depends_on_context = token.depends_on_context(split)
        if token.repeats_one_of(repeatable) and not depends_on_context:
            run_tokens.append(token)
            continue

        # Text with any other token goes to the library. Most often that is only some lines around
        # the token. It is the whole document if the engine might cut a text inside of the token.
        _check_text(token, split, form, may_be_space=not repeatable)
        other_tokens.append(token)
        may_contain_cut = SAFE_CUT.search(token.text.encode()) is not None
        leaves_documents |= depends_on_context or may_contain_cut

    return _AddedTokens(
        runs=_read_repeated_tokens(run_tokens, split, form),
        texts=tuple(token.text for token in other_tokens),
        leaves_documents=leaves_documents,
    )


@dataclass(frozen=True, slots=True)
class _AddedToken:
    """A text such as "<s>" that becomes one token wherever Hugging Face's library finds it."""

    entry: Mapping[str, Any]
    """The token as in the tokenizer.json, such as {"content": "<s>", "id": 1, "lstrip": true}."""

    @property
    def text(self) -> str:
        """The text that is found, such as "<s>"."""
        text: str = self.entry["content"]
        return text

    @property
    def is_found_after_normalizing(self) -> bool:
        """Whether the library looks for it in the text that the normalizer has changed."""
        return self.entry.get("normalized") is not False  # a missing flag counts as true

    def repeats_one_of(self, characters: str) -> bool:
        """Return whether the token is one of some characters, repeated once or more."""
        return len(set(self.text)) == 1 and self.text[0] in characters

    def depends_on_context(self, split: SplitPattern | SpaceSigns) -> bool:
        """Return whether it depends on the text around the token how it is found.

        These are the reasons, for a token "<s>":

            lstrip, rstrip    spaces before or after it become a part of the token
            single_word       it is found in "a <s> b", and not in "a<s>b"
            normalized        if the normalizer writes "a <s>" as "▁a▁<s>", it also changes the
                              token to "▁<s>": it is found after a space, and not after a letter

        Args:
            split: How text is cut into words. SpaceSigns writes spaces as ▁.
        """
        takes_spaces = self.entry.get("lstrip") or self.entry.get("rstrip")
        if takes_spaces or self.entry.get("single_word"):
            return True
        return isinstance(split, SpaceSigns) and self.is_found_after_normalizing


def _repeatable_characters(split: SplitPattern | SpaceSigns) -> str:
    r"""Return the characters for which our own tokenizer finds tokens of several in a row.

    Some vocabularies have a token for two spaces, one for three, and so on. Only for these
    characters, our tokenizer was compared with Hugging Face's library:

        kind of tokenizer                                characters         for example
        cuts text by a regular expression                space              GPT-NeoX
        writes spaces as ▁: "a b" → "a▁b"                newline and tab    Gemma
        also puts ▁ before the text: "a b" → "▁a▁b"      none               Llama 2

    Args:
        split: The kind of tokenizer: a SplitPattern is a regular expression, and SpaceSigns says
            how spaces are written.

    Returns:
        The characters in one text, such as "\n\t".
    """
    if isinstance(split, SplitPattern):
        return " "
    if split.prepends:
        # The library also puts a ▁ after each such token. Our tokenizer does not.
        return ""
    return "\n\t"


def _read_repeated_tokens(
    tokens: Sequence[_AddedToken], split: SplitPattern | SpaceSigns, form: Form | None
) -> dict[str, dict[int, int]]:
    """Return the ids of the tokens that repeat one character, such as two or four spaces.

    Args:
        tokens: The tokens: "  " with the id 50276, and "   " with the id 50275.
        split: How text is cut into words.
        form: The Unicode normal form that text is converted to.

    Returns:
        Character → number of repetitions → id: {" ": {2: 50276, 3: 50275}}.

    Raises:
        NotRecognisedError: Our tokenizer would not find them as Hugging Face's library does.
    """
    runs: dict[str, dict[int, int]] = {}
    for token in tokens:
        id_by_length = runs.setdefault(token.text[0], {})
        id_by_length[len(token.text)] = token.entry["id"]

    # The flag decides whether the library looks for a token before or after it normalizes text. Our
    # tokenizer looks for all at once.
    flags = {token.entry.get("normalized") for token in tokens}
    _check_repeated_tokens(runs, split, form, are_flags_equal=len(flags) <= 1)
    return runs


def _check_repeated_tokens(
    runs: dict[str, dict[int, int]],
    split: SplitPattern | SpaceSigns,
    form: Form | None,
    *,
    are_flags_equal: bool,
) -> None:
    """Refuse added tokens of repeated characters if our fast tokenizer would not find them rightly.

    Some vocabularies have tokens of several spaces or newlines, such as one token for two spaces
    and one for three. They are *added tokens*: a tokenizer looks for them before it cuts text into
    words. This project has a tokenizer of its own, the engine, which is faster than Hugging Face's
    `tokenizers` library, and must give the same tokens. It would not in these cases:

        lengths {2, 4}             there is a gap: no token of 3 spaces
        spaces, not GPT-2's split  nobody has compared the two on such a tokenizer
        different flags            the library looks for some tokens earlier than for others

    Args:
        runs: The tokens: character → number of repetitions → id, such as {" ": {2: 50276, 3:
            50275}}.
        split: How text is cut into words.
        form: The Unicode normal form that text is converted to; None if it is not converted.
        are_flags_equal: Whether the flag `normalized` is the same for all these tokens.

    Raises:
        NotRecognisedError: It is one of these cases. The caller then uses the library instead.
    """
    for character, id_by_length in runs.items():
        lengths = sorted(id_by_length)

        # With tokens of 1, 2 and 3 newlines, the engine cuts 8 newlines into 3, 3 and 2. So there
        # must be a token of every length up to the greatest; but none of a single space, which is
        # an ordinary token.
        min_length = 2 if character == " " else 1
        has_all_lengths = lengths == list(range(min_length, lengths[-1] + 1))

        # Tokens of spaces were compared with GPT-2's split pattern only. NFKC turns other
        # characters into spaces, so that the library finds longer runs than the engine.
        is_compared = character != " " or (split is GPT2 and form != "NFKC")

        # By the flag `normalized`, the library finds a token before or after the text is
        # normalised. The engine finds all of them at once, so they must have the same flag.
        if not (has_all_lengths and is_compared and are_flags_equal):
            raise NotRecognisedError(
                f"added tokens of {lengths} spaces or line ends, and the form {form}"
            )


def _check_text(
    token: _AddedToken, split: SplitPattern | SpaceSigns, form: Form | None, *, may_be_space: bool
) -> None:
    """Check that our tokenizer can tell which documents contain an added token.

    Our tokenizer looks for the text of the token, such as "<|endoftext|>", and leaves documents
    that contain it to Hugging Face's library, which is slower. These tokens are refused:

        ""                      all documents contain it, so all would be left to the library
        "  "                    nearly all documents contain it
        "ﬁ", with NFKC          the library finds "fi" instead, as NFKC replaces this one letter
        "a b", with ▁           the library finds "a▁b" instead, if it looks in normalized text

    Args:
        token: The token.
        split: How text is cut into words. SpaceSigns writes spaces as ▁.
        form: The Unicode normal form that text is converted to, such as "NFKC"; None if it is not
            converted.
        may_be_space: Whether a token of white space alone is allowed.

    Raises:
        NotRecognisedError: It is such a token. Then the library is used for all text.
    """
    text = token.text
    if not text:
        raise NotRecognisedError("an added token that is empty")
    if text.isspace() and not may_be_space:
        raise NotRecognisedError(f"added token {text!r}, which is white space")

    # Without a form, the library finds the token as it is. Those that NFC changes are refused all
    # the same, to be on the safe side.
    checked_form = form or "NFC"
    if not is_normalized(checked_form, text):
        raise NotRecognisedError(f"added token {text!r}, which a normal form changes")

    has_space = " " in text or SPACE_SIGN in text
    if isinstance(split, SpaceSigns) and has_space and token.is_found_after_normalizing:
        raise NotRecognisedError(f"added token {text!r}: it has a space, and is looked for among ▁")


_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN}
_PREPEND = {"type": "Prepend", "prepend": SPACE_SIGN}
_SPLIT_BY_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
# Metaspace's `prepend_scheme` → when a ▁ is put before a document. "first" differs from "always"
# only after added tokens.
_SCHEMES: dict[str, Prepend] = {
    "always": "unless there is one",
    "first": "unless there is one",
    "never": "never",
}


def _read_space_signs(normalizer: Any, pre_tokenizer: Any) -> SpaceSigns | None:
    """Return how a tokenizer treats spaces, or None if it does not write them as the sign ▁.

    Tokenizers that come from SentencePiece write spaces as ▁, so that a word and the space before
    it can be one token. Their tokenizer.json says it in one of three ways:

        as Gemma      the normalizer replaces spaces                     "a b" → "a▁b"
        as Llama 2    the normalizer puts a ▁ first, and replaces them   "a b" → "▁a▁b"
        Metaspace     a pre-tokenizer with settings for both

    Args:
        normalizer: The entry of the file that says how characters are changed, or None.
        pre_tokenizer: The entry that says how text is cut into words, or None.

    Raises:
        NotRecognisedError: Metaspace has a setting that is not known.
    """
    # A normalizer that replaces spaces. Gemma also has a split by spaces, which does nothing: there
    # are no spaces any more.
    if normalizer == _TO_SIGNS and pre_tokenizer in (None, _SPLIT_BY_SPACES):
        return SpaceSigns(prepend="never")

    # A normalizer that puts a ▁ before the text, and then replaces spaces.
    prepends_and_replaces = {"type": "Sequence", "normalizers": [_PREPEND, _TO_SIGNS]}
    if normalizer == prepends_and_replaces and pre_tokenizer is None:
        return SpaceSigns(prepend="always")

    if normalizer is None and pre_tokenizer and pre_tokenizer["type"] == "Metaspace":
        return _read_metaspace(pre_tokenizer)
    return None


def _read_metaspace(pre_tokenizer: Any) -> SpaceSigns:
    """Read how a tokenizer treats spaces if its pre-tokenizer is of the type Metaspace.

    A pre-tokenizer prepares text before words are looked up. Metaspace replaces spaces by the sign
    ▁, so that a word and the space before it can be one token, "▁b". It has two settings:

        prepend_scheme    "never": "a b" → "a▁b"    "always", "first": "a b" → "▁a▁b"
        split             true: "▁a▁b" is cut into "▁a" and "▁b"    false: it is not cut

    "first" differs from "always" only after special tokens inside a text.

    Args:
        pre_tokenizer: The entry of the tokenizer.json (Hugging Face's format for tokenizers).

    Raises:
        NotRecognisedError: It has other settings, or a sign other than ▁.
    """
    _check_members(
        pre_tokenizer,
        "the pre-tokenizer",
        type=_ANYTHING,
        replacement=(SPACE_SIGN,),
        prepend_scheme=tuple(_SCHEMES),
        split=(True, False),
    )
    return SpaceSigns(
        # Whether a document gets a ▁ at its beginning, as in "▁a▁b".
        prepend=_SCHEMES[pre_tokenizer["prepend_scheme"]],
        # Whether each ▁ starts a piece: "▁a▁b" is cut into "▁a" and "▁b".
        each_apart=pre_tokenizer["split"],
    )

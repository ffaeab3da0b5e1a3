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
        """Return all rules as arrays, to save them for later processes.

        `from_arrays` makes the rules from them again.

        Returns:
            Name → array. Everything that is not an array itself is in `settings`, as JSON.
        """
        # The arrays of the vocabulary are stored under the names of its fields.
        arrays = {name: getattr(self.vocabulary, name) for name in _VOCABULARY_ARRAYS}
        arrays["settings"] = to_array(self._settings())
        arrays["classes"] = self.classes
        return arrays

    def _settings(self) -> dict[str, Any]:
        """Return all rules that are no arrays, in a form that JSON can represent."""
        # JSON has no numbers as keys, so the ids of repeated characters by length become pairs.
        runs = {
            character: list(id_by_length.items()) for character, id_by_length in self.runs.items()
        }
        settings = {
            "form": self.form,
            "runs": runs,
            "added_tokens": self.added_tokens,
            "leaves_documents": self.leaves_documents,
            "whole_words": self.whole_words,
        }
        if isinstance(self.split, SplitPattern):
            settings["regex"] = self.split.regex  # by which a known pattern is found again
        else:
            settings["space_signs"] = asdict(self.split)
        return settings

    @staticmethod
    def from_arrays(arrays: Arrays) -> Rules:
        """Make rules from the arrays that `to_arrays` returned.

        Args:
            arrays: The arrays by name.
        """
        settings = from_array(arrays["settings"])
        vocabulary = Vocabulary(**{name: arrays[name] for name in _VOCABULARY_ARRAYS})
        return Rules(
            split=_split_of(settings),
            form=settings["form"],
            runs={character: dict(items) for character, items in settings["runs"].items()},
            added_tokens=tuple(settings["added_tokens"]),
            leaves_documents=settings["leaves_documents"],
            whole_words=settings["whole_words"],
            vocabulary=vocabulary,
            classes=arrays["classes"],
        )

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
    """Read the rules by which a tokenizer encodes text, for the numpy engine.

    Args:
        tokenizer: A parsed `tokenizer.json` that the tokenizers library can load.

    Raises:
        NotRecognisedError: The tokenizer has a setting that the numpy engine does not know.
    """
    try:
        return _read_tokenizer(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotRecognisedError(f"not built like a tokenizer.json: {error!r}") from error


def _split_of(settings: Mapping[str, Any]) -> SplitPattern | SpaceSigns:
    """Return how text is split, from the settings that `Rules.to_arrays` stored."""
    if "regex" in settings:
        return SPLIT_PATTERNS[tuple(settings["regex"])]
    return SpaceSigns(**settings["space_signs"])


def _read_tokenizer(tokenizer: Any) -> Rules:
    """Read how a tokenizer cuts text, and the tokens and merges by which it encodes the pieces.

    Args:
        tokenizer: A parsed `tokenizer.json`.

    Raises:
        NotRecognisedError: The tokenizer has a setting that the numpy engine does not know.
        AttributeError, KeyError, TypeError, ValueError: A part of it has an unexpected type.
    """
    _check_members(tokenizer, "the file", **_FILE_MEMBERS)

    # Some tokenizers cut text by a split pattern, and merge bytes. The others write spaces as ▁ (a
    # SpaceSigns says how), and merge characters.
    normalizer = tokenizer.get("normalizer")
    split, form = _read_splitting(normalizer, tokenizer.get("pre_tokenizer"))
    model = tokenizer.get("model")
    vocabulary = _read_model(model, over_characters=isinstance(split, SpaceSigns))
    added_tokens = _read_added_tokens(tokenizer.get("added_tokens"), split, form)

    # A split pattern cuts text where the class of characters changes, such as from letters to
    # symbols. Find the class of every code point.
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
    """Return how text is cut into pre-tokens, and the Unicode normal form that it is given first.

    Args:
        normalizer: The entry of the `tokenizer.json`, or None.
        pre_tokenizer: The entry of the `tokenizer.json`, or None.

    Returns:
        split: How text is cut by a split pattern; or how spaces are written as ▁, if nothing is
            cut.
        form: NFC, NFKC, or None.

    Raises:
        NotRecognisedError: The engine does not know the normalizer or the pre-tokenizer.
    """
    # Tokenizers that write spaces as ▁ use the normalizer for that. The engine knows none that also
    # converts text to a normal form.
    space_signs = _read_space_signs(normalizer, pre_tokenizer)
    if space_signs is not None:
        return space_signs, None
    form = _read_normalizer(normalizer)
    return _read_pre_tokenizer(pre_tokenizer), form


def _read_model(model: Any, *, over_characters: bool) -> Vocabulary:
    """Check a model, and return its words and merges.

    Args:
        model: The entry of the `tokenizer.json`.
        over_characters: Whether merges join characters, as in SentencePiece, or bytes.
    """
    _check_model(model, over_characters=over_characters)
    if over_characters:
        return read_character_vocabulary(model["vocab"], model["merges"])
    return read_vocabulary(model["vocab"], model["merges"])


def _check_members(value: Any, name: str, **allowed: Any) -> None:
    """Check that a JSON object has only known members, with known values.

    With `type=("BPE", None), vocab=_ANYTHING`, the type must be "BPE" or missing, the value of
    `vocab` does not matter, and there must be nothing else.

    Args:
        value: The object.
        name: Name of the object in the file, for messages.
        allowed: For each known member: its allowed values, None among them if it may be missing; or
            _ANYTHING.

    Raises:
        NotRecognisedError: A member is not known, or has another value.
    """
    for key, options in allowed.items():
        if options is _ANYTHING:
            continue
        member = value.get(key)  # None if it is missing
        if not _is_one_of(member, options):
            raise NotRecognisedError(f"{key} of {name} is {_excerpt(member)}")

    for key in value.keys() - allowed.keys():
        raise NotRecognisedError(f"unknown setting {key!r} in {name}")


def _is_one_of(value: Any, options: tuple[Any, ...]) -> bool:
    """Return whether a value is one of some options, and of the same type: 1 is not True."""
    return any(type(value) is type(option) and value == option for option in options)


def _excerpt(value: object) -> str:
    """Return a value as Python writes it, cut to 100 characters, for messages."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _read_normalizer(value: Any) -> Form | None:
    """Return the Unicode normal form that a normalizer makes: NFC, NFKC or none.

    Args:
        value: The entry of the `tokenizer.json`, an object with a type, or None. An object of the
            type Sequence has a list of normalizers, which are applied one after another.

    Returns:
        The normal form; None if the normalizer changes nothing.

    Raises:
        NotRecognisedError: The normalizer does anything else.
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
    """Return the split pattern of a pre-tokenizer, which cuts text by regular expressions.

    Its members are any number of splits, each by one expression, and then ByteLevel, which may also
    split, by the expression of GPT-2. A pattern is recognised by all these expressions together.

    Args:
        value: The entry of the `tokenizer.json`.

    Raises:
        NotRecognisedError: The pre-tokenizer has other members or settings, or no known pattern.
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

    # The expressions of all members, in order, identify the pattern.
    regexes = [split.regex for split in splits]
    if byte_level.get("use_regex") is not False:  # the default is True
        regexes += GPT2.regex
    pattern = _known_pattern(regexes)

    # In most patterns, a character that is in no other class is a symbol (OTHER), and matched as
    # such. In DeepSeek's, it is matched by nothing. The engine makes it a piece, which is right
    # only if the tokenizer keeps the text between matches.
    matches_all_text = pattern.rest == OTHER
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
    """Return the split pattern that consists of some regular expressions.

    Args:
        regexes: The expressions by which a tokenizer cuts text, in the order in which it
            applies them.

    Raises:
        NotRecognisedError: There is none.
    """
    pattern = SPLIT_PATTERNS.get(tuple(regexes))
    if pattern is None:
        regex_or_all = regexes[0] if len(regexes) == 1 else regexes
        raise NotRecognisedError(f"split pattern {_excerpt(regex_or_all)}")
    return pattern


class _SplitPreTokenizer(NamedTuple):
    """A pre-tokenizer that splits text by a pattern."""

    regex: str
    """A regular expression, or DIGITS."""
    keeps_all: bool
    """Whether it keeps what is between the matches."""


def _read_split(value: Any) -> _SplitPreTokenizer:
    """Return the regular expression by which a member of the pre-tokenizer cuts text into pieces.

    Args:
        value: The member, an object with a type.

    Raises:
        NotRecognisedError: The member is not a split by a regular expression, or the pieces are not
            what the expression matches.
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


def _check_model(value: Any, *, over_characters: bool) -> None:
    """Check that the model is a BPE with settings that the engine knows.

    Args:
        value: The entry `model` of the `tokenizer.json`.
        over_characters: Whether merges join characters, as in SentencePiece, or bytes.

    Raises:
        NotRecognisedError: The model has another type, or a setting with another value.
    """
    members = _BPE_OVER_CHARACTERS if over_characters else _BPE_OVER_BYTES
    _check_members(value, "the model", **members)


class _AddedTokens(NamedTuple):
    """The added tokens, as fields of `Rules`."""

    runs: dict[str, dict[int, int]]
    texts: tuple[str, ...]
    leaves_documents: bool


def _read_added_tokens(
    value: Any, split: SplitPattern | SpaceSigns, form: Form | None
) -> _AddedTokens:
    """Divide the added tokens into those that the engine finds by itself, and all others.

    The engine finds tokens that repeat one character, such as several spaces. Text with any other
    added token is left to the reference.

    Args:
        value: `added_tokens` of the file.
        split: How text is split.
        form: The form that text is normalised to.

    Raises:
        NotRecognisedError: The engine could not find one of the tokens as the library does.
    """
    has_signs = isinstance(split, SpaceSigns)
    prepends_sign = isinstance(split, SpaceSigns) and split.prepend != "never"
    repeatable = _repeatable_characters(split)
    run_tokens = []  # tokens that repeat one character: found while text is split
    other_tokens = []
    leaves_documents = prepends_sign
    for token in value or []:
        _check_members(token, "an added token", **_ADDED_TOKEN_MEMBERS)
        content = token["content"]
        depends_on_context = _depends_on_surroundings(token, has_signs=has_signs)
        repeats_one_character = len(set(content)) == 1 and content[0] in repeatable
        if repeats_one_character and not depends_on_context:
            run_tokens.append(token)
            continue

        # Text with any other token goes to the reference. That is only some lines around the token,
        # unless a place where the engine would cut the text may be inside the token.
        _check_content(token, form, may_be_space=not repeatable, has_signs=has_signs)
        other_tokens.append(token)
        may_contain_cut = SAFE_CUT.search(content.encode()) is not None
        leaves_documents |= depends_on_context or may_contain_cut

    return _AddedTokens(
        runs=_read_runs(run_tokens, split, form),
        texts=tuple(token["content"] for token in other_tokens),
        leaves_documents=leaves_documents,
    )


def _repeatable_characters(split: SplitPattern | SpaceSigns) -> str:
    """Return the characters whose repetitions the engine finds as added tokens.

    Args:
        split: How text is split.
    """
    if isinstance(split, SplitPattern):
        return " "
    # The library would put a ▁ before the text after each added token, which the engine does not.
    if split.prepend != "never":
        return ""
    return "\n\t"


def _read_runs(
    tokens: Sequence[Any], split: SplitPattern | SpaceSigns, form: Form | None
) -> dict[str, dict[int, int]]:
    """Return the added tokens that repeat one character, such as two or four spaces.

    Args:
        tokens: Their entries in `added_tokens` of the file.
        split: How text is split.
        form: The form that text is normalised to.

    Returns:
        Character → number of repetitions → id: `{" ": {2: 50276, 4: 50274}}`.

    Raises:
        NotRecognisedError: The engine would not find them as the library does.
    """
    runs: dict[str, dict[int, int]] = {}
    for token in tokens:
        content = token["content"]
        runs.setdefault(content[0], {})[len(content)] = token["id"]

    normalized_flags = {token.get("normalized") for token in tokens}
    _check_runs(runs, split, form, are_flags_equal=len(normalized_flags) <= 1)
    return runs


def _check_runs(
    runs: dict[str, dict[int, int]],
    split: SplitPattern | SpaceSigns,
    form: Form | None,
    *,
    are_flags_equal: bool,
) -> None:
    """Check that the engine finds added tokens that repeat one character as the library does.

    Args:
        runs: The tokens: character → number of repetitions → id.
        split: How text is split.
        form: The Unicode normal form that text is converted to; None if it is not converted.
        are_flags_equal: Whether the flag `normalized` is the same for all these tokens.

    Raises:
        NotRecognisedError: It does not, for one of three reasons: some lengths have no token, such
            tokens were not compared with the split pattern, or their flags differ.
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


def _depends_on_surroundings(token: Any, *, has_signs: bool) -> bool:
    """Return whether the text around an added token decides what the library finds.

    That is so if the token includes white space around it, if it has to be a whole word, or if the
    library looks for it after changing the text.
    """
    if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
        return True
    return has_signs and token.get("normalized") is not False


def _check_content(token: Any, form: Form | None, *, may_be_space: bool, has_signs: bool) -> None:
    """Check that this engine finds an added token wherever the tokenizers library finds it.

    The engine looks for the text of the token in a document, and leaves what contains it to the
    library. That fails for a few unusual tokens.

    Args:
        token: The entry of `added_tokens` in a `tokenizer.json`.
        form: The Unicode normal form that text is converted to; None if it is not converted.
        may_be_space: Whether a token of white space alone is allowed.
        has_signs: Whether the tokenizer writes spaces as ▁.

    Raises:
        NotRecognisedError: The engine could not find the token.
    """
    content = token["content"]
    if not content:
        raise NotRecognisedError("an added token that is empty")
    # Nearly all text contains white space, and would be left to the library.
    if content.isspace() and not may_be_space:
        raise NotRecognisedError(f"added token {content!r}, which is white space")

    # A token that the normal form changes does not occur in normalised text. Without a form, it
    # must be in NFC all the same, to be on the safe side.
    if not is_normalized(form or "NFC", content):
        raise NotRecognisedError(f"added token {content!r}, which a normal form changes")
    # The library looks for some tokens only after it has written the spaces of the text as ▁.
    if has_signs and _is_found_among_signs(token):
        raise NotRecognisedError(
            f"added token {content!r}: it has a space, and is looked for among ▁"
        )


def _is_found_among_signs(token: Any) -> bool:
    """Return whether a token has a space and the library looks for it in text with ▁ for spaces.

    The library does that for tokens that are `normalized`, while this engine looks for them in the
    text as it was.
    """
    content = token["content"]
    has_space = " " in content or SPACE_SIGN in content
    return has_space and token.get("normalized") is not False


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
    """Return how a tokenizer treats spaces, or None if it does not write them as ▁.

    It may do so by a normalizer that replaces spaces (Gemma), by one that also puts a ▁ before the
    text (Llama 2), or by the pre-tokenizer Metaspace.

    Args:
        normalizer: The entry of the `tokenizer.json`, or None.
        pre_tokenizer: The entry of the `tokenizer.json`, or None.

    Raises:
        NotRecognisedError: Metaspace has a setting that the engine does not know.
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
    """Return how the pre-tokenizer Metaspace writes spaces as ▁: "a b" becomes "▁a▁b" or "a▁b".

    Args:
        pre_tokenizer: The entry of the `tokenizer.json`.

    Raises:
        NotRecognisedError: It has a setting that the engine does not know.
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

"""Examine a tokenizer.json for faults that the tokenizers library does not report.

Some faults make the tokens useless or random, and raise an error: an empty vocabulary, and added
tokens of which the library picks one at random. BPE dropout is switched off. All other faults are
reported as notices, because the tokens are still well-defined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.tokenizers.files.tokenizer_json import (
    component_types,
    ids_of_vocabulary,
    load_or_none,
    missing_bytes,
    parsed_added_tokens,
)
from nanoset_core.tokenizers.rust_panics import panics_as_errors
from nanoset_core.wording import format_count

MIN_UNMERGED_SHARE = 0.01
"""Share of a vocabulary that no merge makes, above which merges seem to be missing.

Fewer such tokens prove nothing, because people add words to a vocabulary by hand.
"""
_SPECIAL_NAME = re.compile(r"<[^<>\s]+>|\[[A-Z0-9_]+\]")
"""A name as special tokens have it, such as <pad> or [CLS]; no merge makes such tokens."""
_N_SHOWN = 4
"""How many tokens a message names."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of examining a tokenizer.json."""

    model_changes: Mapping[str, Any] = field(default_factory=dict)
    """Setting of the model → the value that replaces the file's."""
    added_tokens: Sequence[Mapping[str, Any]] = ()
    """All added tokens, if files next to the tokenizer.json add some; else empty."""
    new_names: Sequence[str] = ()
    """Tokens that are added because files next to the tokenizer.json name them."""
    drops_characters: bool = False
    """Whether characters without a token are missing from the tokens of a text."""
    notices: Sequence[str] = ()
    """What the user should know; each continues a sentence that begins with the path of the file.
    """


def examine(
    tokenizer: Any, where: object, *, min_unmerged_share: float = MIN_UNMERGED_SHARE
) -> Examination:
    """Find settings of a tokenizer.json that make its tokens random, or lose text.

    Hugging Face's library loads such files without a word. There are faults

    - with which the tokenizer cannot be used, such as an empty vocabulary: an error;
    - that can be corrected: a random dropout is switched off;
    - of which the user is told: merges that seem to be missing, for example.

    Malformed parts are ignored: the library, which loads the file later, reports them.

    Args:
        tokenizer: The parsed file.
        where: The file's path, for errors.
        min_unmerged_share: Share of the vocabulary that no merge makes, above which merges are
            reported missing.

    Returns:
        Notices for the user, and changes with which the tokens are not random.

    Raises:
        FormatError: The vocabulary is empty, or two added tokens have the same normal form, so that
            the ids of some texts would be random.
    """
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    if not isinstance(model, dict) or not _is_vocabulary(model.get("vocab")):
        return Examination()

    # Faults with which a tokenizer cannot be used.
    added_tokens = parsed_added_tokens(tokenizer)
    _check_not_empty(model, where)
    empty_tokens = _check_normal_forms(tokenizer, added_tokens, where)

    # Faults that the user should know about.
    notices = [
        *_random_notices(model),
        *_empty_token_notices(empty_tokens),
        *_repeated_id_notices(model),
        *_renumbered_token_notices(model, added_tokens),
    ]
    dropped_notices = []
    is_bpe = model.get("type") in ("BPE", None)  # None: the file does not say
    if is_bpe:
        notices += _missing_merge_notices(model, added_tokens, min_unmerged_share)
        dropped_notices = _dropped_character_notices(tokenizer, model)
    return Examination(
        # With dropout, the library merges at random, when it encodes as well as when it trains.
        model_changes={"dropout": None} if model.get("dropout") else {},
        drops_characters=bool(dropped_notices),
        notices=[*notices, *dropped_notices],
    )


def _random_notices(model: Mapping[str, Any]) -> list[str]:
    """Return notices on settings of a model that make its tokens random."""
    notices = []
    if model.get("dropout"):
        notices.append(_dropout_notice(model))
    return [*notices, *_sampling_notices(model)]


def _empty_token_notices(empty_tokens: Sequence[str]) -> list[str]:
    """Return a notice if a tokenizer changes a special token to an empty text.

    Some tokenizers normalise special tokens and the text, and then look for the tokens in the text.
    An empty text is found between any two characters, so the text is cut everywhere.

    Args:
        empty_tokens: The special tokens whose normalised text is empty.
    """
    if not empty_tokens:
        return []
    return [
        "has added tokens that its normalizer turns into nothing, such as "
        f"{empty_tokens[0]!r}: the tokenizers library then cuts every text between any two "
        'characters. Set "normalized": false for them'
    ]


def _dropout_notice(model: Mapping[str, Any]) -> str:
    """Return the notice on a BPE that is set to leave out merges at random.

    Args:
        model: The model of a parsed tokenizer.json.
    """
    return (
        f"has BPE dropout ({model['dropout']}), which gives other tokens in each run; it is "
        'switched off here. Set "dropout": null in the file, so that training and inference '
        "do the same"
    )


def _is_vocabulary(value: Any) -> bool:
    """Return whether a value is a vocabulary: token → id, or the list of a unigram model."""
    if isinstance(value, dict):
        return all(isinstance(token_id, int) for token_id in value.values())
    return isinstance(value, list)


def _check_not_empty(model: Mapping[str, Any], where: object) -> None:
    """Check that a model has tokens.

    With an empty vocabulary, the tokenizers library would encode every text as nothing, without an
    error.

    Args:
        model: The model of a parsed tokenizer.json.
        where: Path of the file, for the error.

    Raises:
        FormatError: The vocabulary is empty.
    """
    if not model["vocab"]:
        raise FormatError(
            "the tokenizer's vocabulary is empty, so that every text would have no tokens",
            where=where,
            found="no entry in model.vocab",
            expected="a vocabulary as training a tokenizer writes it",
            remedy="fetch or write the file again, or use another tokenizer",
        )


def _check_normal_forms(
    tokenizer: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]], where: object
) -> list[str]:
    """Check that special tokens, such as <A> and <a>, stay different when text is normalized.

    Some tokenizers normalize a text first, for example to small letters, and then look for some of
    the special (added) tokens in it. If <A> and <a> are both tokens, the text "<A>" becomes "<a>",
    and may be either of them. Hugging Face's library then decides by chance, and in another way
    each time that the file is loaded.

    Args:
        tokenizer: The parsed tokenizer.json.
        added_tokens: Its added tokens.
        where: Path of the file, for errors.

    Returns:
        Tokens that become an empty text, which is another fault.

    Raises:
        FormatError: Two tokens become the same text.
    """
    names_by_form = _names_by_normal_form(tokenizer, added_tokens)
    empty_tokens = names_by_form.pop("", [])
    for form, same_names in names_by_form.items():
        if len(same_names) > 1:
            raise FormatError(
                "added tokens become the same text when they are normalized, "
                "so that one is chosen at random",
                where=where,
                found=f"{', '.join(map(repr, same_names[:_N_SHOWN]))}: each becomes {form!r}",
                expected="added tokens that differ in their normal form",
                remedy="remove all but one of them, "
                'or set "normalized": false for them in added_tokens',
            )
    return empty_tokens


def _names_by_normal_form(
    tokenizer: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Group special tokens by the text that they become when a tokenizer normalizes text.

    Only tokens with the flag `normalized` count: these are looked for in normalized text.

    Args:
        tokenizer: The parsed tokenizer.json.
        added_tokens: Its added tokens.

    Returns:
        Normalized text → the tokens, such as `{"<a>": ["<A>", "<a>"]}` if the normalizer makes
        letters small; empty if the tokenizer does not normalize text.
    """
    normalized_tokens = [token for token in added_tokens if token.get("normalized") is True]
    names = list(dict.fromkeys(token["content"] for token in normalized_tokens))  # each once
    if not names or not tokenizer.get("normalizer"):
        return {}

    forms = _normalize(tokenizer, names)
    names_by_form: dict[str, list[str]] = {}
    for name, form in zip(names, forms, strict=True):
        names_by_form.setdefault(form, []).append(name)
    return names_by_form


def _normalize(tokenizer: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """Change texts as a tokenizer does before it splits them, for example to small letters.

    Args:
        tokenizer: The parsed tokenizer.json, which has a normalizer.
        texts: Such as the special tokens ["<A>", "<a>"].

    Returns:
        The normalized texts; the same texts if the library cannot load the normalizer.
    """
    from tokenizers import Tokenizer

    # Load a tokenizer with this normalizer and nothing else: the whole one takes seconds.
    components = {
        "version": "1.0",
        "normalizer": tokenizer["normalizer"],
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        with panics_as_errors():
            normalizer = Tokenizer.from_buffer(orjson.dumps(components)).normalizer
            return [normalizer.normalize_str(text) for text in texts]
    except Exception:  # noqa: BLE001 - the library raises plain Exceptions
        return list(texts)


# Notices


def _sampling_notices(model: Mapping[str, Any]) -> list[str]:
    """Return a notice if a unigram model is set to sample random segmentations."""
    settings = []
    for name in ("alpha", "nbest_size"):
        if model.get(name):
            settings.append(f"{name} {model[name]}")
    if not settings:
        return []
    return [f"asks for random segmentations ({', '.join(settings)}); sampling is switched off here"]


def _repeated_id_notices(model: Mapping[str, Any]) -> list[str]:
    """Return a notice if several tokens of a vocabulary have the same id.

    With {"cat": 7, "dog": 7}, both words are encoded as 7, and nobody knows which one a 7 stands
    for.

    Args:
        model: The part of a parsed tokenizer.json with the vocabulary.

    Returns:
        A list with the notice, which names the first two such tokens; or an empty list.
    """
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict):
        return []
    name_by_id: dict[int, str] = {}
    for name, token_id in vocabulary.items():
        first_name = name_by_id.setdefault(token_id, name)
        if first_name != name:
            return [
                f"has several tokens of one id, such as {first_name!r} and {name!r} "
                f"(id {token_id}): tokens are certain, but text that is decoded from them is not"
            ]
    return []


def _renumbered_token_notices(
    model: Mapping[str, Any], added_tokens: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a notice if added tokens do not get the ids that a tokenizer.json gives them.

    Hugging Face's library ignores these ids, and so does transformers:

        vocabulary of 800 tokens    "<zz>" in added_tokens    its id in the library
        contains "<zz>" as 7        id 5                      7
        does not contain it         id 60000                  800, or the next one that is free

    Args:
        model: The part of a parsed tokenizer.json with the vocabulary.
        added_tokens: The added tokens, in the order of the file.

    Returns:
        A list with the notice, which names the first such token; or an empty list.
    """
    # Loading a large vocabulary takes seconds, so the library is not asked about the usual ids.
    if _have_usual_ids(model["vocab"], added_tokens):
        return []
    library_ids = _library_ids(model, added_tokens)
    changed_tokens = []
    for token in added_tokens:
        library_id = library_ids.get(token["content"])
        if (
            library_id is not None
            and isinstance(token.get("id"), int)
            and library_id != token["id"]
        ):
            changed_tokens.append(token)
    if not changed_tokens:
        return []

    first = changed_tokens[0]
    more = ""
    if len(changed_tokens) > 1:
        more = f" (and {len(changed_tokens) - 1:,} more)"
    return [
        f"gives the added token {first['content']!r} the id {first['id']:,}, but the tokenizers "
        f"library gives it {library_ids[first['content']]:,}, which is used here, too{more}: the "
        "library ignores the ids in added_tokens. If a model was trained with the id in the file, "
        "give it to the token in model.vocab"
    ]


def _have_usual_ids(vocabulary: Any, added_tokens: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether every version of Hugging Face's library gives added tokens the file's ids.

    The library ignores the ids that the file has for added tokens. A token that is also in the
    vocabulary gets its id there, and the others get the next ids after the vocabulary:

        vocabulary        "a" 0, "b" 1, "<s>" 2
        added tokens      "<s>", "<x>", "<y>"
        their usual ids   2, 3, 4

    Versions of the library differ if some ids are left out in the vocabulary. If "<s>" is 9 there,
    "<x>" gets 10 from some versions, and 3 from others.

    Args:
        vocabulary: Token → id, or the list of a unigram model.
        added_tokens: The added tokens, in the order of the file.
    """
    id_by_name = ids_of_vocabulary(vocabulary)
    n_tokens = len(id_by_name)
    next_id = n_tokens
    for token in added_tokens:
        name = token["content"]
        usual_id = id_by_name.get(name)
        if usual_id is None:
            usual_id = next_id
            next_id += 1
            id_by_name[name] = usual_id
        elif usual_id >= n_tokens:
            return False  # a gap, or a token that is listed twice
        if token.get("id") != usual_id:
            return False
    return True


def _library_ids(
    model: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]]
) -> dict[str, int]:
    """Return the ids that Hugging Face's library gives to added tokens.

    Args:
        model: The part of a parsed tokenizer.json with the vocabulary.
        added_tokens: The added tokens, in the order of the file.

    Returns:
        Token → id; empty if the library cannot load them.
    """
    components = {"version": "1.0", "added_tokens": list(added_tokens), "model": model}
    tokenizer = load_or_none(components)
    if tokenizer is None:
        return {}
    ids = {}
    for token in added_tokens:
        library_id = tokenizer.token_to_id(token["content"])
        if library_id is not None:
            ids[token["content"]] = library_id
    return ids


def _missing_merge_notices(
    model: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]], min_share: float
) -> list[str]:
    """Return a notice if a tokenizer's list of merges seems to be incomplete.

    A BPE tokenizer starts with single characters, and each merge joins two tokens to another one.
    If many longer tokens are not the result of a merge, some merges are probably missing: somebody
    has copied only a part of the file, or a file that belongs to another vocabulary.

    Args:
        model: The model of a parsed tokenizer.json.
        added_tokens: The added (special) tokens, which need no merges.
        min_share: There is a notice if more than this share of the vocabulary lacks a merge.
    """
    vocabulary = model["vocab"]
    unmerged = _tokens_without_merge(model, added_tokens)
    if len(unmerged) <= min_share * len(vocabulary):
        return []
    first = unmerged[0]  # the one with the smallest id
    n_tokens = format_count(len(vocabulary), "token")
    return [
        f"seems to lack merges: {len(unmerged):,} of {n_tokens} come from no merge, "
        f"the first is {first!r} (id {vocabulary[first]:,}). The merges are cut off, or belong to "
        "another vocabulary: compare their number with that of the published file"
    ]


def _tokens_without_merge(
    model: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]]
) -> Sequence[str]:
    """Return the tokens of a vocabulary that a merge should make, but none does.

    A BPE tokenizer starts with single characters, and merges two tokens to a longer one again and
    again. If it has the tokens "a", "b" and "ab", but no merge of "a" and "b", the token "ab" is
    never used: probably the list of merges is incomplete.

    Args:
        model: The part of a parsed tokenizer.json with the vocabulary and the merges.
        added_tokens: The special tokens, which need no merges.

    Returns:
        The tokens, sorted by id.
    """
    vocabulary = model["vocab"]  # token → id
    merges = model.get("merges")  # such as ["a b", …]
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        return []
    affixes = _Affixes.of(model)  # such as the ## of tokens within a word
    added_names = {token["content"] for token in added_tokens}
    try:
        merged = _merged_tokens(merges, affixes)
        return _unmerged_tokens(vocabulary, merged, added_names, affixes)
    except (ValueError, TypeError, AttributeError):
        return []  # a merge is no pair of texts: the tokenizers library refuses the file later


@dataclass(frozen=True, slots=True)
class _Affixes:
    """How the tokens of a BPE mark their position in a word."""

    prefix: str
    """Starts every token that continues a word, such as ## in BERT's."""
    suffix: str
    """Ends every token that ends a word, such as </w> in CLIP's."""

    @staticmethod
    def of(model: Mapping[str, Any]) -> _Affixes:
        """Return the affixes in the settings of a model."""
        prefix = model.get("continuing_subword_prefix") or ""
        suffix = model.get("end_of_word_suffix") or ""
        return _Affixes(prefix, suffix)

    def stripped(self, token: str) -> str:
        """Return a token without them."""
        return token.removeprefix(self.prefix).removesuffix(self.suffix)


def _merged_tokens(merges: Iterable[str | Sequence[str]], affixes: _Affixes) -> set[str]:
    """Return the tokens that a vocabulary's merges make: the merge "a b" makes "ab".

    In some vocabularies, tokens have a mark that says where in a word they may be:

        merge          makes      mark
        "a b"          "ab"       none
        "a ##s"        "as"       ## for tokens within a word; dropped when "s" is joined with "a"
        "a s</w>"      "as</w>"   </w> for tokens at the end of a word; the result is one, too

    Args:
        merges: The merges; each is a pair of tokens, or both in a text with a space between them.
        affixes: The two marks; empty if there are none.

    Raises:
        ValueError, TypeError, AttributeError: A merge is no pair of texts.
    """
    merged = set()
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        merged.add(left + right.removeprefix(affixes.prefix))
    return merged


def _unmerged_tokens(
    vocabulary: Mapping[str, int],
    merged: Collection[str],
    added_names: Collection[str],
    affixes: _Affixes,
) -> list[str]:
    """Return the tokens for which a merge seems to be missing, sorted by id.

    A merge joins two tokens to a longer one. If the vocabulary has "a", "b" and "ba", there must be
    a merge of "b" and "a".

    Args:
        vocabulary: Token → id.
        merged: Tokens that merges make.
        added_names: Special tokens, which need no merge.
        affixes: Marks of the tokens' position in a word, such as ## before "##s".
    """
    unmerged = []
    for token in vocabulary:
        looks_special = _SPECIAL_NAME.fullmatch(token) is not None  # such as "<pad>"
        if token in merged or token in added_names or looks_special:
            continue
        if _could_be_merged(token, vocabulary, affixes):
            unmerged.append(token)
    return sorted(unmerged, key=vocabulary.__getitem__)


def _could_be_merged(token: str, vocabulary: Mapping[str, int], affixes: _Affixes) -> bool:
    """Return whether two tokens of a vocabulary, put together, are a given token.

    If not, no merge could make it. Such a token is a single character, or was added by hand, such
    as RoBERTa's madeupword0000.

    Args:
        token: A token of the vocabulary, such as "as".
        vocabulary: Token → id, such as {"a": 0, "##s": 1, "as": 2}.
        affixes: Marks of the tokens' position in a word. A right part has the mark of tokens that
            continue a word: "as" could be "a" and "##s".
    """
    is_single_character = len(affixes.stripped(token)) <= 1  # marks are no characters
    if is_single_character:
        return False
    for cut in range(1, len(token)):
        left = token[:cut]
        right = affixes.prefix + token[cut:]
        if left in vocabulary and right in vocabulary:
            return True
    return False


def _dropped_character_notices(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return a notice if a tokenizer drops characters for which it has no token.

    A BPE tokenizer makes tokens by merging smaller ones, and starts with single characters or
    bytes. If one of these has no token, there are three cases:

        it has an unk_token            that stands for the character: no notice
        it works with bytes (GPT-2)    notice if some of the 256 bytes have no token
        it works with characters       notice, unless it writes unknown ones as bytes, "<0xE2>"

    Args:
        tokenizer: The parsed tokenizer.json (Hugging Face's format for tokenizers).
        model: Its part with the vocabulary and the merges.

    Returns:
        A list with the notice, or an empty list. The notice continues a sentence that begins with
        the file's path: "has no token for 2 bytes, the first 0x41, and no unk_token. …".
    """
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict) or _encodes_all_characters(model):
        return []
    remedy = (
        "Such characters are left out of the data; "
        "train the tokenizer with all bytes, or give it an unk_token"
    )

    # A byte-level tokenizer writes the bytes of a text as characters, and needs a token for each.
    normalizer_types = component_types(tokenizer.get("normalizer"))
    pre_tokenizer_types = component_types(tokenizer.get("pre_tokenizer"))
    if "ByteLevel" in normalizer_types | pre_tokenizer_types:
        missing = missing_bytes(vocabulary)
        if not missing:
            return []
        count = format_count(len(missing), "byte")
        return [
            f"has no token for {count}, the first 0x{missing[0]:02X}, and no unk_token. {remedy}"
        ]

    # Any other one has tokens for some characters only.
    n_characters = sum(len(token) == 1 for token in vocabulary)
    return [
        f"has tokens for {format_count(n_characters, 'character')}, "
        f"and neither an unk_token nor all bytes. {remedy}"
    ]


def _encodes_all_characters(model: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer has a token for unknown characters, or tokens for all bytes.

    The first is its unk_token. The second are the tokens "<0x00>" to "<0xFF>", which are used if
    the setting byte_fallback is true: "✓" becomes "<0xE2>", "<0x9C>", "<0x93>".

    Args:
        model: The model of a parsed tokenizer.json, whose vocabulary is token → id.
    """
    if model.get("unk_token") is not None:
        return True
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    has_all_bytes = all(token in model["vocab"] for token in byte_tokens)
    return bool(model.get("byte_fallback")) and has_all_bytes

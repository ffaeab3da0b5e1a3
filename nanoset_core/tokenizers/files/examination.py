"""Find what makes a tokenizer.json useless or its ids random, and what its user should know about
it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.records.text import format_count
from nanoset_core.tokenizers.files.parts import own_tokens, types_within
from nanoset_core.tokenizers.files.source import byte_characters

NEVER_IN_UTF_8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
"""Bytes that no text in UTF-8 holds, so that a vocabulary needs no tokens for them: GPT-NeoX's has
none.
"""
_SPECIAL_NAME = re.compile(r"<[^<>\s]+>|\[[A-Z0-9_]+\]")
"""Names as special tokens have them. Vocabularies hold them next to the tokens that merges make."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
MIN_UNMERGED_SHARE = 0.01
"""Share of a tokenizer.json's vocabulary that no merge makes, from which on merges seem to be
missing.

People add words to a vocabulary by hand: a few such tokens prove nothing.
"""
_SHOWN = 4
"""How many tokens a message names."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of examining a tokenizer.json."""

    model_changes: Mapping[str, Any] = field(default_factory=dict)
    """Setting of the model → the value that is used in place of the file's."""
    added_tokens: Sequence[Mapping[str, Any]] = ()
    """All added tokens, if files next to the tokenizer.json add some; else nothing."""
    new_names: Sequence[str] = ()
    """Tokens that only files next to the tokenizer.json name, and that are added."""
    drops_characters: bool = False
    """Whether characters that the tokenizer has no token for are missing from the tokens of a text."""
    notices: Sequence[str] = ()
    """What the user should know; each continues a sentence that begins with the path of the file."""


def examine(
    tokenizer: Any, where: object, *, min_unmerged_share: float = MIN_UNMERGED_SHARE
) -> Examination:
    """Examine a parsed tokenizer.json.

    What is malformed is passed over: the tokenizers library, which loads the file later, reports
    it.

    Args:
        tokenizer: The parsed file.
        where: The file's path, for errors.
        min_unmerged_share: Share of the vocabulary that no merge makes, above which merges are
            reported missing.

    Raises:
        FormatError: The vocabulary is empty, or the ids of some text would be chosen at random.
    """
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    if not isinstance(model, dict) or not _is_vocabulary(model.get("vocab")):
        return Examination()
    added_tokens = own_tokens(tokenizer)
    _check_vocabulary(model, where)
    empty_tokens = _check_normal_forms(tokenizer, added_tokens, where)

    # The library draws random numbers for each word with dropout, in inference too.
    changes: dict[str, Any] = {}
    notices = []
    if dropout := model.get("dropout"):
        changes["dropout"] = None
        notices.append(
            f"has BPE dropout ({dropout}), which gives other tokens in each run; it is switched off here. Set "
            '"dropout": null in the file, so that training and inference do the same'
        )
    sampling = [f"{name} {model[name]}" for name in ("alpha", "nbest_size") if model.get(name)]
    if sampling:
        notices.append(
            f"asks for random segmentations ({', '.join(sampling)}); sampling is switched off here"
        )

    if empty_tokens:
        notices.append(
            f"has added tokens that its normalizer turns into nothing, such as {empty_tokens[0]!r}: the tokenizers "
            'library then cuts every text between any two characters. Set "normalized": false for them'
        )
    notices += _repeated_ids(model)
    vanishing = []
    if model.get("type") in ("BPE", None):
        notices += _missing_merges(model, added_tokens, min_unmerged_share)
        vanishing = list(_vanishing_characters(tokenizer, model))
        notices += vanishing
    return Examination(changes, drops_characters=bool(vanishing), notices=notices)


def _is_vocabulary(value: Any) -> bool:
    """Return whether a value is a mapping from tokens to ids, or a list as unigram models have it."""
    if isinstance(value, dict):
        return all(isinstance(ident, int) for ident in value.values())
    return isinstance(value, list)


def _check_vocabulary(model: Mapping[str, Any], where: object) -> None:
    """Refuse a model without tokens: the library would turn every text into nothing, without an
    error.
    """
    if not model["vocab"]:
        raise FormatError(
            "the tokenizer's vocabulary is empty, so that every text would have no tokens",
            where=where,
            found="no entry in model.vocab",
            expected="a vocabulary as training a tokenizer writes it",
            remedy="fetch or write the file again, or name another tokenizer",
        )


def _check_normal_forms(
    tokenizer: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]], where: object
) -> list[str]:
    """Refuse added tokens that become the same text once they are normalized.

    The library looks for them in normalized text, finds them all at one place, and takes the one
    that comes first in a hash map, whose order differs from one loading of the file to the next.

    Returns:
        Added tokens that become nothing.
    """
    contents = list(
        dict.fromkeys(token["content"] for token in added_tokens if token.get("normalized") is True)
    )
    if not contents or not tokenizer.get("normalizer"):
        return []

    names_by_form: dict[str, list[str]] = {}
    for content, form in zip(contents, _normalized(tokenizer, contents), strict=True):
        names_by_form.setdefault(form, []).append(content)
    empty_tokens = names_by_form.pop("", [])
    for form, names in names_by_form.items():
        if len(names) > 1:
            raise FormatError(
                "added tokens become the same text when they are normalized, so that one is chosen at random",
                where=where,
                found=f"{', '.join(map(repr, names[:_SHOWN]))}: each becomes {form!r}",
                expected="added tokens that differ in their normal form",
                remedy='remove all but one of them, or set "normalized": false for them in added_tokens',
            )
    return empty_tokens


def _normalized(tokenizer: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """Return texts as the tokenizer's normalizer leaves them; as they are, if the library cannot
    tell.
    """
    from tokenizers import Tokenizer

    # A tokenizer with the same normalizer and nothing else: the whole one takes seconds to load.
    parts = {
        "version": "1.0",
        "normalizer": tokenizer["normalizer"],
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        normalizer = Tokenizer.from_buffer(orjson.dumps(parts)).normalizer
        return [normalizer.normalize_str(text) for text in texts]
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return list(texts)


def _repeated_ids(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a notice on tokens that share an id: which of them an id is decoded to differs from run
    to run.
    """
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict) or len(set(vocabulary.values())) == len(vocabulary):
        return
    name_by_id: dict[int, str] = {}
    for name, ident in vocabulary.items():
        other = name_by_id.setdefault(ident, name)
        if other != name:
            yield (
                f"has several tokens of one id, such as {other!r} and {name!r} (id {ident}): tokens are certain, but "
                "text that is decoded from them is not"
            )
            return


def _unmerged_tokens(
    vocabulary: Mapping[str, int],
    merges: Iterable[str | Sequence[str]],
    *,
    left_out: Collection[str] = (),
    prefix: str = "",
    suffix: str = "",
) -> list[str]:
    """List the tokens of a BPE that its merges should make and do not, by id.

    Args:
        vocabulary: Token → id.
        merges: Pairs of tokens, or their texts with a space between.
        left_out: Tokens that need no merge, such as added ones.
        prefix: Begins every token that continues a word.
        suffix: Ends every token that ends a word.
    """
    made = set()
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        made.add(left + right.removeprefix(prefix))

    def is_merge_of_two(token: str) -> bool:
        """Return whether two tokens of the vocabulary make it: others were added by hand, as
        RoBERTa's madeupword.
        """
        cuts = range(1, len(token))
        return any(token[:cut] in vocabulary and prefix + token[cut:] in vocabulary for cut in cuts)

    unmerged = [
        token
        for token in vocabulary
        if token not in made
        and len(token.removeprefix(prefix).removesuffix(suffix)) > 1
        and token not in left_out
        and not _SPECIAL_NAME.fullmatch(token)
        and is_merge_of_two(token)
    ]
    return sorted(unmerged, key=vocabulary.__getitem__)


def _missing_merges(
    model: Mapping[str, Any], added_tokens: Iterable[Mapping[str, Any]], min_share: float
) -> Iterator[str]:
    """Yield a notice if more than a share of a BPE's vocabulary comes from no merge."""
    vocabulary = model["vocab"]
    merges = model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        return
    try:
        unmerged = _unmerged_tokens(
            vocabulary,
            merges,
            left_out={token["content"] for token in added_tokens},
            prefix=model.get("continuing_subword_prefix") or "",
            suffix=model.get("end_of_word_suffix") or "",
        )
    except (ValueError, TypeError, AttributeError):
        return  # a merge that is no pair of tokens: the library refuses the file
    if len(unmerged) > min_share * len(vocabulary):
        first = unmerged[0]
        yield (
            f"seems to lack merges: {len(unmerged):,} of {format_count(len(vocabulary), 'token')} come from no merge, "
            f"from {first!r} (id {vocabulary[first]:,}) on. The merges are cut off, or belong to another vocabulary: "
            "compare their number with that of the published file"
        )


def _vanishing_characters(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a notice if a BPE drops characters that it has no token for."""
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict) or model.get("unk_token") is not None:
        return
    has_all_bytes = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    if model.get("byte_fallback") and has_all_bytes:
        return

    remedy = "Such characters are left out of the data; train the tokenizer with all bytes, or give it an unk_token"
    if "ByteLevel" in types_within(tokenizer.get("normalizer")) | types_within(
        tokenizer.get("pre_tokenizer")
    ):
        characters = enumerate(byte_characters())
        missing = [
            byte
            for byte, name in characters
            if name not in vocabulary and byte not in NEVER_IN_UTF_8
        ]
        if missing:
            count = format_count(len(missing), "byte")
            yield f"has no token for {count}, the first 0x{missing[0]:02X}, and no unk_token. {remedy}"
        return
    alphabet = sum(len(token) == 1 for token in vocabulary)
    yield f"has tokens for {format_count(alphabet, 'character')}, and neither an unk_token nor all bytes. {remedy}"

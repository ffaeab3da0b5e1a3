"""Count the characters that a tokenizer drops.

A BPE without an unk_token encodes a character that it has no token for as nothing: "añb" becomes
the tokens of "ab" if there is none for ñ. The counts are reported as text that was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from nanoset_core.tokenizers.engines import Engine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.files import define
from nanoset_core.tokenizers.files.tokenizer_json import parsed_added_tokens


class VanishingCharacters:
    """Counts the characters of texts that a tokenizer has no token for.

    They are counted after the tokenizer has normalized and split the text. With a byte-level
    tokenizer, the characters are bytes.
    """

    def __init__(self, reference: ReferenceEngine) -> None:
        self._reference = reference
        tokenizer = orjson.loads(define(reference.file).json())
        self._alphabet = _alphabet(tokenizer["model"])
        self._added_token = _added_token_pattern(tokenizer)

    def count(self, texts: Iterable[str]) -> int:
        """Return how many characters of texts vanish, since the tokenizer has no token for them.

        Args:
            texts: Documents.

        Returns:
            The number in all texts together: 1 for "añb" if the tokenizer has no token for ñ.
        """
        return sum(self._count_in_text(text) for text in texts)

    def _count_in_text(self, text: str) -> int:
        """Count the characters of one text for which the tokenizer has no token.

        They vanish: the text is encoded without them. For "añb", with no token for ñ, the count is
        1.

        Args:
            text: A document.
        """
        # Added tokens are found before a text is split into characters: theirs do not vanish.
        if self._added_token is None:
            segments = [text]
        else:
            segments = self._added_token.split(text)

        count = 0
        for segment in segments:
            normalized = self._reference.normalise(segment)
            for piece, _ in self._reference.split(normalized):
                count += sum(character not in self._alphabet for character in piece)
        return count


def _alphabet(model: Mapping[str, Any]) -> frozenset[str]:
    """Return the characters that a BPE has a token for."""
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    bare_tokens = [token.removeprefix(prefix).removesuffix(suffix) for token in model["vocab"]]
    return frozenset(token for token in bare_tokens if len(token) == 1)


def _added_token_pattern(tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a pattern that matches the added tokens, or None if there are none."""
    names = [token["content"] for token in parsed_added_tokens(tokenizer) if token["content"]]
    if not names:
        return None
    # A regular expression takes the first alternative that matches; the library, the longest token.
    names.sort(key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)))


def vanishing_characters(engine: Engine) -> VanishingCharacters | None:
    """Return a counter of the characters that a tokenizer drops, if it drops any.

    Some tokenizers have tokens for certain characters only, and leave out all others: "añb" may
    become the tokens of "ab". Such losses are counted, so that the user can be told.

    Args:
        engine: An implementation of the tokenizer. All have the tokenizer's own library as their
            `reference`, except for the library itself.

    Returns:
        The counter; None if the tokenizer has tokens for all text.
    """
    library = engine if engine.reference is None else engine.reference
    if not isinstance(library, ReferenceEngine):
        return None
    definition = define(library.file)
    if not definition.drops_characters:
        return None
    return VanishingCharacters(library)

"""Count characters that a tokenizer drops: a BPE without an unk_token gives nothing for those it
has no token for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import orjson

from nanoset_core.tokenizers.engines import Engine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.files import define
from nanoset_core.tokenizers.files.tokenizer_json import parsed_added_tokens


class VanishingCharacters:
    """Counts the characters of texts that a tokenizer has no token for, after it has normalized and
    split them.

    With a byte-level tokenizer these are bytes.
    """

    def __init__(self, reference: ReferenceEngine) -> None:
        self._reference = reference
        tokenizer = orjson.loads(define(reference.file).json())
        model = tokenizer["model"]
        prefix = model.get("continuing_subword_prefix") or ""
        suffix = model.get("end_of_word_suffix") or ""
        bare_tokens = (token.removeprefix(prefix).removesuffix(suffix) for token in model["vocab"])
        self._alphabet = frozenset(token for token in bare_tokens if len(token) == 1)

        # Added tokens are found before text is split into characters: theirs do not vanish.
        names = sorted(
            (token["content"] for token in parsed_added_tokens(tokenizer) if token["content"]),
            key=len,
            reverse=True,
        )
        self._added_token = re.compile("|".join(map(re.escape, names))) if names else None

    def count(self, texts: Iterable[str]) -> int:
        """Return how many characters of texts vanish."""
        return sum(self._count_in(part) for text in texts for part in self._parts(text))

    def _parts(self, text: str) -> list[str]:
        """Return the text between added tokens."""
        return [text] if self._added_token is None else self._added_token.split(text)

    def _count_in(self, text: str) -> int:
        pieces = self._reference.split(self._reference.normalise(text))
        return sum(character not in self._alphabet for piece, _ in pieces for character in piece)


def vanishing_characters(engine: Engine) -> VanishingCharacters | None:
    """Return what counts the characters that an engine's tokenizer drops; None if it has tokens for
    all text.
    """
    reference = engine if engine.reference is None else engine.reference
    if not isinstance(reference, ReferenceEngine) or not define(reference.file).drops_characters:
        return None
    return VanishingCharacters(reference)

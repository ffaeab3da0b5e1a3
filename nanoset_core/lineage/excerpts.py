"""Text to look at: decoded from tokens, and cut from the raw files that the tokens came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.lineage.texts import SourceState, read_texts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.tokenizers.engines import ReferenceEngine, reference_engine
from nanoset_core.tokenizers.engines.engine import EncodingError
from nanoset_core.tokenizers.engines.library import decode_tokens
from nanoset_core.tokenizers.files import TokenizerPath, stat_signature
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

MAX_CHARACTERS = 160
"""Of a text that is shown."""
_MAX_DECODED_TOKENS = 96
"""Enough for these characters."""
_MAX_TOKENIZED_CHARACTERS = 4 << 20
"""Longer texts are not tokenized again for an excerpt."""


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """The raw text at the place of some tokens."""

    state: SourceState
    """`unchanged`: the line gives the same tokens; `unknown`: it was not tokenized again."""
    text: str | None
    """The start of the raw text of the tokens; None if it was changed, or not read."""
    note: str
    """The reason for the state, or why nothing was read."""


class LocatedTokens(NamedTuple):
    """A text as tokens."""

    ids: NDArray[np.int64]
    """Shape (n_tokens,)."""
    begins: list[int]
    """Position in the text of the character at which each token begins."""


class Retokenizer(NamedTuple):
    """Tokenizes texts by the reference engine, under the options that a dataset was made with."""

    reference: ReferenceEngine
    framing: Framing

    def locate(self, text: str) -> LocatedTokens:
        """Return the tokens of a document with this text, and where in the text they begin."""
        ids, begins = self.reference.locate(text)
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        if ids or self.framing.empty == "sequence":
            before = self.framing.before
            after = self.framing.after
        all_begins = [0] * len(before) + begins + [len(text)] * len(after)
        return LocatedTokens(np.array([*before, *ids, *after], np.int64), all_begins)

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of tokens, special ones spelled out."""
        return decode_tokens(self.reference.tokenizer, tokens.tolist(), self.reference.file)


def retokenizer(
    tokenizer_file: TokenizerPath | None, options: Mapping[str, Any]
) -> Retokenizer | None:
    """Return the retokenizer of a dataset with these options; None if this is not the tokenizer
    that made it.
    """
    if (
        tokenizer_file is None
        or tokenizer_facts(tokenizer_file).fingerprint != options["tokenizer"]
    ):
        return None
    framing = options["framing"]
    engine = _loaded(tokenizer_file, stat_signature(tokenizer_file))
    return Retokenizer(
        engine, Framing(tuple(framing["before"]), tuple(framing["after"]), framing["empty"])
    )


@lru_cache(maxsize=2)
def _loaded(file: TokenizerPath, _signature: object) -> ReferenceEngine:
    """Load a tokenizer; the signature of the file is part of the key, so that a changed file is
    loaded again.
    """
    return reference_engine(file)


class Excerpts:
    """Excerpts for the documents of one dataset.

    Args:
        context: Its settings name the raw folder and the tokenizer.
        dataset: Manifest of the corpus's dataset.
    """

    def __init__(self, context: InspectionContext, dataset: Manifest) -> None:
        self._config = context.config
        self._options = dataset.recipe["options"]
        self._retokenizer = retokenizer(context.tokenizer_file, self._options)

    def decoded(self, tokens: NDArray[Any]) -> str | None:
        """Return the start of some tokens as text; None without their tokenizer."""
        if self._retokenizer is None:
            return None
        text = self._retokenizer.decode(tokens[:_MAX_DECODED_TOKENS])
        return shorten(text, len(tokens) > _MAX_DECODED_TOKENS)

    def source(
        self,
        origin: DocumentOrigin,
        tokens: NDArray[Any] | None,
        document_tokens: tuple[int, int],
    ) -> SourceExcerpt | None:
        """Return what the raw file now has at some tokens of a document; None without the raw
        folder.

        Args:
            origin: The document.
            tokens: All tokens of the document, shape (n_tokens,); None if these are not known.
            document_tokens: Which of these are of interest: (start, stop).
        """
        if self._config is None:
            return None
        folder = self._config.corpus_folder(origin.corpus)
        text = next(read_texts(folder, [origin], self._options["text_key"]))
        if isinstance(text, MissingError):
            return SourceExcerpt("gone", None, f"{folder / origin.file} is not there any more")
        if isinstance(text, NanosetError):
            state: SourceState = "changed" if isinstance(text, FormatError) else "unknown"
            return SourceExcerpt(state, None, f"{text.what}: {text.found}")

        # Which characters the tokens are of is only known if the text gives these tokens.
        if self._retokenizer is None or tokens is None or len(text) > _MAX_TOKENIZED_CHARACTERS:
            return SourceExcerpt("unknown", shorten(text, False), "from the document's beginning")
        try:
            located = self._retokenizer.locate(text)
        except EncodingError as error:
            return SourceExcerpt("unknown", shorten(text, False), f"{error.what}: {error.found}")
        if not np.array_equal(located.ids, tokens):
            return SourceExcerpt("changed", None, "the text there gives other tokens now")
        character_bounds = [*located.begins, len(text)]
        start, stop = document_tokens
        excerpt = text[character_bounds[start] : character_bounds[stop]]
        return SourceExcerpt("unchanged", shorten(excerpt, False), "the line gives the same tokens")


def shorten(text: str, has_more: bool) -> str:
    """Return the first characters of a text, with an ellipsis if it has more, or if there is more
    than the text.
    """
    if len(text) <= MAX_CHARACTERS and not has_more:
        return text
    return text[:MAX_CHARACTERS] + "…"

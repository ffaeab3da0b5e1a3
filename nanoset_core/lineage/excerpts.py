"""Text to look at: decoded from tokens, and read from the raw file that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.source_text import SourceLine, read_text
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.tokenization.bpe import ReferenceEngine, reference_engine
from nanoset_core.tokenization.files import TokenizerPath, stat_signature
from nanoset_core.tokenization.framing import Framing
from nanoset_core.tokenization.tokenizer import tokenizer_facts

SHOWN_CHARACTERS = 160
_DECODED_TOKENS = 96
_MOST_CHARACTERS = 4 << 20
"""Longer texts are not tokenized again for an excerpt."""

SourceState = Literal["unchanged", "changed", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """The raw text at the place of some tokens."""

    state: SourceState
    """`unchanged`: the line gives the same tokens; `unknown`: it was not tokenized again."""
    text: str | None
    """The raw text of the tokens, its beginning; None where it was changed, or not read."""
    note: str
    """What is behind the state, or why nothing was read."""


@dataclass(frozen=True, slots=True)
class Retokenizer:
    """Tokenize texts by the reference engine, under the options that a dataset was made with."""

    reference: ReferenceEngine
    framing: Framing

    def encode(self, text: str) -> tuple[NDArray[np.int64], list[int]]:
        """Return a document's ids, int64, shape (tokens,), and the character of the text at which each begins."""
        ids, places = self.reference.locate(text)
        framed = bool(ids) or self.framing.empty == "sequence"
        before, after = (self.framing.before, self.framing.after) if framed else ((), ())
        begins = [0] * len(before) + places + [len(text)] * len(after)
        return np.array([*before, *ids, *after], np.int64), begins

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of tokens, special ones spelled out."""
        return str(self.reference.tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def retokenizer(tokenizer_file: TokenizerPath | None, options: Mapping[str, Any]) -> Retokenizer | None:
    """Return the retokenizer of a dataset with these options; None where the tokenizer at hand is another one.

    Raises:
        MissingError, FormatError: see load_tokenizer.
    """
    if tokenizer_file is None or tokenizer_facts(tokenizer_file).fingerprint != options["tokenizer"]:
        return None
    framing = options["framing"]
    parts = tuple(framing["before"]), tuple(framing["after"])
    return Retokenizer(_loaded(tokenizer_file, stat_signature(tokenizer_file)), Framing(*parts, framing["empty"]))


@lru_cache(maxsize=2)
def _loaded(file: TokenizerPath, _stamp: object) -> ReferenceEngine:
    return reference_engine(file)


class Excerpts:
    """Excerpts for the documents of one dataset."""

    def __init__(self, context: InspectionContext, dataset: Manifest) -> None:
        self._config, self._options = context.config, dataset.recipe["options"]
        self._retokenizer = retokenizer(context.tokenizer_file, self._options)

    def decoded(self, tokens: NDArray[Any]) -> str | None:
        """Return the beginning of some tokens as text; None without the tokenizer that made them."""
        if self._retokenizer is None:
            return None
        return shorten(self._retokenizer.decode(tokens[:_DECODED_TOKENS]), len(tokens) > _DECODED_TOKENS)

    def source(
        self, origin: DocumentOrigin, tokens: NDArray[Any] | None, span: tuple[int, int]
    ) -> SourceExcerpt | None:
        """Return what the raw file has now at some tokens of a document; None without the raw folder.

        Args:
            origin: of the document.
            tokens: all of the document's; None where they are not at hand.
            span: begin and end (excl) of the tokens within the document.
        """
        if self._config is None:
            return None
        folder = self._config.corpus_folder(origin.corpus)
        line = SourceLine(origin.file, origin.line, origin.byte_offset)
        try:
            text = read_text(folder, line, self._options["text_key"])
        except MissingError:
            return SourceExcerpt("gone", None, f"{folder / origin.file} is not there any more")
        except NanosetError as error:
            state: SourceState = "changed" if isinstance(error, FormatError) else "unknown"
            return SourceExcerpt(state, None, f"{error.what}: {error.found}")
        if self._retokenizer is None or tokens is None or len(text) > _MOST_CHARACTERS:
            return SourceExcerpt("unknown", shorten(text, False), "from the document's beginning")
        again, begins = self._retokenizer.encode(text)
        if not np.array_equal(again, tokens):
            return SourceExcerpt("changed", None, "the text there gives other tokens now")
        end = begins[span[1]] if span[1] < len(begins) else len(text)
        return SourceExcerpt("unchanged", shorten(text[begins[span[0]] : end], False), "the line gives the same tokens")


def shorten(text: str, more: bool) -> str:
    """Return the first characters of a text, with an ellipsis where there are more."""
    return text if len(text) <= SHOWN_CHARACTERS and not more else text[:SHOWN_CHARACTERS] + "…"

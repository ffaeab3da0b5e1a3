"""Text to look at: decoded from tokens, and read from the raw file that they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.source_text import NotReadError, SourceLine, read_text
from nanoset_core.lineage.tokens_again import Retokenizer, retokenizer
from nanoset_core.lineage.unchanged import FileState, file_state
from nanoset_core.outputs.manifest import Manifest

SHOWN_CHARACTERS = 160
_DECODED_TOKENS = 96
_MOST_CHARACTERS = 4 << 20
"""Longer texts are not tokenized again for an excerpt."""

SourceState = Literal["unchanged", "line unchanged", "changed", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """The raw text at the place of some tokens."""

    state: SourceState
    """Of the file since it was tokenized. `line unchanged`: the file changed, but this line gives the same tokens;
    `unknown`: it was not hashed again, for that would take long."""
    text: str | None
    """The raw text of the tokens, its beginning; None where it was changed, or not read."""
    note: str
    """What is behind the state, or why nothing was read."""


class Excerpts:
    """Excerpts for the documents of one dataset."""

    def __init__(self, context: InspectionContext, dataset: Manifest) -> None:
        self._context, self._dataset = context, dataset
        self._options = dataset.recipe["options"]
        self._retokenizer: Retokenizer | None = retokenizer(context.tokenizer_file, self._options)
        self._inventory = context.inventory_of(dataset) if context.config is not None else None

    def decoded(self, tokens: NDArray[Any]) -> str | None:
        """The beginning of some tokens as text; None where the tokenizer is not at hand."""
        if self._retokenizer is None:
            return None
        return shorten(self._retokenizer.decode(tokens[:_DECODED_TOKENS]), len(tokens) > _DECODED_TOKENS)

    def source(
        self, origin: DocumentOrigin, tokens: NDArray[Any] | None, span: tuple[int, int]
    ) -> SourceExcerpt | None:
        """What the raw file has at tokens [begin, end) of a document; tokens: all of the document's, where at hand."""
        if self._context.config is None:
            return None
        folder = self._context.config.corpus_folder(origin.corpus)
        line = SourceLine(origin.file, origin.line, origin.byte_offset)
        try:
            state = file_state(
                self._inventory, self._context.outputs.folder, folder, origin.file, max(origin.byte_offset, 0)
            )
            if state == "gone":
                return SourceExcerpt("gone", None, f"{folder / origin.file} is not there any more")
            text = read_text(folder, line, self._options["text_key"])
        except MissingError as error:
            return SourceExcerpt("gone", None, error.what)
        except NotReadError as error:
            return SourceExcerpt("unknown", None, f"{error.what}: {error.found}")
        except FormatError as error:
            return SourceExcerpt("changed", None, f"{error.what}: {error.found}")
        except NanosetError as error:
            return SourceExcerpt("unknown", None, str(error))
        return self._excerpt(state, text, tokens, span)

    def _excerpt(
        self, state: FileState, text: str, tokens: NDArray[Any] | None, span: tuple[int, int]
    ) -> SourceExcerpt:
        if self._retokenizer is None or tokens is None or len(text) > _MOST_CHARACTERS:
            if state == "changed":
                return SourceExcerpt("changed", None, "the file was changed since it was tokenized")
            return SourceExcerpt(state, shorten(text, False), "from the document's beginning")
        again, begins = self._retokenizer.encode(text)
        if not np.array_equal(again, tokens):
            note = "the text there gives other tokens now"
            note += "" if state != "unchanged" else ", though the file is the same: report this"
            return SourceExcerpt("changed", None, note)
        end = begins[span[1]] if span[1] < len(begins) else len(text)
        shown = shorten(text[begins[span[0]] : end], False)
        if state == "changed":
            return SourceExcerpt("line unchanged", shown, "the file was changed, but this line gives the same tokens")
        if state == "unknown":
            return SourceExcerpt("line unchanged", shown, "the file was not hashed; this line gives the same tokens")
        return SourceExcerpt("unchanged", shown, "the line gives the same tokens")


def shorten(text: str, more: bool) -> str:
    """The first characters of a text, with an ellipsis where there are more."""
    return text if len(text) <= SHOWN_CHARACTERS and not more else text[:SHOWN_CHARACTERS] + "…"

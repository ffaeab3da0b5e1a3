"""Show people the text of some tokens: decoded, and as it is in the raw file today.

A raw file may have been edited since it was tokenized. So the line that a document came from is
tokenized again, and its text is only shown as the text of the tokens if it gives the same tokens.
For example, a document has the tokens [5, 9, 2]. If its line gives these again, the text of the
tokens [1, 3) is from where token 9 begins to the end; if it gives [5, 7], the line was changed.
"""

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
from nanoset_core.storage.location import Location
from nanoset_core.tokenizers.engines import ReferenceEngine, reference_engine
from nanoset_core.tokenizers.engines.engine import EncodingError
from nanoset_core.tokenizers.engines.tokenizers_library import decode_tokens
from nanoset_core.tokenizers.files import TokenizerPath, stat_signature
from nanoset_core.tokenizers.tokenizer import tokenizer_facts
from nanoset_core.untrusted import shortened

MAX_CHARACTERS = 160
"""Longer excerpts are cut."""
_MAX_DECODED_TOKENS = 96
"""Tokens that are decoded for an excerpt; these give enough characters."""
_MAX_TOKENIZED_CHARACTERS = 4 << 20
"""Longer texts are not tokenized again, because it would take too long."""


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """The raw text that some tokens came from, as it is in the raw file now."""

    state: SourceState
    """`unchanged`: the line gives the same tokens; `changed`: it does not; `gone`: the file was
    deleted; `unknown`: the line was not tokenized again.
    """
    text: str | None
    """The start of the text of the tokens; None if it was changed, or not read."""
    note: str
    """Why the excerpt has this state."""


class LocatedTokens(NamedTuple):
    """The tokens of a text, and where each of them begins in it."""

    ids: NDArray[np.int64]
    """Token ids, shape (n_tokens,)."""
    begins: list[int]
    """Index of the first character of each token."""


class Retokenizer(NamedTuple):
    """Tokenizes texts with the tokenizer and options that a dataset was made with."""

    reference: ReferenceEngine
    """Hugging Face's tokenizers: the engine that knows where each token begins."""
    framing: Framing
    """The special tokens around each document."""

    def locate(self, text: str) -> LocatedTokens:
        """Tokenize a text, and return the tokens with the characters at which they begin.

            text        "the cat"
            tokens      <s>    the    " cat"    </s>
            begin at    0      0      3         7

        Special tokens at the start begin at character 0, and those at the end after the last
        character.

        Args:
            text: The text of a document.
        """
        ids, first_characters = self.reference.locate(text)
        # A text without tokens gets no special tokens either, unless the options say so.
        if not ids and self.framing.empty != "sequence":
            return LocatedTokens(np.empty(0, np.int64), [])

        before = self.framing.before
        after = self.framing.after
        begins_before = [0] * len(before)
        begins_after = [len(text)] * len(after)
        all_ids = np.array([*before, *ids, *after], np.int64)
        return LocatedTokens(all_ids, [*begins_before, *first_characters, *begins_after])

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of some tokens, with special tokens spelled out, such as `<|eod|>`.

        Args:
            tokens: Token ids, integers of any dtype, shape (n_tokens,).
        """
        return decode_tokens(self.reference.tokenizer, tokens.tolist(), self.reference.file)


def retokenizer(
    tokenizer_file: TokenizerPath | None, options: Mapping[str, Any]
) -> Retokenizer | None:
    """Return an object that tokenizes texts in the same way as a dataset was tokenized.

    Args:
        tokenizer_file: The project's tokenizer, if it is known.
        options: What the dataset was made with: `tokenizer` is a hash of its tokenizer, and
            `framing` says which special tokens each document begins and ends with.

    Returns:
        The object; None if the project's tokenizer is another one by now, or is not known.
    """
    if tokenizer_file is None:
        return None
    if tokenizer_facts(tokenizer_file).fingerprint != options["tokenizer"]:
        return None

    # The signature, size and time of the file, lets a changed file be loaded again.
    engine = _loaded(tokenizer_file, stat_signature(tokenizer_file))
    framing_options = options["framing"]
    framing = Framing(
        tuple(framing_options["before"]),
        tuple(framing_options["after"]),
        framing_options["empty"],  # whether documents without tokens get them, too
    )
    return Retokenizer(engine, framing)


@lru_cache(maxsize=2)
def _loaded(file: TokenizerPath, _signature: object) -> ReferenceEngine:
    """Load a tokenizer, or return it from the cache.

    Args:
        file: The tokenizer's file.
        _signature: Its size and times. It is part of the cache's key, so that a file which was
            changed is loaded again.
    """
    return reference_engine(file)


class Excerpts:
    """Makes excerpts of the documents of one corpus."""

    def __init__(self, context: InspectionContext, dataset: Manifest) -> None:
        """Load the tokenizer of a dataset, if the project still has it.

        Args:
            context: Its settings name the raw folder and the tokenizer.
            dataset: Manifest of the corpus's dataset.
        """
        self._config = context.config
        self._options = dataset.recipe["options"]
        self._retokenizer = retokenizer(context.tokenizer_file, self._options)

    @property
    def has_raw_text(self) -> bool:
        """Whether the raw folder is known."""
        return self._config is not None

    def decoded(self, tokens: NDArray[Any]) -> str | None:
        """Return the beginning of some tokens as text, or None if their tokenizer is not known.

        Args:
            tokens: Token ids, shape (n_tokens,).

        Returns:
            At most `MAX_CHARACTERS` characters, and "…" if there is more text.
        """
        if self._retokenizer is None:
            return None
        # Decode only as many tokens as an excerpt needs.
        text = self._retokenizer.decode(tokens[:_MAX_DECODED_TOKENS])
        if len(tokens) > _MAX_DECODED_TOKENS:
            return f"{text[:MAX_CHARACTERS]}…"  # there is more text, even if this is short
        return shortened(text, MAX_CHARACTERS)

    def source(
        self,
        origin: DocumentOrigin,
        tokens: NDArray[Any] | None,
        document_tokens: tuple[int, int],
    ) -> SourceExcerpt | None:
        """Return the raw text from which some tokens of a document were made.

        The text is read from the raw file, as it is now. If the file was changed or deleted, the
        result says so.

        Args:
            origin: The document: its number, file and line.
            tokens: All tokens of the document, shape (n_tokens,); None if they are not known.
            document_tokens: The range (start, stop) of them whose text is returned.

        Returns:
            The text, or why there is none; None if the raw folder is not known.
        """
        if self._config is None:
            return None

        folder = self._config.corpus_folder(origin.corpus)
        text_key = self._options["text_key"]  # the key of the JSON lines that has the text
        text_or_error = next(read_texts(folder, [origin], text_key))
        if isinstance(text_or_error, str):
            return self._cut(text_or_error, tokens, document_tokens)
        return _excerpt_without_text(text_or_error, folder / origin.file)

    def _cut(
        self, text: str, tokens: NDArray[Any] | None, document_tokens: tuple[int, int]
    ) -> SourceExcerpt:
        """Return the part of a document's raw text from which some of its tokens were made.

        The text is tokenized again, which shows at which character each token begins. If this is
        not possible, the beginning of the text is returned. If it gives other tokens than before,
        the raw file was changed, and no text is returned.

        Args:
            text: The whole text of the document, as it is in the raw file now.
            tokens: All tokens of the document, shape (n_tokens,), if they are known.
            document_tokens: The range (start, stop) of them whose text is returned.
        """
        is_too_long = len(text) > _MAX_TOKENIZED_CHARACTERS
        if self._retokenizer is None or tokens is None or is_too_long:
            return _beginning(text, "from the document's beginning")
        try:
            located = self._retokenizer.locate(text)
        except EncodingError as error:
            return _beginning(text, f"{error.what}: {error.found}")
        if not np.array_equal(located.ids, tokens):
            return SourceExcerpt("changed", None, "the text there gives other tokens now")

        # Where tokens begin and end: [0, 3, 7, 11] for "the", " cat", " sat".
        bounds = [*located.begins, len(text)]
        start, stop = document_tokens
        excerpt = text[bounds[start] : bounds[stop]]
        return SourceExcerpt(
            "unchanged", shortened(excerpt, MAX_CHARACTERS), "the line gives the same tokens"
        )


def _beginning(text: str, explanation: str) -> SourceExcerpt:
    """Return the beginning of a document, of which it is not known where its tokens begin.

    Args:
        text: The text of the document.
        explanation: What the user should know about the excerpt.
    """
    return SourceExcerpt("unknown", shortened(text, MAX_CHARACTERS), explanation)


def _excerpt_without_text(error: NanosetError, file: Location) -> SourceExcerpt:
    """Return what is shown in place of a document's text if the text cannot be read.

        the file was deleted                   gone
        the line has no document any more      changed
        the line is too long, for example      unknown

    Args:
        error: Its class says what has happened to the raw file since it was tokenized.
        file: The raw file.
    """
    if isinstance(error, MissingError):
        return SourceExcerpt("gone", None, f"{file} does not exist any more")
    explanation = f"{error.what}: {error.found}"
    if isinstance(error, FormatError):
        return SourceExcerpt("changed", None, explanation)
    return SourceExcerpt("unknown", None, explanation)

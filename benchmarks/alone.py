"""Make a .bin/.idx pair of JSONL files in the shortest program that uses one library.

    python -m benchmarks.alone tokenizers|gigatoken TOKENIZER.JSON EOD PREFIX FILE...

`tokenizers` is the plain way, to which others are compared: one process, and a loop over lines.
`gigatoken` is what Megatron-LM's preprocess_data_fast.py does once its imports are done: the
library reads the files, and holds all tokens in memory.

EOD is the id of the end-of-document token. As in these programs, a document without tokens gets the
token from `gigatoken`, but not in the plain way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import optimal_dtype

BATCH_DOCUMENTS = 1000
"""Documents that are tokenized together in the plain way."""


class TokenBatch(NamedTuple):
    """The tokens of some documents."""

    ids: NDArray[np.int64]
    """Ids of all documents, concatenated; shape (n_tokens,)."""
    lengths: NDArray[np.int64]
    """Tokens of each document; shape (n_documents,)."""


class TokenizedFiles(NamedTuple):
    """The tokens of some files, and the vocabulary that they are from."""

    vocabulary_size: int
    batches: Iterator[TokenBatch]


def tokenize_by_gigatoken(tokenizer_json: str, files: Sequence[str]) -> TokenizedFiles:
    """Tokenize all files at once by the library gigatoken."""
    import awkward
    from gigatoken import JsonlFileSource, Tokenizer

    tokenizer = Tokenizer(tokenizer_json)

    def batches() -> Iterator[TokenBatch]:
        """Yield the tokens of all files as a single batch."""
        lists = tokenizer.encode_files(JsonlFileSource(list(files), field="text"))
        yield TokenBatch(
            ids=awkward.to_numpy(awkward.flatten(lists)),
            lengths=awkward.to_numpy(awkward.num(lists, axis=1)),
        )

    # The library does not tell the size of the vocabulary.
    definition = json.loads(Path(tokenizer_json).read_bytes())
    tokens = set(definition["model"]["vocab"])
    tokens.update(token["content"] for token in definition["added_tokens"])
    return TokenizedFiles(len(tokens), batches())


def tokenize_by_tokenizers(tokenizer_json: str, files: Sequence[str]) -> TokenizedFiles:
    """Tokenize files by the library tokenizers, a thousand documents at a time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)

    def batches() -> Iterator[TokenBatch]:
        """Yield the tokens of each thousand documents."""
        for file in files:
            with Path(file).open(encoding="utf-8") as lines:
                while texts := _next_texts(lines):
                    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
                    ids = [np.array(encoding.ids, np.int64) for encoding in encodings]
                    lengths = np.array([len(document_ids) for document_ids in ids])
                    yield TokenBatch(np.concatenate(ids), lengths)

    return TokenizedFiles(tokenizer.get_vocab_size(), batches())


def _next_texts(lines: Iterator[str]) -> list[str]:
    """Return the texts of the next JSON lines of a file; none at its end."""
    return [json.loads(line)["text"] for line in islice(lines, BATCH_DOCUMENTS)]


TOKENIZE_BY: dict[str, Callable[[str, Sequence[str]], TokenizedFiles]] = {
    "gigatoken": tokenize_by_gigatoken,
    "tokenizers": tokenize_by_tokenizers,
}
"""Name of each library → the function that uses it."""


def main(library: str, tokenizer: str, eod: str, prefix: str, *files: str) -> None:
    """Tokenize files, and write a .bin/.idx pair; the arguments are those of the command."""
    tokenized = TOKENIZE_BY[library](tokenizer, files)
    builder = MMapIndexedDatasetBuilder(prefix, optimal_dtype(tokenized.vocabulary_size))
    for ids, lengths in tokenized.batches:
        # Which documents get an end-of-document token.
        gets_eod = lengths > 0
        if library == "gigatoken":
            gets_eod = np.ones(len(lengths), np.bool_)

        # Insert it after the last token of each of them.
        document_stops = np.cumsum(lengths)[gets_eod]
        tokens = np.insert(ids, document_stops, int(eod)).astype(builder.dtype)
        # A document is one sequence, or none if it has no token at all.
        sequences_per_document = gets_eod.astype(np.int64)
        builder.add_documents(tokens, (lengths + 1)[gets_eod], sequences_per_document)
    builder.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])

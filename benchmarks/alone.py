"""Libraries in the shortest program that makes a .bin/.idx pair of JSONL files with them.

python -m benchmarks.alone tokenizers|gigatoken TOKENIZER.JSON EOD PREFIX FILE...
python -m benchmarks.alone quicktok ENCODING EOD PREFIX FILE...

The first is the plain way, what others are measured by: one process, a loop over lines. The second is what
Megatron-LM's preprocess_data_fast.py does once its imports are done: the library reads the files, and holds all tokens.
EOD is a token or its id; a document without tokens gets it too, as there, but in the plain way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed import MMapIndexedDatasetBuilder, optimal_dtype

Batches: TypeAlias = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""(ids of documents back to back, tokens of each document)."""


def gigatoken(tokenizer_json: str, files: list[str]) -> tuple[int, Batches]:
    """Vocabulary size, and (ids, tokens of each document) of all files at once."""
    import awkward
    from gigatoken import JsonlFileSource, Tokenizer

    tokenizer = Tokenizer(tokenizer_json)

    def batches() -> Batches:
        lists = tokenizer.encode_files(JsonlFileSource(files, field="text"))
        yield awkward.to_numpy(awkward.flatten(lists)), awkward.to_numpy(awkward.num(lists, axis=1))

    return len(vocabulary(tokenizer_json)), batches()


def texts(files: list[str]) -> Iterator[list[str]]:
    """A thousand documents at a time."""
    for file in files:
        with Path(file).open(encoding="utf-8") as lines:
            while some := [json.loads(line)["text"] for line in islice(lines, 1000)]:
                yield some


def packed(lists: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of documents back to back, and how many each has."""
    return np.concatenate([np.array(ids, np.int64) for ids in lists]), np.array([len(ids) for ids in lists])


def quicktok(encoding: str, files: list[str]) -> tuple[int, Batches]:
    """The same, a thousand documents at a time."""
    import quicktok as library

    tokenizer = library.get_encoding(encoding)
    return tokenizer.n_vocab, (packed([tokenizer.encode_ordinary(text) for text in some]) for some in texts(files))


def tokenizers(tokenizer_json: str, files: list[str]) -> tuple[int, Batches]:
    """The same by the reference."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)

    def encoded(some: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(some, add_special_tokens=False)]

    return tokenizer.get_vocab_size(), (packed(encoded(some)) for some in texts(files))


def vocabulary(tokenizer_json: str) -> dict[str, int]:
    """Tokens of a tokenizer.json, without loading its merges."""
    content = json.loads(Path(tokenizer_json).read_bytes())
    return content["model"]["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}


def main(library: str, tokenizer: str, eod: str, prefix: str, *files: str) -> None:
    engines = {"gigatoken": gigatoken, "quicktok": quicktok, "tokenizers": tokenizers}
    end = int(eod) if eod.isdigit() else vocabulary(tokenizer)[eod]
    size, batches = engines[library](tokenizer, list(files))
    builder = MMapIndexedDatasetBuilder(prefix, optimal_dtype(size))
    for ids, lengths in batches:
        ends = (lengths > 0) | (library != "tokenizers")
        framed = np.insert(ids, np.cumsum(lengths)[ends], end).astype(builder.dtype)
        builder.add_documents(framed, (lengths + 1)[ends], ends.astype(np.int64))
    builder.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Compiled tokenizers in the shortest program that makes a .bin/.idx pair of JSONL files with them.

python -m benchmarks.compiled_tokenize gigatoken tokenizer.json EOD PREFIX FILE...
python -m benchmarks.compiled_tokenize quicktok ENCODING EOD PREFIX FILE...

The first is what Megatron-LM's preprocess_data_fast.py does once its imports are done: the library reads the files, and
holds all tokens. EOD is a token's id; a document without tokens gets it too, as there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

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

    return vocab_size(tokenizer_json), batches()


def quicktok(encoding: str, files: list[str]) -> tuple[int, Batches]:
    """The same, a thousand documents at a time."""
    import quicktok as library

    tokenizer = library.get_encoding(encoding)

    def batches() -> Batches:
        for file in files:
            with Path(file).open(encoding="utf-8") as lines:
                while chunk := [line for _, line in zip(range(1000), lines, strict=False)]:
                    lists = [tokenizer.encode_ordinary(json.loads(line)["text"]) for line in chunk]
                    yield np.concatenate([np.array(ids, np.int64) for ids in lists]), np.array(list(map(len, lists)))

    return tokenizer.n_vocab, batches()


def vocab_size(tokenizer_json: str) -> int:
    """Tokens of a tokenizer.json, without loading its merges."""
    content = json.loads(Path(tokenizer_json).read_bytes())
    return len({*content["model"]["vocab"], *(token["content"] for token in content["added_tokens"])})


def main(library: str, tokenizer: str, eod: str, prefix: str, *files: str) -> None:
    size, batches = {"gigatoken": gigatoken, "quicktok": quicktok}[library](tokenizer, list(files))
    builder = MMapIndexedDatasetBuilder(prefix, optimal_dtype(size))
    for ids, lengths in batches:
        framed = np.insert(ids, np.cumsum(lengths), int(eod)).astype(builder.dtype)
        builder.add_documents(framed, lengths + 1, np.ones(len(lengths), np.int64))
    builder.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Libraries in the shortest program that makes a .bin/.idx pair of JSONL files with them.

python -m benchmarks.alone tokenizers|gigatoken TOKENIZER.JSON EOD PREFIX FILE...

The first is the plain way, what others are measured by: one process, a loop over lines. The second
is what Megatron-LM's preprocess_data_fast.py does once its imports are done: the library reads the
files, and holds all tokens. EOD is an id; a document without tokens gets it too, as there, but not
in the plain way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import optimal_dtype

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

    content = json.loads(Path(tokenizer_json).read_bytes())
    tokens = content["model"]["vocab"].keys() | {
        token["content"] for token in content["added_tokens"]
    }
    return len(tokens), batches()


def tokenizers(tokenizer_json: str, files: list[str]) -> tuple[int, Batches]:
    """The same by the reference, a thousand documents at a time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)

    def batches() -> Batches:
        for file in files:
            with Path(file).open(encoding="utf-8") as lines:
                while texts := [json.loads(line)["text"] for line in islice(lines, 1000)]:
                    ids = [
                        found.ids
                        for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
                    ]
                    yield (
                        np.concatenate([np.array(each, np.int64) for each in ids]),
                        np.array(list(map(len, ids))),
                    )

    return tokenizer.get_vocab_size(), batches()


def main(library: str, tokenizer: str, eod: str, prefix: str, *files: str) -> None:
    engines = {"gigatoken": gigatoken, "tokenizers": tokenizers}
    size, batches = engines[library](tokenizer, list(files))
    builder = MMapIndexedDatasetBuilder(prefix, optimal_dtype(size))
    for ids, lengths in batches:
        ends = (lengths > 0) | (library != "tokenizers")
        framed = np.insert(ids, np.cumsum(lengths)[ends], int(eod)).astype(builder.dtype)
        builder.add_documents(framed, (lengths + 1)[ends], ends.astype(np.int64))
    builder.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])

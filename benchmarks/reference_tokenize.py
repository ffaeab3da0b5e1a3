"""The plain way, what others are measured by: one process, `tokenizers`, a loop over lines."""

from __future__ import annotations

import json
import sys

import numpy as np
from tokenizers import Tokenizer

from nanoset_core.indexed import MMapIndexedDatasetBuilder, optimal_dtype


def main(tokenizer_file: str, eod: str, prefix: str, *files: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    end = tokenizer.token_to_id(eod)
    builder = MMapIndexedDatasetBuilder(prefix, optimal_dtype(tokenizer.get_vocab_size()))
    for file in files:
        with open(file, encoding="utf-8") as lines:
            batch = []
            for line in lines:
                batch.append(json.loads(line)["text"])
                if len(batch) == 1000:
                    add(builder, tokenizer, batch, end)
                    batch = []
            add(builder, tokenizer, batch, end)
    builder.finalize()


def add(builder: MMapIndexedDatasetBuilder, tokenizer: Tokenizer, texts: list[str], end: int) -> None:
    for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
        ids = encoding.ids
        builder.add_document(np.array([*ids, end] if ids else ids, builder.dtype), [len(ids) + 1] if ids else [])


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Raw text in two files for `nanoset tokenize`, and the pairs that the peers' tools make of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.sample_pairs import pair_bytes
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.stages.shards.standalone.options import PreprocessOptions

FILES = ("part-2.jsonl", "part-10.jsonl")
"""The two files, in the order in which they are read: by their numbers, not by the alphabet."""
N_DOCUMENTS_OF_FIRST_FILE = 20
N_DOCUMENTS = 50
"""Documents of both files; one of them has no text."""


def write_two_files(folder: Path) -> Path:
    """Write the raw text of two files into a new folder, and return it."""
    rows = [*sentences("web", 40), {"id": "empty", "text": ""}, *sentences("late", 9)]
    folder.mkdir()
    (folder / FILES[0]).write_bytes(jsonl(rows[:N_DOCUMENTS_OF_FIRST_FILE]))
    (folder / FILES[1]).write_bytes(jsonl(rows[N_DOCUMENTS_OF_FIRST_FILE:]))
    return folder


def texts_of_files(folder: Path) -> list[str]:
    """Return the texts of both files, in order."""
    texts = []
    for name in FILES:
        for line in (folder / name).read_bytes().splitlines():
            texts.append(json.loads(line)["text"])
    return texts


def peer_pair_bytes(
    prefix: Path, tokenizer_file: Path, texts: Iterable[str], preset: str = "megatron"
) -> tuple[bytes, bytes]:
    """Write a pair by the rules of a preset's tool, one document at a time; return its bytes.

    Args:
        prefix: Where to write it.
        tokenizer_file: The tokenizer.
        texts: The documents.
        preset: megatron, nemo or nanotron.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id(EOD)
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=preset == "nanotron").ids
            if preset == "nanotron" or ids:
                builder.add_document([*ids, end])
            elif preset == "megatron":
                builder.add_document([], [])
    return pair_bytes(prefix)


def encode_with_end(tokenizer_file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without special tokens, and an end token after each."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id(EOD)
    return [[*tokenizer.encode(text, add_special_tokens=False).ids, end] for text in texts]


def make_options(tokenizer_file: Path, **changes: Any) -> PreprocessOptions:
    """Return the options of a call in one process, with some changes."""
    settings = {"tokenizer": tokenizer_file, "eod": EOD, "workers": 1} | changes
    return PreprocessOptions(**settings)

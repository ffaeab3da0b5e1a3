"""Reads vocabulary and merges of a byte-level BPE model."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nanoset_core.tokenization.bpe.byte_alphabet import byte_characters, decode_tokens
from nanoset_core.tokenization.bpe.pair_ranks import MOST_IDS, MOST_MERGES
from nanoset_core.tokenization.bpe.rules import Vocabulary
from nanoset_core.tokenization.bpe.settings import NotRecognisedError


def read_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """`vocab` and `merges` of the model as arrays; raises NotRecognisedError."""
    ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    if not len(ids) or ids.min() < 0 or ids.max() >= MOST_IDS or len(merges) >= MOST_MERGES:
        raise NotRecognisedError(f"{len(vocabulary)} tokens and {len(merges)} merges are out of bounds")
    data, lengths, readable = decode_tokens(list(vocabulary))
    of_word = np.repeat(np.arange(len(lengths)), lengths)
    readable[of_word[data == 0]] = False
    readable &= lengths > 0
    byte_tokens = np.array([vocabulary.get(character, -1) for character in byte_characters()], np.int32)
    return Vocabulary(
        data[readable[of_word]],
        lengths[readable],
        ids[readable].astype(np.int32),
        byte_tokens,
        _read_merges(vocabulary, merges),
    )


def _read_merges(vocabulary: dict[str, int], merges: list[Any]) -> np.ndarray:
    """int32[r, 3]: left, right, merged. Merges are written "a b" or ["a", "b"]."""
    parts = _flattened(merges)
    lefts, rights = parts[::2], parts[1::2]
    columns = (lefts, rights, map(operator.add, lefts, rights))
    try:
        found = [np.fromiter(map(vocabulary.__getitem__, column), np.int32, len(lefts)) for column in columns]
    except KeyError as error:
        raise NotRecognisedError(f"a merge of {error}, which is no token") from error
    table = np.stack(found, axis=1)
    if len(np.unique(table[:, 0].astype(np.int64) * MOST_IDS + table[:, 1])) != len(table):
        raise NotRecognisedError("merges that come twice")
    return table


def _flattened(merges: list[Any]) -> list[str]:
    """Left, right, left, right … of all merges."""
    if all(isinstance(merge, str) and " " in merge for merge in merges):
        parts = " ".join(merges).split(" ") if merges else []
    elif all(isinstance(merge, list) and len(merge) == 2 for merge in merges):
        parts = [part for merge in merges for part in merge]
    else:
        raise NotRecognisedError("a merge that is no pair")
    if len(parts) != 2 * len(merges) or not all(isinstance(part, str) for part in parts):
        raise NotRecognisedError("a merge that is no pair of tokens")
    return parts

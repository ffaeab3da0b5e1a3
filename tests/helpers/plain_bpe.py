"""Byte-pair encoding in plain Python: slow and obvious, to compare fast ones with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise


def plain_bpe(
    first_tokens: Sequence[int], ranks: Mapping[tuple[int, int], int], merged: Sequence[int]
) -> list[int]:
    """Return the tokens of a word.

    Args:
        first_tokens: The tokens that merging starts with.
        ranks: Rank of each pair of tokens that merges.
        merged: The token that the merge of each rank makes.
    """
    no_rank = len(merged)
    tokens = list(first_tokens)
    while True:
        pair_ranks = [ranks.get(pair, no_rank) for pair in pairwise(tokens)]
        best = min(pair_ranks, default=no_rank)
        if best == no_rank:
            return tokens
        position = pair_ranks.index(best)  # the leftmost of equals
        tokens[position : position + 2] = [merged[best]]

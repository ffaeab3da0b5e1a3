"""Lists of token ids, one per known word, kept end to end in flat arrays that grow by doubling."""

from __future__ import annotations

import numpy as np

_SLICE = 1 << 15  # lists gathered at once: what fits into the processor's cache


class TokenLists:
    """Numbered lists of one token or more."""

    def __init__(self) -> None:
        self._count = 0
        self._used = 0
        self._heads = np.empty(1 << 12, np.int64)  # length << 32 | first token, which is the only one of most lists
        self._rests = np.empty(1 << 12, np.int32)  # where the second token of each list is in _tokens
        self._tokens = np.empty(1 << 12, np.int32)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the lists take."""
        return self._heads.nbytes + self._rests.nbytes + self._tokens.nbytes

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int32[k]: numbers of k new lists; ids int32[t] back to back, lengths int[k] >= 1."""
        begin, end = self._count, self._count + len(lengths)
        self._reserve(end, self._used + len(ids))
        offsets = np.cumsum(lengths) - lengths
        self._heads[begin:end] = lengths.astype(np.int64) << 32 | ids[offsets]
        self._rests[begin:end] = offsets + (self._used + 1)
        self._tokens[self._used : self._used + len(ids)] = ids
        self._count, self._used = end, self._used + len(ids)
        return np.arange(begin, end, dtype=np.int32)

    def truncate(self, count: int) -> None:
        """Forget all lists but the first `count`."""
        if count < self._count:
            self._used = int(self._rests[count]) - 1
            self._count = count

    def gather(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32[t], lengths int64[n]): the lists of these numbers, int32[n], back to back, and their lengths."""
        slices = [numbers[begin : begin + _SLICE] for begin in range(0, len(numbers), _SLICE)]
        parts = [self._gather(part) for part in slices] or [self._gather(numbers)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _gather(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        heads = self._heads.take(numbers)
        lengths = heads >> 32
        ends = np.cumsum(lengths)
        ids = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        begins = ends - lengths
        ids[begins] = heads.astype(np.int32)  # the lower half
        more = np.flatnonzero(lengths > 1)
        rests = lengths[more] - 1
        filled = np.cumsum(rests) - rests  # where each rest would begin if the rests stood alone
        steps = np.arange(int(rests.sum()))
        targets = np.repeat(begins[more] + 1 - filled, rests) + steps
        ids[targets] = self._tokens.take(np.repeat(self._rests.take(numbers[more]) - filled, rests) + steps)
        return ids, lengths

    def _reserve(self, lists: int, tokens: int) -> None:
        if lists > len(self._heads):
            size = _doubled(len(self._heads), lists)
            self._heads, self._rests = (_resized(array, size, self._count) for array in (self._heads, self._rests))
        if tokens > len(self._tokens):
            self._tokens = _resized(self._tokens, _doubled(len(self._tokens), tokens), self._used)


def _doubled(size: int, needed: int) -> int:
    return max(2 * size, 1 << (needed - 1).bit_length())


def _resized(array: np.ndarray, size: int, used: int) -> np.ndarray:
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger

"""Rows of all contexts of a plan in a store, in parts: of each, a run of shards takes one range.

A part holds the rows of neighbouring contexts in the global order, and nothing else: which rows they are follows from
its name and the seed. So parts serve every division into runs and groups, whatever memory these are made with.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.webdataset.order import context_keys, keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.store import Store, in_parallel

ROWS = ".rows"
"""Folder of the parts, within that of the tars; unfinished work by their names."""
_PART = re.compile(rf"{re.escape(UNFINISHED)}([1-9]\d*)-from-(\d+)")
_READ_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The parts of one plan; raises as the store does."""

    store: Store
    """Holds them, and those with other numbers of contexts, as builds with other memory leave them."""
    contexts: int
    """In all parts."""
    size: int
    """Contexts in each part but the last."""

    @classmethod
    def of(cls, store: Store, contexts: int, most: int) -> tuple[StoredRows, list[range]]:
        """Return rows in parts of up to `most` contexts, or of as many as those that are there; and what is missing."""
        there: dict[int, set[int]] = defaultdict(set)
        for match in filter(None, (_PART.fullmatch(one.name) for one in store.list())):
            there[int(match[1])].add(int(match[2]))
        begins = {size: set(range(0, contexts, size)) - own for size, own in there.items()}
        usable = [size for size, missing in begins.items() if size <= most or not missing]
        size = max(usable, key=lambda one: one * len(there[one]), default=most)
        rows = cls(store, contexts, size)
        return rows, [rows.part(begin) for begin in range(0, contexts, size) if begin not in there[size]]

    def part(self, context: int) -> range:
        """Return the contexts of the part that holds one of them."""
        begin = context - context % self.size
        return range(begin, min(begin + self.size, self.contexts))

    def name(self, part: range) -> str:
        """Return the name of a part's object."""
        return f"{UNFINISHED}{self.size}-from-{part.start}"

    def is_there(self, part: range) -> bool:
        """Return whether the store has a part."""
        return self.store.stat(self.name(part)) is not None

    def put(self, part: range, rows: NDArray[np.integer[Any]]) -> None:
        """Store a part's rows, shape (contexts, sequence_length), which are in the global order."""
        step = max(1, CHUNK_BYTES // rows[0].nbytes)
        self.store.put_parts(self.name(part), (rows[at : at + step].tobytes() for at in range(0, len(rows), step)))

    def read(self, plan: ShufflePlan, contexts: NDArray[np.int64], rows: NDArray[np.integer[Any]]) -> None:
        """Put the rows of contexts that follow each other in the global order into `rows`, by 32 MiB at once."""

        def read(piece: tuple[range, int, NDArray[np.int64]]) -> None:
            part, begin, places = piece
            first, end = begin * plan.row_bytes, (begin + len(places)) * plan.row_bytes
            data = self.store.read_range(self.name(part), first, end)
            rows[places] = np.frombuffer(data, dtype=plan.dtype).reshape(len(places), -1)

        in_parallel(read, self._pieces(plan, contexts), _READ_AT_ONCE)

    def _pieces(self, plan: ShufflePlan, contexts: NDArray[np.int64]) -> Iterator[tuple[range, int, NDArray[np.int64]]]:
        """Yield (part, number of the first row within it, where this row and those after it go)."""
        step, seed = max(1, CHUNK_BYTES // plan.row_bytes), plan.settings.seed
        first = keys_of(contexts[:1].astype(np.uint64), seed)
        places = np.argsort(contexts // self.size, kind="stable")
        for own in np.split(places, np.flatnonzero(np.diff(contexts[places] // self.size)) + 1):
            part = self.part(int(contexts[own[0]]))
            before = int(np.count_nonzero(context_keys(part.start, part.stop, seed) < first))
            for at in range(0, len(own), step):
                yield part, before + at, own[at : at + step]

"""Token sources as engines hold them: opened again in worker processes, and let go of page by page."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.errors import StaleError
from nanoset_core.shuffling.contexts import TokenSource


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source whose tokens are a file's, as a task for a worker process carries it."""

    name: str
    """Name of the source."""
    path: Path
    """File that holds its tokens and nothing else."""
    dtype: str
    """Their dtype."""
    tokens: int
    """How many."""

    def open(self) -> TokenSource:
        """The source, its file mapped. Raises StaleError when the file has another size by now."""
        dtype = np.dtype(self.dtype)
        found = self.path.stat().st_size
        if found != self.tokens * dtype.itemsize:
            raise StaleError(
                "the file of a source does not hold its tokens",
                where=self.path,
                found=f"{found} bytes",
                expected=f"{self.tokens} tokens of {dtype.itemsize} bytes",
                remedy="plan the shuffle again",
            )
        mapped = np.memmap(self.path, dtype, mode="r") if self.tokens else np.empty(0, dtype)
        return TokenSource(self.name, mapped, self.path)


def source_files(sources: Sequence[TokenSource]) -> list[SourceFile] | None:
    """The sources as tasks carry them; None when one of them has no file."""
    if any(source.path is None for source in sources):
        return None
    return [
        SourceFile(source.name, source.path, source.tokens.dtype.name, len(source.tokens))
        for source in sources
        if source.path is not None
    ]


def let_go(sources: Sequence[TokenSource]) -> None:
    """Give the memory of pages read so far back to the system, which may keep them in its cache."""
    for source in sources:
        if (mapped := _map_of(source.tokens)) is not None and not source.tokens.flags.writeable:
            mapped.madvise(mmap.MADV_DONTNEED)


def _map_of(tokens: np.ndarray) -> mmap.mmap | None:
    base: object = tokens
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base

"""Write a dataset in samples, file by file. Each file appears once it is complete, so that a killed
call can resume.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Meter
from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS, Hashed, Stream, stream_tokens
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.stages.exports.samples import Cut, SampledFormat
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import Store
from nanoset_core.storage.working_copies import for_a_task

_WINDOW_TOKENS = 1 << 23
"""About how many tokens are fetched together from a bucket."""


class FileTask(NamedTuple):
    """One file to be written."""

    number: int
    stream: Stream
    """Where its tokens are in the .bin."""


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of one export, and what they are written from; it pickles."""

    format: SampledFormat
    cut: Cut
    source: FileAccess
    bin: Path
    """The tokens of the dataset, below the folder of `source`."""
    target: Store
    """The folder of the files."""

    def tasks(self, stream: Stream | None) -> Iterator[FileTask]:
        """Yield a task for each file.

        Args:
            stream: The order of the dataset's tokens if it is not that of the .bin.
        """
        for number in range(self.cut.files):
            start, stop = self.cut.span(number)
            starts = np.array([start])
            lengths = np.array([stop - start])
            if stream is not None:
                starts, lengths = stream.ranges(starts, lengths)
            yield FileTask(number, Stream.of_ranges(starts, lengths))

    def write(self, task: FileTask) -> FileFact:
        """Write one file; return its size and sha256."""
        with for_a_task(self.source) as source:
            blocks = Hashed(self.blocks(task, source))
            self.target.put_parts(self.format.file(task.number), blocks)
        return FileFact(blocks.size, blocks.sha256)

    def complete(self, task: FileTask) -> FileFact:
        """Write one file unless one of its size exists; return its size and sha256."""
        size = self.format.size(self.cut, task.number)
        stored = self.target.stat(self.format.file(task.number))
        if stored is None or stored.size != size:
            return self.write(task)
        return FileFact(size, stored.sha256 or self.target.sha256_of(stored))

    def blocks(self, task: FileTask, source: FileAccess) -> Iterator[bytes]:
        """Yield the bytes of one file; memory is bounded by a chunk."""
        chunks = self._chunks(task.stream, source)
        return self.format.blocks(self.cut, task.number, chunks)

    def _chunks(self, stream: Stream, source: FileAccess) -> Iterator[Tokens]:
        """Yield the tokens of a stream in chunks of complete samples."""
        file = _TokenFile(source, source.folder / source.name(self.bin), self.cut.dtype)
        samples_per_chunk = max(1, CHUNK_TOKENS // self.cut.length)
        step = samples_per_chunk * self.cut.length
        window = max(1, _WINDOW_TOKENS // step) * step
        for start in range(0, stream.tokens, window):
            stop = min(start + window, stream.tokens)
            file.fetch(stream, start, stop)
            for _, tokens in stream_tokens(file, stream, start, stop, step):
                yield tokens

    def make(
        self,
        stream: Stream | None,
        workers: int,
        executor: Executor | None,
        meter: Meter,
        *,
        rewrite: bool,
    ) -> list[FileFact]:
        """Write all files; return their sizes and sha256, in order.

        Args:
            stream: As for `tasks`.
            workers: Number of processes.
            executor: Writes them instead, if there is one.
            meter: Reports the bytes.
            rewrite: Whether files that exist are written again.
        """
        work = self.write if rewrite else self.complete
        facts: dict[int, FileFact] = {}
        for number, fact in run_tasks(work, self.tasks(stream), workers, executor):
            facts[number] = fact
            meter.advance(fact.size)
        return [facts[number] for number in sorted(facts)]

    def index(self, facts: Sequence[FileFact]) -> bytes:
        """Return index.json, from the sha256 of each file."""
        return self.format.index(self.cut, [str(fact.sha256) for fact in facts])


class _TokenFile:
    """A .bin, opened for one pass."""

    def __init__(self, access: FileAccess, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self._file = access.open_bytes(path)
        self._tokens: Tokens = np.frombuffer(
            self._file.buffer, dtype, self._file.size // dtype.itemsize
        )

    def fetch(self, stream: Stream, start: int, stop: int) -> None:
        """Fetch the tokens [start, stop) of a stream together, if they are in a store; earlier ones
        may be dropped.
        """
        self._file.trim()
        starts, lengths = stream.ranges(np.array([start]), np.array([stop - start]))
        size = self.dtype.itemsize
        self._file.fetch(starts * size, (starts + lengths) * size)

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tokens:
        """Return all tokens; see `TokenFile`."""
        if isinstance(self._file.buffer, mmap.mmap):
            # pages that were read would count as memory of this process
            self._file.buffer.madvise(mmap.MADV_DONTNEED)
        return self._tokens

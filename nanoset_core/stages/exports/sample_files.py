"""Write a dataset in samples, file by file: each is there whole or not at all, so that work cut off goes on."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
_Task = tuple[int, Stream]
"""The number of a file, and where its tokens lie."""


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of one export, and what they are made of."""

    format: SampledFormat
    cut: Cut
    source: FileAccess
    bin: Path
    """The tokens of the dataset, as `source` names them."""
    target: Store
    """The folder of the files."""

    def tasks(self, stream: Stream | None) -> Iterator[_Task]:
        """Yield a task for each file; stream: of the dataset, None where that is the .bin."""
        for number in range(self.cut.files):
            begin, end = self.cut.span(number)
            first, count = np.array([begin]), np.array([end - begin])
            yield number, Stream.of_ranges(*((first, count) if stream is None else stream.ranges(first, count)))

    def write(self, task: _Task) -> FileFact:
        """Write one file; return what is known of it."""
        number, stream = task
        with for_a_task(self.source) as source:
            blocks = Hashed(self.blocks(number, stream, source))
            self.target.put_parts(self.format.file(number), blocks)
        return FileFact(blocks.size, blocks.sha256)

    def complete(self, task: _Task) -> FileFact:
        """Return what is known of one file, which is written unless one of its size is there."""
        size = self.format.size(self.cut, task[0])
        found = self.target.stat(self.format.file(task[0]))
        if found is None or found.size != size:
            return self.write(task)
        return FileFact(size, found.sha256 or self.target.sha256_of(found))

    def blocks(self, number: int, stream: Stream, source: FileAccess) -> Iterator[bytes]:
        """Yield the bytes of one file; memory is bounded by a chunk."""
        file, cut = _TokenFile(source, source.folder / self.source.name(self.bin), self.cut.dtype), self.cut
        step = max(1, CHUNK_TOKENS // cut.length) * cut.length
        window = max(1, _WINDOW_TOKENS // step) * step

        def chunks() -> Iterator[Tokens]:
            for first in range(0, stream.tokens, window):
                end = min(first + window, stream.tokens)
                file.fetch(stream, first, end)
                yield from (tokens for _, tokens in stream_tokens(file, stream, first, end, step))

        return self.format.blocks(cut, number, chunks())

    def make(
        self, stream: Stream | None, workers: int, executor: Executor | None, meter: Meter, *, anew: bool
    ) -> list[FileFact]:
        """Write all files, with `anew` also those that are there; return what is known of each, in order."""
        facts: dict[int, FileFact] = {}
        for number, fact in run_tasks(self.write if anew else self.complete, self.tasks(stream), workers, executor):
            facts[number] = fact
            meter.advance(fact.size)
        return [fact for _, fact in sorted(facts.items())]

    def index(self, facts: Sequence[FileFact]) -> bytes:
        """Return index.json, of what is known of each file."""
        return self.format.index(self.cut, [str(fact.sha256) for fact in facts])


class _TokenFile:
    """A .bin, opened for one pass."""

    def __init__(self, access: FileAccess, path: Path, dtype: np.dtype) -> None:
        self._file, self.dtype = access.open_bytes(path), dtype
        self._tokens: Tokens = np.frombuffer(self._file.buffer, dtype, self._file.size // dtype.itemsize)

    def fetch(self, stream: Stream, begin: int, end: int) -> None:
        """Fetch tokens [begin, end) of a stream at once, where they are in a store; earlier ones may go."""
        self._file.trim()
        begins, lengths = stream.ranges(np.array([begin]), np.array([end - begin]))
        self._file.fetch(begins * self.dtype.itemsize, (begins + lengths) * self.dtype.itemsize)

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tokens:
        if isinstance(self._file.buffer, mmap.mmap):
            self._file.buffer.madvise(mmap.MADV_DONTNEED)  # or what was read would count as memory
        return self._tokens

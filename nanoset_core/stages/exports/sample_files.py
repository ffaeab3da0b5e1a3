"""Write the files of an export that consists of samples, by any number of processes.

For example, with samples of 2,048 tokens, the file shard.00001.mds has those that follow the
samples of shard.00000.mds. Each file is written by one task, and appears when it is complete. A
call that was killed is resumed with the files that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import RunningWork
from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS, Hashed, Stream, stream_tokens
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.stages.exports.samples import Cut, SampledFormat
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.copies.worker_folders import for_a_task
from nanoset_core.storage.store import Store

_WINDOW_TOKENS = 1 << 23
"""About this many tokens are fetched at once from a bucket."""


class FileTask(NamedTuple):
    """A file to be written."""

    number: int
    """Number of the file within the export."""
    stream: Stream
    """Where its tokens are in the .bin."""


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of one export, and the tokens that they are written from. It can be pickled."""

    format: SampledFormat
    cut: Cut
    """Which tokens are in which file."""
    source: FileAccess
    """Access to the outputs, which have the dataset."""
    bin: Path
    """The .bin of the dataset, below the folder of `source`."""
    target: Store
    """The folder of the export."""

    def tasks(self, stream: Stream | None) -> Iterator[FileTask]:
        """Yield a task for each file of the export, which says where its tokens are.

        Any process can do such a task, also on another machine. The tokens are in the dataset's
        file, the .bin. For files of 1,000 tokens:

            file 0 of the export    tokens 0 to 1,000 of the dataset
            file 1                  tokens 1,000 to 2,000

        Args:
            stream: Where the dataset's tokens are in the .bin, if the dataset is a selection of the
                documents in it; None if it has exactly these tokens, in order.
        """
        for number in range(self.cut.files):
            start, stop = self.cut.span(number)  # of the dataset's tokens
            starts = np.array([start])
            lengths = np.array([stop - start])
            if stream is not None:
                # Several ranges of the .bin, such as 500 to 900 and 7,000 to 7,600.
                starts, lengths = stream.ranges(starts, lengths)
            yield FileTask(number, stream=Stream.of_ranges(starts, lengths))

    def write(self, task: FileTask) -> FileFact:
        """Write one file of an export, such as shard.00007.mds, and return its size and checksum.

        It may be called in any process, also on another machine.

        Args:
            task: Number of the file, and where its tokens are in the dataset.

        Raises:
            StorageError: The file cannot be written.
        """
        name = self.format.file(task.number)
        # On a cluster, downloads of the dataset go to a temporary folder of this task.
        with for_a_task(self.source) as source:
            # `Hashed` passes the blocks on, and computes their size and sha256 meanwhile.
            blocks = Hashed(self.blocks(task, source))
            self.target.put_parts(name, blocks)  # the file appears when it is complete
        return FileFact(blocks.size, blocks.sha256)

    def complete(self, task: FileTask) -> FileFact:
        """Write a file of samples, unless it exists with the right size.

        So the files that a build has completed before it was killed are kept.

        Args:
            task: Number of the file, and where its tokens are in the .bin.

        Returns:
            Its size and sha256.
        """
        size = self.format.size(self.cut, task.number)
        stored = self.target.stat(self.format.file(task.number))  # None if it does not exist
        if stored is None or stored.size != size:
            return self.write(task)

        # A bucket may know the sha256. Otherwise it is computed by reading the file.
        sha256 = stored.sha256 or self.target.sha256_of(stored)
        return FileFact(size, sha256)

    def blocks(self, task: FileTask, source: FileAccess) -> Iterator[bytes]:
        """Yield the bytes that a file of samples should have, computed from the dataset.

        Args:
            task: Number of the file, and where its tokens are in the .bin.
            source: Access to the dataset, as this process can reach it.
        """
        chunks = self._chunks(task.stream, source)
        return self.format.blocks(self.cut, task.number, chunks)

    def _chunks(self, stream: Stream, source: FileAccess) -> Iterator[Tokens]:
        """Yield the tokens of one file of an export in chunks, so that memory is bounded.

        The tokens come from the dataset, which may be in a bucket. They are downloaded in windows
        of several chunks, to save requests. A chunk has only complete samples; the last sample of
        all may be shorter. For samples of 3 tokens, chunks of 2 samples, and windows of 2 chunks:

            tokens      0 1 2   3 4 5   6 7 8   9 10 11   12 13 14
            chunks      |           |   |             |   |      |
            windows     |                             |   |      |

        Args:
            stream: Where the tokens of the file are in the dataset's .bin.
            source: Access to the dataset, as this process can reach it.
        """
        # The dataset may have another path in this process than in the one that made the task.
        path = source.folder / source.name(self.bin)
        file = _TokenFile(source, path, self.cut.dtype)

        chunk_tokens = _greatest_multiple(of=self.cut.length, limit=CHUNK_TOKENS)
        window_tokens = _greatest_multiple(of=chunk_tokens, limit=_WINDOW_TOKENS)
        for start in range(0, stream.tokens, window_tokens):
            stop = min(start + window_tokens, stream.tokens)
            file.fetch(stream, start, stop)  # downloads the window, if the .bin is in a bucket
            for _, tokens in stream_tokens(file, stream, start, stop, step=chunk_tokens):
                yield tokens

    def make(
        self,
        stream: Stream | None,
        workers: int,
        executor: Executor | None,
        export_work: RunningWork,
        *,
        rewrite: bool,
    ) -> list[FileFact]:
        """Write all files of an export, in worker processes.

        If an earlier build was killed, the files that it has completed are kept, unless all are to
        be rewritten.

        Args:
            stream: Order of the dataset's tokens, if they are not in order in the .bin.
            workers: Number of processes.
            executor: Writes the files on other machines, if it is given.
            export_work: Reports the bytes that were written.
            rewrite: Whether to rewrite files that exist.

        Returns:
            Size and sha256 of each file, in order.
        """
        # `complete` writes a file only if it does not exist yet.
        make_file = self.write if rewrite else self.complete
        fact_by_file: dict[int, FileFact] = {}
        for number, fact in run_tasks(make_file, self.tasks(stream), workers, executor):
            fact_by_file[number] = fact
            export_work.advance(fact.size)
        return [fact_by_file[number] for number in sorted(fact_by_file)]

    def index(self, facts: Sequence[FileFact]) -> bytes:
        """Return the contents of index.json, by which readers find the files of samples.

        Args:
            facts: Size and sha256 of each file, in order.
        """
        return self.format.index(self.cut, [str(fact.sha256) for fact in facts])


def _greatest_multiple(*, of: int, limit: int) -> int:
    """Return the greatest multiple of a number up to a limit: of 3 up to 10, 9.

    Args:
        of: The number. If it is above the limit, it is the result itself.
        limit: The limit.
    """
    return max(1, limit // of) * of


class _TokenFile:
    """A .bin that is opened to read tokens in order, in windows."""

    def __init__(self, access: FileAccess, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self._file = access.open_bytes(path)
        self._tokens: Tokens = np.frombuffer(
            self._file.buffer, dtype, self._file.size // dtype.itemsize
        )

    def fetch(self, stream: Stream, start: int, stop: int) -> None:
        """Fetch the tokens [start, stop) of a stream at once, if they are in a store.

        Tokens that were fetched earlier may be dropped.
        """
        self._file.trim()
        starts, lengths = stream.ranges(np.array([start]), np.array([stop - start]))
        size = self.dtype.itemsize
        self._file.fetch(starts * size, (starts + lengths) * size)

    def tokens_for(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Tokens:
        """Return all tokens of the file; see `TokenFile`."""
        self._file.release_memory()  # of the tokens that were read before
        return self._tokens

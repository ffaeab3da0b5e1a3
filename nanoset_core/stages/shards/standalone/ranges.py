"""Cut input files into ranges, the units of work of `preprocess`.

A range is a part of a large file, or several small files, and becomes one shard. Files are read and
hashed while earlier ranges are tokenized.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from nanoset_core.execution.progress import Progress
from nanoset_core.stages.shards.standalone.inputs import InputFiles
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.places import takes_requests
from nanoset_core.text.files.endings import is_cuttable
from nanoset_core.text.inventory.fingerprints import fingerprint, hash_parts
from nanoset_core.text.inventory.pieces import Piece, SourceRange, deal_parts

MIN_RANGE_BYTES = 4 << 20
MAX_RANGE_BYTES = 64 << 20
_N_RANGES = 64
"""Ranges of an input of medium size. The number must not depend on that of the workers: a call that
was killed can be continued with any number, and finds the ranges that are finished.
"""


class InputRanges:
    """The ranges of input files, in document order.

    Files are read and hashed as their ranges are needed, while earlier ranges are tokenized. All
    ranges are kept, so that several iterations read the files once.
    """

    def __init__(self, inputs: InputFiles, progress: Progress) -> None:
        self.size = sum(stat.size for stat in inputs.files)
        """Stored bytes of all files."""
        self._inputs = inputs
        self._work = progress.work("hash", "input", self.size)
        self._known: list[SourceRange] = []
        self._pieces: list[Piece] = []

        range_bytes = min(max(self.size // _N_RANGES, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
        self._unread = deal_parts(self._read_parts(range_bytes), range_bytes)

    def __iter__(self) -> Iterator[SourceRange]:
        yield from self._known
        for unlabelled_source in self._unread:
            json_lines = self._inputs.json_lines.intersection(unlabelled_source.files)
            source = replace(unlabelled_source, json_lines=json_lines)
            self._known.append(source)
            yield source

    def pieces(self) -> list[Piece]:
        """Return the pieces of all files, each with a digest by which a later call recognises it.

        A piece is a file, or a part of a large file: bytes 0 to 64 MiB of a.jsonl, and so on.

        Returns:
            The pieces in document order.

        Raises:
            MissingError: A file was deleted.
            InputError: A file cannot be read.
            SourceChangedError: A file changed since it was listed.
        """
        # Read the files that were not read yet. `_read_parts` adds their pieces to `_pieces`.
        for _range in self:
            pass
        return self._pieces

    def _read_parts(self, part_bytes: int) -> Iterator[Piece]:
        """Yield the parts of all files, and collect their pieces."""
        for stat in self._inputs.files:
            for part in self._parts_of(stat, part_bytes):
                self._work.advance(part.size)
                yield part

    def _parts_of(self, stat: FileStat, part_bytes: int) -> Iterable[Piece]:
        """Return the parts of a file, and collect its pieces."""
        folder = self._inputs.folder
        if takes_requests(folder) and not is_cuttable(stat.path):
            # An object that is not cut has its ETag as digest, so that it is downloaded once.
            parts = fingerprint(replace(folder, by_etag=True), stat)
            self._pieces += parts
            return parts
        return hash_parts(folder, stat, part_bytes, self._pieces.append)

"""Read an indexed dataset (`<prefix>.bin` and `<prefix>.idx`) through memory maps."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, SampleIndexError
from nanoset_core.formats.indexed.layout import Tokens, bin_path, idx_path, no_such_file, read_idx
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import (
    copies_folder,
    is_remote,
    path_on_this_machine,
    remote_location,
)
from nanoset_core.storage.reading.mapped_files import BlockFile, MappedFile
from nanoset_core.storage.store import Store


class MMapIndexedDataset:
    """The sequences of one `.bin`/`.idx` pair, read like a list, without copying tokens.

    `dataset[i]` returns the tokens of sequence i as a read-only view of dtype `dtype`, and
    `dataset[i:j]` a list of such views. It corresponds to Megatron-LM's `IndexedDataset`. A pickle
    contains only the absolute path of a dataset: unpickling opens it again.

    Usually a document is one sequence. Document d consists of the sequences from
    `document_indices[d]` up to, but not including, `document_indices[d + 1]`.

    Attributes:
        prefix: Path of the dataset as it was given, without `.bin` and `.idx`.
        dtype: Type of one token.
        sequence_lengths: Tokens of each sequence, int32, shape (n,).
        sequence_pointers: Byte offset of each sequence in the .bin, int64, shape (n,).
        document_indices: Sequence at which each document begins, int64, shape (documents + 1,); the
            last entry is n.
        modes: Mode of each sequence, int8, shape (n,); None if the dataset is not multimodal.
        token_count: Tokens in the .bin. The .bin of a view is that of its corpus: the view itself
            has `sequence_lengths.sum()` tokens.
        bin_bytes: Bytes of the .bin.
        stored_bytes: The .bin as bytes that can be sliced; in a bucket, slices are downloaded when
            they are taken.
        is_here: Whether all tokens are on this machine; otherwise they are downloaded when they are
            read.
        access: Reads the files if they are below an output root in a bucket; otherwise None.
    """

    __slots__ = (
        "_access",
        "_bin_path",
        "_file",
        "_tokens",
        "access",
        "bin_bytes",
        "document_indices",
        "dtype",
        "is_here",
        "modes",
        "prefix",
        "sequence_lengths",
        "sequence_pointers",
        "stored_bytes",
        "token_count",
    )

    access: FileAccess | None

    def __init__(self, prefix: str | os.PathLike[str], *, validate: bool = True) -> None:
        """Open a dataset.

        Args:
            prefix: Path without `.bin` and `.idx`. `~` is replaced by the home folder. It may be
                s3://bucket/path, which is accessed with the AWS configuration of this machine. Then
                the index is downloaded, and those blocks of the tokens that are read.
            validate: Also check every entry of the .idx, in one pass; otherwise only header, sizes
                and ends.

        Raises:
            MissingError: A file is missing.
            FormatError: A file is damaged; the error names the byte offset.
            ConfigError: The prefix is not a valid address of a bucket.
            StorageError: The bucket cannot be reached.
        """
        self.prefix = os.fspath(prefix)
        self.access = None
        local_prefix, access = _locate(self.prefix)
        with access.named():  # errors name the address in a bucket, not the local copy
            self._open(local_prefix, access, validate=validate)

    @classmethod
    def below(cls, access: FileAccess | None, prefix: str, *, validate: bool = False) -> Self:
        """Open a dataset of a project, whose outputs may be in a bucket.

        It does the same as the constructor. But the project knows already how to read the files of
        its bucket, by `access`, so the bucket is not looked up again for each of its datasets.

        Args:
            access: Reads the project's files, and copies those in a bucket to a local folder when
                they are needed; None if the files are local.
            prefix: Absolute path in the local folder, without `.bin` and `.idx`.
            validate: Also check every entry of the .idx, in one pass; otherwise only header, sizes
                and ends.

        Raises:
            MissingError: A file is missing.
            FormatError: A file is damaged; the error names the byte offset.
            StorageError: The bucket cannot be reached.
        """
        if access is None:
            return cls(prefix, validate=validate)
        # Skip `__init__`, which would look for the bucket in the prefix; `access` has it already.
        dataset = cls.__new__(cls)
        dataset.prefix = prefix
        dataset.access = access
        dataset._open(prefix, access, validate=validate)
        return dataset

    def _open(self, local_prefix: str, access: FileAccess, *, validate: bool) -> None:
        """Map both files, and set all attributes but `prefix` and `access`.

        A dataset is two files: the .idx, an index of its sequences, and the .bin, their tokens. The
        .idx is read now. The .bin is only mapped into memory. If it is in a bucket, a `BlockFile`
        downloads the parts of it that are needed later.

        Args:
            local_prefix: Prefix of the dataset, or of its copy, on this machine.
            access: Reads the files.
            validate: Also check every entry of the .idx.

        Raises:
            MissingError: A file is missing.
            FormatError: A file is damaged.
        """
        path = bin_path(local_prefix)
        self._bin_path = path
        self._access = access
        index = read_idx(access.fetch(idx_path(local_prefix)), validate=validate)
        self._file = _open_bin(path, access)

        # The .bin must be large enough for all sequences. Usually, the last one is also last in the
        # .bin, so the place where it ends is enough. To be sure, look at every sequence.
        if validate:
            required_bytes = index.required_bytes()  # slow: the greatest end of any sequence
        else:
            required_bytes = index.end_bytes  # the end of the last sequence
        _check_bin_size(path, len(self._file.buffer), required_bytes)

        # What the .idx says.
        self.dtype = index.dtype
        self.sequence_lengths = index.sequence_lengths
        self.sequence_pointers = index.sequence_pointers
        self.document_indices = index.document_indices
        self.modes = index.modes

        # The .bin. Its tokens are a view of the map: reading them needs no copy.
        self.bin_bytes = self._file.size
        self.stored_bytes = self._file.sliceable  # slices of it are downloaded if necessary
        is_downloaded_in_blocks = isinstance(self._file, BlockFile)
        self.is_here = not is_downloaded_in_blocks
        self.token_count = self.bin_bytes // index.dtype.itemsize
        self._tokens: Tokens = np.frombuffer(self._file.buffer, index.dtype, self.token_count)

    @property
    def tokens(self) -> Tokens:
        """All tokens of the .bin as one flat read-only array of `dtype`, shape (token_count,).

        A .bin in a bucket is downloaded first. The .bin of a view has all tokens of its corpus.
        """
        self._file.fetch_span(0, self._file.size)
        return self._tokens

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tokens:
        """Return all tokens of the dataset as one array, of which only some ranges may be used.

        If the file of tokens is in a bucket, only these ranges are downloaded, and the rest of the
        array may be zeros. So a caller can use positions in the file, and need not care where the
        file is:

            tokens = dataset.tokens_for(begins, ends)    downloads the bytes 200 to 220, for example
            tokens[100:110]                              the same range, for tokens of 2 bytes

        Args:
            begins: First byte of each range in the .bin, int64, shape (n_ranges,).
            ends: Byte after each range, int64, shape (n_ranges,).

        Returns:
            All tokens in the .bin, shape (token_count,), read-only.

        Raises:
            StorageError: A range cannot be downloaded.
        """
        self._file.fetch(begins, ends)
        return self._tokens

    def spans(self, count: int, at_once: int) -> Iterator[slice]:
        """Divide a long list of reads into steps, so that downloads do not fill the disk.

        Tokens that are downloaded from a bucket are kept on disk, in a limited space. Between two
        steps, they may be deleted. So the caller must not use tokens of earlier steps any more. For
        example, 250 ranges of tokens in steps of 100 are read as 0 to 100, 100 to 200, and the
        rest.

        Args:
            count: Number of ranges to be read.
            at_once: Number of ranges in a step. If the space is not limited, there is one step.

        Yields:
            The slice of the list for each step.
        """
        is_space_limited = self._file.room is not None
        step = at_once if is_space_limited else count
        step = max(1, step)  # `range` refuses 0, also if there are no ranges
        for start in range(0, count, step):
            yield slice(start, start + step)
            self.trim_downloads()

    def trim_downloads(self) -> None:
        """Delete downloaded tokens if they take more space than they may."""
        self._file.trim()

    @property
    def place(self) -> tuple[FileAccess, Path]:
        """The access by which any process can open the .bin, and its path."""
        return self._access, self._bin_path

    def stored(self, *, as_copies: bool = False) -> tuple[Store, str]:
        """Return the store that has the files of the dataset, and their name in it without endings.

        With these two, another machine can read ranges of the files. For example, (the bucket
        s3://data, "web/tokens") stands for s3://data/web/tokens.bin and s3://data/web/tokens.idx.

        Args:
            as_copies: Return the copies on this machine instead, if all tokens are on this machine.
        """
        store, name = self._access.stored_at(self._bin_path, as_copy=as_copies)
        return store, name.removesuffix(".bin")

    @staticmethod
    def exists(prefix: str | os.PathLike[str]) -> bool:
        """Return whether both files of a dataset exist on this machine.

        Args:
            prefix: Path without .bin and .idx. Addresses of buckets are not looked up.
        """
        return bin_path(prefix).is_file() and idx_path(prefix).is_file()

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.sequence_lengths)

    def __iter__(self) -> Iterator[Tokens]:
        """Yield the tokens of each sequence.

        Without this method, Python would call `dataset[0]`, `dataset[1]` and so on until an
        IndexError, and take the SampleIndexError of a damaged sequence for the end.
        """
        for index in range(len(self)):
            yield self.get(index)

    @overload
    def __getitem__(self, index: int) -> Tokens: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tokens]: ...

    def __getitem__(self, index: int | slice) -> Tokens | list[Tokens]:
        """Return the tokens of a sequence, or a list with those of each sequence of a slice."""
        if isinstance(index, slice):
            return [self.get(i) for i in range(*index.indices(len(self)))]
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> Tokens:
        """Return the tokens of one sequence, or some of them, without copying.

        For example, sequence 7 has 10 tokens: with an offset of 8, these are the last two.

        Args:
            index: Number of the sequence; a negative one counts from the end.
            offset: First token of the sequence to return.
            length: Number of tokens; None for all up to the end of the sequence.

        Raises:
            SampleIndexError: There is no such sequence, or it does not have these tokens.
        """
        sequence = operator.index(index)
        n_sequences = len(self)
        if not -n_sequences <= sequence < n_sequences:
            raise self._no_such_sequence(sequence)
        sequence_length = int(self.sequence_lengths[sequence])
        count = sequence_length - offset if length is None else length
        if offset < 0 or count < 0 or offset + count > sequence_length:
            raise SampleIndexError(
                f"tokens outside of sequence {sequence % n_sequences}",
                where=self.prefix,
                found=f"offset {offset}, length {count}",
                expected=f"within its {sequence_length} tokens",
            )
        itemsize = self.dtype.itemsize
        # Pointers are in bytes; positions in the array of all tokens are in tokens.
        start_token = int(self.sequence_pointers[sequence]) // itemsize + offset
        stop_token = start_token + count
        self._file.fetch_span(start_token * itemsize, stop_token * itemsize)
        return self._tokens[start_token:stop_token]

    def _no_such_sequence(self, sequence: int) -> SampleIndexError:
        """Return the error for a number of which the dataset has no sequence."""
        n_sequences = len(self)
        expected = "none: it is empty"
        if n_sequences:
            expected = f"0 to {n_sequences - 1}, or -{n_sequences} to -1 from the end"
        return SampleIndexError(
            "no such sequence",
            where=self.prefix,
            found=sequence,
            expected=expected,
        )

    def __repr__(self) -> str:
        return f"MMapIndexedDataset({self.prefix!r}, {len(self)} sequences, {self.dtype.name})"

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to recreate the dataset from a pickle: a function and its arguments."""
        is_local = self.access is None and not is_remote(self.prefix)
        # The absolute path, since a process that unpickles it may have another working directory.
        prefix = str(self._bin_path).removesuffix(".bin") if is_local else self.prefix
        return _open_again, (prefix, self.access)


def _open_again(prefix: str, access: FileAccess | None = None) -> MMapIndexedDataset:
    """Open a dataset that was pickled.

    Pickles contain the name and arguments of this function; those of version 0.1.0 contain the
    prefix alone.
    """
    return MMapIndexedDataset.below(access, prefix)


def _locate(prefix: str) -> tuple[str, FileAccess]:
    """Find a dataset on this machine, or prepare to download it from a bucket.

        data/web               the files data/web.bin and data/web.idx
        s3://bucket/data/web   copies of the two files in a local folder, which are downloaded when
                               they are needed

    Args:
        prefix: Path of the files without .bin and .idx.

    Returns:
        (absolute path of the files on this machine, without .bin and .idx; an object that reads
        them)
    """
    if not is_remote(prefix):
        path = path_on_this_machine(prefix).absolute()
        return str(path), FileAccess(path.parent)

    location = remote_location(prefix, where="the dataset's prefix")
    if not location.path:
        raise ConfigError(
            "this is a whole bucket, and not a dataset in it",
            where=prefix,
            expected="the prefix of a .bin and an .idx, such as s3://bucket/data/web",
        )
    bucket_folder = location.parent.place
    access = FileAccess(copies_folder(bucket_folder), bucket_folder)
    local_prefix = access.folder / location.name

    # The dataset may have been replaced in the bucket since a copy of its .idx was downloaded:
    # compare the copy with the bucket before it is read.
    access.revalidate(idx_path(local_prefix))
    return str(local_prefix), access


def index_here(prefix: str) -> Path:
    """Return the path of a dataset's index (.idx) on this machine.

    A dataset may be in a bucket, s3://bucket/prefix. Then its index is copied to this machine. An
    older copy is replaced if the index in the bucket has changed.

    Args:
        prefix: Path or address of the dataset, without .bin and .idx.

    Returns:
        The path of the file itself, which may be missing, or of its copy.

    Raises:
        ConfigError: The prefix is not a valid address of a bucket.
        StorageError: The bucket cannot be reached.
    """
    local_prefix, _ = _locate(prefix)
    return idx_path(local_prefix)


def _open_bin(path: Path, access: FileAccess) -> MappedFile:
    """Map a .bin into memory.

    Args:
        path: Path of the file, or of its copy on this machine.
        access: Reads the file.

    Raises:
        MissingError: The file is missing.
    """
    try:
        return access.open_bytes(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise no_such_file(path) from error


def _check_bin_size(path: Path, size: int, required_bytes: int) -> None:
    """Check that the file of tokens contains all sequences that the index lists.

    If a copy of the file was interrupted, for example, the index says that the last sequence ends
    at byte 1,000, and the file has 900 bytes.

    Args:
        path: Path of the file, for messages.
        size: Size of the file.
        required_bytes: End of the last sequence.
    """
    if size < required_bytes:
        raise FormatError(
            "the token file is shorter than its index says",
            where=f"{path}, byte {size}",
            found=f"{size} bytes",
            expected=f"{required_bytes} bytes, the end of the last sequence",
            remedy="copy or write the .bin again",
        )

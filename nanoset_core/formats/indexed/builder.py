"""Write an indexed dataset, merge several into one, and reorder one."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import (
    DTYPE_CODES,
    Index,
    Tokens,
    bin_path,
    dtype_code,
    idx_path,
    is_back_to_back,
    not_back_to_back,
    positions_in,
    read_idx,
    write_idx,
)
from nanoset_core.outputs.recorded_tokenization import check_same_tokenizer
from nanoset_core.storage.atomic import (
    alone_in,
    discard,
    flush_to_disk,
    fsync_folder,
    open_unfinished,
    put_in_place,
    sweep_once,
)
from nanoset_core.storage.location import path_on_this_machine
from nanoset_core.storage.os_errors import explained_os_error, explaining_all
from nanoset_core.storage.store import OnJoin, no_progress
from nanoset_core.storage.writing.appending import append_file

_MAX_LENGTH = 2**31 - 1
"""Longest sequence: lengths are int32 in the .idx."""
_TOKENS_PER_WRITE = 1 << 22
"""Tokens that are written at once."""
_CHUNK_DOCUMENTS = 256
"""Largest number of documents that `deal_documents` copies at once."""


class MMapIndexedDatasetBuilder:
    """Writes the two files of an indexed dataset, `<prefix>.bin` and `<prefix>.idx`.

    A document consists of one or more sequences. In a multimodal dataset, each sequence also has a
    *mode*: a small number that tells text from other data, such as images.

    Both files appear when `finalize` is called, the .idx last. For the same calls, their bytes are
    those of Megatron-LM's `IndexedDatasetBuilder`. For example:

        with MMapIndexedDatasetBuilder("web", np.uint16) as builder:
            builder.add_document([5, 6, 7])

    The context manager calls `finalize` at the end of the block, and leaves no file if the block
    raises. Until then, the tokens are in a hidden file next to the .bin, whose name begins with
    `.tmp-`. If the process is killed, this file stays; the next builder that writes to the folder
    on the same machine removes it.

    The builder takes 4 bytes of memory for a sequence and 8 for a document.

    If several processes or threads of a machine write the same dataset, both files are those of the
    builder that finished last. Several machines must not do so: the file system they share may have
    no locks. While a dataset is replaced, it has no .idx for a moment: a program that opens it then
    gets a MissingError.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        dtype: DTypeLike = np.int32,
        *,
        multimodal: bool = False,
    ) -> None:
        """Open the .bin.

        Args:
            prefix: Path of the dataset on this machine, without `.bin` and `.idx`.
            dtype: Type of the tokens in the .bin. Megatron-LM expects uint16 if the vocabulary has
                less than 65,500 tokens, and int32 otherwise.
            multimodal: Store a mode (int8) with every sequence.

        Raises:
            ConfigError: An .idx has no code for the type. Or the prefix is the address of a bucket,
                has no name, or ends with .bin or .idx.
            StorageError: The file cannot be created.
        """
        self.prefix = os.fspath(prefix)
        _check_prefix(self.prefix)
        # Absolute, since the caller may change the working directory before the end.
        self._target = path_on_this_machine(prefix).absolute()
        self.dtype = DTYPE_CODES[dtype_code(dtype)]
        self._lengths = array("i")  # int32, tokens of each sequence
        # int64, first sequence of each document, and the end
        self._document_indices = array("q", [0])
        self._modes = array("b") if multimodal else None  # int8, mode of each sequence
        self._first_part: str | None = None
        """Prefix of the first dataset of `add_index`."""
        with explaining_all(self._target.parent):
            # It is a folder of the user, which may have hidden files of other programs, too.
            sweep_once(self._target.parent, by_age=False)
            self._file = open_unfinished(bin_path(self._target))
        # Without this, the unfinished file would stay if the caller forgets `finalize`.
        self._remove_unfinished = weakref.finalize(self, _discard_own, self._file, os.getpid())
        self._is_finished = False

    def add_item(self, tokens: ArrayLike, mode: int = 0) -> None:
        """Add one sequence of tokens to the current document.

        Megatron-LM's builder has the same method. A document of the two sequences AB and CDE is
        added by

            add_item([A, B]), add_item([C, D, E]), end_document()

        If something else is added before `end_document`, the sequence becomes the start of its
        first document, as with Megatron-LM's builder.

        Args:
            tokens: Tokens of the sequence, shape (tokens,).
            mode: Says whether the sequence is text or an image, in a multimodal dataset.

        Raises:
            ConfigError: A token does not fit the dataset's type.
        """
        flat = self._encode(tokens)
        self._write(flat, [len(flat)], [mode])

    def end_document(self) -> None:
        """End the current document: the sequences that were added since the last call.

        If there are none, the document is empty.
        """
        self._document_indices.append(len(self._lengths))

    def add_document(
        self,
        tokens: ArrayLike,
        lengths: ArrayLike | None = None,
        modes: ArrayLike | None = None,
    ) -> None:
        """Add one document: a sequence of tokens, or several.

        For example, the tokens A B C D E with the lengths 2 and 3 are a document of the sequences
        AB and CDE. Without lengths, they are a document of one sequence.

        Args:
            tokens: Tokens of all its sequences, shape (tokens,).
            lengths: Tokens of each sequence; None for a document of one sequence.
            modes: Mode of each sequence, in a multimodal dataset.

        Raises:
            ConfigError: The lengths don't add up to the tokens, or a token does not fit the
                dataset's type.
        """
        flat = self._encode(tokens)
        if lengths is None:
            lengths = [len(flat)]
        self._write(flat, lengths, modes)
        self.end_document()

    def add_documents(
        self, tokens: ArrayLike, lengths: ArrayLike, sequences_per_document: ArrayLike
    ) -> None:
        """Add many documents at once, without a loop over them.

        A document consists of sequences, and a sequence of tokens. For example, the documents AB
        CDE, F and one without tokens:

            tokens                    A B C D E F
            lengths                   2 3 1          the sequences AB, CDE, F
            sequences_per_document    2 1 0

        Args:
            tokens: Tokens of all documents, shape (tokens,).
            lengths: Tokens of each sequence, shape (sequences,).
            sequences_per_document: Shape (documents,); 0 for a document without tokens.

        Raises:
            ConfigError: The numbers don't add up, or a token does not fit the dataset's type.
        """
        counts = _whole_numbers(sequences_per_document, "sequences_per_document", self.prefix)
        sequence_lengths = _whole_numbers(lengths, "lengths", self.prefix)
        self._check_counts(counts, len(sequence_lengths))
        n_earlier_sequences = len(self._lengths)
        self._write(self._encode(tokens), sequence_lengths, modes=None)

        # The index of documents begins with 0. Each document adds the number of the sequence at
        # which it stops, which is where the next one starts.
        stops = n_earlier_sequences + np.cumsum(counts)  # (documents,)
        self._document_indices.frombytes(stops.tobytes())

    def _check_counts(self, sequences_per_document: NDArray[Any], n_sequences: int) -> None:
        """Check that the sequences of some documents are as many as were passed.

        Args:
            sequences_per_document: Shape (documents,).
            n_sequences: How many sequences were passed for these documents.

        Raises:
            ConfigError: There are more or fewer, or a number is negative.
        """
        counts = sequences_per_document
        is_valid = counts.ndim == 1 and (len(counts) == 0 or counts.min() >= 0)
        if not is_valid or int(counts.sum()) != n_sequences:
            raise ConfigError(
                "sequences per document don't add up",
                where=self.prefix,
                found=int(counts.sum()),
                expected=f"{n_sequences} sequences, no negative count",
            )

    def add_index(
        self, prefix: str | os.PathLike[str], tokens: tuple[Path, int] | None = None
    ) -> int:
        """Append all documents of another dataset to this one.

        A dataset has a .bin, a file of tokens, and an .idx, which says where sequences and
        documents stop. The tokens are copied as they are. The numbers of sequences are shifted. For
        example, if this dataset has 10 sequences already:

            document of the other dataset     0     1
            it stops before sequence          2     3
            in this dataset                   12    13

        Args:
            prefix: Path of the other dataset, without .bin and .idx.
            tokens: (file, start byte) of its tokens, if they are a range of a larger file; None if
                they are its .bin.

        Returns:
            Bytes of its tokens.

        Raises:
            ConfigError: The prefix is the address of a bucket.
            MissingError: A file is missing.
            FormatError: The token types differ, or the .bin is not just the sequences in order.
        """
        prefix = path_on_this_machine(prefix)
        token_file = bin_path(prefix)
        start_byte = 0
        if tokens is not None:
            token_file, start_byte = tokens

        # The tokens are copied as they are: check their type, and that they are the sequences of
        # the index, in order and without gaps.
        index = read_idx(idx_path(prefix))
        lengths = index.sequence_lengths
        self._check_dtype(index, prefix)
        size_bytes = int(lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        if not is_back_to_back(lengths, index.sequence_pointers, self.dtype.itemsize):
            raise not_back_to_back(idx_path(prefix))
        _check_size(size_bytes, token_file, start_byte, is_range=tokens is not None)

        # The document indices 0 2 3 say that documents stop before the sequences 2 and 3. If this
        # dataset has 10 sequences already, these become 12 and 13.
        document_stops = index.document_indices[1:] + len(self._lengths)
        self._check_modes(index, prefix)
        if self._first_part is None:
            self._first_part = os.fspath(prefix)
        self._extend_modes(index.modes, len(lengths), prefix)
        self._lengths.frombytes(lengths.tobytes())
        self._document_indices.frombytes(document_stops.tobytes())
        with explaining_all(self._target.parent), open(token_file, "rb") as file:
            append_file(file, self._file, size_bytes, start_byte)
        return size_bytes

    def _check_dtype(self, index: Index, prefix: str | os.PathLike[str]) -> None:
        """Check that another dataset has tokens of the same type as this one.

        Two datasets are merged by copying the bytes of their tokens. If one has tokens of two bytes
        (uint16) and the other of four (int32), the result would be nonsense.

        Args:
            index: Index of the other dataset.
            prefix: Path of the other dataset, for the error.
        """
        if index.dtype != self.dtype:
            raise FormatError(
                "datasets of different token types cannot be merged",
                where=f"{os.fspath(prefix)}.idx, byte 17",
                found=index.dtype.name,
                expected=f"{self.dtype.name}, as in {self._first_part or self.prefix}",
                remedy="tokenize both with the same tokenizer, "
                "or write one of them again with the other's dtype",
            )

    def _check_modes(self, index: Index, prefix: str | os.PathLike[str]) -> None:
        """Check that another dataset has no modes if this one has none.

        Args:
            index: Index of the other dataset.
            prefix: Path of the other dataset, for the error.
        """
        has_modes = index.modes is not None and bool(index.modes.any())
        if has_modes and self._modes is None:
            raise FormatError(
                "only one of two datasets to merge is multimodal",
                where=f"{os.fspath(prefix)}.idx",
                found="modes of sequences",
                expected=f"none, as in {self._first_part or self.prefix}",
                remedy="merge the multimodal dataset first: the sequences of others get mode 0",
            )

    def finalize(self) -> None:
        """Complete the dataset, so that its two files appear; nothing can be added afterwards.

        Until now, the tokens were written to a file with another name. It becomes the .bin, and the
        index, the .idx, is written from what was noted about sequences and documents. If something
        fails, neither file appears.

        Raises:
            ConfigError: The last document was not ended, or the dataset is already finished.
            StorageError: The files cannot be written, for example because the disk is full.
        """
        self._check_unfinished()
        n_open_sequences = len(self._lengths) - self._document_indices[-1]
        if n_open_sequences:
            raise ConfigError(
                "sequences after the last document",
                where=self.prefix,
                found=f"{n_open_sequences} sequences without an end_document()",
            )

        try:
            with explaining_all(self._target.parent):
                self._put_in_place()
        except BaseException:
            self.abort()
            raise
        self._is_finished = True
        self._remove_unfinished.detach()

    def _put_in_place(self) -> None:
        """Write the .idx, and give both files their names, the .idx last.

        Raises:
            OSError: A file cannot be written or renamed.
        """
        idx_file = open_unfinished(idx_path(self._target))
        try:
            self._write_idx(idx_file)
            # Wait for the disk before the folder is locked, so that the lock is held for moments.
            flush_to_disk(self._file)
            flush_to_disk(idx_file)
            self._rename_both(idx_file)
        except BaseException:
            discard(idx_file)
            raise
        fsync_folder(self._target.parent)

    def _write_idx(self, idx_file: BinaryIO) -> None:
        """Write the index of the sequences and documents that were added.

        Args:
            idx_file: The file, which is empty.
        """
        lengths = np.frombuffer(self._lengths, np.int32)
        document_indices = np.frombuffer(self._document_indices, np.int64)
        modes = None if self._modes is None else np.frombuffer(self._modes, np.int8)
        write_idx(idx_file, self.dtype, lengths, document_indices, modes)

    def _rename_both(self, idx_file: BinaryIO) -> None:
        """Give the .bin and the .idx their names, in place of an older dataset of the same name.

        Another builder of this dataset may finish at the same time. Without a lock, the .bin of one
        could end up next to the .idx of the other.

        Args:
            idx_file: The .idx, which still has a temporary name, as the .bin has.
        """
        idx_file_path = idx_path(self._target)
        with alone_in(idx_file_path.parent):
            # An old .idx next to the new .bin would be read as if the two belonged together.
            idx_file_path.unlink(missing_ok=True)
            put_in_place(self._file, bin_path(self._target))
            put_in_place(idx_file, idx_file_path)

    def abort(self) -> None:
        """Discard everything that was added; no file appears."""
        if not self._is_finished:
            self._is_finished = True
            self._remove_unfinished()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the dataset, or discard it if the block has raised an exception."""
        try:
            if kind is None and not self._is_finished:
                self.finalize()
        finally:
            self.abort()

    def _check_unfinished(self) -> None:
        """Check that the builder can still be used.

        Raises:
            ConfigError: The builder was finished before.
        """
        if self._is_finished:
            raise ConfigError(
                "the dataset is finished", where=self.prefix, remedy="use a new builder"
            )

    def _encode(self, tokens: ArrayLike) -> Tokens:
        """Return tokens in the type in which the dataset stores them, shape (tokens,).

        For example, [5, 17, 2] becomes an array of uint16. The token 70,000 does not fit into
        uint16, and is an error; so is [0.5].

        Args:
            tokens: Tokens in any type that can be an array.

        Raises:
            ConfigError: They are not a flat array of integers (floats, if the dataset has floats),
                or a token does not fit the type.
        """
        values = _as_array(tokens, "tokens", self.prefix)
        if values.size == 0:
            return np.empty(0, self.dtype)
        kinds = "f" if self.dtype.kind == "f" else "iu"  # numpy's codes: float, int, unsigned
        if values.ndim != 1 or values.dtype.kind not in kinds:
            raise self._wrong_tokens(tokens, values)
        # Any value of a type that can be cast, such as uint8 to uint16, fits.
        if self.dtype.kind != "f" and not np.can_cast(values.dtype, self.dtype):
            self._check_bounds(values)
        return np.ascontiguousarray(values, dtype=self.dtype)

    def _wrong_tokens(self, tokens: object, values: NDArray[Any]) -> ConfigError:
        """Return the error for tokens that are not a flat array of numbers.

        Args:
            tokens: What the caller has given.
            values: What numpy has made of it.
        """
        type_name = type(tokens).__name__
        numbers = "floats" if self.dtype.kind == "f" else "integers"
        return ConfigError(
            f"tokens are not a flat array of {numbers}",
            where=self.prefix,
            found=f"{values.dtype.name}{list(values.shape)}, from an object of type {type_name}",
            expected=f"a list or an array of {numbers}, shape (tokens,), for {self.dtype.name}",
            remedy="pass the numbers of the tokens; if a generator yields them, make a list of it",
        )

    def _check_bounds(self, values: NDArray[np.integer]) -> None:
        """Check that all tokens fit into the type with which the dataset stores them.

        For example, uint16 has room for ids up to 65,535.

        Args:
            values: The tokens, at least one.
        """
        low = int(values.min())
        high = int(values.max())
        bounds = np.iinfo(self.dtype)
        if bounds.min <= low and high <= bounds.max:
            return
        raise ConfigError(
            "a token does not fit the token type",
            where=self.prefix,
            found=high if high > bounds.max else low,
            expected=f"{bounds.min} to {bounds.max} ({self.dtype.name})",
            remedy="use np.uint16 for a vocabulary below 65,500 tokens, otherwise np.int32",
        )

    def _write(self, flat: Tokens, lengths: ArrayLike, modes: ArrayLike | None) -> None:
        """Write the tokens of some sequences to the file, and note how long each sequence is.

        For example, the tokens A B C D E with the lengths 2 and 3 are the sequences AB and CDE.

        Args:
            flat: Tokens of all sequences, in the dataset's type, shape (tokens,).
            lengths: Tokens of each sequence, shape (sequences,).
            modes: In a multimodal dataset, a number for each sequence, which says whether it is
                text or an image; None stands for zeros.

        Raises:
            ConfigError: The lengths do not add up to the tokens, or the modes are wrong.
        """
        self._check_unfinished()
        sizes = _whole_numbers(lengths, "lengths", self.prefix)
        self._check_lengths(sizes, n_tokens=len(flat))
        mode_array = None if modes is None else _whole_numbers(modes, "modes", self.prefix)
        self._extend_modes(mode_array, len(sizes), self.prefix)
        try:
            for start in range(0, len(flat), _TOKENS_PER_WRITE):
                chunk = flat[start : start + _TOKENS_PER_WRITE]
                self._file.write(chunk.data.cast("B"))  # its bytes
        except OSError as error:
            raise explained_os_error(error, self._target.parent) from error
        self._lengths.frombytes(sizes.astype(np.int32).tobytes())

    def _check_lengths(self, sizes: NDArray[np.int64], n_tokens: int) -> None:
        """Check that sequences of some lengths have a given number of tokens together.

        Args:
            sizes: Tokens of each sequence, shape (sequences,).
            n_tokens: Number of all tokens.

        Raises:
            ConfigError: They do not, or a length is impossible.
        """
        shortest = sizes.min() if sizes.size else 0
        longest = sizes.max() if sizes.size else 0
        is_valid = sizes.ndim == 1 and shortest >= 0 and longest <= _MAX_LENGTH
        if not is_valid or int(sizes.sum()) != n_tokens:
            raise ConfigError(
                "sequence lengths don't fit the tokens",
                where=self.prefix,
                found=f"lengths from {shortest} to {longest} that add up to {int(sizes.sum())}",
                expected=f"a flat list of lengths from 0 to {_MAX_LENGTH} that add up to "
                f"{n_tokens} tokens",
            )

    def _extend_modes(self, modes: NDArray[np.integer] | None, count: int, where: object) -> None:
        """Note the modes of some sequences, if the dataset has modes.

        Megatron-LM has multimodal datasets, in which each sequence has a mode: a number that says
        whether it is text or an image. Datasets of texts alone have no modes, and refuse any but 0.

        Args:
            modes: Mode of each sequence, shape (count,); None stands for 0.
            count: Number of sequences.
            where: The dataset, for messages.

        Raises:
            ConfigError: The number of modes is wrong, a mode does not fit into int8, or a mode is
                not 0 although the dataset is not multimodal.
        """
        if self._modes is not None:
            self._modes.frombytes(_modes_as_int8(modes, count, where).tobytes())
        elif modes is not None and np.any(modes):
            raise ConfigError(
                "modes for a dataset that is not multimodal",
                where=where,
                remedy="open the builder with multimodal=True",
            )


def _modes_as_int8(
    modes: NDArray[np.integer] | None, count: int, where: object
) -> NDArray[np.int8]:
    """Return the modes of some sequences in the type in which an index stores them.

    Args:
        modes: Mode of each sequence, shape (count,); None stands for 0.
        count: Number of sequences.
        where: The dataset, for messages.

    Returns:
        Shape (count,).

    Raises:
        ConfigError: The number of modes is wrong, or a mode does not fit into int8.
    """
    if modes is None:
        return np.zeros(count, np.int8)
    new_modes = modes.astype(np.int8)
    if new_modes.shape != (count,):
        raise ConfigError(
            "the number of modes differs from the number of sequences",
            where=where,
            found=f"shape {new_modes.shape}",
            expected=f"shape ({count},)",
        )
    if not np.array_equal(new_modes, modes):
        raise ConfigError(
            "a mode does not fit into int8",
            where=where,
            found=f"modes from {modes.min()} to {modes.max()}",
            expected="whole numbers from -128 to 127",
        )
    return new_modes


def _check_prefix(prefix: str) -> None:
    """Check that a path can be the prefix of a new dataset.

        data/web         the files data/web.bin and data/web.idx
        data/web.bin     refused: the files would be data/web.bin.bin and data/web.bin.idx
        "", data/        refused: the files would be next to the folder, and not in it

    Args:
        prefix: What the caller has given.

    Raises:
        ConfigError: It has no name of a file, or ends with the ending of one of the files.
    """
    name = os.path.basename(prefix)
    if name in ("", ".", ".."):
        raise ConfigError(
            "the prefix of a dataset ends with a name",
            where="prefix",
            found=repr(prefix),
            expected="a path such as data/web, for data/web.bin and data/web.idx",
        )
    if name.endswith((".bin", ".idx")):
        raise ConfigError(
            "the prefix of a dataset has no ending",
            where="prefix",
            found=repr(prefix),
            expected=f"a path such as {prefix[:-4]!r}",
            remedy="leave out .bin or .idx: the dataset consists of both files",
        )


def _discard_own(file: BinaryIO, pid: int) -> None:
    """Close and remove the unfinished file of a builder, in the process that has opened it.

    A process that was forked, such as a worker of a DataLoader, has a copy of the builder. When the
    copy is deleted, the file must stay.

    Args:
        file: The file.
        pid: The process that has opened it.
    """
    if os.getpid() == pid:
        discard(file)


def _whole_numbers(values: ArrayLike, name: str, where: str) -> NDArray[np.int64]:
    """Return an argument that consists of whole numbers as an array of int64.

    Args:
        values: What the caller has given, such as [2, 3]. Floats such as 2.0 are accepted, since
            `np.ones(n)` has them.
        name: Name of the argument, for the message.
        where: The dataset, for the message.

    Raises:
        ConfigError: The argument has something else, such as fractions or lists of unequal lengths.
    """
    array = _as_array(values, name, where)
    are_whole = array.size == 0 or array.dtype.kind in "iu"
    if array.dtype.kind == "f":
        are_whole = bool(np.all(np.isfinite(array) & (array == np.floor(array))))
    if not are_whole:
        raise ConfigError(
            f"{name} are not whole numbers",
            where=where,
            found=array.dtype.name,
            expected="integers",
        )
    return array.astype(np.int64, copy=False)


def _as_array(values: ArrayLike, name: str, where: str) -> NDArray[Any]:
    """Convert an argument to an array; lists of unequal lengths in it are a ConfigError.

    Args:
        values: What the caller has given.
        name: Name of the argument, for the message.
        where: The dataset, for the message.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(
            f"{name} are not a flat array of numbers", where=where, found=str(error)
        ) from error


def _check_size(size_bytes: int, path: Path, start_byte: int, *, is_range: bool) -> None:
    """Check that a file has the tokens of all sequences of a dataset, and nothing else.

    Datasets are merged by copying their files one after another. For example, sequences of 3 and 5
    tokens of 2 bytes each need 6 + 10 = 16 bytes:

        the file has 16 bytes    fine
        the file has 14 bytes    refused: it is cut off
        the file has 20 bytes    refused, unless it is a range (`is_range`)

    Args:
        size_bytes: Bytes of all sequences together, here 16.
        path: The file.
        start_byte: Byte of the file at which the first sequence starts.
        is_range: Whether the file may have other bytes after the sequences, which are ignored.

    Raises:
        FormatError: The file is missing, or has more or fewer bytes.
    """
    # The bytes for sequences in the file. In a range, ignore those that follow after them.
    bytes_in_file = None  # no file
    if path.is_file():
        bytes_in_file = path.stat().st_size - start_byte
        if is_range:
            bytes_in_file = min(bytes_in_file, size_bytes)
    if bytes_in_file == size_bytes:
        return
    found_bytes = "no file" if bytes_in_file is None else f"{bytes_in_file} bytes"
    raise FormatError(
        "the .bin is not just the sequences of its .idx, back to back",
        where=path,
        found=found_bytes,
        expected=f"{size_bytes} bytes",
        remedy="write this dataset again before merging it; "
        "if it is a view, name the dataset that the view was made from",
    )


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One of the datasets that are merged."""

    prefix: str
    """Path without `.bin` and `.idx`."""
    tokens: tuple[Path, int] | None = None
    """File that contains its tokens, and the byte at which they start; None for its .bin."""


def merge_indexed_datasets(
    prefixes: Iterable[str | os.PathLike[str]], output_prefix: str | os.PathLike[str]
) -> None:
    """Put several datasets of tokens one after another into a new dataset.

    A dataset is a pair of files, such as web.bin with tokens and web.idx with its index. The tokens
    are copied, and the indexes are joined. If an error occurs, no file appears. The bytes are those
    that Megatron-LM's `IndexedDatasetBuilder.add_index` writes in a loop. Memory is needed for the
    indexes and a chunk of tokens. If several processes of a machine write the same dataset, the
    last one replaces both files.

    Datasets of different tokenizers are refused. Their tokenizers are known from the receipts that
    `nanoset tokenize` and `nanoset merge` write next to a dataset; datasets without a receipt are
    not checked. The new dataset has no receipt. To get one, and a notice if only some of the
    datasets have end-of-document tokens, use the command `nanoset merge`.

    Args:
        prefixes: Paths of the datasets on this machine without endings, in order.
        output_prefix: Path of the dataset to write.

    Raises:
        ConfigError: No dataset is given, or one is not on this machine.
        MissingError: A file is missing.
        FormatError: A dataset is damaged or a view, or token types or tokenizers differ.
    """
    if isinstance(prefixes, str | os.PathLike):
        raise ConfigError(
            "datasets are merged from a list of paths",
            where="prefixes",
            found=repr(prefixes),
            expected=f"a list, such as [{os.fspath(prefixes)!r}]",
        )
    inputs = [MergeInput(os.fspath(prefix)) for prefix in prefixes]
    check_same_tokenizer([path_on_this_machine(dataset.prefix) for dataset in inputs])
    merge_inputs(inputs, output_prefix, no_progress)


def merge_inputs(
    inputs: Sequence[MergeInput], output_prefix: str | os.PathLike[str], on_join: OnJoin
) -> None:
    """Put several datasets one after another into a new one, and report the progress.

    The first dataset decides which type the tokens have. See `merge_indexed_datasets`.

    Args:
        inputs: The datasets, in order.
        output_prefix: Path of the dataset to write, without .bin and .idx.
        on_join: Called with the bytes of each dataset's tokens once they are copied.

    Raises:
        ConfigError: No dataset is given.
        MissingError: A file is missing.
        FormatError: A dataset is damaged, or token types differ.
    """
    if not inputs:
        raise ConfigError("nothing to merge", where=output_prefix, expected="one dataset or more")
    first_prefix = path_on_this_machine(inputs[0].prefix)
    first_index = read_idx(idx_path(first_prefix), validate=False)
    is_multimodal = first_index.modes is not None
    with MMapIndexedDatasetBuilder(
        output_prefix, first_index.dtype, multimodal=is_multimodal
    ) as builder:
        for dataset in inputs:
            on_join(builder.add_index(dataset.prefix, dataset.tokens))


def deal_documents(
    source: str | os.PathLike[str], target: str | os.PathLike[str], partitions: int
) -> None:
    """Write the documents of a dataset in the order of Megatron-LM's option `--partitions`.

    With this option, `preprocess_data.py` deals documents to several files like cards, and then
    concatenates the files. For 5 documents and 2 partitions:

        partition 0    documents 0, 2, 4
        partition 1    documents 1, 3        →    the order 0, 2, 4, 1, 3

    Args:
        source: Path of the dataset, without .bin and .idx.
        target: Path of the dataset to write.
        partitions: Number of partitions.
    """
    dataset = MMapIndexedDataset(source)
    n_documents = len(dataset.document_indices) - 1

    n_at_once = _documents_at_once(dataset)  # limits the memory
    with MMapIndexedDatasetBuilder(target, dataset.dtype) as builder:
        for partition in range(min(partitions, n_documents)):
            dealt = range(partition, n_documents, partitions)
            for start in range(0, len(dealt), n_at_once):
                chunk = dealt[start : start + n_at_once]  # of a range: a range again
                documents = np.arange(chunk.start, chunk.stop, chunk.step)
                _copy_documents(dataset, documents, builder)


def _documents_at_once(dataset: MMapIndexedDataset) -> int:
    """Return how many documents, at least one, have about a chunk of tokens, by their mean length.

    Args:
        dataset: The dataset that has the documents.
    """
    n_documents = len(dataset.document_indices) - 1
    n_tokens = max(len(dataset.tokens), 1)
    return max(1, min(_CHUNK_DOCUMENTS, _TOKENS_PER_WRITE * n_documents // n_tokens))


def _copy_documents(
    dataset: MMapIndexedDataset, documents: NDArray[np.int64], builder: MMapIndexedDatasetBuilder
) -> None:
    """Copy some documents of a dataset to the end of another one.

    A document consists of sequences, which are stored one after another: document 2 of the
    sequences 5 and 6, for example.

    Args:
        dataset: The dataset.
        documents: Numbers of the documents, in order, int64, shape (n_documents,).
        builder: Builder of the other dataset.
    """
    # `positions_in` lists all numbers of ranges: 5 6 for a document of 2 sequences from 5 on.
    first_sequences = dataset.document_indices[documents]  # (n_documents,)
    sequence_counts = dataset.document_indices[documents + 1] - first_sequences
    sequences = positions_in(first_sequences, sequence_counts)  # (n_sequences,)

    lengths = dataset.sequence_lengths[sequences].astype(np.int64)
    starts = dataset.sequence_pointers[sequences] // dataset.dtype.itemsize  # in tokens
    tokens = dataset.tokens[positions_in(starts, lengths)]
    builder.add_documents(tokens, lengths, sequence_counts)

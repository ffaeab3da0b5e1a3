"""Write an indexed dataset, merge several into one, and reorder one."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import (
    DTYPE_CODES,
    Tokens,
    bin_path,
    dtype_code,
    idx_path,
    is_back_to_back,
    positions_in,
    read_idx,
    scattered,
    write_idx,
)
from nanoset_core.storage.atomic import discard, fsync_folder, open_unfinished, put_in_place
from nanoset_core.storage.local import append_file
from nanoset_core.storage.store import OnJoin, no_progress

_MAX_LENGTH = 2**31 - 1
_CHUNK_TOKENS = 1 << 22
_CHUNK_DOCUMENTS = 256


class MMapIndexedDatasetBuilder:
    """Writes `<prefix>.bin` and `<prefix>.idx`; both appear at `finalize`, the .idx last, or not at all.

    The same bytes as Megatron-LM's `IndexedDatasetBuilder` for the same calls. As a context manager it finalizes at the
    end of the block, and leaves nothing behind when an exception ends it. Memory: 4 bytes a sequence and 8 a document.
    """

    def __init__(
        self, prefix: str | os.PathLike[str], dtype: DTypeLike = np.int32, *, multimodal: bool = False
    ) -> None:
        """Open the .bin.

        Args:
            prefix: path of the dataset without `.bin` and `.idx`.
            dtype: type of the tokens in the .bin, see `optimal_dtype`.
            multimodal: keep a mode (int8) with every sequence.

        Raises:
            ConfigError: an .idx has no code for the type.
        """
        self.prefix = os.fspath(prefix)
        self.dtype = DTYPE_CODES[dtype_code(dtype)]
        self._lengths = array("i")
        self._documents = array("q", [0])
        self._modes = array("b") if multimodal else None
        self._file = open_unfinished(bin_path(prefix))
        self._done = False

    def add_item(self, tokens: ArrayLike, mode: int = 0) -> None:
        """Add one sequence to the document that is being written, to be closed by `end_document`.

        Args:
            tokens: of the sequence, shape (tokens,).
            mode: of the sequence, in a multimodal dataset.

        Raises:
            ConfigError: a token does not fit the dataset's type.
        """
        flat = self._encode(tokens)
        self._write(flat, [len(flat)], [mode])

    def end_document(self) -> None:
        """End a document of the sequences since the last call (none of them: an empty document)."""
        self._documents.append(len(self._lengths))

    def add_document(
        self, tokens: ArrayLike, lengths: Sequence[int] | None = None, modes: Sequence[int] | None = None
    ) -> None:
        """Add one document.

        Args:
            tokens: of all its sequences, shape (tokens,).
            lengths: tokens of each of its sequences; absent = it is one sequence.
            modes: of each of its sequences, in a multimodal dataset.

        Raises:
            ConfigError: the lengths don't add up to the tokens, or a token does not fit the dataset's type.
        """
        flat = self._encode(tokens)
        self._write(flat, [len(flat)] if lengths is None else lengths, modes)
        self.end_document()

    def add_documents(self, tokens: ArrayLike, lengths: ArrayLike, sequences_per_document: ArrayLike) -> None:
        """Add many documents at once, without a loop.

        Args:
            tokens: of all documents, shape (tokens,).
            lengths: tokens per sequence, shape (sequences,).
            sequences_per_document: shape (documents,); 0 for a document without tokens.

        Raises:
            ConfigError: numbers don't add up, or a token does not fit the dataset's type.
        """
        counts = np.asarray(sequences_per_document, dtype=np.int64)
        sizes = np.asarray(lengths, dtype=np.int64)
        if counts.ndim != 1 or (len(counts) and counts.min() < 0) or int(counts.sum()) != len(sizes):
            what, expected = "sequences per document don't add up", f"{len(sizes)} sequences, no negative count"
            raise ConfigError(what, where=self.prefix, found=int(counts.sum()), expected=expected)
        first = len(self._lengths)
        self._write(self._encode(tokens), sizes, None)
        self._documents.frombytes((np.cumsum(counts) + first).tobytes())

    def add_index(self, prefix: str | os.PathLike[str], tokens: tuple[Path, int] | None = None) -> int:
        """Append a whole indexed dataset with its documents; return the bytes of its tokens.

        Args:
            prefix: of the dataset.
            tokens: (file that holds its tokens, byte at which they begin); absent = its own .bin holds nothing else.

        Raises:
            MissingError: it is not there.
            FormatError: its token type differs, or its .bin is not just its sequences in order.
        """
        path, begin = tokens or (bin_path(prefix), 0)
        index = read_idx(idx_path(prefix))
        if index.dtype != self.dtype:
            raise FormatError(
                "datasets of different token types cannot be merged",
                where=f"{os.fspath(prefix)}.idx, byte 17",
                found=index.dtype.name,
                expected=f"{self.dtype.name}, as in {self.prefix}",
                remedy="tokenize both with the same tokenizer, or write one of them again with the other's dtype",
            )
        size_bytes = int(index.sequence_lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        found: int | str = path.stat().st_size - begin if path.is_file() else "no"
        if tokens is not None and isinstance(found, int):
            found = min(found, size_bytes)
        if not found == size_bytes == index.end_bytes:
            raise FormatError(
                "the .bin is not just the sequences of its .idx, back to back",
                where=path,
                found=f"{found} bytes, last sequence ends at byte {index.end_bytes}",
                expected=f"{size_bytes} bytes",
                remedy="write this dataset again before merging it",
            )
        if not is_back_to_back(index.sequence_lengths, index.sequence_pointers, self.dtype.itemsize):
            raise scattered(idx_path(prefix))
        first = len(self._lengths)
        self._extend_modes(index.modes, len(index.sequence_lengths), prefix)
        self._lengths.frombytes(index.sequence_lengths.tobytes())
        self._documents.frombytes((index.document_indices[1:] + first).tobytes())
        with open(path, "rb") as file:
            append_file(file, self._file, size_bytes, begin)
        return size_bytes

    def finalize(self) -> None:
        """Publish both files and end the builder.

        Raises:
            ConfigError: a document is open, or the dataset was finished before.
        """
        self._check_open()
        if self._documents[-1] != len(self._lengths):
            found = f"{len(self._lengths) - self._documents[-1]} sequences without an end_document()"
            raise ConfigError("sequences after the last document", where=self.prefix, found=found)
        binary, index = bin_path(self.prefix), idx_path(self.prefix)
        index_file = open_unfinished(index)
        try:
            modes = None if self._modes is None else np.frombuffer(self._modes, np.int8)
            lengths, documents = np.frombuffer(self._lengths, np.int32), np.frombuffer(self._documents, np.int64)
            write_idx(index_file, self.dtype, lengths, documents, modes)
            # An old .idx beside the new .bin would be read as if the two belonged together.
            index.unlink(missing_ok=True)
            put_in_place(self._file, binary)
            put_in_place(index_file, index)
        except BaseException:
            discard(index_file)
            self.abort()
            raise
        self._done = True
        fsync_folder(binary.parent)

    def abort(self) -> None:
        """Drop everything that was added, and leave no file."""
        if not self._done:
            self._done = True
            discard(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._done:
                self.finalize()
        finally:
            self.abort()

    def _check_open(self) -> None:
        if self._done:
            raise ConfigError("the dataset is finished", where=self.prefix, remedy="use a new builder")

    def _encode(self, tokens: ArrayLike) -> Tokens:
        """Return tokens in the dataset's type, shape (tokens,)."""
        given = np.asarray(tokens)
        if given.size == 0:
            return np.empty(0, self.dtype)
        if given.ndim != 1 or given.dtype.kind not in ("f" if self.dtype.kind == "f" else "iu"):
            found, expected = f"{given.dtype.name}{list(given.shape)}", f"shape (tokens,), fit for {self.dtype.name}"
            raise ConfigError(
                "tokens are not a flat array of numbers", where=self.prefix, found=found, expected=expected
            )
        if self.dtype.kind != "f" and not np.can_cast(given.dtype, self.dtype):
            low, high, bounds = int(given.min()), int(given.max()), np.iinfo(self.dtype)
            if low < bounds.min or high > bounds.max:
                raise ConfigError(
                    "a token does not fit the token type",
                    where=self.prefix,
                    found=high if high > bounds.max else low,
                    expected=f"{bounds.min} to {bounds.max} ({self.dtype.name})",
                    remedy="choose the dtype by optimal_dtype(vocab_size)",
                )
        return np.ascontiguousarray(given, dtype=self.dtype)

    def _write(self, flat: Tokens, lengths: ArrayLike, modes: Sequence[int] | None) -> None:
        """Append tokens and the lengths of the sequences that they are."""
        self._check_open()
        sizes = np.asarray(lengths, dtype=np.int64)
        is_flat = sizes.ndim == 1 and (not len(sizes) or (sizes.min() >= 0 and sizes.max() <= _MAX_LENGTH))
        if not is_flat or int(sizes.sum()) != len(flat):
            raise ConfigError(
                "sequence lengths don't fit the tokens",
                where=self.prefix,
                found=f"lengths that add up to {int(sizes.sum())}",
                expected=f"{len(flat)} tokens, each length 0 to {_MAX_LENGTH}",
            )
        if modes is not None or self._modes is not None:
            self._extend_modes(None if modes is None else np.asarray(modes), len(sizes), self.prefix)
        for begin in range(0, len(flat), _CHUNK_TOKENS):
            self._file.write(flat[begin : begin + _CHUNK_TOKENS].data.cast("B"))
        self._lengths.frombytes(sizes.astype(np.int32).tobytes())

    def _extend_modes(self, modes: NDArray[np.integer] | None, count: int, where: object) -> None:
        if self._modes is None:
            if modes is not None and np.any(modes):
                remedy = "open the builder with multimodal=True"
                raise ConfigError("modes for a dataset that is not multimodal", where=where, remedy=remedy)
            return
        values = np.zeros(count, np.int8) if modes is None else modes.astype(np.int8)
        if len(values) != count:
            what = "the number of modes differs from the number of sequences"
            raise ConfigError(what, where=where, found=len(values), expected=count)
        self._modes.frombytes(values.tobytes())


def merge_indexed_datasets(prefixes: Iterable[str | os.PathLike[str]], output_prefix: str | os.PathLike[str]) -> None:
    """Join indexed datasets into one, whole or not at all; byte-identical to building them in one go.

    The .bin bytes go from file to file without passing through memory, which holds no more than the output's .idx and
    a chunk. The same bytes as Megatron-LM's `IndexedDatasetBuilder.add_index` in a loop.

    Args:
        prefixes: of the datasets, in their order.
        output_prefix: of the dataset to write.

    Raises:
        ConfigError: there are none.
        MissingError, FormatError: one is not there or damaged, or token types differ.
    """
    merge_heard([(os.fspath(prefix), None) for prefix in prefixes], output_prefix, no_progress)


def merge_heard(
    parts: Sequence[tuple[str, tuple[Path, int] | None]], output_prefix: str | os.PathLike[str], joined: OnJoin
) -> None:
    """Merge as `merge_indexed_datasets`; `joined` takes the bytes of each dataset's tokens once they are copied.

    The parts are (prefix, where its tokens are), as `MMapIndexedDatasetBuilder.add_index` takes them.
    """
    if not parts:
        raise ConfigError("nothing to merge", where=output_prefix, expected="one dataset or more")
    first = read_idx(idx_path(parts[0][0]), validate=False)
    with MMapIndexedDatasetBuilder(output_prefix, first.dtype, multimodal=first.modes is not None) as builder:
        for part in parts:
            joined(builder.add_index(*part))


def deal_documents(source: str | os.PathLike[str], target: str | os.PathLike[str], partitions: int) -> None:
    """Write the documents of the dataset `source` in the order 0, P, 2P, …, 1, P + 1, …, as the dataset `target`.

    The order that Megatron-LM's `preprocess_data.py --partitions P` gives: dealt to P files, and these joined.
    """
    dataset = MMapIndexedDataset(source)
    documents = len(dataset.document_indices) - 1
    step = partitions * max(1, min(_CHUNK_DOCUMENTS, _CHUNK_TOKENS * documents // max(len(dataset.tokens), 1)))
    with MMapIndexedDatasetBuilder(target, dataset.dtype) as builder:
        for partition in range(min(partitions, documents)):
            for begin in range(partition, documents, step):
                chosen = np.arange(begin, min(begin + step, documents), partitions)
                firsts = dataset.document_indices[chosen]
                counts = dataset.document_indices[chosen + 1] - firsts
                sequences = positions_in(firsts, counts)
                lengths = dataset.sequence_lengths[sequences].astype(np.int64)
                starts = dataset.sequence_pointers[sequences] // dataset.dtype.itemsize
                builder.add_documents(dataset.tokens[positions_in(starts, lengths)], lengths, counts)

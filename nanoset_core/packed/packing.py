"""A merged indexed dataset → the `.pbin` of the same documents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import bin_path
from nanoset_core.packed.layout import encode_header, token_size_bytes
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.packed.writing import (
    CHUNK_TOKENS,
    PackedFacts,
    back_to_back,
    check_fit,
    check_not_empty,
    copy_tokens,
    write_index,
    write_tokens,
)
from nanoset_core.storage.atomic import atomic_file

if TYPE_CHECKING:
    from nanoset_core.tokenization.files import TokenizerPath

_CHUNK_DOCUMENTS = 1 << 16


def pack_indexed_dataset(
    prefix: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int | None = None,
    end_token: int | None = None,
    listener: ProgressCallback = silent,
) -> PackedFacts:
    """Write all documents of `<prefix>.bin/.idx`, in order, as a `.pbin` of layout D; published whole.

    Tokens get the size that Modalities gives them, see `token_size_bytes`; where it is that of the .bin, its bytes
    are copied as they are. A document of several sequences becomes one; one without tokens is left out and counted,
    since Modalities has no empty documents. Memory is bounded by a chunk, and a byte a document with `end_token`.

    Args:
        prefix: of the .bin and .idx.
        path: the file to write.
        vocab_size: what Modalities asks the tokenizer for; None keeps the size that a token has in the .bin, up to 4.
        end_token: goes after each document that does not end in it, as in Modalities' packer; None adds nothing.
        listener: hears the progress.

    Raises:
        FormatError: the dataset is damaged, or its .bin holds other bytes than its sequences in order.
        ConfigError: a token does not fit.
        InputError: there are no tokens at all.
    """
    dataset = MMapIndexedDataset(prefix)
    check_whole(prefix, dataset, bin_path(prefix).stat().st_size)
    check_not_empty(prefix, len(dataset.tokens))
    token_bytes = min(dataset.dtype.itemsize, 4) if vocab_size is None else token_size_bytes(vocab_size)
    documents = sum(len(lengths) for _, lengths in document_spans(dataset))
    left_out = len(dataset.document_indices) - 1 - documents
    meter = Meter(listener, "pack", Path(path).name, len(dataset.tokens) * token_bytes)
    lacking: Iterable[NDArray[np.bool_] | int] = repeat(0)
    tokens = len(dataset.tokens)
    with atomic_file(Path(path)) as file:
        file.write(encode_header(0, token_bytes))
        if end_token is None:
            _write_as_they_are(dataset, token_bytes, file, meter)
        else:
            lacking = list(_write_ended(dataset, end_token, token_bytes, file, meter))
            tokens += sum(int(np.count_nonzero(part)) for part in lacking)
        lengths = (own + lacks for (_, own), lacks in zip(document_spans(dataset), lacking, strict=False))
        write_index(file, back_to_back(part * token_bytes for part in lengths))
        file.seek(0)
        file.write(encode_header(tokens * token_bytes, token_bytes))
    return PackedFacts(documents, tokens, token_bytes, left_out)


def packing_vocab_size(tokenizer_file: TokenizerPath) -> int:
    """Tokens of a tokenizer's model, without those added to it: `vocab_size` of Hugging Face's fast tokenizers.

    Modalities asks for this number in `PackedDataGenerator`.

    Raises:
        MissingError, FormatError: as load_tokenizer.
    """
    from nanoset_core.tokenization.files import stamp  # not for readers: tokenizers need more than numpy

    return _vocab_size(tokenizer_file, stamp(tokenizer_file))


@lru_cache(maxsize=16)
def _vocab_size(file: TokenizerPath, _stamp: object) -> int:
    from nanoset_core.tokenization.bpe.reference import load_tokenizer

    return int(load_tokenizer(file).get_vocab_size(with_added_tokens=False))


def fitting_vocab_size(prefix: str | os.PathLike[str], vocab_size: int, end_token: int | None = None) -> int:
    """`vocab_size`, or the least one whose tokens have room for all tokens of `<prefix>.bin` and the end token.

    Modalities asks its tokenizer for the size of the vocabulary, which may leave added tokens out; its packer then
    loses the documents that hold one. Only where this can be is the .bin looked through.

    Raises:
        MissingError, FormatError: as MMapIndexedDataset.
    """
    dataset = MMapIndexedDataset(prefix)
    greatest = -1 if end_token is None else end_token
    if not fits(dataset, token_size_bytes(vocab_size)):
        pieces = _pieces(dataset, 0, len(dataset.tokens))
        greatest = max(greatest, *(int(tokens.max()) for _, tokens in pieces), -1)
    return vocab_size_for(vocab_size, greatest)


def vocab_size_for(vocab_size: int, greatest: int) -> int:
    """`vocab_size`, or the least one whose tokens have room for the greatest id that there is."""
    return max(vocab_size, greatest + 1) if greatest >> 8 * token_size_bytes(vocab_size) > 0 else vocab_size


def fits(dataset: MMapIndexedDataset, token_bytes: int) -> bool:
    """Whether any token of the dataset's type has room in so many bytes."""
    return np.can_cast(dataset.dtype, f"u{token_bytes}")


def _pieces(dataset: MMapIndexedDataset, begin: int, end: int) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """(number of the first, tokens) of [begin, end); read, since pages of a map would count as this process's."""
    path, itemsize = bin_path(dataset.prefix), dataset.dtype.itemsize
    for first in range(begin, end, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, end - first)
        tokens = np.fromfile(path, dataset.dtype, count, offset=first * itemsize)
        if len(tokens) < count:
            raise SourceChangedError(
                "the file became shorter while it was read",
                where=f"{path}, byte {(first + len(tokens)) * itemsize}",
                found=f"{count - len(tokens)} tokens less",
                expected=f"{end} tokens",
                remedy="run again once nothing writes to it any more",
            )
        yield first, tokens


def _write_as_they_are(dataset: MMapIndexedDataset, token_bytes: int, file: IO[bytes], meter: Meter) -> None:
    source, count = bin_path(dataset.prefix), len(dataset.tokens)
    if dataset.dtype.itemsize != token_bytes:
        for first, tokens in _pieces(dataset, 0, count):
            write_tokens(file, tokens, token_bytes, str(source), meter, first=first)
        return
    if not fits(dataset, token_bytes):
        for first, tokens in _pieces(dataset, 0, count):
            check_fit(tokens, token_bytes, str(source), first)
    copy_tokens(source, 0, count * token_bytes, file, meter)


def _write_ended(
    dataset: MMapIndexedDataset, end_token: int, token_bytes: int, file: IO[bytes], meter: Meter
) -> Iterator[NDArray[np.bool_]]:
    """Write all documents, each with `end_token` at its end; → which of them lacked it, in order, in chunks."""
    source = str(bin_path(dataset.prefix))
    check_fit(np.array([end_token]), token_bytes, "the end-of-document token")
    for begins, lengths in document_spans(dataset):
        ends = begins + lengths
        lacks: list[NDArray[np.bool_]] = []
        for first, tokens in _pieces(dataset, int(begins[0]), int(ends[-1])):
            # after which tokens of this piece a document ends, shape (documents that end in it,)
            inside = ends[slice(*np.searchsorted(ends, [first, first + len(tokens)], side="right"))] - first
            lacks.append(tokens[inside - 1] != end_token)
            check_fit(tokens, token_bytes, source, first)
            whole = np.insert(tokens.astype(f"<u{token_bytes}"), inside[lacks[-1]], end_token)
            write_tokens(file, whole, token_bytes, source, meter)
        yield np.concatenate(lacks)


def document_spans(dataset: MMapIndexedDataset) -> Iterator[Entries]:
    """(first tokens, lengths > 0) of all documents with tokens, in tokens; the .bin is known to be without gaps."""
    starts, itemsize, bounds = dataset.sequence_pointers, dataset.dtype.itemsize, dataset.document_indices
    for first in range(0, len(bounds) - 1, _CHUNK_DOCUMENTS):
        sequences = bounds[first : first + _CHUNK_DOCUMENTS + 1]
        begins = np.full(len(sequences), dataset.token_count, np.int64)  # of documents after the last sequence
        inside = sequences < len(starts)
        begins[inside] = starts[sequences[inside]] // itemsize
        lengths = np.diff(begins)
        kept = lengths > 0
        if kept.any():
            yield begins[:-1][kept], lengths[kept]


def check_whole(prefix: str | os.PathLike[str], dataset: MMapIndexedDataset, size: int) -> None:
    """Make sure that a .bin of so many bytes is just the sequences, back to back (the .idx was checked: none overlap).

    Raises:
        FormatError: it is not.
    """
    expected = int(dataset.sequence_lengths.sum(dtype=np.int64)) * dataset.dtype.itemsize
    last = 0
    if len(dataset):
        last = int(dataset.sequence_pointers[-1]) + int(dataset.sequence_lengths[-1]) * dataset.dtype.itemsize
    if dataset.dtype.kind not in "iu" or not size == expected == last:
        raise FormatError(
            "the .bin is not just the tokens of its .idx, back to back",
            where=f"{bin_path(prefix)}, byte {min(size, expected)}",
            found=f"{size} bytes of {dataset.dtype.name}, last sequence ends at byte {last}",
            expected=f"{expected} bytes of whole numbers",
            remedy="write this dataset again",
        )

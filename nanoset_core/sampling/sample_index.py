"""The sample index: where every sample of a dataset starts.

The documents of a split, read in the order of the document index, form one stream of tokens, which
is cut every `sequence_length` tokens. Row j of the sample index says where sample j starts: at
which position of the document index, and at which token of that document. Most trainers give a
sample one token more, which is the next sample's first. For documents of 3, 5 and 4 tokens, and
samples of 4 tokens and an extra one:

    document    0 0 0 1 1 1 1 1 2 2 2 2
    sample 0    x x x x x
    sample 1            x x x x x
    rows        (0, 0) and (1, 1), and for the end of the last sample (2, 0)

Megatron-LM walks over the documents in C++. Here the running sums of the documents' sizes are
searched for all starts at once. Sample j starts after j * sequence_length tokens. The *target* of
the search is larger by the extra token: row j is also the end of sample j - 1, whose last token is
that one. The sample starts in the first document whose running sum is at least the target. In the
example:

    sizes           3  5  4
    running sums    3  8  12
    sample          1          2
    start           4          8
    target          5          9
    document        1 (8 >= 5) 2 (12 >= 9)
    token           4 - 3 = 1  8 - 8 = 0      start - tokens before the document

The work is done in blocks of documents, which bounds the memory, and lets the sums of most blocks
fit into 32 bits. Most of the time is spent on gathering the sizes in the order of the document
index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.splits import sample_count

BLOCK_DOCUMENTS = 1 << 16
"""Positions of the document index that are looked at together."""
_INT32_MAX = np.iinfo(np.int32).max

SampleIndex = NDArray[np.int32] | NDArray[np.int64]
"""Rows of (position in the document index, token of that document), shape (n_samples + 1, 2)."""


def build_sample_index(
    sizes: NDArray[np.integer],
    document_index: NDArray[np.integer],
    sequence_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    add_extra_token: int = 1,
    *,
    drop_last_partial_sequence: bool = True,
    empty_end: bool = False,
    threads: int = 1,
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Find where every training sample starts: in which document, and at which of its tokens.

    The documents are put one after another, and cut into samples. For documents of 3, 5 and 4
    tokens, and samples of 4 tokens and the first one of the next sample:

        document    0 0 0 1 1 1 1 1 2 2 2 2
        sample 0    x x x x x                   starts at token 0 of document 0:   row (0, 0)
        sample 1            x x x x x           starts at token 1 of document 1:   row (1, 1)
        the end                     x           is token 0 of document 2:          row (2, 0)

    Source: Megatron-LM `helpers.cpp`, `build_sample_idx`.

    Args:
        sizes: Tokens of each document (or sequence, if a document is stored as several ones), 0 or
            more, shape (n_sequences,).
        document_index: Documents in the order of reading, all epochs, shape (n_positions,).
        sequence_length: Tokens of a sample, without the extra one, 1 or more.
        num_epochs: Number of epochs in document_index.
        tokens_per_epoch: Tokens of one epoch; num_epochs of them must be what document_index holds.
        add_extra_token: 1 if a sample has one token more, which is the next sample's first; else 0.
        drop_last_partial_sequence: False keeps a last sample that is short.
        empty_end: Allow the last, short sample to end in an empty document, at token
            -add_extra_token (NeMo does).
        threads: More than one shortens the wall time; the result is the same.

    Returns:
        The rows, shape (n_samples + 1, 2), int32, or int64 if a number needs it. The first number
        is a position in `document_index`.

    Raises:
        ConfigError: The tokens don't add up; a size is negative; a document does not exist; an
            argument is impossible; or, without `empty_end`, the last short sample ends in an empty
            document (the trainer's own check refuses that, too).
    """
    # The array of an .idx is not aligned: numpy would copy all of it for every block.
    sizes = np.require(sizes, requirements="A")
    _check_arguments(sizes, sequence_length, add_extra_token)
    documents = _as_document_numbers(document_index)

    longest = int(sizes.max()) if len(sizes) else 0
    total_tokens = num_epochs * tokens_per_epoch
    n_full_samples = sample_count(total_tokens, sequence_length, add_extra_token)
    n_samples = sample_count(
        total_tokens, sequence_length, add_extra_token, drop_last_partial=drop_last_partial_sequence
    )
    index = np.empty((n_samples + 1, 2), dtype=_index_dtype(len(documents), longest))

    # The first sample starts at the first token. The others are found block by block.
    index[0] = 0
    tokens_before = 0
    shape = _SampleShape(sequence_length, add_extra_token)
    try:
        for block in _running_sums(sizes, documents, longest, threads):
            _fill_rows(index[: n_full_samples + 1], block, tokens_before, shape)
            tokens_before += int(block.stops[-1])
    except IndexError as error:
        expected = f"0 or more, and below {len(sizes)}, the number of sizes"
        raise _no_such_document(document_index, expected) from error
    if tokens_before != total_tokens:
        raise _other_tokens_error(tokens_before, num_epochs, tokens_per_epoch)

    # The search finds the ends of full samples. A short one ends with the last document.
    has_short_sample = n_samples > n_full_samples
    if has_short_sample:
        index[n_samples] = _end_of_short_sample(sizes, documents, add_extra_token, empty_end)
    return index


def _check_arguments(
    sizes: NDArray[np.integer], sequence_length: int, add_extra_token: int
) -> None:
    """Check the arguments of `build_sample_index` that would give wrong samples without an error.

    Args:
        sizes: Tokens of each document, shape (n_sequences,).
        sequence_length: Tokens of a sample, without the extra one.
        add_extra_token: 1 if a sample has one token more; else 0.

    Raises:
        ConfigError: One of them is impossible.
    """
    if sequence_length < 1:
        raise ConfigError(
            "a sample has at least one token", where="sequence_length", found=sequence_length
        )
    if add_extra_token not in (0, 1):
        raise ConfigError(
            "a sample has at most one extra token",
            where="add_extra_token",
            found=add_extra_token,
            expected="0 or 1",
        )
    if sizes.ndim != 1:
        raise ConfigError(
            "this is not a number of tokens for each document",
            where="sizes",
            found=f"shape {sizes.shape}",
            expected="shape (n_sequences,)",
        )
    is_integer = sizes.dtype.kind in "iu"
    if len(sizes) and (not is_integer or sizes.min() < 0):
        raise ConfigError(
            "a document cannot have such a number of tokens",
            where="sizes",
            found=f"{sizes.min()} ({sizes.dtype.name})",
            expected="integers, 0 or more",
        )


def _end_of_short_sample(
    sizes: NDArray[np.integer],
    documents: NDArray[np.integer],
    add_extra_token: int,
    empty_end: bool,
) -> tuple[int, int]:
    """Return the last row of a sample index whose last sample is short: where this sample ends.

    It has all tokens that are left, so it ends with the last document. For documents of 3, 5 and 4
    tokens, of which the last one is document 2:

        samples have an extra token    (2, 3): at the last token, which is the extra one
        they have none                 (2, 4): after the last token

    Args:
        sizes: Tokens of each document, shape (n_sequences,).
        documents: Documents in the order of reading, at least one, shape (n_positions,).
        add_extra_token: 1 if a sample has one token more; else 0.
        empty_end: Whether the last document may be empty, so that its token is -add_extra_token.

    Returns:
        (position in `documents`, token of that document)

    Raises:
        ConfigError: The last document is empty, and this is not allowed.
    """
    last_document = int(documents[-1])
    token = int(sizes[last_document]) - add_extra_token
    if token < 0 and not empty_end:
        raise _empty_end_error(last_document)
    return len(documents) - 1, token


def _as_document_numbers(document_index: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return an array of document numbers in which a negative number is no valid index.

    As an index, numpy takes -1 for the last document. The bytes of a -1 of 32 bits are also those
    of the unsigned number 4,294,967,295, for which numpy raises an IndexError. So the numbers are
    returned as unsigned ones. This needs neither a copy nor a pass over all numbers, of which there
    may be billions.

    Args:
        document_index: Documents in the order of reading, shape (n_positions,).

    Raises:
        ConfigError: It is not such an array.
    """
    numbers = np.asarray(document_index)
    _check_are_integers(numbers)
    has_32_bits = numbers.dtype.itemsize == 4  # as the trainers' document indexes have
    if has_32_bits:
        unsigned_dtype = numbers.dtype.str.replace("i", "u")  # such as "<u4" for "<i4"
        return numbers.view(unsigned_dtype)
    # An unsigned number of 8 or 16 bits may be a valid index. One of 64 bits is none in numpy.
    int64_numbers = numbers.astype(np.int64, copy=False)
    if int64_numbers.size and int64_numbers.min() < 0:
        raise _no_such_document(numbers, expected="0 or more")
    return int64_numbers


def _check_are_integers(numbers: NDArray[np.generic]) -> None:
    """Check that the numbers of documents are integers, in an array of one dimension.

    Raises:
        ConfigError: They are not.
    """
    is_integer = numbers.dtype.kind in "iu" or numbers.size == 0
    if numbers.ndim != 1 or not is_integer:
        raise ConfigError(
            "these are not the numbers of documents",
            where="document_index",
            found=f"{numbers.dtype.name}, shape {numbers.shape}",
            expected="integers, shape (n_positions,)",
        )


def _no_such_document(document_index: NDArray[np.integer], expected: str) -> ConfigError:
    """Return the error for a document index with a number that no document has.

    Args:
        document_index: The document index, shape (n_positions,), at least one.
        expected: Which numbers exist.
    """
    return ConfigError(
        "the document index has a document that does not exist",
        where="document_index",
        found=f"numbers from {np.min(document_index)} to {np.max(document_index)}",
        expected=expected,
    )


def _other_tokens_error(found: int, num_epochs: int, tokens_per_epoch: int) -> ConfigError:
    """Return the error for documents that have more or fewer tokens than were planned with.

    Args:
        found: Tokens of all documents that are to be read, in all epochs.
        num_epochs: Number of epochs that are planned.
        tokens_per_epoch: Tokens of one epoch, as planned.
    """
    return ConfigError(
        "the document index holds other tokens",
        found=f"{found} tokens",
        expected=f"{num_epochs} epochs of {tokens_per_epoch} tokens",
    )


def _empty_end_error(sequence: int) -> ConfigError:
    """Return the error for a short sample that would end in an empty sequence, with this number."""
    return ConfigError(
        "the last, short sample would end in an empty sequence",
        found=f"sequence {sequence}, 0 tokens, as the last one of the shuffled epoch",
        expected="a sequence with tokens",
        remedy="set drop_last_partial_validation_sequence=True, use another seed, "
        "or drop empty sequences",
    )


def _index_dtype(n_positions: int, longest: int) -> np.dtype:
    """Return the type of a sample index: int32, or int64 if a number in it may be larger.

    Args:
        n_positions: Length of the document index.
        longest: Tokens of the longest sequence.
    """
    if max(n_positions, longest) <= _INT32_MAX:
        return np.dtype(np.int32)
    return np.dtype(np.int64)


class _SampleShape(NamedTuple):
    """How a sequence of tokens is cut into samples."""

    sequence_length: int
    """Tokens of a sample, without the extra one."""
    extra_tokens: int
    """1 if a sample has one token more, which is the next sample's first; else 0."""

    def last_sample_at(self, n_tokens: int) -> int:
        """Return the last sample whose target is within the first tokens.

        The target of sample j is j * sequence_length + extra_tokens.
        """
        return (n_tokens - self.extra_tokens) // self.sequence_length


class _BlockSums(NamedTuple):
    """The running sums of the sizes in one block of the document index.

    A block of the positions 7, 8 and 9, whose sequences have 3, 5 and 4 tokens, has the
    first_position 7 and the stops 0, 3, 8, 12.
    """

    first_position: int
    """Where the block starts in the document index."""
    stops: NDArray[np.signedinteger]
    """A 0, and then the tokens of the block up to and including each position.

    Shape (n_positions_of_block + 1,), int32 if the last one fits, else int64. So document k of the
    block starts at stops[k], and ends at stops[k + 1].
    """

    def documents_with(self, targets: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """Return in which document each of many tokens is, if documents are put one after another.

        For example, documents of 3, 5 and 4 tokens end at 3, 8 and 12. So the fifth token is in
        document 1, and the third one in document 0.

        Args:
            targets: Which tokens, counted from 1: [5, 3]; shape (n_targets,).

        Returns:
            Numbers of documents: [1, 0]; shape (n_targets,).
        """
        document_ends = self.stops[1:]
        # The first document that ends at the token or later.
        return np.searchsorted(document_ends, targets, side="left")


def _running_sums(
    sizes: NDArray[np.integer], document_index: NDArray[np.integer], longest: int, threads: int
) -> Iterator[_BlockSums]:
    """Yield at which token each document ends, for 65,536 documents (a block) at a time.

    The documents are put one after another in the order of `document_index`. For all documents at
    once, this would take too much memory. In each block, tokens are counted from 0. For example,
    the documents of a block have 3, 5 and 4 tokens, so they end at 3, 8 and 12.

    Args:
        sizes: Tokens of each document, shape (n_sequences,).
        document_index: The documents in the order of reading, shape (n_positions,).
        longest: Tokens of the longest document.
        threads: How many threads compute blocks ahead of the caller; 1 means none.
    """
    # Numbers of 32 bits need half the memory. They are large enough for every block if they are for
    # a block that consists of copies of the longest document.
    all_fit_int32 = longest * BLOCK_DOCUMENTS < _INT32_MAX

    def block_sums(start: int) -> _BlockSums:
        """Return the sums of the block that starts at a position of `document_index`."""
        documents = document_index[start : start + BLOCK_DOCUMENTS]
        stops = _stops_in_block(np.take(sizes, documents), fits_int32=all_fit_int32)
        return _BlockSums(start, stops)

    block_starts = range(0, len(document_index), BLOCK_DOCUMENTS)
    if threads > 1:
        yield from _computed_ahead(block_sums, block_starts, threads)
        return
    for start in block_starts:
        yield block_sums(start)


def _stops_in_block(sizes: NDArray[np.integer], *, fits_int32: bool) -> NDArray[np.signedinteger]:
    """Return 0, and then where each document ends: sizes 3, 5 and 4 give 0, 3, 8 and 12.

    Args:
        sizes: Tokens of each document, shape (n_documents,).
        fits_int32: Whether their sum is known to fit into 32 bits. If not, this is tested.

    Returns:
        int32 if the sum fits, or else int64; shape (n_documents + 1,).
    """
    if not fits_int32:
        fits_int32 = int(sizes.sum(dtype=np.int64)) < _INT32_MAX
    dtype = np.int32 if fits_int32 else np.int64
    stops: NDArray[np.signedinteger] = np.zeros(len(sizes) + 1, dtype)
    np.cumsum(sizes, dtype=dtype, out=stops[1:])
    return stops


def _computed_ahead(
    block_sums: Callable[[int], _BlockSums], first_positions: Sequence[int], threads: int
) -> Iterator[_BlockSums]:
    """Call a function for many blocks in threads, and yield its results in order.

    The results are large. If all calls were started at once, results would fill the memory while
    they wait for the caller. So there are two batches: the caller reads one, and the threads
    compute the next one.

        threads    blocks 0 to 7    blocks 8 to 15    blocks 16 to 23
        caller                      blocks 0 to 7     blocks 8 to 15

    Args:
        block_sums: The function. Its argument is the position at which a block starts.
        first_positions: The position of each block.
        threads: Number of threads.
    """
    batch_size = 4 * threads
    with ThreadPoolExecutor(threads) as pool:
        batch_to_read: Iterator[_BlockSums] = iter(())
        for start in range(0, len(first_positions), batch_size):
            # `pool.map` starts the calls, and returns at once. Its iterator waits for each result.
            next_batch = pool.map(block_sums, first_positions[start : start + batch_size])
            yield from batch_to_read
            batch_to_read = next_batch
        yield from batch_to_read


def _fill_rows(
    rows: NDArray[np.signedinteger], block: _BlockSums, tokens_before: int, shape: _SampleShape
) -> None:
    """Write where training samples start, for those that start in one block of documents.

    Samples start every `sequence_length` tokens, and have the first token of the next sample, too.
    This extra token is searched for, since it is also the end of the sample before. For example, a
    block with documents of 3, 5 and 4 tokens, which end at 3, 8 and 12, and samples of 4 tokens:

        sample                             1              2
        start: tokens before it            4              8
        start and the extra token          5              9
        document: the first that ends      1: 8 >= 5      2: 12 >= 9
        there or later
        token of the document              4 - 3 = 1      8 - 8 = 0

    Args:
        rows: Row j gets the document (its position in the order of reading) and the token at which
            sample j starts; shape (n_full_samples + 1, 2). The last row is the end of the last
            sample. Row 0 is not changed.
        block: The ends of the documents.
        tokens_before: Tokens of all blocks before this one.
        shape: The length of samples.
    """
    # The samples whose target is in the block: tokens_before < target <= tokens_after.
    tokens_after = tokens_before + int(block.stops[-1])
    first_sample = max(shape.last_sample_at(tokens_before) + 1, 1)
    last_sample = min(shape.last_sample_at(tokens_after), len(rows) - 1)
    if first_sample > last_sample:
        return

    # Count tokens from the start of the block, so that they fit into the type of its sums.
    first_start = first_sample * shape.sequence_length - tokens_before
    last_start = last_sample * shape.sequence_length - tokens_before
    # (n_samples_of_block,) tokens of the block before each sample
    starts = np.arange(first_start, last_start + 1, shape.sequence_length, dtype=block.stops.dtype)
    documents = block.documents_with(starts + shape.extra_tokens)
    document_starts = block.stops[documents]  # (n_samples_of_block,)

    rows_of_block = rows[first_sample : last_sample + 1]
    np.add(documents, block.first_position, out=rows_of_block[:, 0], casting="unsafe")
    np.subtract(starts, document_starts, out=rows_of_block[:, 1], casting="unsafe")

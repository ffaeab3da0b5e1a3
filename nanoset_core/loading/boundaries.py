"""Where documents begin within samples, for attention that does not cross them.

FlashAttention's `flash_attn_varlen_func` takes these boundaries as `cu_seqlens`. In a sample of
documents ABC, DE and FGH, `cu_seqlens` is [0, 3, 5, 8]: the first token of each document, and the
number of tokens. Samples have different numbers of documents, but the rows of an array the same
length; so all rows here have `sequence_length + 1` entries, and are filled up with
`sequence_length`: [0, 3, 5, 8, 8, 8, 8, 8, 8]. A filled-up entry stands for an empty document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.records.arguments import boolean, token_id

CU_SEQLENS = "cu_seqlens"
"""Entry of a sample: where its documents begin."""
MAX_SEQLEN = "max_seqlen"
"""Entry of a sample: tokens of its longest document."""
POSITIONS = "position_ids"
"""Entry of a sample: position of each token in its document."""
LOSS_MASK = "loss_mask"
"""Entry of a sample: 1.0 for each label that counts in the loss, otherwise 0.0."""


def cu_seqlens_of(
    lengths: NDArray[np.int64], counts: NDArray[np.int64], sequence_length: int, extra: int
) -> NDArray[np.int32]:
    """Return where documents begin in training samples, from the lengths of the pieces in them.

    Attention kernels take these numbers, so that no token attends to another document. A sample of
    8 tokens with documents of 3, 2 and 3 tokens gives 0 3 5 8. All rows have the same length, so
    they are filled up with the end of the sample: 0 3 5 8 8 8 8 8 8.

    Some samples have an extra token at their end, which is only the label of the token before it,
    and counts for no document. Pieces that have no other token are no documents, either:

        tokens of the pieces       begin of documents, and end
        3, 2, 3 and the extra      3, 2, 4    gives    0 3 5 8 …
        8 and the extra alone      8, 1       gives    0 8 …
        a short sample             3, 1       gives    0 8 …    (the rest of it is padding)

    The padding of a short sample counts for its last document. This is what Megatron-LM main (core
    0.19) does with `inter_document_masking`.

    Args:
        lengths: Tokens of each piece, sample after sample; shape (n_pieces,).
        counts: Pieces of each sample, at least one; shape (n_samples,).
        sequence_length: Tokens of a sample, without the extra one.
        extra: 1 if a sample has an extra token, otherwise 0.

    Returns:
        Shape (n_samples, sequence_length + 1): the first token of each document, and then
        `sequence_length` up to the end of the row.
    """
    # (n_pieces,) 3 5 9 for the first sample of the example, 8 9 for the second, 3 4 for the third
    ends = _ends_in_sample(lengths, counts)

    # The last piece ends with the sample, without the extra token, but with padding: 3 5 8, 8 8,
    # and 3 8.
    last_pieces = np.cumsum(counts) - 1  # (n_samples,) index of each sample's last piece
    ends[last_pieces] = sequence_length
    if extra:
        # If the last piece has no other token than the extra one, it is no document. The piece
        # before it is the last document, and ends with the sample: 3 8 becomes 8 8.
        is_lone_extra = (lengths[last_pieces] <= extra) & (counts > 1)
        ends[last_pieces[is_lone_extra] - 1] = sequence_length
    return _rows_of_ends(ends, counts, sequence_length)


def _ends_in_sample(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at which token of its sample each piece ends; shape (n_pieces,).

    For example, sample 0 has pieces of 3 and 2 tokens, which end at 3 and 5. Sample 1 has one piece
    of 4 tokens, which ends at 4. So the result is 3 5 4.

    Args:
        lengths: Tokens of each piece, sample after sample: 3 2 4; shape (n_pieces,).
        counts: Pieces of each sample, at least one: 2 1; shape (n_samples,).
    """
    # Count the tokens from the first sample on.
    stops = np.cumsum(lengths)  # (n_pieces,) 3 5 9
    starts = stops - lengths  # 0 3 5

    # Subtract where the sample of each piece starts.
    first_pieces = np.cumsum(counts) - counts  # (n_samples,) 0 2
    sample_starts = starts[first_pieces]  # (n_samples,) 0 5
    ends: NDArray[np.int64] = stops - np.repeat(sample_starts, counts)  # 3 5 4
    return ends


def _rows_of_ends(
    ends: NDArray[np.int64], counts: NDArray[np.int64], sequence_length: int
) -> NDArray[np.int32]:
    """Return a row for each sample: 0, where its documents end, and then the end of the sample.

    For example, samples of 5 tokens:

        sample    documents end at    column 0  1  2  3  4  5
        0         3, 5                       0  3  5  5  5  5
        1         5                          0  5  5  5  5  5

    Args:
        ends: Where each document ends, sample after sample: 3 5 5; shape (n_documents,). The last
            ones of a sample may be documents without tokens, at its end.
        counts: Documents of each sample: 2 1; shape (n_samples,).
        sequence_length: Tokens of a sample.

    Returns:
        Shape (n_samples, sequence_length + 1).
    """
    cu_seqlens = np.full((len(counts), sequence_length + 1), sequence_length, np.int32)
    cu_seqlens[:, 0] = 0

    # Write the ends to row 0, column 1; row 0, column 2; and row 1, column 1. `positions_in` counts
    # the documents of each sample from 1 on.
    rows = np.repeat(np.arange(len(counts)), counts)  # (n_documents,) 0 0 1
    columns = positions_in(np.ones_like(counts), counts)  # (n_documents,) 1 2 1
    # If there are more documents than columns, the last ones have no tokens: all end at the end.
    columns = np.minimum(columns, sequence_length)
    cu_seqlens[rows, columns] = ends
    return cu_seqlens


def cu_seqlens_at(tokens: NDArray[np.integer[Any]], eod_token: int) -> NDArray[np.int32]:
    """Return where documents begin in training samples, found by the token that ends each document.

    For example, 0 is this token. The samples 5 6 0 7 0 and 8 9 4 3 2 have five tokens each:

        sample         documents         row
        5 6 0 7 0      5 6 0, and 7 0    0 3 5 5 5 5
        8 9 4 3 2      one               0 5 5 5 5 5

    Attention kernels take such rows, so that no token attends to another document. Rows are filled
    up with the end of the sample.

    Args:
        tokens: Shape (n_samples, sequence_length).
        eod_token: The token that ends documents.

    Returns:
        Shape (n_samples, sequence_length + 1).
    """
    n_samples, sequence_length = tokens.shape
    # Where are these tokens? Not at the end of a sample, since no document begins after it.
    is_end = tokens[:, :-1] == eod_token
    samples, positions = np.nonzero(is_end)  # (n_ends,) each, sample after sample: [0] and [2]
    documents_end_at = positions + 1  # [3]
    ends_per_sample = np.bincount(samples, minlength=n_samples)  # (n_samples,) [1, 0]
    return _rows_of_ends(documents_end_at, ends_per_sample, sequence_length)


def by_document(cu_seqlens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return what attention by document needs, from where documents begin in a sample.

    For example, a sample of five tokens has documents that begin at 0 and 3:

        token            0    1    2    3    4
        document         A    A    A    B    B
        position_ids     0    1    2    0    1      max_seqlen: 3, the tokens of A

    Args:
        cu_seqlens: Where documents begin, and then the number of tokens up to the end of the row: 0
            3 5 5 5 5; shape (…, sequence_length + 1).

    Returns:
        `position_ids`, shape (…, sequence_length): position of each token in its document;
        `cu_seqlens`, unchanged; `max_seqlen`, shape (…): tokens of the longest document.
    """
    document_lengths = np.diff(cu_seqlens, axis=-1)  # 3 2 0 0 0
    return {
        POSITIONS: _positions_in_documents(cu_seqlens),
        CU_SEQLENS: cu_seqlens,
        MAX_SEQLEN: document_lengths.max(axis=-1),
    }


def _positions_in_documents(cu_seqlens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the position of each token in its document: 0 1 2 0 1 if they begin at 0 and 3.

    Args:
        cu_seqlens: Where documents begin, and then the number of tokens up to the end of the row: 0
            3 5 5 5 5; shape (…, sequence_length + 1).

    Returns:
        int64, shape (…, sequence_length).
    """
    # At the first token of a document, write its position, and 0 at all others.
    starts = np.zeros(cu_seqlens.shape, np.int64)  # (…, sequence_length + 1)
    np.put_along_axis(starts, cu_seqlens.astype(np.int64), cu_seqlens, axis=-1)  # 0 0 0 3 0 5
    starts = starts[..., :-1]  # (…, sequence_length) without the end of the sample: 0 0 0 3 0

    # The largest number up to each token is where its document starts.
    start_of_document = np.maximum.accumulate(starts, axis=-1)  # 0 0 0 3 3
    sequence_length = cu_seqlens.shape[-1] - 1
    return np.arange(sequence_length) - start_of_document


def bounded_sample(context: NDArray[np.integer[Any]], eod_token: int) -> dict[str, NDArray[Any]]:
    """Turn consecutive tokens into a training sample that also says where its documents begin.

    For example, the tokens 5 6 0 7 0 8, where 0 ends documents:

        tokens          5 6 0 7 0
        labels          6 0 7 0 8      the next token of each
        loss_mask       1 1 1 1 1      all labels count
        position_ids    0 1 2 0 1      position in the document
        cu_seqlens      0 3 5 5 5 5    where documents begin, and then the end of the sample
        max_seqlen      3              tokens of the longest document

    Args:
        context: The tokens, shape (sequence_length + 1,). The last one is a label only.
        eod_token: The token that ends documents.

    Raises:
        ConfigError: The type of the tokens has no such token.
    """
    token_id("eod_token", eod_token, context.dtype)
    tokens = context[:-1].astype(np.int64)
    labels = context[1:].astype(np.int64)
    cu_seqlens_of_samples = cu_seqlens_at(tokens[np.newaxis], eod_token)  # (1, sequence_length + 1)
    return {
        "tokens": tokens,
        "labels": labels,
        LOSS_MASK: np.ones(len(tokens), np.float32),
        **by_document(cu_seqlens_of_samples[0]),  # the last three
    }


def collate_varlen(
    samples: Iterable[dict[str, Any]],
    *,
    eod_token: int | None = None,
    mask_ends: bool = False,
    convert: Callable[[NDArray[Any]], Any] | None = None,
) -> dict[str, Any]:
    """Join training samples into one long row of tokens, in which attention stays within documents.

    A DataLoader calls this to make a batch. No padding is needed, since FlashAttention's
    `flash_attn_varlen_func` takes documents of any lengths. For example, two samples of 5 tokens:

        tokens          5 6 0 7 0 8 9 4 3 2
        position_ids    0 1 2 0 1 0 1 2 3 4
        cu_seqlens      0 3 5 10
        max_seqlen      5

    Args:
        samples: Dictionaries with `tokens`, `labels` and `loss_mask`, as those of the presets
            megatron and nemo and of a `ShardReader` with `eod_token`; with `cu_seqlens`, too,
            unless `eod_token` is given here. At least one.
        eod_token: Documents end at this token, whatever `cu_seqlens` says: for example, if several
            documents were packed into one sample.
        mask_ends: Leave the last token of a document out of the loss, because its label is the
            first token of the next one. Whether a document ends at the end of a sample is only
            known with `eod_token`.
        convert: Called with each array, for example torch.from_numpy.

    Returns:
        tokens, labels, loss_mask, position_ids: shape (tokens of all samples,);
        cu_seqlens: int32, shape (documents + 1,), where each document begins and the last one ends;
        max_seqlen: tokens of the longest document, an int.

    Raises:
        ConfigError: There are no samples, an entry is missing in one, or entries have different
            lengths; or `eod_token` is not the id of a token.
    """
    samples = list(samples)
    if not samples:
        raise ConfigError("there are no samples", where="collate_varlen", expected="at least one")

    # Arrays with a row for each sample: (n_samples, sequence_length)
    tokens = _stacked(samples, "tokens")
    labels = _stacked(samples, "labels")
    loss_mask = _stacked(samples, LOSS_MASK)
    if tokens.ndim != 2 or labels.shape != tokens.shape or loss_mask.shape != tokens.shape:
        raise _wrong_shapes(tokens=tokens, labels=labels, loss_mask=loss_mask)

    # Where are documents in each sample? (n_samples, sequence_length) position of each token in its
    # document: 0 1 2 0 1 for the first sample of the example
    if eod_token is not None:
        eod_token = token_id("eod_token", eod_token)
    document_bounds = _document_bounds(samples, tokens, eod_token)
    positions = by_document(document_bounds)[POSITIONS]
    if boolean("mask_ends", mask_ends):
        loss_mask[_is_end(tokens, positions, eod_token)] = 0

    # Join the rows, and count from the start of the first one where documents begin.
    cu_seqlens = _joined_cu_seqlens(positions)  # (n_documents + 1,) 0 3 5 10
    row: dict[str, Any] = {
        "tokens": tokens.reshape(-1),
        "labels": labels.reshape(-1),
        LOSS_MASK: loss_mask.reshape(-1),
        POSITIONS: positions.reshape(-1),
        CU_SEQLENS: cu_seqlens,
    }
    if convert is not None:
        row = {name: convert(array) for name, array in row.items()}
    row[MAX_SEQLEN] = int(np.diff(cu_seqlens).max())
    return row


def _document_bounds(
    samples: Sequence[dict[str, Any]], tokens: NDArray[Any], eod_token: int | None
) -> NDArray[np.int32]:
    """Return where documents begin in each sample, and then its end: 0 3 5 5 5 5.

    Args:
        samples: The samples; without `eod_token`, they have the result as the entry `cu_seqlens`.
        tokens: Their tokens, shape (n_samples, sequence_length).
        eod_token: The token that ends documents; None if the samples say where they end.

    Returns:
        Shape (n_samples, sequence_length + 1).

    Raises:
        ConfigError: A sample has no entry `cu_seqlens`, or one of another length.
    """
    if eod_token is not None:
        return cu_seqlens_at(tokens, eod_token)
    bounds = _stored_cu_seqlens(samples)
    n_samples, sequence_length = tokens.shape
    if bounds.shape != (n_samples, sequence_length + 1):
        raise _wrong_shapes(tokens=tokens, cu_seqlens=bounds)
    return bounds


def _stacked(samples: Sequence[dict[str, Any]], name: str) -> NDArray[Any]:
    """Return an entry of all samples as the rows of a new array.

    Raises:
        ConfigError: A sample does not have the entry, or has one of another shape.
    """
    for sample in samples:
        is_dictionary = isinstance(sample, Mapping)
        if not is_dictionary or name not in sample:
            found = ", ".join(sample) if is_dictionary else f"an object of {type(sample)}"
            raise ConfigError(
                f"a sample has no {name}",
                where="collate_varlen",
                found=found,
                expected="tokens, labels and loss_mask",
                remedy="pass samples of the preset megatron or nemo, or of a ShardReader with "
                "eod_token",
            )
    shapes = {tuple(np.shape(sample[name])) for sample in samples}
    if len(shapes) > 1:
        raise ConfigError(
            "samples have different shapes",
            where="collate_varlen",
            found=f"{name} of the shapes {', '.join(map(str, sorted(shapes)))}",
            expected="samples of the same length",
        )
    return np.stack([sample[name] for sample in samples])


def _wrong_shapes(**arrays: NDArray[Any]) -> ConfigError:
    """Return the error for entries of samples that do not belong to the same tokens.

    Args:
        arrays: Name of each entry → the entries of all samples, shape (n_samples, …).
    """
    shapes = []
    for name, array in arrays.items():
        shapes.append(f"{name} of shape {array.shape[1:]}")
    return ConfigError(
        "the entries of a sample have different shapes",
        where="collate_varlen",
        found=", ".join(shapes),
        expected="tokens, labels and loss_mask of shape (sequence_length,), and cu_seqlens of "
        "shape (sequence_length + 1,)",
    )


def _is_end(
    tokens: NDArray[Any], positions: NDArray[Any], eod_token: int | None
) -> NDArray[np.bool_]:
    """Return which tokens are the last one of their document, as far as it is known.

    If a token ends every document, such tokens are the last ones. Otherwise, a token is the last
    one if the position of the next token is 0:

        position of the token in its document    0    1    2    0    1
        is the last one                          no   no   yes  no   not known, so no

    Args:
        tokens: Shape (n_samples, sequence_length).
        positions: Position of each token in its document, of the same shape.
        eod_token: The token that ends documents; None if there is none.

    Returns:
        Of the same shape.
    """
    is_end = np.zeros(tokens.shape, np.bool_)
    if eod_token is not None:
        is_end[:] = tokens == eod_token
    else:
        # A token ends a document if the next one begins a document. Of the last one of a sample,
        # this is not known.
        is_end[:, :-1] = positions[:, 1:] == 0
    return is_end


def _joined_cu_seqlens(positions: NDArray[Any]) -> NDArray[np.int32]:
    """Return where documents begin if training samples are put one after another.

    For example, two samples of 5 tokens:

        positions in documents    0 1 2 0 1    0 1 2 3 4
        documents begin at        0, 3, 5, and the last one ends at 10

    Args:
        positions: Position of each token in its document, shape (n_samples, sequence_length).

    Returns:
        Shape (n_documents + 1,): 0 3 5 10.
    """
    # Each document begins at position 0, also the first one of a sample.
    begins = np.flatnonzero(positions.reshape(-1) == 0)
    return np.append(begins, positions.size).astype(np.int32)


def _stored_cu_seqlens(samples: Sequence[dict[str, Any]]) -> NDArray[np.int32]:
    """Return where documents begin in training samples, as the samples themselves say.

    For example, {"tokens": …, "cu_seqlens": 0 3 5 5 5 5} is a sample of five tokens, with documents
    of 3 and 2. Samples have this entry only if they are opened with an option.

    Args:
        samples: Such dictionaries.

    Returns:
        The rows `cu_seqlens` of all samples, shape (n_samples, sequence_length + 1).

    Raises:
        ConfigError: A sample does not have the entry.
    """
    if any(CU_SEQLENS not in sample for sample in samples):
        raise ConfigError(
            "the samples do not say where documents end",
            where="collate_varlen",
            remedy="open the nanoset with inter_document_masking=True, read the tars with "
            "eod_token=…, or pass eod_token here",
        )
    return np.stack([sample[CU_SEQLENS] for sample in samples])

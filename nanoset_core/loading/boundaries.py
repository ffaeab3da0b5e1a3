"""Where documents begin within samples, for attention that stays within one (FlashAttention's
varlen).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError

CU_SEQLENS, MAX_SEQLEN, POSITIONS, LOSS_MASK = (
    "cu_seqlens",
    "max_seqlen",
    "position_ids",
    "loss_mask",
)


def cu_seqlens_of(
    lengths: NDArray[np.int64], counts: NDArray[np.int64], sequence_length: int, extra: int
) -> NDArray[np.int32]:
    """Return where documents begin in samples, filled up with `sequence_length`: shape (samples,
    sequence_length + 1).

    Source: Megatron-LM main (core 0.19), `GPTDataset.__getitem__` under `inter_document_masking`:
        the last document
    is one token less where there is an extra token, and takes the padding of a short sample.

    Args:
        lengths: tokens of each part of a document, one sample after the other.
        counts: parts of each sample, at least one.
        sequence_length: tokens of a sample, without the extra one.
        extra: 1 where a sample has an extra token, else 0.
    """
    last = np.cumsum(counts) - 1
    ends = np.cumsum(lengths)
    ends -= np.repeat(ends[last] - np.add.reduceat(lengths, last - counts + 1), counts)
    alone = last[(lengths[last] <= extra) & (counts > 1)] if extra else last[:0]
    ends[alone - 1] = ends[last] = sequence_length  # a part that is the extra token alone is none
    columns = np.arange(1, len(lengths) + 1) - np.repeat(last - counts + 1, counts)
    out = np.full((len(counts), sequence_length + 1), sequence_length, np.int32)
    out[:, 0] = 0
    # There are more parts than tokens where some are empty.
    out[np.repeat(np.arange(len(counts)), counts), np.minimum(columns, sequence_length)] = ends
    return out


def cu_seqlens_at(tokens: NDArray[np.integer[Any]], eod_token: int) -> NDArray[np.int32]:
    """Return the same for samples of which only the tokens are known, shape (samples,
    sequence_length).

    A document begins after an end-of-document token.
    """
    length = tokens.shape[1]
    rows, columns = np.nonzero(tokens[:, :-1] == eod_token)
    out = np.full((len(tokens), length + 1), length, np.int32)
    out[:, 0] = 0
    counts = np.bincount(rows, minlength=len(tokens))
    out[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + 1] = (
        columns + 1
    )
    return out


def by_document(cu_seqlens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return boundaries, shape (…, sequence_length + 1), as a sample has them, with positions."""
    begins = np.zeros(cu_seqlens.shape, np.int64)
    np.put_along_axis(begins, cu_seqlens.astype(np.int64), cu_seqlens, axis=-1)
    positions = np.arange(cu_seqlens.shape[-1] - 1) - np.maximum.accumulate(
        begins[..., :-1], axis=-1
    )
    return {
        POSITIONS: positions,
        CU_SEQLENS: cu_seqlens,
        MAX_SEQLEN: np.diff(cu_seqlens, axis=-1).max(axis=-1),
    }


def bounded_sample(context: NDArray[np.integer[Any]], eod_token: int) -> dict[str, NDArray[Any]]:
    """Return a context's tokens, shape (sequence_length + 1,), as a sample whose documents end at a
    token.
    """
    tokens, labels = context[:-1].astype(np.int64), context[1:].astype(np.int64)
    sample: dict[str, NDArray[Any]] = {
        "tokens": tokens,
        "labels": labels,
        LOSS_MASK: np.ones(len(tokens), np.float32),
    }
    return sample | by_document(cu_seqlens_at(tokens[None], eod_token)[0])


def collate_varlen(
    samples: Sequence[dict[str, Any]],
    *,
    eod_token: int | None = None,
    mask_ends: bool = False,
    convert: Callable[[NDArray[Any]], Any] | None = None,
) -> dict[str, Any]:
    """Join samples into one row of tokens for attention by document (`flash_attn_varlen_func`),
    without padding.

    Args:
        samples: dictionaries with `tokens`, `labels` and `loss_mask`, and `cu_seqlens` unless
            `eod_token` is given.
        eod_token: documents end at this token, whatever `cu_seqlens` says, for example if several
            documents were packed into one sample.
        mask_ends: leave out of the loss the last token of a document, whose label is the first one
            of the next; at the end of a sample only `eod_token` tells whether a document ends.
        convert: what the arrays are passed through, such as torch.from_numpy.

    Returns:
        tokens, labels, loss_mask, position_ids: shape (tokens of all samples,);
        cu_seqlens: int32, shape (documents + 1,), where each document begins and the last one ends;
        max_seqlen: tokens of the longest one, a plain int.

    Raises:
        ConfigError: nothing tells where documents end.
    """
    if eod_token is None and any(CU_SEQLENS not in sample for sample in samples):
        remedy = "open the nanoset with inter_document_masking=True, the tars with eod_token=…, or give eod_token here"
        raise ConfigError(
            "the samples do not tell where documents end", where="collate_varlen", remedy=remedy
        )
    tokens = np.stack([sample["tokens"] for sample in samples])
    bounds = (
        np.stack([sample[CU_SEQLENS] for sample in samples])
        if eod_token is None
        else cu_seqlens_at(tokens, eod_token)
    )
    positions = by_document(bounds)[POSITIONS]
    labels, loss_mask = (
        np.stack([sample[key] for sample in samples]) for key in ("labels", LOSS_MASK)
    )
    if mask_ends and eod_token is None:
        loss_mask[:, :-1][positions[:, 1:] == 0] = 0
    elif mask_ends:
        loss_mask[tokens == eod_token] = 0
    joined = {"tokens": tokens, "labels": labels, LOSS_MASK: loss_mask, POSITIONS: positions}
    row = {key: value.reshape(-1) for key, value in joined.items()}
    row[CU_SEQLENS] = np.append(np.flatnonzero(row[POSITIONS] == 0), tokens.size).astype(np.int32)
    longest = int(np.diff(row[CU_SEQLENS]).max())
    return {key: convert(value) if convert else value for key, value in row.items()} | {
        MAX_SEQLEN: longest
    }

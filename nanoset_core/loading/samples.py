"""Turn the tokens of a sample into what the trainer's own dataset returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.loading.boundaries import by_document
from nanoset_core.sampling.config import NanosetConfig

_NO_TOKEN = -1
_BARE = ("text", "input_ids")
"""Forms of tokens alone, without a loss mask."""
Sample = dict[str, NDArray[Any]]
"""What a trainer's dataset returns: name → array."""


class SampleForm:
    """Makes sample dictionaries for one configuration.

    Sources: Megatron-LM `gpt_dataset.py`, `GPTDataset.__getitem__` and
        `_get_ltor_masks_and_position_ids`; NeMo
    `gpt_dataset.py`; nanotron `nanoset.py`; datatrove `dataset.py`, `_get_positions_from_tokens`.
    Unlike the first two, a short sample's mask never leaks into later ones.
    """

    def __init__(self, config: NanosetConfig, *, pads: bool = True) -> None:
        """Prepare what all samples share; `pads` = a sample can hold the id that fills short ones."""
        self.form = config.rules.sample_form
        self.extra, self.length = config.add_extra_token, config.sequence_length
        if self.form in _BARE:
            self.length = config.sample_tokens
        pad = config.masked_pad_token
        self.pad = _NO_TOKEN if pad is None else pad
        self.pads, self.eod = pads, config.eod_token
        self.reset_positions, self.reset_attention = (
            config.reset_position_ids,
            config.reset_attention_mask,
        )
        self.masks_eod, self.with_attention = (
            config.eod_mask_loss,
            config.create_attention_mask and not config.inter_document_masking,
        )
        self.by_document = config.inter_document_masking
        self.looks_for_eod = self.reset_positions or self.reset_attention or self.masks_eod
        self._causal: NDArray[np.bool_] | None = None
        self._ones, self._range = (
            np.ones(self.length, np.float32),
            np.arange(self.length, dtype=np.int64),
        )

    def sample(
        self, text: Tokens, index: int | None, cu_seqlens: NDArray[np.int32] | None = None
    ) -> Sample:
        """Return the dictionary for a sample's tokens, shape (tokens,), one more than
        `sequence_length` or as many.

        `index` is as it was asked for; None where a trainer asks for padding. `cu_seqlens` tells
        where documents begin (`by_document`).
        """
        parts = self._parts(text, cu_seqlens)
        if self._is_padding(index):
            parts["loss_mask"][:] = 0.0
        return parts

    def samples(
        self,
        texts: NDArray[np.int64],
        indices: Sequence[int | None],
        cu_seqlens: NDArray[np.int32] | None = None,
    ) -> list[Sample]:
        """Return the dictionaries for many samples' tokens, shape (samples, tokens), as `sample`
        does.
        """
        parts = self._parts(texts, cu_seqlens)
        if padding := [row for row, index in enumerate(indices) if self._is_padding(index)]:
            parts["loss_mask"][padding] = 0.0
        return [dict(zip(parts, rows, strict=True)) for rows in zip(*parts.values(), strict=True)]

    def _is_padding(self, index: int | None) -> bool:
        if self.form in _BARE:
            return False
        return index is None or (self.form == "nemo" and index < 0)

    def _parts(self, text: Tokens, cu_seqlens: NDArray[np.int32] | None) -> Sample:
        """Return name → array of a sample, or of many, whose axis comes first in `text` and in each
        array.
        """
        if self.form in _BARE:
            tokens = text.astype(np.int64)
            positions = (
                {"positions": self._positions(tokens.shape, tokens == self.eod)}
                if self.reset_positions
                else {}
            )
            return {self.form: tokens, **positions}
        tokens, labels = self._shift(text)
        ends = tokens == self.eod if self.looks_for_eod else None
        loss_mask = (
            np.broadcast_to(self._ones, tokens.shape).copy() if text.ndim > 1 else self._ones.copy()
        )
        if self.masks_eod and ends is not None:
            loss_mask[ends] = 0.0
        # one look at the narrow tokens spares the samples without padding the rest
        if self.pads and (not self.extra or np.count_nonzero(text == self.pad)):
            loss_mask[labels == self.pad] = 0.0
            tokens[tokens == self.pad] = 0
            labels[labels == self.pad] = 0
        position_ids = self._positions(tokens.shape, ends)
        attention = (
            {"attention_mask": self._attention(tokens.shape, ends)} if self.with_attention else {}
        )
        found = {
            "tokens": tokens,
            "labels": labels,
            **attention,
            "loss_mask": loss_mask,
            "position_ids": position_ids,
        }
        return found if cu_seqlens is None else found | by_document(cu_seqlens)

    def _shift(self, text: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (tokens, labels), separate arrays of shape (…, sequence_length)."""
        if self.extra:
            return text[..., :-1].astype(np.int64), text[..., 1:].astype(np.int64)
        tokens, labels = text.astype(np.int64), np.empty(text.shape, np.int64)
        labels[..., :-1] = text[..., 1:]
        labels[..., -1] = self.pad
        return tokens, labels

    def _positions(
        self, shape: tuple[int, ...], ends: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Return positions, shape (…, sequence_length), which begin again at 0 after an end of
        document.
        """
        if not self.reset_positions or ends is None:
            return (
                np.broadcast_to(self._range, shape).copy() if len(shape) > 1 else self._range.copy()
            )
        begins = np.zeros(shape, np.int64)
        begins[..., 1:] = ends[..., :-1] * self._range[1:]
        return self._range - np.maximum.accumulate(begins, axis=-1)

    def _attention(self, shape: tuple[int, ...], ends: NDArray[np.bool_] | None) -> Any:
        """Return the mask, True where masked, shape (…, 1, sequence_length, sequence_length)."""
        if self._causal is None:
            self._causal = ~np.tri(self.length, dtype=bool)[None]
        if not self.reset_attention or ends is None:
            if self.looks_for_eod:
                return np.broadcast_to(self._causal, (*shape[:-1], *self._causal.shape)).copy()
            return self._causal if len(shape) == 1 else [self._causal] * shape[0]
        # (…, sequence_length): documents before each position; what lies in an earlier one is
        # masked
        document = np.zeros(shape, np.int64)
        np.cumsum(ends[..., :-1], axis=-1, out=document[..., 1:])
        return self._causal | (document[..., None, :, None] > document[..., None, None, :])

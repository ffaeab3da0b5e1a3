"""From the tokens of a sample to what the trainer's own dataset returns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.layout import Tokens
from nanoset_core.mapping.config import NanosetConfig

_NO_TOKEN = -1
Sample = dict[str, NDArray[Any]]
"""What a trainer's dataset returns: name → array."""


class SampleForm:
    """Makes sample dictionaries for one configuration.

    Sources: Megatron-LM `gpt_dataset.py`, `GPTDataset.__getitem__` and `_get_ltor_masks_and_position_ids`; NeMo
    `gpt_dataset.py`; nanotron `nanoset.py`. Unlike the first two, a short sample's mask never leaks into later ones.
    """

    def __init__(self, config: NanosetConfig, *, pads: bool = True) -> None:
        """Prepare what all samples share.

        Args:
            config: of the nanoset.
            pads: whether a sample can hold the id that fills short ones; without, nothing looks for it.
        """
        self.form = config.rules.sample_form
        self.extra, self.length = config.add_extra_token, config.sequence_length
        pad = config.masked_pad_token
        self.pad = _NO_TOKEN if pad is None else pad
        self.pads, self.eod = pads, config.eod_token
        self.reset_positions, self.reset_attention = config.reset_position_ids, config.reset_attention_mask
        self.masks_eod, self.with_attention = config.eod_mask_loss, config.create_attention_mask
        self._causal: NDArray[np.bool_] | None = None
        self._ones, self._range = np.ones(self.length, np.float32), np.arange(self.length, dtype=np.int64)

    def sample(self, text: Tokens, index: int | None) -> Sample:
        """The dictionary for a sample's tokens.

        Args:
            text: the tokens, of any integer type, shape (sequence_length + 1,), or one less without the extra token.
            index: as it was asked for; None where a trainer asks for padding.
        """
        if self.form in ("text", "input_ids"):
            return {self.form: text.astype(np.int64)}
        tokens, labels = self._shift(text)
        ends = np.flatnonzero(tokens == self.eod) if self._looks_for_eod() else None
        loss_mask = self._ones.copy()
        if self.masks_eod:
            loss_mask[ends] = 0.0
        # one look at the narrow tokens spares the samples without padding the rest
        if self.pads and (not self.extra or np.count_nonzero(text == self.pad)):
            loss_mask[labels == self.pad] = 0.0
            tokens[tokens == self.pad] = 0
            labels[labels == self.pad] = 0
        if index is None or (self.form == "nemo" and index < 0):
            loss_mask[:] = 0.0
        position_ids = self._positions(ends)
        attention = {"attention_mask": self._attention(ends)} if self.with_attention else {}
        return {"tokens": tokens, "labels": labels, **attention, "loss_mask": loss_mask, "position_ids": position_ids}

    def _looks_for_eod(self) -> bool:
        return self.reset_positions or self.reset_attention or self.masks_eod

    def _shift(self, text: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tokens, labels), each of shape (sequence_length,) and apart from the other."""
        if self.extra:
            return text[:-1].astype(np.int64), text[1:].astype(np.int64)
        tokens, labels = text.astype(np.int64), np.empty(self.length, np.int64)
        labels[:-1] = text[1:]
        labels[-1] = self.pad
        return tokens, labels

    def _positions(self, ends: NDArray[np.intp] | None) -> NDArray[np.int64]:
        """Positions, shape (sequence_length,); after an end of document they begin again at 0."""
        positions = self._range.copy()
        if self.reset_positions and ends is not None:
            begins = np.zeros(self.length + 1, np.int64)
            begins[ends + 1] = ends + 1
            positions -= np.maximum.accumulate(begins)[:-1]
        return positions

    def _attention(self, ends: NDArray[np.intp] | None) -> NDArray[np.bool_]:
        """True where masked, shape (1, sequence_length, sequence_length); shared where it never differs."""
        if self._causal is None:
            self._causal = ~np.tri(self.length, dtype=bool)[None]
        if not self.reset_attention or ends is None:
            return self._causal if not self._looks_for_eod() else self._causal.copy()
        # (sequence_length,): documents before each position; what lies in an earlier one is masked
        marks = np.zeros(self.length + 1, np.int64)
        marks[ends + 1] = 1
        document = np.cumsum(marks)[:-1]
        return self._causal | (document[None, :, None] > document[None, None, :])

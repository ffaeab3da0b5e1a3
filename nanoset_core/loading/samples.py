"""Turn the tokens of samples into the dictionaries that a trainer's own dataset returns.

For example, a sample of Megatron-LM with the tokens A B C, and D as the extra token, is

    tokens          A B C
    labels          B C D
    loss_mask       1 1 1
    position_ids    0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.loading.boundaries import by_document
from nanoset_core.sampling.config import NanosetConfig

_NO_TOKEN = -1
"""Stands for the padding token of trainers that have none: no token has this id."""
_FORMS_WITHOUT_LABELS = ("text", "input_ids")
"""Values of `sample_form` for samples that consist of tokens, without labels or a loss mask."""
Sample = dict[str, NDArray[Any]]
"""What a trainer's dataset returns: name → array."""


class SampleForm:
    """Makes the dictionaries that the dataset of one trainer returns for its samples.

    They are equal to those of the trainers, except that the loss mask of a short sample never leaks
    into later samples, as it does in Megatron-LM and NeMo. The originals are:

    - Megatron-LM `gpt_dataset.py`, `GPTDataset.__getitem__` and `_get_ltor_masks_and_position_ids`
    - NeMo `gpt_dataset.py`
    - nanotron `nanoset.py`
    - datatrove `dataset.py`, `_get_positions_from_tokens`
    """

    def __init__(self, config: NanosetConfig, *, pads: bool = True) -> None:
        """Prepare what all samples share.

        Args:
            config: Settings of the nanoset.
            pads: Whether a sample may contain the token that fills short ones.
        """
        # Which entries a dictionary has.
        self.form = config.rules.sample_form
        self.has_labels = self.form not in _FORMS_WITHOUT_LABELS
        self.has_extra_token = config.add_extra_token  # as the label of the last token
        self.length = config.sequence_length if self.has_labels else config.sample_tokens

        # Padding of short samples.
        pad = config.masked_pad_token
        self.pads = pads
        self.pad = _NO_TOKEN if pad is None else pad

        # What depends on where documents end.
        self.eod = config.eod_token
        self.by_document = config.inter_document_masking
        self.reset_positions = config.reset_position_ids
        self.reset_attention = config.reset_attention_mask
        self.masks_eod = config.eod_mask_loss
        self.needs_ends = self.reset_positions or self.reset_attention or self.masks_eod
        self.with_attention = config.create_attention_mask and not self.by_document

        # Values that all samples share. The causal mask is large, so compute it when it is needed.
        self._causal: NDArray[np.bool_] | None = None
        self._ones = np.ones(self.length, np.float32)
        self._range = np.arange(self.length, dtype=np.int64)

    def sample(
        self, text: Tokens, index: int | None, cu_seqlens: NDArray[np.int32] | None = None
    ) -> Sample:
        """Return one training sample as the dictionary that a trainer expects.

        For Megatron-LM, the tokens A B C D become

            tokens          A B C
            labels          B C D    the next token of each
            loss_mask       1 1 1    which labels count
            position_ids    0 1 2
            attention_mask           by an option: which tokens must not look at which others

        Args:
            text: Tokens of the sample, shape (sample_tokens,).
            index: The number that the trainer requested; None for padding, a sample that the loss
                leaves out.
            cu_seqlens: Where documents begin, shape (sequence_length + 1,), if the dictionary has
                this entry.
        """
        parts = self._arrays(text, cu_seqlens)
        if self._is_padding(index):
            parts["loss_mask"][:] = 0.0
        return parts

    def samples(
        self,
        texts: NDArray[np.int64],
        indices: Sequence[int | None],
        cu_seqlens: NDArray[np.int32] | None = None,
    ) -> list[Sample]:
        """Return many training samples as the dictionaries that a trainer expects.

        Each is such as {"tokens": (length,), "labels": (length,), ...}, with the shapes of the
        arrays.

        Args:
            texts: Tokens of each sample, shape (n, sample_tokens).
            indices: For each sample, the number that the trainer requested, or None for padding:
                then the loss leaves out the whole sample.
            cu_seqlens: Where documents begin, shape (n, sequence_length + 1); None leaves it out of
                the dictionaries.
        """
        arrays = self._arrays(texts, cu_seqlens)  # of all samples: {"tokens": (n, length), ...}
        padding_rows = [row for row, index in enumerate(indices) if self._is_padding(index)]
        if padding_rows:
            arrays["loss_mask"][padding_rows] = 0.0

        samples: list[Sample] = []
        for row in range(len(indices)):
            samples.append({name: array[row] for name, array in arrays.items()})
        return samples

    def _is_padding(self, index: int | None) -> bool:
        """Return whether the trainer requests padding: a sample that the loss leaves out."""
        if not self.has_labels:
            return False
        return index is None or (self.form == "nemo" and index < 0)

    def _arrays(self, text: Tokens, cu_seqlens: NDArray[np.int32] | None) -> Sample:
        """Return the arrays that a trainer expects, for one training sample or for many at once.

        For Megatron-LM, these are the tokens, their labels (the next tokens), a mask of the labels
        that count in the loss, and the positions of the tokens. By an option, there is an attention
        mask, and where documents begin.

        Args:
            text: Tokens, shape (sample_tokens,) or (n, sample_tokens).
            cu_seqlens: Where documents begin, shape (sequence_length + 1,) or (n, sequence_length +
                1); None if the samples do not contain it.

        Returns:
            Name → array; for many samples, the first axis of each array has length n.
        """
        if not self.has_labels:
            return self._arrays_without_labels(text)

        # Both are new arrays, which may be changed.
        tokens, labels = self._tokens_and_labels(text)

        # Where documents end, if an option depends on it.
        is_end = None
        if self.needs_ends:
            is_end = tokens == self.eod  # (…, sequence_length)

        # The loss leaves out the tokens that end documents, if the option is set.
        loss_mask = _copy_for_each(self._ones, tokens.shape[:-1])
        if self.masks_eod and is_end is not None:
            loss_mask[is_end] = 0.0

        # It always leaves out padding. The trainer then replaces the padding by token 0, since a
        # padding token such as -1 has no embedding.
        if self.pads and self._has_padding(text):
            loss_mask[labels == self.pad] = 0.0
            tokens[tokens == self.pad] = 0
            labels[labels == self.pad] = 0

        arrays = {"tokens": tokens, "labels": labels}
        if self.with_attention:
            arrays["attention_mask"] = self._attention(tokens.shape[:-1], is_end)
        arrays["loss_mask"] = loss_mask
        arrays["position_ids"] = self._positions(tokens.shape, is_end)
        if cu_seqlens is not None:
            arrays.update(by_document(cu_seqlens))
        return arrays

    def _has_padding(self, text: Tokens) -> bool:
        """Return whether a sample has a token or label that is padding.

        Most samples have none. Counting padding in the stored tokens, which have two or four bytes
        each, is faster than replacing it in three arrays of eight bytes.
        """
        if not self.has_extra_token:
            return True  # the last token has no label, so its label is padding
        return bool(np.count_nonzero(text == self.pad))

    def _arrays_without_labels(self, text: Tokens) -> Sample:
        """Return tokens under the trainer's name, and positions if these restart in a document."""
        tokens = text.astype(np.int64)
        arrays: Sample = {self.form: tokens}
        if self.reset_positions:
            arrays["positions"] = self._positions(tokens.shape, tokens == self.eod)
        return arrays

    def _tokens_and_labels(self, text: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (tokens, labels), separate arrays of shape (…, sequence_length).

        The label of a token is the next token. The loss leaves out the label `pad`:

            text                    A B C D
            with an extra token     tokens A B C      labels B C D
            without it              tokens A B C D    labels B C D pad

        Args:
            text: Tokens of the sample or samples, shape (…, sample_tokens).
        """
        next_tokens = text[..., 1:]
        if self.has_extra_token:
            tokens = text[..., :-1].astype(np.int64)
            return tokens, next_tokens.astype(np.int64)

        labels = np.empty(text.shape, np.int64)
        labels[..., :-1] = next_tokens
        labels[..., -1] = self.pad
        return text.astype(np.int64), labels

    def _positions(
        self, shape: tuple[int, ...], is_end: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Return the position of each token in its sample or, by an option, in its document.

            tokens                            A  B  eod  C  D
            position in the sample            0  1  2    3  4
            position in the document          0  1  2    0  1

        Args:
            shape: Shape of the tokens, (…, sequence_length).
            is_end: True at each token that ends a document (eod), of this shape; None if no option
                depends on it, so that positions do not restart.
        """
        if not self.reset_positions or is_end is None:
            return _copy_for_each(self._range, shape[:-1])

        # At the first token of a document, write its position in the sample, and 0 at all others.
        starts = np.zeros(shape, np.int64)
        follows_end = is_end[..., :-1]  # (…, sequence_length - 1) for all tokens but the first
        np.copyto(starts[..., 1:], self._range[1:], where=follows_end)  # 0 0 0 3 0
        # The largest number up to each token is where its document starts.
        start_of_document = np.maximum.accumulate(starts, axis=-1)  # 0 0 0 3 3
        return self._range - start_of_document

    def _attention(self, samples_shape: tuple[int, ...], is_end: NDArray[np.bool_] | None) -> Any:
        """Return which tokens of a sample each token must not look at: a mask of pairs of tokens.

        These are all later tokens, and by an option (`reset_attention`) also those of earlier
        documents. For a sample with the documents A B and C, True (1) means "must not":

                 A B C    with the option
            A    0 1 1              0 1 1    A must not look at B and C
            B    0 0 1              0 0 1
            C    0 0 0              1 1 0

        Args:
            samples_shape: () for one sample, or (n,) for n samples.
            is_end: True at each token that ends a document, shape (sequence_length,) or (n,
                sequence_length); None if no option depends on it.

        Returns:
            For one sample, bool, shape (1, sequence_length, sequence_length). The axis of length 1
            is for attention heads. For n samples, an array or a list of n such masks.
        """
        if self.reset_attention and is_end is not None:
            return self._is_later_token() | _is_of_later_document(is_end)
        return self._same_attention(samples_shape)

    def _same_attention(self, samples_shape: tuple[int, ...]) -> Any:
        """Return the attention mask of samples if it does not depend on where documents end.

        It is the same for all samples. As it is large, it is not copied, except where Megatron-LM
        copies it: with other options that depend on where documents end.

        Args:
            samples_shape: () for one sample, or (n,) for n samples.

        Returns:
            For one sample, bool, shape (1, sequence_length, sequence_length). For n samples, an
            array of n copies, or a list with n times the same mask.
        """
        mask = self._is_later_token()
        if self.needs_ends:
            return _copy_for_each(mask, samples_shape)
        is_one_sample = samples_shape == ()
        if is_one_sample:
            return mask
        n_samples = samples_shape[0]
        return [mask] * n_samples

    def _is_later_token(self) -> NDArray[np.bool_]:
        """Return, for each pair of tokens of a sample, whether the second comes after the first.

        Shape (1, sequence_length, sequence_length). It is computed once, since it is large.
        """
        if self._causal is None:
            self._causal = ~np.tri(self.length, dtype=bool)[np.newaxis]
        return self._causal


def _is_of_later_document(is_end: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return, for each pair of tokens of a sample, whether the first is of a later document.

    For example, the tokens A eod B are of the documents 0 0 1. Only B is of a later document than
    A and eod:

                A    eod    B
        A       0    0      0
        eod     0    0      0
        B       1    1      0

    Args:
        is_end: True at each end-of-document token, shape (…, sequence_length).

    Returns:
        Shape (…, 1, sequence_length, sequence_length), as in the table. The axis of length 1 is for
        attention heads.
    """
    documents = _document_numbers(is_end)  # (…, sequence_length)
    # Compare all pairs by broadcasting.
    as_rows = documents[..., np.newaxis, :, np.newaxis]  # (…, 1, sequence_length, 1)
    as_columns = documents[..., np.newaxis, np.newaxis, :]  # (…, 1, 1, sequence_length)
    is_later: NDArray[np.bool_] = as_rows > as_columns
    return is_later


def _document_numbers(is_end: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of each token's document in its sample: 0 0 1 for the tokens A eod B.

    Args:
        is_end: True at each end-of-document token, shape (…, sequence_length).

    Returns:
        Shape (…, sequence_length): how many ends come before each token.
    """
    documents = np.zeros(is_end.shape, np.int64)
    np.cumsum(is_end[..., :-1], axis=-1, out=documents[..., 1:])
    return documents


def _copy_for_each(values: NDArray[Any], samples_shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array with a copy of the same values for each sample.

    Args:
        values: Values of one sample, of any shape, such as (sequence_length,).
        samples_shape: () for one sample, or (n,) for n samples. Then the result has the shape (n,
            sequence_length).
    """
    if not samples_shape:
        return values.copy()
    return np.broadcast_to(values, (*samples_shape, *values.shape)).copy()

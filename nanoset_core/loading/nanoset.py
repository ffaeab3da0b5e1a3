"""Read the samples of one dataset.

Three index arrays, which were built before, say what the samples are:

- `document_index`, the order in which the sequences of the dataset follow one another, several
  times if there are several epochs.
- `sample_index`, of shape (n_samples + 1, 2): sample i starts at (entry of document_index, token in
  that sequence) of row i, and ends where row i + 1 says, plus the extra token.
- `shuffle_index`, the order in which the samples are read.

For example, let the sequences 0, 1 and 2 be ABC, DEFG and HI, and sequence_length 4:

    document_index  2 0 1                  the tokens are H I A B C D E F G
    sample_index    (0, 0) (1, 2) (2, 3)   H is the first token of entry 0, C the third of entry 1
    samples         H I A B C, C D E F G   the last token of each is the extra one
    shuffle_index   1 0                    nanoset[0] is C D E F G

A sample consists of pieces, each of which is a part of a sequence: sample 0 consists of HI and of
ABC. Whether pieces are adjacent in the .bin depends on the order of the sequences.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Tokens, positions_in
from nanoset_core.loading.boundaries import cu_seqlens_of
from nanoset_core.loading.fingerprints import DatasetFingerprint, check_unchanged, fingerprint_of
from nanoset_core.loading.samples import Sample, SampleForm
from nanoset_core.loading.split_samples import SplitSamples
from nanoset_core.records.arguments import token_id
from nanoset_core.sampling.cache import open_member
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import MemberIndices
from nanoset_core.sampling.planned import MemberPlan
from nanoset_core.storage.access import FileAccess

_PIECE_TOKENS = 48
"""If pieces have fewer tokens on average, gathering single tokens is faster than joining pieces.

For long pieces, joining their bytes is twice as fast as copying them into an array.
"""
_MANY_PIECES = 12
"""From this number of pieces on, numpy computes their positions faster than a loop does."""


class _SampleSpan(NamedTuple):
    """The range of tokens that makes up a sample."""

    first_entry: int
    """Entry of the document index with the sample's first token."""
    first_token: int
    """Position of the first token in the sequence of this entry."""
    last_entry: int
    """Entry of the document index with the sample's last token."""
    stop_token: int
    """Position after the last token in the sequence of this entry; 0 if the sequence is empty."""


class _SampleSpans(NamedTuple):
    """The ranges of tokens that make up many samples, as `_SampleSpan` for one; shape (n,) each."""

    first_entries: NDArray[np.int64]
    first_tokens: NDArray[np.int64]
    last_entries: NDArray[np.int64]
    stop_tokens: NDArray[np.int64]


class _SequencePieces(NamedTuple):
    """The pieces of sequences that make up some samples, concatenated."""

    start_bytes: NDArray[np.int64]
    """First byte of each piece in the .bin; shape (n_pieces,)."""
    stop_bytes: NDArray[np.int64]
    """Byte after each piece in the .bin; shape (n_pieces,)."""
    lengths: NDArray[np.int64]
    """Tokens of each piece; shape (n_pieces,)."""
    counts: NDArray[np.int64]
    """Pieces of each sample, at least one; shape (n_samples,)."""
    first_pieces: NDArray[np.int64]
    """Index of each sample's first piece; shape (n_samples,)."""

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return how many tokens each sample has; shape (n_samples,)."""
        return np.add.reduceat(self.lengths, self.first_pieces)


class Nanoset(SplitSamples):
    """Samples in shuffled order, like a list: `nanoset[k]` is what the preset's trainer would get.

    It is a map-style `torch.utils.data.Dataset` without importing torch: it needs numpy only. If
    its index files are in a cache folder, it is pickled as paths. If the dataset was written again
    since, unpickling raises a StaleError.

    Raises:
        SampleIndexError: An index has no sample.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        member: MemberPlan,
        config: NanosetConfig,
        indices: MemberIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Prepare to read the training samples of one dataset.

        Which tokens a sample has was computed before, and is stored in three index arrays: the
        order of the documents, where each sample starts in them, and the order of the samples.

        Args:
            dataset: The dataset.
            member: The plan by which the index arrays were built.
            config: Settings, such as the length of a sample.
            indices: The index arrays.
            cache_dir: Folder of the index files, or None if they are only in memory.

        Raises:
            ConfigError: An option needs the end-of-document token, and no token of the dataset's
                type has its id.
        """
        self.may_pad = _may_contain_padding(dataset, member, config)
        """Whether a sample may contain the padding token. If not, none is searched for it."""
        # If a run continues with this dataset, it has read the samples before `begin` already. They
        # must not be read again. In a blend, which numbers the samples of all its datasets, the
        # blend itself checks that.
        first_sample = member.begin
        is_in_blend_with_weights = member.weight is not None
        if is_in_blend_with_weights:
            first_sample = 0
        super().__init__(
            config,
            member,
            where=f"{member.prefix}, {member.split}",
            count=len(indices.shuffle_index),
            first_sample=first_sample,
            form=SampleForm(config, pads=self.may_pad),
            cache_dir=cache_dir,
        )
        # Some options, such as `eod_mask_loss`, search samples for the token that ends documents.
        # The type of the stored tokens must be able to have its id.
        if self._form.needs_ends:
            token_id("eod_token", config.eod_token, dataset.dtype)

        self.dataset = dataset
        self.member = member
        self.document_index = indices.document_index
        self.sample_index = indices.sample_index
        self.shuffle_index = indices.shuffle_index

        self._token_count = dataset.token_count
        self._overlap = config.overlap  # tokens that a sample shares with the next one, 0 or 1
        self._sample_tokens = config.sample_tokens  # of a sample that is not short
        self._token_bytes = dataset.dtype.itemsize
        self._prepare_lookups()

    def _prepare_lookups(self) -> None:
        """Make views of all arrays, from which single numbers are read faster than from the arrays.

        They read all numbers as unsigned: a -1 of 32 bits, which only a damaged file has, becomes
        4,294,967,295. As an index, -1 would be the last entry, while this one raises an error.
        """
        # For reading single samples: `view[7]` is a Python integer.
        self._shuffle_view = _fast_view(self.shuffle_index)
        self._sample_view = _fast_view(self.sample_index)
        self._sequence_view = _fast_view(self.document_index)
        self._length_view = _fast_view(self.dataset.sequence_lengths)
        self._pointer_view = _fast_view(self.dataset.sequence_pointers)
        self._bytes = self.dataset.stored_bytes
        self._empty_end = self._mark_of_empty_end()

        # For reading many samples: the sequences in shuffled order, as an array.
        self._shuffled_sequences = _unsigned(self.document_index)

    def _mark_of_empty_end(self) -> int | None:
        """Return the number that marks samples which end in a sequence without tokens.

        The trainer NeMo stores a -1 in the sample index, in place of a token. The view of the
        sample index reads it as the largest unsigned number.

        Returns:
            That number; None if samples are not built by NeMo's rules.
        """
        if self._overlap and self.config.rules.empty_end:
            return int(np.iinfo(_unsigned(self.sample_index).dtype).max)
        return None

    def __getitem__(self, index: int | None) -> Sample:
        """Return a sample as the trainer's dictionary.

        With the presets of Megatron-LM and NeMo, it has these arrays of length sequence_length:

            tokens            int64      0 in place of padding
            labels            int64      the next token of each; 0 in place of padding
            loss_mask         float32    0.0 for labels that do not count, such as padding
            position_ids      int64
            attention_mask    bool       True where masked; only with create_attention_mask, shape
                                         (1, sequence_length, sequence_length)

        With inter_document_masking, it also has `cu_seqlens` (int32, shape (sequence_length + 1,))
        and `max_seqlen` (int32, shape ()), see `by_document`.

        With the presets of nanotron, it has the tokens alone (int64, shape (sequence_length + 1,)),
        under `input_ids` or, with nanotron-000, `text`; and with reset_position_ids `positions`.

        Args:
            index: Index of the sample; None returns the first sample with a loss mask of zeros, as
                padding.
        """
        stored_index = self._first_sample if index is None else index
        return self.sample_of(stored_index, index)

    def sample_of(self, index: int, asked: int | None) -> Sample:
        """Return a training sample as the dictionary of arrays that the trainer expects.

        The trainer may read a mixture of several datasets, and number its samples differently: it
        asks for sample 7 of the mixture, which is sample 3 of this dataset. Some trainers put the
        number 7 into the dictionary. Or it asks for None, to fill up a batch. Then the loss ignores
        the sample.

        Args:
            index: Number of the sample in this dataset: 3.
            asked: The number that the trainer asks for: 7; None for padding.

        Returns:
            Name → array, such as `tokens`, `labels` and `loss_mask`.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the dataset.
        """
        boundaries = None
        if self._form.by_document:  # by an option, the dictionary says where documents begin
            boundaries = self.cu_seqlens([index])[0]  # such as [0, 3, 5, 8, …]
        tokens = self._read(index)
        return self._form.sample(tokens, asked, boundaries)

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of a training sample as a flat array, without labels and masks.

        For a sequence_length of 4,096, it has 4,097 tokens: the last one is only the label of the
        token before it. By a setting, this extra token may be missing. The end of a short sample
        is `pad_token` if the trainer uses it, and otherwise -1, which no text contains.

        Args:
            index: Number of the sample; a negative one counts from the end.

        Returns:
            Shape (sequence_length + 1,), or one token less without the extra token.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the dataset.
        """
        return self._read(index).astype(np.int64, copy=False)

    def sources(self, index: int) -> NDArray[np.int64]:
        """Return which parts of which sequences of the dataset a training sample consists of.

        The sequences of a dataset are shuffled, put one after another, and cut into samples. (The
        samples are then shuffled, too.) So a sample may have the end of one sequence and the start
        of another. For example, of 5 tokens:

            sequence    first token    stop
            7           8              10        the last 2 tokens of sequence 7, which has 10
            4           0              3         the first 3 tokens of sequence 4

        Usually a document is one sequence. But it may have several, and a document without text may
        have none. From there on, documents have other numbers than sequences. These are the numbers
        of the documents:

            borders = nanoset.dataset.document_indices
            documents = np.searchsorted(borders, sources[:, 0], side="right") - 1

        Args:
            index: Number of the sample; a negative one counts from the end.

        Returns:
            Such rows, int64, shape (n_parts, 3): number of the sequence, its first token in the
            sample, and the token after the last one.

        Raises:
            SampleIndexError: There is no such sample.
        """
        # Where does the sample start and stop in the shuffled sequences? That is stored by the
        # numbers that samples had before they were shuffled.
        sample = self._shuffle_view[self._position(index)]
        span = self._span(sample)

        # The document index (so named by Megatron-LM) lists the sequences in their shuffled order.
        # The sample has those from the first to the last entry of its span.
        entries = slice(span.first_entry, span.last_entry + 1)
        sequences = self.document_index[entries].astype(np.int64)  # (n_parts,) 7 4

        # All tokens of each sequence belong to the sample, except at both ends of it.
        first_tokens = np.zeros(len(sequences), np.int64)
        first_tokens[0] = span.first_token  # 8 0
        stop_tokens = self.dataset.sequence_lengths[sequences].astype(np.int64)
        stop_tokens[-1] = span.stop_token  # 10 3
        return np.stack([sequences, first_tokens, stop_tokens], axis=1)

    def _read(self, index: int) -> Tokens:
        """Return the tokens of a training sample, in the order of training.

        Samples are shuffled: the shuffle index says, for example, that sample 0 of the training is
        sample 5,120 before the shuffle. The last sample of the data may have too few tokens. It is
        filled up with padding.

        Args:
            index: Number of the sample in the order of training; a negative one counts from the
                end.

        Returns:
            Shape (sample_tokens,), in the type in which the tokens are stored; int64 if the sample
            is padded, since another type may not have the padding token.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the dataset.
        """
        position = self._position(index)
        try:
            sample = self._shuffle_view[position]  # its number before the shuffle
            tokens = self._stored_tokens(self._span(sample))
        except (IndexError, ValueError) as error:
            # An entry does not exist, or the bytes are not whole tokens.
            raise self._misfit(
                f"entry {position} of the shuffle index leads nowhere: {error}"
            ) from error

        if len(tokens) != self._sample_tokens:
            self._check_is_short_last_sample(sample, len(tokens))
            return self._padded(tokens)
        return tokens

    def _stored_tokens(self, span: _SampleSpan) -> Tokens:
        """Return the tokens of a span, in the type in which they are stored.

        Args:
            span: The range of tokens of a sample.
        """
        if span.last_entry - span.first_entry < _MANY_PIECES:
            pieces = self._pieces_by_loop(span)
        else:
            pieces = self._pieces_by_numpy(span)
        return np.frombuffer(bytearray().join(pieces), self.dataset.dtype)

    def _padded(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the tokens of a short sample, filled up with padding.

        The result is int64, since the type of the stored tokens may not have the padding token.
        """
        padded = np.full(self._sample_tokens, self._form.pad, np.int64)
        padded[: len(tokens)] = tokens
        return padded

    def _span(self, sample: int) -> _SampleSpan:
        """Return where a training sample starts and stops among the shuffled sequences.

        The document index lists the sequences of the dataset in a shuffled order, such as 7, 2, 4.
        The sample index has a row for each sample: the entry of this list at which it starts, and
        the token there. A sample stops where the next one starts:

            row 0    0, 3    sample 0 starts in sequence 7 (entry 0), at its token 3
            row 1    2, 5    sample 1 starts in sequence 4 (entry 2), at its token 5

        So sample 0 has sequence 7 from token 3 on, all of sequence 2, and the tokens of sequence 4
        before token 5: the result is (0, 3, 2, 5). By most trainers' rules, samples overlap by one
        token. Then sample 0 also has token 5 of sequence 4, and the result is (0, 3, 2, 6).

        Args:
            sample: Number of the sample, before samples were shuffled.
        """
        rows = self._sample_view
        first_entry = rows[sample, 0]
        first_token = rows[sample, 1]
        # The next sample starts in the last sequence of this one.
        last_entry = rows[sample + 1, 0]
        next_first_token = rows[sample + 1, 1]

        stop_token = next_first_token + self._overlap
        # The trainer NeMo marks a last sequence without tokens by a special number.
        if next_first_token == self._empty_end:
            stop_token = 0
        return _SampleSpan(first_entry, first_token, last_entry, stop_token)

    def _pieces_by_loop(self, span: _SampleSpan) -> list[memoryview]:
        """Return the bytes of a training sample, as the parts of sequences of which it consists.

        For example, the sequences HI and ABC follow one another, and the sample goes from token 1
        of the first to token 2 of the second. Its parts are "I" and "AB".

        This loop is fast for samples of few parts, which is the usual case.

        Args:
            span: Where the sample starts and stops.
        """
        # This runs for every sample, and local names are faster than attributes.
        bytes_of_dataset = self._bytes
        pointers = self._pointer_view  # first byte of each sequence
        lengths = self._length_view  # tokens of each sequence
        token_bytes = self._token_bytes
        pieces = []

        skipped_bytes = span.first_token * token_bytes  # of the first sequence
        all_but_last_sequence = self._sequence_view[span.first_entry : span.last_entry]
        for sequence in all_but_last_sequence.tolist():
            start_byte = pointers[sequence]
            stop_byte = start_byte + lengths[sequence] * token_bytes
            pieces.append(bytes_of_dataset[start_byte + skipped_bytes : stop_byte])
            skipped_bytes = 0

        last_sequence = self._sequence_view[span.last_entry]  # may also be the first one
        start_byte = pointers[last_sequence]
        stop_byte = start_byte + span.stop_token * token_bytes
        pieces.append(bytes_of_dataset[start_byte + skipped_bytes : stop_byte])
        return pieces

    def _pieces_by_numpy(self, span: _SampleSpan) -> list[memoryview]:
        """Return the bytes of a training sample, as the parts of sequences of which it consists.

        For example, the sequences HI, OK and ABC follow one another, with tokens of 2 bytes, and
        the sample goes from token 1 of the first sequence to token 2 of the last one:

            sequence                           HI      OK      ABC
            first byte in the .bin             40      10      20
            the part                           I       OK      AB
            its tokens of the sequence         1 to 2  0 to 2  0 to 2
            its bytes                          42, 44  10, 14  20, 24

        This does the same as `_pieces_by_loop`. It is faster if a sample has many parts, because
        its documents are short.

        Args:
            span: Where the sample starts and stops.
        """
        entries = slice(span.first_entry, span.last_entry + 1)
        sequences = self._shuffled_sequences[entries]  # (n_pieces,)
        pointers = self.dataset.sequence_pointers[sequences]  # (n_pieces,) 40 10 20

        # Each part starts where its sequence does, but the first one some tokens later.
        start_bytes = pointers.copy()
        start_bytes[0] += span.first_token * self._token_bytes  # 42 10 20

        # Each part stops where its sequence does, but the last one some tokens earlier.
        stop_tokens = self.dataset.sequence_lengths[sequences].astype(np.int64)  # 2 2 3
        stop_tokens[-1] = span.stop_token  # 2 2 2
        stop_bytes = pointers + stop_tokens * self._token_bytes  # 44 14 24
        return self._slices(start_bytes, stop_bytes)

    def _slices(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[memoryview]:
        """Return some ranges of the .bin, without copying their bytes.

        Args:
            starts: First byte of each range, shape (n,).
            stops: Byte after each range, shape (n,).
        """
        ranges = zip(starts.tolist(), stops.tolist(), strict=True)
        return [self._bytes[start:stop] for start, stop in ranges]

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many training samples, one sample in each row.

        The last sample of the data may be short, since it ends with the data. It is filled up with
        `pad_token` if the trainer uses it, and otherwise with -1, which no text contains:

            A B C D
            E F -1 -1

        Args:
            indices: Numbers of the samples, shape (n,); negative ones count from the end.

        Returns:
            Shape (n, sequence_length + 1), or one token less without the extra token.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the dataset.
        """
        samples = self._numbers_before_shuffle(indices)  # (n,)
        if not len(samples):
            return np.empty((0, self._sample_tokens), np.int64)

        pieces = self._pieces(samples)  # each sample consists of pieces of sequences
        token_counts = pieces.sample_lengths()  # (n,) tokens of each sample
        unusual_rows = np.flatnonzero(token_counts != self._sample_tokens)
        for row in unusual_rows:
            self._check_is_short_last_sample(int(samples[row]), int(token_counts[row]))

        tokens = self._tokens_of_pieces(pieces)  # of all samples, one after another
        if len(unusual_rows) > 0:
            return self._padded_rows(tokens, token_counts)
        return tokens.astype(np.int64).reshape(len(samples), self._sample_tokens)

    def _numbers_before_shuffle(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the numbers that some samples had before samples were shuffled; shape (n,).

        Args:
            indices: Numbers of the samples, shape (n,); negative ones count from the end.

        Raises:
            SampleIndexError: There is no such sample.
        """
        return self.shuffle_index[self._positions(indices)].astype(np.int64)

    def _padded_rows(self, tokens: Tokens, token_counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return samples as rows of equal length, filled up with padding; shape (n, sample_tokens).

        For example, the tokens A B C D E of samples of 3 and 2 tokens become the rows A B C and D E
        pad.

        Args:
            tokens: Tokens of all samples, concatenated.
            token_counts: Number of tokens of each sample, shape (n,).
        """
        rows = np.full((len(token_counts), self._sample_tokens), self._form.pad, np.int64)
        # (n, sample_tokens) True for the first 3 columns of row 0, and the first 2 of row 1
        has_token = np.arange(self._sample_tokens) < token_counts[:, np.newaxis]
        rows[has_token] = tokens
        return rows

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many samples; see `SplitSamples.cu_seqlens`."""
        samples = self._numbers_before_shuffle(indices)  # (n,)
        sequence_length = self.config.sequence_length
        if not len(samples):
            return np.empty((0, sequence_length + 1), np.int32)
        pieces = self._pieces(samples)
        n_extra = int(self.config.add_extra_token)
        return cu_seqlens_of(pieces.lengths, pieces.counts, sequence_length, n_extra)

    def _pieces(self, samples: NDArray[np.int64]) -> _SequencePieces:
        """Find the pieces of sequences that many training samples consist of.

        For example, a dataset has the sequences HI, ABC and DEFG, where each letter is a token.
        They are cut into samples of 5 tokens. The last token of a sample is also the first one of
        the next sample, so the C is in both:

            sample                            0             1
            its tokens                        HI   ABC      C    DEFG
            piece                             0    1        2    3
            the piece is of the sequence      HI   ABC      ABC  DEFG
            it starts at this token of it     0    0        2    0
            it stops before this token        2    3        3    4
            its length                        2    3        1    4

        Where each sample starts and stops is stored, so this is known for the first and for the
        last piece of each sample. All other pieces are whole sequences.

        Args:
            samples: Numbers of the samples before the shuffle, such as 0 and 1; shape (n,), at
                least one.

        Returns:
            Where each piece is in the .bin, the file of all tokens, and how the pieces belong to
            samples.

        Raises:
            StaleError: An index array has a number that does not exist in the next one, or in the
                dataset.
        """
        # A span says where a sample starts and stops. In the example, for samples 0 and 1:
        #     first_entries  0 1    number of the first sequence in this order: HI, ABC
        #     last_entries   1 2    number of the last sequence in this order: ABC, DEFG
        #     first_tokens   0 2    first token in the first sequence
        #     stop_tokens    3 4    token after the sample in the last sequence
        spans = self._spans(samples)

        # Each sample has a piece of every sequence from its first one to its last one.
        counts = spans.last_entries - spans.first_entries + 1  # (n,) pieces of each sample: 2 2
        first_pieces = counts.cumsum() - counts  # (n,) index of each sample's first piece: 0 2
        last_pieces = first_pieces + counts - 1  # (n,) 1 3
        sequences = self._sequences_of(spans, counts)  # (n_pieces,) HI ABC ABC DEFG

        # Where each piece stops in its sequence: at its end, unless it is the last of the sample.
        lengths = self.dataset.sequence_lengths[sequences].astype(np.int64)  # (n_pieces,) 2 3 3 4
        lengths[last_pieces] = spans.stop_tokens  # 2 3 3 4
        # Subtract where it starts: at 0, unless it is the first of the sample. That is its length.
        lengths[first_pieces] -= spans.first_tokens  # 2 3 1 4

        # Convert this to bytes of the .bin.
        start_bytes = self.dataset.sequence_pointers[sequences]  # (n_pieces,) a copy
        start_bytes[first_pieces] += spans.first_tokens * self._token_bytes
        stop_bytes = start_bytes + lengths * self._token_bytes
        pieces = _SequencePieces(start_bytes, stop_bytes, lengths, counts, first_pieces)
        self._check_in_dataset(pieces)
        return pieces

    def _sequences_of(self, spans: _SampleSpans, counts: NDArray[np.int64]) -> NDArray[Any]:
        """Return from which sequence of the dataset each piece of some samples is.

        For example, the shuffled sequences are 7 4 9. One sample has the end of 7 and the start of
        4, and the next one has the rest of 4 and the start of 9. For both, the result is 7 4 4 9.

        Args:
            spans: Where each sample starts and stops. Its first entries are 0 and 1: sequence 7 is
                entry 0 of the shuffled sequences, and sequence 4 is entry 1.
            counts: How many pieces each sample has: 2 2; shape (n,).

        Returns:
            Shape (n_pieces,).

        Raises:
            StaleError: The dataset does not have such a sequence.
        """
        # Each sample has as many entries as it has pieces, one after another.
        entries = positions_in(spans.first_entries, counts)  # (n_pieces,) 0 1, and 1 2
        sequences = self._shuffled_sequences[entries]  # 7 4, and 4 9
        if sequences.max() >= len(self.dataset):
            raise self._misfit("a sequence outside of the dataset")
        return sequences

    def _check_in_dataset(self, pieces: _SequencePieces) -> None:
        """Check that the pieces of some samples are inside of the dataset's file.

        They are not if the index files, by which samples are found, were made for a larger dataset.

        Raises:
            StaleError: A piece ends after the file, or before it starts.
        """
        first_byte = pieces.start_bytes.min()
        stop_byte = pieces.stop_bytes.max()
        bin_bytes = self._token_count * self._token_bytes
        if pieces.lengths.min() < 0 or first_byte < 0 or stop_byte > bin_bytes:
            raise self._misfit("samples outside of their sequences")

    def _spans(self, samples: NDArray[np.int64]) -> _SampleSpans:
        """Find where many training samples start and stop, as `_span` does for one.

        The document index lists the sequences of a dataset in a shuffled order. The sample index
        has a row for each sample: the entry of this list at which it starts, and the token of the
        sequence there. It stops where the next one starts:

            row 0    0, 3    sample 0 starts at entry 0, token 3
            row 1    2, 5    sample 1 starts at entry 2, token 5, and sample 0 stops there

        The result for sample 0 is: first_entries 0, first_tokens 3, last_entries 2, and stop_tokens
        5. For trainers whose samples overlap by one token, stop_tokens is 6. (One of them, NeMo,
        stores token -1 if the sequence has no tokens. Then stop_tokens is 0, as it should be.)

        Args:
            samples: Numbers of the samples before the shuffle, shape (n,), at least one.

        Raises:
            StaleError: A number is impossible, because the index files are damaged or belong to
                other data. Whether the positions fit their sequences is not checked here.
        """
        if samples.min() < 0 or samples.max() >= len(self.sample_index) - 1:
            raise self._misfit("a sample outside of the sample index")
        starts = self.sample_index[samples].astype(np.int64)  # (n, 2) the row of each sample
        next_starts = self.sample_index[samples + 1].astype(np.int64)  # (n, 2) the row after it
        spans = _SampleSpans(
            first_entries=starts[:, 0],
            first_tokens=starts[:, 1],
            last_entries=next_starts[:, 0],
            stop_tokens=next_starts[:, 1] + self._overlap,
        )
        self._check_in_document_index(spans)
        return spans

    def _check_in_document_index(self, spans: _SampleSpans) -> None:
        """Check that some samples start and stop at entries of the document index, in this order.

        Raises:
            StaleError: A sample has a negative number, stops before it starts, or stops at an entry
                that does not exist.
        """
        has_negative = spans.first_entries.min() < 0 or spans.first_tokens.min() < 0
        is_backwards = spans.last_entries < spans.first_entries  # (n,)
        has_missing_entry = spans.last_entries.max() >= len(self.document_index)
        if has_negative or is_backwards.any() or has_missing_entry:
            raise self._misfit("a document outside of the document index")

    def _tokens_of_pieces(self, pieces: _SequencePieces) -> Tokens:
        """Return the tokens of some pieces of a dataset's sequences, one piece after another.

        For example, the pieces at the tokens 10 to 12 and 50 to 53 of the dataset's file give 5
        tokens. If pieces are short, looking up each token by its index is faster; if they are long,
        joining their bytes.

        Args:
            pieces: Where the pieces are in the file.

        Returns:
            Shape (tokens of all pieces,), in the type in which they are stored.
        """
        # All tokens of the dataset, as an array. Those of the pieces are downloaded if necessary.
        all_tokens = self.dataset.tokens_for(pieces.start_bytes, pieces.stop_bytes)

        mean_length = int(pieces.lengths.sum()) / len(pieces.lengths)
        if mean_length < _PIECE_TOKENS:
            first_tokens = pieces.start_bytes // self._token_bytes
            return all_tokens[positions_in(first_tokens, pieces.lengths)]
        views = self._slices(pieces.start_bytes, pieces.stop_bytes)
        return np.frombuffer(b"".join(views), all_tokens.dtype)

    def _check_is_short_last_sample(self, sample: int, n_tokens: int) -> None:
        """Check that a sample with an unusual number of tokens is the last one, which may be short.

        For example, samples have 4,097 tokens, and the last one has 1,200, since the data ends
        there. Any other sample of 1,200 tokens shows that the index files, which say where samples
        start, were made for another dataset.

        Args:
            sample: Number of the sample, before samples were shuffled.
            n_tokens: Number of its tokens, which is not `_sample_tokens`.

        Raises:
            StaleError: It is not the last sample, or it is not short. Or the split cannot have a
                short sample, since by its settings such a sample is left out.
        """
        is_last = sample == self.member.samples_built - 1
        is_short = n_tokens < self._sample_tokens
        leaves_out_short = self.config.drops_last_partial(self.member.split)
        if is_last and is_short and not leaves_out_short:
            return
        raise self._misfit(f"sample {sample} of {n_tokens} tokens")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to recreate the samples from a pickle: a function and its arguments.

        Workers of a DataLoader open the files again, if there are any, instead of copying arrays.
        """
        fingerprint = fingerprint_of(self.dataset)
        if self.cache_dir is not None:
            access = self.dataset.access
            return _open_pickled, (self.member, self.config, self.cache_dir, access, fingerprint)
        indices = MemberIndices(self.document_index, self.sample_index, self.shuffle_index)
        return _with_arrays, (self.dataset, self.member, self.config, indices, fingerprint)


def open_nanoset(
    member: MemberPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> Nanoset:
    """Open the training samples of one dataset, for random access.

    Which tokens a sample has was computed when the project was built, and is stored in index files.
    So opening takes no computation: it maps these files, and the dataset's, into memory.

    Args:
        member: The plan by which the index files were built. It names the dataset.
        config: Settings of the nanoset, such as the length of a sample.
        cache_dir: Folder of the index files.
        access: Downloads files of a bucket; None for local files.

    Raises:
        MissingError: A file does not exist.
        FormatError: The dataset is damaged.
        StaleError: An index file differs from the plan.
    """
    dataset = MMapIndexedDataset.below(access, member.prefix)
    return Nanoset(dataset, member, config, open_member(member, cache_dir, access), cache_dir)


def _open_pickled(
    member: MemberPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None,
    fingerprint: DatasetFingerprint,
) -> Nanoset:
    """Open the samples of a dataset that were pickled, for example for another process.

    A pickle does not contain the samples, but the paths of their files. It also contains the name
    of this function, which Python calls to unpickle it.

    Args:
        member: The plan by which the index files were built. It names the dataset.
        config: Settings of the nanoset, such as the length of a sample.
        cache_dir: Folder of the index files.
        access: Downloads files of a bucket; None for local files.
        fingerprint: What the dataset was like when the samples were pickled.

    Raises:
        StaleError: The dataset was written again since.
    """
    nanoset = open_nanoset(member, config, cache_dir, access)
    check_unchanged(nanoset.dataset, fingerprint)
    return nanoset


def _with_arrays(
    dataset: MMapIndexedDataset,
    member: MemberPlan,
    config: NanosetConfig,
    indices: MemberIndices,
    fingerprint: DatasetFingerprint,
) -> Nanoset:
    """Return samples that were pickled with their index arrays, which are in no cache folder.

    Args:
        dataset: The dataset. Unpickling it has opened its files again.
        member: The plan by which the index arrays were built.
        config: Settings, such as the length of a sample.
        indices: The index arrays.
        fingerprint: What the dataset was like when the samples were pickled.

    Raises:
        StaleError: The dataset was written again since.
    """
    check_unchanged(dataset, fingerprint)
    return Nanoset(dataset, member, config, indices)


def open_members(
    members: Sequence[MemberPlan],
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> list[Nanoset]:
    """Open the training samples of each dataset of a split, such as train.

    If the files are in a bucket, where each request takes a while, several datasets are opened at
    the same time.

    Args:
        members: The plans of the datasets, by which their index files were built.
        config: Settings of the nanoset.
        cache_dir: Folder of the index files.
        access: Downloads files of a bucket; None for local files.

    Raises:
        MissingError: A file does not exist.
        FormatError: A dataset is damaged.
        StaleError: An index file differs from the plan.
    """

    def open_one(member: MemberPlan) -> Nanoset:
        """Open the samples of one dataset."""
        return open_nanoset(member, config, cache_dir, access)

    if access is None:
        return [open_one(member) for member in members]
    return access.each(open_one, members)


def _may_contain_padding(
    dataset: MMapIndexedDataset, member: MemberPlan, config: NanosetConfig
) -> bool:
    """Return whether a sample, or its labels, may contain the padding token.

    Searching samples for it takes time. In most cases, this returns False, and none is searched.

    For example, samples have a sequence_length of 3, and the data is A B C D E:

        with extra tokens       A B C D, D E pad pad    the last sample is short
        without extra tokens    A B C, D E pad          the last label of A B C is padding: B C pad

    Args:
        dataset: The dataset of the samples.
        member: The plan of the samples, which says for which split they are.
        config: Settings of the samples.
    """
    last_label_is_padding = not config.add_extra_token
    last_sample_may_be_short = not config.drops_last_partial(member.split)
    if last_label_is_padding or last_sample_may_be_short:
        return True
    return _texts_may_contain_padding(dataset, config)


def _texts_may_contain_padding(dataset: MMapIndexedDataset, config: NanosetConfig) -> bool:
    """Return whether the texts of a dataset may contain the token that is used as padding.

    They may if a user has named it: it can be the token that ends documents, for example. By
    default the padding token is -1, which only signed types can have.
    """
    has_signed_tokens = dataset.dtype.kind != "u"
    return config.pad_token is not None or has_signed_tokens


def _fast_view(array: NDArray[Any]) -> memoryview:
    """Return a view of an array from which single numbers are read twice as fast.

    `view[7]` is a Python integer, while `array[7]` of a numpy array makes a numpy object. Nothing
    is copied.

    Numbers are read as unsigned. Only a damaged file has negative ones: a -1 is read as a very
    large number then, which is no valid index, so that the damage is noticed.

    Args:
        array: Integers, of any shape.
    """
    if not array.size:
        return memoryview(b"")
    # A memoryview of integers needs a certain alignment in memory, which arrays of some files do
    # not have. Bytes need none, so make a view of the bytes, and let it read them as integers.
    array_bytes = array.reshape(-1).view(np.uint8).data
    type_code: Any = _unsigned(array).dtype.char  # "I" for integers of 32 bits
    entries: memoryview = array_bytes.cast(type_code, array.shape)
    return entries


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array's bytes as unsigned integers of the same size."""
    return array.view(f"u{array.dtype.itemsize}")

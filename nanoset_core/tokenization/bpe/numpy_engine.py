"""The `numpy` engine: byte-level BPE as array operations, with the ids of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.characters import CharacterMerger, PairSplitter, SpaceSigns
from nanoset_core.tokenization.bpe.classes import ByteClassifier
from nanoset_core.tokenization.bpe.learned import LearnedWords
from nanoset_core.tokenization.bpe.lexicon import PADDING, Batch, Lexicon
from nanoset_core.tokenization.bpe.merges import Merger, PairRanks, WordEncoder
from nanoset_core.tokenization.bpe.reference import Encoded, FlatLists, ReferenceEngine, not_unicode, slices
from nanoset_core.tokenization.bpe.rules import Rules
from nanoset_core.tokenization.bpe.splits import piece_starts
from nanoset_core.tokenization.bpe.units import UNIT_BYTES, ForeignText, Units, native, partition_units
from nanoset_core.tokenization.files.definition import installed_version

BATCH_BYTES = 4 << 20
"""Text whose unknown words are encoded together."""

_SEPARATOR = b"\xff"


class NumpyEngine:
    """Encodes by rules read from a `tokenizer.json`; asks the reference about the little that they don't cover."""

    name = "numpy"
    helper = ""

    def __init__(
        self,
        rules: Rules,
        classes: NDArray[np.uint8],
        reference: ReferenceEngine,
        *,
        reason: str = "asked for",
        words: LearnedWords | None = None,
    ) -> None:
        """classes: uint8, shape (0x110000,), from probe_classes. reference: knows the same tokenizer.

        `words` is where the tokens of words are kept between runs.
        """
        self.reason = reason
        self.version = version()
        self._reference = reference
        self.tangles = rules.tangles
        self._foreign = ForeignText(
            rules.added_tokens,
            rules.forbidden_bytes,
            form=rules.form,
            tangles=self.tangles,
        )
        self._cuts_before_normalising = not (rules.form and rules.normalized_tokens)
        self._signs = rules.split if isinstance(rules.split, SpaceSigns) else None
        self._starts = _splitter(rules, classes)
        ranks = PairRanks(*rules.vocabulary.merges.T)
        if self._signs:
            merger: Merger = CharacterMerger(rules.vocabulary, ranks)
            encoder = WordEncoder(merger, reference.encode_pieces)
        else:
            merger = Merger(rules.vocabulary.byte_tokens, ranks)
            encoder = WordEncoder(merger, reference.encode_words)
        self._lexicon = Lexicon(encoder.encode, encoder.encode_long, partial(_seed, rules, merger), words)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        lengths = np.zeros(len(texts), np.int64)
        parts = [np.empty(0, np.int32)]
        for units in self._units(texts):
            ids, counts = self._encode_units(units)
            np.add.at(lengths, units.documents, counts)
            parts.append(ids)
        return Encoded(np.concatenate(parts), lengths.astype(np.int32))

    @property
    def follows_pattern(self) -> bool:
        """Whether words are the pre-tokens of a split pattern."""
        return self._signs is None

    def piece_begins(self, text: str) -> list[int]:
        """Where the pre-tokens of a text begin, in characters; added tokens are not looked for."""
        buffer = _SEPARATOR + text.encode() + _SEPARATOR
        data = np.frombuffer(buffer, np.uint8)
        starts = self._starts(data, buffer, looks_for_runs=False)
        is_character = (data & 0xC0) != 0x80
        return np.flatnonzero(starts[1:-2][is_character[1:-1]]).tolist()

    def _units(self, texts: Sequence[str]) -> Iterator[Units]:
        """Units of all documents, about BATCH_BYTES at a time."""
        units = Units()
        for begin, end in slices(texts, UNIT_BYTES):
            try:
                encoded = [text.encode() for text in texts[begin:end]]
            except UnicodeEncodeError as error:
                raise not_unicode(texts) from error
            suspect = self._foreign.suspects(_SEPARATOR.join(encoded))
            for document, data in enumerate(encoded, begin):
                data, is_mixed = self._checked(texts[document], data, suspect)
                for piece, is_foreign in self._partition(data, is_mixed):
                    if piece:
                        units.add(piece, document, is_foreign)
                    if units.size >= BATCH_BYTES:
                        yield units
                        units = Units()
        yield units

    def _partition(self, data: bytes, is_mixed: bool) -> Iterator[tuple[bytes, bool]]:
        """(piece, whether it is for the reference) of a document."""
        if self._signs is None:
            if not is_mixed:
                yield from native(data)
            elif self._cuts_before_normalising or not self._foreign.unnormalised(data.decode()):
                yield from partition_units(data, self._foreign)
            else:
                yield data, True  # an added token may lie across a cut once the text is normalised
        elif not is_mixed:
            yield from native(self._signs.prepared(data))
        elif self._signs.prepend == "never":
            for piece, is_foreign in partition_units(data, self._foreign):
                yield (piece if is_foreign else self._signs.prepared(piece)), is_foreign
        else:
            yield data, True  # the reference would put a ▁ before each piece

    def _checked(self, text: str, data: bytes, suspect: bool) -> tuple[bytes, bool]:
        """A document in normal form, or as it is if it holds anything for the reference; and whether it does."""
        if suspect and self._foreign.holds(data):
            return data, True
        if not self._foreign.unnormalised(text):
            return data, False
        normal = self._reference.normalise(text).encode()
        return (data, True) if self._foreign.holds(normal) else (normal, False)

    def _encode_units(self, units: Units) -> FlatLists:
        """Tokens of all units."""
        foreign = np.array(units.foreign, bool)
        native = [text for text, is_foreign in zip(units.texts, units.foreign, strict=True) if not is_foreign]
        encoded = self._encode_native(native)
        if not foreign.any():
            return encoded
        texts = [text.decode() for text, is_foreign in zip(units.texts, units.foreign, strict=True) if is_foreign]
        asked = self._reference.encode(texts)
        return interleave(foreign, (asked.ids, asked.lengths), encoded)

    def _encode_native(self, texts: list[bytes]) -> FlatLists:
        """The same for units without anything foreign."""
        batch = Batch()
        firsts = [np.zeros(0, np.int64)]  # first word of each unit
        for begin, end in slices(texts, UNIT_BYTES):
            data, begins, lengths, first = self._split(texts[begin:end])
            firsts.append(first + batch.size)
            self._lexicon.look_up(data, begins, lengths, batch)
        ids, counts = self._lexicon.tokens(batch)
        if not texts:
            return ids, counts
        return ids, np.add.reduceat(counts, np.concatenate(firsts))

    def _split(
        self, texts: list[bytes]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The words of texts.

        Returns:
            data: uint8: the texts' bytes, and padding.
            begins: int64, shape (words,), in bytes.
            lengths: int64, shape (words,), in bytes.
            first: int64, shape (texts,): each text's first word.
        """
        padded = _SEPARATOR.join([b"", *texts, bytes(PADDING)])
        buffer = padded[: len(padded) - PADDING]
        data = np.frombuffer(padded, np.uint8)
        starts = self._starts(data[: len(buffer)], buffer)
        separators = np.cumsum([0] + [len(text) + 1 for text in texts])
        starts[separators] = False
        begins = np.flatnonzero(starts[:-1])
        lengths = np.empty_like(begins)
        np.subtract(begins[1:], begins[:-1], out=lengths[:-1])
        lengths[-1:] = separators[-1] - begins[-1:]
        first = np.searchsorted(begins, separators[:-1] + 1)
        lengths[first[1:] - 1] -= 1  # the separator after each text's last word
        return data, begins, lengths, first


def interleave(mask: NDArray[np.bool_], where: FlatLists, elsewhere: FlatLists) -> FlatLists:
    """Put two runs of (ids, lengths) back in order: the next list of `where` for each True of `mask`."""
    lengths = np.empty(len(mask), np.int64)
    lengths[mask], lengths[~mask] = where[1], elsewhere[1]
    of_where = np.repeat(mask, lengths)
    ids = np.empty(len(of_where), np.int32)
    ids[of_where], ids[~of_where] = where[0], elsewhere[0]
    return ids, lengths


def version() -> str:
    """Of this engine: that of nanoset."""
    return installed_version("nanoset-platform")


class _Starts(Protocol):
    """Finds where words begin, in bytes that are also an array."""

    def __call__(self, data: NDArray[np.uint8], buffer: bytes, *, looks_for_runs: bool = True) -> NDArray[np.bool_]: ...


def _splitter(rules: Rules, classes: NDArray[np.uint8]) -> _Starts:
    if isinstance(rules.split, SpaceSigns):
        pairs = PairSplitter(
            rules.vocabulary, rules.split, {ord(c): max(runs) for c, runs in rules.literal_runs.items()}
        )
        return lambda data, buffer, *, looks_for_runs=True: pairs.starts(data)
    pattern, classifier, longest = rules.split, ByteClassifier(classes), max(rules.space_runs, default=0)

    def starts(data: NDArray[np.uint8], buffer: bytes, *, looks_for_runs: bool = True) -> NDArray[np.bool_]:
        return piece_starts(data, classifier.classify(buffer), pattern, longest if looks_for_runs else 0)

    return starts


def _seed(rules: Rules, merger: Merger, lexicon: Lexicon) -> None:
    """Teach the added tokens of runs of one character and the words of the vocabulary."""
    for character, runs in {" ": rules.space_runs, **rules.literal_runs}.items():
        lengths = np.array(sorted(runs), np.int64)
        text = np.full(lengths.sum() + PADDING, ord(character), np.uint8)
        tokens = np.array([runs[length] for length in sorted(runs)], np.int32)
        lexicon.teach(text, np.cumsum(lengths) - lengths, lengths, tokens)
    words = rules.vocabulary
    data = np.append(words.data, np.zeros(PADDING, np.uint8))
    begins = np.cumsum(words.lengths) - words.lengths
    if rules.whole_words:
        lexicon.teach(data, begins, words.lengths, words.ids)
    else:
        lexicon.learn(data, begins, words.lengths, merger.merge_words)

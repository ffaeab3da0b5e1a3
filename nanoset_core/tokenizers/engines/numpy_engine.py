"""The `numpy` engine: BPE as array operations, with the ids of the `tokenizers` library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias
from unicodedata import is_normalized

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, FlatLists, Ints
from nanoset_core.tokenizers.engines.characters import CharacterMerger, PairSplitter
from nanoset_core.tokenizers.engines.classes import SPACE_BYTE, ByteClassifier
from nanoset_core.tokenizers.engines.merges import ByteMerger, PairRanks
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.pretoken_cache import PADDING, Batch, PretokenCache
from nanoset_core.tokenizers.engines.reference import Encoded, ReferenceEngine, not_unicode, slices
from nanoset_core.tokenizers.engines.rules import Rules
from nanoset_core.tokenizers.engines.splits import piece_starts
from nanoset_core.tokenizers.engines.units import UNIT_BYTES, FallbackText, cut, partition_units
from nanoset_core.tokenizers.knowledge import Knowledge, installed_version

BATCH_BYTES = 4 << 20
"""Text whose unknown words are encoded together."""
_FEW = 0.75
"""Words per byte of width below which the reference is faster: merging takes rounds, whatever the
number of words.
"""
_SEPARATOR = b"\xff"

Unit: TypeAlias = tuple[bytes, int, bool]
"""UTF-8 of a piece of a document, the document's number, whether the piece is for the reference."""
FindStarts: TypeAlias = Callable[[Bytes, bytes, bool], Bools]
"""(bytes as an array, the same bytes, whether added tokens of spaces are looked for) → where words
begin.
"""


class NumpyEngine:
    """Encodes by rules read from a `tokenizer.json`, and with the reference the little text that
    they don't cover.

    It may be called from several threads, one of which works at a time.
    """

    name, package = "numpy", "nanoset-platform"
    helper = ""

    def __init__(
        self, rules: Rules, reference: ReferenceEngine, *, words: Knowledge | None = None
    ) -> None:
        """Prepare the tables; `words`: where the tokens of words are kept between runs."""
        self.reason = (
            f"{rules.described} recognised, same tokens as the tokenizers library on test texts"
        )
        self.version = installed_version(self.package)
        self.reference = reference
        self._context_spans = rules.context_spans
        self._form, self._leaves_documents = rules.form, rules.leaves_documents
        tokens = [token.encode() for token in rules.added_tokens]
        self._fallback_text = FallbackText(tokens, rules.forbidden_bytes, rules.context_spans)
        self._signs = rules.split if isinstance(rules.split, SpaceSigns) else None
        self._starts = _splitter(rules)
        vocabulary, ranks = rules.vocabulary, PairRanks(*rules.vocabulary.merges.T)
        merger = (
            CharacterMerger(vocabulary, ranks)
            if self._signs
            else ByteMerger(vocabulary.byte_tokens, ranks)
        )
        by_reference = reference.encode_pieces if self._signs else reference.encode_words

        def encode(words: Bytes) -> FlatLists:
            if len(words) < _FEW * words.shape[1]:
                return by_reference([word.tobytes().rstrip(b"\0") for word in words])
            return merger.merge_words(words)

        self._pretokens = PretokenCache(
            encode,
            by_reference,
            partial(_seed, rules, merger),
            words or Knowledge("words", "", None),
        )
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; raises as `Engine.encode`."""
        with self._lock:
            lengths = np.zeros(len(texts), np.int64)
            parts = [np.empty(0, np.int32)]
            for units in self._units(texts):
                ids, counts = self._encode_units(units)
                np.add.at(
                    lengths, np.array([document for _, document, _ in units], np.int64), counts
                )
                parts.append(ids)
            return Encoded(np.concatenate(parts), lengths.astype(np.int32))

    def splits_as(self, reference: ReferenceEngine, texts: Sequence[str]) -> bool:
        """Tell whether texts are cut into pre-tokens as the library does, where there is a split
        pattern.
        """
        return self._signs is not None or all(
            self.piece_begins(text) == [begin for _, (begin, _) in reference.split(text)]
            for text in texts
            if text.encode() not in self._context_spans
        )

    def piece_begins(self, text: str) -> list[int]:
        """Return where the pre-tokens of a text begin, in characters; added tokens are not looked
        for.
        """
        buffer = _SEPARATOR + text.encode() + _SEPARATOR
        data = np.frombuffer(buffer, np.uint8)
        is_character = (data & 0xC0) != 0x80
        return np.flatnonzero(self._starts(data, buffer, False)[1:-2][is_character[1:-1]]).tolist()

    def _units(self, texts: Sequence[str]) -> Iterator[list[Unit]]:
        """Yield the units of all documents in order, about BATCH_BYTES at a time; none is empty."""
        units: list[Unit] = []
        size = 0
        for begin, end in slices(texts, UNIT_BYTES):
            try:
                encoded = [text.encode() for text in texts[begin:end]]
            except UnicodeEncodeError as error:
                raise not_unicode(texts) from error
            some = _SEPARATOR.join(encoded) in self._fallback_text
            for document, data in enumerate(encoded, begin):
                for piece, is_fallback in self._partition(
                    texts[document], data, some and data in self._fallback_text
                ):
                    if piece:
                        units.append((piece, document, is_fallback))
                        size += len(piece)
                    if size >= BATCH_BYTES:
                        yield units
                        units, size = [], 0
        yield units

    def _partition(self, text: str, data: bytes, is_mixed: bool) -> Iterator[tuple[bytes, bool]]:
        """Yield (piece, whether it is for the reference) of a document; `data`: its UTF-8,
        `is_mixed`: some is.
        """
        if self._form and not text.isascii() and not is_normalized(self._form, text):
            # By units, within which alone characters compose: the library takes some 40 bytes for
            # each of a text.
            units = (piece.decode() for piece in cut(data, UNIT_BYTES))
            normal = b"".join(self.reference.normalise(piece).encode() for piece in units)
            if is_mixed or normal in self._fallback_text:
                # an added token may lie across a cut, or come and go, once the text is normalised
                yield data, True
                return
            data = normal
        if not is_mixed:
            prepared = data if self._signs is None else self._signs.prepared(data)
            yield from ((piece, False) for piece in cut(prepared, UNIT_BYTES))
        elif self._leaves_documents:
            yield data, True
        else:
            for piece, is_fallback in partition_units(data, self._fallback_text):
                yield (
                    piece if is_fallback or self._signs is None else self._signs.prepared(piece),
                    is_fallback,
                )

    def _encode_units(self, units: list[Unit]) -> FlatLists:
        encoded = self._encode_pure([text for text, _, is_fallback in units if not is_fallback])
        texts = [text.decode() for text, _, is_fallback in units if is_fallback]
        if not texts:
            return encoded
        asked = self.reference.encode(texts)
        return interleave(np.array([is_fallback for *_, is_fallback in units]), asked, encoded)

    def _encode_pure(self, texts: list[bytes]) -> FlatLists:
        """Encode units without anything for the reference."""
        batch = Batch()
        firsts = [np.zeros(0, np.int64)]  # first word of each unit
        for begin, end in slices(texts, UNIT_BYTES):
            data, begins, lengths, first = self._split(texts[begin:end])
            firsts.append(first + batch.size)
            self._pretokens.look_up(data, begins, lengths, batch)
        ids, counts = self._pretokens.tokens(batch)
        if not texts:
            return ids, counts
        return ids, np.add.reduceat(counts, np.concatenate(firsts))

    def _split(self, texts: list[bytes]) -> tuple[Bytes, Ints, Ints, Ints]:
        """Cut texts into words → (their bytes, and padding; begins and lengths of words; each
        text's first word).
        """
        padded = _SEPARATOR.join([b"", *texts, bytes(PADDING)])
        buffer = padded[: len(padded) - PADDING]
        data = np.frombuffer(padded, np.uint8)
        starts = self._starts(data[: len(buffer)], buffer, True)
        separators = np.cumsum([0] + [len(text) + 1 for text in texts])
        starts[separators] = False
        begins = np.flatnonzero(starts[:-1])
        lengths = np.empty_like(begins)
        np.subtract(begins[1:], begins[:-1], out=lengths[:-1])
        lengths[-1:] = separators[-1] - begins[-1:]
        first = np.searchsorted(begins, separators[:-1] + 1)
        lengths[first[1:] - 1] -= 1  # the separator after each text's last word
        return data, begins, lengths, first


def interleave(mask: Bools, where: FlatLists, elsewhere: FlatLists) -> Encoded:
    """Put two runs of lists back in order: the next list of `where` for each True of `mask`."""
    lengths = np.empty(len(mask), np.int32)
    lengths[mask], lengths[~mask] = where[1], elsewhere[1]
    of_where = np.repeat(mask, lengths)
    ids = np.empty(len(of_where), np.int32)
    ids[of_where], ids[~of_where] = where[0], elsewhere[0]
    return Encoded(ids, lengths)


def _splitter(rules: Rules) -> FindStarts:
    longest = {ord(character): max(runs) for character, runs in rules.runs.items()}
    if isinstance(rules.split, SpaceSigns):
        pairs = PairSplitter(rules.vocabulary, rules.split, longest)
        return lambda data, buffer, runs: pairs.starts(data)
    pattern, classifier, spaces = (
        rules.split,
        ByteClassifier(rules.classes),
        longest.get(SPACE_BYTE, 0),
    )
    return lambda data, buffer, runs: piece_starts(
        data, *classifier.classify(buffer), pattern, spaces if runs else 0
    )


def _seed(rules: Rules, merger: CharacterMerger | ByteMerger, pretokens: PretokenCache) -> None:
    """Teach the added tokens of runs of one character and the words of the vocabulary."""
    for character, runs in rules.runs.items():
        lengths = np.array(sorted(runs), np.int64)
        text = np.full(lengths.sum() + PADDING, ord(character), np.uint8)
        tokens = np.array([runs[length] for length in sorted(runs)], np.int32)
        pretokens.learn_tokens(text, np.cumsum(lengths) - lengths, lengths, tokens)
    words = rules.vocabulary
    data = np.append(words.data, np.zeros(PADDING, np.uint8))
    begins = np.cumsum(words.lengths) - words.lengths
    if rules.whole_words:
        pretokens.learn_tokens(data, begins, words.lengths, words.ids)
    else:
        pretokens.learn(data, begins, words.lengths, merger.merge_words)

"""The dataset of packs: pieces of documents in sequences of one length.

It answers where the tokens of a pack come from. For example, the tokens 0 to 499 of pack 7 are the
first 500 tokens of document 31.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.packing.assignment import document_lengths
from nanoset_core.sampling.packing.pieces import FilledPacks
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece, DocumentTokens
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceRows, open_pieces
from nanoset_core.stages.packs.writing import PackingRules, lay_out, plan_counts
from nanoset_core.stages.stage import Stage
from nanoset_core.stages.views.stage import VIEW


class PacksDataset(Dataset):
    """The dataset of packs, whose table of pieces says which tokens are in each pack.

    Packs are sequences of one length that are filled with documents of a corpus, or of a view of
    it. Packs that are planned but not built yet have no files. What they will contain of the corpus
    is computed from the plan.
    """

    kind = "packs"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self._source_name, self.corpus_name)

    @property
    def _source_name(self) -> str:
        """Name of the corpus or view whose documents were packed."""
        return str(self.manifest.facts["of"])

    @cached_property
    def source(self) -> Dataset:
        stage: Stage = VIEW  # what makes views, which are selections of a corpus's documents
        if self._source_name == self.corpus_name:
            stage = DATASET
        digest = self.manifest.recipe["parents"]["dataset"]
        message = "the dataset that was packed was deleted"
        manifest = self.outputs.version(stage.layout.folder, self._source_name, digest, message)
        return self._datasets.open(manifest)

    @property
    def unpacked(self) -> Dataset:
        return self.source

    @property
    def holds_tokens_once(self) -> bool:
        return False  # packs may truncate documents, and a view of repeated documents may be packed

    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.source.corpus_documents(documents)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        return self.source.copies_of(document)

    def documents_in(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        for pieces in self._pieces_between(start, stop):
            yield self.corpus_documents(pieces.documents)

    def corpus_tokens(self, rows: tuple[int, int], documents: range) -> Iterator[DocumentTokens]:
        for pieces in self._pieces_between(*rows):
            numbers = self.corpus_documents(pieces.documents)
            is_within = (numbers >= documents.start) & (numbers < documents.stop)
            yield DocumentTokens(numbers[is_within], pieces.token_counts[is_within])

    def _pieces_between(self, start: int, stop: int) -> Iterator[_Pieces]:
        """Yield the documents in some packs, which are samples of one length filled with documents.

        A long document is cut into pieces, which are in several packs. For example:

            pack          7           7            8
            document      3           8            8
            its tokens    100         400          500

        Args:
            start: Number of the first pack.
            stop: Number after the last pack.

        Yields:
            Documents and numbers of tokens, such as [3, 8, 8] and [100, 400, 500], some at a time.
        """
        # Built packs have a table of their pieces. Packs that were only planned have no files, so
        # the pieces are computed again.
        is_built = PIECES_FILE in self.manifest.files
        if is_built:
            for rows in open_pieces(self.manifest).between(start, stop):  # some rows at a time
                yield _Pieces(rows.documents, rows.tokens)
        else:
            yield from self._planned_pieces_between(start, stop)

    def _planned_pieces_between(self, start: int, stop: int) -> Iterator[_Pieces]:
        """Yield the pieces of documents that some packs will have, when these packs are built.

        Packs are samples of one length that are filled with documents. Which documents each pack
        gets is computed in batches of packs. This yields those of the packs from `start` (such as
        150) on.

        Args:
            start: Number of the first pack.
            stop: Number after the last pack.
        """
        first_pack = 0
        for batch in self._planned_packs():  # packs 0 to 99, 100 to 199, …
            stop_pack = first_pack + batch.n_packs

            # Which packs of the batch are requested? Of 100 to 199, those from 150 on.
            first_requested = max(start, first_pack)  # 150
            stop_requested = min(stop, stop_pack)  # 200
            if first_requested < stop_requested:
                # The batch counts its packs from 0.
                packs = batch.slice(first_requested - first_pack, stop_requested - first_pack)
                yield _Pieces(packs.pieces.documents, packs.pieces.lengths)
            first_pack = stop_pack

    def _planned_packs(self) -> Iterator[FilledPacks]:
        """Yield all packs as they will be when they are built, some packs at a time."""
        rules = PackingRules.of(self.manifest.recipe["options"])
        index = self.source.index
        lengths = document_lengths(index.sequence_lengths, index.document_indices)
        return lay_out(lengths, plan_counts(lengths, rules).plan, rules)

    def documents_within(
        self, documents: NDArray[np.int64], start: int, stop: int
    ) -> NDArray[np.int64]:
        if len(documents) == 0:
            return documents  # the table, which may have to be downloaded, is not needed
        rows = open_pieces(self.manifest).of_documents(documents)  # of all packs with the documents
        is_within = (rows.packs >= start) & (rows.packs < stop)
        return documents[np.isin(documents, rows.documents[is_within])]

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        rows = open_pieces(self.manifest).of_documents(np.array([document]))
        return _document_pieces(rows)

    def pieces_in(self, spans: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        """Return which documents some tokens of packs come from.

        Packs are samples of one length that are filled with pieces of documents. For example, pack
        7 has two pieces, and there are two spans of its tokens:

            tokens of pack 7     0 to 99       100 to 499
            piece of             document 3    document 8

            tokens 50 to 119 (span 0)      have both pieces
            tokens 300 to 399 (span 1)     have only the piece of document 8

        Args:
            spans: Spans of tokens, such as [[7, 50, 120], [7, 300, 400]]: the number of the pack,
                and the positions of the first token and after the last one in it; int64, shape
                (n_spans, 3).

        Returns:
            The pieces of each span.
        """
        pack_of_span, span_starts, span_stops = spans.T  # (n_spans,) each

        # Pair each span with all pieces of its pack. A table lists the pieces of each pack.
        table_rows = open_pieces(self.manifest).of_packs(pack_of_span)
        pairs = _pair_with_pieces(pack_of_span, table_rows)
        span_of_pair = pairs.indices  # (n_pairs,) [0, 0, 1, 1] in the example

        # Keep the pairs in which the piece has tokens in the span.
        has_common_tokens = _overlap(
            pairs.pieces.begins,
            pairs.pieces.stops,
            span_starts[span_of_pair],
            span_stops[span_of_pair],
        )
        pairs = pairs.select(has_common_tokens)  # their spans are [0, 0, 1]

        # List the pieces of these pairs by span.
        pieces_by_span: list[list[DocumentPiece]] = [[] for _ in spans]
        pieces = _document_pieces(pairs.pieces)
        for span, piece in zip(pairs.indices.tolist(), pieces, strict=True):
            pieces_by_span[span].append(piece)
        return pieces_by_span

    def padding(self) -> NDArray[np.int64]:
        facts = self.manifest.facts
        n_packs = int(facts["packs"])
        if not facts["padding"]:
            return np.zeros(n_packs, np.int64)
        tokens_by_pack = open_pieces(self.manifest).tokens_by_pack(n_packs)
        return int(facts["length"]) - tokens_by_pack


class _Pieces(NamedTuple):
    """Some pieces of documents in packs."""

    documents: NDArray[np.int64]
    """Number of each piece's document in the dataset that was packed, shape (n_pieces,)."""
    token_counts: NDArray[np.int64]
    """How many tokens each piece has, shape (n_pieces,)."""


class _PackPairs(NamedTuple):
    """Pairs of a requested pack and a piece of a document that is in this pack."""

    indices: NDArray[np.int64]
    """Index of each pair's pack among the requested packs, shape (n_pairs,)."""
    pieces: PieceRows
    """The piece of each pair, a row of the table of pieces."""

    def select(self, mask: NDArray[np.bool_]) -> _PackPairs:
        """Return some of the pairs.

        Args:
            mask: Which ones, shape (n_pairs,), such as [True, False, True].
        """
        return _PackPairs(self.indices[mask], self.pieces.select(mask))


def _pair_with_pieces(packs: NDArray[np.int64], table_rows: PieceRows) -> _PackPairs:
    """Pair each requested pack with all pieces of documents that it has.

    Packs are samples of one length that are filled with pieces of documents. For example, if the
    packs 5 and 2 are requested, the table with their pieces is

        row      0    1    2
        pack     2    5    5        pairs: pack 5 with the rows 1 and 2, pack 2 with row 0

    Args:
        packs: Numbers of the packs, such as [5, 2], shape (n_packs,); one may occur several times.
        table_rows: Rows of the table of pieces, sorted by pack.
    """
    # The rows are sorted by pack, so the pieces of a pack are consecutive rows.
    first_rows = np.searchsorted(table_rows.packs, packs, side="left")  # (n_packs,) [1, 0]
    stop_rows = np.searchsorted(table_rows.packs, packs, side="right")  # [3, 1]
    pieces_per_pack = stop_rows - first_rows  # [2, 1]

    # List these rows, and repeat the index of each pack for each of its pieces.
    rows = positions_in(first_rows, pieces_per_pack)  # (n_pairs,) [1, 2, 0]
    indices = np.repeat(np.arange(len(packs)), pieces_per_pack)  # (n_pairs,) [0, 0, 1]
    return _PackPairs(indices, table_rows.select(rows))


def _overlap(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    other_starts: NDArray[np.int64],
    other_stops: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """For pairs of ranges [start, stop), return whether both have a number in common.

        0 to 100      and    50 to 120      True
        0 to 100      and    100 to 500     False: the stop is not included

    Args:
        starts: Start of one range of each pair, shape (n_pairs,).
        stops: Stop of this range, shape (n_pairs,).
        other_starts: Start of the other range, shape (n_pairs,).
        other_stops: Stop of the other range, shape (n_pairs,).
    """
    return (starts < other_stops) & (other_starts < stops)


def _document_pieces(rows: PieceRows) -> list[DocumentPiece]:
    """Return the rows of the table of pieces as pieces of documents, in the same order."""
    # In the order of the fields of DocumentPiece.
    columns = [rows.packs, rows.begins, rows.stops, rows.firsts, rows.documents]
    return [DocumentPiece(*row) for row in np.stack(columns, axis=1).tolist()]

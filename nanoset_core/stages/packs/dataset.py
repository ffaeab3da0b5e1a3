"""The dataset of packs: pieces of documents in sequences of one length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.packing.assignment import document_lengths
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece, DocumentTokens
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.make import PackingRules, lay_out, plan_counts
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceRows, open_pieces
from nanoset_core.stages.views.stage import VIEW


class PacksDataset(Dataset):
    """The dataset of packs, whose table of pieces says which tokens are in each pack.

    Packs that are planned but not built yet have no files. What they will contain of the corpus is
    computed from the plan.
    """

    kind = "packs"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, str(self.manifest.facts["of"]), self.corpus_name)

    @cached_property
    def source(self) -> Dataset:
        name = self.manifest.facts["of"]
        digest = self.manifest.recipe["parents"]["dataset"]
        stage = DATASET if name == self.corpus_name else VIEW
        what = "the dataset that was packed was deleted"
        manifest = self.outputs.version(stage.layout.folder, name, digest, what)
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
        for pieces in self._piece_tokens(start, stop):
            yield self.corpus_documents(pieces.documents)

    def corpus_tokens(self, rows: tuple[int, int], documents: range) -> Iterator[DocumentTokens]:
        for pieces in self._piece_tokens(*rows):
            numbers = self.corpus_documents(pieces.documents)
            is_within = (numbers >= documents.start) & (numbers < documents.stop)
            yield DocumentTokens(numbers[is_within], pieces.tokens[is_within])

    def _piece_tokens(self, start: int, stop: int) -> Iterator[DocumentTokens]:
        """Yield the pieces of documents in consecutive packs, some pieces at a time.

        Args:
            start: Number of the first pack.
            stop: Number after the last pack.

        Yields:
            The document of each piece, numbered as in the dataset that was packed, and its tokens.
        """
        if PIECES_FILE in self.manifest.files:
            for rows in open_pieces(self.manifest).between(start, stop):
                yield DocumentTokens(rows.documents, rows.tokens)
            return

        # The packs are not built yet: lay them out as they will be.
        rules = PackingRules.of(self.manifest.recipe["options"])
        index = self.source.index
        lengths = document_lengths(index.sequence_lengths, index.document_indices)
        _, plan = plan_counts(lengths, rules)
        first_pack = 0  # number of the first of `packs`
        for packs in lay_out(lengths, plan, rules):
            # Take those of these packs that are in [start, stop). `packs` counts them from 0.
            n_packs = len(packs.bounds) - 1
            start_in_packs = min(max(start - first_pack, 0), n_packs)
            stop_in_packs = min(max(stop - first_pack, start_in_packs), n_packs)
            pieces = packs.slice(start_in_packs, stop_in_packs).pieces
            yield DocumentTokens(pieces.documents, pieces.lengths)
            first_pack += n_packs

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        rows = open_pieces(self.manifest).of_documents(np.array([document]))
        return _document_pieces(rows)

    def pieces_in(self, spans: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        """Return which pieces of documents have tokens in given spans of packs.

        Args:
            spans: Spans of tokens, int64, shape (n_spans, 3). The columns are the number of the
                pack, and the positions of the first token and after the last one in it.
        """
        packs, span_starts, span_stops = spans.T  # (n_spans,) each
        rows = open_pieces(self.manifest).of_packs(packs)

        # Pair each span with all pieces of its pack; the rows are sorted by pack.
        first_rows = np.searchsorted(rows.packs, packs, side="left")  # (n_spans,)
        stop_rows = np.searchsorted(rows.packs, packs, side="right")
        n_pieces = stop_rows - first_rows
        span_numbers = np.repeat(np.arange(len(spans)), n_pieces)  # (n_pairs,)
        pieces = rows.select(positions_in(first_rows, n_pieces))  # (n_pairs,)

        # Keep the pieces that have tokens in the span.
        starts_before_stop = pieces.begins < span_stops[span_numbers]
        stops_after_start = pieces.begins + pieces.tokens > span_starts[span_numbers]
        has_tokens = starts_before_stop & stops_after_start
        span_numbers = span_numbers[has_tokens]
        document_pieces = _document_pieces(pieces.select(has_tokens))

        # List them by span.
        pieces_by_span: list[list[DocumentPiece]] = [[] for _ in spans]
        for number, piece in zip(span_numbers.tolist(), document_pieces, strict=True):
            pieces_by_span[number].append(piece)
        return pieces_by_span

    def padding(self) -> NDArray[np.int64]:
        facts = self.manifest.facts
        n_packs = int(facts["packs"])
        if not facts["padding"]:
            return np.zeros(n_packs, np.int64)
        tokens_by_pack = open_pieces(self.manifest).tokens_by_pack(n_packs)
        return int(facts["length"]) - tokens_by_pack


def _document_pieces(rows: PieceRows) -> list[DocumentPiece]:
    """Return the rows of the table of pieces as pieces of documents."""
    stops = rows.begins + rows.tokens
    # In the order of the fields of DocumentPiece.
    columns = [rows.packs, rows.begins, stops, rows.firsts, rows.documents]
    return [DocumentPiece(*row) for row in np.stack(columns, axis=1).tolist()]

"""The dataset of packs: pieces of documents in sequences of one length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.packing.assignment import assign, carry_room, document_lengths
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece, DocumentTokens
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.make import PackingRules, plan_counts
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceRows, open_pieces
from nanoset_core.stages.views.stage import VIEW


class PacksDataset(Dataset):
    """The dataset of packs. Its table of pieces tells which tokens of which document are in each
    pack.

    Packs that are planned and not built yet have no files. What they will hold of the corpus is
    known all the same.
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
        gone = "the dataset that was packed was deleted"
        return self._datasets.open(self.outputs.version(stage.layout.folder, name, digest, gone))

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
        """Yield the pieces in packs [start, stop), with the documents numbered in the dataset that
        was packed.
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
        windows = assign(lengths, rules.pieces, plan, rules.seed)
        if rules.tail == "carry":
            windows = carry_room(windows, rules.pieces.length)
        first_pack = 0
        for window in windows:
            n_packs = len(window.bounds) - 1
            low = min(max(start - first_pack, 0), n_packs)
            high = min(max(stop - first_pack, low), n_packs)
            pieces = window.slice(low, high)
            yield DocumentTokens(pieces.documents, pieces.lengths)
            first_pack += n_packs

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        rows = open_pieces(self.manifest).of_documents(np.array([document]))
        return _document_pieces(rows)

    def pieces_in(self, spans: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        packs = spans[:, 0]
        rows = open_pieces(self.manifest).of_packs(packs)

        # Pair each span with all pieces of its pack; the rows are sorted by pack.
        starts = np.searchsorted(rows.packs, packs, side="left")
        stops = np.searchsorted(rows.packs, packs, side="right")
        span_numbers = np.repeat(np.arange(len(spans)), stops - starts)  # (n_pairs,)
        pieces = rows.select(positions_in(starts, stops - starts))

        # Keep the pieces that have tokens in the span.
        begins_before = pieces.begins < spans[span_numbers, 2]
        ends_after = pieces.begins + pieces.tokens > spans[span_numbers, 1]
        has_tokens = begins_before & ends_after
        pieces_by_span: list[list[DocumentPiece]] = [[] for _ in spans]
        kept_pieces = _document_pieces(pieces.select(has_tokens))
        for number, piece in zip(span_numbers[has_tokens].tolist(), kept_pieces, strict=True):
            pieces_by_span[number].append(piece)
        return pieces_by_span

    def padding(self) -> NDArray[np.int64]:
        facts = self.manifest.facts
        n_packs = int(facts["packs"])
        if not facts["padding"]:
            return np.zeros(n_packs, np.int64)
        return int(facts["length"]) - open_pieces(self.manifest).tokens_by_pack(n_packs)


def _document_pieces(rows: PieceRows) -> list[DocumentPiece]:
    """Return the rows of the table of pieces as pieces of documents."""
    columns = (rows.packs, rows.begins, rows.begins + rows.tokens, rows.firsts, rows.documents)
    return [DocumentPiece(*row) for row in np.stack(columns, axis=1).tolist()]

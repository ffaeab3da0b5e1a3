"""Packs of datasets with documents of several sequences, and without tokens: a .bin, a .idx and a
table of pieces.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.packs import write_packs, write_view
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.sampling.packing import assignment
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.stages.packs import make as writing
from nanoset_core.stages.packs import pieces as table_module
from nanoset_core.stages.packs.make import PackingRules

PAD = 65_535


def write_dataset(prefix: Path, seed: int) -> list[np.ndarray]:
    """Documents of none to four sequences, some of these empty; → the tokens of each."""
    generator, documents = np.random.default_rng(seed), []
    with MMapIndexedDatasetBuilder(prefix, dtype=np.uint16) as builder:
        for _ in range(150):
            lengths = generator.integers(0, generator.integers(1, 90), generator.integers(0, 5))
            tokens = [generator.integers(0, 60_000, length) for length in lengths.tolist()]
            builder.add_document(np.concatenate([*tokens, np.empty(0, np.int64)]), lengths.tolist())
            documents.append(np.concatenate([*tokens, np.empty(0, np.int64)]))
    return documents


class Piece(NamedTuple):
    """A row of the table of pieces."""

    pack: int
    start: int
    """Its first token in the pack."""
    document: int
    first: int
    """Its first token in the document."""
    n_tokens: int


class Packed(NamedTuple):
    """A dataset and its packs."""

    documents: list[np.ndarray]
    """Tokens of each document of the dataset."""
    kept: list[np.ndarray]
    """What packs hold of each document: its first 64 tokens if long documents are truncated."""
    packs: Any
    table: Any
    counts: Any
    pieces: list[Piece]


@pytest.fixture(params=["pad", "carry"])
def tail(request):
    return request.param


@pytest.fixture(params=["fragment", "truncate"])
def long(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["corpus", "view"])
def packed(request, tail, long, tmp_path, monkeypatch):
    """A corpus or a view, packed into sequences of 64 tokens."""
    monkeypatch.setattr(assignment, "_STRATUM_PIECES", 40)
    source = tmp_path / "all"
    documents = write_dataset(source, 3)
    if request.param:
        chosen = np.random.default_rng(8).integers(0, len(documents), 200)
        source = tmp_path / "view"
        write_view(tmp_path / "all", source, chosen[:90], chosen[90:])
        documents = [documents[number] for number in chosen]

    rules = PackingRules(PieceRule(64, long), tail, PAD, 5)
    packs, table, writer = write_packs(source, tmp_path / "packs", rules)

    kept = [document[:64] if long == "truncate" else document for document in documents]
    rows = np.stack(table.of_packs(np.arange(writer.counts.packs)), axis=1)
    pieces = [Piece(*row) for row in rows.tolist()]
    return Packed(documents, kept, packs, table, writer.counts, pieces)


def test_every_document_is_in_its_packs(packed):
    found = {number: [] for number, document in enumerate(packed.documents) if len(document)}
    for piece in sorted(packed.pieces, key=lambda piece: (piece.document, piece.first)):
        tokens = packed.packs[piece.pack][piece.start : piece.start + piece.n_tokens]
        document = packed.documents[piece.document]
        assert np.array_equal(tokens, document[piece.first : piece.first + piece.n_tokens])
        found[piece.document].append(tokens)

    expected = {number: kept for number, kept in enumerate(packed.kept) if len(kept)}
    assert found.keys() == expected.keys()
    for number, parts in found.items():
        assert np.array_equal(np.concatenate(parts), expected[number]), number


def test_packs_have_one_length_and_the_rest_is_padding(packed, tail):
    packs, counts = packed.packs, packed.counts
    n_kept = sum(map(len, packed.kept))
    is_padding = np.concatenate(packs[:]) == PAD

    assert len(packs) == counts.packs == len(packs.document_indices) - 1
    assert set(packs.sequence_lengths.tolist()) == {64}
    assert counts.padding == counts.packs * 64 - n_kept == np.count_nonzero(is_padding)
    assert tail == "pad" or not is_padding[:-64].any()


def test_what_packing_cuts_and_drops_is_counted(packed):
    counts = packed.counts
    n_kept = sum(map(len, packed.kept))
    pieces_of = Counter(piece.document for piece in packed.pieces)
    cut = [
        number
        for number, n_pieces in pieces_of.items()
        if n_pieces > 1 or len(packed.kept[number]) < len(packed.documents[number])
    ]
    first_pack = {piece.document: piece.pack for piece in packed.pieces if not piece.first}
    elsewhere = [piece for piece in packed.pieces if piece.pack != first_pack[piece.document]]

    assert counts.pieces == len(packed.pieces)
    assert counts.documents == len(pieces_of)
    assert counts.dropped_tokens == sum(map(len, packed.documents)) - n_kept
    assert counts.cut_documents == len(cut)
    assert counts.cut_tokens == sum(piece.n_tokens for piece in elsewhere)


def test_pieces_are_found_by_document_and_by_pack(packed):
    numbers = np.array([2, 60, 149])
    rows = np.stack(packed.table.of_documents(numbers), axis=1)
    by_document = [Piece(*row) for row in rows.tolist()]
    assert by_document == [piece for piece in packed.pieces if piece.document in numbers]

    documents = np.concatenate([rows.documents for rows in packed.table.between(3, 6)])
    by_pack = [piece.document for piece in packed.pieces if 3 <= piece.pack < 6]
    assert documents.tolist() == by_pack


def test_the_same_bytes_whatever_is_written_together(tmp_path, monkeypatch):
    write_dataset(tmp_path / "all", 4)
    made = []
    for number, (window, chunk) in enumerate([(1 << 20, 1 << 16), (64, 10), (200, 1)]):
        monkeypatch.setattr(writing, "_WINDOW_TOKENS", window)
        monkeypatch.setattr(writing, "CHUNK_TOKENS", chunk)
        rules = PackingRules(PieceRule(32), "pad", PAD, 1)
        _, table, _ = write_packs(tmp_path / "all", tmp_path / f"packs-{number}", rules)
        made.append(((tmp_path / f"packs-{number}.bin").read_bytes(), table.sha256()))
    assert made[0] == made[1] == made[2]


def test_only_groups_with_what_is_asked_for_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "_ROWS_PER_GROUP", 8)
    write_dataset(tmp_path / "all", 4)
    packs, table, _ = write_packs(
        tmp_path / "all", tmp_path / "packs", PackingRules(PieceRule(64), "pad", PAD, 1)
    )
    all_rows = np.stack(table.of_packs(np.arange(len(packs))), axis=1)
    groups_read = []
    read_group = RowGroups.read

    def record(groups, group, columns=None):
        groups_read.append(group)
        return read_group(groups, group, columns)

    monkeypatch.setattr(RowGroups, "read", record)
    first_and_last = np.array([0, len(packs) - 1])
    rows = np.stack(table.of_packs(first_and_last), axis=1)

    assert rows.tolist() == all_rows[np.isin(all_rows[:, 0], first_and_last)].tolist()
    assert len(groups_read) < 8 < len(all_rows) / 8


def test_nothing_to_pack(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "none", dtype=np.int32) as builder:
        builder.add_document(np.empty(0, np.int32), [])
    packs, table, writer = write_packs(
        tmp_path / "none", tmp_path / "packs", PackingRules(PieceRule(8), "carry", 0, 1)
    )
    assert (len(packs), writer.counts.documents, len(table.of_packs(np.arange(9)).packs)) == (
        0,
        0,
        0,
    )

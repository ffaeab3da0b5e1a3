"""Packs of datasets with any documents: their .bin and .idx, their counts and the table of pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.packs import Piece, as_pieces, read_pieces, write_packs, write_view
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.sampling.packing import assignment
from nanoset_core.sampling.packing.plan import PieceRule
from nanoset_core.stages.packs import pieces as table_module
from nanoset_core.stages.packs import writing
from nanoset_core.stages.packs.writing import PackingRules

PAD = 65_535


def write_dataset(prefix: Path, seed: int) -> list[np.ndarray]:
    """Write documents of up to four sequences, some of these empty; return the tokens of each."""
    generator = np.random.default_rng(seed)
    documents: list[np.ndarray] = []
    with MMapIndexedDatasetBuilder(prefix, dtype=np.uint16) as builder:
        for _ in range(150):
            max_length = generator.integers(1, 90)
            n_sequences = generator.integers(0, 5)
            lengths = generator.integers(0, max_length, n_sequences).tolist()
            sequences = [generator.integers(0, 60_000, length) for length in lengths]
            # A document may have no sequences, which cannot be concatenated alone.
            document = np.concatenate([*sequences, np.empty(0, np.int64)])
            builder.add_document(document, lengths)
            documents.append(document)
    return documents


class PackedDataset(NamedTuple):
    """A dataset and its packs."""

    documents: list[np.ndarray]
    """Tokens of each document of the dataset."""
    packed_documents: list[np.ndarray]
    """What packs hold of each document: its first 64 tokens if long documents are truncated."""
    packs: Any
    table: Any
    counts: Any
    pieces: list[Piece]


@pytest.fixture(scope="module", params=["pad", "carry"])
def tail(request):
    """What is at the end of a pack."""
    return request.param


@pytest.fixture(scope="module", params=["fragment", "truncate"])
def long(request):
    """What becomes of documents that are longer than a pack."""
    return request.param


class UnpackedDataset(NamedTuple):
    """A dataset that is to be packed."""

    prefix: Path
    documents: list[np.ndarray]
    """Tokens of each document."""


@pytest.fixture(scope="module", params=["corpus", "view"])
def dataset(request, tmp_path_factory):
    """A corpus, or a view of its documents, some of them several times."""
    folder = tmp_path_factory.mktemp("dataset")
    documents = write_dataset(folder / "all", 3)
    if request.param == "corpus":
        return UnpackedDataset(folder / "all", documents)

    numbers = np.random.default_rng(8).integers(0, len(documents), 200)
    write_view(folder / "all", folder / "view", numbers[:90], numbers[90:])
    return UnpackedDataset(folder / "view", [documents[number] for number in numbers])


@pytest.fixture(scope="module")
def packed(dataset, tail, long, tmp_path_factory):
    """The dataset, packed into sequences of 64 tokens."""
    target = tmp_path_factory.mktemp("packed") / "packs"
    rules = PackingRules(PieceRule(64, long), tail, PAD, 5)
    with pytest.MonkeyPatch.context() as patch:
        # So few that the pieces of this small dataset are assigned in several steps.
        patch.setattr(assignment, "_STRATUM_PIECES", 40)
        packs, table, writer = write_packs(dataset.prefix, target, rules)

    packed_documents = dataset.documents
    if long == "truncate":
        packed_documents = [document[:64] for document in dataset.documents]
    pieces = read_pieces(table, writer.counts.packs)
    return PackedDataset(dataset.documents, packed_documents, packs, table, writer.counts, pieces)


def n_tokens_of(documents: Sequence[np.ndarray]) -> int:
    """Return how many tokens documents have."""
    return sum(len(document) for document in documents)


# Tokens


def test_a_piece_has_the_tokens_of_its_document(packed):
    for piece in packed.pieces:
        tokens = packed.packs[piece.pack][piece.start : piece.stop]
        document = packed.documents[piece.document]
        assert np.array_equal(tokens, document[piece.first : piece.first + piece.n_tokens])


def test_the_pieces_of_each_document_are_all_of_its_tokens(packed):
    expected = {}
    for number, document in enumerate(packed.packed_documents):
        if len(document):
            expected[number] = document.tolist()

    tokens_by_document: dict[int, list[int]] = {}
    for piece in sorted(packed.pieces, key=lambda piece: piece.first):
        tokens = packed.packs[piece.pack][piece.start : piece.stop]
        tokens_by_document.setdefault(piece.document, []).extend(tokens.tolist())

    assert tokens_by_document == expected


def test_all_packs_have_one_length(packed):
    packs = packed.packs

    assert len(packs) == packed.counts.packs
    assert len(packs.document_indices) - 1 == packed.counts.packs
    assert set(packs.sequence_lengths.tolist()) == {64}


def test_the_rest_of_the_packs_is_padding(packed):
    n_packed_tokens = n_tokens_of(packed.packed_documents)
    is_padding = np.concatenate(packed.packs[:]) == PAD

    assert packed.counts.padding == packed.counts.packs * 64 - n_packed_tokens
    assert packed.counts.padding == np.count_nonzero(is_padding)


@pytest.mark.parametrize("tail", ["carry"], indirect=True)
def test_with_carry_only_the_last_pack_has_padding(packed):
    is_padding = np.concatenate(packed.packs[:]) == PAD

    assert not is_padding[:-64].any()


# Counts


def test_pieces_and_documents_with_tokens_are_counted(packed):
    packed_numbers = {piece.document for piece in packed.pieces}

    assert packed.counts.pieces == len(packed.pieces)
    assert packed.counts.documents == len(packed_numbers)


def test_tokens_that_are_dropped_are_counted(packed):
    n_dropped = n_tokens_of(packed.documents) - n_tokens_of(packed.packed_documents)

    assert packed.counts.dropped_tokens == n_dropped


def test_documents_that_are_cut_or_truncated_are_counted(packed):
    n_pieces_by_document = Counter(piece.document for piece in packed.pieces)
    cut_documents = []
    for number, n_pieces in n_pieces_by_document.items():
        is_truncated = len(packed.packed_documents[number]) < len(packed.documents[number])
        if n_pieces > 1 or is_truncated:
            cut_documents.append(number)

    assert packed.counts.cut_documents == len(cut_documents)


def test_tokens_that_are_not_in_the_first_pack_of_their_document_are_counted(packed):
    first_pack_by_document = {
        piece.document: piece.pack for piece in packed.pieces if piece.first == 0
    }
    n_cut_tokens = 0
    for piece in packed.pieces:
        if piece.pack != first_pack_by_document[piece.document]:
            n_cut_tokens += piece.n_tokens

    assert packed.counts.cut_tokens == n_cut_tokens


# The table of pieces


def test_pieces_can_be_read_by_document(packed):
    numbers = np.array([2, 60, 149])

    pieces = as_pieces(packed.table.of_documents(numbers))

    assert pieces == [piece for piece in packed.pieces if piece.document in numbers]


def test_pieces_can_be_read_by_pack(packed):
    expected = [piece for piece in packed.pieces if 3 <= piece.pack < 6]

    pieces = []
    for columns in packed.table.between(3, 6):
        pieces += as_pieces(columns)

    assert pieces == expected


def test_packs_do_not_depend_on_how_much_is_written_at_once(tmp_path, monkeypatch):
    write_dataset(tmp_path / "all", 4)
    rules = PackingRules(PieceRule(32), "pad", PAD, 1)

    # Tokens in memory, and tokens that are copied together.
    sizes = {"large": (1 << 20, 1 << 16), "small": (64, 10), "one token": (200, 1)}
    bins = []
    tables = []
    for name, (window_tokens, chunk_tokens) in sizes.items():
        monkeypatch.setattr(writing, "_WINDOW_TOKENS", window_tokens)
        monkeypatch.setattr(writing, "CHUNK_TOKENS", chunk_tokens)
        _, table, _ = write_packs(tmp_path / "all", tmp_path / name, rules)
        bins.append((tmp_path / f"{name}.bin").read_bytes())
        tables.append(table.sha256())

    assert bins[1] == bins[0]
    assert bins[2] == bins[0]
    assert len(set(tables)) == 1


def test_only_row_groups_that_may_contain_the_requested_packs_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "_ROWS_PER_GROUP", 8)
    write_dataset(tmp_path / "all", 4)
    rules = PackingRules(PieceRule(64), "pad", PAD, 1)
    packs, table, _ = write_packs(tmp_path / "all", tmp_path / "packs", rules)
    all_pieces = read_pieces(table, len(packs))
    n_groups = len(all_pieces) / 8
    first_and_last = [0, len(packs) - 1]
    groups_read = []
    read_group = RowGroups.read

    def record(groups, group, columns=None):
        groups_read.append(group)
        return read_group(groups, group, columns)

    monkeypatch.setattr(RowGroups, "read", record)
    pieces = as_pieces(table.of_packs(np.array(first_and_last)))

    assert pieces == [piece for piece in all_pieces if piece.pack in first_and_last]
    assert len(groups_read) < 8
    assert n_groups > 8


def test_a_dataset_without_tokens_has_no_packs(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "none", dtype=np.int32) as builder:
        builder.add_document(np.empty(0, np.int32), [])
    rules = PackingRules(PieceRule(8), "carry", 0, 1)

    packs, table, writer = write_packs(tmp_path / "none", tmp_path / "packs", rules)

    assert len(packs) == 0
    assert writer.counts.documents == 0
    assert read_pieces(table, 9) == []

"""Packs of datasets with documents of several sequences, and without tokens: a .bin, a .idx and a
table of pieces.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.packs import write_packs, write_view
from nanoset_core import MMapIndexedDatasetBuilder
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


@pytest.mark.parametrize("is_view", [False, True], ids=["corpus", "view"])
@pytest.mark.parametrize("long", ["fragment", "truncate"])
@pytest.mark.parametrize("tail", ["pad", "carry"])
def test_every_document_is_in_its_packs(tmp_path, long, tail, is_view, monkeypatch):
    monkeypatch.setattr(assignment, "_STRATUM_PIECES", 40)
    documents, source = write_dataset(tmp_path / "all", 3), tmp_path / "all"
    if is_view:
        chosen = np.random.default_rng(8).integers(0, len(documents), 200)
        write_view(tmp_path / "all", tmp_path / "view", chosen[:90], chosen[90:])
        documents, source = [documents[number] for number in chosen], tmp_path / "view"
    packs, table, writer = write_packs(
        source, tmp_path / "packs", PackingRules(PieceRule(64, long), tail, PAD, 5)
    )
    counts = writer.counts
    assert len(packs) == counts.packs == len(packs.document_indices) - 1
    assert set(packs.sequence_lengths.tolist()) == {64}
    rows = np.stack(table.of_packs(np.arange(counts.packs)), axis=1)
    assert len(rows) == counts.pieces
    found = {number: hashlib.sha256() for number, document in enumerate(documents) if len(document)}
    for pack, begin, number, first, tokens in sorted(rows.tolist(), key=lambda row: row[2:]):
        assert np.array_equal(
            packs[pack][begin : begin + tokens], documents[number][first : first + tokens]
        )
        found[number].update(packs[pack][begin : begin + tokens].tobytes())
    kept = [document[:64] if long == "truncate" else document for document in documents]
    wanted = {
        number: hashlib.sha256(one.astype("<u2").tobytes())
        for number, one in enumerate(kept)
        if len(one)
    }
    assert {number: one.hexdigest() for number, one in found.items()} == {
        number: one.hexdigest() for number, one in wanted.items()
    }
    held = sum(map(len, kept))
    padded = np.concatenate(packs[:]) == PAD
    assert counts.padding == counts.packs * 64 - held == np.count_nonzero(padded)
    assert counts.documents == len(found)
    assert counts.dropped_tokens == sum(map(len, documents)) - held
    apart = [
        number
        for number in found
        if len(rows[rows[:, 2] == number]) > 1 or len(kept[number]) < len(documents[number])
    ]
    assert counts.cut_documents == len(apart)
    home = {number: pack for pack, _, number, first, _ in rows.tolist() if not first}
    assert counts.cut_tokens == sum(row[4] for row in rows.tolist() if row[0] != home[row[2]])
    assert tail == "pad" or not padded[:-64].any()
    some = np.array([2, 60, 149])
    assert (
        np.stack(table.of_documents(some), axis=1).tolist()
        == rows[np.isin(rows[:, 2], some)].tolist()
    )
    documents = np.concatenate([rows.documents for rows in table.between(3, 6)])
    assert documents.tolist() == table.of_packs(np.arange(3, 6)).documents.tolist()


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
    whole, read = np.stack(table.of_packs(np.arange(len(packs))), axis=1), list[int]()
    groups = table._file.read_row_group
    monkeypatch.setattr(
        table,
        "_file",
        SimpleNamespace(
            metadata=table._file.metadata,
            read_row_group=lambda group: (read.append(group), groups(group))[1],
        ),
    )
    ends = np.array([0, len(packs) - 1])
    assert (
        np.stack(table.of_packs(ends), axis=1).tolist()
        == whole[np.isin(whole[:, 0], ends)].tolist()
    )
    assert len(read) < 8 < len(whole) / 8


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

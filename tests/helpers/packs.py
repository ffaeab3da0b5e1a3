"""Packs of small datasets, and plans of packs that are not built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoset_core import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.packs.make import planned_packs
from nanoset_core.stages.packs.pieces import PieceRows, PieceTable
from nanoset_core.stages.packs.writing import PackingRules, PackWriter, write_pack_idx
from nanoset_core.stages.views.writing import write_view_idx


class Piece(NamedTuple):
    """A row of the table of pieces."""

    pack: int
    start: int
    """Position of its first token in the pack."""
    document: int
    first: int
    """Position of its first token in the document."""
    n_tokens: int

    @property
    def stop(self) -> int:
        """Position in the pack after its last token."""
        return self.start + self.n_tokens


class PlannedPacks(NamedTuple):
    """Packs of a project as they will be once they are built."""

    reader: LengthReader
    """Knows the lengths of their sequences."""
    manifests: Mapping[str, Manifest]
    """By name."""


def plan_packs(project: Project, *names: str) -> PlannedPacks:
    """Plan some packs of a project, or all if none is named, without building them."""
    reader = LengthReader(project.outputs.access)
    chosen = names or tuple(project.config.packs)
    manifests = {name: planned_packs(project, name, reader) for name in chosen}
    return PlannedPacks(reader, manifests)


def write_packs(
    source: Path, target: Path, rules: PackingRules
) -> tuple[MMapIndexedDataset, PieceTable, PackWriter]:
    """Pack an indexed dataset; return the packs, their table of pieces, and what wrote them."""
    writer = PackWriter(MMapIndexedDataset(source), rules, "packs")
    bin_path(target).write_bytes(b"".join(writer.blocks(target.with_suffix(".parquet"))))
    write_pack_idx(idx_path(target), writer.dataset.dtype, writer.counts.packs, rules.pieces.length)
    return MMapIndexedDataset(target), PieceTable(target.with_suffix(".parquet")), writer


def read_pieces(table: PieceTable, n_packs: int) -> list[Piece]:
    """Return all rows of a table of pieces, by pack."""
    columns = table.of_packs(np.arange(n_packs))
    return as_pieces(columns)


def as_pieces(columns: PieceRows) -> list[Piece]:
    """Return some columns of a table of pieces as rows."""
    rows = np.stack(columns, axis=1)  # (n_pieces, 5)
    return [Piece(*row) for row in rows.tolist()]


def write_view(source: Path, target: Path, *chosen: np.ndarray) -> None:
    """Write a view of an indexed dataset: the chosen documents, in this order.

    Args:
        source: Prefix of the dataset.
        target: Prefix of the view, which shares the tokens of the dataset.
        chosen: Numbers of documents, in blocks.
    """
    bin_path(target).hardlink_to(bin_path(source))
    write_view_idx(idx_path(target), read_idx(idx_path(source)), lambda: list(chosen))

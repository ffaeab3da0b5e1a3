"""Verify packs: their tokens are those of the documents that the table of pieces names."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.packing.pieces import FilledPacks, PieceArrays
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.packs.make import PackingRules, PackWriter, write_pack_idx
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceTable, open_pieces
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file

REPACKED_TOKENS = 4_000_000
"""Packs of up to this many tokens are packed again by every check, which takes seconds."""
_SAMPLED_PACKS = 16
"""Number of packs that a quick check compares if the packs are too large to be packed again."""


def verify_packs(project: Project, key: Key, *, deep: bool = False) -> Report:
    """Check the current version of packs: sequences of one length that are filled with documents.

    If there are few tokens, the documents are packed again, and every byte must be the same.
    Otherwise, a few packs are compared with the documents that they were filled with.

    Args:
        project: The project.
        key: The packs.
        deep: Whether to pack the documents again in any case.
    """
    report = Report(PACKS.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, PACKS, key)
        is_packed_again = deep or manifest.facts["tokens"] <= REPACKED_TOKENS
        check_files(report, manifest, deep=is_packed_again)
        report.copy_facts(manifest, ["documents", "packs", "tokens", "padding"])
        check_freshness(report, project, PACKS, key, manifest)
        if not report.passed:
            return report

        # Open the dataset that was packed, and check the tokens of the packs against it.
        packs = dataset_of(project.outputs, manifest, is_sampled=not deep)
        packed_dataset = packs.unpacked.sequences  # its .bin and .idx
        if is_packed_again:
            _pack_again(report, project, manifest, packed_dataset)
        else:
            _compare_some(report, manifest, packed_dataset)
    return report


def _compare_some(report: Report, manifest: Manifest, dataset: MMapIndexedDataset) -> None:
    """Compare evenly spread packs with the tokens of their documents.

    Args:
        report: Gets an error for the first pack that differs.
        manifest: Manifest of the packs.
        dataset: The dataset whose documents were packed.
    """
    packs = open_dataset(manifest, is_sampled=True)
    table = open_pieces(manifest)
    writer = PackWriter(dataset, PackingRules.of(manifest.recipe["options"]), manifest.name)

    last_pack = manifest.facts["packs"] - 1
    pack_numbers = np.unique(np.linspace(0, last_pack, _SAMPLED_PACKS).astype(np.int64))
    for number in pack_numbers.tolist():
        expected_tokens = writer.tokens(_listed_pack(table, number))
        if not np.array_equal(packs[number], expected_tokens):
            report.error(
                "a pack does not hold the tokens of its documents",
                where=f"{manifest.url()}, pack {number}",
                found="other tokens",
                remedy=f"delete {manifest.url()}, and {BUILD}",
            )
            return


def _listed_pack(table: PieceTable, number: int) -> FilledPacks:
    """Return one pack with the pieces of documents that the table lists for it."""
    rows = table.of_packs(np.array([number]))
    pieces = PieceArrays(documents=rows.documents, firsts=rows.firsts, lengths=rows.tokens)
    return FilledPacks(bounds=np.array([0, len(rows.documents)]), pieces=pieces)


def _pack_again(
    report: Report, project: Project, manifest: Manifest, dataset: MMapIndexedDataset
) -> None:
    """Pack the documents again, and check that this gives the files that are stored.

    Args:
        report: Gets an error for each file that differs.
        project: The project.
        manifest: Manifest of the packs.
        dataset: The dataset whose documents were packed.
    """
    bin_name = f"{manifest.facts['prefix']}.bin"
    idx_name = f"{manifest.facts['prefix']}.idx"
    packed_again = _checksums_of_packs(project, manifest, dataset)
    expected_sha256 = {
        bin_name: packed_again.bin,
        idx_name: packed_again.idx,
        PIECES_FILE: packed_again.pieces,
    }
    stored_sha256 = {
        # This need not be computed: `check_files` found that the .bin has the sha256 of its
        # manifest.
        bin_name: manifest.files[bin_name].sha256,
        idx_name: sha256_file(manifest.path(idx_name)),
        PIECES_FILE: open_pieces(manifest).sha256(),
    }
    for name in (bin_name, idx_name, PIECES_FILE):
        report.compare(
            "packing the documents again gives other packs",
            where=manifest.folder / name,
            found=f"sha256 {stored_sha256[name]}",
            expected=f"sha256 {expected_sha256[name]}",
            remedy=f"delete {manifest.url()}, and {BUILD}",
        )


class _Checksums(NamedTuple):
    """The sha256 of each file of packs, in hexadecimal digits."""

    bin: str
    idx: str
    pieces: str
    """That of the values in the table of pieces, which is not that of the file."""


def _checksums_of_packs(
    project: Project, manifest: Manifest, dataset: MMapIndexedDataset
) -> _Checksums:
    """Pack the documents of a dataset, and return the checksums of the files.

    Args:
        project: The project, which shows the progress.
        manifest: Manifest of packs, whose recipe has the rules for packing.
        dataset: The dataset.
    """
    rules = PackingRules.of(manifest.recipe["options"])
    writer = PackWriter(dataset, rules, manifest.name, project.progress)
    with tempfile.TemporaryDirectory(prefix="nanoset-packs-") as folder:
        # Hash the tokens without storing them, since they may take a lot of space. Meanwhile, the
        # writer writes the table of pieces.
        token_hash = hashlib.sha256()
        pieces_path = Path(folder, PIECES_FILE)
        for block in writer.blocks(pieces_path):
            token_hash.update(block)

        idx_path = Path(folder, "again.idx")
        write_pack_idx(idx_path, dataset.dtype, writer.counts.packs, rules.pieces.length)
        return _Checksums(
            bin=token_hash.hexdigest(),
            idx=sha256_file(idx_path),
            pieces=PieceTable(pieces_path).sha256(),
        )

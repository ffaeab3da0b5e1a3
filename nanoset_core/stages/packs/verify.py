"""Verify packs: their tokens are those of the documents that the table of pieces names."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

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

    Small packs, and with `deep` all packs, are packed again: every byte must be the same. Of larger
    ones, some packs are compared with the tokens of their documents. The table of pieces says which
    tokens of which document are where in a pack.

    Args:
        project: The project.
        key: The packs.
        deep: Pack documents again however many tokens they have.
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

        source = dataset_of(project.outputs, manifest, is_sampled=not deep).unpacked
        if is_packed_again:
            _pack_again(report, project, manifest, source.sequences)
        else:
            _compare_some(report, manifest, source.sequences)
    return report


def _compare_some(report: Report, manifest: Manifest, dataset: MMapIndexedDataset) -> None:
    """Compare evenly spread packs with the tokens of their documents.

    A pack is a sequence that is filled with documents, or with pieces of documents.

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
        # The pieces that the table names for this pack.
        rows = table.of_packs(np.array([number]))
        # The pack as the table describes it: it has all of these pieces.
        described_pack = FilledPacks(
            bounds=np.array([0, len(rows.documents)]),
            pieces=PieceArrays(rows.documents, rows.firsts, rows.tokens),
        )
        if not np.array_equal(packs[number], writer.tokens(described_pack)):
            report.error(
                "a pack does not hold the tokens of its documents",
                where=f"{manifest.url()}, pack {number}",
                found="other tokens",
                remedy=f"delete {manifest.url()}, and {BUILD}",
            )
            return


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
    prefix = manifest.facts["prefix"]
    rules = PackingRules.of(manifest.recipe["options"])
    writer = PackWriter(dataset, rules, manifest.name, project.progress)
    with tempfile.TemporaryDirectory(prefix="nanoset-packs-") as scratch:
        # The tokens are only hashed, since they may take a lot of space. The other files are small.
        token_hash = hashlib.sha256()
        for block in writer.blocks(Path(scratch, PIECES_FILE)):
            token_hash.update(block)
        index = Path(scratch, "again.idx")
        write_pack_idx(index, dataset.dtype, writer.counts.packs, rules.pieces.length)
        expected_sha256 = {
            f"{prefix}.bin": token_hash.hexdigest(),
            f"{prefix}.idx": sha256_file(index),
            PIECES_FILE: PieceTable(Path(scratch, PIECES_FILE)).sha256(),
        }

    # The .bin was compared with the sha256 in its manifest by `check_files`.
    stored_sha256 = {
        f"{prefix}.bin": manifest.files[f"{prefix}.bin"].sha256,
        f"{prefix}.idx": sha256_file(manifest.path(f"{prefix}.idx")),
        PIECES_FILE: open_pieces(manifest).sha256(),
    }
    for name, sha256 in stored_sha256.items():
        report.compare(
            "packing the documents again gives other packs",
            where=manifest.folder / name,
            found=f"sha256 {sha256}",
            expected=f"sha256 {expected_sha256[name]}",
            remedy=f"delete {manifest.url()}, and {BUILD}",
        )

"""Verify packs: their tokens are those of the documents that the table of pieces names.

For example, the table says that pack 7 begins with the first 500 tokens of document 31. A check
reads these tokens from the dataset that was packed, and compares them with those of the pack.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.packing.pieces import FilledPacks, PieceArrays
from nanoset_core.stages.checking import (
    check_files,
    check_freshness,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.dataset.token_ranges import spread_rows
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceTable, open_pieces
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.packs.writing import PackingRules, PackWriter, write_pack_idx
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file

REPACKED_TOKENS = 4_000_000
"""Packs of up to this many tokens are packed again by every check, which takes seconds."""
_SAMPLED_PACKS = 16
"""Number of packs that a quick check compares if the packs are too large to be packed again."""


def verify_packs(project: Project, key: Key, *, deep: bool) -> Report:
    """Check packs: samples of one length that were filled with documents.

    If there are few tokens, the documents are packed again, and every byte must be the same.
    Otherwise, a few packs are compared with the documents that they were filled with.

    Args:
        project: The project.
        key: Which packs.
        deep: Whether to pack the documents again in any case.

    Returns:
        The report, with an error for each file or pack that differs.
    """
    report = Report(PACKS.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, PACKS, key)
        # If all tokens are read anyway, compare checksums of the files, and otherwise their sizes.
        check_files(report, manifest, deep=_reads_all_tokens(manifest, deep=deep))
        report.copy_facts(manifest, ["documents", "packs", "tokens", "padding"])
        check_freshness(report, project, PACKS, key, manifest)
        if report.passed:
            _compare_with_documents(report, project, manifest, deep=deep)
    return report


def _reads_all_tokens(manifest: Manifest, *, deep: bool) -> bool:
    """Return whether a check of packs packs the documents again, which reads all tokens.

    Args:
        manifest: What is recorded about the packs.
        deep: Whether the user has requested to read all tokens, however many there are.
    """
    return deep or bool(manifest.facts["tokens"] <= REPACKED_TOKENS)


def _compare_with_documents(
    report: Report, project: Project, manifest: Manifest, *, deep: bool
) -> None:
    """Compare packs with the documents that were packed: all of them, or a few.

    If there are differences, the documents may be damaged. Then only that is reported.

    Args:
        report: Gets an error for each file or pack that differs.
        project: The project.
        manifest: What is recorded about the packs.
        deep: Whether to compare all packs in any case.
    """
    # `is_sampled`: of files in a bucket, only the blocks that are read are downloaded.
    documents = dataset_of(project.outputs, manifest, is_sampled=not deep).unpacked
    differences = Report(report.output)
    with differences.catching(remedy=BUILD):
        if _reads_all_tokens(manifest, deep=deep):
            _pack_again(differences, project, manifest, documents.sequences)
        else:
            _compare_some(differences, manifest, documents.sequences)
    include_differences(report, differences, [documents.manifest], deep=deep)


def _compare_some(report: Report, manifest: Manifest, dataset: MMapIndexedDataset) -> None:
    """Compare a few packs (samples that were filled with documents) with these documents.

    A table says which documents each pack has: for example, pack 7 has the tokens 0 to 499 of
    document 31. So pack 7 must be equal to these tokens.

    Args:
        report: Gets an error for the first pack that differs.
        manifest: What is recorded about the packs.
        dataset: The documents that were packed.
    """
    packs = open_dataset(manifest, is_sampled=True)  # from a bucket, downloads only what is read
    table = open_pieces(manifest)
    writer = PackWriter(dataset, PackingRules.of(manifest.recipe["options"]), manifest.name)

    sampled_packs = spread_rows(manifest.facts["packs"], _SAMPLED_PACKS)  # such as 0, 7, 14
    for number in sampled_packs.tolist():
        # Fill the pack again, as a build does, with the documents that the table lists for it.
        pieces_of_pack = _listed_pack(table, number)
        expected_tokens = writer.tokens(pieces_of_pack)
        if not np.array_equal(packs[number], expected_tokens):
            report.error(
                "a pack does not hold the tokens of its documents",
                where=f"{manifest.url()}, pack {number}",
                found="other tokens",
                remedy=remedy_for_bytes(manifest),
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
    """Pack the documents again, and check that this gives the same files as are stored.

    Packs are samples of one length that are filled with documents. There are three files: their
    tokens, an index, and a table of the documents in each pack.

    Args:
        report: Gets an error for each file that differs.
        project: The project.
        manifest: What is recorded about the packs.
        dataset: The documents that were packed.

    Raises:
        FormatError: The index of the documents is damaged.
    """
    # A damaged index may name sequences that do not exist, so check every number of it first.
    read_idx(idx_path(dataset.prefix), validate=True)

    expected_sha256 = _checksums_if_packed_again(project, manifest, dataset)
    for name, stored_sha256 in _stored_checksums(manifest).items():
        report.compare(
            "packing the documents again gives other packs",
            where=manifest.folder / name,
            found=f"sha256 {stored_sha256}",
            expected=f"sha256 {expected_sha256[name]}",
            remedy=remedy_for_bytes(manifest),
        )


def _stored_checksums(manifest: Manifest) -> dict[str, str | None]:
    """Return the checksums of the stored files of packs (samples that are filled with documents).

    Args:
        manifest: What is recorded about the packs.

    Returns:
        Name of the file → sha256, such as `{"web-packs.bin": "3f…", "web-packs.idx": "8a…", …}`.
        For the table of pieces, it is that of the table's values.
    """
    prefix = manifest.facts["prefix"]
    bin_name = f"{prefix}.bin"
    idx_name = f"{prefix}.idx"
    return {
        # The .bin is large. `check_files` has computed its sha256, and it is the recorded one.
        bin_name: manifest.files[bin_name].sha256,
        idx_name: sha256_file(manifest.path(idx_name)),
        PIECES_FILE: open_pieces(manifest).sha256(),
    }


def _checksums_if_packed_again(
    project: Project, manifest: Manifest, dataset: MMapIndexedDataset
) -> dict[str, str]:
    """Pack documents again, and return the checksums that the files of the packs must have.

    Packs are samples of one length, filled with documents, or with pieces of them. The tokens may
    take a lot of space, so they are not stored, but hashed as they are computed.

    Args:
        project: The project, which shows the progress.
        manifest: What is recorded about packs, with the rules for packing.
        dataset: The documents.

    Returns:
        Name of the file → sha256, as `_stored_checksums` returns it.
    """
    rules = PackingRules.of(manifest.recipe["options"])
    writer = PackWriter(dataset, rules, manifest.name, project.progress)
    with tempfile.TemporaryDirectory(prefix="nanoset-packs-") as folder:
        # `blocks` also writes the table of pieces, and counts the packs.
        pieces_path = Path(folder, PIECES_FILE)
        tokens_sha256 = _sha256_of(writer.blocks(pieces_path))

        new_idx_path = Path(folder, "again.idx")
        write_pack_idx(new_idx_path, dataset.dtype, writer.counts.packs, rules.pieces.length)
        prefix = manifest.facts["prefix"]
        return {
            f"{prefix}.bin": tokens_sha256,
            f"{prefix}.idx": sha256_file(new_idx_path),
            PIECES_FILE: PieceTable(pieces_path).sha256(),
        }


def _sha256_of(blocks: Iterable[bytes]) -> str:
    """Return the checksum of the bytes of all blocks together, as a hexadecimal number."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()

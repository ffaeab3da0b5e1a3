"""Do packs hold the documents of their dataset, each token once?"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.packing.assignment import Pieces
from nanoset_core.stages.dataset.stage import opened
from nanoset_core.stages.packs.pieces import PieceTable
from nanoset_core.stages.packs.stage import PACKS, PIECES, STAGE, packed_from, pieces_of, rules_of
from nanoset_core.stages.packs.writing import PackWriter, write_pack_idx
from nanoset_core.stages.report import BUILD, Report, check_files, check_freshness, live_manifest
from nanoset_core.stages.stage import Key
from nanoset_core.storage.atomic import sha256_file

PACKED_AGAIN = 4_000_000
"""Tokens up to which every check packs again."""
_COMPARED = 16


def verify_packs(project: Project, corpus: str, name: str, deep: bool = False) -> Report:
    """Check the current version of packs.

    Its files; and the tokens of some packs are those of their pieces' documents, or, with `deep` or where they are few,
    packed again they are the same, byte for byte.
    """
    report = Report(f"{STAGE}/{name}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, STAGE, name)
        whole = deep or manifest.facts["tokens"] <= PACKED_AGAIN
        check_files(report, manifest, deep=whole)
        report.figures.update({key: manifest.facts[key] for key in ("documents", "packs", "tokens", "padding")})
        check_freshness(report, project, PACKS, Key(corpus, name), manifest)
        if report.passed:
            read = opened(packed_from(project.outputs, manifest), is_sampled=not deep)
            if whole:
                _pack_again(report, project, manifest, read)
            else:
                _compare(report, manifest, read)
    return report


def _compare(report: Report, manifest: Manifest, read: MMapIndexedDataset) -> None:
    """Compare some packs with what their pieces give."""
    packs, table, count = opened(manifest, is_sampled=True), pieces_of(manifest), manifest.facts["packs"]
    writer = PackWriter(read, rules_of(manifest.recipe["options"]), manifest.name)
    for pack in np.unique(np.linspace(0, count - 1, _COMPARED).astype(np.int64)).tolist():
        rows = table.of_packs(np.array([pack]))
        if not np.array_equal(packs[pack], writer.tokens(Pieces(np.array([0, len(rows)]), *rows[:, 2:].T))):
            what, where = "a pack does not hold the tokens of its documents", f"{manifest.url()}, pack {pack}"
            report.error(what, where, "others", None, f"delete {manifest.url()}, and {BUILD}")
            return


def _pack_again(report: Report, project: Project, manifest: Manifest, read: MMapIndexedDataset) -> None:
    prefix, rules = manifest.facts["prefix"], rules_of(manifest.recipe["options"])
    with tempfile.TemporaryDirectory(prefix="nanoset-packs-") as scratch:
        folder, tokens = Path(scratch), hashlib.sha256()
        writer = PackWriter(read, rules, manifest.name, project.listener)
        for block in writer.blocks(folder / PIECES):
            tokens.update(block)
        write_pack_idx(folder / "again.idx", read.dtype, writer.counts.packs, rules.cut.length)
        pairs = {
            f"{prefix}.bin": (tokens.hexdigest(), manifest.files[f"{prefix}.bin"].sha256),
            f"{prefix}.idx": (sha256_file(folder / "again.idx"), sha256_file(manifest.path(f"{prefix}.idx"))),
            PIECES: (PieceTable(folder / PIECES).sha256(), pieces_of(manifest).sha256()),
        }
    for name, (found, wanted) in pairs.items():
        what, remedy = "packed again, the documents give other packs", f"delete {manifest.url()}, and {BUILD}"
        report.compare(what, manifest.folder / name, f"sha256 {found}", f"sha256 {wanted}", remedy)

"""Are an output's files there, and as they were written?"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import accumulate, pairwise

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.graph import stale_reasons
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key, Stage
from nanoset_core.storage.pieces import read_pieces
from nanoset_core.storage.store import in_parallel
from nanoset_core.verification.report import Report

_READ_BYTES = 8 << 20


def live_manifest(outputs: OutputRoot, stage: str, name: str, remedy: str) -> Manifest:
    """The manifest of an output's live version, whether or not its files are whole: each that is not is a finding.

    Raises:
        MissingError: the output was not made.
        FormatError: the manifest cannot be read.
    """
    manifest = outputs.live(stage, name)
    if manifest is None:
        where = outputs.folder / stage / name
        raise MissingError(f"the output {stage}/{name} has not been built", where=where, remedy=remedy)
    return manifest


def check_freshness(report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest) -> bool:
    """Warn where a version is not the one that its settings and present inputs ask for; → whether it is.

    The words are those of `nanoset status`; files are left to `check_files`.
    """
    if reasons := stale_reasons(project, stage, key):
        found = "; ".join(reasons)
        report.warn("this output is stale", where=manifest.folder, found=found, remedy="run `nanoset build`")
    return not reasons


def check_files(manifest: Manifest, output: str, *, deep: bool, remedy: str) -> Report:
    """Check every file that a manifest lists: there, of the size written, and with `deep` of the sha256 noted.

    Of one that was joined within a store, `deep` compares every piece, several at once.
    """
    report = Report(output)
    manifest = replace(manifest, stored=manifest.sizes())
    for name, fact in manifest.files.items():
        sound = check_file(report, manifest, name, fact.size, fact.sha256 if deep else None, remedy)
        if sound and deep and fact.pieces is not None:
            _check_pieces(report, manifest, name, fact.pieces, remedy)
    return report


def _check_pieces(report: Report, manifest: Manifest, name: str, listed: str, remedy: str) -> None:
    pieces, access = read_pieces(manifest.path(listed)), manifest.access
    store, path = access.store, manifest.folder / name
    stored = store.stat(access.name(path))
    if stored is None:
        raise MissingError("a file of an output is gone", where=access.url(path), remedy=remedy)
    spans = list(pairwise([0, *accumulate(piece.size for piece in pieces)]))

    def digest(span: tuple[int, int]) -> str:
        sha256 = hashlib.sha256()
        for begin in range(*span, _READ_BYTES):
            sha256.update(store.read_range(stored.name, begin, min(begin + _READ_BYTES, span[1]), stored.mark))
        return sha256.hexdigest()

    for piece, span, found in zip(pieces, spans, in_parallel(digest, spans), strict=True):
        if found != piece.sha256:
            report.error(
                "a file has other bytes than when it was written",
                where=f"{access.url(path)}, bytes {span[0]:,} to {span[1]:,}",
                found=f"sha256 {found}",
                expected=f"sha256 {piece.sha256}",
                remedy=f"delete {manifest.url()}, and {remedy}",
            )
            return
    if spans[-1][1] != stored.size:
        report.error(
            "the pieces of a file are not all of it",
            where=access.url(path),
            found=f"{spans[-1][1]:,} bytes",
            expected=f"{stored.size:,} bytes",
            remedy=f"delete {manifest.url()}, and {remedy}",
        )


def check_file(report: Report, manifest: Manifest, name: str, size: int, sha256: str | None, remedy: str) -> bool:
    """Note what is wrong with one file of an output; → whether nothing is."""
    path = manifest.folder / name
    found = manifest.access.size(path) if manifest.stored is None else manifest.stored.get(name)
    if found is None:
        report.error("a file is missing", where=manifest.access.url(path), expected=f"{size:,} bytes", remedy=remedy)
        return False
    if found != size:
        report.error(
            "a file has another size than when it was written",
            where=manifest.access.url(path),
            found=f"{found:,} bytes",
            expected=f"{size:,} bytes",
            remedy=remedy,
        )
        return False
    if sha256 is not None and (digest := manifest.access.sha256(path)) != sha256:
        report.error(
            "a file has other bytes than when it was written",
            where=manifest.access.url(path),
            found=f"sha256 {digest}",
            expected=f"sha256 {sha256}",
            remedy=f"delete {manifest.url()}, and {remedy}",
        )
        return False
    return True

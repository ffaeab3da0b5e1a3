"""Are an output's files there, and as they were written?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.graph import stale_reasons
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key, Stage
from nanoset_core.storage.access import FileAccess
from nanoset_core.verification.report import Report

BUILD = "run `nanoset build`"
AGAIN = "run `nanoset build --force`"


def live_manifest(outputs: OutputRoot, stage: str, name: str) -> Manifest:
    """Return the manifest of an output's current version, whether or not its files are whole.

    Raises:
        MissingError: The output has not been built.
        FormatError: The manifest cannot be read.
    """
    manifest = outputs.live(stage, name)
    if manifest is None:
        where = outputs.folder / stage / name
        raise MissingError(f"the output {stage}/{name} has not been built", where=where, remedy=BUILD)
    return manifest


def check_freshness(report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest) -> bool:
    """Warn where an output is stale, in the words of `nanoset status`; return whether it is fresh."""
    if reasons := stale_reasons(project, stage, key):
        report.warn("this output is stale", where=manifest.folder, found="; ".join(reasons), remedy=BUILD)
    return not reasons


def check_files(manifest: Manifest, output: str, *, deep: bool, remedy: str) -> Report:
    """Check every file that a manifest lists: it is there, of the size written, and with `deep` of the sha256 noted.

    Of a file that was joined within a store no sha256 is noted: its pieces are compared as its tokens are read.
    """
    report = Report(output)
    manifest = replace(manifest, stored=manifest.sizes())
    for name, fact in manifest.files.items():
        check_file(report, manifest, name, fact.size, fact.sha256 if deep else None, remedy)
    return report


def check_file(report: Report, manifest: Manifest, name: str, size: int, sha256: str | None, remedy: str) -> bool:
    """Note what is wrong with one file of an output; return whether nothing is."""
    path, access = manifest.folder / name, manifest.access
    found = access.size(path) if manifest.stored is None else manifest.stored.get(name)
    again = f"delete {manifest.url()}, and {remedy}"
    return check_written(report, access, path, found, size, sha256, remedy, again)


def check_written(
    report: Report,
    access: FileAccess,
    path: Path,
    found: int | None,
    size: int,
    sha256: str | None,
    remedy: str,
    again: str,
    kind: str = "a file",
) -> bool:
    """Note where a file is missing, or not as it was written; return whether nothing is wrong.

    Args:
        report: Takes the finding.
        access: How the file is reached.
        path: Of the file.
        found: Its size in bytes; None where it is missing.
        size: Bytes written.
        sha256: Of the bytes written; None where they are not compared.
        remedy: For a file that is missing or of another size.
        again: Remedy for one of other bytes, which a build takes for whole.
        kind: What the file is called.
    """
    if found is None:
        report.error(f"{kind} is missing", where=access.url(path), expected=f"{size:,} bytes", remedy=remedy)
    elif found != size:
        report.error(
            f"{kind} has another size than when it was written",
            where=access.url(path),
            found=f"{found:,} bytes",
            expected=f"{size:,} bytes",
            remedy=remedy,
        )
    elif sha256 is not None and (digest := access.sha256(path)) != sha256:
        report.error(
            f"{kind} has other bytes than when it was written",
            where=access.url(path),
            found=f"sha256 {digest}",
            expected=f"sha256 {sha256}",
            remedy=again,
        )
    else:
        return True
    return False

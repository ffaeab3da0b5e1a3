"""Are an output's files there, and as they were written?"""

from __future__ import annotations

from dataclasses import replace

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.graph import stale_reasons
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key, Stage
from nanoset_core.verification.report import Report


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

    Of one that was joined within a store no sha256 is noted: who reads it compares its pieces.
    """
    report = Report(output)
    manifest = replace(manifest, stored=manifest.sizes())
    for name, fact in manifest.files.items():
        check_file(report, manifest, name, fact.size, fact.sha256 if deep else None, remedy)
    return report


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

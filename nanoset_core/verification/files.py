"""Are an output's files there, and as they were written?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import FileFact, Manifest
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
        report.warn("this output is stale", manifest.folder, "; ".join(reasons), None, BUILD)
    return not reasons


def check_files(report: Report, manifest: Manifest, *, deep: bool) -> None:
    """Check every file that a manifest lists: it is there, of the size written, and with `deep` of the sha256 noted.

    Of a file that was joined within a store no sha256 is noted: its pieces are compared as its tokens are read.
    """
    manifest = replace(manifest, stored=manifest.sizes())
    for name in manifest.files:
        check_file(report, manifest, name, deep)


def check_file(report: Report, manifest: Manifest, name: str, deep: bool, remedy: str = BUILD) -> bool:
    """Note what is wrong with one file of an output; return whether nothing is."""
    path, access = manifest.folder / name, manifest.access
    found = access.size(path) if manifest.stored is None else manifest.stored.get(name)
    again = f"delete {manifest.url()}, and {remedy}"
    return check_written(report, access, path, found, manifest.files[name], (remedy, again), deep=deep)


def check_written(
    report: Report,
    access: FileAccess,
    path: Path,
    size: int | None,
    fact: FileFact,
    remedies: tuple[str, str],
    *,
    deep: bool,
    kind: str = "a file",
) -> bool:
    """Note where a file is missing, or not as it was written; return whether nothing is wrong.

    Args:
        report: Takes the finding.
        access: How the file is reached.
        path: Of the file.
        size: Its bytes now; None where it is missing.
        fact: Of the file as it was written.
        remedies: For a file that is missing or of another size; for one of other bytes, which a build takes for whole.
        deep: Compare its sha256, where one is noted.
        kind: What the file is called.
    """
    where, expected = access.url(path), f"{fact.size:,} bytes"
    if size is None:
        report.error(f"{kind} is missing", where, None, expected, remedies[0])
    elif size != fact.size:
        what = f"{kind} has another size than when it was written"
        report.error(what, where, f"{size:,} bytes", expected, remedies[0])
    elif deep and fact.sha256 is not None:
        found, what = f"sha256 {access.sha256(path)}", f"{kind} has other bytes than when it was written"
        return report.compare(what, where, found, f"sha256 {fact.sha256}", remedies[1])
    else:
        return True
    return False

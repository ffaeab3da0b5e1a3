"""Checks that all stages share: whether an output exists, is up to date, and has intact files.

The checks of a stage read from top to bottom:

```py
report = Report(stage.report_name(key))
with report.catching(remedy=BUILD):
    manifest = current_manifest(project, stage, key)
    report.copy_facts(manifest, ["documents"])
    check_files(report, manifest, deep=deep)
    is_fresh = check_freshness(report, project, stage, key, manifest)
    ...  # the stage's own checks
return report
```

If the output has not been built, `current_manifest` raises an exception, which `catching` adds to
the report.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key, Stage
from nanoset_core.storage.access import FileAccess


def current_manifest(project: Project, stage: Stage, key: Key) -> Manifest:
    """Return the manifest of an output's current version, without checking its files.

    A manifest describes an output: what it was made from, its files, and counts.

    Args:
        project: The project.
        stage: Stage of the output.
        key: The output.

    Raises:
        MissingError: The output has not been built.
        FormatError: The manifest is damaged.
    """
    name = stage.layout.name_of(key)
    manifest = project.outputs.live(stage.layout.folder, name)
    if manifest is None:
        folder = project.outputs.folder / stage.layout.folder / name
        raise MissingError(
            "this output has not been built",
            where=project.outputs.access.url(folder),
            remedy=BUILD,
        )
    return manifest


def check_freshness(
    report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest
) -> bool:
    """Warn if an output is stale: made from other inputs or settings than the present ones.

    Args:
        report: Report on the output. The warning has the same reasons as `nanoset status`.
        project: The project.
        stage: Stage of the output.
        key: The output.
        manifest: Manifest of its current version.

    Returns:
        Whether the output is fresh, which means not stale.
    """
    reasons = stale_reasons(project, stage, key)
    if not reasons:
        return True
    report.warn(
        "this output is stale", where=manifest.folder, found="; ".join(reasons), remedy=BUILD
    )
    return False


def check_files(report: Report, manifest: Manifest, *, deep: bool) -> None:
    """Check that every file that a manifest lists exists, with the size that was written.

    Args:
        report: Report on the output.
        manifest: Manifest of the output.
        deep: Also read the files and compare their sha256, except those that have none in the
            manifest, such as a .bin that a bucket joined from pieces.
    """
    # One request for the sizes of all files, instead of one for each.
    manifest_with_sizes = replace(manifest, stored=manifest.sizes())
    for name in manifest_with_sizes.files:
        check_file(report, manifest_with_sizes, name, deep=deep)


def check_file(
    report: Report, manifest: Manifest, name: str, *, deep: bool, remedy: str = BUILD
) -> bool:
    """Check that one file of an output exists, and is as it was written.

    Args:
        report: Report on the output.
        manifest: Manifest of the output, perhaps with the sizes of the stored files.
        name: Name of the file.
        deep: Also read the file and compare its sha256.
        remedy: What the user should do if the file is missing or has another size.

    Returns:
        Whether the file passed the check.
    """
    path = manifest.place(name).path
    if manifest.stored is None:
        size = manifest.access.size(path)
    else:
        size = manifest.stored.get(name)
    return check_written(
        report,
        manifest.access,
        path,
        size=size,
        expected=manifest.files[name],
        deep=deep,
        remedy_for_size=remedy,
        # A build compares only sizes. It replaces a file with other bytes only if the manifest is
        # deleted.
        remedy_for_bytes=f"delete {manifest.url()}, and {remedy}",
    )


def check_written(
    report: Report,
    access: FileAccess,
    path: Path,
    *,
    size: int | None,
    expected: FileFact,
    deep: bool,
    remedy_for_size: str,
    remedy_for_bytes: str,
    kind: str = "a file",
) -> bool:
    """Check that a file is as it was written, by its size and in a deep check by its sha256.

    Args:
        report: Report on the output that the file belongs to.
        access: Reads the file.
        path: Path of the file.
        size: Its present size in bytes; None if it is missing.
        expected: Size and sha256 that were recorded when it was written.
        deep: Also read the file and compare its sha256, if one was recorded.
        remedy_for_size: What the user should do if the file is missing or has another size.
        remedy_for_bytes: What the user should do if it has the right size but other bytes.
        kind: What messages call the file.

    Returns:
        Whether the file passed the check.
    """
    url = access.url(path)
    expected_size = f"{expected.size:,} bytes"
    if size is None:
        report.error(
            f"{kind} is missing", where=url, expected=expected_size, remedy=remedy_for_size
        )
        return False
    has_expected_size = report.compare(
        f"{kind} has another size than when it was written",
        where=url,
        found=f"{size:,} bytes",
        expected=expected_size,
        remedy=remedy_for_size,
    )
    if not has_expected_size or not deep or expected.sha256 is None:
        return has_expected_size
    return report.compare(
        f"{kind} has other bytes than when it was written",
        where=url,
        found=f"sha256 {_sha256_of(access, path, expected)}",
        expected=f"sha256 {expected.sha256}",
        remedy=remedy_for_bytes,
    )


def _sha256_of(access: FileAccess, path: Path, expected: FileFact) -> str:
    """Read a file of an output, and return its sha256 in hexadecimal digits.

    An output need not store bytes that another one has: `path` is then the other output's file.

    Args:
        access: Reads the file.
        path: Path of the file.
        expected: Says which range of the file belongs to the output, if not all of it does.
    """
    if expected.within is None:
        stored = access.stored(path)
    else:
        stored = access.stored(path, expected.begin, expected.size)
    return access.store.sha256_of(stored)

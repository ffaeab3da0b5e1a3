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
from nanoset_core.project.project import Project
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key, Node, Stage
from nanoset_core.storage.access import FileAccess


def current_manifest(project: Project, stage: Stage, key: Key) -> Manifest:
    """Return the manifest of an output's current version, without checking its files.

    An output, such as the dataset of the corpus `web`, can have several versions, of which one is
    current. The manifest of a version is a JSON file: it says what the version was made from, and
    lists its files with their sizes and checksums, which a check then compares with the disk.

    Args:
        project: The project.
        stage: The step of the pipeline that makes the output, such as the one for datasets.
        key: Which output of the stage, such as `Key("web")`.

    Raises:
        MissingError: The output has not been built.
        FormatError: The manifest is damaged.
    """
    name = stage.layout.name_of(key)
    manifest = project.outputs.current_even_if_damaged(stage.layout.folder, name)
    if manifest is None:
        folder = project.outputs.folder / stage.layout.path_of(key)
        raise MissingError(
            "this output has not been built",
            where=project.outputs.access.url(folder),
            remedy=f"{BUILD}; `nanoset status` says if that would fail, and why",
        )
    return manifest


def check_freshness(
    report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest
) -> bool:
    """Add a warning to a report if an output is stale, because its inputs or settings have changed.

    Such an output is intact, but a build would replace it. The warning gives the reasons:

        warning: datasets/web: this output is stale
          found: seed: 7 → 8; web changed

    Args:
        report: Report on the output.
        project: The project.
        stage: The step of the pipeline that makes the output.
        key: Which output of the stage.
        manifest: Manifest of its current version, which says what the version was made from.

    Returns:
        Whether the output is up to date.
    """
    # Imported here: the graph imports the list of all stages, and so every file `stage.py`. If this
    # module imported the graph at the top, no `stage.py` could import this module there.
    from nanoset_core.project.graph.built_inputs import changes_against_built_inputs
    from nanoset_core.project.graph.graph import Graph

    graph = Graph(project, known={})  # raw files are not known
    reasons = changes_against_built_inputs(graph, Node(stage, key))
    if not reasons:
        return True
    report.warn(
        "this output is stale",
        where=manifest.folder,
        found="; ".join(reasons),
        # For example, a nanoset cannot continue a run whose datasets have changed.
        remedy=f"{BUILD}; `nanoset status` says if that would fail, and why",
    )
    return False


def check_files(report: Report, manifest: Manifest, *, deep: bool) -> bool:
    """Check that every file of an output exists, with the size that it had when it was written.

    The manifest of the output lists its files. Each file that is missing or has another size
    becomes an error in the report.

    Args:
        report: Report on the output.
        manifest: Manifest of the output.
        deep: Also read the files and compare their sha256. A file is skipped if the manifest has
            none, such as one that a bucket has joined from pieces without reading it.

    Returns:
        Whether all files exist, so that further checks can open them.
    """
    # One request for the sizes of all files, instead of one for each.
    sizes = manifest.sizes()
    manifest_with_sizes = replace(manifest, stored=sizes)
    for name in manifest_with_sizes.files:
        check_file(report, manifest_with_sizes, name, deep=deep)
    return manifest.files.keys() <= sizes.keys()


def check_file(
    report: Report, manifest: Manifest, name: str, *, deep: bool, remedy: str = BUILD
) -> bool:
    """Check that one file of an output exists, and is as it was written. If not, report an error.

    The error also says what the user should do:

        file                                  what to do
        is missing, or has another size       `remedy`, such as to run `nanoset build`
        has the right size, other bytes       delete the output first, then `remedy`; verify again

    Args:
        report: Report on the output.
        manifest: Manifest of the output: lists its files with the sizes that were written.
        name: Name of the file.
        deep: Also read the file and compare its sha256.
        remedy: What makes the file again.

    Returns:
        Whether the file passed the check.
    """
    path = manifest.place(name).path
    if manifest.stored is None:
        size = manifest.access.size(path)
    else:  # the sizes of all files have been looked up together
        size = manifest.stored.get(name)

    return check_written(
        report,
        manifest.access,
        path,
        size=size,
        expected=manifest.files[name],
        deep=deep,
        remedy_for_size=remedy,
        remedy_for_bytes=remedy_for_bytes(manifest, remedy),
    )


def remedy_for_bytes(manifest: Manifest, remedy: str = BUILD) -> str:
    """Return what the user should do about an output that has other bytes than when it was written.

    A build notices a wrong size. It does not notice other bytes, so the user has to delete the
    output. It also does not notice that other outputs were made from these bytes: a deep check
    compares them with the new ones.

    Args:
        manifest: Manifest of the output.
        remedy: How the output is made again.
    """
    return (
        f"delete {manifest.url()}, and {remedy}, then `nanoset verify --deep`: "
        "outputs that were made from it may be damaged, too"
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
    """Read a file of an output, and return its sha256 as hexadecimal digits.

    To save space, an output need not store bytes that another one has. Its manifest then names a
    range of the other output's file, such as the bytes 4096 to 8192, and only that range is read.

    Args:
        access: Reads the file.
        path: Path of the file, perhaps of another output.
        expected: What the manifest says about the file: its size, and its range if it has one.
    """
    if not expected.is_in_other_output:
        return access.sha256(path)
    stored_range = access.stored(path, expected.begin, expected.size)
    return access.store.sha256_of(stored_range)

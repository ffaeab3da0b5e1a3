"""Are an output's files there, and as they were written?"""

from __future__ import annotations

import json
from contextlib import suppress

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, is_digest, read_manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.storage.mirror import bring_manifests, current_bytes, location, stored_sha256, stored_size
from nanoset_core.verification.report import Report


def live_manifest(outputs: OutputRoot, stage: str, name: str, remedy: str) -> Manifest:
    """The manifest of an output's live version, whether or not its files are whole: each that is not is a finding.

    MissingError where the output was not made, FormatError where the manifest cannot be read.
    """
    place = outputs.folder / stage / name
    try:
        digest = json.loads(current_bytes(place / CURRENT))["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        digest = None
    manifest = read_manifest(place / digest) if is_digest(digest) else None
    if manifest is None:
        raise MissingError(f"the {stage} of {name!r} have not been made", where=place, remedy=remedy)
    return manifest


def previous_version(manifest: Manifest) -> Manifest | None:
    """The version of an output that was made last before this one, as far as it is still there and can be read."""
    bring_manifests(manifest.folder.parent, MANIFEST)
    made = (manifest.folder / MANIFEST).stat().st_mtime_ns
    others = []
    for path in manifest.folder.parent.glob(f"*/{MANIFEST}"):
        if not path.parent.is_symlink() and path.stat().st_mtime_ns < made:
            others.append((path.stat().st_mtime_ns, path.parent))
    for _, folder in sorted(others, reverse=True):
        with suppress(FormatError):
            if (found := read_manifest(folder)) is not None:
                return found
    return None


def check_files(manifest: Manifest, output: str, *, deep: bool, remedy: str) -> Report:
    """Check every file that a manifest lists: there, of the size written, and with `deep` of the sha256 noted."""
    report = Report(output)
    for name, fact in manifest.files.items():
        check_file(report, manifest, name, fact.size, fact.sha256 if deep else None, remedy)
    return report


def check_file(report: Report, manifest: Manifest, name: str, size: int, sha256: str | None, remedy: str) -> bool:
    """Note what is wrong with one file of an output; → whether nothing is."""
    path = manifest.folder / name
    found = stored_size(path) if manifest.stored is None else manifest.stored.get(name)
    if found is None:
        report.error("a file is missing", where=location(path), expected=f"{size:,} bytes", remedy=remedy)
        return False
    if found != size:
        report.error(
            "a file has another size than when it was written",
            where=location(path),
            found=f"{found:,} bytes",
            expected=f"{size:,} bytes",
            remedy=remedy,
        )
        return False
    if sha256 is not None and (digest := stored_sha256(path)) != sha256:
        report.error(
            "a file has other bytes than when it was written",
            where=location(path),
            found=f"sha256 {digest}",
            expected=f"sha256 {sha256}",
            remedy=f"delete {location(manifest.folder)}, and {remedy}",
        )
        return False
    return True

"""Does a nanoset's handoff still say what its trainer has to be started with?"""

from __future__ import annotations

from itertools import count, zip_longest

from nanoset_core.loading.opening import HANDOFF, STAGE
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import handoff
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.verification.files import check_file, check_freshness, live_manifest
from nanoset_core.verification.report import Report

_BUILD = "run `nanoset build`"


def verify_handoff(project: Project, name: str, deep: bool = False) -> Report:
    """Check the current handoff of a nanoset: every file is there and holds, line by line, what the live index mappings
    and settings give; where it is stale, what was written. `deep` makes no difference."""
    del deep  # all of it is read in any case
    report = Report(f"{STAGE}/{name}/{HANDOFF}")
    with report.catching(_BUILD):
        manifest = live_manifest(project.outputs, STAGE, f"{name}/{HANDOFF}", _BUILD)
        fresh = check_freshness(report, project, handoff.TRAINER_FILES, Key(name), manifest)
        wanted = handoff.handoff_texts(project, manifest, name) if fresh else {}
        for file, fact in manifest.files.items():
            if file not in wanted:
                check_file(report, manifest, file, fact.size, fact.sha256, _remedy(manifest))
            elif manifest.access.size(manifest.folder / file) is None:
                check_file(report, manifest, file, fact.size, None, _BUILD)
            else:
                _check_text(report, manifest, file, wanted[file])
    return report


def _remedy(manifest: Manifest) -> str:
    return f"delete {manifest.url()}, and {_BUILD}; settings of your own belong behind the arguments, not in them"


def _check_text(report: Report, manifest: Manifest, file: str, wanted: bytes) -> None:
    """Note the first line of a file that is not as it should be."""
    found = manifest.path(file).read_bytes()
    if found == wanted:
        return
    pairs = zip_longest(found.splitlines(keepends=True), wanted.splitlines(keepends=True))
    line, (there, expected) = next((number, pair) for number, pair in zip(count(1), pairs) if pair[0] != pair[1])
    report.error(
        "a line of the handoff is not what the index mappings and settings give",
        where=f"{manifest.url(file)}:{line}",
        found="the end of the file" if there is None else there.decode(errors="replace").rstrip("\n") or "no line end",
        expected="the end of the file" if expected is None else expected.decode().rstrip("\n"),
        remedy=_remedy(manifest),
    )

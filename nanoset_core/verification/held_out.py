"""Is what was found of documents that are held out still so, and may training begin?"""

from __future__ import annotations

from nanoset_core.pipeline.held_out import HELD_OUT, SHARED, finding
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.verification.report import BUILD, Report, check_files, check_freshness, live_manifest


def verify_held_out(project: Project, nanoset: str, deep: bool = False) -> Report:
    """Check what was found for a nanoset: its files, and, with `held_out: block`, that train reads nothing of it."""
    name = HELD_OUT.name(Key(nanoset))
    report = Report(f"{HELD_OUT.folder}/{name}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, HELD_OUT.folder, name)
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, HELD_OUT, Key(nanoset), manifest)
        report.figures.update({count: manifest.facts[count] for count in ("held_out", "shared", "copies")})
        if (found := finding(manifest.facts)) is not None:
            tell = report.error if project.nanoset(nanoset).held_out == "block" else report.warn
            remedy = f"leave these out of what train reads, by `exclude` or `split` of a view; {manifest.url(SHARED)}"
            tell(*found, "none of them", f"{remedy} lists them")
    return report

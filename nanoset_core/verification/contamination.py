"""Is what a section of `contamination` found still so, and may training read it?"""

from __future__ import annotations

from nanoset_core.pipeline import contamination
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.verification.report import BUILD, Report, check_files, check_freshness, live_manifest


def verify_contamination(project: Project, section: str, corpus: str, deep: bool = False) -> Report:
    """Check the current version of what was found in a corpus: its files, and, with `policy: block`, that training
    reads no document with texts of evaluations."""
    stage, key = contamination.CONTAMINATION, Key(section, corpus)
    report = Report(f"{contamination.STAGE}/{section}/{corpus}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, contamination.STAGE, stage.name(key))
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, stage, key, manifest)
        facts = manifest.facts
        report.figures.update({name: facts[name] for name in ("documents", "contaminated", "matches")})
        names = contamination.unclean_names(project.config, section, corpus)
        if facts["contaminated"] and names and project.config.contamination[section].policy == "block":
            where, held = contamination.places_text(facts["first"][0])
            report.error(
                f"{facts['contaminated']:,} documents that training reads hold texts of {section}",
                f"{project.config.corpus_folder(corpus)}/{where}",
                held,
                f"less than {project.config.contamination[section].threshold:.0%} of any text",
                f"read a view with clean_of: [{section}] instead of {', '.join(names)}; "
                f"all places are listed in {manifest.url(contamination.MATCHES)}",
            )
        else:
            for text in stage.warnings(project, manifest):
                report.warn(text, manifest.url(contamination.MATCHES))
    return report

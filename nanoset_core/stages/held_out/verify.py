"""Is what was found of evaluations, and of documents that are held out, still so, and may training
read it?
"""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.contamination import stage as contamination
from nanoset_core.stages.held_out.stage import HELD_OUT, SHARED, finding
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key


def verify_contamination(project: Project, section: str, corpus: str, deep: bool = False) -> Report:
    """Check the current version of what was found in a corpus: its files, and, with `policy:
    block`, that training reads no document with texts of evaluations."""

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        summary = contamination.summary_of(manifest)
        report.figures["contaminated"] = summary.contaminated
        facts, names = manifest.facts, contamination.unclean_names(project.config, section, corpus)
        if (
            facts["contaminated"]
            and names
            and project.config.contamination[section].policy == "block"
        ):
            where, held = contamination.places_text(
                summary.first or summary.most_common or facts["first"][0]
            )
            boilerplate = contamination.boilerplate_text(section, summary)
            what = f"{summary.contaminated:,} documents that training reads hold texts of {section}"
            if boilerplate:
                what = f"{what}; {boilerplate}" if summary.contaminated else boilerplate
            report.error(
                what,
                f"{project.config.corpus_folder(corpus)}/{where}",
                held,
                f"less than {project.config.contamination[section].threshold:.0%} of any text",
                f"read a view with clean_of: [{section}] instead of {', '.join(names)}; "
                f"all places are listed in {manifest.url(contamination.MATCHES)}",
            )
        else:
            for text in contamination.CONTAMINATION.show(project, manifest).warnings:
                report.warn(text, manifest.url(contamination.MATCHES))

    key, figures = Key(section, corpus), ("documents", "contaminated", "matches")
    return check_current(project, contamination.CONTAMINATION, key, look, *figures, deep=deep)


def verify_held_out(project: Project, nanoset: str, deep: bool = False) -> Report:
    """Check what was found for a nanoset: its files, and, with `held_out: block`, that train reads
    nothing of it.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        if (found := finding(manifest.facts)) is not None:
            tell = report.error if project.nanoset(nanoset).held_out == "block" else report.warn
            remedy = f"leave these out of what train reads, by `exclude` or `split` of a view; {manifest.url(SHARED)}"
            tell(*found, "none of them", f"{remedy} lists them")

    return check_current(
        project, HELD_OUT, Key(nanoset), look, "held_out", "shared", "copies", deep=deep
    )

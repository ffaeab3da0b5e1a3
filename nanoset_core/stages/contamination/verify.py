"""Verify contamination: whether a result is current and whole, and whether it blocks training."""

from __future__ import annotations

from functools import partial

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.contamination.matches import MATCHES, MatchSummary, summary_of
from nanoset_core.stages.contamination.scope import unclean_names
from nanoset_core.stages.contamination.show import (
    boilerplate_text,
    contamination_warnings,
    describe_match,
)
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key


def verify_contamination(project: Project, key: Key, *, deep: bool = False) -> Report:
    """Check the current version of what a section found in a corpus.

    With `policy: block`, it is an error if training reads a document that holds evaluation texts.
    """
    return check_current(
        project,
        CONTAMINATION,
        key,
        partial(_check_policy, project, key),
        "documents",
        "contaminated",
        "matches",
        deep=deep,
    )


def _check_policy(
    project: Project, key: Key, report: Report, manifest: Manifest, is_fresh: bool
) -> None:
    """Report contaminated documents: as an error if they block training, otherwise as a warning.

    Args:
        project: The project.
        key: The section and the corpus.
        report: The errors and warnings are added to it.
        manifest: The result.
        is_fresh: Not used: documents of a stale result are reported, too.
    """
    section = key.subject
    corpus = key.part or ""
    matches = summary_of(manifest)
    report.figures["contaminated"] = matches.contaminated

    readers = unclean_names(project.config, section, corpus)
    has_blocking_policy = project.config.contamination[section].policy == "block"
    is_contaminated = manifest.facts["contaminated"] > 0
    blocks_training = has_blocking_policy and is_contaminated and bool(readers)
    if not blocks_training:
        for warning in contamination_warnings(project, manifest):
            report.warn(warning, where=manifest.url(MATCHES))
        return

    # Show a match that is not boilerplate, if there is one.
    example = matches.first or matches.most_common or manifest.facts["first"][0]
    passage = describe_match(example)
    threshold = project.config.contamination[section].threshold
    report.error(
        _blocking_text(section, matches),
        where=f"{project.config.corpus_folder(corpus)}/{passage.document}",
        found=passage.text,
        expected=f"less than {threshold:.0%} of any text",
        remedy=f"read a view with clean_of: [{section}] instead of {', '.join(readers)}; "
        f"all places are listed in {manifest.url(MATCHES)}",
    )


def _blocking_text(section: str, matches: MatchSummary) -> str:
    """Return the error: how many documents contain texts of a section, and how many boilerplate."""
    boilerplate = boilerplate_text(section, matches)
    if boilerplate and not matches.contaminated:
        return boilerplate
    text = f"{matches.contaminated:,} documents that training reads hold texts of {section}"
    if boilerplate:
        text += f"; {boilerplate}"
    return text

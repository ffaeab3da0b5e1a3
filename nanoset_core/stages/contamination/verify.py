"""Verify contamination: whether a result is current and whole, and whether it blocks training.

A result says which documents of a corpus contain evaluation texts. If the section sets `policy:
block`, and training reads one of these documents, this is an error, and otherwise a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.contamination.matches import MATCHES, MatchSummary, summary_of
from nanoset_core.stages.contamination.scope import contaminated_inputs_of_training
from nanoset_core.stages.contamination.show import (
    boilerplate_text,
    contamination_warnings,
    describe_match,
)
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key


def verify_contamination(project: Project, key: Key, *, deep: bool = False) -> Report:
    """Check the result of searching a corpus for evaluation texts, and report what was found.

    Args:
        project: The project.
        key: The section of `contamination` in nanoset.yaml, and the corpus.
        deep: Compare the sha256 of the result's files; otherwise only their sizes.

    Returns:
        The report. Contaminated documents are an error in it if they block training, and a warning
        otherwise.
    """
    report = Report(CONTAMINATION.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, CONTAMINATION, key)
        report.copy_facts(manifest, ["documents", "contaminated", "matches"])
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, CONTAMINATION, key, manifest)
        _report_matches(report, project, key, manifest)  # even if the result is stale
    return report


def _report_matches(report: Report, project: Project, key: Key, manifest: Manifest) -> None:
    """Report contaminated documents: as an error if they block training, otherwise as a warning.

    Args:
        report: Receives the error or the warnings.
        project: The project.
        key: The section of `contamination` in nanoset.yaml, and the corpus.
        manifest: Manifest of the result.
    """
    # The count leaves out documents that only have boilerplate. A text that very many documents
    # contain is probably no leak.
    matches = summary_of(manifest)
    report.figures["contaminated"] = matches.contaminated

    if not _blocks_training(project, key, manifest):
        for warning in contamination_warnings(project, manifest):
            report.warn(warning, where=manifest.url(MATCHES))
        return

    # Quote a match that is not boilerplate, or else the most common boilerplate.
    example = matches.first or matches.most_common or manifest.facts["first"][0]
    _report_blocking_match(report, project, key, matches, example, manifest.url(MATCHES))


def _report_blocking_match(
    report: Report,
    project: Project,
    key: Key,
    matches: MatchSummary,
    example: Mapping[str, Any],
    table_url: str,
) -> None:
    """Report the error that training would read documents with evaluation texts.

    The error quotes one of them, and says which datasets to replace by a view without them.

    Args:
        report: Receives the error.
        project: The project.
        key: The section of `contamination` in nanoset.yaml, and the corpus.
        matches: Counts of what was found in the corpus.
        example: The match that the error quotes.
        table_url: Where all matches are listed.
    """
    section = key.subject
    corpus = key.part or ""
    passage = describe_match(example)
    threshold = project.config.contamination[section].threshold
    contaminated_datasets = contaminated_inputs_of_training(project.config, section, corpus)
    report.error(
        _blocking_text(section, matches),
        where=f"{project.config.corpus_folder(corpus)}/{passage.document}",
        found=passage.text,
        expected=f"less than {threshold:.0%} of any text",
        remedy=f"read a view with clean_of: [{section}] instead of "
        f"{', '.join(contaminated_datasets)}; "
        f"all places are listed in {table_url}",
    )


def _blocks_training(project: Project, key: Key, manifest: Manifest) -> bool:
    """Return whether contaminated documents must keep training from starting.

    They must if the section sets `policy: block`, and training reads the corpus without leaving
    these documents out. Boilerplate blocks training like other texts.
    """
    if project.config.contamination[key.subject].policy != "block":
        return False
    if manifest.facts["contaminated"] == 0:
        return False
    return bool(contaminated_inputs_of_training(project.config, key.subject, key.part or ""))


def _blocking_text(section: str, matches: MatchSummary) -> str:
    """Return the text of the error: how many documents hold texts of a section, or boilerplate.

    Args:
        section: Name of the section of `contamination` in nanoset.yaml.
        matches: What was found in the corpus.
    """
    boilerplate = boilerplate_text(section, matches)
    if boilerplate and not matches.contaminated:
        return boilerplate
    text = f"{matches.contaminated:,} documents that training reads hold texts of {section}"
    if boilerplate:
        text += f"; {boilerplate}"
    return text

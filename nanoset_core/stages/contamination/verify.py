"""Verify contamination: whether a result is current and whole, and whether it blocks training.

A result says which documents of a corpus contain evaluation texts. If the section sets `policy:
block`, and training reads one of these documents, this is an error, and otherwise a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
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
    """Check a list of documents that contain evaluation texts, and report these documents.

    An earlier step has searched a corpus and stored the list. This checks that the list is whole
    and up to date. Then it reports what is in it.

    Args:
        project: The project.
        key: Which list: the section of `contamination` with the evaluation files, and the corpus.
        deep: Compare the sha256 of the stored files; otherwise only their sizes.

    Returns:
        The report. Such documents are an error in it if a training run must not start with them,
        and a warning otherwise.
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
    """Report documents that contain evaluation texts, as an error or as warnings.

    It is an error if a training run would read them, and the settings forbid that.

    Args:
        report: Gets the error or the warnings.
        project: The project.
        key: The section of `contamination` with the evaluation files, and the corpus.
        manifest: What is recorded about the search of the corpus.
    """
    matches = summary_of(manifest)
    report.figures["contaminated"] = matches.contaminated
    table_url = manifest.url(MATCHES)

    example = matches.example  # the document that an error quotes; None if there is none
    if example is not None and _blocks_training(project.config, key):
        _report_blocking_match(report, project, key, matches, example, table_url)
    else:
        for warning in contamination_warnings(project, manifest):
            report.warn(warning, where=table_url)


def _report_blocking_match(
    report: Report,
    project: Project,
    key: Key,
    matches: MatchSummary,
    example: Mapping[str, Any],
    table_url: str,
) -> None:
    """Report the error that a training run would read documents with evaluation texts.

    It quotes one of them, and says how to leave them out: the run should read a view, a selection
    of the corpus's documents. For example:

        2 documents that training reads hold texts of evals
        where       web/a.jsonl:12
        found       87% of quiz.jsonl:3: 'how tired are their'
        expected    less than 55% of any text
        remedy      read a view with clean_of: [evals] instead of web; …

    Args:
        report: Gets the error.
        project: The project.
        key: The section of `contamination` with the evaluation files, and the corpus.
        matches: Counts of what was found in the corpus.
        example: The document and the text that the error quotes.
        table_url: Where all such documents are listed.
    """
    section = key.subject  # evals
    corpus = key.part or ""  # web
    corpus_folder = project.config.corpus_folder(corpus)
    passage = describe_match(example)  # "a.jsonl:12", and "87% of quiz.jsonl:3: …"
    threshold = project.config.contamination[section].threshold  # 0.55

    # What training reads now: the corpus, or other datasets with documents of it.
    inputs = contaminated_inputs_of_training(project.config, section, corpus)
    datasets = ", ".join(inputs)
    report.error(
        _blocking_text(section, matches),
        where=f"{corpus_folder}/{passage.document}",
        found=passage.text,
        expected=f"less than {threshold:.0%} of any text",
        remedy=f"read a view with clean_of: [{section}] instead of {datasets}; "
        f"all places are listed in {table_url}",
    )


def _blocks_training(config: ProjectConfig, key: Key) -> bool:
    """Return whether no training run may start while a corpus has texts of an evaluation.

    This is so if the settings of the evaluation say `policy: block`, and if a run reads the corpus.
    A run may also read a selection of the corpus without such documents: this does no harm.

    Args:
        config: The settings of the project.
        key: The names of the evaluation and of the corpus, as `subject` and `part`.
    """
    evaluation = key.subject  # such as evals
    corpus = key.part or ""  # such as web; a search always has a corpus, so it is never ""
    if config.contamination[evaluation].policy != "block":
        return False
    contaminated_inputs = contaminated_inputs_of_training(config, evaluation, corpus)
    return len(contaminated_inputs) > 0


def _blocking_text(section: str, matches: MatchSummary) -> str:
    """Return the text of the error that a training run would read documents with evaluation texts.

    For example, "2 documents that training reads hold texts of evals". Texts that very many
    documents contain, such as a licence, are boilerplate, and are described separately.

    Args:
        section: Name of the evaluation in the settings, such as "evals".
        matches: What was found in the corpus.
    """
    boilerplate = boilerplate_text(section, matches)  # "" if there is none
    if boilerplate and matches.contaminated == 0:
        return boilerplate  # there is nothing else
    text = f"{matches.contaminated:,} documents that training reads hold texts of {section}"
    if boilerplate:
        text += f"; {boilerplate}"
    return text

"""Verify contamination: whether a result is current and whole, and whether training is allowed.

A result says which documents of a corpus contain evaluation texts. Here these are only warnings. If
the section sets `policy: block`, the result also forbids making files with which a run would train
on such documents: `check_not_contaminated` raises the error.
"""

from __future__ import annotations

from nanoset_core.errors import ForbiddenError
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
from nanoset_core.wording import format_count


def verify_contamination(project: Project, key: Key, *, deep: bool) -> Report:
    """Check a list of documents that contain evaluation texts, and report these documents.

    An earlier step has searched a corpus and stored the list. This checks that the list is whole
    and up to date. Then it reports what is in it.

    Args:
        project: The project.
        key: Which list: the section of `contamination` with the evaluation files, and the corpus.
        deep: Compare the sha256 of the stored files; otherwise only their sizes.

    Returns:
        The report. Such documents are warnings in it, whatever the policy: the list is right, and
        outputs that leave the documents out can be made.
    """
    report = Report(CONTAMINATION.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, CONTAMINATION, key)
        report.copy_facts(manifest, ["documents", "contaminated", "matches"])
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, CONTAMINATION, key, manifest)

        # Report the documents even if the list is stale.
        report.figures["contaminated"] = summary_of(manifest).contaminated
        for warning in contamination_warnings(project, manifest):
            report.warn(warning, where=manifest.url(MATCHES))
    return report


def check_not_contaminated(project: Project, key: Key, manifest: Manifest) -> None:
    """Check that no document of a corpus contains an evaluation text, so that a run may read it.

    The error quotes one of these documents, and says how to leave them out: the run should read a
    view, a selection of the corpus's documents. For example:

        2 documents that training reads hold texts of evals
        where       web/a.jsonl:12
        found       87% of quiz.jsonl:3: 'how tired are their'
        expected    less than 55% of any text
        remedy      read a view with clean_of: [evals] instead of web; …

    Args:
        project: The project.
        key: The section of `contamination` with the evaluation files, and the corpus.
        manifest: What is recorded about the search of the corpus.

    Raises:
        ForbiddenError: There are such documents.
    """
    matches = summary_of(manifest)
    if matches.example is None:
        return

    section = key.subject  # evals
    corpus = key.required_part  # web
    corpus_folder = project.config.corpus_folder(corpus)
    passage = describe_match(matches.example)  # "a.jsonl:12", and "87% of quiz.jsonl:3: …"
    threshold = project.config.contamination[section].threshold  # 0.55

    # What training reads now: the corpus, or other datasets with documents of it.
    inputs = contaminated_inputs_of_training(project.config, section, corpus)
    datasets = ", ".join(inputs)
    raise ForbiddenError(
        _blocking_text(section, matches),
        where=f"{corpus_folder}/{passage.document}",
        found=passage.text,
        expected=f"less than {threshold:.0%} of any text",
        remedy=f"read a view with clean_of: [{section}] instead of {datasets}; "
        f"all places are listed in {manifest.url(MATCHES)}",
    )


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
    documents = format_count(matches.contaminated, "document")
    verb = "holds" if matches.contaminated == 1 else "hold"
    text = f"{documents} that training reads {verb} texts of {section}"
    if boilerplate:
        text += f"; {boilerplate}"
    return text

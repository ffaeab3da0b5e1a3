"""What people are shown of contamination: counts, and warnings that quote a match.

For example: "2 documents hold texts of evals; a.jsonl:12 holds 87% of quiz.jsonl:3: 'how tired
are'".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.matches import (
    BOILERPLATE_DOCUMENTS,
    MatchSummary,
    summary_of,
)
from nanoset_core.stages.contamination.names import LAYOUT
from nanoset_core.stages.contamination.scope import contaminated_inputs_of_training
from nanoset_core.stages.stage import Key, Summary, size_bytes
from nanoset_core.wording import format_count


def contamination_summary(project: Project, manifest: Manifest) -> Summary:
    """Return what commands show of a search for evaluation texts in a corpus: counts and warnings.

    For example:

        documents           10,000
        contaminated        2          documents that contain an evaluation text
        texts               1,319      evaluation texts that were looked for
        too short           17         of these, texts with so few letters that none can be found
        boilerplate only    300        documents that only contain a text such as a licence

    A text that is in very many documents, such as a licence, is boilerplate, and not a question
    that leaked. So documents with nothing else are counted separately.

    Args:
        project: The project.
        manifest: What is recorded about the search.
    """
    facts = manifest.facts
    matches = summary_of(manifest)
    figures = {
        "documents": int(facts["documents"]),
        "contaminated": matches.contaminated,
        "bytes": size_bytes(manifest),
    }
    details = {
        "texts": f"{facts['evaluation_texts']:,}",
        "too short": f"{facts['evaluation_too_short']:,}",
    }
    if matches.boilerplate_texts > 0:
        details["boilerplate only"] = f"{matches.boilerplate_documents:,}"
    return Summary(figures, details, contamination_warnings(project, manifest))


def contamination_warnings(project: Project, manifest: Manifest) -> list[str]:
    """Return warnings for users on documents of a corpus that contain evaluation texts.

    There are two kinds of such texts, with a warning each:

        texts that leaked:
            2 documents hold texts of evals; a.jsonl:12 holds 87% of quiz.jsonl:3: 'how tired are'

        boilerplate, which very many documents contain, such as a licence:
            1 text of evals is in 100 documents or more, probably as boilerplate: …

    Args:
        project: The project.
        manifest: What is recorded about the search of one corpus for the texts of one evaluation.
    """
    key = LAYOUT.key_of(manifest.name)  # names of the evaluation and of the corpus
    if key is None or key.subject not in project.config.contamination:
        return []  # the evaluation was removed from nanoset.yaml
    if not _has_to_warn(project, key):
        return []

    evaluation = key.subject
    matches = summary_of(manifest)
    warnings = []
    if matches.first is not None:
        warnings.append(_leaked_text(evaluation, matches.contaminated, matches.first))
    if matches.boilerplate_texts:
        warnings.append(boilerplate_text(evaluation, matches))
    return warnings


def _has_to_warn(project: Project, key: Key) -> bool:
    """Return whether contaminated documents of a corpus are worth a warning.

    With `policy: warn` in the settings, they always are; otherwise only if training reads them.

    Args:
        project: The project. Its settings say what training reads.
        key: The section of `contamination`, and the corpus.
    """
    if project.config.contamination[key.subject].policy == "warn":
        return True
    return bool(contaminated_inputs_of_training(project.config, key.subject, key.required_part))


def _leaked_text(section: str, n_documents: int, first_match: Mapping[str, Any]) -> str:
    """Describe texts that leaked, with the first match as an example."""
    passage = describe_match(first_match)
    documents = format_count(n_documents, "document")
    verb = "holds" if n_documents == 1 else "hold"
    return f"{documents} {verb} texts of {section}; {passage.document} holds {passage.text}"


class MatchDescription(NamedTuple):
    """A match in words."""

    document: str
    """File and line of the document."""
    text: str
    """Which share of which evaluation text the document contains, with an excerpt."""


def describe_match(match: Mapping[str, Any]) -> MatchDescription:
    """Describe in words that a document contains an evaluation text, or a part of it.

    For example, "a.jsonl:12", and "87% of quiz.jsonl:3: 'how tired are their'".

    Args:
        match: File and line of both, the share of the text, and the first words that both have.
    """
    evaluation_place = f"{match['evaluation_file']}:{match['evaluation_line']}"
    return MatchDescription(
        document=f"{match['file']}:{match['line']}",
        text=f"{match['share']:.0%} of {evaluation_place}: {match['words']!r}",
    )


def boilerplate_text(section: str, matches: MatchSummary) -> str:
    """Say how many evaluation texts are in very many documents, such as a licence.

    Such texts are probably no leak, but boilerplate. The text has three parts:

        1 text of evals is in 100 documents or more, probably as boilerplate
        300 documents hold nothing else of evals                                   (and no leak)
        280 hold 100% of quiz.jsonl:3: 'choose the right answer'                   (the example)

    Args:
        section: Name of the evaluation in the settings, such as "evals".
        matches: What was found in a corpus.

    Returns:
        The text, or "" if no text is in so many documents.
    """
    if matches.most_common is None:  # no text is boilerplate
        return ""

    # "1 text of evals is in 100 documents or more, probably as boilerplate"
    texts = format_count(matches.boilerplate_texts, "text")
    verb = "is" if matches.boilerplate_texts == 1 else "are"
    what = f"{texts} of {section} {verb} in {BOILERPLATE_DOCUMENTS} documents or more"

    # "300 documents hold nothing else of evals"
    documents = format_count(matches.boilerplate_documents, "document")
    how_often = f"{documents} hold nothing else of {section}"

    # "280 hold 100% of quiz.jsonl:3: 'choose the right answer'"
    text = describe_match(matches.most_common).text
    example = f"{matches.most_common_documents:,} hold {text}"
    return f"{what}, probably as boilerplate: {how_often}; {example}"

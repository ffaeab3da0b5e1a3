"""What people are shown of contamination: counts, and warnings that quote a match.

For example: "2 documents hold texts of evals; a.jsonl:12 holds 87% of quiz.jsonl:3: 'how tired
are'".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.contamination.layouts import LAYOUT
from nanoset_core.stages.contamination.matches import (
    BOILERPLATE_DOCUMENTS,
    MatchSummary,
    summary_of,
)
from nanoset_core.stages.contamination.scope import contaminated_inputs_of_training
from nanoset_core.stages.stage import Key, Summary, counted


def contamination_summary(project: Project, manifest: Manifest) -> Summary:
    """Return counts and warnings on the evaluation texts that were found in a corpus.

    Args:
        project: The project.
        manifest: Manifest of the result of one section of `contamination` for one corpus.
    """
    facts = manifest.facts
    matches = summary_of(manifest)
    figures = counted(manifest, "documents", "contaminated")
    # The manifest also counts documents that hold only boilerplate, which is text that very many
    # documents contain. People are shown the count without these.
    figures["contaminated"] = matches.contaminated

    # Evaluation texts with very few letters cannot be found, so users are told how many there are.
    details = {
        "texts": f"{facts['evaluation_texts']:,}",
        "too short": f"{facts['evaluation_too_short']:,}",
    }
    if matches.boilerplate_texts > 0:
        details["boilerplate only"] = f"{matches.boilerplate_documents:,}"
    return Summary(figures, details, contamination_warnings(project, manifest))


def contamination_warnings(project: Project, manifest: Manifest) -> list[str]:
    """Return warnings on documents of a corpus that contain evaluation texts.

    A section with `policy: warn` always warns, others only if training reads such a document.

    Args:
        project: The project.
        manifest: Manifest of the result of one section of `contamination` for one corpus.

    Returns:
        Up to two: on texts that leaked, with an example, and on boilerplate, which is text that
        very many documents contain.
    """
    key = LAYOUT.key_of(manifest.name)
    if key is None or key.subject not in project.config.contamination:
        return []  # the section was removed from nanoset.yaml
    if manifest.facts["contaminated"] == 0 or not _has_to_warn(project, key):
        return []

    section = key.subject
    matches = summary_of(manifest)
    warnings = []
    if matches.first is not None:
        warnings.append(_leaked_text(section, matches.contaminated, matches.first))
    if matches.boilerplate_texts:
        warnings.append(boilerplate_text(section, matches))
    return warnings


def _has_to_warn(project: Project, key: Key) -> bool:
    """Return whether contaminated documents of a corpus are worth a warning.

    Args:
        project: The project. Its settings say what training reads.
        key: The section of `contamination`, and the corpus.
    """
    if project.config.contamination[key.subject].policy == "warn":
        return True
    # Otherwise only if training reads them.
    return bool(contaminated_inputs_of_training(project.config, key.subject, key.part or ""))


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
    """Describe the match of a document and an evaluation text.

    Args:
        match: Row of the table of matches.

    Returns:
        Such as "a.jsonl:12", and "87% of quiz.jsonl:3: 'how tired are their'".
    """
    evaluation_place = f"{match['evaluation_file']}:{match['evaluation_line']}"
    return MatchDescription(
        document=f"{match['file']}:{match['line']}",
        text=f"{match['share']:.0%} of {evaluation_place}: {match['words']!r}",
    )


def boilerplate_text(section: str, matches: MatchSummary) -> str:
    """Describe the boilerplate that was found: texts that very many documents contain.

    Args:
        section: The section of `contamination` in nanoset.yaml, which names the evaluation.
        matches: What was found in a corpus.

    Returns:
        A clause, such as "1 text of evals is in 100 documents or more, probably as boilerplate: …",
        or "" if no text is boilerplate.
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

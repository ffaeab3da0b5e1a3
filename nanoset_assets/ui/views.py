"""The page of `views`: what each rule selected, the first documents, and what reads the view.

A view is a dataset of those documents of a corpus that its rules select, such as "score of 3 or
more". It is an index over the tokens of the corpus, which it does not copy. The page has a row for
each rule, with the documents that are left after it, and warns of rules that cannot be fulfilled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.dataset import readers_text
from nanoset_assets.ui.metadata import bold_text, code, counts_text, facts_of, markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes
from nanoset_core.stages.stage import size_bytes
from nanoset_core.stages.views.facts import (
    TOPS,
    cut_text,
    gap_warnings,
    step_rows,
    top_table,
    top_warnings,
)
from nanoset_core.untrusted import markdown_text


def view_page(run: AssetRun) -> dict[str, Any]:
    """Select the documents of a view, a dataset that rules define, and return what the UI shows.

    Args:
        run: The run of the asset `views` for one view of nanoset.yaml.

    Returns:
        Name → value, as Dagster's UI shows them; see `view_metadata`.

    Raises:
        NanosetError: The view could not be made.
    """
    return view_metadata(run.project, run.make())


def view_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of a view, a dataset of documents that rules select.

    Args:
        project: Its outputs and settings are read.
        manifest: Manifest of the view, the record of its files and counts.

    Returns:
        Name → value: a summary in sentences, a table of the rules, histograms, the first documents
        as text, the path that trainers are given, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    corpus = code(facts["corpus"])
    index_bytes = size_bytes(manifest)
    size_text = (
        f"{counts_text(facts)} of {corpus}. The view is an index of {format_bytes(index_bytes)}; "
        "its tokens are those of the corpus."
    )
    readers = readers_text(project, manifest.name)  # the data mixtures that read the view
    summary = markdown(size_text, *_warnings(manifest), *_cut_texts(facts), readers)
    return {
        "summary": summary,
        "chosen": table(_rule_rows(facts)),
        **_histograms(facts),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and the .idx
        "dagster/partition_row_count": facts["documents"],
        "index_bytes": index_bytes,
        **facts_of(manifest, "documents", "sequences", "tokens", "dtype"),
    }


def _warnings(manifest: Manifest) -> list[str]:
    """Return warnings, as bold Markdown, of rules that select fewer documents than they ask for.

    Args:
        manifest: Manifest of the view. Its rules may list ids that no document has, or have a
            budget of documents or tokens that is not filled.
    """
    facts = manifest.facts  # what was counted when the output was made
    warnings: list[str] = []
    for rule, count in facts["missing_ids"].items():
        warnings.append(f"**{count:,} ids of {code(rule)} match no document.**")
    # A rule may select up to 1,000 tokens, for example, but have only 700: the next document has
    # more tokens than are left.
    for warning in gap_warnings(facts, manifest.name):
        warnings.append(bold_text(warning))
    # A rule may select the 100 documents with the best score, but only 90 have a score.
    for warning in top_warnings(facts, manifest.name):
        warnings.append(bold_text(warning))
    return warnings


def _cut_texts(facts: Mapping[str, Any]) -> list[str]:
    """Return in words which values each rule `top`, which selects the best documents, chooses."""
    return [markdown_text(cut_text(top)) for top in facts.get(TOPS, [])]


def _histograms(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a histogram of the column of each rule `top`, named `top`, `top_2` and so on.

    Args:
        facts: What was counted when the view was made. A rule `top` selects the documents with the
            highest (or lowest) values of a column, up to a budget of tokens or documents.
    """
    metadata: dict[str, Any] = {}
    for number, top in enumerate(facts.get(TOPS, []), start=1):
        name = "top" if number == 1 else f"top_{number}"
        metadata[name] = table(top_table(top))
    return metadata


def _rule_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each rule that selects a view's documents, with what is left after it.

    Args:
        facts: What was counted when the view was made. If it was chosen from another view, the
            rules of that one are included.
    """
    rows: list[dict[str, Any]] = []
    for rule in step_rows(facts):
        row = {
            "of": rule.view,
            "rule": rule.step,  # in words
            "documents": rule.documents,
            "tokens": rule.tokens,
            "left": rule.bar,  # such as "█████ 25.0%" of the corpus's documents
        }
        rows.append(row)
    return rows

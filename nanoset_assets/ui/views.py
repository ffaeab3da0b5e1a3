"""The page of `views`: what each rule selected, the first documents, and what reads the view.

A view is a dataset of those documents of a corpus that its rules select, such as "score of 3 or
more". It is an index over the tokens of the corpus, which it does not copy. The page has a row for
each rule, with the documents that are left after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.dataset import readers_text
from nanoset_assets.ui.metadata import code, counts_text, facts_of, markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.views.facts import (
    TOPS,
    cut_texts,
    step_rows,
    top_table,
)
from nanoset_core.stages.views.stage import index_bytes
from nanoset_core.untrusted import markdown_text
from nanoset_core.wording import format_bytes


def view_page(run: AssetRun) -> dict[str, Any]:
    """Make a view, which is a selection of a corpus's documents; return what the UI shows of it.

    For example, the view has all documents of the text collection `web` with a score of 3 or more.

    Args:
        run: Executes the Dagster asset `views` for one view that the settings define. `run.make()`
            selects the documents, and returns the manifest: the record of the files and of what was
            counted.

    Returns:
        What the page of the asset shows: heading → value. See `view_metadata`.

    Raises:
        NanosetError: The view could not be made.
    """
    manifest = run.make()
    return view_metadata(run.project, manifest)


def view_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of a view, which is a selection of a corpus's documents.

    Args:
        project: Gives access to the documents and to the settings, which say what reads the view.
        manifest: The record of the view: its files, and what was counted.

    Returns:
        Heading → value: a text, a table or a number.
    """
    facts = manifest.facts  # what was counted when the documents were selected
    corpus = code(facts["corpus"])
    n_index_bytes = index_bytes(manifest)
    size_text = (
        f"{counts_text(facts)} of {corpus}. The view is an index of {format_bytes(n_index_bytes)}; "
        "its tokens are those of the corpus."
    )
    readers = readers_text(project, manifest.name)  # the data mixtures that read the view
    summary = markdown(size_text, *_cut_texts(facts, manifest.name), readers)
    return {
        "summary": summary,
        "chosen": table(_rule_rows(facts)),  # 6,000 of 10,000 documents are English, …
        **_histograms(facts),  # of the scores, for example
        "first_documents": first_documents(project, manifest),  # the start of their text
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and .idx that trainers read
        "dagster/partition_row_count": facts["documents"],  # Dagster shows it as the size
        "index_bytes": n_index_bytes,
        **facts_of(manifest, "documents", "sequences", "tokens", "dtype"),
    }


def _cut_texts(facts: Mapping[str, Any], name: str) -> list[str]:
    """Describe, for each rule such as "the 1,000 best documents", the last document that it takes.

    Users want to know, for example, that the 1,000th document has a score of 3.5.

    Args:
        facts: What was counted when the documents were selected. Its entry `TOPS` has what each
            such rule has counted. It is missing if there are none.
        name: Name of the view.

    Returns:
        A sentence for each of these rules, as Markdown.
    """
    return [markdown_text(text) for text in cut_texts(facts, name)]


def _histograms(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a histogram for each rule that takes the documents with the best values of a column.

    For example, a rule takes the 1,000 documents with the highest score. Its histogram says how
    many documents have a score from 0 to 1, from 1 to 2 and so on, and how many of them are chosen.
    So the user sees whether the number is right.

    Args:
        facts: What was counted when the documents were selected. There may be no such rules.

    Returns:
        Heading → table: `top` for the first rule, `top_2` for the second one, and so on.
    """
    metadata: dict[str, Any] = {}
    for number, top in enumerate(facts.get(TOPS, []), start=1):
        name = "top" if number == 1 else f"top_{number}"
        metadata[name] = table(top_table(top))
    return metadata


def _rule_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table of what each rule leaves of a corpus, in the order in which they are applied.

    For example, the view `best` selects the best English documents:

        of      rule                             documents   tokens      left
                all                              10,000      7,500,000   ████████████████████ 100.0%
        best    where lang = 'en'                6,000       4,100,000   ████████████ 60.0%
        best    top 1,000 documents by quality   1,000       690,000     ██ 10.0%

    Args:
        facts: What was counted when the documents were selected. A view can select from another
            one; then the rules of that one come first.

    Returns:
        A row for each rule: heading of a column → value.
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

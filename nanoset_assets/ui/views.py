"""The page of `views`: what each rule selected, the first documents, and what reads the view."""

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
    """Make a view, and return its metadata."""
    return view_metadata(run.project, run.make())


def view_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of a view, a dataset of documents that rules select."""
    facts = manifest.facts
    index_bytes = size_bytes(manifest)
    index_size = format_bytes(index_bytes)
    summary = (
        f"{counts_text(facts)} of {code(facts['corpus'])}. The view is an index of {index_size}; "
        "its tokens are those of the corpus."
    )
    readers = readers_text(project, manifest.name)
    return {
        "summary": markdown(summary, *_warnings(manifest), *_cut_texts(facts), readers),
        "chosen": table(_rule_rows(facts)),
        **_histograms(facts),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        "index_bytes": index_bytes,
        **facts_of(manifest, "documents", "sequences", "tokens", "dtype"),
    }


def _warnings(manifest: Manifest) -> list[str]:
    """Return warnings of listed ids that no document has, and of budgets that are not filled."""
    warnings: list[str] = []
    for key, count in manifest.facts["missing_ids"].items():
        warnings.append(f"**{count:,} ids of {code(key)} match no document.**")
    for gap in gap_warnings(manifest.facts, manifest.name):
        warnings.append(bold_text(gap))
    for warning in top_warnings(manifest.facts, manifest.name):
        warnings.append(bold_text(warning))
    return warnings


def _cut_texts(facts: Mapping[str, Any]) -> list[str]:
    """Return in words which values each rule `top` chooses."""
    return [markdown_text(cut_text(top)) for top in facts.get(TOPS, [])]


def _histograms(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a histogram of the column of each rule `top`, named `top`, `top_2` and so on."""
    metadata: dict[str, Any] = {}
    for number, top in enumerate(facts.get(TOPS, []), start=1):
        name = "top" if number == 1 else f"top_{number}"
        metadata[name] = table(top_table(top))
    return metadata


def _rule_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each rule of a view, with the documents that are left after it."""
    rows: list[dict[str, Any]] = []
    for step in step_rows(facts):
        row = {
            "of": step.view,
            "rule": step.step,
            "documents": step.documents,
            "tokens": step.tokens,
            "left": step.bar,
        }
        rows.append(row)
    return rows

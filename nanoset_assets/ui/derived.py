"""Metadata of what is made of a corpus's dataset: views, packs, exports, and what was found of evaluations."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.ui.corpus import readers
from nanoset_assets.ui.metadata import code, markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.contamination.stage import MATCHES, boilerplate_text, summary_of
from nanoset_core.stages.exports.formats import FORMATS
from nanoset_core.stages.views.choosing import gap_warnings, step_rows
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.untrusted import markdown_text


def view_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a view's dataset: what each rule left, its first documents, and what reads it."""
    facts, size = manifest.facts, VIEW.show(project, manifest).figures["bytes"]
    counts = f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"
    missing = [f"**{count:,} ids of {code(key)} are of no document.**" for key, count in facts["missing_ids"].items()]
    gaps = [f"**{markdown_text(text)}**" for text in gap_warnings(facts, manifest.name)]
    summary = f"{counts} of `{facts['corpus']}`, in an index of {format_bytes(size)} over the tokens of its dataset."
    rows = [
        {"of": row.view, "rule": row.step, "documents": row.documents, "tokens": row.tokens, "left": row.bar}
        for row in step_rows(facts)
    ]
    return {
        "summary": markdown(summary, *missing, *gaps, readers(project, manifest.name)),
        "chosen": table(rows),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        "index_bytes": size,
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "dtype")},
    }


def pack_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of packs: their counts beside those of concatenation, and what reads them."""
    facts = manifest.facts
    counts = f"**{format_count(facts['packs'], 'pack')} of {format_count(facts['length'], 'token')}**"
    apart, padding = facts["concatenated"], facts["padding"]
    share = padding / facts["tokens"] if facts["tokens"] else 0
    summary = f"{counts} of {format_count(facts['documents'], 'document')} of `{facts['of']}`; {share:.4%} is padding."
    rows = [
        {"": "best-fit packing", **{name: facts[name] for name in ("cut_documents", "cut_tokens", "dropped_tokens")}},
        {"": "concatenation (expected)", **apart, "dropped_tokens": 0},
    ]
    return {
        "summary": markdown(summary, readers(project, manifest.name)),
        "cut": table(rows),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["packs"],
        **{name: facts[name] for name in ("packs", "documents", "tokens", "padding", "cut_documents", "dtype")},
    }


def export_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of an export."""
    facts, export_format = manifest.facts, FORMATS[manifest.facts["format"]]
    counts = f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"
    left_out = f"; {format_count(facts['left_out'], 'document')} without tokens" if facts["left_out"] else ""
    how = f"{counts} of {code(facts['of'])} for {export_format.reader}; the tokens: {facts['made_by']}{left_out}."
    if "samples" in facts:
        how += f" {format_count(facts['samples'], 'sample')} of {format_count(facts['sequence_length'], 'token')}"
        how += f"; the last {format_count(facts['dropped'], 'token')} it passes over." if facts["dropped"] else "."
    files = [{"file": name, "size": format_bytes(fact.size)} for name, fact in manifest.files.items()]
    return {
        "summary": markdown(how),
        "opened_by": dg.MetadataValue.md(
            f"```python\n{export_format.example(manifest.url(), manifest.name, facts)}\n```"
        ),
        "files": table(files),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "left_out", "dtype", "format")},
    }


def contamination_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a table of matches: counts, and the first of them."""
    facts = manifest.facts
    summary = summary_of(manifest)
    counts = (
        f"**{summary.contaminated:,} of {format_count(facts['documents'], 'document')}** hold texts of evaluations."
    )
    section = manifest.name.partition("/")[0]
    boilerplate = boilerplate_text(section, summary)
    if boilerplate:
        counts += f" Apart from these, {boilerplate}."
    texts = format_count(facts["evaluation_texts"], "text")
    short = f"{facts['evaluation_too_short']:,} of {texts} of evaluations are too short to be looked for."
    rows = [{name: "" if value is None else value for name, value in match.items()} for match in facts["first"]]
    return {
        "summary": markdown(counts, short),
        **({"matches": table(rows)} if rows else {}),
        "table": dg.MetadataValue.path(manifest.url(MATCHES)),
        "documents": facts["documents"],
        "contaminated": summary.contaminated,
    }

"""The page of `contamination`: documents that contain texts of evaluations."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import markdown, rows_without_none, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.text import format_count
from nanoset_core.stages.contamination.matches import MATCHES, MatchSummary, summary_of
from nanoset_core.stages.contamination.show import boilerplate_text


def contamination_page(run: AssetRun) -> dict[str, Any]:
    """Search a corpus for texts of evaluations, and return the metadata of the matches."""
    return contamination_metadata(run.make())


def contamination_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of the matches of evaluation texts: counts, and the first matches.

    Args:
        manifest: Manifest of the result of one section of `contamination` for one corpus.
    """
    facts = manifest.facts
    matches = summary_of(manifest)
    metadata: dict[str, Any] = {"summary": markdown(*_sentences(manifest, matches))}
    rows = rows_without_none(facts["first"])
    if rows:
        metadata["matches"] = table(rows)
    metadata["table"] = dg.MetadataValue.path(manifest.url(MATCHES))
    metadata["documents"] = facts["documents"]
    metadata["contaminated"] = matches.contaminated
    return metadata


def _sentences(manifest: Manifest, matches: MatchSummary) -> list[str]:
    """Return how many documents contain texts of evaluations, in sentences.

    Args:
        manifest: The output, whose name is `<section of evaluations>/<corpus>`.
        matches: A summary of the matches.
    """
    facts = manifest.facts
    documents = format_count(facts["documents"], "document")
    counts = f"**{matches.contaminated:,} of {documents}** contain texts of evaluations."
    # Texts that very many documents contain, such as licences and cookie banners, are boilerplate.
    section = manifest.name.partition("/")[0]
    boilerplate = boilerplate_text(section, matches)
    if boilerplate:
        counts += f" Apart from these, {boilerplate}."

    n_too_short = facts["evaluation_too_short"]
    texts = format_count(facts["evaluation_texts"], "text")
    too_short = f"{n_too_short:,} of {texts} of evaluations are too short to be searched for."
    return [counts, too_short]

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
    """Return what the UI shows of the documents of a corpus that contain texts of evaluations.

    Args:
        manifest: Manifest of the result of one section of `contamination` for one corpus.
    """
    facts = manifest.facts
    matches = summary_of(manifest)
    metadata: dict[str, Any] = {"summary": markdown(*_summary_sentences(manifest, matches))}
    first_matches = rows_without_none(facts["first"])  # a row for each of the first few matches
    if first_matches:
        metadata["matches"] = table(first_matches)
    metadata["table"] = dg.MetadataValue.path(manifest.url(MATCHES))  # the file with all matches
    metadata["documents"] = facts["documents"]
    metadata["contaminated"] = matches.contaminated  # number of documents, without boilerplate
    return metadata


def _summary_sentences(manifest: Manifest, matches: MatchSummary) -> list[str]:
    """Return sentences on documents that contain texts of evaluations, and on texts too short.

    Args:
        manifest: The output, whose name is `<section of evaluations>/<corpus>`.
        matches: A summary of the matches, apart from boilerplate such as licences, which very many
            documents contain.
    """
    facts = manifest.facts
    documents = format_count(facts["documents"], "document")
    contaminated = f"**{matches.contaminated:,} of {documents}** contain texts of evaluations."

    # Texts that very many documents contain are counted separately.
    section = manifest.name.partition("/")[0]
    boilerplate = boilerplate_text(section, matches)  # a clause, or "" if there are none
    if boilerplate:
        contaminated += f" Apart from these, {boilerplate}."

    # A match with a text of a few words may be chance.
    n_too_short = facts["evaluation_too_short"]
    texts = format_count(facts["evaluation_texts"], "text")
    not_searched = f"{n_too_short:,} of {texts} of evaluations are too short to be searched for."
    return [contaminated, not_searched]

"""The page of `contamination`: documents that contain texts of evaluations.

A model that was trained on the questions of an evaluation scores too well in it. So each corpus is
searched for such texts, and the page says how many documents contain one, for example
"12 of 5,000 documents contain texts of evaluations", and lists the first of them.
"""

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
    """Search a corpus for texts of evaluations, and return what the UI shows of the matches.

    Args:
        run: The run of the asset `contamination` for one corpus.

    Returns:
        Name → value, as Dagster's UI shows them; see `contamination_metadata`.

    Raises:
        NanosetError: The corpus could not be searched.
    """
    return contamination_metadata(run.make())


def contamination_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of the documents of a corpus that contain texts of evaluations.

    Args:
        manifest: Manifest of the result of one section of `contamination` for one corpus.

    Returns:
        Name → value: a summary in sentences, a table of the first matches, the path of the file
        with all matches, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    matches = summary_of(manifest)
    sentences = [_contaminated_text(manifest, matches), _not_searched_text(manifest)]
    metadata: dict[str, Any] = {"summary": markdown(*sentences)}
    first_matches = rows_without_none(facts["first"])  # a row for each of the first few matches
    if first_matches:
        metadata["matches"] = table(first_matches)
    metadata["table"] = dg.MetadataValue.path(manifest.url(MATCHES))  # the file with all matches
    metadata["documents"] = facts["documents"]
    metadata["contaminated"] = matches.contaminated  # number of documents, without boilerplate
    return metadata


def _contaminated_text(manifest: Manifest, matches: MatchSummary) -> str:
    """Return how many documents of a corpus contain texts of evaluations, in a sentence or two.

    Args:
        manifest: The result, whose name is `<section of evaluations>/<corpus>`.
        matches: Counts of the matches. Boilerplate, such as a licence that very many documents
            contain, is counted separately.
    """
    documents = format_count(manifest.facts["documents"], "document")
    text = f"**{matches.contaminated:,} of {documents}** contain texts of evaluations."

    section = manifest.name.partition("/")[0]
    boilerplate = boilerplate_text(section, matches)  # a clause, or "" if there is none
    if boilerplate:
        text += f" Apart from these, {boilerplate}."
    return text


def _not_searched_text(manifest: Manifest) -> str:
    """Return how many texts of evaluations are too short, in a sentence.

    They are not searched for, because a match of a few words may be chance.

    Args:
        manifest: The result, which counts the texts.
    """
    n_too_short = manifest.facts["evaluation_too_short"]
    texts = format_count(manifest.facts["evaluation_texts"], "text")
    return f"{n_too_short:,} of {texts} of evaluations are too short to be searched for."

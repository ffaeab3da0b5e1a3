"""The page of `contamination`: documents that contain texts of evaluations.

A model that was trained on the questions of an evaluation scores too well in it. So each corpus is
searched for such texts, and the page says how many documents contain one, for example
"12 of 5,000 documents contain texts of evaluations", and lists the first of them.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import markdown, rows_without_none, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.contamination.matches import MATCHES, MatchSummary, summary_of
from nanoset_core.stages.contamination.show import boilerplate_text
from nanoset_core.wording import format_count


def contamination_page(run: AssetRun) -> dict[str, Any]:
    """Search a corpus for texts of evaluations, and return what Dagster's UI shows of the matches.

    A model scores too well in an evaluation if it was trained on its questions. So before a
    training run, the user has each corpus (a collection of documents) searched for them.

    Args:
        run: Executes the Dagster asset `contamination` for one corpus. `run.make()` does the
            search, and returns the record of its result.

    Returns:
        What the page of the asset shows: heading → value. See `contamination_metadata`.

    Raises:
        NanosetError: The corpus could not be searched.
    """
    return contamination_metadata(run.make())


def contamination_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of training documents that contain texts of evaluations.

    For example:

        summary         "**12 of 5,000 documents** contain texts of evaluations. …"
        matches         a table of the first ones: line 12 of a.jsonl contains 87 % of a question
        table           the path of the file with all matches
        documents       5000
        contaminated    12

    Args:
        manifest: The record of a search of one corpus: its files, and what it has counted.

    Returns:
        Heading → value, as in the example. `matches` is left out if there are none.
    """
    facts = manifest.facts  # what the search has counted
    matches = summary_of(manifest)
    sentences = [_contaminated_text(manifest, matches), _not_searched_text(manifest)]
    metadata: dict[str, Any] = {"summary": markdown(*sentences)}
    first_matches = rows_without_none(facts["first"])  # a row for each of the first few matches
    if first_matches:
        metadata["matches"] = table(first_matches)
    metadata["table"] = dg.MetadataValue.path(manifest.url(MATCHES))  # the file with all matches
    metadata["documents"] = facts["documents"]  # 5000
    metadata["contaminated"] = matches.contaminated  # 12 of them, boilerplate not counted
    return metadata


def _contaminated_text(manifest: Manifest, matches: MatchSummary) -> str:
    """Say in a sentence or two how many training documents contain texts of evaluations.

    For example: "**12 of 5,000 documents** contain texts of evaluations."

    Args:
        manifest: The record of a search. Its name says which evaluations were searched for, and in
            which text collection, such as `evals/web`.
        matches: How many documents were found.
    """
    documents = format_count(manifest.facts["documents"], "document")
    text = f"**{matches.contaminated:,} of {documents}** contain texts of evaluations."

    # An evaluation may quote a licence, for example, that very many documents contain. This is
    # probably no leak, so such texts are counted separately, in a second sentence.
    evaluations = manifest.name.partition("/")[0]
    common_texts = boilerplate_text(evaluations, matches)  # "" if there are none
    if common_texts:
        text += f" Apart from these, {common_texts}."
    return text


def _not_searched_text(manifest: Manifest) -> str:
    """Say in a sentence how many texts of evaluations were too short to be searched for.

    A text of a few words, such as "Paris", is in many documents by chance, so that a match would
    prove nothing.

    Args:
        manifest: The record of a search, which has counted the texts.

    Returns:
        Such as "3 of 200 texts of evaluations are too short to be searched for."
    """
    n_too_short = manifest.facts["evaluation_too_short"]
    texts = format_count(manifest.facts["evaluation_texts"], "text")
    return f"{n_too_short:,} of {texts} of evaluations are too short to be searched for."

"""The page of `held_out`: documents of valid and test that train reads, too.

Documents of the splits valid and test are held out: they measure what a model learned from train,
so train must not contain them. The page counts those that train reads all the same, for example
"Of 200 documents that are held out, train reads 3, and copies of 5", and lists the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import facts_of, markdown, rows_without_none, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.held_out.settings import SHARED, TRAIN_COPIES
from nanoset_core.stages.held_out.show import total_train_copies


def held_out_page(run: AssetRun) -> dict[str, Any]:
    """Search train for documents of valid and test, and return what the UI shows of the result.

    Args:
        run: The run of the asset `held_out` for one nanoset.

    Returns:
        Name → value, as Dagster's UI shows them; see `held_out_metadata`.

    Raises:
        NanosetError: The splits could not be compared.
    """
    return held_out_metadata(run.project, run.make())


def held_out_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of documents that train reads although valid or test hold them out.

    Args:
        project: Its settings say whether copies were searched for.
        manifest: Manifest of the comparison of a nanoset's splits, named `<nanoset>/…`.

    Returns:
        Name → value: a summary in sentences, a table of the first such documents, the path of the
        file that lists all of them, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    summary = _held_out_text(project, manifest)

    # The comparison has also found duplicates within train: documents with the same tokens.
    duplicates_in_train = facts.get(TRAIN_COPIES)
    if duplicates_in_train:
        summary += f" {_train_copies_text(facts)}"

    metadata: dict[str, Any] = {"summary": markdown(summary)}
    if duplicates_in_train:
        metadata[TRAIN_COPIES] = table(duplicates_in_train)
    first_documents = rows_without_none(facts["first"])
    if first_documents:
        metadata["in_train"] = table(first_documents)
    metadata["table"] = dg.MetadataValue.path(manifest.url(SHARED))  # the file with all of them
    metadata |= facts_of(manifest, "held_out", "shared", "copies")
    return metadata


def _held_out_text(project: Project, manifest: Manifest) -> str:
    """Return how many documents of valid and test are also in train, in a sentence or two.

    Args:
        project: Its settings say whether copies were searched for.
        manifest: Manifest of the comparison, the record of its files and counts.

    Returns:
        Such as "**Of 200 documents that are held out, train reads 3, and copies of 5.**"
    """
    facts = manifest.facts  # what was counted when the output was made
    documents = format_count(facts["held_out"], "document")  # that valid or test read
    n_shared = facts["shared"]  # how many of them train reads itself
    n_copied = facts["copies"]  # of how many train reads another document with the same tokens
    text = (
        f"**Of {documents} that are held out, train reads {n_shared:,}, "
        f"and copies of {n_copied:,}.**"
    )

    # Without the setting `held_out`, only the documents themselves are searched for.
    nanoset_name = manifest.name.partition("/")[0]
    if not project.nanoset(nanoset_name).held_out:
        text += " Copies were not searched for."
    return text


def _train_copies_text(facts: Mapping[str, Any]) -> str:
    """Return how many documents of train are copies of other documents of train, in a sentence.

    Args:
        facts: Counts of the comparison, with those of copies within train.
    """
    counts = total_train_copies(facts)
    documents = format_count(counts.documents, "document")
    return (
        f"{documents} of train, with {counts.tokens:,} tokens, "
        "are copies of another document of train."
    )

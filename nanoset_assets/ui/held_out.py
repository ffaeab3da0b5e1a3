"""The page of `held_out`: documents of valid and test that train reads, too.

Documents of the splits valid and test are held out: they measure what a model learned from train,
so train must not contain them. The page counts those that train reads all the same, for example
"Of 200 documents that are held out, train reads 3, and copies of 5", and lists the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import facts_of, markdown, rows_without_none, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.held_out.names import SHARED, TRAIN_COPIES
from nanoset_core.stages.held_out.show import total_train_copies
from nanoset_core.wording import format_count


def held_out_page(run: AssetRun) -> dict[str, Any]:
    """Look for validation and test documents in the training data, and return what the UI shows.

    If a model is trained on these documents, its validation and test are worthless.

    Args:
        run: Executes the Dagster asset `held_out` for one mixture of training data. `run.make()`
            compares its splits train, valid and test, and returns the record of the result.

    Returns:
        What the page of the asset shows: heading → value. See `held_out_metadata`.

    Raises:
        NanosetError: The splits could not be compared.
    """
    manifest = run.make()
    return held_out_metadata(run.project, manifest)


def held_out_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of validation and test documents that are also trained on.

    For example:

        summary         "**Of 200 documents that are held out, train reads 3, and copies of 5.**"
        train_copies    a table of text that train has in several documents, by text collection
        in_train        a table of the first of these documents
        table           the path of a file with all of them
        held_out        200     (documents for validation and test)
        shared          3       (train has the document itself)
        copies          5       (train has another document with the same text)

    Args:
        project: Its settings say whether documents with the same text were searched for.
        manifest: The record of the comparison: its files, and what was counted.

    Returns:
        Heading → value, as in the example. The first two tables are left out if they are empty.
    """
    facts = manifest.facts  # what was counted
    metadata: dict[str, Any] = {"summary": markdown(_summary(project, manifest))}
    copies_within_train = facts.get(TRAIN_COPIES)
    if copies_within_train:
        metadata[TRAIN_COPIES] = table(copies_within_train)
    first_documents = rows_without_none(facts["first"])
    if first_documents:
        metadata["in_train"] = table(first_documents)
    metadata["table"] = dg.MetadataValue.path(manifest.url(SHARED))
    metadata |= facts_of(manifest, "held_out", "shared", "copies")
    return metadata


def _summary(project: Project, manifest: Manifest) -> str:
    """Say how many validation and test documents are trained on, and what train has repeatedly.

    Args:
        project: Its settings say whether documents with the same text were searched for.
        manifest: The record of the comparison. Those of older versions have not counted what train
            has repeatedly.
    """
    text = _held_out_text(project, manifest)
    if manifest.facts.get(TRAIN_COPIES):
        text += f" {_train_copies_text(manifest.facts)}"
    return text


def _held_out_text(project: Project, manifest: Manifest) -> str:
    """Say how many validation and test documents are also trained on, in a sentence or two.

    For example: 3 of 200 such documents are in the training data themselves. For 5 of them, it has
    a copy: another document with the same text. Then the result is

        **Of 200 documents that are held out, train reads 3, and copies of 5.**

    Args:
        project: Its settings say whether copies were searched for; if not, a sentence says so.
        manifest: The record of the comparison. Its name starts with that of the data mixture, such
            as `pretrain/held_out`.
    """
    facts = manifest.facts  # what was counted when the output was made
    documents = format_count(facts["held_out"], "document")  # "200 documents" of valid and test
    n_shared = facts["shared"]  # 3: train reads these documents themselves
    n_copied = facts["copies"]  # 5: train reads other documents with the same tokens
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
    """Say in a sentence how much text the training data contains repeatedly.

    For example, if three of its documents have the same text, two of them are copies: "2 documents
    of train, with 1,800 tokens, are copies of another document of train."

    Args:
        facts: What was counted when the training data was searched for copies.
    """
    counts = total_train_copies(facts)
    documents = format_count(counts.documents, "document")
    return (
        f"{documents} of train, with {counts.tokens:,} tokens, "
        "are copies of another document of train."
    )

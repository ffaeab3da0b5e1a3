"""The page of `indexed_dataset`: the first documents of a corpus, and what reads it.

The asset joins the tokens of a corpus into one dataset, a pair of .bin and .idx files. Its page
counts documents and tokens, warns of text that was lost on the way, shows the first documents as
text, and lists the outputs that read the dataset, for example "Read by the nanoset `pretrain`".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import bold_code, code, counts_text, facts_of, markdown
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.shard_sets import recorded_losses
from nanoset_core.stages.stage import size_bytes
from nanoset_core.wording import format_bytes, format_count


def dataset_page(run: AssetRun) -> dict[str, Any]:
    """Join the tokens of a corpus into one dataset, and return what Dagster's UI shows of it.

    A corpus is a collection of documents. It is tokenized in pieces of some megabytes, called
    shards. Trainers read them as one dataset: a .bin file with all tokens, and an .idx file that
    says where each document starts.

    Args:
        run: Executes the Dagster asset `indexed_dataset` for one corpus. `run.make()` writes the
            files, and returns their manifest: the record of the files and of what was counted.

    Returns:
        What the page of the asset shows: heading → value. See `dataset_metadata`.

    Raises:
        NanosetError: The dataset could not be made.
    """
    return dataset_metadata(run.project, run.make())


def dataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of a dataset, the tokens of a collection of documents.

    Args:
        project: Gives access to other outputs and to the settings, to say what else was lost when
            the text was tokenized, and which trainers read the dataset.
        manifest: The record of the dataset: its files, and what was counted when it was made.

    Returns:
        Heading → value: texts and counts. Dagster plots the counts over time.
    """
    facts = manifest.facts
    size = format_bytes(size_bytes(manifest))
    # "**5,000 documents, 1,234,567 tokens**, 2.47 MB; 3 lines rejected."
    summary = f"{counts_text(facts)}, {size}; {_problems_text(facts)}."
    losses = _loss_texts(project, shards_of(project.outputs, manifest))
    readers = readers_text(project, manifest.name)
    documents = first_documents(project, manifest, fetches_small=True)
    return {
        "summary": markdown(summary, *losses, readers),
        "first_documents": documents,  # the start of their text
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and .idx that trainers read
        "dagster/partition_row_count": facts["documents"],  # Dagster shows it as the size
        **facts_of(manifest, "documents", "sequences", "tokens", "rejected", "dtype"),
    }


def _problems_text(facts: Mapping[str, Any]) -> str:
    """Say in words which text of a corpus is missing in the dataset that was made from it.

    - A line that is no valid JSON, for example, is rejected: "3 lines rejected".
    - A file may be damaged, such as a .gz that was not copied completely: "1 file not readable to
      the end".
    - If there are neither: "every line became a document".

    Args:
        facts: What was counted: `rejected` lines, and as `faults` the damaged files.
    """
    n_rejected = facts["rejected"]
    n_damaged = facts["faults"]
    problems: list[str] = []
    if n_rejected:
        problems.append(f"{format_count(n_rejected, 'line')} rejected")
    if n_damaged:
        problems.append(f"{format_count(n_damaged, 'file')} not readable to the end")
    return ", ".join(problems) or "every line became a document"


def _loss_texts(project: Project, tokenized: Manifest) -> list[str]:
    """Say what was lost when the text of a corpus was tokenized, so that nobody overlooks it.

    There is a line of bold Markdown for each kind of loss, such as characters for which the
    tokenizer has no token, or files that could not be read to their end. Lines that were rejected
    as a whole are reported elsewhere.

    Args:
        project: Gives access to the tokenized text, which records its losses.
        tokenized: The record of the tokenized corpus, which lists its parts.

    Returns:
        The lines, each starting with "**Lost:**"; empty if nothing was lost.
    """
    losses = recorded_losses(project.outputs, tokenized)
    return [f"**Lost:** {bold_code(text)}" for text in losses.texts()]


def readers_text(project: Project, dataset: str) -> str:
    """Say in a sentence for what a dataset is used: in which data mixtures, exports, and so on.

    Users want to know it before they change or delete a dataset. The file nanoset.yaml has the
    settings of all outputs, each with the names of the datasets that it reads.

    Args:
        project: Has these settings.
        dataset: Name of the dataset: a corpus (a collection of documents), a view (a selection of
            one) or packs (documents packed into sequences of one length).

    Returns:
        Markdown, such as "Read by the nanoset `pretrain`, the export `for_hf`." or "Nothing in
        `nanoset.yaml` reads it yet."
    """
    config = project.config
    readers = [*_trainer_inputs(config, dataset), *_derived_outputs(config, dataset)]
    if not readers:
        return f"Nothing in {code(config.file.name)} reads it yet."
    return f"Read by {', '.join(readers)}."


def _trainer_inputs(config: ProjectConfig, dataset: str) -> list[str]:
    """List the outputs for trainers that contain a dataset, in words.

    There are three kinds:

        the nanoset `pretrain`       a mixture of datasets for training and validation
        the webdataset `streamed`    shuffled samples of datasets, in tar files
        its `.pbin`                  the dataset itself, as a file for the trainer Modalities

    Args:
        config: The settings of nanoset.yaml, which define all outputs.
        dataset: Name of the dataset, such as "web".
    """
    readers: list[str] = []
    for name, nanoset in config.nanosets.items():
        if dataset in nanoset.corpora:
            readers.append(f"the nanoset {code(name)}")
    for name, webdataset in config.webdatasets.items():
        if dataset in webdataset.names:
            readers.append(f"the webdataset {code(name)}")
    if dataset in config.pbin:
        readers.append("its `.pbin`")
    return readers


def _derived_outputs(config: ProjectConfig, dataset: str) -> list[str]:
    """List the outputs that are made from a dataset, other than those for trainers, in words.

    There are three kinds:

        the export `for_hf`     the dataset in the format of another program
        the packs `packed`      its documents, packed into sequences of one length
        the view `long`         a selection of its documents

    Args:
        config: The settings of nanoset.yaml, which define all outputs.
        dataset: Name of the dataset, such as "web".
    """
    # Kind of output → the settings of each output of this kind, by its name.
    sections: dict[str, Mapping[str, Any]] = {
        "export": config.exports,
        "packs": config.packs,
        "view": config.views,
    }
    outputs: list[str] = []
    for kind, specs in sections.items():
        for name, spec in specs.items():
            if spec.of == dataset:  # `of` is the name of the dataset that it is made from
                outputs.append(f"the {kind} {code(name)}")
    return outputs

"""A table of how each stage appears in Dagster: its asset's name, description, checks, icons, …

`stage_assets.py` makes the assets from this table, and `checks.py` makes their checks. A stage
without an entry becomes an asset that is named after the folder of its outputs, and described by
the docstring of its class.

The *page* of a stage is a function in `ui/<stage>.py`. It makes an output and returns the metadata
that Dagster's UI shows with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import PageMaker
from nanoset_assets.ui.columns import columns_page
from nanoset_assets.ui.contamination import contamination_page
from nanoset_assets.ui.dataset import dataset_page
from nanoset_assets.ui.exports import export_page
from nanoset_assets.ui.handoff import handoff_page
from nanoset_assets.ui.held_out import held_out_page
from nanoset_assets.ui.inventory import inventory_page
from nanoset_assets.ui.mappings import split_page
from nanoset_assets.ui.packs import packs_page
from nanoset_assets.ui.pbin import pbin_page
from nanoset_assets.ui.shards import shards_page
from nanoset_assets.ui.summary import summary_page
from nanoset_assets.ui.views import view_page
from nanoset_assets.ui.webdataset import plan_page, tars_page, webdataset_page
from nanoset_core.outputs.names import PACKS_JOB, PBIN_JOB, VIEWS_JOB
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.columns.stage import COLUMNS
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.pbin.stage import PBIN, PBIN_DERIVED
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import CorpusStage, PerCorpus, Stage
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, SHUFFLED_TARS, WEBDATASET

WORKERS_POOL = "workers"
"""Pool of the assets that start worker processes. dagster.yaml limits how many of them run at once.
"""
DOCUMENT_COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("file", "string", description="Path relative to the corpus's folder."),
        dg.TableColumn(
            "line", "int64", description="Number of the line, or of the row of a table, from 1."
        ),
        dg.TableColumn(
            "byte_offset",
            "int64",
            description="Offset of the line in the decompressed file; -1 for a row of a table.",
        ),
        dg.TableColumn("id", "string", description="Id of the document in the raw text, if any."),
        dg.TableColumn(
            "tokens", "int32", description="Tokens of the document, special tokens included."
        ),
    ]
)
"""Columns of documents.parquet, which is stored next to the tokens of every shard."""


@dataclass(frozen=True, slots=True)
class WarningCheck:
    """A check that shows the warnings of an output, and blocks nothing downstream."""

    name: str
    description: str
    """What it warns of, for Dagster's UI."""


@dataclass(frozen=True, slots=True)
class AssetShape:
    """How the assets of a stage appear in Dagster."""

    asset: str
    """Last part of the asset key. The parts before it are the key prefix and the subject; an asset
    whose partitions are corpora has no subject.
    """
    description: str | None = None
    """Description in Dagster's UI. `{subject}` is replaced by the nanoset, webdataset or corpus.

    `dg list defs` shows 100 characters: the first paragraph is no longer than that.
    """
    check: str = "The output is complete and undamaged."
    """Description of the blocking check. Every asset has one, which calls `verify` of its stage."""
    job: str = "{subject}"
    """Name of the job that makes the asset. All assets of a job need the same partitions. Not used
    if the partitions are corpora; see `job_of`.
    """
    kinds: frozenset[str] = frozenset()
    """Technologies, which the UI shows as icons."""
    tag: str | None = None
    """Value of the tag `nanoset/stage`."""
    make_page: PageMaker = summary_page
    """Makes an output, and returns its metadata; default: shows the stage's `Summary`."""
    warning_check: WarningCheck | None = None
    """A separate check for warnings: if they failed the blocking check, nothing downstream would be
    built.
    """
    uses_workers: bool = False
    """Whether a run starts worker processes. If so, the asset is in the pool `WORKERS_POOL`."""
    is_read_by_partition: bool = False
    """Whether other assets read single partitions of this one. If so, their dependencies name these
    partitions.
    """
    is_repaired_by_rebuild: bool = True
    """Whether an output is rebuilt if its last blocking check has failed.

    False if usually text or settings have to be changed instead, such as the limit for lost text: a
    rebuild would take long, and the check would fail again. Damaged files of such an output are
    noticed without the check, by their sizes.
    """
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the asset's definition."""

    def describe(self, subject: str) -> str | None:
        """Return the description of an asset for Dagster's UI, or None if it has none.

        For example, "The view or packs {subject} as one .pbin file …" becomes "The view or packs
        web_clean as one .pbin file …".

        Args:
            subject: The data mixture, webdataset or text collection to which the asset belongs. Its
                name replaces `{subject}`.
        """
        if self.description is None:
            return None
        return self.description.replace("{subject}", subject)


SHAPES: dict[Stage, AssetShape] = {
    INVENTORY: AssetShape(
        asset="raw_jsonl",
        description="The files of a corpus in the raw folder, in document order, with size and "
        "content digest.\n\n"
        "The data version changes when a file is added, removed, renamed or edited.",
        check="Warns of files that are ignored, empty, incomplete, or smaller than before.",
        kinds=frozenset({"json", "file"}),
        tag="raw",
        make_page=inventory_page,
    ),
    TOKENIZED: AssetShape(
        asset="tokenized_shards",
        description="The token ids of a corpus in shards, each with tables of its documents and "
        "of its rejected lines.\n\n"
        "When files change, only the shards of their text are rebuilt.",
        check="Every line is a document, skipped or rejected; rejects are within the limit; "
        "shards are complete.",
        kinds=frozenset({"numpy", "huggingface", "parquet"}),
        tag="tokenization",
        make_page=shards_page,
        warning_check=WarningCheck(
            "losses",
            "Warns of lost and of duplicate text; blocks nothing.",
        ),
        uses_workers=True,
        is_repaired_by_rebuild=False,  # a run rebuilds the damaged shards, without the others
        metadata={"dagster/column_schema": DOCUMENT_COLUMNS},
    ),
    DATASET: AssetShape(
        asset="indexed_dataset",
        description="A corpus as one Megatron indexed dataset, a pair of .bin and .idx files.\n\n"
        "Its bytes are those that Megatron's preprocess_data.py would write. Pass trainers the "
        "path without the file extension.",
        check="The .idx matches its .bin; all token ids are valid; sampled lines still give the "
        "same tokens.",
        kinds=frozenset({"numpy", "file"}),
        tag="indexed",
        make_page=dataset_page,
    ),
    COLUMNS: AssetShape(
        asset="document_columns",
        description="Values in a corpus's raw text, such as scores, stored for each document.\n\n"
        "Views can select documents by them. Only corpora with `columns` are partitions. The raw "
        "text is read again, but not tokenized.",
        check="The table of every shard has one row for each document.",
        kinds=frozenset({"parquet"}),
        tag="columns",
        make_page=columns_page,
        uses_workers=True,
    ),
    ATTRIBUTES: AssetShape(
        asset="document_attributes",
        description="Columns of external tables, joined to a corpus's documents by id, so that "
        "views can select by them.\n\n"
        "Only corpora under `attributes` are partitions. When text is appended, only new shards "
        "are joined.",
        check="Every document has its row's values; ids are missing or duplicate only as the "
        "policies allow.",
        kinds=frozenset({"parquet"}),
        tag="columns",
        make_page=columns_page,
        warning_check=WarningCheck(
            "joined",
            "Warns of documents with no row or several rows, and of rows without a document; "
            "blocks nothing.",
        ),
        uses_workers=True,
    ),
    CONTAMINATION: AssetShape(
        asset="contamination",
        description="Documents that contain texts of the evaluation files of {subject}, found by "
        "n-grams of words.\n\n"
        "Each partition is a corpus; matches.parquet lists files and lines. Only new shards are "
        "searched.",
        check="The list of documents is complete and undamaged.",
        kinds=frozenset({"numpy", "parquet"}),
        tag="contamination",
        make_page=contamination_page,
        warning_check=WarningCheck(
            "contaminated",
            "Warns of documents that contain evaluation texts. With `policy: block`, outputs that "
            "train on them fail.",
        ),
        uses_workers=True,
        is_read_by_partition=True,
        is_repaired_by_rebuild=False,
    ),
    VIEW: AssetShape(
        asset="views",
        description="Datasets of selected documents of {subject}, without copies of their "
        "tokens.\n\n"
        "Each partition is a view in nanoset.yaml: an index over the tokens of the corpus. Pass "
        "trainers its path, as that of any dataset.",
        check="The view contains exactly the documents that its rules select, each as many times "
        "as they say.",
        job=VIEWS_JOB,
        kinds=frozenset({"numpy", "file"}),
        tag="views",
        make_page=view_page,
        is_read_by_partition=True,
    ),
    PACKS: AssetShape(
        asset="packs",
        description="Documents of {subject}, packed without cuts into sequences of one length by "
        "best-fit-decreasing.\n\n"
        "Each partition is listed under `packs` in nanoset.yaml, or is needed by a nanoset or "
        "webdataset with `packing`.",
        check="The packs contain their dataset's tokens; quick ones are packed again, with the "
        "same result.",
        job=PACKS_JOB,
        kinds=frozenset({"numpy", "file", "parquet"}),
        tag="packing",
        make_page=packs_page,
        is_read_by_partition=True,
    ),
    EXPORT: AssetShape(
        asset="export",
        description="The dataset of a corpus or view in the format of another reader.\n\n"
        "Formats with samples of one length, such as mds, have a copy of the tokens. Others share "
        "those of the dataset, if possible. Pass trainers the folder of this version.",
        check="The export has the same tokens as its dataset, and the same document boundaries.",
        kinds=frozenset({"numpy", "file"}),
        tag="exports",
        make_page=export_page,
    ),
    HELD_OUT: AssetShape(
        asset="held_out",
        description="Documents of valid and test of {subject} that train reads, too, themselves "
        "or as a copy.\n\n"
        "Copies are other documents with the same tokens, and are only searched for with "
        "the key `held_out`. Copies within train are counted as well. shared.parquet lists the "
        "files and lines of held-out documents and of all their copies in train.",
        check="The list of documents is complete and undamaged.",
        kinds=frozenset({"numpy", "parquet"}),
        tag="mapping",
        make_page=held_out_page,
        warning_check=WarningCheck(
            "held_out_in_train",
            "Warns of held-out documents that are also in train. With `held_out: block`, the index "
            "files of train fail.",
        ),
        uses_workers=True,
        is_repaired_by_rebuild=False,
    ),
    INDEX_MAPPINGS: AssetShape(
        asset="index_mappings",
        description="The document, sample and shuffle index of each corpus of {subject}.\n\n"
        "The files have the names that the trainer looks for.",
        check="Every index file exists and matches the current .idx; a few samples of each can "
        "be read.",
        kinds=frozenset({"numpy"}),
        tag="mapping",
        make_page=split_page,
    ),
    BLENDED: AssetShape(
        asset="blend",
        description="The order of {subject}: which sample of which corpus is the k-th.\n\n"
        "The files have the names that the trainer looks for.",
        check="The blend's files exist, belong to the index mappings, and refer to corpora and "
        "samples that exist.",
        kinds=frozenset({"numpy"}),
        tag="mapping",
        make_page=split_page,
    ),
    TRAINER_FILES: AssetShape(
        asset="handoff",
        description="The files and arguments with which a trainer is started on {subject}.",
        check="The trainer's files exist and have not been changed.",
        kinds=frozenset({"file"}),
        tag="mapping",
        make_page=handoff_page,
        warning_check=WarningCheck(
            "trainer",
            "Warns if the trainer would miss index files or ignore the order of a view; blocks "
            "nothing.",
        ),
    ),
    SHUFFLE_PLAN: AssetShape(
        asset="shuffle_plan",
        description="The plan of the tars of {subject}: which contexts they contain, and in which "
        "order.",
        check="The plan has not been changed; the order is as even as chance makes it.",
        kinds=frozenset({"numpy"}),
        tag="shuffling",
        make_page=plan_page,
    ),
    SHUFFLED_TARS: AssetShape(
        asset="tars",
        description="The tars of {subject}, divided evenly among the partitions.\n\n"
        "Select a partition to see its tars; {subject}/manifest lists all of them.",
        check="Every tar of the group exists in its original size; the first contains the "
        "planned contexts.",
        kinds=frozenset({"numpy", "file"}),
        tag="shuffling",
        make_page=tars_page,
        uses_workers=True,
    ),
    WEBDATASET: AssetShape(
        asset="manifest",
        description="The lists with which OpenLM, wids and DCLM find the tars of {subject}.\n\n"
        "These are manifest.jsonl, index.json and exp_data.json. They complete the webdataset. "
        "Pass trainers this folder.",
        check="Every tar exists and is listed; a sample of them contains the contexts of the plan.",
        kinds=frozenset({"json"}),
        tag="shuffling",
        make_page=webdataset_page,
    ),
    PBIN: AssetShape(
        asset="packed_dataset",
        description="A corpus as one .pbin file for Modalities, with the tokens of its "
        "indexed_dataset.\n\n"
        "Only corpora listed under `pbin` are partitions.",
        check="The index of the .pbin covers its tokens exactly; its documents and tokens are "
        "those of the dataset.",
        kinds=frozenset({"numpy", "file"}),
        tag="packed",
        make_page=pbin_page,
    ),
    PBIN_DERIVED: AssetShape(
        asset="packed",
        description="The view or packs {subject} as one .pbin file for Modalities, with the "
        "tokens of the dataset.",
        check="The index of the .pbin covers its tokens exactly; its documents and tokens are "
        "those of the dataset.",
        job=PBIN_JOB,
        kinds=frozenset({"numpy", "file"}),
        tag="packed",
        make_page=pbin_page,
    ),
}


def shape_of(stage: Stage) -> AssetShape:
    """Return how the assets of a stage appear in Dagster: name, description, icons and so on.

    A stage is a step of the pipeline, such as the one that tokenizes text: its assets are called
    `tokenized_shards`.

    Args:
        stage: The stage. If it has no entry in SHAPES, its assets are named after the folder in
            which its outputs are stored, and described by the docstring of its class.
    """
    shape = SHAPES.get(stage)
    if shape is not None:
        return shape
    docstring = type(stage).__doc__
    description = None if docstring is None else inspect.cleandoc(docstring)
    return AssetShape(stage.layout.folder, description)


def is_output_required(stage: Stage) -> bool:
    """Return whether every run of a stage's asset must make an output.

    If only some corpora have an output, a run of a corpus that nanoset.yaml does not name makes
    nothing, and still succeeds.

    Args:
        stage: The stage.
    """
    return isinstance(stage, CorpusStage) or not isinstance(stage, PerCorpus)

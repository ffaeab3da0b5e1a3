"""Stage → asset: what each stage is in Dagster. A stage without an entry becomes a plain asset.

This is the only place that maps stages to Dagster. `stage_assets.py` makes the assets from it,
`checks.py` the checks. Each page, which makes an output and describes it for the UI, is in
`ui/<stage>.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import Page
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
from nanoset_core.stages.stage import Stage
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, SHUFFLED_TARS, WEBDATASET

WORKERS_POOL = "workers"
"""Runs of assets that start worker processes; dagster.yaml limits how many of a pool run at once."""
DOCUMENT_COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("file", "string", description="relative to the corpus's folder"),
        dg.TableColumn("line", "int64", description="from 1; in a Parquet or Arrow file the row"),
        dg.TableColumn(
            "byte_offset", "int64", description="of the line in the decompressed file; -1 for a row"
        ),
        dg.TableColumn("id", "string", description="the document's own id, if it has one"),
        dg.TableColumn("tokens", "int32", description="of the document, special ones included"),
    ]
)
"""Columns of documents.parquet, which is stored next to the tokens of every shard."""


@dataclass(frozen=True, slots=True)
class WarningCheck:
    """A check that shows the warnings of an output, and blocks nothing."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class AssetShape:
    """What a stage is in Dagster."""

    asset: str
    """Last part of the asset key. The parts before it are the key prefix and, unless it is a
    corpus, the subject.
    """
    description: str | None = None
    """For the UI; {subject} stands for the nanoset, webdataset or corpus."""
    check: str | None = None
    """Description of the blocking check, or None if its outputs are not verified."""
    job: str = "{subject}"
    """Name of the job that makes it, unless its subjects are corpora; assets of one job have the
    same partitions.
    """
    kinds: frozenset[str] = frozenset()
    """Technologies, which the UI shows as icons."""
    tag: str | None = None
    """Value of the tag `nanoset/stage`."""
    page: Page = summary_page
    """Makes an output, and describes it for the UI; default: shows the stage's `Summary`."""
    warning_check: WarningCheck | None = None
    """A second check, since Dagster's conditions wait for what a failed blocking check is about."""
    uses_workers: bool = False
    """Whether it starts worker processes: its runs are in the pool `WORKERS_POOL`."""
    is_output_required: bool = True
    """Whether every partition of it must be made; else a run of one that nanoset.yaml does not
    request does nothing.
    """
    is_read_by_partition: bool = False
    """Whether other assets read single partitions of it, which their dependencies name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of the asset's definition."""

    def describe(self, subject: str) -> str | None:
        """Return the description of the asset of a nanoset, webdataset or corpus."""
        if self.description is None:
            return None
        return self.description.replace("{subject}", subject)


SHAPES: dict[Stage, AssetShape] = {
    INVENTORY: AssetShape(
        "raw_jsonl",
        "The files of a corpus in the raw folder, with size and content digest, in document order.\n\n"
        "Its data version changes when a file is added, removed, renamed or edited.",
        check="Warns of files that are not read, empty, unfinished, or smaller than before.",
        kinds=frozenset({"json", "file"}),
        tag="raw",
        page=inventory_page,
    ),
    TOKENIZED: AssetShape(
        "tokenized_shards",
        "A corpus as tokens: shards, each with a table of its documents and its rejected lines.\n\n"
        "Only ranges whose files changed are tokenized again.",
        check="Every line is a document, skipped or rejected; no more rejects than allowed; the shards are whole.",
        kinds=frozenset({"numpy", "huggingface", "parquet"}),
        tag="tokenization",
        page=shards_page,
        warning_check=WarningCheck(
            "losses",
            "Warns of text that was lost, or that is there twice; blocks nothing.",
        ),
        uses_workers=True,
        metadata={"dagster/column_schema": DOCUMENT_COLUMNS},
    ),
    DATASET: AssetShape(
        "indexed_dataset",
        "A corpus as one Megatron indexed dataset, a .bin/.idx pair.\n\n"
        "Byte for byte what preprocess_data.py would have written. Give trainers the prefix, without the ending.",
        check="The .idx fits its .bin; every id is in the vocabulary; sampled lines give the same tokens again.",
        kinds=frozenset({"numpy", "file"}),
        tag="indexed",
        page=dataset_page,
    ),
    CONTAMINATION: AssetShape(
        "contamination",
        "Documents of corpora that hold texts of the evaluation files of {subject}, by n-grams of words.\n\n"
        "Each partition is a corpus; matches.parquet names files and lines. Only new shards are looked through.",
        check="With policy: block, training reads no document that holds texts of evaluations.",
        kinds=frozenset({"numpy", "parquet"}),
        tag="contamination",
        page=contamination_page,
        warning_check=WarningCheck(
            "contaminated",
            "Warns of documents that hold texts of evaluations; blocks nothing.",
        ),
        uses_workers=True,
        is_read_by_partition=True,
    ),
    VIEW: AssetShape(
        "views",
        "Datasets of documents that are chosen from {subject}: an index each, over the corpus's own tokens.\n\n"
        "Each partition is a view of nanoset.yaml. Give trainers its prefix, as that of any dataset.",
        check="The view holds the documents that its rules choose, as often as they say, and no others.",
        job="{subject}_views",
        kinds=frozenset({"numpy", "file"}),
        tag="views",
        page=view_page,
        is_read_by_partition=True,
    ),
    PACKS: AssetShape(
        "packs",
        "Documents of {subject}, packed unbroken into sequences of one length by best-fit-decreasing.\n\n"
        "Each partition is one of `packs` of nanoset.yaml, or is made for a nanoset or webdataset with `packing`.",
        check="Packs hold the tokens of their dataset's documents; packed again, if that is quick, they are the same.",
        job="{subject}_packs",
        kinds=frozenset({"numpy", "file", "parquet"}),
        tag="packing",
        page=packs_page,
        is_read_by_partition=True,
    ),
    COLUMNS: AssetShape(
        "document_columns",
        "Values of a corpus's raw text that are stored for each document, to choose documents by.\n\n"
        "Only corpora with `columns` are partitions. Text is read again, and nothing is tokenized.",
        check="The table of every shard has a row for each of its documents.",
        kinds=frozenset({"parquet"}),
        tag="columns",
        page=columns_page,
        uses_workers=True,
        is_output_required=False,
    ),
    HELD_OUT: AssetShape(
        "held_out",
        "Documents of valid and test of {subject} that train reads too, themselves or, with `held_out`, as a copy.\n\n"
        "shared.parquet names files and lines of both. Only the tokens of new shards are read.",
        check="With held_out: block, train reads no document of valid and test, and no copy of one.",
        kinds=frozenset({"numpy", "parquet"}),
        tag="mapping",
        page=held_out_page,
        warning_check=WarningCheck(
            "held_out_in_train",
            "Warns of documents that are held out and in train; blocks nothing.",
        ),
        uses_workers=True,
    ),
    ATTRIBUTES: AssetShape(
        "document_attributes",
        "Columns of external tables, joined to a corpus's documents by id, to choose documents by.\n\n"
        "Only corpora under `attributes` are partitions. After an append only new shards are joined.",
        check="Every document has the values of the row with its id; policies are kept.",
        kinds=frozenset({"parquet"}),
        tag="columns",
        page=columns_page,
        warning_check=WarningCheck(
            "joined",
            "Warns of documents without a row, or with several, and of rows without one; blocks nothing.",
        ),
        uses_workers=True,
        is_output_required=False,
    ),
    INDEX_MAPPINGS: AssetShape(
        "index_mappings",
        "Document, sample and shuffle index of each corpus of {subject}, under the trainer's names.",
        check="Every file that the trainer looks for exists, fresh against its .idx; sampled ones can be read.",
        kinds=frozenset({"numpy"}),
        tag="mapping",
        page=split_page,
    ),
    BLENDED: AssetShape(
        "blend",
        "Which sample of which corpus is the k-th of {subject}, under the trainer's names.",
        check="The blend's files exist, belong to the index mappings, and name corpora and samples that exist.",
        kinds=frozenset({"numpy"}),
        tag="mapping",
        page=split_page,
    ),
    TRAINER_FILES: AssetShape(
        "handoff",
        "The files and arguments with which a trainer is started on {subject}.",
        check="The trainer's files exist, and hold what was written, byte for byte.",
        kinds=frozenset({"file"}),
        tag="mapping",
        page=handoff_page,
        warning_check=WarningCheck(
            "trainer",
            "Warns if the trainer does not find the index files, or ignores the order of a view; blocks nothing.",
        ),
    ),
    SHUFFLE_PLAN: AssetShape(
        "shuffle_plan",
        "How the corpora of {subject} become shuffled tars: contexts of one length, in one order.",
        check="The plan holds what was written; the order is as even as chance gives.",
        kinds=frozenset({"numpy"}),
        tag="shuffling",
        page=plan_page,
    ),
    SHUFFLED_TARS: AssetShape(
        "tars",
        "The tars of {subject}, an even share of them in each partition.\n\n"
        "Under Partitions, choose one to see its tars; {subject}/manifest shows the whole.",
        check="Every tar of the group exists, of the size written; the first holds the contexts of its plan.",
        kinds=frozenset({"numpy", "file"}),
        tag="shuffling",
        page=tars_page,
        uses_workers=True,
    ),
    WEBDATASET: AssetShape(
        "manifest",
        "The lists by which OpenLM, wids and DCLM read the tars of {subject}.\n\n"
        "With manifest.jsonl, index.json and exp_data.json it is complete. Give trainers this folder.",
        check="Every tar exists and is listed; opened ones hold the contexts of their plan.",
        kinds=frozenset({"json"}),
        tag="shuffling",
        page=webdataset_page,
    ),
    EXPORT: AssetShape(
        "export",
        "The dataset of a corpus or view as files of another reader.\n\n"
        "Tokens are shared with the dataset if the disk or bucket can. Give trainers the folder of this version.",
        check="The export's tokens are its dataset's, and its documents end where they do there.",
        kinds=frozenset({"numpy", "file"}),
        tag="exports",
        page=export_page,
    ),
    PBIN: AssetShape(
        "packed_dataset",
        "A corpus as one Modalities .pbin, with the tokens of its indexed_dataset.\n\n"
        "Only corpora listed under `pbin` are partitions.",
        check="The index of the .pbin covers its tokens exactly; documents and tokens are the dataset's.",
        kinds=frozenset({"numpy", "file"}),
        tag="packed",
        page=pbin_page,
        is_output_required=False,
    ),
    PBIN_DERIVED: AssetShape(
        "packed",
        "The view or packs {subject} as one Modalities .pbin, with the tokens of its dataset.",
        job="{subject}_packed",
        kinds=frozenset({"numpy", "file"}),
        tag="packed",
        page=pbin_page,
    ),
}


def shape_of(stage: Stage) -> AssetShape:
    """Return what a stage is in Dagster."""
    return SHAPES.get(stage) or AssetShape(stage.layout.folder)

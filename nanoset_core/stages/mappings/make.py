"""Write the trainer's index files of a split, and record them as an output.

The index mappings of a split are written first, and then the blend, which refers to their samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.loading.layout import MAPPINGS
from nanoset_core.loading.plan_file import PLAN_FILE, StoredSplit
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import ExistingVersion
from nanoset_core.project.project import Project, holding
from nanoset_core.records.json_records import dump
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.inventory.shared_files import check_split_files
from nanoset_core.stages.mappings.facts import CACHE_FILES, split_facts
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS, mappings_recipe
from nanoset_core.stages.mappings.writing import FileEntries, IndexFileWriter, count_samples_given
from nanoset_core.stages.stage import Key, check_recipe, require
from nanoset_core.storage.access import FileAccess


@holding
def write_mappings(project: Project, name: str, split: SplitName) -> Manifest:
    """Write index files, so that a trainer need not compute them when it starts.

    An index file has the order in which a trainer such as Megatron-LM reads the samples of a
    dataset. For a split that reads web and code, these are:

        5ce5…-GPTDataset-train-shuffle_index.npy and others for web
        a07e…-GPTDataset-train-shuffle_index.npy and others for code

    They are written to the folder in which the trainer looks for them. A record of them, with their
    sizes and checksums, is then stored as the output `index_mappings` of the split.

    While this runs, the decorator `holding` keeps `nanoset gc` (the command that deletes old
    versions) from deleting the datasets.

    Args:
        project: Its outputs have the datasets, and get the index files.
        name: Name of the training data in nanoset.yaml.
        split: `train`, `valid` or `test`.

    Returns:
        Manifest, a record that lists the index files.

    Raises:
        MissingError: A dataset has not been built.
        ConfigError, InputError: The split cannot be filled as its settings ask.
    """
    check_split_files(project, name, split)
    nanoset = NanosetContext(project, name)
    recipe = mappings_recipe(nanoset, split)
    planned = nanoset.plan(split)

    # In a bucket, one listing shows which index files exist, and whether there is a record.
    listed_outputs = project.outputs.with_listing(nanoset.folder)
    existing_record = listed_outputs.existing_version(recipe)
    file_entries = _write_files_of_datasets(nanoset, planned, listed_outputs.access)
    return _record(nanoset, recipe, planned, file_entries, existing_record)


def _write_files_of_datasets(
    nanoset: NanosetContext, planned: PlannedSplit, access: FileAccess
) -> FileEntries:
    """Write the index files of each dataset of a split, and show the progress.

    An index file has the order in which a trainer reads the samples of a dataset. Files that exist
    already are kept, unless the user demands to rebuild everything.

    Args:
        nanoset: The training data, with the folder in which the trainer looks for the files.
        planned: The plan of the split: which samples it reads of each dataset.
        access: How files of the output root are read and stored, with a listing of the folder.

    Returns:
        Size and sha256 of each file: `{"5ce5…-shuffle_index.npy": {"bytes": 800, …}, …}`.
    """
    project = nanoset.project
    datasets = () if planned.plan is None else planned.plan.members
    work_name = f"{nanoset.name} {planned.split}"
    work = project.progress.work(MAPPINGS, work_name, len(datasets), unit="corpora")

    writer = IndexFileWriter(nanoset.cache, access, rebuild=project.rebuild)
    file_entries: dict[str, Mapping[str, Any]] = {}
    for dataset in datasets:
        file_entries |= writer.write_member(dataset, planned.config)
        work.advance(1)
    writer.upload()
    return file_entries


@holding
def write_blended(project: Project, name: str, split: SplitName) -> Manifest:
    """Write index files that say which dataset each training sample is from.

        sample                   0      1       2      3
        dataset                  web    code    web    web
        sample of the dataset    0      0       1      2

    They are written to the folder in which the trainer looks for them, and then a record of them is
    stored. While this runs, the decorator `holding` keeps `nanoset gc` (the command that deletes
    old versions) from deleting what is read.

    Args:
        project: Its outputs have the index files of each dataset, and get these files.
        name: Name of the training data in nanoset.yaml.
        split: `train`, `valid` or `test`.

    Returns:
        Manifest, a record that lists the files.

    Raises:
        ConfigError: Only one dataset is read.
        MissingError: The index files of the datasets have not been built.
        StaleError: They were made from other inputs than the present ones.
    """
    nanoset = NanosetContext(project, name)
    if not nanoset.spec.is_blended:
        raise ConfigError(
            "there is no blend to write: this nanoset reads one corpus without a weight",
            where=f"{project.config.file}: nanosets.{name}",
        )
    mappings = _mappings_up_to_date(nanoset, split)
    planned = nanoset.plan(split)
    recipe = BLENDED.recipe(project, Key(name, split), {MAPPINGS: mappings.digest})

    # In a bucket, one listing shows which index files exist, and whether there is a record.
    listed_outputs = project.outputs.with_listing(nanoset.folder)
    existing_record = listed_outputs.existing_version(recipe)
    file_entries = _write_files_of_blend(nanoset, planned, listed_outputs.access)
    samples_given = _samples_given(nanoset, planned)
    return _record(nanoset, recipe, planned, file_entries, existing_record, samples_given)


def _mappings_up_to_date(nanoset: NanosetContext, split: SplitName) -> Manifest:
    """Return the record of the index files of each dataset of a split, which must be up to date.

    The files of a blend refer to samples by their numbers in these files, as in "sample 5 of the
    split is sample 2 of web".

    Args:
        nanoset: The training data.
        split: `train`, `valid` or `test`.

    Raises:
        MissingError: The index files have not been built.
        StaleError: They were made from other inputs than the present ones.
    """
    mappings = require(nanoset.project, INDEX_MAPPINGS, Key(nanoset.name, split))
    check_recipe(mappings, mappings_recipe(nanoset, split))
    return mappings


def _write_files_of_blend(
    nanoset: NanosetContext, planned: PlannedSplit, access: FileAccess
) -> FileEntries:
    """Write the index files that say which dataset each sample of a split is from.

    Files that exist already are kept, unless the user demands to rebuild everything.

    Args:
        nanoset: The training data, with the folder in which the trainer looks for the files.
        planned: The plan of the split: how its samples are mixed from several datasets.
        access: How files of the output root are read and stored, with a listing of the folder.

    Returns:
        Size and sha256 of each file: `{"a07e…-dataset_index.npy": {"bytes": 800, …}, …}`. It is
        empty for a split without data.
    """
    plan = planned.plan
    if plan is None or plan.blend is None:
        return {}
    writer = IndexFileWriter(nanoset.cache, access, rebuild=nanoset.project.rebuild)
    file_entries = writer.write_blend(plan, plan.blend)
    writer.upload()  # to a bucket, if the output root is in one
    return file_entries


def _samples_given(nanoset: NanosetContext, planned: PlannedSplit) -> Sequence[int] | None:
    """Count how many samples of each dataset a split has, by its index files: `[700, 300]`.

    Args:
        nanoset: The training data, with the folder of the index files, which exist.
        planned: The plan of the split.

    Returns:
        In the order of the datasets; None for a split without data.
    """
    plan = planned.plan
    if plan is None or plan.blend is None:
        return None
    return count_samples_given(plan, nanoset.cache, nanoset.project.outputs.access)


def _record(
    nanoset: NanosetContext,
    recipe: Recipe,
    planned: PlannedSplit,
    file_entries: FileEntries,
    existing_record: ExistingVersion,
    samples_given: Sequence[int] | None = None,
) -> Manifest:
    """Record the index files that were written for a split, so that a training run can use them.

    The files themselves are in a folder that the trainer reads. The record is in another folder:

        nanosets/pretrain/train/index_mappings/0a1b…/
            plan.json        which samples the split has of each dataset
            manifest.json    size and sha256 of each index file, and numbers that users see

    Args:
        nanoset: The settings of the training data.
        recipe: What the index files were made from; its digest is the name of the folder.
        planned: Which samples the split has.
        file_entries: Size and sha256 of each index file.
        existing_record: Whether an earlier call has stored this record. If so, it is kept.
        samples_given: For a blend of datasets, how many samples it takes from each of them.

    Returns:
        The content of manifest.json.
    """
    outputs = nanoset.project.outputs

    def write(folder: Path) -> Written:
        """Write the plan, and return what the manifest records."""
        stored_split = StoredSplit.of(outputs.folder, planned.plan, planned.config)
        (folder / PLAN_FILE).write_bytes(dump(stored_split))
        facts = split_facts(nanoset, planned, samples_given)
        return Written({**facts, CACHE_FILES: file_entries})

    manifest = outputs.commit(recipe, write, existing=existing_record)  # unless the record exists
    return outputs.make_current(manifest)  # from now on, training uses this record

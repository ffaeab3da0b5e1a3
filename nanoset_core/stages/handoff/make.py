"""Write the handoff of a nanoset: check what its trainer will read, and describe it in files.

What the files contain is decided in `trainer_files.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.loading.layout import MAPPINGS
from nanoset_core.outputs.manifest import Manifest, Recipe, Written, first_fault
from nanoset_core.project.project import Project, holding
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.description import Handoff
from nanoset_core.stages.handoff.gather import gather
from nanoset_core.stages.handoff.megatron import loads_fast
from nanoset_core.stages.handoff.stage import TRAINER_FILES, completing_stage, export_nodes
from nanoset_core.stages.handoff.trainer_files import handoff_files
from nanoset_core.stages.mappings.facts import cache_files
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS, mappings_recipe
from nanoset_core.stages.stage import Key, check_recipe, find_current, require
from nanoset_core.storage.access import FileAccess


@holding
def write_handoff(project: Project, name: str) -> Manifest:
    """Write the files with which a trainer is started on data that was built, its handoff.

    The data is a nanoset: a mixture of datasets, divided into train, valid and test. These are the
    steps:

        open what the trainer will read, and check that it is up to date
        describe all of it in a `Handoff`, from which the files are written
        put the files into a new folder, named by a digest of what they are made from
        make this folder the current one; earlier ones are kept

    The decorator `holding` protects what these files name from `nanoset gc`, which deletes old
    outputs.

    Args:
        project: The project that contains the nanoset. Its outputs must have been built.
        name: Name of the nanoset.

    Returns:
        The manifest of the handoff, which consists of these files.

    Raises:
        MissingError: A split, an index file or an export has not been built.
        StaleError: A split or an export was made from other inputs than the present ones.
        ConfigError: A path contains characters that the trainer's command line cannot contain.
    """
    # Open what the trainer will read: index files of each split, and exports if it reads these.
    nanoset = NanosetContext(project, name)
    last_stage = completing_stage(is_blended=nanoset.spec.is_blended)
    splits = {split: require(project, last_stage, Key(name, split)) for split in SPLITS}
    exports = _current_exports(nanoset)

    # The recipe lists what the files are made from. Its digest is the name of their folder.
    key = Key(name)
    recipe = TRAINER_FILES.recipe(project, key, _parents(splits, exports))

    # In a bucket, one listing shows whether this folder and all index files exist.
    listed_outputs = project.outputs.with_listing(nanoset.folder)
    existing = listed_outputs.existing_version(recipe)
    _check_cache(nanoset, listed_outputs.access)

    warnings = list(TRAINER_FILES.settings_warnings(project.config, key))
    handoff = gather(nanoset, recipe.digest, splits, exports, warnings)

    # Another build may have replaced an input in the meantime, so check this as late as possible.
    _check_splits(nanoset, splits)

    write = partial(_write_files, handoff)
    manifest = project.outputs.commit(recipe, write, existing=existing)
    return project.outputs.make_current(manifest)


def _write_files(handoff: Handoff, folder: Path) -> Written:
    """Write the files with which a trainer is started into a folder, such as START.md.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
        folder: An existing folder.

    Returns:
        Facts for the record of the output: notes for the user, the number of samples of each split,
        and whether the trainer can use an option that makes its start faster.
    """
    files = handoff_files(handoff)
    for file_name, content in files.contents.items():
        (folder / file_name).write_bytes(content)
    facts = {
        "notes": files.notes,
        "samples": dict(handoff.samples),
        "loads_fast": loads_fast(handoff),
    }
    return Written(facts)


def _parents(
    splits: Mapping[SplitName, Manifest], exports: Mapping[str, Manifest]
) -> dict[str, str]:
    """Return what the files for a trainer are made from, by digests.

    For example, {"train": "1a2b…", "valid": "3c4d…", "test": "5e6f…", "export of web": "7a8b…"}. If
    one of these changes, the files are written again.

    Args:
        splits: Split → the manifest of its index files.
        exports: Name of a corpus or view → the manifest of its export, a copy in the trainer's
            format.
    """
    parents: dict[str, str] = {split: manifest.digest for split, manifest in splits.items()}
    for corpus, export in exports.items():
        parents[f"export of {corpus}"] = export.digest
    return parents


def _check_splits(nanoset: NanosetContext, splits: Mapping[SplitName, Manifest]) -> None:
    """Check that nothing has changed since the index files of the splits were built.

    The record of an output contains its recipe: its settings, and digests of what it was made from.
    Compare this with the recipe that a build would have now.

    Args:
        nanoset: The datasets and settings of a training run, as they are now.
        splits: Split → the record of its index files.

    Raises:
        StaleError: A split was made from other inputs or settings.
    """
    for split, manifest in splits.items():
        check_recipe(manifest, _present_recipe(nanoset, split))  # raises StaleError if they differ


def _present_recipe(nanoset: NanosetContext, split: SplitName) -> Recipe:
    """Return the recipe that the index files of a split would have if they were built now.

    They are built in one step for a single dataset, and in two steps for several:

        mappings    the order of the samples of each dataset
        blended     which dataset each sample of the mixture is from; its input is the first step

    Args:
        nanoset: The datasets and settings of a training run.
        split: Train, valid or test.
    """
    recipe_of_mappings = mappings_recipe(nanoset, split)
    if not nanoset.spec.is_blended:
        return recipe_of_mappings
    inputs_of_blend = {MAPPINGS: recipe_of_mappings.digest}
    return BLENDED.recipe(nanoset.project, Key(nanoset.name, split), inputs_of_blend)


def _current_exports(nanoset: NanosetContext) -> dict[str, Manifest]:
    """Return the copies of datasets that a trainer reads, and check that they are up to date.

    Such a copy in the trainer's format is called an export.

    Args:
        nanoset: The data mixture: a weighted blend of datasets.

    Returns:
        Name of a dataset → the record of its export. Empty if the trainer reads our datasets.

    Raises:
        MissingError: An export has not been built.
        StaleError: An export was not made from the current dataset.
    """
    exports: dict[str, Manifest] = {}
    for dataset, node in export_nodes(nanoset.project.config, nanoset.name).items():
        export = require(nanoset.project, EXPORT, node.key)  # raises MissingError

        # Compare what the export was made from with what it would be made from now.
        current_dataset = {"dataset": nanoset.dataset(dataset).digest}
        present_recipe = EXPORT.recipe(nanoset.project, node.key, current_dataset)
        check_recipe(export, present_recipe)  # raises StaleError
        exports[dataset] = export
    return exports


def _check_cache(nanoset: NanosetContext, access: FileAccess) -> None:
    """Check that every index file that the trainer will look for exists, and is complete.

    Index files say which tokens each sample has. With --dataloader-fast-cache-load, Megatron-LM
    does not check that they exist, and fails later. So compare the sizes of the files with those
    that were recorded when they were written.

    Args:
        nanoset: The nanoset, whose index files were built before.
        access: Looks up the present sizes.

    Raises:
        MissingError: An index file is missing, or has another size.
    """
    written_sizes = _written_sizes(nanoset)
    present_sizes = access.sizes(nanoset.cache, written_sizes)
    fault = first_fault(present_sizes, written_sizes)
    if fault is not None:
        raise MissingError(
            "an index file that the trainer will look for is missing or damaged",
            where=nanoset.cache / fault.name,
            expected=f"{written_sizes[fault.name]:,} bytes",
            remedy="run `nanoset build`, which writes the index files again",
        )


def _written_sizes(nanoset: NanosetContext) -> dict[str, int]:
    """Return the size of each index file, as it was recorded when the file was written.

    Args:
        nanoset: The data mixture, whose index files were built before.

    Returns:
        Path below the trainer's cache → size in bytes: {"1a2b-shuffle_index.npy": 800128, …}.
    """
    sizes: dict[str, int] = {}
    for split in SPLITS:
        # The index files of single datasets, and those of the order in which they are mixed. The
        # latter do not exist if there is only one dataset.
        for stage in (INDEX_MAPPINGS, BLENDED):
            manifest = find_current(nanoset.project, stage, Key(nanoset.name, split))
            if manifest is not None:
                for file_name, record in cache_files(manifest).items():
                    sizes[file_name] = record["bytes"]
    return sizes

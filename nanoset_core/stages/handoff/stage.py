"""The stage `handoff`: writes the files with which a trainer is started on a built nanoset.

A nanoset is a weighted blend of datasets, for which an earlier stage has written index files: the
order of the samples of each split. A handoff is a small folder that a trainer is started with, for
example Megatron-LM with `pretrain_gpt.py $(cat …/handoff/current/arguments.txt)`. It depends on
the index files of all splits, and on the settings that its files mention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.loading.layout import BLEND, HANDOFF, MAPPINGS, MASKS_OPTION, STAGE
from nanoset_core.outputs.manifest import Manifest, Recipe, Written, first_fault
from nanoset_core.project.evaluation import evaluation_warnings
from nanoset_core.project.orders import nanoset_order_warnings
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.presets import Preset, get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.exports.settings import exports_for_trainer
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.description import Handoff
from nanoset_core.stages.handoff.gather import gather, trainer_tokenizer, views_of
from nanoset_core.stages.handoff.show import handoff_summary
from nanoset_core.stages.mappings.facts import cache_files
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.settings import ScheduleSpec
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS, mappings_recipe
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import (
    SUBJECT,
    Advising,
    BoundToMachine,
    Key,
    Layout,
    Node,
    Stage,
    Summary,
    check_recipe,
    require,
)
from nanoset_core.storage.access import FileAccess

VERSION = 2
"""Version of the files of most trainers."""
VERSION_FOR_MEGATRON = 3
"""Version of the files of Megatron-LM: the first one with preflight.py."""
VERSION_FOR_NANOTRON_MAIN = 4
"""Version of the files of nanotron's main branch: the first one with a data stage.

Earlier versions had a section `data`, which this branch refuses.
"""


class HandoffStage(BoundToMachine, Advising):
    """Writes the files with which the trainer of a nanoset is started."""

    layout = Layout(STAGE, (SUBJECT, HANDOFF))
    kind = "nanoset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the name of each nanoset, since each one has a handoff."""
        return [Key(name, requested_at=f"nanosets.{name}") for name in config.nanosets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the outputs that the files of a trainer are made from.

        For example:

            "train"            the index files of train; also "valid" and "test"
            "export of web"    a copy of the dataset web in the trainer's format, for a trainer that
                               does not read datasets themselves

        Args:
            config: The settings of the project.
            key: Names the data mixture, such as "pretrain".

        Returns:
            Name of an input → the output.
        """
        # The last step that makes index files depends on whether there is more than one dataset.
        last_stage = _last_stage(is_blended=config.nanosets[key.subject].is_blended)
        nodes: dict[str, Node] = {}
        for split in SPLITS:
            nodes[split] = Node(last_stage, Key(key.subject, split))
        for dataset, export in _export_nodes(config, key.subject).items():
            nodes[f"export of {dataset}"] = export
        return nodes

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of the files with which a trainer is started.

        If nothing in it has changed, the files are not written again.

        Args:
            project: Has the settings and the tokenizer.
            key: Names the data mixture, such as "pretrain".
            parents: What the files are made from: name → digest, such as {"train": "1a2b…"}.
        """
        nanoset = NanosetContext(project, key.subject)
        options: dict[str, Any] = {
            "trainer_path": nanoset.trainer_root,
            "vocab_size": project.tokenizer.max_id + 1,
            # The iterations at which the run continues with other data, if any.
            "transitions": nanoset.spec.transitions,
            **_later_options(nanoset),
        }
        version = _version(get_preset(nanoset.spec.preset))
        return Recipe(STAGE, self.layout.name_of(key), version, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        """Write the handoff of a nanoset, and return its manifest. See `write_handoff`."""
        return write_handoff(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        """Check that the files of a handoff are unchanged. See `verify_handoff`."""
        from nanoset_core.stages.handoff.verify import verify_handoff

        return verify_handoff(project, key.subject)

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        """Yield warnings on settings of a nanoset that are allowed but rarely intended.

        For example, a view (a selection of documents) may have an order, which is lost if the
        trainer shuffles; evaluations are requested, and there are no samples for them; or the
        version of the trainer is not known.

        Args:
            config: The settings of the project.
            key: Names the nanoset: a weighted blend of datasets.

        Yields:
            Sentences without their full stop.
        """
        spec = config.nanosets[key.subject]
        yield from nanoset_order_warnings(config.views, spec)
        yield from evaluation_warnings(spec)
        version_warning = None if spec.trainer is None else spec.trainer.version_warning()
        if version_warning is not None:
            yield version_warning

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the summary of a handoff, which Dagster and `nanoset status` show."""
        name = manifest.name.removesuffix(f"/{HANDOFF}")
        return handoff_summary(manifest, project.nanoset(name))


TRAINER_FILES = HandoffStage()


def _version(preset: Preset) -> int:
    """Return the version of the files with which a trainer is started, its handoff.

    When what is written for a trainer changes, the number is raised, and the next build writes the
    files again. Files of other trainers keep their number, so that they are not written again.

    Args:
        preset: The rules of the trainer.
    """
    # Only Megatron-LM has names of index files that depend on the tokenizer.
    is_megatron = preset.hashes_tokenizer
    if is_megatron:
        return VERSION_FOR_MEGATRON

    # Only nanotron's main branch cuts datasets into windows of equal length.
    is_nanotron_main = preset.windows
    if is_nanotron_main:
        return VERSION_FOR_NANOTRON_MAIN
    return VERSION


def _last_stage(*, is_blended: bool) -> Stage:
    """Return the stage that completes a split of a nanoset.

    A nanoset of several datasets is completed by the stage that blends their index files. One that
    reads a single dataset has nothing to blend.
    """
    return BLENDED if is_blended else INDEX_MAPPINGS


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
    last_stage = _last_stage(is_blended=nanoset.spec.is_blended)
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
    # Imported here: every command imports this module, but few of them write handoffs.
    from nanoset_core.stages.handoff.megatron import loads_fast
    from nanoset_core.stages.handoff.trainer_files import handoff_files

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


def _later_options(nanoset: NanosetContext) -> dict[str, Any]:
    """Return the values of newer settings for a recipe, without those that are not set.

    A recipe lists what decides the bytes of an output, and a digest of it identifies the output. So
    a new setting must not be listed if it is not set: all older outputs would have to be built
    again.

    Args:
        nanoset: The data mixture, with its settings in nanoset.yaml.

    Returns:
        Name of an option → value, such as {"tokenizer": ["--vocab-size 32000"]}.
    """
    spec = nanoset.spec
    lists = {
        "tokenizer": list(trainer_tokenizer(nanoset)),
        "views": views_of(nanoset),
        MASKS_OPTION: list(spec.masks),
    }
    options: dict[str, Any] = {name: values for name, values in lists.items() if values}
    if spec.schedule is not None:
        options["schedule"] = _numbers_of(spec.schedule)  # such as [1000, 64, 100, 10]
        # The first and last iteration, if the data is only for a phase of the training.
        options["span"] = None if spec.span is None else list(spec.span)
    return options


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
        # The index files of the single datasets are built first ("mappings").
        expected_recipe = mappings_recipe(nanoset, split)
        # If there are several datasets, a second step mixes them, and has the first as its input.
        if nanoset.spec.is_blended:
            inputs_of_blend = {MAPPINGS: expected_recipe.digest}
            key = Key(nanoset.name, split)
            expected_recipe = BLENDED.recipe(nanoset.project, key, inputs_of_blend)
        check_recipe(manifest, expected_recipe)  # raises StaleError if they differ


def _export_nodes(config: ProjectConfig, name: str) -> dict[str, Node]:
    """Return the exports that a trainer reads: copies of datasets in its own format.

    For example, nanotron reads .ds files. Most trainers read the datasets themselves.

    Args:
        config: The settings of the project, with its data mixtures and exports.
        name: Name of the mixture (a nanoset).

    Returns:
        Name of a dataset → its export. Datasets without one are left out.
    """
    nodes: dict[str, Node] = {}
    export_by_dataset = exports_for_trainer(config.nanosets[name], config.exports)
    for dataset, export_name in export_by_dataset.items():
        if export_name is not None:
            nodes[dataset] = Node(EXPORT, Key(export_name))
    return nodes


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
    for dataset, node in _export_nodes(nanoset.project.config, nanoset.name).items():
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
            remedy=f"run `nanoset build`, or materialise {nanoset.name}/{MAPPINGS} and "
            f"{nanoset.name}/{BLEND} again",
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
        for output in (MAPPINGS, BLEND):
            name = f"{nanoset.name}/{split}/{output}"
            manifest = nanoset.project.outputs.current(STAGE, name)
            if manifest is not None:
                for file_name, record in cache_files(manifest).items():
                    sizes[file_name] = record["bytes"]
    return sizes


def _numbers_of(schedule: ScheduleSpec) -> list[int]:
    """Return the numbers of a schedule in the order in which recipes list them."""
    return [
        schedule.iterations,
        schedule.global_batch_size,
        schedule.eval_interval,
        schedule.eval_iters,
    ]

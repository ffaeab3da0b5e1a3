"""The stages `index_mappings` and `blend`: datasets → the trainer's index files of each split.

A split (train, valid or test) of a nanoset reads one or more datasets. The index mappings have, for
each dataset, the order in which its samples are read. If there are several datasets, the blend says
for each sample which dataset it is from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nanoset_core.errors import NanosetError, one_line_with_remedy
from nanoset_core.loading.layout import BLEND, CACHE, MAPPINGS, NANOSETS_FOLDER
from nanoset_core.outputs.manifest import Manifest, Recipe, first_fault
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.json_records import as_parsed
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.contamination.stage import searches_before_training
from nanoset_core.stages.dataset.tokens import idx_bytes
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.held_out import stage as held_out
from nanoset_core.stages.held_out.names import FOLDER as HELD_OUT_FOLDER
from nanoset_core.stages.inventory.shared_files import check_split_files
from nanoset_core.stages.mappings.facts import cache_files, files_in_use
from nanoset_core.stages.mappings.lookup import cache_folder
from nanoset_core.stages.mappings.names import VERSION
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.run_before import handoff_and_splits
from nanoset_core.stages.mappings.show import mappings_summary, split_summary
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    AFTER,
    PART,
    SUBJECT,
    Key,
    Layout,
    Node,
    OutsideFiles,
    Planned,
    ReadingBudget,
    SharedFileNames,
    SharesFiles,
    Summary,
)


class _SplitStage(OutsideFiles, SharesFiles):
    """A stage whose files are in the trainer's cache: index mappings or blends of splits."""

    kind = "nanoset"
    version = VERSION
    shared_folder = CACHE

    def shared_files(self, manifest: Manifest) -> set[str]:
        """Return the names of the index files in the cache that a version needs."""
        return files_in_use(manifest)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return which index file is missing or of a wrong size, in words, or None.

        The files are in a folder that the trainer reads, where somebody may have deleted them.

        Args:
            project: Its output root contains the folder.
            key: Names the training data and a split, such as pretrain and train.
            manifest: The record of the files, with the size of each.

        Returns:
            Such as "an index file is missing or of another size: 5ce5…-shuffle_index.npy".
        """
        recorded_sizes = {name: entry["bytes"] for name, entry in cache_files(manifest).items()}
        folder = cache_folder(project, key.subject)
        stored_sizes = project.outputs.access.sizes(folder, names=recorded_sizes)
        fault = first_fault(stored_sizes, recorded_sizes)
        if fault is None:
            return None
        file_name, *_sizes = fault
        return f"an index file is missing or of another size: {file_name}"

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return split_summary(manifest)


class MappingsStage(_SplitStage, Planned):
    """The trainer's document, sample and shuffle index of every dataset of a split."""

    layout = Layout(NANOSETS_FOLDER, (SUBJECT, PART, MAPPINGS))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return _split_keys(config.nanosets)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the datasets of the split, and for train the reports that may forbid training."""
        nanoset = key.subject
        names = config.nanosets[nanoset].corpora_of(split_of(key))
        nodes = {name: dataset_node(config, name) for name in names}
        if key.part == "train":
            # Searches for evaluation texts in a corpus, and for documents of valid and test. They
            # are made before this output, but not read: that is what AFTER ("after ") marks.
            nodes |= searches_before_training(config, names)
            if held_out.must_compare_before_training(config, nanoset):
                nodes[f"{AFTER}{HELD_OUT_FOLDER}"] = Node(held_out.HELD_OUT, Key(nanoset))
        return nodes

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return mappings_recipe(NanosetContext(project, key.subject), split_of(key), parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.mappings.make import write_mappings

        return write_mappings(project, key.subject, split_of(key))

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.mappings.verify import verify_mappings

        return verify_mappings(project, key.subject, split_of(key), deep=deep)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return mappings_summary(manifest)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a build of index files would fail, or None if no reason is known yet.

        `nanoset status` shows it, so that the user need not start a build to find out. For example,
        two corpora read the same file, or there are fewer samples than the settings request.

        Args:
            project: Its outputs have the datasets that would be read.
            key: Names the training data and a split, such as pretrain and train.
            recipe: What the index files would be made from; None if this is not known yet.
            reading: Limits how many bytes may be read to find out.
        """
        try:
            check_split_files(project, key.subject, split_of(key))
            if recipe is not None:
                _check_settings_fit_data(project, key, recipe, reading)
        except NanosetError as error:
            return one_line_with_remedy(error)
        return None

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return which other outputs must not be deleted as long as these index files are needed.

        Most index files need none. But if a training run was stopped, and continues with other
        data, its new index files begin where the old ones ended. So the old ones are still needed.

        Args:
            outputs: The output root, which contains all outputs.
            manifest: The record of the index files. If the run continues another one, its options
                have `{"after": {"handoff": "pretrain/0a1b", …}}`: the files of its first start.

        Returns:
            Digests of the outputs; none if the run does not continue another one.

        Raises:
            MissingError: One of these outputs was deleted already.
        """
        run_before = manifest.recipe["options"].get("after", {})
        if "handoff" not in run_before:
            return []
        nanoset, digest = run_before["handoff"].split("/")  # "pretrain" and "0a1b"
        versions = handoff_and_splits(outputs, nanoset, digest)
        return [version.digest for version in versions.values()]

    def planned_files(self, project: Project, key: Key) -> SharedFileNames | None:
        """Return which index files training needs, and which files are in their folder already.

        An index file has the order in which a trainer reads samples. All splits of the training
        data share a folder. With both lists, `nanoset status` shows how many files are missing:

            needed      5ce5…-shuffle_index.npy, 5ce5…-sample_index.npy, a07e…-dataset_index.npy
            existing    5ce5…-shuffle_index.npy, 77cd…-shuffle_index.npy (of another split)

        Args:
            project: Its outputs have the datasets that training reads.
            key: Names the training data and one split of it, such as pretrain and train.

        Returns:
            Both lists; None if the split has no data.
        """
        nanoset = NanosetContext(project, key.subject)
        plan = nanoset.plan(split_of(key)).plan
        if plan is None:
            return None

        needed: set[str] = set()
        for dataset_plan in plan.members:  # files with the order in which each dataset is read
            needed.update(dataset_plan.cache_files)  # "5ce5…-shuffle_index.npy", …
        if plan.blend is not None:  # and files that say which sample is from which dataset
            needed.update(plan.blend.cache_files)
        existing = project.outputs.access.names(nanoset.cache)
        return SharedFileNames(needed, existing)


class BlendStage(_SplitStage):
    """The trainer's index of a blend: each sample's dataset, and its number in that dataset."""

    layout = Layout(NANOSETS_FOLDER, (SUBJECT, PART, BLEND))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return _split_keys(name for name, spec in config.nanosets.items() if spec.is_blended)

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {MAPPINGS: Node(INDEX_MAPPINGS, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return Recipe(NANOSETS_FOLDER, self.layout.name_of(key), VERSION, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.mappings.make import write_blended

        return write_blended(project, key.subject, split_of(key))

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.mappings.verify import verify_blend

        return verify_blend(project, key.subject, split_of(key), deep=deep)


INDEX_MAPPINGS = MappingsStage()
BLENDED = BlendStage()


def split_of(key: Key) -> SplitName:
    """Return which split of the training data an output is for.

    The index files of a training run are built separately for train, valid and test. So the key of
    such an output names two things: a run, and a split, which is its `part`.

        Key("pretrain", part="valid")    → "valid"
        Key("pretrain")                  an error

    Args:
        key: Key of the output.

    Raises:
        ValueError: The key names no split.
    """
    for split in SPLITS:
        if split == key.part:
            return split
    raise ValueError(f"{key.part!r} is not a split")


def _split_keys(nanosets: Iterable[str]) -> list[Key]:
    """Return a key for each split (train, valid and test) of each nanoset.

    Args:
        nanosets: Names of nanosets, each the data of a training run.

    Returns:
        For ["pretrain"] three keys: pretrain/train, pretrain/valid and pretrain/test.
    """
    keys = []
    for name in nanosets:
        keys += [Key(name, split, requested_at=f"nanosets.{name}.blend") for split in SPLITS]
    return keys


def mappings_recipe(
    nanoset: NanosetContext, split: SplitName, datasets: Mapping[str, str] | None = None
) -> Recipe:
    """Return everything on which the content of a split's index files depends, with a digest of it.

    An index file has the order in which a trainer reads samples of a dataset. The digest names the
    version of these files. If it does not change, they need not be built again.

        parents    {"web": "0a1b…", "code": "77cd…"}         digest of each dataset
        options    {"seed": 1234, "sequence_length": 2048, …}

    Args:
        nanoset: The training data, as nanoset.yaml describes it.
        split: `train`, `valid` or `test`.
        datasets: Name of each dataset → its digest; None or empty for the current datasets.

    Raises:
        MissingError: A dataset has not been built.
    """
    # The recipe is compared with one that was stored as JSON, where tuples have become lists. So
    # convert them here, too.
    options = as_parsed(nanoset.options(split))
    if not datasets:
        datasets = nanoset.digests(nanoset.spec.corpora_of(split))
    name = f"{nanoset.name}/{split}/{MAPPINGS}"
    return Recipe(NANOSETS_FOLDER, name, VERSION, dict(datasets), options)


def _check_settings_fit_data(
    project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
) -> None:
    """Check that a split of the training data can be filled as its settings request.

    A plan of the split shows it, for which the sizes of documents are read from .idx files. So this
    is only checked if these exist and are small enough to be read now. Estimates are good enough
    here, and faster than an exact plan.

    Args:
        project: Its outputs have the datasets.
        key: Names the training data and the split.
        recipe: What the index files of the split would be made from: versions of datasets.
        reading: Limits how many bytes may be read.

    Raises:
        ConfigError, InputError: The settings do not fit the data.
    """
    index_bytes = _index_bytes(project, key.subject, recipe)
    if index_bytes is not None and reading.spend(index_bytes):
        NanosetContext(project, key.subject, exact=False).plan(split_of(key))


def _index_bytes(project: Project, name: str, recipe: Recipe) -> int | None:
    """Return the size of the .idx files that would be read to plan a split of the training data.

    An .idx file has the lengths of a dataset's documents. For 100 million documents, it has some
    2 GB: too much to read just to show a warning.

    Args:
        project: Its outputs have the datasets.
        name: Name of the training data.
        recipe: What the index files of the split would be made from: versions of datasets.

    Returns:
        The sum in bytes; None if a dataset is missing, or is not the version of the recipe.
    """
    total = 0
    try:
        for corpus in project.nanoset(name).corpora:
            dataset = current_dataset(project, corpus)
            # The recipe has no version of datasets that only other splits read.
            version = recipe.parents.get(dataset.name)
            if version is not None and version != dataset.digest:
                return None
            total += idx_bytes(dataset)
    except (NanosetError, OSError):
        return None  # a dataset is missing, or cannot be read: the build will report that
    return total

"""Make a webdataset: plan it, write its tars group by group, and then the lists that name them.

The plan decides which context goes where. It is a separate output, so that all groups of tars are
written from one plan, by any number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.records.json_records import dump, from_plain, to_plain
from nanoset_core.stages.dataset.tokens import has_room_for_tokens
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.inventory.shared_files import check_webdataset_files
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.stage import check_recipe
from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.lists import write_lists
from nanoset_core.stages.webdataset.markers import (
    clear_markers,
    may_be_complete_by_now,
    read_markers,
    write_markers,
)
from nanoset_core.stages.webdataset.names import PLANS_FOLDER
from nanoset_core.stages.webdataset.pack_padding import PackPadding
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.planning import settings_of, sources_of
from nanoset_core.stages.webdataset.quality import shuffle_quality
from nanoset_core.stages.webdataset.recipes import plan_recipe, webdataset_recipe
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stored_rows import ROWS
from nanoset_core.stages.webdataset.tars import TarFacts, tar_name
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.stages.webdataset.writing import write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.removing.removals import remove_stored_folder

PLAN_FILE = "plan.json"


@holding
def make_plan(project: Project, name: str) -> Manifest:
    """Plan the tar files of a shuffled dataset, and store the plan.

    The dataset consists of tars of training samples. The plan says which sample goes into which
    tar. It is stored before any tar is written, so that several machines can write the tars of one
    plan. It is made from the number of tokens of each source dataset, such as web and code.

    While this runs, the decorator `holding` keeps `nanoset gc` (the command that deletes old
    versions) from deleting the source datasets.

    Args:
        project: Its outputs have the source datasets, and get the plan.
        name: Name of the shuffled dataset (a webdataset).

    Returns:
        The record of the plan.

    Raises:
        ConfigError: Two corpora hold the same file. Or the preset is tokshuf, which accepts no
            views, and only tokenizers that tokshuf-rust knows.
        InputError: The datasets do not fill a single sample.
        StaleError: The preset is tokshuf, and the files of a corpus have changed since its dataset
            was made.
    """
    # A file that is in two collections of texts (corpora) would be in the tars twice.
    check_webdataset_files(project, name)
    datasets = _datasets(project, name)

    def write(folder: Path) -> Written:
        """Write the plan into a folder, and return the facts for its record."""
        plan = _plan(project, name, datasets)
        stored_plan = StoredShufflePlan.of(plan)
        (folder / PLAN_FILE).write_bytes(dump(stored_plan))
        # The record repeats the content of plan.json, so that it is shown without reading it.
        facts = dict(to_plain(stored_plan))
        facts["quality"] = shuffle_quality(plan)
        return Written(facts)

    # `commit` calls `write`, unless this plan exists already.
    recipe = plan_recipe(project, name, _digests(datasets))
    manifest = project.outputs.commit(recipe, write)
    return project.outputs.make_current(manifest)


def _plan(project: Project, name: str, datasets: Mapping[str, Manifest]) -> ShufflePlan:
    """Decide which training sample goes into which tar file of a shuffled dataset.

    The tokens are in other datasets, such as web and code. Only their numbers are needed for a
    plan, so no tokens are read, and none are downloaded from a bucket.

    Args:
        project: Its nanoset.yaml has the settings of the shuffled dataset.
        name: Name of the shuffled dataset.
        datasets: Name → record of each dataset whose tokens are shuffled.
    """
    sources = sources_of(project, datasets, are_copied=False)
    settings = settings_of(project, project.webdataset(name), datasets)
    return plan_shuffle(sources, settings)


def _datasets(project: Project, name: str) -> dict[str, Manifest]:
    """Return the current version of each dataset that a webdataset reads."""
    return {corpus: current_dataset(project, corpus) for corpus in project.webdataset(name).names}


def _digests(datasets: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the digest of each dataset, by the name of its corpus."""
    return {corpus: dataset.digest for corpus, dataset in datasets.items()}


def current_plan(project: Project, name: str) -> tuple[Manifest, ShufflePlan]:
    """Read the plan of a shuffled dataset, which says which training sample goes into which tar.

    The plan is a file, plan.json, in a folder of its own. The folder also has a manifest, which is
    a small file that says what the plan was made from.

    Args:
        project: Its outputs are read.
        name: Name of the shuffled dataset, such as "train_tars".

    Returns:
        (the manifest, the plan).

    Raises:
        MissingError: No plan has been made.
        FormatError: The plan file is damaged.
    """
    manifest = project.outputs.require(PLANS_FOLDER, name, remedy="run `nanoset build` first")
    stored_plan = manifest.load(PLAN_FILE, StoredShufflePlan)  # the parsed file
    return manifest, stored_plan.plan()


def group_shards(plan: ShufflePlan, groups: int, group: int) -> range:
    """Return which tar files one of several machines writes.

    The tars (shards) of a dataset are divided as evenly as possible into groups of neighbouring
    ones. 10 tars in 4 groups:

        group      0       1        2       3
        tars       0, 1    2-4      5, 6    7-9

    Args:
        plan: Plan of the dataset, with the number of tars.
        groups: Number of groups.
        group: Number of the group, from 0 on.

    Returns:
        Numbers of the tars, such as range(2, 5) for group 1.
    """
    start = plan.shards * group // groups
    stop = plan.shards * (group + 1) // groups
    return range(start, stop)


class WrittenGroup(NamedTuple):
    """The tar files of a group, after a call of `write_group`."""

    tars: list[TarFacts]
    """Counts of samples and tokens, size and sha256 of each tar, in order."""
    new_tars: list[TarFacts]
    """Those that the call has written; the others existed already."""


@holding
def write_group(project: Project, name: str, group: int) -> WrittenGroup:
    """Write those tar files of one group that are not written yet, each whole or not at all.

    The tars of a shuffled dataset are divided into groups, which different machines can write at
    the same time. The dataset counts as complete only after `finish` was called at the end.

    While this runs, the decorator `holding` keeps `nanoset gc` (the command that deletes old
    versions) from deleting what is read.

    Args:
        project: Its outputs have the plan and the datasets, and get the tars.
        name: Name of the shuffled dataset (a webdataset).
        group: Number of the group, from 0 on.

    Returns:
        All tars of the group, and those that were written now.

    Raises:
        StaleError: A corpus has another dataset than the planned one, or this machine's compressor
            writes other bytes than the planned one.
        ConfigError: The memory budget does not hold one shard.
        StorageError: The disk is full. Tars that were whole by then stay.
    """
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(manifest.name, manifest.digest)
    shards = group_shards(plan, project.webdataset(name).groups, group)  # numbers of the tars
    outputs = project.outputs
    folder = outputs.place(recipe)
    # In a bucket, one listing of the folder shows all that earlier builds have written.
    before = outputs.with_listing(folder)

    # If the dataset is complete and no file is damaged, there is nothing to write. If one is
    # damaged, the tars that are whole are kept.
    complete = _complete_version(before, folder)
    recorded: list[TarFacts] = []
    if complete is not None:
        recorded = list(_recorded_facts(complete, shards).values())
        if not project.rebuild and outputs.is_whole(complete, folder):
            return WrittenGroup(recorded, [])

    # Find the tars that an interrupted build has written. Each has a marker, a small file with its
    # counts, size and sha256.
    datasets = _datasets(project, name)
    _check_datasets(manifest, datasets)
    _prepare_folder(project, recipe, recorded)
    facts: dict[int, TarFacts] = {}  # by number of the tar
    if not project.rebuild:
        # The listing lacks markers that `_prepare_folder` has written just now.
        access = outputs.access if recorded else before.access
        facts = _unfinished_facts(outputs, recipe, shards, access)

    missing = [shard for shard in shards if shard not in facts]
    new_tars: list[TarFacts] = []
    if missing:
        options = _write_options(project, name, group)
        new_tars = write_shards(
            plan,
            _opened_sources(project, datasets),
            missing,
            folder,
            replace(options, stored_sizes=_stored_tars(before.access, folder, missing)),
            made_from=recipe.digest,
            force=True,  # it was found above that these are not written
        )
        facts |= {tar.shard: tar for tar in new_tars}

    if complete is not None and outputs.find(recipe) is not None:
        # Some tars of a complete dataset were rewritten. Its manifest has the facts of all, so that
        # the markers are not needed. (The markers of an incomplete one are deleted by `finish`.)
        clear_markers(folder, outputs.access)
    return WrittenGroup([facts[shard] for shard in shards], new_tars)


def _check_datasets(plan_manifest: Manifest, datasets: Mapping[str, Manifest]) -> None:
    """Check that the source datasets have not been rebuilt since a shuffle was planned.

    The plan says, for example, that a training sample has the tokens 4,096 to 6,143 of web. In
    another version of web, these are other tokens.

    Args:
        plan_manifest: Record of the plan.
        datasets: Name of each source → record of its current dataset.

    Raises:
        StaleError: A source has another dataset than the planned one.
    """
    # The record of the plan has a recipe: its settings, and its `parents`, which are the digests of
    # the datasets, such as {"web": "3f2a…"}. Only these may differ from the current ones.
    recipe = from_plain(Recipe, plan_manifest.recipe)
    current_recipe = replace(recipe, parents=_digests(datasets))
    check_recipe(plan_manifest, current_recipe)  # the error says which one differs


def _prepare_folder(project: Project, recipe: Recipe, written: list[TarFacts]) -> None:
    """Prepare the folder of a shuffled dataset before tar files are written into it.

    - The folder is created, if it does not exist.
    - Temporary files of builds that were killed are deleted.
    - Each tar that is known to be written gets a marker, which is a small file next to it with its
      counts and checksum. Builds that run at the same time skip tars with a marker.

    Args:
        project: Its output root contains the folder.
        recipe: What the dataset is made from. It decides the path of the folder.
        written: Counts and checksum of each tar that is written.
    """
    folder = project.outputs.place(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    write_markers(folder, written, recipe.digest, project.outputs.access)


def _complete_version(outputs: OutputRoot, folder: Path) -> Manifest | None:
    """Return the manifest of a complete dataset in a folder, or None if it is not complete.

    The manifest is a file with the counts of all tar files, which is written last. If it is
    damaged, the dataset counts as not complete, and all tars are written again.

    Args:
        outputs: The outputs of the project.
        folder: The folder.
    """
    with contextlib.suppress(FormatError):
        return outputs.manifest_at(folder)
    return None


def _opened_sources(project: Project, datasets: Mapping[str, Manifest]) -> list[TokenSource]:
    """Return the tokens of datasets to write tars from, which may stay in their bucket."""
    return sources_of(project, datasets, are_copied=_are_copied(project, datasets.values()))


def _are_copied(project: Project, datasets: Iterable[Manifest]) -> bool:
    """Return whether tokens in a bucket are copied to this machine before they are shuffled.

    That is the case if this machine does the work, and its disk has room for all tokens. Otherwise
    each group of tar files fetches the tokens block by block.

    Args:
        project: Its executor, if there is one, gives the work to other machines.
        datasets: Records of the datasets with the tokens.
    """
    return project.executor is None and has_room_for_tokens(*datasets)


def _write_options(project: Project, name: str, group: int) -> WriteOptions:
    """Return how a group of tar files is written: the memory, the number of processes and so on.

    None of this changes the content of the files.

    Args:
        project: Its settings in nanoset.yaml have the values.
        name: Name of the shuffled dataset.
        group: Number of the group.
    """
    spec = project.webdataset(name)
    return WriteOptions(
        engine=spec.engine,
        memory_bytes=spec.memory_mib << 20,  # 1 MiB is 2^20 bytes
        workers=project.config.workers,
        executor=project.executor,
        progress=project.progress,
        name=f"{name} group {group}",  # shown with the progress
        access=project.outputs.access,
    )


def _stored_tars(access: FileAccess, folder: Path, shards: Iterable[int]) -> dict[str, int]:
    """Return which tar files a bucket has already, whether they are valid or not.

    For example, a build may have been killed after it had sent a tar, but before its marker.

    Args:
        access: Access to the folder of the tars, with a listing if it is in a bucket.
        folder: The folder.
        shards: Numbers of the tars to look for.

    Returns:
        Name in the bucket, such as `webdatasets/web/3f2a…/shard-00000000.tar` → bytes. Empty if the
        folder is on a disk.
    """
    if not access.takes_requests:
        return {}
    tar_names = [tar_name(shard) for shard in shards]
    sizes = access.sizes(folder, tar_names)
    return {access.name(folder / name): size for name, size in sizes.items()}


def _written_facts(
    outputs: OutputRoot, listed_outputs: OutputRoot, recipe: Recipe, shards: range
) -> dict[int, TarFacts]:
    """Return which tar files of a shuffled dataset exist already, and what is recorded of them.

    Where it is recorded depends on whether all tars have been written:

    - If the dataset is complete, it has a manifest, one file with the facts of all tars.
    - Until then, each finished tar has a marker, a small file with its facts.

    Args:
        outputs: The project's outputs.
        listed_outputs: The same, with a listing of the dataset's folder. In a bucket (such as S3),
            one listing shows the manifest and all markers.
        recipe: What the dataset is made from. It decides the folder.
        shards: Numbers of the tars to look for.

    Returns:
        Number of the tar → its counts, size and sha256. Tars that do not exist, or have another
        size than the recorded one, are left out.
    """
    complete = listed_outputs.find(recipe)
    if complete is None:
        return _unfinished_facts(outputs, recipe, shards, listed_outputs.access)
    return _recorded_facts(complete, shards)


def _unfinished_facts(
    outputs: OutputRoot, recipe: Recipe, shards: range, access: FileAccess
) -> dict[int, TarFacts]:
    """Return what is recorded of the finished tar files of a dataset that is not complete yet.

    Each finished tar has a marker, a small file with its counts and checksum.

    Several builds may write tars of the dataset at the same time. The last one records the facts of
    all tars in one file, the manifest, and then deletes the markers. It may do so while this
    function reads them. So if a marker is missing, look for the manifest.

    Args:
        outputs: The project's outputs.
        recipe: What the dataset is made from. It decides the folder.
        shards: Numbers of the tars to look for.
        access: Reads the markers, perhaps with a listing of the folder in a bucket.

    Returns:
        Number of the tar → its facts.
    """
    folder = outputs.place(recipe)
    facts = read_markers(folder, shards, recipe.digest, access)
    missing = [shard for shard in shards if shard not in facts]
    if missing and may_be_complete_by_now(folder, missing, access):
        manifest = outputs.find(recipe)  # None if the dataset is still not complete
        if manifest is not None:
            return _recorded_facts(manifest, shards)
    return facts


def _recorded_facts(manifest: Manifest, shards: range) -> dict[int, TarFacts]:
    """Return what the manifest of a complete dataset records of some of its tar files.

    Args:
        manifest: The manifest, a record with the counts, size and sha256 of each tar.
        shards: Numbers of the tars, such as range(2, 4).

    Returns:
        Number of the tar → its facts: {2: TarFacts(shard=2, sequences=8192, ...), 3: ...}.
    """
    all_facts = [from_plain(TarFacts, row) for row in manifest.facts["shards_written"]]
    return {facts.shard: facts for facts in all_facts if facts.shard in shards}


def group_facts(project: Project, name: str, group: int) -> dict[Path, TarFacts | None]:
    """Return which tar files of a group are written, and what is recorded of them.

    A shuffled dataset is written in groups of tars, by several machines. If a group has the tars 2
    and 3, and only 2 is written, the result is

        {".../shard-00000002.tar": TarFacts(shard=2, sequences=8192, ...),
         ".../shard-00000003.tar": None}

    Args:
        project: Its outputs have the plan of the dataset, and perhaps the tars.
        name: Name of the dataset.
        group: Number of the group.

    Returns:
        Path of each tar of the group → its counts, size and sha256; None if the tar is missing or
        has another size than was written.
    """
    plan_manifest, plan = current_plan(project, name)
    n_groups = project.webdataset(name).groups
    shards = group_shards(plan, n_groups, group)  # numbers of the tars, such as range(2, 4)
    recipe = webdataset_recipe(plan_manifest.name, plan_manifest.digest)

    tar_folder = project.outputs.place(recipe)
    facts_by_shard = _facts_of_listed_tars(project.outputs, recipe, shards)
    return {tar_folder / tar_name(shard): facts_by_shard.get(shard) for shard in shards}


def _facts_of_listed_tars(
    outputs: OutputRoot, recipe: Recipe, shards: range
) -> dict[int, TarFacts]:
    """Return what is recorded of the tars that are written, and have the recorded size.

    In a bucket, one listing of the folder says which tars are written.

    Args:
        outputs: The outputs of the project.
        recipe: What the dataset is made from. It decides the folder of the tars.
        shards: Numbers of the tars to look for.

    Returns:
        Number of the tar → its facts. Other tars are left out.
    """
    listed_outputs = outputs.with_listing(outputs.place(recipe))
    return _written_facts(outputs, listed_outputs, recipe, shards)


def is_group_written(project: Project, name: str, group: int) -> bool:
    """Return whether all tar files of a group are written, so that its task can be skipped.

    A shuffled dataset is written in groups of tars, by several machines. The tars must be those of
    the current plan, which says which training sample goes into which tar.

    Args:
        project: Its outputs are read.
        name: Name of the dataset.
        group: Number of the group, from 0 on.

    Raises:
        MissingError: No plan has been made.
    """
    facts_by_tar = group_facts(project, name, group)  # None for a tar that is missing
    return None not in facts_by_tar.values()


@holding
def finish(project: Project, name: str) -> Manifest:
    """Complete a shuffled dataset, after all its tar files have been written.

    The tars were written in groups, perhaps by several machines. This call

    - checks that no tar is missing;
    - writes the lists of tars that data loaders read, such as index.json;
    - writes the manifest, a file with the counts of all tars. From then on the dataset counts as
      complete;
    - deletes the files that were only needed until then.

    While this runs, `nanoset gc` deletes nothing that it needs: `holding` sees to that.

    Args:
        project: Its outputs have the tars, and get the lists and the manifest.
        name: Name of the dataset (a webdataset).

    Returns:
        The manifest.

    Raises:
        MissingError: A tar has not been written, or a packed dataset of the plan was deleted.
    """
    # What the tars are made from, and the folder that follows from it.
    plan_manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(plan_manifest.name, plan_manifest.digest)
    outputs = project.outputs
    folder = outputs.place(recipe)

    # Complete the dataset, unless an earlier call has done so. In a bucket, one listing of the
    # folder replaces a request for each tar.
    listed_outputs = outputs.with_listing(folder)
    manifest = listed_outputs.find(recipe)  # None if the dataset is not complete
    if manifest is None or project.rebuild:
        digest_by_source = plan_manifest.recipe["parents"]
        manifest = _complete(project, listed_outputs, recipe, plan, digest_by_source)

    # Do this in any case: an earlier call may have been killed before it had deleted everything.
    _delete_temporary_files(folder, listed_outputs.access)

    # The listing lacks the files that were written after it. So let the manifest look for its files
    # without the listing.
    manifest = outputs.rebase(manifest)
    return outputs.make_current(manifest)


def _delete_temporary_files(folder: Path, access: FileAccess) -> None:
    """Delete the files that are needed only until a shuffled dataset of tar files is complete.

    These are the marker of each finished tar, a small file with its counts; and in a bucket, the
    shuffled tokens from which the tars were written.

    Args:
        folder: Folder of the tars.
        access: Access to the folder. It may have a listing, which has all of these files.
    """
    clear_markers(folder, access)
    remove_stored_folder(access, folder / ROWS)


def _complete(
    project: Project,
    listed_outputs: OutputRoot,
    recipe: Recipe,
    plan: ShufflePlan,
    digest_by_source: Mapping[str, str],
) -> Manifest:
    """Write the last files of a shuffled dataset, after all its tar files have been written.

    These are the lists of tars that data loaders read, such as index.json, and the manifest, a file
    with the counts of all tars. A dataset that has a manifest counts as complete.

    Args:
        project: Its outputs have the tars, and get these files.
        listed_outputs: Its outputs, with a listing of the dataset's folder.
        recipe: What the dataset is made from. It decides the folder.
        plan: Says which training sample goes into which tar.
        digest_by_source: Name of each source of text → digest of the version that was used.

    Returns:
        The manifest.

    Raises:
        MissingError: A tar has not been written, or a packed dataset of the plan was deleted.
    """
    folder = project.outputs.place(recipe)
    facts = _written_facts(project.outputs, listed_outputs, recipe, range(plan.shards))
    _check_all_written(project, recipe, plan, facts)

    # The samples of a packed source contain padding already. It was counted as ordinary tokens
    # until now. Count it as padding.
    padding = PackPadding(plan, _padding_by_source(project, plan, digest_by_source))
    tars = [padding.counted(facts[shard]) for shard in range(plan.shards)]
    sources = padding.counted_sources()

    # The manifest is written last, since it says that everything else exists.
    files = write_lists(
        plan,
        tars,
        folder,
        name=recipe.name,
        tokenizer=project.config.tokenizer_file.name,
        sources=sources,
    )
    return listed_outputs.finalize(recipe, _facts(plan, tars, sources), files)


def _facts(
    plan: ShufflePlan,
    tars: Sequence[TarFacts],
    sources: Sequence[SourceContexts],
) -> dict[str, Any]:
    """Return the counts that are recorded with a shuffled dataset of tar files.

    For example, 2 tars (shards) with 15 training samples (sequences, or contexts) of 1,000 tokens:

        {"sequences": 15, "sequence_length": 1000, "shards": 2, "tokens": 15000, ...}

    Args:
        plan: Says which sample goes into which tar.
        tars: Counts, size and sha256 of each tar, in order.
        sources: Counts of each source of text.
    """
    return {
        "sequences": plan.contexts,
        "sequence_length": plan.sequence_length,
        "tokens_dropped": plan.tokens_dropped,  # at the ends of texts, too few for a sample
        "contexts_left_out": plan.contexts_left_out,  # so that all tars have the same number
        "shards": plan.shards,
        "tokens": sum(tar.tokens for tar in tars),
        "pad_tokens": sum(tar.pad_tokens for tar in tars),
        "sources": [to_plain(source) for source in sources],
        "shards_written": [to_plain(tar) for tar in tars],
    }


def _check_all_written(
    project: Project, recipe: Recipe, plan: ShufflePlan, facts: Mapping[int, TarFacts]
) -> None:
    """Check that no tar file of a shuffled dataset is missing, before it is declared complete.

    Other processes may be writing tars still. The error says, for example: "2 of 8; the first
    missing is shard-00000001.tar".

    Args:
        project: Its output root contains the tars.
        recipe: What the dataset is made from. It decides the folder.
        plan: Says how many tars there must be.
        facts: Number of a tar (shard) → what is recorded of it, for those that are written.

    Raises:
        MissingError: A tar has not been written.
    """
    missing = [shard for shard in range(plan.shards) if shard not in facts]
    if not missing:
        return
    first_missing = tar_name(missing[0])
    raise MissingError(
        "some tars have not been written",
        where=project.outputs.access.url(project.outputs.place(recipe)),
        found=f"{len(facts):,} of {plan.shards:,}; the first missing is {first_missing}",
        remedy="run `nanoset build`, which writes the missing tars first",
    )


def _padding_by_source(
    project: Project, plan: ShufflePlan, digest_by_source: Mapping[str, str]
) -> dict[int, NDArray[np.int64]]:
    """Return how many tokens of each sequence of the packed source datasets are padding.

    A packed dataset fits whole documents into sequences of one length, and fills the rest of each
    sequence with padding. If source 0 is packed, and source 1 is not, the result may be
    {0: [0, 3, 12]}: the sequences of source 0 end with 0, 3 and 12 pad tokens.

    Args:
        project: Its outputs have the datasets.
        plan: Plan of the shuffled dataset, with its sources.
        digest_by_source: Name of each source → digest of the version that was used.

    Returns:
        Number of a packed source → pad tokens of each of its sequences, shape (n_sequences,).

    Raises:
        MissingError: A packed dataset was deleted.
    """
    padding_by_source: dict[int, NDArray[np.int64]] = {}
    for number, source in enumerate(plan.table.sources):
        if project.config.is_packed(source.name):
            padding = _padding_of_packs(project, source.name, digest_by_source[source.name])
            if padding is not None:
                padding_by_source[number] = padding
    return padding_by_source


def _padding_of_packs(project: Project, name: str, digest: str) -> NDArray[np.int64] | None:
    """Return how many tokens of each sequence of a packed dataset are padding.

    Args:
        project: Its outputs have the dataset.
        name: Name of the dataset.
        digest: Digest of the version that the plan has recorded. It need not be the current one.

    Returns:
        Shape (n_sequences,); None if it has no padding.

    Raises:
        MissingError: The version was deleted.
    """
    manifest = project.outputs.version(
        PACKS.layout.folder,
        name,
        digest,
        "a packed dataset that the tars were made from was deleted",
    )
    return dataset_of(project.outputs, manifest).padding()

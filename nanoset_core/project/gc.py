"""`nanoset gc`: remove old versions of outputs, and index files, that nothing needs any more.

A collection keeps the current versions, those that the policy keeps in addition, and everything
that these were made from or refer to. Of the rest, it removes what nanoset certainly wrote.

It does so in two phases:

1. While no build can begin, it *retracts* versions, which is quick: on a disk, a version is renamed
   to an unfinished name, which no reader looks at; in a bucket, its manifest is removed. So if
   a collection is killed, no reader finds a version that has lost some of its files.
2. Then it removes the files, while builds may begin.

A build holds leases on what it works on, which are visible from any machine, so that a collection
leaves these outputs alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import OutputRoot, read_current
from nanoset_core.project.dropping import (
    DuplicateTokens,
    drop_duplicate_tokens,
    find_duplicate_tokens,
)
from nanoset_core.project.existing import StoredOutput, all_outputs, stage_folders
from nanoset_core.project.garbage import Garbage, GarbageCollection, LeftAlone, Policy
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.judging import files_below, judge_all, judge_all_shared_files
from nanoset_core.project.needed import find_needed
from nanoset_core.project.project import Project
from nanoset_core.stages.registry import stages, sweep
from nanoset_core.stages.stage import CorpusStage, InternalStage
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.heartbeats import LEASE_SECONDS
from nanoset_core.storage.leases import collecting, leased_names
from nanoset_core.storage.removals import remove_file, withdraw_output
from nanoset_core.storage.store import in_parallel

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, "
    f"and machines that were cut off from the bucket for {LEASE_SECONDS // 60} minutes or more"
)


def plan_gc(project: Project, **policy: Any) -> GarbageCollection:
    """Return what `collect` would remove, without removing anything.

    Args:
        project: The project.
        policy: Fields of a `Policy`: which old versions are kept, such as `keep=2` of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    # Names of corpora, nanosets and so on that running builds work on: each build has a lease.
    leases = leased_names(project.outputs.access)
    # Errors in this block name addresses in a bucket, instead of paths of local copies.
    with project.outputs.access.named():
        # Shards whose tokens the dataset of their corpus contains as well.
        duplicates = []
        for shard in find_duplicate_tokens(project):
            duplicates.append(replace(shard, why_not=_reason_if_busy(leases, shard.corpus)))
        # `collect` first makes these shards refer to the tokens in the current dataset. They then
        # no longer need an older dataset to which they may refer now.
        moving = {shard.folder.name for shard in duplicates if shard.why_not is None}
        collection = _plan(project, Policy(**policy), leases, moving)
    return _with_dropped_tokens(collection, duplicates)


def collect(project: Project, **policy: Any) -> GarbageCollection:
    """Remove what nothing needs, and return what was removed.

    Outputs that a running build works on are kept, as are versions that become current in the
    meantime. A build on another machine is not noticed if that machine was cut off from the store
    for ten minutes, or if its version of nanoset has no leases. If it was about to reuse a version
    that is removed, it rebuilds this version.

    Args:
        project: The project.
        policy: Fields of a `Policy`: which old versions are kept, such as `keep=2` of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    outputs = project.outputs
    access = outputs.access
    is_empty = not outputs.folder.is_dir() and next(access.store.list(), None) is None
    if is_empty:
        return GarbageCollection()

    # Delete tokens of shards that the dataset of their corpus contains as well. This is first,
    # since an old dataset may be needed only for the tokens of a shard.
    dropped = list(drop_duplicate_tokens(project))

    # Hide what is to be removed from readers. No build can begin meanwhile, so none can start to
    # use a version that is about to be hidden.
    with collecting(access) as leases, access.named():
        planned = _plan(project, Policy(**policy), leases)
        folders_by_garbage, refused = _retract_all(access, planned.garbage)
        swept, unswept = _sweep_store(outputs, planned.unfinished, leases)
    left_alone = [*planned.left_alone, *refused, *unswept]

    # Remove the files, which takes long, while builds may begin.
    removed: list[Garbage] = []
    for item, folders in folders_by_garbage.items():
        remaining_folders = _remove_folders(folders)
        for folder in remaining_folders:
            left_alone.append(LeftAlone(folder, "it could not be removed", refused=True))
        if not remaining_folders:
            removed.append(item)
    sweep(project)

    removed_unfinished = [path for path in planned.unfinished if not path.exists()]
    collection = GarbageCollection(
        garbage=tuple(removed),
        left_alone=tuple(left_alone),
        unfinished=tuple(dict.fromkeys([*removed_unfinished, *swept])),
        unseen=planned.unseen,
    )
    return _with_dropped_tokens(collection, dropped)


def _retract_all(
    access: FileAccess, garbage: Iterable[Garbage]
) -> tuple[dict[Garbage, tuple[Path, ...]], list[LeftAlone]]:
    """Hide garbage from readers, so that its files can be removed afterwards.

    Args:
        access: Access to the output root.
        garbage: Versions and index files that nothing needs.

    Returns:
        Two values: what was hidden → folders with its files; and what the file system refused to
        hide, with the reason.
    """
    folders_by_garbage: dict[Garbage, tuple[Path, ...]] = {}
    refused: list[LeftAlone] = []
    for item in garbage:
        try:
            folders = _retract(access, item)
        except FileNotFoundError:
            # Another collection removed it.
            continue
        except OSError as error:
            why = f"it cannot be removed: {error.strerror}"
            refused.append(LeftAlone(item.path, why, refused=True))
            continue
        # None: the version became current in the meantime, so it is kept.
        if folders is not None:
            folders_by_garbage[item] = folders
    return folders_by_garbage, refused


def _plan(
    project: Project, policy: Policy, leases: Mapping[str, str], moving: Collection[str] = ()
) -> GarbageCollection:
    """Return what nothing needs and no running build works on, without removing it.

    Args:
        project: The project.
        policy: Which versions are kept although nothing needs them.
        leases: Corpus, nanoset or other name that a running build works on → the process of the
            build.
        moving: Digests of shards whose tokens are about to move to the current dataset.
    """
    # One listing of all files answers all questions below.
    listing = project.outputs.access.listing()
    outputs = all_outputs(listing)
    needed = find_needed(listing, outputs, policy, moving)

    # Sort what is not needed: garbage, what nanoset did not write, and what a build works on.
    garbage: list[Garbage] = []
    left_alone: list[LeftAlone] = []
    busy: list[LeftAlone] = []
    for item in judge_all(listing, outputs, needed, policy):
        if isinstance(item, LeftAlone):
            left_alone.append(item)
            continue
        reason = _reason_if_busy(leases, item.subject)
        if reason is None:
            garbage.append(item)
        else:
            busy.append(LeftAlone(item.path, reason))
    left_alone += busy
    left_alone += _unrequested(project, outputs)

    return GarbageCollection(
        garbage=tuple(garbage),
        left_alone=tuple(left_alone),
        unfinished=tuple(_unfinished_files(project, listing, garbage, leases)),
        unseen=UNSEEN if listing.has_copies else None,
    )


def _unfinished_files(
    project: Project, listing: FileAccess, garbage: Iterable[Garbage], leases: Collection[str]
) -> Iterator[Path]:
    """Yield unfinished files, most of which killed builds left behind.

    Args:
        project: The project.
        listing: Access to the output root, with a listing of all files.
        garbage: Versions that are removed. The unfinished files in them are removed with them.
        leases: Names of corpora, nanosets and so on that running builds work on. Their objects in a
            bucket are left out.
    """
    # On this machine. A running process may own some: when they are removed, these are left alone.
    for folder, names in project.outputs.unfinished():
        for name in names:
            yield folder / name

    # In a bucket, objects that remain if the joining of objects was interrupted.
    garbage_folders = {item.path for item in garbage}
    for path in listing.unfinished():
        if path.parent not in garbage_folders and _is_idle(listing.name(path), leases):
            yield path


def _reason_if_busy(leases: Mapping[str, str], subject: str) -> str | None:
    """Return why an output is kept if a running build works on its subject, or None."""
    if subject not in leases:
        return None
    return f"a build works on it ({leases[subject]}); run `nanoset gc` again once that has ended"


def _with_dropped_tokens(
    collection: GarbageCollection, dropped: Iterable[DuplicateTokens]
) -> GarbageCollection:
    """Return a report of a collection with the shards whose own tokens are deleted.

    The dataset of a corpus contains the tokens of its shards once more, so `gc` deletes those of
    the shards.

    Args:
        collection: What else the collection removes.
        dropped: The shards. Those with a reason to keep their tokens are reported as left alone.
    """
    garbage: list[Garbage] = []
    left_alone = list(collection.left_alone)
    # A shard without a .bin only changes the dataset that it refers to: nothing is removed.
    for shard in dropped:
        if shard.why_not is not None:
            left_alone.append(LeftAlone(shard.tokens_path, shard.why_not))
        elif shard.size:
            garbage.append(
                Garbage(shard.tokens_path, shard.output, shard.corpus, "tokens", shard.size)
            )
    return replace(
        collection, garbage=(*garbage, *collection.garbage), left_alone=tuple(left_alone)
    )


def _retract(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide one version from readers, or remove one index file.

    On a disk, the version is renamed to a name that no reader looks at. In a bucket, its manifest
    is removed: without one, a folder is not a version.

    Args:
        access: Access to the output root.
        item: The version or the index file.

    Returns:
        Folders with its files, which are to be removed; None if the version became current in the
        meantime, so that it is kept.
    """
    # An index file is read by its name alone: remove it at once.
    if item.kind == "cache file":
        remove_file(access, item.path)
        return ()

    def is_current() -> bool:
        """Return whether the version is current now."""
        return read_current(item.path.parent, access) == item.path.name

    return withdraw_output(access, item.path, MANIFEST, is_current)


def _remove_folders(folders: Iterable[Path]) -> list[Path]:
    """Remove folders, and return those that could not be removed."""
    remaining_folders = []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            remaining_folders.append(folder)
    return remaining_folders


def _sweep_store(
    outputs: OutputRoot, unfinished: Iterable[Path], leases: Collection[str]
) -> tuple[list[Path], list[LeftAlone]]:
    """Remove unfinished objects and uploads of killed builds from a bucket.

    Args:
        outputs: The output root. If it is on a disk, nothing is done.
        unfinished: Unfinished files below it. Those that exist on this machine are left alone: they
            are not objects of the bucket.
        leases: Names of corpora, nanosets and so on that running builds work on.

    Returns:
        Two values: what was removed, and what could not be removed.
    """
    access = outputs.access
    if not access.has_copies:
        return [], []

    # Objects that processes left unfinished.
    names = [access.name(path) for path in unfinished if not path.exists()]
    in_parallel(access.store.delete, names)

    # Uploads in several parts that were never completed, which no listing of objects shows.
    left_alone = []
    try:
        names += access.store.abort_uploads(lambda name: _is_idle(name, leases))
    except StorageError as error:
        why = f"uploads that were cut short cannot be looked for: {error.found}"
        left_alone.append(LeftAlone(outputs.folder, why))
    return [outputs.folder / name for name in names], left_alone


def _is_idle(name: str, leases: Collection[str]) -> bool:
    """Return whether an object belongs to an output that no build works on.

    Args:
        name: Name of the object below the root: folder of a stage, subject, and so on.
        leases: Names that running builds have leases on.
    """
    folder, *rest = name.split("/")
    return folder in stage_folders() and len(rest) > 1 and rest[0] not in leases


def _unrequested(project: Project, outputs: Sequence[StoredOutput]) -> Iterator[LeftAlone]:
    """Yield outputs that nanoset.yaml and the raw folder no longer request.

    They are only reported, because they may be the only copies of the data.

    Args:
        project: The project.
        outputs: All outputs below the output root.
    """
    # What exists.
    stored: set[tuple[str, str]] = set()  # folder of a stage, subject
    for output in outputs:
        if output.current is not None:
            stored.add((output.stage_folder, output.subject))

    # What is requested: by nanoset.yaml, and of each corpus that has a folder of raw text.
    subjects = {subject for _, subject in stored}
    corpora = {subject for subject in subjects if project.config.corpus_folder(subject).is_dir()}
    requested = set()
    for node in requested_nodes(project.config, corpora):
        requested.add((node.stage.layout.folder, node.name.partition("/")[0]))

    # The difference, with who would have to request it.
    requester_by_folder = _requester_by_folder()
    for folder, subject in sorted(stored - requested):
        if folder in requester_by_folder:
            requester = requester_by_folder[folder]
            why = f"{requester} no longer asks for it; delete it if you do not need it"
            yield LeftAlone(project.outputs.folder / folder / subject, why)


def _requester_by_folder() -> dict[str, str]:
    """Return what requests the outputs of each stage: nanoset.yaml or the raw folder.

    Of the stages that every corpus passes, only the last one is included, so that a corpus is
    reported once.

    Returns:
        Folder of the stage → what requests its outputs.
    """
    requesters: dict[str, str] = {}
    for stage in stages():
        if not isinstance(stage, CorpusStage | InternalStage):
            requesters[stage.layout.folder] = "nanoset.yaml"
    corpus_stages = [stage for stage in stages() if isinstance(stage, CorpusStage)]
    requesters[corpus_stages[-1].layout.folder] = "the raw folder"
    return requesters


class OldVersions(NamedTuple):
    """How many versions and index files `nanoset gc` would remove, by estimate."""

    n_items: int
    """Number of versions and index files."""
    size: int
    """Their size in bytes."""


def old_versions(project: Project) -> OldVersions:
    """Estimate what `nanoset gc` would remove, fast enough for every `nanoset status`.

    Versions that `gc` would leave alone count, too: those that a running build works on, and those
    with files that nanoset did not write. In a bucket nothing is counted, because it would take a
    request for each thousand objects.

    Raises:
        StorageError: An output is damaged, so that it is not known what it needs.
    """
    access = project.outputs.access
    if access.has_copies:
        return OldVersions(0, 0)

    # Find the needed versions. Pretend that the tokens of all shards are about to move, so that
    # the many manifests of shards are not read.
    outputs = all_outputs(access)
    policy = Policy()
    all_digests: set[str] = set()
    for output in outputs:
        all_digests |= output.versions
    needed = find_needed(access, outputs, policy, moving=all_digests)

    # Add up all other versions, and the index files that no needed version uses.
    count = 0
    size = 0
    for output in outputs:
        for digest in output.versions - needed.digests:
            count += 1
            size += folder_size(output.folder / digest)
    for item in judge_all_shared_files(access, outputs, needed, policy):
        if isinstance(item, Garbage):
            count += 1
            size += item.size
    return OldVersions(count, size)


def folder_size(folder: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in files_below(FileAccess(folder), folder))

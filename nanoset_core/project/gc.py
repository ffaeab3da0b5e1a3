"""`nanoset gc`: remove old versions of outputs, and index files, that nothing needs any more.

A collection keeps the current versions, those that the policy keeps in addition, and everything
that these were made from or refer to. Of the rest, it removes what nanoset certainly wrote. For
example, the dataset of the corpus `web` was built twice: the older version is *garbage*, unless a
view still refers to it.

A collection has two phases:

1. While no build can begin, it *hides* garbage from readers, which is quick: on a disk, a version
   is renamed to an unfinished name, which no reader looks at; in a bucket, its manifest is removed.
   So if a collection is killed, no reader finds a version that has lost some of its files.
2. Then it removes the files, while builds may begin.

A build holds leases on what it works on, which are visible from any machine, so that a collection
leaves these outputs alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from nanoset_core.project.needed import Needed, find_needed
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
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
        project: Its output root is searched.
        policy: Fields of a `Policy`: which old versions are kept, such as `keep=2` of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    access = project.outputs.access
    builds_by_name = leased_names(access)  # what running builds work on, which stays as it is
    with access.named():  # errors name addresses in a bucket, instead of paths of local copies
        # Shards whose tokens are also in the current dataset of their corpus: `collect` removes
        # the token file of each, unless there is a reason against it.
        duplicates = list(_planned_duplicates(project, builds_by_name))
        shards_to_shorten = {shard.folder.name for shard in duplicates if shard.why_not is None}

        # Such a shard then needs no older dataset for its tokens, so that this may be garbage.
        collection = _find_garbage(project, Policy(**policy), builds_by_name, shards_to_shorten)
    return _with_dropped_tokens(collection, duplicates)


def _planned_duplicates(
    project: Project, builds_by_name: Mapping[str, str]
) -> Iterator[DuplicateTokens]:
    """Yield the shards whose tokens are stored twice: also in the dataset of their corpus.

    Args:
        project: Its output root is searched.
        builds_by_name: Name of each corpus that a running build works on → the build.

    Yields:
        The shards. Those of a busy corpus keep their tokens: the field `why_not` says so.
    """
    for shard in find_duplicate_tokens(project):
        yield replace(shard, why_not=_reason_if_busy(builds_by_name, shard.corpus))


def collect(project: Project, **policy: Any) -> GarbageCollection:
    """Remove what nothing needs and no running build works on, and return what was removed.

    A build is not noticed if its machine cannot reach the store for ten minutes. It may then find
    that a version which it was about to reuse has been removed, and rebuilds it.

    Args:
        project: Its output root is searched.
        policy: Fields of a `Policy`: which old versions are kept, such as `keep=2` of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    if _has_no_outputs(project.outputs):
        return GarbageCollection()

    # 1. Remove the tokens of shards that the current dataset contains, too. Shards may then need no
    #    older dataset, so that the next step finds it to be garbage.
    dropped = list(drop_duplicate_tokens(project))

    # 2. Hide all garbage from readers, which is quick, while no build can begin.
    hidden = _hide_garbage(project, Policy(**policy))

    # 3. Delete the hidden files, and those that killed builds left on this machine. This takes
    #    longer, so builds may begin.
    removed = _remove_hidden(hidden.folders_by_garbage)
    sweep(project)

    collection = GarbageCollection(
        garbage=removed.garbage,
        left_alone=(*hidden.left_alone, *removed.left_alone),
        unfinished=tuple(hidden.removed_unfinished()),
        unseen=hidden.unseen,
    )
    return _with_dropped_tokens(collection, dropped)


def _has_no_outputs(outputs: OutputRoot) -> bool:
    """Return whether nothing was ever built: neither on this machine nor in the bucket.

    Args:
        outputs: The output root. One object in the bucket is enough to show a build.
    """
    if outputs.folder.is_dir():
        return False
    first_object = next(outputs.access.store.list(), None)
    return first_object is None


@dataclass(frozen=True)
class _HiddenGarbage:
    """What a collection has hidden from readers, before it removes the files."""

    folders_by_garbage: Mapping[Garbage, tuple[Path, ...]]
    """What was hidden → the folders in which its files are now."""
    left_alone: Sequence[LeftAlone]
    """What stays, or could not be hidden."""
    unfinished: Sequence[Path]
    """Unfinished files of killed or running builds; `sweep` removes those of killed ones."""
    swept: Sequence[Path]
    """Unfinished objects and uploads that were removed from the bucket."""
    unseen: str | None
    """Which builds could not be noticed, or None."""

    def removed_unfinished(self) -> list[Path]:
        """Return the unfinished files that are removed by now, each once."""
        missing = [path for path in self.unfinished if not path.exists()]
        return list(dict.fromkeys([*missing, *self.swept]))


def _hide_garbage(project: Project, policy: Policy) -> _HiddenGarbage:
    """Hide what nothing needs from readers, without removing files yet, which takes longer.

    No build can begin meanwhile, so none can start to use a version that is about to be hidden. In
    a bucket, what killed builds left behind is removed at once.

    Args:
        project: Its output root is searched.
        policy: Which versions are kept although nothing needs them.
    """
    access = project.outputs.access
    # `collecting` holds back new builds, and returns the running ones. `named` lets errors name
    # addresses in a bucket, instead of paths of local copies.
    with collecting(access) as builds_by_name, access.named():
        planned = _find_garbage(project, policy, builds_by_name)
        attempt = _hide_all(access, planned.garbage)
        leftovers = _sweep_store(project.outputs, planned.unfinished, builds_by_name)

    # Reported as left alone: what may not be removed, and what could not be.
    left_alone = [*planned.left_alone, *attempt.refused, *leftovers.left_alone]
    return _HiddenGarbage(
        folders_by_garbage=attempt.folders_by_garbage,
        left_alone=left_alone,
        unfinished=planned.unfinished,
        swept=leftovers.unfinished,
        unseen=planned.unseen,
    )


def _remove_hidden(folders_by_garbage: Mapping[Garbage, tuple[Path, ...]]) -> GarbageCollection:
    """Remove the folders of hidden garbage.

    Args:
        folders_by_garbage: A version or index file → the folders with its files.

    Returns:
        As `garbage`, what was removed completely; as `left_alone`, the folders that still exist.
    """
    removed: list[Garbage] = []
    unremovable: list[LeftAlone] = []
    for item, folders in folders_by_garbage.items():
        remaining_folders = _remove_folders(folders)
        for folder in remaining_folders:
            unremovable.append(LeftAlone(folder, "it could not be removed", refused=True))
        if not remaining_folders:
            removed.append(item)
    return GarbageCollection(garbage=tuple(removed), left_alone=tuple(unremovable))


class _HideAttempt(NamedTuple):
    """The result of hiding garbage from readers."""

    folders_by_garbage: dict[Garbage, tuple[Path, ...]]
    """What was hidden → the folders that have to be deleted later."""
    refused: list[LeftAlone]
    """What could not be hidden."""


def _hide_all(access: FileAccess, garbage: Iterable[Garbage]) -> _HideAttempt:
    """Hide garbage from readers, so that its files can be deleted later without haste.

    Args:
        access: Access to the output root.
        garbage: Versions and index files that nothing needs.
    """
    attempt = _HideAttempt(folders_by_garbage={}, refused=[])
    for item in garbage:
        try:
            folders = _hide(access, item)
        except FileNotFoundError:
            continue  # another `nanoset gc` has just removed it
        except OSError as error:
            why = f"it cannot be removed: {error.strerror}"
            attempt.refused.append(LeftAlone(item.path, why, refused=True))
            continue

        # A version without folders was kept: it became current after it was found to be garbage.
        if folders is not None:
            attempt.folders_by_garbage[item] = folders
    return attempt


def _find_garbage(
    project: Project,
    policy: Policy,
    builds_by_name: Mapping[str, str],
    dropping: Collection[str] = (),
) -> GarbageCollection:
    """Return what nothing needs and no running build works on, without removing it.

    Args:
        project: Its output root is searched.
        policy: Which versions are kept although nothing needs them.
        builds_by_name: Corpus, nanoset and so on that a running build works on → the build.
        dropping: Digests of shards that are about to use the tokens of the current dataset instead
            of an older one.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    listing = project.outputs.access.listing()  # one listing of all files serves all steps
    outputs = all_outputs(listing)
    needed = find_needed(listing, outputs, policy, dropping)
    not_needed = judge_all(listing, outputs, needed, policy)
    judged = _leave_busy_alone(not_needed, builds_by_name)

    # Also report outputs that were requested once, such as a nanoset that nanoset.yaml lost; and
    # what killed builds left behind on this machine and in the bucket.
    unrequested = _unrequested(project, outputs)
    unfinished_files = _unfinished_files(project.outputs)
    unfinished_objects = _unfinished_objects(listing, judged.garbage, builds_by_name)
    return GarbageCollection(
        garbage=judged.garbage,
        left_alone=(*judged.left_alone, *unrequested),
        unfinished=(*unfinished_files, *unfinished_objects),
        # Other machines report their builds by requests, which may have failed.
        unseen=UNSEEN if listing.takes_requests else None,
    )


def _leave_busy_alone(
    not_needed: Iterable[Garbage | LeftAlone], builds_by_name: Mapping[str, str]
) -> GarbageCollection:
    """Divide what is not needed into what can be removed and what is left alone.

    Args:
        not_needed: Garbage, and what is left alone since nanoset did not write it.
        builds_by_name: Name of each output that a running build works on → the build. Garbage of
            these outputs is left alone, too, and listed last.
    """
    garbage: list[Garbage] = []
    foreign: list[LeftAlone] = []
    busy: list[LeftAlone] = []
    for item in not_needed:
        if isinstance(item, LeftAlone):
            foreign.append(item)
            continue
        reason = _reason_if_busy(builds_by_name, item.subject)
        if reason is None:
            garbage.append(item)
        else:
            busy.append(LeftAlone(item.path, reason))
    return GarbageCollection(garbage=tuple(garbage), left_alone=(*foreign, *busy))


def _unfinished_files(outputs: OutputRoot) -> Iterator[Path]:
    """Yield the unfinished files on this machine, most of which killed builds left behind.

    Args:
        outputs: The output root.

    Yields:
        The files. Some may belong to a running process: `sweep`, which removes such files, knows
        which, and leaves those alone.
    """
    for folder, names in outputs.unfinished():
        for name in names:
            yield folder / name


def _unfinished_objects(
    listing: FileAccess, garbage: Iterable[Garbage], busy_names: Collection[str]
) -> Iterator[Path]:
    """Yield the unfinished objects that killed builds left in a bucket.

    They are parts that were to be joined to a large object when a build was killed.

    Args:
        listing: Access to the output root, with a listing of all files.
        garbage: Versions that are removed as a whole, with the unfinished objects in them.
        busy_names: Names of corpora, nanosets and so on that running builds work on. Their objects
            are left out.

    Yields:
        The objects, as paths below the root.
    """
    garbage_folders = {item.path for item in garbage}
    for path in listing.unfinished():
        if path.parent not in garbage_folders and _is_idle(listing.name(path), busy_names):
            yield path


def _reason_if_busy(builds_by_name: Mapping[str, str], subject: str) -> str | None:
    """Return why an output is kept if a running build works on its subject, or None.

    Args:
        builds_by_name: Name of each corpus, nanoset and so on that a running build works on → the
            build, as a clause.
        subject: The corpus or nanoset that the output belongs to.
    """
    if subject not in builds_by_name:
        return None
    build = builds_by_name[subject]
    return f"a build works on it ({build}); run `nanoset gc` again once that has ended"


def _with_dropped_tokens(
    collection: GarbageCollection, dropped: Iterable[DuplicateTokens]
) -> GarbageCollection:
    """Add to the report of a collection the shards whose tokens are also in a dataset.

    Args:
        collection: What else is removed and left alone.
        dropped: The shards. Each loses its file of tokens, unless `why_not` has a reason against
            it.
    """
    token_files: list[Garbage] = []
    kept_files: list[LeftAlone] = []
    for shard in dropped:
        if shard.why_not is not None:
            kept_files.append(LeftAlone(shard.tokens_path, shard.why_not))
            continue
        # A shard whose file was removed earlier now uses another dataset. That frees no space.
        has_token_file = shard.size > 0
        if has_token_file:
            token_files.append(_token_file_of(shard))
    return replace(
        collection,
        garbage=(*token_files, *collection.garbage),
        left_alone=(*collection.left_alone, *kept_files),
    )


def _token_file_of(shard: DuplicateTokens) -> Garbage:
    """Describe a shard's own file of tokens as garbage, since a dataset contains the same tokens.

    Args:
        shard: The shard, such as one of the corpus `web`.
    """
    return Garbage(
        path=shard.tokens_path,
        output=shard.output,
        subject=shard.corpus,
        kind="tokens",
        size=shard.size,
    )


def _hide(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide one version from readers, or remove one index file.

    Args:
        access: Access to the output root.
        item: The version or the index file.

    Returns:
        Folders with its files, which are to be removed; None if the version became current in the
        meantime, so that it is kept.

    Raises:
        FileNotFoundError: It was removed in the meantime.
        OSError: The file system refuses.
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
    """Remove folders with all files in them, and return those that could not be removed.

    Args:
        folders: The folders. One that does not exist counts as removed.
    """
    remaining_folders = []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            remaining_folders.append(folder)
    return remaining_folders


def _sweep_store(
    outputs: OutputRoot, unfinished: Iterable[Path], busy_names: Collection[str]
) -> GarbageCollection:
    """Remove unfinished objects and uploads of killed builds from a bucket.

    Args:
        outputs: The output root. On a disk, there are neither.
        unfinished: Unfinished files on this machine, which are left alone, and unfinished objects
            in the bucket, as paths below the root.
        busy_names: Names of corpora, nanosets and so on that running builds work on.

    Returns:
        As `unfinished`, what was removed; as `left_alone`, what could not be done.
    """
    # A path that exists on this machine is that of a file; also a link, which may lead nowhere.
    objects = [path for path in unfinished if not os.path.lexists(path)]
    access = outputs.access
    in_parallel(access.store.delete, [access.name(path) for path in objects])
    uploads = _abort_uploads(outputs, busy_names)
    return replace(uploads, unfinished=(*objects, *uploads.unfinished))


def _abort_uploads(outputs: OutputRoot, busy_names: Collection[str]) -> GarbageCollection:
    """Abort uploads to a bucket that were cut short, since their parts take up space invisibly.

    Args:
        outputs: The output root.
        busy_names: Names of corpora, nanosets and so on whose uploads may still be running.

    Returns:
        As `unfinished`, the paths that the objects would have had; as `left_alone`, the root if the
        store does not list its uploads.
    """

    def may_be_aborted(name: str) -> bool:
        """Return whether no running build uploads the object with this name."""
        return _is_idle(name, busy_names)

    try:
        aborted_names = list(outputs.access.store.abort_uploads(may_be_aborted))
    except StorageError as error:
        why = f"uploads that were cut short cannot be looked for: {error.found}"
        return GarbageCollection(left_alone=(LeftAlone(outputs.folder, why),))
    return GarbageCollection(unfinished=tuple(outputs.folder / name for name in aborted_names))


def _is_idle(name: str, busy_names: Collection[str]) -> bool:
    """Return whether an object belongs to an output that no build works on.

    For example, "datasets/web/<digest>/web.bin" belongs to the corpus `web`, while "notes.txt"
    belongs to no output.

    Args:
        name: Path of the object below the root: the folder of a stage, the name of a corpus,
            nanoset or webdataset, and so on.
        busy_names: Names of corpora, nanosets and so on that running builds work on.
    """
    folder, *rest = name.split("/")
    is_in_output = folder in stage_folders() and len(rest) > 1
    return is_in_output and rest[0] not in busy_names


def _unrequested(project: Project, outputs: Sequence[StoredOutput]) -> Iterator[LeftAlone]:
    """Yield outputs that neither nanoset.yaml nor the raw folder requests any more.

    For example, a nanoset was deleted from nanoset.yaml, or the folder of a corpus from the raw
    folder. They are only reported, because they may be the only copies of the data.

    Args:
        project: The project, whose nanoset.yaml and raw folder request outputs.
        outputs: All outputs below its root.
    """
    # Each is a set of (folder of a stage, name), such as ("datasets", "web") for a corpus, and
    # ("nanosets", "pretrain") for a nanoset.
    stored = _stored_subjects(outputs)
    names_of_stored = {name for _, name in stored}  # the corpora to look for in the raw folder
    requested = _requested_subjects(project.config, names_of_stored)

    requester_by_folder = _requester_by_folder()  # datasets → "the raw folder"
    for folder, name in sorted(stored - requested):
        if folder not in requester_by_folder:
            continue  # users do not see this output, such as the shards of a corpus
        requester = requester_by_folder[folder]
        why = f"{requester} no longer asks for it; delete it if you do not need it"
        yield LeftAlone(project.outputs.folder / folder / name, why)


def _stored_subjects(outputs: Iterable[StoredOutput]) -> set[tuple[str, str]]:
    """Return the corpora, nanosets and so on that have an output with a current version.

    Args:
        outputs: All outputs below the root.

    Returns:
        (folder of a stage, subject), such as ("nanosets", "pretrain").
    """
    return {
        (output.stage_folder, output.subject) for output in outputs if output.current is not None
    }


def _requested_subjects(config: ProjectConfig, names: Iterable[str]) -> set[tuple[str, str]]:
    """Return which corpora, nanosets and so on the settings and the raw folder request.

    Args:
        config: The settings of the project.
        names: Names of outputs, some of which may be corpora.

    Returns:
        (folder of a stage, subject), such as ("nanosets", "pretrain") or ("datasets", "web").
    """
    # A folder in the raw folder requests a corpus. The settings request all other outputs.
    corpora = {name for name in names if config.corpus_folder(name).is_dir()}
    requested: set[tuple[str, str]] = set()
    for node in requested_nodes(config, corpora):
        # The name of an output begins with its subject, as in pretrain/train/blend.
        subject, _, _ = node.name.partition("/")
        requested.add((node.stage.layout.folder, subject))
    return requested


def _requester_by_folder() -> dict[str, str]:
    """Return where users request the outputs of each stage: in nanoset.yaml or the raw folder.

    Internal stages are left out, since users do not see their outputs.

    Returns:
        Folder of a stage → where its outputs are requested, such as {"nanosets": "nanoset.yaml",
        "datasets": "the raw folder"}.
    """
    requester_by_folder: dict[str, str] = {}
    for stage in stages():
        if not isinstance(stage, (CorpusStage, InternalStage)):
            requester_by_folder[stage.layout.folder] = "nanoset.yaml"

    # A corpus passes through several stages. Only the last of them represents it, that of datasets,
    # so that a corpus is reported once.
    corpus_stages = [stage for stage in stages() if isinstance(stage, CorpusStage)]
    requester_by_folder[corpus_stages[-1].layout.folder] = "the raw folder"
    return requester_by_folder


class OldVersions(NamedTuple):
    """How many versions and index files `nanoset gc` would remove, by estimate."""

    n_items: int
    """Number of versions and index files."""
    size: int
    """Their size in bytes."""


def old_versions(project: Project) -> OldVersions:
    """Estimate what `nanoset gc` would remove, fast enough for every `nanoset status`.

    Args:
        project: Its output root is searched, unless that is a bucket: to list the files of a
            version would take a request for each thousand objects.

    Returns:
        Number and size of the versions and index files. They may be too high, since `nanoset gc`
        leaves some alone; and they are 0 for outputs in a bucket.

    Raises:
        StorageError: An output that other outputs may depend on is damaged.
    """
    access = project.outputs.access
    if access.takes_requests:
        return OldVersions(0, 0)

    # Old versions of outputs.
    outputs = all_outputs(access)
    needed = _needed_without_reading_shards(access, outputs)
    sizes = list(_unneeded_version_sizes(outputs, needed))

    # Index files, which are not part of a version, since several versions may share one. `gc`
    # removes those that count as garbage without further wishes of the user: the default policy.
    default_policy = Policy()
    for item in judge_all_shared_files(access, outputs, needed, default_policy):
        if isinstance(item, Garbage):
            sizes.append(item.size)
    return OldVersions(n_items=len(sizes), size=sum(sizes))


def _needed_without_reading_shards(access: FileAccess, outputs: Sequence[StoredOutput]) -> Needed:
    """Return which versions are needed, quickly, without those that only shards need.

    A shard may need an old dataset that contains its tokens. To find out, its manifest would have
    to be read, and there may be thousands of shards.

    Args:
        access: Access to the output root.
        outputs: All outputs below it, with the digests of their versions.
    """
    # `find_needed` does not read the shards that are `dropping` their tokens, since these will need
    # no old dataset. Name all versions there, so that it reads no shard.
    all_digests: set[str] = set()
    for output in outputs:
        all_digests |= output.versions
    return find_needed(access, outputs, Policy(), dropping=all_digests)


def _unneeded_version_sizes(outputs: Iterable[StoredOutput], needed: Needed) -> Iterator[int]:
    """Yield the size in bytes of each version that is not needed.

    Args:
        outputs: All outputs below the root.
        needed: The versions that have to stay.
    """
    for output in outputs:
        for digest in output.versions - needed.digests:
            yield folder_size(output.folder / digest)


def folder_size(folder: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes.

    Args:
        folder: The folder or file. Links are not followed: the size of a link is its own.
    """
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in files_below(FileAccess(folder), folder))

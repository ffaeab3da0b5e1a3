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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import MissingError, StorageError, one_line_with_remedy
from nanoset_core.loading.layout import HANDOFF
from nanoset_core.loading.layout import NANOSETS_FOLDER as NANOSETS
from nanoset_core.outputs.erasures import erasure_of_version
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import OutputRoot, read_current
from nanoset_core.project.gc.dropping import (
    DuplicateTokens,
    drop_duplicate_tokens,
    find_duplicate_tokens,
)
from nanoset_core.project.gc.garbage import (
    KEEP_NOTHING_OLD,
    Garbage,
    GarbageCollection,
    LeftAlone,
    Policy,
)
from nanoset_core.project.gc.judging import files_below, judge_all, judge_all_shared_files
from nanoset_core.project.gc.needed import Needed, digests_of_pieces, find_needed
from nanoset_core.project.gc.slurm_logs import find_old_logs, remove_logs
from nanoset_core.project.graph.nodes import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.project.stored_outputs import StoredOutput, all_outputs, stage_folders
from nanoset_core.stages.dataset.names import FOLDER as DATASETS
from nanoset_core.stages.mappings.run_before import handoff_and_splits, handoff_named
from nanoset_core.stages.registry import stages, sweep
from nanoset_core.stages.stage import CorpusStage, InternalStage
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.heartbeats import LEASE_SECONDS
from nanoset_core.storage.in_use.leases import collecting, leased_names
from nanoset_core.storage.removing.freed_space import FileSizes, freed_bytes
from nanoset_core.storage.removing.removals import remove_file, withdraw_output
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, "
    f"and machines that were cut off from the bucket for {LEASE_SECONDS // 60} minutes or more"
)


def plan_gc(project: Project, policy: Policy = KEEP_NOTHING_OLD) -> GarbageCollection:
    """Return which old files `nanoset gc` would delete, without deleting anything.

    These are old versions of outputs (builds that newer ones have replaced), tokens that are stored
    twice (in shards, the tokenized pieces of a text, and in the dataset made of them), and logs of
    Slurm jobs.

    Args:
        project: The project, whose output folder is searched.
        policy: What to keep. For example, `Policy(keep=2)` keeps two old versions of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    access = project.outputs.access
    builds_by_name = leased_names(access)  # outputs in use, such as {"web": "process 123"}
    with access.named():  # errors name addresses in a bucket, instead of paths of local copies
        duplicates = _duplicate_tokens(project, builds_by_name)
        # Such a shard may use the tokens of an old dataset now. It will use the current one, so it
        # does not count as a reason to keep the old one.
        digests_to_drop = {shard.folder.name for shard in duplicates if shard.why_not is None}
        collection = _find_garbage(project, policy, builds_by_name, ignored_shards=digests_to_drop)
    collection = _with_dropped_tokens(collection, duplicates)
    logs = find_old_logs(project.slurm_folder, policy)
    return replace(collection, garbage=(*collection.garbage, *logs))


def _duplicate_tokens(project: Project, builds_by_name: Mapping[str, str]) -> list[DuplicateTokens]:
    """Return the shards (tokenized pieces of text) whose tokens are also in the current dataset.

    Their own tokens can be deleted, unless a running build uses them: then the reason is added.

    Args:
        project: The project, whose output folder has the shards.
        builds_by_name: What running builds work on, such as {"web": "process 123"}.
    """
    duplicates = []
    for shard in find_duplicate_tokens(project):
        why_not = _reason_if_busy(builds_by_name, shard.corpus)
        duplicates.append(replace(shard, why_not=why_not))
    return duplicates


def collect(project: Project, policy: Policy = KEEP_NOTHING_OLD) -> GarbageCollection:
    """Delete old files that nothing needs any more, and return what was deleted: `nanoset gc`.

    Args:
        project: The project, whose output folder is searched.
        policy: What to keep. For example, `Policy(keep=2)` keeps two old versions of each output.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    # Delete logs of Slurm jobs that have ended. Do so before files of killed builds are removed,
    # which show what may be running: so exactly the logs that `plan_gc` lists are deleted.
    logs = remove_logs(find_old_logs(project.slurm_folder, policy))
    if _has_no_outputs(project.outputs):
        return logs

    # Delete tokens of shards (tokenized pieces of a text) that the dataset has as well.
    dropped = list(drop_duplicate_tokens(project))

    # Hide old versions from all programs, which is quick. New builds wait until this is done, and
    # outputs that a running build uses are left alone.
    access = project.outputs.access
    with collecting(access) as builds_by_name, access.named():
        found = _find_garbage(project, policy, builds_by_name)
        hidden = _hide_all(access, found.garbage)
        aborted = _delete_unfinished_uploads(project.outputs, found.unfinished, builds_by_name)

    # Delete the hidden files, and temporary files of killed builds. This may take long.
    removed = _remove_hidden(hidden.folders_by_garbage)
    sweep(project)
    removed_files = [path for path in found.unfinished if not path.exists()]

    collection = GarbageCollection(
        garbage=(*removed.garbage, *logs.garbage),
        left_alone=(
            *found.left_alone,
            *hidden.refused,
            *aborted.left_alone,
            *removed.left_alone,
            *logs.left_alone,
        ),
        unfinished=tuple(dict.fromkeys([*removed_files, *aborted.unfinished])),  # each path once
        unseen=found.unseen,  # running builds that could not be noticed
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


def _remove_hidden(folders_by_garbage: Mapping[Garbage, tuple[Path, ...]]) -> GarbageCollection:
    """Delete what `nanoset gc` has hidden before, and report what could not be deleted.

    Old versions of outputs were renamed, so that no program finds them any more. Now their folders
    are deleted, which may take long.

    Args:
        folders_by_garbage: An old version → the folders that its files are in now.

    Returns:
        As `garbage`, what was deleted completely; as `left_alone`, the folders that still exist,
        for example because the user may not delete files in them.
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
    """Hide old versions of outputs from all programs, so that their files can be deleted later.

    Deleting many files takes long. A program that reads a version meanwhile would find half of it.

    Args:
        access: Access to the output folder.
        garbage: Versions, and index files of trainers, that nothing needs.

    Returns:
        What was hidden, with the folders to delete; and what was not, with the reason, such as a
        write-protected folder.
    """
    folders_by_garbage: dict[Garbage, tuple[Path, ...]] = {}
    refused: list[LeftAlone] = []
    for item in garbage:
        try:
            folders = _hide(access, item)
        except FileNotFoundError:
            continue  # another `nanoset gc` has just removed it
        except StorageError as error:
            why = f"it cannot be removed: {one_line_with_remedy(error)}"
            refused.append(LeftAlone(item.path, why, refused=True))
            continue
        except OSError as error:
            why = f"it cannot be removed: {error.strerror}"
            refused.append(LeftAlone(item.path, why, refused=True))
            continue
        if folders is not None:  # None if it has just become the current version, so that it stays
            folders_by_garbage[item] = folders
    return _HideAttempt(folders_by_garbage, refused)


def _hide(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide a version of an output from all programs, or delete a single file that nothing needs.

    Args:
        access: Access to the output folder.
        item: The version, or an index file of trainers.

    Returns:
        The folders that have to be deleted later; none for a single file. None if the version was
        not hidden, because another process has just made it the current one.

    Raises:
        FileNotFoundError: Another process has just deleted it.
        OSError: The file system refuses.
    """
    if item.kind == "cache file":
        remove_file(access, item.path)
        return ()
    return _hide_version(access, item.path)


def _find_garbage(
    project: Project,
    policy: Policy,
    builds_by_name: Mapping[str, str],
    ignored_shards: Collection[str] = (),
) -> GarbageCollection:
    """Find the stored files that nothing needs any more, without deleting them.

    Args:
        project: The project, whose output folder is searched.
        policy: Which old versions (builds) of outputs the user wants to keep.
        builds_by_name: What running builds use, such as {"web": "process 123"}. It stays.
        ignored_shards: Digests of shards (tokenized pieces of a text collection) that do not count
            as users of an old dataset, because they are about to use the current one.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
        ConfigError, MissingError: The key `storage.keep_runs` names no version of a handoff.
    """
    # List all files once, for all steps.
    listed_access = project.outputs.access.with_store_listing()
    outputs = all_outputs(listed_access)
    needed = find_needed(listed_access, outputs, policy, _kept_handoffs(project), ignored_shards)
    not_needed = judge_all(listed_access, outputs, needed, policy)
    judged = _leave_busy_alone(not_needed, builds_by_name)

    # Report outputs that nanoset.yaml does not request any more. They are not deleted.
    unrequested = _unrequested(project, outputs)

    # Find what builds had begun to write when they were killed: files on this machine, and objects
    # in the bucket.
    unfinished_files = _unfinished_files(project.outputs)
    unfinished_objects = _unfinished_objects(listed_access, judged.garbage, builds_by_name)

    # Builds on other machines make themselves known through the bucket. UNSEEN says which may be
    # missed. On a disk, there are none.
    unseen = UNSEEN if listed_access.takes_requests else None
    return GarbageCollection(
        garbage=judged.garbage,
        left_alone=(*judged.left_alone, *unrequested),
        unfinished=(*unfinished_files, *unfinished_objects),
        unseen=unseen,
    )


def _kept_handoffs(project: Project) -> list[str]:
    """Return the digests of the handoffs that the key `storage.keep_runs` of nanoset.yaml names.

    A handoff is a folder with the arguments that a trainer is started with. `nanoset gc` must not
    delete these, and keeps everything that they refer to: the samples that the run reads, the
    datasets and so on.

        storage:
          keep_runs: [nanosets/pretrain/handoff/0a1b]      the result is ["0a1b"]

    Args:
        project: The project.

    Raises:
        ConfigError: An entry of the key names no version of a handoff.
        MissingError: There is no such version, or the samples that it names were deleted. Perhaps
            the user has misspelt it. (It is no error if a purge has erased the version.)
    """
    digests: list[str] = []
    for folder in project.config.storage.keep_runs:
        nanoset, digest = handoff_named(folder, "storage.keep_runs")
        try:
            # Check that the handoff and its samples exist, by reading their records.
            handoff_and_splits(project.outputs, nanoset, digest)
        except MissingError as error:
            name = f"{nanoset}/{HANDOFF}"
            erasure = erasure_of_version(project.outputs.access, NANOSETS, name, digest)
            if erasure is None:
                raise error.at(error.where, f"storage.keep_runs: {error.remedy}") from error
            continue  # a purge has erased it, so the key is right, and nothing is left to keep
        digests.append(digest)
    return digests


def _leave_busy_alone(
    not_needed: Iterable[Garbage | LeftAlone], builds_by_name: Mapping[str, str]
) -> GarbageCollection:
    """Divide what nothing needs into what can be deleted and what is left alone for a reason.

    Args:
        not_needed: Garbage; and what is left alone anyway, such as files of somebody else.
        builds_by_name: Outputs that running builds work on, such as {"web": "process 123"}. Their
            garbage is left alone, too.
    """
    garbage: list[Garbage] = []
    foreign: list[LeftAlone] = []
    busy: list[LeftAlone] = []
    for item in not_needed:
        if isinstance(item, LeftAlone):
            foreign.append(item)
            continue
        reason = _reason_if_busy(builds_by_name, item.leased_name)
        if reason is None:
            garbage.append(item)
        else:
            busy.append(LeftAlone(item.path, reason))
    return GarbageCollection(garbage=tuple(garbage), left_alone=(*foreign, *busy))


def _unfinished_files(outputs: OutputRoot) -> list[Path]:
    """Return the unfinished files on this machine: what builds are writing, or were when killed.

    A file that is being written has a temporary name, and gets its name when it is complete. So a
    build that was killed leaves files with temporary names. `nanoset gc` reports them.

    Args:
        outputs: The output folder of the project, which is searched.

    Returns:
        The files. Some may belong to a build that is still running. The function that deletes them
        later, `sweep`, finds out which, and leaves these alone.
    """
    paths = []
    for folder, names in outputs.unfinished():
        paths += [folder / name for name in names]
    return paths


def _unfinished_objects(
    listed_access: FileAccess, garbage: Iterable[Garbage], busy_names: Collection[str]
) -> list[Path]:
    """Return the unfinished objects that killed builds left in a bucket.

    A large object is uploaded as several smaller ones, which are joined at the end. If a build is
    killed before that, the smaller ones stay, and `nanoset gc` deletes them.

    Args:
        listed_access: Access with a listing of all files below the output folder, also of those in
            the bucket.
        garbage: Old versions of outputs, which are deleted with all their objects. So unfinished
            ones in their folders are not returned.
        busy_names: Names of outputs that running builds work on, such as {"web"}. These may still
            complete their objects.

    Returns:
        The objects, as paths below the output folder.
    """
    garbage_folders = {item.path for item in garbage}
    paths = []
    for path in listed_access.unfinished():
        is_in_garbage = path.parent in garbage_folders
        if not is_in_garbage and _is_leftover(listed_access.name(path), busy_names):
            paths.append(path)
    return paths


def _reason_if_busy(builds_by_name: Mapping[str, str], name: str) -> str | None:
    """Return why an output is not touched by `nanoset gc`, if a running build works on it.

    For example: "a build works on it (process 123); run `nanoset gc` again once that has ended".

    Args:
        builds_by_name: What running builds work on, such as {"web": "process 123"}.
        name: What the output belongs to: a text collection such as `web`, or a mixture of
            several.

    Returns:
        The reason, or None.
    """
    if name not in builds_by_name:
        return None
    build = builds_by_name[name]
    return f"a build works on it ({build}); run `nanoset gc` again once that has ended"


def _with_dropped_tokens(
    collection: GarbageCollection, shards: Iterable[DuplicateTokens]
) -> GarbageCollection:
    """Add the token files of shards to the report of what `nanoset gc` deletes.

        a shard with a file of tokens         its file is added to `garbage`
        a shard whose file stays              it is added to `left_alone`, with the reason
        a shard whose file was deleted        nothing is added
        by an earlier call

    Args:
        collection: The report so far.
        shards: The shards (tokenized pieces of text) whose tokens are also in a dataset.
    """
    token_files: list[Garbage] = []
    files_to_keep: list[LeftAlone] = []
    for shard in shards:
        has_token_file = shard.size > 0  # an earlier call may have deleted it
        if shard.why_not is not None:  # such as "a build works on it"
            files_to_keep.append(LeftAlone(shard.tokens_path, shard.why_not))
        elif has_token_file:
            token_file = Garbage(
                path=shard.tokens_path,
                output=shard.output,
                leased_name=shard.corpus,
                kind="tokens",
                sizes=FileSizes(shard.size),
            )
            token_files.append(token_file)
    return replace(
        collection,
        garbage=(*token_files, *collection.garbage),
        left_alone=(*collection.left_alone, *files_to_keep),
    )


def _hide_version(access: FileAccess, folder: Path) -> tuple[Path, ...] | None:
    """Hide an old version of an output, so that no program reads it while it is being deleted.

    On a disk, its folder is renamed. In a bucket, nothing can be renamed. So its manifest, without
    which programs ignore a version, is deleted first, and then the rest.

    Args:
        access: Access to the output folder.
        folder: Folder of the version. Its name is the digest of the version.

    Returns:
        The renamed folder, which the caller has to delete; nothing in a bucket. None if the version
        was not hidden, because another process has just made it the current one.

    Raises:
        FileNotFoundError: Another process has just deleted it.
        OSError: The file system refuses.
    """

    def is_current() -> bool:
        """Return whether this is the current version of its output."""
        return read_current(folder.parent, access) == folder.name

    # This calls `is_current` at the last moment before it hides the version.
    return withdraw_output(access, folder, MANIFEST, is_current)


def _remove_folders(folders: Iterable[Path]) -> list[Path]:
    """Delete folders with all files in them, and return those that could not be deleted.

    For example, the user may not delete files in one of them.

    Args:
        folders: The folders. It is no problem if one does not exist any more.
    """
    remaining_folders = []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            remaining_folders.append(folder)
    return remaining_folders


def _delete_unfinished_uploads(
    outputs: OutputRoot, unfinished: Iterable[Path], busy_names: Collection[str]
) -> GarbageCollection:
    """Delete what killed builds have uploaded to a bucket, but not completed: it costs money.

    There are two kinds of large uploads:

        several small objects, which are joined at the end    they are listed in `unfinished`
        one object in parts, which the bucket hides until     only the bucket knows them
        the upload is completed

    Args:
        outputs: The outputs of the project. If they are on a disk, nothing is deleted.
        unfinished: Paths of such small objects, and of unfinished files on this machine. The files
            are left alone.
        busy_names: Names of outputs that running builds work on, such as {"web"}. Their uploads
            are left alone.

    Returns:
        A report: as `unfinished`, what was deleted; as `left_alone`, what could not be.
    """
    deleted_objects = _delete_small_objects(outputs.access, unfinished)
    aborted = _abort_uploads(outputs, busy_names)
    return replace(aborted, unfinished=(*deleted_objects, *aborted.unfinished))


def _delete_small_objects(access: FileAccess, paths: Iterable[Path]) -> list[Path]:
    """Delete those of some unfinished files that are in a bucket, and return their paths.

    Args:
        access: Access to the output folder.
        paths: Paths of files. What does not exist on this machine, not even as a broken link, is in
            the bucket. The other files are left alone.
    """
    object_paths = [path for path in paths if not os.path.lexists(path)]
    object_names = [access.name(path) for path in object_paths]
    in_parallel(access.store.delete, object_names, SMALL_REQUESTS_AT_ONCE)
    return object_paths


def _abort_uploads(outputs: OutputRoot, busy_names: Collection[str]) -> GarbageCollection:
    """Tell a bucket to discard uploads that killed builds did not complete.

    A bucket keeps the received part of an object until the upload is completed or aborted. Nobody
    sees it, but it takes up space that has to be paid for.

    Args:
        outputs: The outputs of the project.
        busy_names: What running builds work on, such as {"web"}. Their uploads continue.

    Returns:
        As `unfinished`, the paths of the objects that were being uploaded. If the bucket does not
        list its uploads, a message about that, as `left_alone`.
    """

    def may_be_aborted(name: str) -> bool:
        """Return whether no running build uploads the object with this name."""
        return _is_leftover(name, busy_names)

    try:
        # The store calls `may_be_aborted` for each upload, and returns the names of the aborted.
        aborted_names = list(outputs.access.store.abort_uploads(may_be_aborted))
    except StorageError as error:
        why = f"uploads that were cut short cannot be looked for: {error.found}"
        return GarbageCollection(left_alone=(LeftAlone(outputs.folder, why),))
    return GarbageCollection(unfinished=tuple(outputs.folder / name for name in aborted_names))


def _is_leftover(name: str, busy_names: Collection[str]) -> bool:
    """Return whether an unfinished object in a bucket may be deleted: no build works on its output.

    If a build works on the corpus `web` (a collection of texts), these are the results:

        datasets/code/3f9c…/code.bin   True
        datasets/web/81aa…/web.bin     False: the build may be writing it
        notes.txt                      False: it belongs to no output

    Args:
        name: Path of the object: the folder of a kind of output, the name of an output, and so on.
        busy_names: Names of outputs that running builds work on, such as {"web"}.
    """
    folder, *rest = name.split("/")
    is_in_output = folder in stage_folders() and len(rest) > 1
    return is_in_output and rest[0] not in busy_names


def _unrequested(project: Project, outputs: Sequence[StoredOutput]) -> Iterator[LeftAlone]:
    """Yield outputs that exist, but that nothing requests any more.

    For example, the user has deleted a section of nanoset.yaml. The outputs may be the only copies
    of the data, so they are only reported.

    Args:
        project: The project, with its nanoset.yaml and its folder of raw text.
        outputs: All outputs that exist.
    """
    stored = _stored_subjects(outputs)  # such as {("nanosets", "pretrain"), ("datasets", "web")}
    stored_names = {name for _, name in stored}
    requested = _requested_subjects(project.config, stored_names)

    # Only kinds of outputs that users know are reported.
    requester_by_folder = _requester_by_folder()
    for folder, name in sorted(stored - requested):
        if folder in requester_by_folder:
            requester = requester_by_folder[folder]
            why = f"{requester} no longer asks for it; delete it if you do not need it"
            yield LeftAlone(project.outputs.folder / folder / name, why)


def _stored_subjects(outputs: Iterable[StoredOutput]) -> set[tuple[str, str]]:
    """Return the names of what has been built and is in use. Each comes with a folder. For example:

        ("datasets", "web")           the dataset of a collection of texts
        ("nanosets", "pretrain")      a mixture of texts for training

    Args:
        outputs: All outputs that are stored. Those without a current build are left out.
    """
    return {
        (output.stage_folder, output.leased_name)
        for output in outputs
        if output.current is not None
    }


def _requested_subjects(config: ProjectConfig, names: Iterable[str]) -> set[tuple[str, str]]:
    """Return which outputs the settings and the folder of raw text request.

    The settings request nanosets (mixtures of texts), for example. A corpus (collection of texts)
    is requested if it has a folder of raw text.

    Args:
        config: The settings of the project.
        names: Names that may be those of corpora. Only corpora among these are looked for.

    Returns:
        Pairs of a folder and a name, such as ("nanosets", "pretrain") and ("datasets", "web").
    """
    corpora = {name for name in names if config.corpus_folder(name).is_dir()}
    requested: set[tuple[str, str]] = set()
    for node in requested_nodes(config, corpora):  # a node is one output
        subject, _, _ = node.name.partition("/")  # `pretrain` of pretrain/train/blend
        requested.add((node.stage.layout.folder, subject))
    return requested


def _requester_by_folder() -> dict[str, str]:
    """Return where users request each kind of output, for messages about unrequested ones.

    A corpus (a collection of texts) has several outputs. One message about its dataset is enough.
    Outputs that users do not know, such as the list of the raw files, are left out.

    Returns:
        Folder of the outputs → what requests them, such as {"datasets": "the raw folder",
        "nanosets": "nanoset.yaml", "webdatasets": "nanoset.yaml"}.
    """
    requester_by_folder = {DATASETS: "the raw folder"}
    for stage in stages():  # a stage makes one kind of output
        is_for_every_corpus = isinstance(stage, CorpusStage)
        is_internal = isinstance(stage, InternalStage)  # such as shards, tokenized pieces of a text
        if not is_for_every_corpus and not is_internal:
            requester_by_folder[stage.layout.folder] = "nanoset.yaml"
    return requester_by_folder


class OldVersions(NamedTuple):
    """How many versions and index files `nanoset gc` would remove, by estimate."""

    n_items: int
    """Number of versions and index files."""
    size: int
    """Bytes of disk space that are freed if all of them are removed."""


def old_versions(project: Project) -> OldVersions:
    """Estimate how many old files `nanoset gc` would delete, and how much space that frees.

    `nanoset status` mentions them, so this has to be fast. The numbers may be too high, since
    `nanoset gc` leaves some files alone.

    Args:
        project: The project, whose output folder is searched.

    Returns:
        The estimate. It is 0 for outputs in a bucket, where listing all files takes too long.

    Raises:
        StorageError: An output that other outputs may depend on is damaged.
        ConfigError: An entry of `storage.keep_runs` names no version of a handoff.
        MissingError: There is no such version.
    """
    access = project.outputs.access
    is_in_bucket = access.takes_requests
    if is_in_bucket:
        return OldVersions(0, 0)

    outputs = all_outputs(access)
    kept_handoffs = _kept_handoffs(project)
    # There may be thousands of shards (tokenized pieces of text): do not look up what these need.
    shard_digests = digests_of_pieces(outputs)
    needed = find_needed(access, outputs, Policy(), kept_handoffs, shard_digests)
    sizes = [
        *_unneeded_version_sizes(outputs, needed),
        *_unneeded_index_file_sizes(access, outputs, needed),
    ]
    return OldVersions(n_items=len(sizes), size=sum(freed_bytes(sizes)))


def _unneeded_version_sizes(outputs: Iterable[StoredOutput], needed: Needed) -> Iterator[FileSizes]:
    """Yield the sizes of the files of each version of an output that is not needed any more.

    Args:
        outputs: All outputs, with the digests that name their versions (builds).
        needed: The versions that have to stay.
    """
    for output in outputs:
        unneeded_digests = output.versions - needed.digests
        for digest in unneeded_digests:
            yield _file_sizes(output.folder / digest)


def _unneeded_index_file_sizes(
    access: FileAccess, outputs: Sequence[StoredOutput], needed: Needed
) -> Iterator[FileSizes]:
    """Yield the sizes of index files for trainers that no version of an output needs any more.

    Several versions may share an index file. It stays as long as one of them does.

    Args:
        access: Access to the output folder.
        outputs: All outputs.
        needed: The versions that have to stay.
    """
    for item in judge_all_shared_files(access, outputs, needed, Policy()):
        if isinstance(item, Garbage):
            yield item.sizes


def bytes_freed_by_removing(paths: Iterable[Path]) -> int:
    """Return how many bytes of disk space are freed if files and folders are removed.

    Args:
        paths: The files, or folders with all files in them. Links are not followed: the size of a
            link is its own.
    """
    sizes = [_file_sizes(path) for path in paths]
    return sum(freed_bytes(sizes))


def _file_sizes(path: Path) -> FileSizes:
    """Return the sizes of all files in a folder, or of a single file.

    Args:
        path: The folder or file. If another process has just deleted it, it has no size.
    """
    if path.is_dir() and not path.is_symlink():
        files = files_below(FileAccess(path), path)
        return FileSizes.of(entry for _, entry in files)
    try:
        return FileSizes(path.lstat().st_size)
    except FileNotFoundError:
        return FileSizes(0)

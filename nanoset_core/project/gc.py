"""`nanoset gc`: remove old versions of outputs, and index files, that nothing needs any more.

What is current stays, and what the policy keeps in addition, and all that these were made from or
point at. Of everything else, what is certainly ours is removed.

A version is retracted while no build can begin. On a disk it gets an unfinished name, which no
reader looks at and every sweep removes; in a bucket its manifest is removed first. So a collection
that is killed leaves no version that is half there. Builds are seen by their leases, from any
machine.
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
from nanoset_core.storage.leases import LEASE_SECONDS, collecting, leased_names
from nanoset_core.storage.store import in_parallel

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, and machines that were cut off from the bucket "
    f"for {LEASE_SECONDS // 60} minutes or more"
)


def plan_gc(project: Project, **policy: Any) -> GarbageCollection:
    """Return what `collect` would remove; nothing is written.

    Args:
        project: The project.
        policy: Fields of a `Policy`.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    leases = leased_names(project.outputs.access)
    with project.outputs.access.named():
        duplicates = []
        for shard in find_duplicate_tokens(project):
            duplicates.append(replace(shard, why_not=_reason_if_busy(leases, shard.corpus)))
        moving = {shard.folder.name for shard in duplicates if shard.why_not is None}
        collection = _plan(project, Policy(**policy), leases, moving)
    return _with_dropped_tokens(collection, duplicates)


def collect(project: Project, **policy: Any) -> GarbageCollection:
    """Remove what nothing needs; return what was removed.

    What a running build works on stays, and what is made current meanwhile. A build on another
    machine is not seen if that machine was cut off from the store for ten minutes, or if its
    version knows no leases: if it reuses an old version at that moment, it makes that version
    again.

    Args:
        project: The project.
        policy: Fields of a `Policy`.

    Raises:
        StorageError: A folder of outputs, or a version that has to stay, cannot be read.
    """
    outputs = project.outputs
    access = outputs.access
    if not outputs.folder.is_dir() and next(access.store.list(), None) is None:
        return GarbageCollection()

    dropped = list(drop_duplicate_tokens(project))

    # Retract while no build can begin: afterwards no reader sees what is removed.
    # what was retracted → folders that hold its files
    leftovers: dict[Garbage, tuple[Path, ...]] = {}
    with collecting(access) as leases, access.named():
        planned = _plan(project, Policy(**policy), leases)
        left_alone = list(planned.left_alone)
        for item in planned.garbage:
            try:
                folders = _retract(access, item)
            except FileNotFoundError:  # another collection removed it
                continue
            except OSError as error:
                left_alone.append(
                    LeftAlone(item.path, f"it cannot be removed: {error.strerror}", refused=True)
                )
                continue
            if folders is not None:
                leftovers[item] = folders
        swept, unswept = _sweep_store(outputs, planned.unfinished, leases)
        left_alone += unswept

    # Remove the files, which takes long; builds may begin.
    removed = []
    for item, folders in leftovers.items():
        undeleted = _remove_folders(folders)
        left_alone += [
            LeftAlone(folder, "it could not be removed", refused=True) for folder in undeleted
        ]
        if not undeleted:
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


def _plan(
    project: Project, policy: Policy, leases: Mapping[str, str], moving: Collection[str] = ()
) -> GarbageCollection:
    """Return what nothing needs.

    Args:
        project: The project.
        policy: What is kept although nothing needs it.
        leases: Name that a running build holds → its process.
        moving: Digests of shards whose tokens are about to move to the current dataset.
    """
    listing = project.outputs.access.listing()
    outputs = all_outputs(listing)
    needed = find_needed(listing, outputs, policy, moving)

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

    unfinished: list[Path] = []
    for folder, names in project.outputs.unfinished():
        unfinished += [folder / name for name in names]
    garbage_folders = {item.path for item in garbage}
    for path in listing.unfinished():
        if path.parent not in garbage_folders and _is_idle(listing.name(path), leases):
            unfinished.append(path)
    return GarbageCollection(
        garbage=tuple(garbage),
        left_alone=tuple(left_alone),
        unfinished=tuple(unfinished),
        unseen=UNSEEN if listing.has_copies else None,
    )


def _reason_if_busy(leases: Mapping[str, str], subject: str) -> str | None:
    """Return why an output stays if a running build works on its subject, or None."""
    if subject not in leases:
        return None
    return f"a build works on it ({leases[subject]}); run `nanoset gc` again once that has ended"


def _with_dropped_tokens(
    collection: GarbageCollection, dropped: Iterable[DuplicateTokens]
) -> GarbageCollection:
    """Return a collection together with shards that dropped, or are to drop, their tokens."""
    garbage: list[Garbage] = []
    left_alone = list(collection.left_alone)
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
    """Hide garbage from readers.

    Returns:
        Folders that hold its files, to be removed; None if it was made current meanwhile, and
        stays.
    """
    if item.kind == "cache file":
        access.remove(item.path)
        return ()

    def is_current() -> bool:
        return read_current(item.path.parent, access) == item.path.name

    return access.withdraw(item.path, MANIFEST, is_current)


def _remove_folders(folders: Iterable[Path]) -> list[Path]:
    """Remove folders; return those that could not be removed."""
    undeleted = []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            undeleted.append(folder)
    return undeleted


def _sweep_store(
    outputs: OutputRoot, unfinished: Iterable[Path], leases: Collection[str]
) -> tuple[list[Path], list[LeftAlone]]:
    """Remove unfinished uploads of killed builds from a bucket.

    Returns (what was removed, what could not be removed).
    """
    access = outputs.access
    if not access.has_copies:
        return [], []
    names = [access.name(path) for path in unfinished if not path.exists()]
    in_parallel(access.store.delete, names)
    left_alone = []
    try:
        names += access.store.abort_uploads(lambda name: _is_idle(name, leases))
    except StorageError as error:
        why = f"uploads that were cut short cannot be looked for: {error.found}"
        left_alone.append(LeftAlone(outputs.folder, why))
    return [outputs.folder / name for name in names], left_alone


def _is_idle(name: str, leases: Collection[str]) -> bool:
    """Return whether an object belongs to an output of ours that no build works on."""
    folder, *rest = name.split("/")
    return folder in stage_folders() and len(rest) > 1 and rest[0] not in leases


def _unrequested(project: Project, outputs: Sequence[StoredOutput]) -> Iterator[LeftAlone]:
    """Yield outputs that nothing requests any more.

    They are only reported, since they may be the only copies.
    """
    stored = {
        (output.stage_folder, output.subject) for output in outputs if output.current is not None
    }
    subjects = {subject for _, subject in stored}
    corpora = {subject for subject in subjects if project.config.corpus_folder(subject).is_dir()}
    requested = set()
    for node in requested_nodes(project.config, corpora):
        requested.add((node.stage.layout.folder, node.name.partition("/")[0]))

    requester_by_folder = _requester_by_folder()
    for folder, subject in sorted(stored - requested):
        if folder in requester_by_folder:
            why = f"{requester_by_folder[folder]} no longer asks for it; delete it if you do not need it"
            yield LeftAlone(project.outputs.folder / folder / subject, why)


def _requester_by_folder() -> dict[str, str]:
    """Return what requests the outputs of each stage, by the stage's folder.

    A corpus is reported once, by its last stage.
    """
    requesters: dict[str, str] = {}
    for stage in stages():
        if not isinstance(stage, CorpusStage | InternalStage):
            requesters[stage.layout.folder] = "nanoset.yaml"
    corpus_stages = [stage for stage in stages() if isinstance(stage, CorpusStage)]
    requesters[corpus_stages[-1].layout.folder] = "the raw folder"
    return requesters


class OldVersions(NamedTuple):
    """Versions of outputs and index files that are not current, and that nothing current needs."""

    n_items: int
    """Versions and index files."""
    size: int
    """Their size in bytes."""


def old_versions(project: Project) -> OldVersions:
    """Count what `nanoset gc` would remove, without writing anything.

    The manifests of shards are not read.

    It is an estimate that is fast enough for every `nanoset status`: versions that a running build
    works on, or that hold files of others, count too. Nothing is counted in a bucket, where it
    would take a request for each thousand objects.

    Raises:
        StorageError: An output is damaged, so that it is not known what it needs.
    """
    access = project.outputs.access
    if access.has_copies:
        return OldVersions(0, 0)
    outputs = all_outputs(access)
    policy = Policy()
    # As if the tokens of all shards were about to move: then no manifest of a shard is read.
    all_digests = {digest for output in outputs for digest in output.versions}
    needed = find_needed(access, outputs, policy, moving=all_digests)

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
    """Return the bytes of a file, or of all files in a folder; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in files_below(FileAccess(folder), folder))

"""`nanoset gc`: old versions of outputs, and index files, that nothing needs any more.

A version is withdrawn while no build can begin: on a disk by a new name, which every reader takes for gone and every
sweep for litter, so that its files can be removed later; in a bucket by the removal of its manifest first. So a
collection that is killed leaves nothing half there. Builds are seen by their leases, from any
machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import OutputRoot, read_current
from nanoset_core.pipeline.graph import asked_nodes
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stages import stages, sweep
from nanoset_core.storage.access import FileAccess, LocalAccess
from nanoset_core.storage.leases import LEASE_SECONDS, collecting, leased_names
from nanoset_core.storage.listing import Listing
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import in_parallel
from nanoset_core.versions.garbage import Garbage, LeftAlone, files_below, foretold, judge
from nanoset_core.versions.index_files import judge_index_files
from nanoset_core.versions.outputs import Output, find_outputs, stage_folders
from nanoset_core.versions.references import Policy, find_needed

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, and machines that were cut off from the bucket "
    f"for {LEASE_SECONDS // 60} minutes or more"
)


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection found, and did."""

    garbage: tuple[Garbage, ...]
    """what nothing needs: removed, or to be removed"""
    left: tuple[LeftAlone, ...]
    """what stays although nothing is known to need it"""
    unfinished: tuple[Path, ...]
    """unfinished names that were there (plan), or that a sweep removed; a living process may own one"""
    unseen: str | None = None
    """which work no collection can know of"""

    @property
    def size(self) -> int:
        """Bytes of the garbage."""
        return sum(item.size for item in self.garbage)

    def by_output(self) -> dict[str, list[Garbage]]:
        """Output → its garbage."""
        found: dict[str, list[Garbage]] = {}
        for item in self.garbage:
            found.setdefault(item.output, []).append(item)
        return found


def plan_gc(
    project: Project,
    *,
    keep: int = 0,
    older_than_days: float | None = None,
    unfinished: bool = False,
) -> Collection:
    """What `collect` would remove; nothing is written.

    Args:
        project: the project.
        keep: how many versions before the current one stay, of each output.
        older_than_days: younger versions stay.
        unfinished: take also what is newer than the current version: shards of a build that was cut short.

    Raises:
        StorageError: a folder of outputs cannot be read.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    return _plan(project, policy, _busy(leased_names(project.outputs.access)))


def _busy(leases: Mapping[str, str]) -> Mapping[str, str]:
    """Return for each name that is worked on the reason to leave it."""
    return {name: f"a build on {host} works on it" for name, host in leases.items()}


def collect(
    project: Project,
    *,
    keep: int = 0,
    older_than_days: float | None = None,
    unfinished: bool = False,
) -> Collection:
    """Remove what nothing needs; → what was removed. Arguments as for `plan_gc`.

    What a running build works on stays, and what is made current meanwhile. A build on another machine is not seen
    where that machine was cut off from the store for ten minutes, or where its version knows no leases: one that takes
    up an old version in that very moment finds it gone, and makes it again.

    Raises:
        StorageError: a folder of outputs cannot be read.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    outputs = project.outputs
    if not outputs.folder.is_dir() and next(outputs.access.store.list(), None) is None:
        return Collection((), (), ())
    withdrawn: list[tuple[Garbage, tuple[Path, ...]]] = []
    with collecting(outputs.access) as leases:
        busy = _busy(leases)
        planned = _plan(project, policy, busy)
        left = list(planned.left)
        for item in planned.garbage:
            try:
                rest = _withdraw(outputs.access, item)
            except OSError as error:
                left.append(LeftAlone(item.path, f"it cannot be removed: {error.strerror}", refused=True))
                continue
            if rest is not None:
                withdrawn.append((item, rest))
        swept, untold = _sweep_store(outputs, planned, busy)
        left += untold
    gone: list[Garbage] = []
    for item, rest in withdrawn:
        for folder in rest:
            shutil.rmtree(folder, ignore_errors=True)
        stuck = [folder for folder in rest if folder.exists()]
        left += [LeftAlone(folder, "it could not be removed", refused=True) for folder in stuck]
        if not stuck:
            gone.append(item)
    removed = dict.fromkeys([*_sweep(outputs, planned.unfinished), *swept])
    return Collection(tuple(gone), tuple(left), tuple(removed), planned.unseen)


def _sweep_store(outputs: OutputRoot, planned: Collection, busy: Container[str]) -> tuple[list[Path], list[LeftAlone]]:
    """Remove from a bucket what builds that are gone left unfinished, on whatever machine.

    Returns:
        What was removed, and why it cannot be told what else there is.
    """
    access = outputs.access
    if not access.has_copies:
        return [], []
    names = [access.name(path) for path in planned.unfinished if not path.exists()]
    in_parallel(access.store.delete, names)
    left = []
    try:
        names += access.store.abort_uploads(lambda name: _is_idle(name, busy))
    except StorageError as error:
        left.append(LeftAlone(outputs.folder, f"uploads that were cut short cannot be looked for: {error.found}"))
    return [outputs.folder / name for name in names], left


def _is_idle(name: str, busy: Container[str]) -> bool:
    """Whether an object is one of an output of ours that nobody works on."""
    stage, *rest = name.split("/")
    return stage in stage_folders() and len(rest) > 1 and rest[0] not in busy


def _withdraw(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Let garbage be gone; → folders that hold what is left of it, or None where it was made current meanwhile.

    Builds that hold what they work on cannot do that. It is looked for because of whoever writes here without.
    """
    if item.kind != "cache file":
        return access.withdraw(item.path, MANIFEST, lambda: read_current(item.path.parent, access)[0] == item.path.name)
    access.remove(item.path)
    with contextlib.suppress(OSError):  # others are still in it, or other folders
        if item.path.parent.name != opening.CACHE:
            item.path.parent.rmdir()
    return ()


def _plan(project: Project, policy: Policy, busy: Mapping[str, str]) -> Collection:
    listing = project.outputs.access.listing()
    outputs = find_outputs(listing)
    needed = find_needed(listing, outputs, policy)
    planned = foretold(list(needed.manifests.values()))
    judged = [judge(listing, version, needed, planned) for output in outputs for version in output.versions]
    found = [item for item in [*judged, *judge_index_files(listing, outputs, needed, policy)] if item is not None]
    garbage = [item for item in found if isinstance(item, Garbage)]
    left = [LeftAlone(path, f"it is needed, but {why}") for path, why in needed.unreadable.items()]
    left += [item for item in found if isinstance(item, LeftAlone)]
    left += [LeftAlone(item.path, busy[item.subject]) for item in garbage if item.subject in busy]
    left += _unasked(project, outputs)
    idle = tuple(item for item in garbage if item.subject not in busy)
    unfinished = [*_unfinished(listing.folder), *_unfinished_objects(listing, {item.path for item in idle}, busy)]
    return Collection(idle, tuple(left), tuple(unfinished), UNSEEN if listing.has_copies else None)


def _unfinished_objects(listing: Listing, gone: Container[Path], busy: Container[str]) -> Iterator[Path]:
    """What builds that are gone left unfinished in a bucket, but for what goes with its version."""
    for path in listing.unfinished():
        if path.parent not in gone and _is_idle(listing.name(path), busy):
            yield path


def _unasked(project: Project, outputs: list[Output]) -> Iterator[LeftAlone]:
    """Outputs that nanoset.yaml, or the raw folder, no longer asks for; they may be the only copy of something."""
    places = {(output.stage, output.subject) for output in outputs if output.current is not None}
    here = {subject for _, subject in places if project.config.corpus_folder(subject).is_dir()}
    asked = {(node.stage.folder, node.key.subject) for node in asked_nodes(project.config, here)}
    asking = {stage.folder: stage.asked_by for stage in stages()}
    for folder, subject in sorted(places - asked):
        if (by := asking[folder]) is not None:
            place = project.outputs.folder / folder / subject
            yield LeftAlone(place, f"{by} no longer asks for it; delete it if you do not need it")


def _unfinished(root: Path) -> Iterator[Path]:
    """Unfinished names anywhere below the root, but not within complete outputs nor behind links."""
    for place, folders, files in os.walk(root):
        folder = Path(place)
        yield from (folder / name for name in (*folders, *files) if name.startswith(UNFINISHED))
        folders[:] = [
            name for name in folders if not name.startswith(UNFINISHED) and not (folder / name / MANIFEST).exists()
        ]


def _sweep(outputs: OutputRoot, before: tuple[Path, ...]) -> tuple[Path, ...]:
    sweep(outputs)
    return tuple(path for path in before if not path.exists())


def folder_size(folder: Path) -> int:
    """Bytes of a file, or of all files in a folder; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in files_below(LocalAccess(folder).listing(), folder))

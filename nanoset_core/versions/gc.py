"""`nanoset gc`: old versions of outputs, and index files, that nothing needs any more.

A version is retracted while no build can begin: on a disk it is renamed to an unfinished name, which no reader looks at
and every sweep removes; in a bucket its manifest is removed first. So a collection that is killed leaves nothing half
there. Builds are seen by their leases, from any machine.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import MANIFEST, read_manifest
from nanoset_core.outputs.root import OutputRoot, read_current
from nanoset_core.pipeline.graph import asked_nodes
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stages import stage_of, stages, sweep
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import LEASE_SECONDS, collecting, leased_names
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import in_parallel
from nanoset_core.versions.outputs import Needed, Output, Policy, Version, find_needed, find_outputs, stage_folders

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, and machines that were cut off from the bucket "
    f"for {LEASE_SECONDS // 60} minutes or more"
)
Kind = Literal["version", "unfinished", "cache file"]
"""A version's folder, one whose build never ended, or one of the trainers' index files."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that nothing needs."""

    path: Path
    output: str
    """As it is shown: stage and name."""
    subject: str
    """The corpus, nanoset or webdataset that a build of it holds."""
    kind: Kind
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Something that nothing is known to need, and that stays."""

    path: Path
    why: str
    refused: bool = False
    """Whether it was to be removed, and the file system refused."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection found, and did."""

    garbage: tuple[Garbage, ...]
    """What nothing needs: removed, or to be removed."""
    left: tuple[LeftAlone, ...]
    """What stays although nothing is known to need it."""
    unfinished: tuple[Path, ...]
    """Unfinished files that were there (plan), or that were removed; a living process may own one."""
    unseen: str | None = None
    """Which work no collection can know of."""

    @property
    def size(self) -> int:
        """Bytes of the garbage."""
        return sum(item.size for item in self.garbage)

    def by_output(self) -> dict[str, list[Garbage]]:
        """Return output → its garbage."""
        found: dict[str, list[Garbage]] = {}
        for item in self.garbage:
            found.setdefault(item.output, []).append(item)
        return found


def plan_gc(
    project: Project, *, keep: int = 0, older_than_days: float | None = None, unfinished: bool = False
) -> Collection:
    """Return what `collect` would remove; nothing is written.

    Args:
        project: the project.
        keep: how many versions before the current one stay, of each output.
        older_than_days: younger versions stay.
        unfinished: take also what is newer than the current version: shards of a build that was cut short.

    Raises:
        StorageError: a folder of outputs, or a version that has to stay, cannot be read.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    return _plan(project, policy, _busy(leased_names(project.outputs.access)))


def collect(
    project: Project, *, keep: int = 0, older_than_days: float | None = None, unfinished: bool = False
) -> Collection:
    """Remove what nothing needs; return what was removed. Arguments as for `plan_gc`.

    What a running build works on stays, and what is made current meanwhile. A build on another machine is not seen
    where that machine was cut off from the store for ten minutes, or where its version knows no leases: if it reuses an
    old version at that moment, it makes it again.

    Raises:
        StorageError: as `plan_gc`.
    """
    policy = Policy.of(keep, older_than_days, unfinished=unfinished, now_ns=time.time_ns())
    outputs = project.outputs
    if not outputs.folder.is_dir() and next(outputs.access.store.list(), None) is None:
        return Collection((), (), ())
    retracted: list[tuple[Garbage, tuple[Path, ...]]] = []
    with collecting(outputs.access) as leases:
        busy = _busy(leases)
        planned = _plan(project, policy, busy)
        left = list(planned.left)
        for item in planned.garbage:
            try:
                rest = _retract(outputs.access, item)
            except FileNotFoundError:  # another collection removed it
                continue
            except OSError as error:
                left.append(LeftAlone(item.path, f"it cannot be removed: {error.strerror}", refused=True))
                continue
            if rest is not None:
                retracted.append((item, rest))
        swept, untold = _sweep_store(outputs, planned, busy)
    gone: list[Garbage] = []
    for item, rest in retracted:
        for folder in rest:
            shutil.rmtree(folder, ignore_errors=True)
        stuck = [folder for folder in rest if folder.exists()]
        left += [LeftAlone(folder, "it could not be removed", refused=True) for folder in stuck]
        gone += [] if stuck else [item]
    sweep(outputs)
    removed = dict.fromkeys([*(path for path in planned.unfinished if not path.exists()), *swept])
    return Collection(tuple(gone), (*left, *untold), tuple(removed), planned.unseen)


def _busy(leases: Mapping[str, str]) -> Mapping[str, str]:
    """Return for each name that is worked on the reason to leave it."""
    return {name: f"a build on {host} works on it" for name, host in leases.items()}


def _retract(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide garbage from every reader; return folders that hold its rest, or None where it was made current meanwhile.

    Builds that hold what they work on cannot do that; other programs may write here without.
    """
    if item.kind != "cache file":
        return access.withdraw(item.path, MANIFEST, lambda: read_current(item.path.parent, access)[0] == item.path.name)
    access.remove(item.path)
    with contextlib.suppress(OSError):  # others are still in it, or other folders
        if item.path.parent.name != opening.CACHE:
            item.path.parent.rmdir()
    return ()


def _sweep_store(outputs: OutputRoot, planned: Collection, busy: Container[str]) -> tuple[list[Path], list[LeftAlone]]:
    """Remove from a bucket what killed builds left unfinished; return it, and why uploads cannot be looked for."""
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
    """Return whether an object belongs to an output of ours that no build works on."""
    stage, *rest = name.split("/")
    return stage in stage_folders() and len(rest) > 1 and rest[0] not in busy


def _plan(project: Project, policy: Policy, busy: Mapping[str, str]) -> Collection:
    from nanoset_core.versions.index_files import judge_index_files

    listing = project.outputs.access.listing()
    outputs = find_outputs(listing)
    needed = find_needed(listing, outputs, policy)
    judged = [_judge(listing, version, needed) for output in outputs for version in output.versions]
    found = [item for item in [*judged, *judge_index_files(listing, outputs, needed, policy)] if item is not None]
    garbage = [item for item in found if isinstance(item, Garbage)]
    left = [item for item in found if isinstance(item, LeftAlone)]
    left += [LeftAlone(item.path, busy[item.subject]) for item in garbage if item.subject in busy]
    left += _unasked(project, outputs)
    idle = tuple(item for item in garbage if item.subject not in busy)
    gone = {item.path for item in idle}
    unfinished = [
        *(folder / name for folder, names in project.outputs.unfinished() for name in names),
        *(path for path in listing.unfinished() if path.parent not in gone and _is_idle(listing.name(path), busy)),
    ]
    return Collection(idle, tuple(left), tuple(unfinished), UNSEEN if listing.has_copies else None)


def _judge(listing: FileAccess, version: Version, needed: Needed) -> Garbage | LeftAlone | None:
    """Return Garbage where nothing needs a version and all in it is ours, LeftAlone where that cannot be told."""
    if version.digest in needed.digests:
        return None
    if version.linked:
        return LeftAlone(version.folder, "a symbolic link leads to it")
    try:
        manifest = read_manifest(version.folder, listing)
    except (FormatError, OSError) as error:
        what = error.what if isinstance(error, FormatError) else str(error)
        return LeftAlone(version.folder, f"its manifest cannot be read: {what}")
    kind: Kind = "version"
    if manifest is None:
        stage = stage_of(version.stage, version.name)
        ours = None if stage is None else stage.unfinished_files(listing, version.folder)
        if ours is None:
            return LeftAlone(version.folder, "it has no manifest, and no markers of nanoset")
        kind = "unfinished"
    elif (manifest.stage, manifest.name, manifest.digest) != (version.stage, version.name, version.digest):
        return LeftAlone(version.folder, f"its manifest is that of {manifest.stage}/{manifest.name}/{manifest.digest}")
    else:
        ours = {*manifest.files, MANIFEST}
    size = 0
    for name, entry in files_below(listing, version.folder):
        if entry.is_link:
            return LeftAlone(version.folder, f"it holds a symbolic link: {name}")
        if name not in ours and not name.rpartition("/")[2].startswith(UNFINISHED):
            return LeftAlone(version.folder, f"it holds a file that is not of nanoset: {name}")
        size += entry.size
    return Garbage(version.folder, f"{version.stage}/{version.name}", version.subject, kind, size)


def files_below(listing: FileAccess, folder: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield (relative name, entry) of everything but folders; no link is followed."""
    for entry in listing.entries(folder):
        if not entry.is_link and entry.is_folder:
            yield from files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _unasked(project: Project, outputs: list[Output]) -> Iterator[LeftAlone]:
    """Yield outputs that nanoset.yaml or the raw folder no longer asks for: they may be the only copies."""
    places = {(output.stage, output.subject) for output in outputs if output.current is not None}
    here = {subject for _, subject in places if project.config.corpus_folder(subject).is_dir()}
    asked = {(node.stage.folder, node.key.subject) for node in asked_nodes(project.config, here)}
    asking = {stage.folder: stage.asked_by for stage in stages()}
    for folder, subject in sorted(places - asked):
        if (by := asking[folder]) is not None:
            place = project.outputs.folder / folder / subject
            yield LeftAlone(place, f"{by} no longer asks for it; delete it if you do not need it")


def folder_size(folder: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in files_below(FileAccess(folder).listing(), folder))

"""`nanoset gc`: old versions of outputs, and index files, that nothing needs any more.

A version is retracted while no build can begin: on a disk it is renamed to an unfinished name, which no reader looks at
and every sweep removes; in a bucket its manifest is removed first. So a collection that is killed leaves nothing half
there. Builds are seen by their leases, from any machine.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.errors import FormatError, NanosetError, StorageError
from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import MANIFEST, read_manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot, read_current
from nanoset_core.pipeline.graph import asked_nodes
from nanoset_core.pipeline.mapping import index_files
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stages import stage_of, stages, sweep
from nanoset_core.serialization.text import format_count
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.leases import LEASE_SECONDS, collecting, leased_names
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.store import in_parallel
from nanoset_core.versions.outputs import Needed, Output, Policy, find_needed, find_outputs, stage_folders

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, and machines that were cut off from the bucket "
    f"for {LEASE_SECONDS // 60} minutes or more"
)
Kind = Literal["version", "unfinished", "cache file"]
"""A version's folder, one whose build never ended, or one of the trainers' index files."""
_SIDECAR = "nanoset.json"
"""Ending of the notes beside index files."""


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
    return _plan(project, policy, leased_names(project.outputs.access))


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
        planned = _plan(project, policy, leases)
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
        swept = _sweep_store(outputs, planned, leases, left)
    gone: list[Garbage] = []
    for item, rest in retracted:
        for folder in rest:
            shutil.rmtree(folder, ignore_errors=True)
        stuck = [LeftAlone(folder, "it could not be removed", refused=True) for folder in rest if folder.exists()]
        left += stuck
        gone += [] if stuck else [item]
    sweep(outputs)
    removed = dict.fromkeys([*(path for path in planned.unfinished if not path.exists()), *swept])
    return Collection(tuple(gone), tuple(left), tuple(removed), planned.unseen)


def _retract(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide garbage from every reader; return folders that hold its rest, or None where it was made current meanwhile.

    Builds that hold what they work on cannot do that; other programs may write here without.
    """
    if item.kind != "cache file":
        return access.withdraw(item.path, MANIFEST, lambda: read_current(item.path.parent, access) == item.path.name)
    access.remove(item.path)
    return ()


def _sweep_store(outputs: OutputRoot, planned: Collection, busy: Container[str], left: list[LeftAlone]) -> list[Path]:
    """Remove from a bucket what killed builds left unfinished; return it."""
    access = outputs.access
    if not access.has_copies:
        return []
    names = [access.name(path) for path in planned.unfinished if not path.exists()]
    in_parallel(access.store.delete, names)
    try:
        names += access.store.abort_uploads(lambda name: _is_idle(name, busy))
    except StorageError as error:
        left.append(LeftAlone(outputs.folder, f"uploads that were cut short cannot be looked for: {error.found}"))
    return [outputs.folder / name for name in names]


def _is_idle(name: str, busy: Container[str]) -> bool:
    """Return whether an object belongs to an output of ours that no build works on."""
    stage, *rest = name.split("/")
    return stage in stage_folders() and len(rest) > 1 and rest[0] not in busy


def _plan(project: Project, policy: Policy, leases: Mapping[str, str]) -> Collection:
    """Judge all that is there; leases: name that is worked on → the machine that does."""
    listing = project.outputs.access.listing()
    outputs = find_outputs(listing)
    needed = find_needed(listing, outputs, policy)
    found = [
        _judge(listing, output, digest)
        for output in outputs
        for digest in output.versions
        if digest not in needed.digests
    ]
    nanosets: dict[str, list[Output]] = {}
    for output in outputs:
        if output.stage == opening.STAGE:
            nanosets.setdefault(output.subject, []).append(output)
    found += [one for name, own in nanosets.items() for one in _judge_index_files(listing, name, own, needed, policy)]
    garbage = [item for item in found if isinstance(item, Garbage)]
    idle = tuple(item for item in garbage if item.subject not in leases)
    left = [item for item in found if isinstance(item, LeftAlone)]
    busy = [item for item in garbage if item.subject in leases]
    left += [LeftAlone(item.path, f"a build on {leases[item.subject]} works on it") for item in busy]
    left += _unasked(project, outputs)
    gone = {item.path for item in idle}
    unfinished = [folder / name for folder, names in project.outputs.unfinished() for name in names]
    stored = (path for path in listing.unfinished() if path.parent not in gone)
    unfinished += [path for path in stored if _is_idle(listing.name(path), leases)]
    return Collection(idle, tuple(left), tuple(unfinished), UNSEEN if listing.has_copies else None)


def _judge(listing: FileAccess, output: Output, digest: str) -> Garbage | LeftAlone:
    """Return Garbage where all in a version that nothing needs is ours, LeftAlone where that cannot be told."""
    folder, name = output.folder / digest, f"{output.stage}/{output.name}"
    if output.versions[digest]:
        return LeftAlone(folder, "a symbolic link leads to it")
    try:
        manifest = read_manifest(folder, listing)
    except (FormatError, OSError) as error:
        what = error.what if isinstance(error, FormatError) else str(error)
        return LeftAlone(folder, f"its manifest cannot be read: {what}")
    if manifest is None:
        stage = stage_of(output.stage, output.name)
        ours = None if stage is None else stage.unfinished_files(listing, folder)
        if ours is None:
            return LeftAlone(folder, "it has no manifest, and no markers of nanoset")
    else:
        ours, made = {*manifest.files, MANIFEST}, f"{manifest.stage}/{manifest.name}/{manifest.digest}"
        if made != f"{name}/{digest}":
            return LeftAlone(folder, f"its manifest is that of {made}")
    size = 0
    for file, entry in files_below(listing, folder):
        if entry.is_link:
            return LeftAlone(folder, f"it holds a symbolic link: {file}")
        if file not in ours and not file.rpartition("/")[2].startswith(UNFINISHED):
            return LeftAlone(folder, f"it holds a file that is not of nanoset: {file}")
        size += entry.size
    return Garbage(folder, name, output.subject, "unfinished" if manifest is None else "version", size)


def _judge_index_files(
    listing: FileAccess, nanoset: str, outputs: Sequence[Output], needed: Needed, policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield every index file of a nanoset that no split lists that stays; what is not ours is left alone."""
    place = f"{opening.STAGE}/{nanoset}/{opening.CACHE}"
    folder, kept = listing.folder / place, needed.index_files.get(nanoset, set())
    since = max(listing.written_ns(output.folder / CURRENT) for output in outputs)
    files = {name: entry for name, entry in files_below(listing, folder) if not name.startswith(UNFINISHED)}
    others = {name for name, entry in files.items() if name not in kept and not policy.keeps(entry.written_ns, since)}
    if others and any(map(listing.is_link, (folder, *folder.parents[:2]))):
        yield LeftAlone(folder, f"{_counted(files, others)} of no split that stays: a symbolic link leads to them")
        return
    ours = {name for note in files if note.endswith(_SIDECAR) for name in _listed(listing, folder, note)}
    for version in (output.folder / digest for output in outputs for digest in output.versions):
        with suppress(NanosetError, OSError, KeyError, TypeError):
            manifest = read_manifest(version, listing)
            ours |= set() if manifest is None else index_files(manifest)
    if foreign := {name for name in others if name not in ours or files[name].is_link}:
        why = f"{_counted(files, foreign)} that no note of ours lists, such as {min(foreign)}"
        yield LeftAlone(folder, why)
    # The notes go last: a collection that is cut short finds the rest by them.
    for name in sorted(others - foreign, key=lambda name: (name.endswith(_SIDECAR), "description" not in name, name)):
        yield Garbage(folder / name, place, nanoset, "cache file", files[name].size)


def _listed(listing: FileAccess, folder: Path, note: str) -> set[str]:
    """Return the files that a note of ours lists, itself among them; none of another's."""
    try:
        value = json.loads(listing.read_current(folder / note))
        return {note, *value["files"]} if isinstance(value["made_from"], dict) else set()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _counted(files: Mapping[str, Entry], names: set[str]) -> str:
    return f"{format_count(len(names), 'file')} ({sum(files[name].size for name in names):,} bytes)"


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

"""`nanoset gc`: old versions of outputs, and index files, that nothing needs any more; and copies of what buckets hold.

What is current stays, what the policy keeps besides, and all that these were made from or point at. Of the rest goes
what is ours alone. A version is retracted while no build can begin: on a disk it gets an unfinished name, which
no reader looks at and every sweep removes; in a bucket its manifest is removed first. So a collection that is killed
leaves nothing half there. Builds are seen by their leases, from any machine.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import ConfigError, FormatError, MissingError, NanosetError, StorageError
from nanoset_core.loading.opening import CACHE, STAGE
from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot, read_current
from nanoset_core.project.dropping import Surplus, drop, held_by, surplus
from nanoset_core.project.existing import Output, all_outputs, stage_folders, unreadable
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.mappings.facts import files_in_use
from nanoset_core.stages.registry import stage_of, stages, sweep
from nanoset_core.stages.shards.shards import BIN
from nanoset_core.stages.shards.shards import STAGE as SHARDS
from nanoset_core.stages.stage import CorpusStage, InternalStage, Resumable, uploaded_files
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.leases import FOLDER, LEASE_SECONDS, collecting, leased_names
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.store import in_parallel

UNSEEN = (
    "not seen are builds by versions of nanoset that know no leases, and machines that were cut off from the bucket "
    f"for {LEASE_SECONDS // 60} minutes or more"
)
Kind = Literal["version", "unfinished", "cache file", "tokens"]
"""A version's folder, one whose build never ended, an index file of trainers, tokens of a shard that a dataset has."""
_SIDECAR = "nanoset.json"
"""Ending of the notes beside index files."""
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept though no current version needs it."""

    keep: int = 0
    """Older versions of each output."""
    older_than_days: float | None = None
    """Younger versions stay; None: age does not matter."""
    unfinished: bool = False
    """Whether versions newer than the current one, which belong to a build that has not ended, may go."""

    def keeps(self, written_ns: int, current_since_ns: int) -> bool:
        """Return whether something stays by its age, where the current version (0: none) became current at a moment."""
        is_newer = not self.unfinished and written_ns > current_since_ns
        return is_newer or (
            self.older_than_days is not None and written_ns > time.time_ns() - self.older_than_days * _DAY_NS
        )


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


def plan_gc(project: Project, **policy: Any) -> Collection:
    """Return what `collect` would remove under a `Policy` of these fields; nothing is written.

    StorageError where a folder of outputs, or a version that has to stay, cannot be read.
    """
    leases = leased_names(project.outputs.access)
    with project.outputs.access.named():
        dropping = [replace(one, why_not=_busy(leases, one.corpus)) for one in surplus(project)]
        moving = {one.shard.name for one in dropping if one.why_not is None}
        return _with_tokens(_plan(project, Policy(**policy), leases, moving), dropping)


class OldVersions(NamedTuple):
    """Versions of outputs and index files that are not current, and that nothing current needs."""

    n_items: int
    """Versions and index files."""
    size: int
    """Bytes."""


def old_versions(project: Project) -> OldVersions:
    """Count what `nanoset gc` would remove, without reading the manifests of shards; nothing is written.

    It is an estimate that is fast enough for every `nanoset status`: versions that a running build works on, or that
    hold files of others, count too. Nothing is counted in a bucket, where it would take a request for each thousand
    objects.

    Raises:
        StorageError: An output is damaged, so that it cannot be told what it needs.
    """
    access = project.outputs.access
    if access.has_copies:
        return OldVersions(0, 0)
    outputs = all_outputs(access)
    policy = Policy()
    digests = [digest for output in outputs for digest in output.versions]
    needed, listed_files = _needed(access, outputs, policy, moving=frozenset(digests))

    count = 0
    size = 0
    for output in outputs:
        for digest in sorted(output.versions - needed):
            count += 1
            size += folder_size(output.folder / digest)
    for nanoset in dict.fromkeys(output.subject for output in outputs if output.stage == STAGE):
        for item in _judge_index_files(access, nanoset, outputs, listed_files.get(nanoset, set()), policy):
            if isinstance(item, Garbage):
                count += 1
                size += item.size
    return OldVersions(count, size)


def _busy(leases: Mapping[str, str], subject: str) -> str | None:
    if subject not in leases:
        return None
    return f"a build works on it ({leases[subject]}); run `nanoset gc` again once that has ended"


def _with_tokens(found: Collection, dropped: Iterable[Surplus]) -> Collection:
    """Return a collection with shards that dropped, or are to drop, their tokens."""
    garbage, left = list[Garbage](), list(found.left)
    for one in dropped:
        if one.why_not is not None:
            left.append(LeftAlone(one.shard / BIN, one.why_not))
        elif one.size:
            garbage.append(Garbage(one.shard / BIN, f"{SHARDS}/{one.corpus}", one.corpus, "tokens", one.size))
    return replace(found, garbage=(*garbage, *found.garbage), left=tuple(left))


def collect(project: Project, **policy: Any) -> Collection:
    """Remove what nothing needs; return what was removed. Arguments and errors as for `plan_gc`.

    What a running build works on stays, and what is made current meanwhile. A build on another machine is not seen
    where that machine was cut off from the store for ten minutes, or where its version knows no leases: if it reuses an
    old version at that moment, it makes it again.
    """
    outputs = project.outputs
    if not outputs.folder.is_dir() and next(outputs.access.store.list(), None) is None:
        return Collection((), (), ())
    dropped = list(drop(project))
    gone: dict[Garbage, tuple[Path, ...]] = {}
    with collecting(outputs.access) as leases, outputs.access.named():
        planned = _plan(project, Policy(**policy), leases)
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
                gone[item] = rest
        swept = _sweep_store(outputs, planned, leases, left)
    for item, rest in list(gone.items()):
        for folder in rest:
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                left.append(LeftAlone(folder, "it could not be removed", refused=True))
                del gone[item]
    sweep(project)
    removed = dict.fromkeys([*(path for path in planned.unfinished if not path.exists()), *swept])
    return _with_tokens(Collection(tuple(gone), tuple(left), tuple(removed), planned.unseen), dropped)


def _retract(access: FileAccess, item: Garbage) -> tuple[Path, ...] | None:
    """Hide garbage from readers; return folders that hold its rest, or None where it was made current meanwhile."""
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


def _needed(
    listing: FileAccess, outputs: Sequence[Output], policy: Policy, moving: Container[str]
) -> tuple[set[str], dict[str, set[str]]]:
    """Follow every current version, and every other that the policy keeps, to all that it needs.

    Shards that are `moving` need no dataset: their tokens are about to lie within the current one.

    Returns (digests of versions, also of those that may be in the making; nanoset → files that its versions list).
    Raises StorageError where one of these cannot be read, so that it cannot be told what it needs.
    """
    places = {digest: output for output in outputs for digest in output.versions}
    named_by = {
        stage.layout.folder: stage.named_by.layout.folder for stage in stages() if isinstance(stage, InternalStage)
    }
    followed, future, listed, root = set[str](), set[str](), dict[str, set[str]](), OutputRoot(listing)
    waiting = [digest for output in outputs for digest in (output.current, *_kept(listing, output, policy, named_by))]
    while waiting:
        digest = waiting.pop()
        if digest is None or digest in followed or digest not in places:
            continue
        followed.add(digest)
        output = places[digest]
        if output.stage in named_by:
            waiting += held_by(root, output.folder / digest) if digest not in moving else []
            continue
        try:
            manifest = root.manifest_at(output.folder / digest)
            if manifest is None:
                raise MissingError("it has no manifest", where=output.folder / digest)
            waiting += map(str, manifest.recipe["parents"].values())
            if (stage := stage_of(manifest.stage, manifest.name)) is not None:
                waiting += stage.references(root, manifest)
            future.update(_unfinished_versions(manifest))
            if manifest.stage == STAGE:
                listed.setdefault(output.subject, set()).update(files_in_use(manifest))
        except (NanosetError, OSError, KeyError, TypeError, ValueError) as error:
            what = f"{error.where}: {error.what}" if isinstance(error, NanosetError) else repr(error)
            raise unreadable(output.folder / digest, what) from error
    return followed | future, listed


def _unfinished_versions(manifest: Manifest) -> Iterator[str]:
    """Yield digests of versions that a build may be making from a version right now."""
    for stage in stages():
        if isinstance(stage, Resumable) and (digest := stage.unfinished_version(manifest)) is not None:
            yield digest


def _unfinished_files(listing: FileAccess, output: Output, folder: Path) -> set[str] | None:
    """Return the files of an unfinished version, or None if some of them may not be ours."""
    stage = stage_of(output.stage, output.name)
    if stage is None:
        return None
    if isinstance(stage, Resumable):
        return stage.unfinished_files(listing, folder)
    return uploaded_files(stage.layout, listing, folder)


def _kept(listing: FileAccess, output: Output, policy: Policy, named_by: Mapping[str, str]) -> Iterator[str]:
    """Yield digests of the complete versions besides the current one that stay by their age or number."""
    namer = named_by.get(output.stage)
    since_ns = listing.written_ns(listing.folder.joinpath(namer or output.stage, output.name, CURRENT))
    dated = {digest: listing.written_ns(output.folder / digest / MANIFEST) for digest in output.versions}
    made = {digest: made_ns for digest, made_ns in dated.items() if made_ns and digest != output.current}
    yield from (digest for digest, made_ns in made.items() if policy.keeps(made_ns, since_ns))
    yield from sorted(made, key=lambda digest: (-made[digest], digest))[: policy.keep if namer is None else 0]


def _plan(project: Project, policy: Policy, leases: Mapping[str, str], moving: Container[str] = ()) -> Collection:
    """Judge all that is there; leases: name that is worked on → the process that does."""
    listing = project.outputs.access.listing()
    outputs = all_outputs(listing)
    needed, listed = _needed(listing, outputs, policy, moving)
    found = [
        _judge(listing, output, digest) for output in outputs for digest in output.versions if digest not in needed
    ]
    for nanoset in dict.fromkeys(output.subject for output in outputs if output.stage == STAGE):
        found += _judge_index_files(listing, nanoset, outputs, listed.get(nanoset, set()), policy)
    left = [item for item in found if isinstance(item, LeftAlone)]
    garbage = [item for item in found if isinstance(item, Garbage)]
    held = [item for item in garbage if item.subject in leases]
    left += (LeftAlone(item.path, str(_busy(leases, item.subject))) for item in held)
    left += _unasked(project, outputs)
    garbage = [item for item in garbage if item.subject not in leases]
    gone = {item.path for item in garbage}
    unfinished = [folder / name for folder, names in project.outputs.unfinished() for name in names]
    stored = (path for path in listing.unfinished() if path.parent not in gone)
    unfinished += [path for path in stored if _is_idle(listing.name(path), leases)]
    return Collection(tuple(garbage), tuple(left), tuple(unfinished), UNSEEN if listing.has_copies else None)


def _judge(listing: FileAccess, output: Output, digest: str) -> Garbage | LeftAlone:
    """Return Garbage where all in a version that nothing needs is ours, LeftAlone where that cannot be told."""
    folder, name = output.folder / digest, f"{output.stage}/{output.name}"
    try:
        manifest = read_manifest(folder, listing)
    except (FormatError, OSError) as error:
        return LeftAlone(folder, f"its manifest cannot be read: {getattr(error, 'what', error)}")
    if manifest is None:
        ours = _unfinished_files(listing, output, folder)
        why = "" if ours is not None else "it has no manifest, and no markers of nanoset"
    else:
        ours, made = {*manifest.files, MANIFEST}, f"{manifest.stage}/{manifest.name}/{manifest.digest}"
        why = "" if made == f"{name}/{digest}" else f"its manifest is that of {made}"
    if ours is None or why or _is_linked(listing, folder):
        return LeftAlone(folder, why or "a symbolic link leads to it")
    size = 0
    for file, entry in _files_below(listing, folder):
        if entry.is_link or (file not in ours and not file.rpartition("/")[2].startswith(UNFINISHED)):
            what = "a symbolic link" if entry.is_link else "a file that is not of nanoset"
            return LeftAlone(folder, f"it holds {what}: {file}")
        size += entry.size
    return Garbage(folder, name, output.subject, "unfinished" if manifest is None else "version", size)


def _judge_index_files(
    listing: FileAccess, nanoset: str, outputs: Sequence[Output], kept: set[str], policy: Policy
) -> Iterator[Garbage | LeftAlone]:
    """Yield every index file of a nanoset that no split lists that stays; what no note of ours lists is left alone."""
    place = f"{STAGE}/{nanoset}/{CACHE}"
    folder = listing.folder / place
    own = [output.folder for output in outputs if (output.stage, output.subject) == (STAGE, nanoset)]
    since_ns = max(listing.written_ns(output / CURRENT) for output in own)
    files = {name: entry for name, entry in _files_below(listing, folder) if not name.startswith(UNFINISHED)}
    ours = {name for note in files if note.endswith(_SIDECAR) for name in _listed(listing, folder, note)}
    linked = _is_linked(listing, folder)
    old = {name for name, entry in files.items() if name not in kept and not policy.keeps(entry.written_ns, since_ns)}
    if foreign := {name for name in old if linked or name not in ours or files[name].is_link}:
        size = sum(files[name].size for name in foreign)
        why = "that no note of ours lists, or that a symbolic link leads to"
        yield LeftAlone(folder, f"{format_count(len(foreign), 'file')} ({size:,} bytes) {why}, such as {min(foreign)}")
    # The notes go last: a collection that is cut short finds the rest by them.
    for name in sorted(old - foreign, key=lambda name: (name.endswith(_SIDECAR), "description" not in name, name)):
        yield Garbage(folder / name, place, nanoset, "cache file", files[name].size)


def _is_linked(listing: FileAccess, folder: Path) -> bool:
    """Return whether a symbolic link below the root leads to a folder."""
    places = (folder, *folder.parents)
    return any(map(listing.is_link, places[: places.index(listing.folder)]))


def _listed(listing: FileAccess, folder: Path, note: str) -> set[str]:
    """Return the files that a note of ours lists, itself among them; none of another's."""
    try:
        value = json.loads(listing.read_current(folder / note))
        return {note, *value["files"]} if isinstance(value["made_from"], dict) else set()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _files_below(listing: FileAccess, folder: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield (relative name, entry) of everything but folders; no link is followed."""
    for entry in listing.entries(folder):
        if not entry.is_link and entry.is_folder:
            yield from _files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _unasked(project: Project, outputs: Sequence[Output]) -> Iterator[LeftAlone]:
    """Yield outputs that nanoset.yaml or the raw folder no longer requests: they may be the only copies."""
    places = {(output.stage, output.subject) for output in outputs if output.current is not None}
    here = {subject for _, subject in places if project.config.corpus_folder(subject).is_dir()}
    nodes = requested_nodes(project.config, here)
    requested = {(node.stage.layout.folder, node.name.partition("/")[0]) for node in nodes}
    requested_by = _requesters()
    for folder, subject in sorted(places - requested):
        if folder in requested_by:
            place = project.outputs.folder / folder / subject
            yield LeftAlone(place, f"{requested_by[folder]} no longer asks for it; delete it if you do not need it")


def _requesters() -> dict[str, str]:
    """Return folder of a stage → what requests its outputs. A corpus is reported once, by its last stage."""
    requesters: dict[str, str] = {}
    for stage in stages():
        if not isinstance(stage, CorpusStage | InternalStage):
            requesters[stage.layout.folder] = "nanoset.yaml"
    corpus_stages = [stage for stage in stages() if isinstance(stage, CorpusStage)]
    requesters[corpus_stages[-1].layout.folder] = "the raw folder"
    return requesters


def folder_size(folder: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; links are not followed."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size
    return sum(entry.size for _, entry in _files_below(FileAccess(folder), folder))


def find_copies(project: Project, *, remove: bool = False) -> dict[Path, int]:
    """Return path → bytes of copies of what the bucket holds, except of outputs in work; perhaps remove them.

    A copy has the size of the object. Manifests and pointers stay: they are small, and needed by every command.
    ConfigError where the outputs do not live in a bucket.
    """
    access, copies = project.outputs.access, dict[Path, int]()
    if not access.has_copies:
        where, expected = f"{project.config.file}: root", "s3://bucket/prefix, of which this machine keeps copies"
        what, found = "these outputs are no copies", project.config.root
        raise ConfigError(what, where=where, found=found, expected=expected, remedy="leave out --copies")
    here = FileAccess(access.folder)
    with collecting(here) if remove else nullcontext(leased_names(here)) as busy:
        for stored in access.store.list() if access.folder.is_dir() else ():
            top, *rest = stored.name.split("/")
            if not rest or top == FOLDER or rest[0] in busy or rest[-1] in (MANIFEST, CURRENT):
                continue
            path = access.folder / stored.name
            if is_inside(stored.name) and path.is_file() and path.stat().st_size == stored.size:
                copies[path] = stored.size
        for path in copies if remove else ():
            path.unlink(missing_ok=True)
    return copies

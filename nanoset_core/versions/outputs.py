"""Which versions of outputs lie below a root, and which of them `nanoset gc` has to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.errors import FormatError, MissingError, NanosetError, StorageError
from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import MANIFEST, is_digest
from nanoset_core.outputs.root import CURRENT, OutputRoot, read_current
from nanoset_core.pipeline.mapping import index_files
from nanoset_core.pipeline.stages import stage_of, stages
from nanoset_core.storage.access import FileAccess

_DEEPEST = 4
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Output:
    """All versions of one output."""

    stage: str
    name: str
    folder: Path
    versions: dict[str, bool]
    """Digest → whether a symbolic link leads to its folder."""
    current: str | None
    """Digest of the current version; None where there is none."""
    problem: str | None
    """Why it cannot be told which version is the current one."""

    @property
    def subject(self) -> str:
        """The corpus, nanoset or webdataset that it belongs to."""
        return self.name.partition("/")[0]


def stage_folders() -> list[str]:
    """Return the folders of all stages below the root: first those of corpora, from which the others are made."""
    ordered = sorted(stages(), key=lambda stage: not stage.by_corpus)
    return list(dict.fromkeys(stage.folder for stage in ordered))


def find_outputs(listing: FileAccess) -> list[Output]:
    """List every output of a root by names alone, in the order of the stages; links are followed."""
    places = [(stage, listing.folder / stage) for stage in stage_folders()]
    return [output for stage, place in places for output in _outputs(listing, place, stage, "", listing.is_link(place))]


def _outputs(listing: FileAccess, folder: Path, stage: str, name: str, linked: bool) -> Iterator[Output]:
    entries = [entry for entry in listing.entries(folder) if entry.name[0] != "."]
    folders = [entry for entry in entries if entry.name != "current" and entry.is_folder]
    # A corpus may have a name that looks like a digest, but stands where no version can.
    versions = {entry.name: linked or entry.is_link for entry in folders if name and is_digest(entry.name)}
    pointed = any(entry.name == CURRENT for entry in entries)
    if versions or pointed:
        current = problem = None
        try:
            current = read_current(folder, listing) if pointed else None
        except FormatError as error:
            problem = f"{error.where}: {error.found}"
        yield Output(stage, name, folder, versions, current, problem)
    for entry in folders:
        is_cache = stage == opening.STAGE and entry.name == opening.CACHE and "/" not in name and name != ""
        if entry.name not in versions and not is_cache and name.count("/") < _DEEPEST:
            inner = f"{name}/{entry.name}" if name else entry.name
            yield from _outputs(listing, folder / entry.name, stage, inner, linked or entry.is_link)


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept though no current version needs it."""

    keep: int = 0
    """Older versions of each output."""
    newer_than_ns: int | None = None
    """Versions made after this moment, nanoseconds since 1970; None: age does not matter."""
    unfinished: bool = False
    """Whether versions newer than the current one, which belong to a build that has not ended, may go."""

    @staticmethod
    def of(keep: int, older_than_days: float | None, *, unfinished: bool, now_ns: int) -> Policy:
        """Return a policy by days."""
        limit = None if older_than_days is None else now_ns - int(min(older_than_days * _DAY_NS, now_ns))
        return Policy(keep, limit, unfinished)

    def keeps(self, written_ns: int, current_since_ns: int | None) -> bool:
        """Return whether something written at a moment stays by its age.

        Args:
            written_ns: the moment, nanoseconds since 1970.
            current_since_ns: when the current version became current; None where there is none.
        """
        is_newer = not self.unfinished and (current_since_ns is None or written_ns > current_since_ns)
        return is_newer or (self.newer_than_ns is not None and written_ns > self.newer_than_ns)


@dataclass(slots=True)
class Needed:
    """What has to stay."""

    digests: set[str] = field(default_factory=set)
    """Of versions, those included that will be made from others and may be in the making."""
    index_files: dict[str, set[str]] = field(default_factory=dict)
    """Nanoset → names of the files in its cache folder that its versions list."""


def find_needed(listing: FileAccess, outputs: list[Output], policy: Policy) -> Needed:
    """Follow every current version, and every other that the policy keeps, to all that it needs.

    Raises:
        StorageError: one of these cannot be read, so that it cannot be told what it needs.
    """
    places = {digest: output for output in outputs for digest in output.versions}
    named_by = {stage.folder: stage.named_by.folder for stage in stages() if stage.named_by is not None}
    folders = {(output.stage, output.name): output.folder for output in outputs}
    needed, followed, root = Needed(), set[str](), OutputRoot(listing)
    for output in outputs:
        if output.problem is not None:
            raise _unreadable(output, output.folder, output.problem)
        if output.current is not None and output.current not in places:
            raise _unreadable(output, output.folder / output.current, "this is the current version, but it is gone")
        namer = named_by.get(output.stage)
        pointer = folders.get((namer or output.stage, output.name), output.folder) / CURRENT
        keep = policy.keep if namer is None else 0
        kept = set(_kept(listing, output, policy, keep, listing.written_ns(pointer)))
        waiting = [*filter(None, [output.current]), *kept]
        while waiting:
            digest = waiting.pop()
            if digest in followed or digest not in places:
                continue
            folder = places[digest].folder / digest
            try:
                waiting += () if places[digest].stage in named_by else _needs(root, places[digest], folder, needed)
            except (NanosetError, OSError, KeyError, TypeError, ValueError) as error:
                if digest in kept:
                    continue  # nothing is known to need it, and what cannot be read is left alone
                what = f"{error.where}: {error.what}" if isinstance(error, NanosetError) else repr(error)
                raise _unreadable(output, folder, what) from error
            followed.add(digest)
    needed.digests |= followed
    return needed


def _kept(listing: FileAccess, output: Output, policy: Policy, keep: int, since_ns: int) -> Iterator[str]:
    """Yield digests of the complete versions besides the current one that stay by their age or number."""
    dated = {digest: listing.written_ns(output.folder / digest / MANIFEST) for digest in output.versions}
    made = {digest: made_ns for digest, made_ns in dated.items() if made_ns and digest != output.current}
    yield from (digest for digest, made_ns in made.items() if policy.keeps(made_ns, since_ns or None))
    yield from sorted(made, key=lambda digest: (-made[digest], digest))[:keep]


def _needs(root: OutputRoot, output: Output, folder: Path, needed: Needed) -> list[str]:
    """Return the digests that a version needs at first hand, and note what it will become and which files it lists."""
    manifest = root.manifest_at(folder)
    if manifest is None:
        raise MissingError("it has no manifest", where=folder)
    found = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:
        found += stage.references(root, manifest)
        needed.digests.update(stage.future_outputs(manifest))
    if manifest.stage == opening.STAGE:
        needed.index_files.setdefault(output.subject, set()).update(index_files(manifest))
    return found


def _unreadable(output: Output, place: Path, why: str) -> StorageError:
    what = "a version that is current, or that another one needs, cannot be read, so nothing is removed"
    remedy = f"run `nanoset build`, which makes it again, or delete {output.folder} if you do not need it"
    return StorageError(what, where=place, found=why, remedy=remedy)

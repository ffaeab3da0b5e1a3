"""Find the versions that `nanoset gc` has to keep.

They are the current versions, those that the policy keeps, and everything that these were made from
or refer to, directly or not.

Shards are special. There are many of them, so their manifests are only read if it matters: the set
of shards of a corpus lists its shards, and a shard refers to a dataset only if its tokens were
moved there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.project.existing import StoredOutput, unreadable
from nanoset_core.project.garbage import Policy
from nanoset_core.stages.registry import stage_of, stages
from nanoset_core.stages.stage import InternalStage, Resumable, SharesFiles
from nanoset_core.storage.access import FileAccess


@dataclass(slots=True)
class Needed:
    """The versions and files that have to stay."""

    digests: set[str] = field(default_factory=set)
    """Digests of versions, including those that a build may be making right now."""
    shared_files: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Folder of a stage, subject → names of the files, such as index files, that needed versions
    share.
    """


def find_needed(
    listing: FileAccess,
    outputs: Sequence[StoredOutput],
    policy: Policy,
    moving: Collection[str] = (),
) -> Needed:
    """Return every version that a current or kept version needs.

    Args:
        listing: Access to the root.
        outputs: All outputs below it.
        policy: Which versions are kept although they are not current.
        moving: Digests of shards whose tokens are about to move to the current dataset. They do not
            need the older dataset in which their tokens are now.

    Raises:
        StorageError: One of these versions cannot be read, so that it is not known what it needs.
    """
    root = OutputRoot(listing)
    output_by_digest: dict[str, StoredOutput] = {}
    for output in outputs:
        for version in output.versions:
            output_by_digest[version] = output
    lister_by_folder = _lister_by_folder()

    # Begin with the current versions and those that the policy keeps, and follow what they need.
    waiting: list[str | None] = []
    for output in outputs:
        waiting.append(output.current)
        waiting += _kept_versions(listing, output, policy, lister_by_folder)

    needed = Needed()
    unfinished: set[str] = set()
    while waiting:
        digest = waiting.pop()
        if digest is None or digest in needed.digests or digest not in output_by_digest:
            continue
        needed.digests.add(digest)
        output = output_by_digest[digest]
        if output.stage_folder in lister_by_folder:
            if digest not in moving:
                waiting += holders_of_tokens(root, output.folder / digest)
            continue

        needs = _read_needs(root, output.folder / digest)
        waiting += needs.versions
        unfinished.update(needs.unfinished)
        if needs.shared_files:
            files = needed.shared_files.setdefault((output.stage_folder, output.subject), set())
            files.update(needs.shared_files)

    # What an unfinished version needs is not followed: the version that it continues from needs it,
    # too.
    needed.digests |= unfinished
    return needed


class _VersionNeeds(NamedTuple):
    """What one version needs."""

    versions: Sequence[str]
    """Digests of the versions that it was made from or refers to."""
    unfinished: Sequence[str]
    """Digests of unfinished versions that a build may be making from it now."""
    shared_files: Collection[str]
    """Names of the files that it shares with other versions."""


def _read_needs(root: OutputRoot, folder: Path) -> _VersionNeeds:
    """Read from its manifest what a version needs.

    Raises:
        StorageError: The manifest cannot be read, or makes no sense.
    """
    try:
        manifest = root.manifest_at(folder)
        if manifest is None:
            raise MissingError("it has no manifest", where=folder)
        stage = stage_of(manifest.stage, manifest.name)
        shared_files: Collection[str] = ()
        if isinstance(stage, SharesFiles):
            shared_files = set(stage.shared_files(manifest))
        return _VersionNeeds(
            _needs_of(root, manifest), list(_unfinished_versions(manifest)), shared_files
        )
    except NanosetError as error:
        raise unreadable(folder, f"{error.where}: {error.what}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise unreadable(folder, repr(error)) from error


def _needs_of(root: OutputRoot, manifest: Manifest) -> list[str]:
    """Return the digests of the versions that a version was made from or refers to."""
    needs = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:
        needs += stage.references(root, manifest)
    return needs


def _lister_by_folder() -> dict[str, str]:
    """Return folder of an internal stage → folder of the stage whose manifests list its versions.

    Shards are such a stage: a corpus has many, and the set of shards lists the current ones.
    """
    lister_by_folder: dict[str, str] = {}
    for stage in stages():
        if isinstance(stage, InternalStage):
            lister_by_folder[stage.layout.folder] = stage.named_by.layout.folder
    return lister_by_folder


def _unfinished_versions(manifest: Manifest) -> Iterator[str]:
    """Yield the digests of unfinished versions that a build may be making from a version now."""
    for stage in stages():
        if isinstance(stage, Resumable):
            digest = stage.unfinished_version(manifest)
            if digest is not None:
                yield digest


def _kept_versions(
    listing: FileAccess, output: StoredOutput, policy: Policy, lister_by_folder: Mapping[str, str]
) -> Iterator[str]:
    """Yield the digests of old complete versions that the policy keeps, by age or by number.

    Args:
        listing: Access to the root.
        output: The output whose versions these are.
        policy: The policy.
        lister_by_folder: See `_lister_by_folder`.
    """
    # An internal stage has no pointer to a current version: the stage that lists its versions has
    # one, which says since when they are current.
    lister = lister_by_folder.get(output.stage_folder)
    pointer = listing.folder.joinpath(lister or output.stage_folder, output.name, CURRENT)
    current_since_ns = listing.written_ns(pointer)
    written_ns_by_digest: dict[str, int] = {}
    for digest in output.versions:
        written_ns = listing.written_ns(output.folder / digest / MANIFEST)
        if written_ns and digest != output.current:
            written_ns_by_digest[digest] = written_ns

    for digest, written_ns in written_ns_by_digest.items():
        if policy.keeps(written_ns, current_since_ns):
            yield digest
    if lister is None:
        newest_first = sorted(
            written_ns_by_digest,
            key=lambda digest: (-written_ns_by_digest[digest], digest),
        )
        yield from newest_first[: policy.keep]


def holders_of_tokens(outputs: OutputRoot, shard: Path) -> list[str]:
    """Return the digests of the datasets to which a shard's tokens were moved, if they were.

    Args:
        outputs: The root.
        shard: Folder of the shard.
    """
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:
        # A shard that cannot be read is rebuilt from the raw text.
        return []
    if manifest is None:
        return []
    return [Path(fact.within).parent.name for fact in manifest.files.values() if fact.within]

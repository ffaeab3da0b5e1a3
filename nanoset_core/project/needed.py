"""Which stored versions are needed.

These are the current ones, those kept by a policy, and all that they were made from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    """What has to stay."""

    digests: set[str] = field(default_factory=set)
    """Digests of versions, including those that a build may be making right now."""
    shared_files: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(folder of a stage, subject) → files that its versions share with each other, such as index
    files.
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
        moving: Digests of shards whose tokens are about to move to the current dataset: they need
            no older one.

    Raises:
        StorageError: One of these versions cannot be read, so that it is not known what it needs.
    """
    root = OutputRoot(listing)
    output_by_digest = {digest: output for output in outputs for digest in output.versions}
    lister_by_folder = _lister_by_folder()
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

        try:
            manifest = root.manifest_at(output.folder / digest)
            if manifest is None:
                raise MissingError("it has no manifest", where=output.folder / digest)
            waiting += _needs_of(root, manifest)
            unfinished.update(_unfinished_versions(manifest))
            stage = stage_of(manifest.stage, manifest.name)
            if isinstance(stage, SharesFiles):
                files = needed.shared_files.setdefault((output.stage_folder, output.subject), set())
                files.update(stage.shared_files(manifest))
        except (NanosetError, OSError, KeyError, TypeError, ValueError) as error:
            what = (
                f"{error.where}: {error.what}" if isinstance(error, NanosetError) else repr(error)
            )
            raise unreadable(output.folder / digest, what) from error
    # Not followed: what an unfinished version needs is needed by the version that it continues from
    # as well.
    needed.digests |= unfinished
    return needed


def _needs_of(root: OutputRoot, manifest: Manifest) -> list[str]:
    """Return the digests of what a version was made from, and of what it needs in addition."""
    needs = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:
        needs += stage.references(root, manifest)
    return needs


def _lister_by_folder() -> dict[str, str]:
    """Return folder of an internal stage → folder of the stage whose manifests list its versions."""
    return {
        stage.layout.folder: stage.named_by.layout.folder
        for stage in stages()
        if isinstance(stage, InternalStage)
    }


def _unfinished_versions(manifest: Manifest) -> Iterator[str]:
    """Yield digests of versions that a build may be making from a version right now."""
    for stage in stages():
        if isinstance(stage, Resumable):
            digest = stage.unfinished_version(manifest)
            if digest is not None:
                yield digest


def _kept_versions(
    listing: FileAccess, output: StoredOutput, policy: Policy, lister_by_folder: Mapping[str, str]
) -> Iterator[str]:
    """Yield digests of old complete versions that the policy keeps, by age or by number."""
    # Versions of an internal stage have no pointer: they are as old as the output that lists them.
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
            written_ns_by_digest, key=lambda digest: (-written_ns_by_digest[digest], digest)
        )
        yield from newest_first[: policy.keep]


def holders_of_tokens(outputs: OutputRoot, shard: Path) -> list[str]:
    """Return digests of the datasets that contain files of a version, such as a shard's tokens."""
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:  # what cannot be read is made again from its source
        return []
    if manifest is None:
        return []
    return [Path(fact.within).parent.name for fact in manifest.files.values() if fact.within]

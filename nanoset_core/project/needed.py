"""Find the versions that `nanoset gc` has to keep.

A version is one build of an output, in a folder whose name is a digest. `gc` keeps the current
versions, those that the user's policy keeps, and everything that these were made from or refer to,
directly or indirectly.

Shards are special. A corpus may have thousands, so what a shard was made from is not looked up: its
corpus's set of shards, which is also kept, was made from the same text. But a shard may have given
its tokens to a dataset. Then it needs that dataset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    """The versions and files that `nanoset gc` must not remove."""

    digests: set[str] = field(default_factory=set)
    """Digests of versions, including those that a build may be making right now."""
    shared_files: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """(folder of a stage, corpus or nanoset) → names of the files that needed versions share.

    Versions of a nanoset, for example, share the index files in its cache folder.
    """

    def add_shared_files(self, output: StoredOutput, names: Collection[str]) -> None:
        """Add files that a needed version of an output shares with other versions.

        Args:
            output: The output, such as the split `train` of a nanoset.
            names: Names of the files in the folder that the versions share.
        """
        if names:
            key = (output.stage_folder, output.subject)
            self.shared_files.setdefault(key, set()).update(names)


def find_needed(
    listing: FileAccess,
    outputs: Sequence[StoredOutput],
    policy: Policy,
    dropping: Collection[str] = (),
) -> Needed:
    """Return the versions that must stay: current ones, kept ones, and all that they need.

    Args:
        listing: Access to the output root.
        outputs: All outputs below the root, with the digests of their versions.
        policy: Which versions the user keeps although they are not current.
        dropping: Digests of shards that are about to use the tokens of the current dataset instead
            of an older one.

    Returns:
        Digests of the versions, and names of the files that they share with other versions.

    Raises:
        StorageError: One of these versions cannot be read, so that it is not known what it needs.
    """
    # Start with the versions that stay for their own sake.
    digests: list[str] = []
    for output in outputs:
        if output.current is not None:
            digests.append(output.current)
        digests += _kept_versions(listing, output, policy)

    # Then follow what these need.
    search = _NeedSearch(OutputRoot(listing), outputs, dropping)
    return search.all_needed_by(digests)


class _NeedSearch:
    """Follows what versions need to the versions that need nothing more."""

    def __init__(
        self, root: OutputRoot, outputs: Iterable[StoredOutput], dropping: Collection[str]
    ) -> None:
        """Prepare a search.

        Args:
            root: The output root.
            outputs: All outputs below the root, with the digests of their versions.
            dropping: Digests of shards that do not need a dataset for their tokens.
        """
        self._root = root
        self._internal_folders = _lister_by_folder().keys()  # such as that of shards
        self._dropping = dropping
        self._output_by_digest: dict[str, StoredOutput] = {}
        for output in outputs:
            self._output_by_digest |= dict.fromkeys(output.versions, output)

    def all_needed_by(self, digests: Iterable[str]) -> Needed:
        """Return versions and all that they need, directly or indirectly.

        For example, a nanoset needs the dataset that it was made from, and this its set of shards.

        Args:
            digests: The versions to start from, such as all current ones.
        """
        needed = Needed()
        # Versions that a build may be making from the needed ones. They are not visited, since all
        # that they need is also needed by what they are made from.
        unfinished: set[str] = set()
        to_visit = list(digests)
        while to_visit:
            digest = to_visit.pop()
            output = self._output_by_digest.get(digest)
            if output is None or digest in needed.digests:
                continue  # it was deleted, or is in the result already

            needed.digests.add(digest)
            needs = self._needs_of(output, digest)
            to_visit += needs.versions
            unfinished.update(needs.unfinished)
            needed.add_shared_files(output, needs.shared_files)  # such as index files for trainers

        needed.digests |= unfinished
        return needed

    def _needs_of(self, output: StoredOutput, digest: str) -> _VersionNeeds:
        """Return what one version of an output needs, directly.

        Args:
            output: The output.
            digest: Digest of the version.

        Raises:
            StorageError: The version cannot be read.
        """
        folder = output.folder / digest
        if output.stage_folder not in self._internal_folders:
            return _read_needs(self._root, folder)

        # An internal version, such as a shard. The set of shards that lists it needs all that it
        # was made from, so that need not be looked up. But if a shard has no tokens of its own, it
        # also needs the dataset that contains them.
        will_use_current_dataset = digest in self._dropping
        if will_use_current_dataset:
            return _VersionNeeds()  # the current dataset stays anyway
        return _VersionNeeds(versions=datasets_with_tokens_of(self._root, folder))


class _VersionNeeds(NamedTuple):
    """What one version needs."""

    versions: Sequence[str] = ()
    """Digests of the versions that it was made from or refers to."""
    unfinished: Sequence[str] = ()
    """Digests of unfinished versions that a build may be making from it now."""
    shared_files: Collection[str] = ()
    """Names of the files that it shares with other versions."""


def _read_needs(root: OutputRoot, folder: Path) -> _VersionNeeds:
    """Return what a version needs, by its manifest: other versions, and files that it shares.

    Args:
        root: The output root.
        folder: Folder of the version.

    Raises:
        StorageError: The manifest cannot be read, or makes no sense.
    """
    try:
        manifest = root.manifest_at(folder)
        if manifest is None:
            raise MissingError("it has no manifest", where=folder)
        return _needs_by_manifest(root, manifest)
    except NanosetError as error:
        raise unreadable(folder, f"{error.where}: {error.what}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise unreadable(folder, repr(error)) from error


def _needs_by_manifest(root: OutputRoot, manifest: Manifest) -> _VersionNeeds:
    """Return what a version needs, so that `nanoset gc` keeps it.

    Args:
        root: The output root.
        manifest: Manifest of the version.

    Returns:
        The versions that it was made from, those that a build may be making from it, and files that
        it shares with other versions.
    """
    # Such as the index files of a nanoset, which are in a folder of their own.
    shared_files: set[str] = set()
    stage = stage_of(manifest.stage, manifest.name)
    if isinstance(stage, SharesFiles):
        shared_files.update(stage.shared_files(manifest))

    # Such as the tars of a webdataset, of which a build has written some.
    unfinished = list(_unfinished_versions(manifest))
    return _VersionNeeds(_versions_needed_by(root, manifest), unfinished, shared_files)


def _versions_needed_by(root: OutputRoot, manifest: Manifest) -> list[str]:
    """Return the digests of the versions that a version was made from or refers to.

    For example, the recipe of a set of shards names an inventory of the text as its parent. The
    shards were made together with the set, which lists, and so refers to, their digests.

    Args:
        root: The output root, where files of the version may list what it refers to.
        manifest: Manifest of the version.
    """
    digests = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:  # None: a stage that this version of nanoset does not have
        digests += stage.references(root, manifest)
    return digests


def _lister_by_folder() -> dict[str, str]:
    """Return which stage lists the versions of each internal stage.

    An internal stage, such as that of shards, makes many versions that are used at the same time.
    The manifest of another output, such as the set of shards of a corpus, lists them.

    Returns:
        Folder of the internal stage → folder of the stage that lists its versions.
    """
    lister_by_folder: dict[str, str] = {}
    for stage in stages():
        if isinstance(stage, InternalStage):
            lister = stage.named_by  # its manifests name the versions of the internal stage
            lister_by_folder[stage.layout.folder] = lister.layout.folder
    return lister_by_folder


def _unfinished_versions(manifest: Manifest) -> Iterator[str]:
    """Yield versions that a build may have begun to make from a version, but has not finished.

    For example, the tars of a webdataset are written from its plan, perhaps over several builds.
    From the manifest of the plan, the stage of tars knows the digest that the tars will have.

    Args:
        manifest: Manifest of the version, such as the plan.

    Yields:
        Digests of the unfinished versions.
    """
    for stage in stages():
        if isinstance(stage, Resumable):
            digest = stage.unfinished_version(manifest)
            if digest is not None:  # None: this stage makes nothing from such a version
                yield digest


def _kept_versions(listing: FileAccess, output: StoredOutput, policy: Policy) -> Iterator[str]:
    """Yield the old complete versions of an output that the user's policy keeps.

    Args:
        listing: Access to the root.
        output: The output.
        policy: How many old versions are kept, and of which age.

    Yields:
        Their digests. One that is kept for two reasons comes twice.
    """
    # Keep versions because of their age.
    current_since_ns = _current_since_ns(listing, output)
    written_ns_by_digest = _old_complete_versions(listing, output)
    for digest, written_ns in written_ns_by_digest.items():
        if policy.keeps(written_ns, current_since_ns):
            yield digest

    # Keep a number of versions, the newest ones. This makes no sense for shards, of which a corpus
    # uses many at the same time.
    is_internal = output.stage_folder in _lister_by_folder()
    if not is_internal:
        yield from _newest_first(written_ns_by_digest)[: policy.keep]


def _current_since_ns(listing: FileAccess, output: StoredOutput) -> int:
    """Return since when the current version of an output is current, in ns since 1970.

    A small file, `current.json`, names the current version, and was written at that time.

    Args:
        listing: Access to the root.
        output: The output.
    """
    # Shards have no such file, since many are used at the same time. They are used since the set of
    # shards that lists them is current: take the time of that set.
    lister_folder = _lister_by_folder().get(output.stage_folder)
    folder_with_pointer = lister_folder or output.stage_folder
    pointer = listing.folder.joinpath(folder_with_pointer, output.name, CURRENT)
    return listing.written_ns(pointer)


def _old_complete_versions(listing: FileAccess, output: StoredOutput) -> dict[str, int]:
    """Return when each version of an output was written that is complete and not current.

    Args:
        listing: Access to the root.
        output: The output.

    Returns:
        Digest → time of its manifest in ns. A version without a manifest is not complete.
    """
    written_ns_by_digest: dict[str, int] = {}
    for digest in output.versions:
        written_ns = listing.written_ns(output.folder / digest / MANIFEST)
        is_complete = written_ns > 0
        if is_complete and digest != output.current:
            written_ns_by_digest[digest] = written_ns
    return written_ns_by_digest


def _newest_first(written_ns_by_digest: Mapping[str, int]) -> list[str]:
    """Return digests by the times at which they were written; equal times by the digests."""
    return sorted(written_ns_by_digest, key=lambda digest: (-written_ns_by_digest[digest], digest))


def datasets_with_tokens_of(outputs: OutputRoot, shard: Path) -> list[str]:
    """Return the digests of the datasets that contain the tokens of a shard, if it has none itself.

    A shard is the tokens of a range of a corpus's text. To save space, `nanoset gc` may delete its
    file, and record instead which bytes of a dataset's file are the same tokens.

    Args:
        outputs: The output root.
        shard: Folder of the shard.

    Returns:
        The digests; empty if the shard has its own tokens, or is damaged.
    """
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:
        return []  # the shard is damaged, and will be rebuilt from the raw text
    if manifest is None:
        return []

    digests = []
    for file in manifest.files.values():
        if file.within is not None:
            # This file is a range of another one, such as datasets/web/<digest>/web.bin.
            dataset_folder = Path(file.within).parent
            digests.append(dataset_folder.name)
    return digests

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
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.made_from import sources_of
from nanoset_core.project.stored_outputs import StoredOutput, unreadable
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
            key = (output.stage_folder, output.leased_name)
            self.shared_files.setdefault(key, set()).update(names)


def find_needed(
    listing: FileAccess,
    outputs: Sequence[StoredOutput],
    policy: Policy,
    kept_handoffs: Collection[str],
    ignored_shards: Collection[str] = (),
) -> Needed:
    """Return which versions of outputs must not be deleted, because they are used or wanted.

    A version is one build of an output. Needed are the current version of each output, old versions
    that the user wants to keep, and what all of these were made from or refer to.

    Args:
        listing: Access to the output folder.
        outputs: All outputs in it, with the digests that name their versions.
        policy: Which old versions the user wants to keep.
        kept_handoffs: Digests of handoffs (the arguments that trainers are started with) that the
            user wants to keep, because training runs were started with them.
        ignored_shards: Digests of shards (tokenized pieces of text) for which nothing is kept. They
            are not read.

    Raises:
        StorageError: One of these versions cannot be read, so that it is not known what it needs.
    """
    # Start with the versions that stay for their own sake.
    digests = list(kept_handoffs)
    for output in outputs:
        if output.current is not None:
            digests.append(output.current)
        digests += _old_versions_to_keep(listing, output, policy)

    # Then follow what these need.
    search = _NeedSearch(OutputRoot(listing), outputs, ignored_shards)
    return search.all_needed_by(digests)


def digests_of_pieces(outputs: Iterable[StoredOutput]) -> set[str]:
    """Return the digests of all shards, and of other small pieces that large outputs consist of.

    For example, a text is tokenized in thousands of shards, and has a table for each of them:

        shards/web             {3f9c…, 81aa…}
        attribute_tables/web   {c04d…, 77b0…}     result: all four
        datasets/web           {a07e…}            left out: one large output

    Args:
        outputs: All outputs in the output folder, with the digests of their versions.
    """
    folders_of_pieces = _lister_by_folder().keys()
    digests: set[str] = set()
    for output in outputs:
        if output.stage_folder in folders_of_pieces:
            digests |= output.versions
    return digests


class _NeedSearch:
    """Follows what versions need to the versions that need nothing more."""

    def __init__(
        self,
        root: OutputRoot,
        outputs: Iterable[StoredOutput],
        ignored_shards: Collection[str],
    ) -> None:
        """Prepare a search.

        Args:
            root: The output root.
            outputs: All outputs below the root, with the digests of their versions.
            ignored_shards: Digests of shards (tokenized pieces of text) whose needs do not count.
        """
        self._root = root
        self._ignored_shards = ignored_shards
        self._folders_of_pieces = _lister_by_folder().keys()  # such as "shards"
        self._output_by_digest: dict[str, StoredOutput] = {}
        for output in outputs:
            self._output_by_digest |= dict.fromkeys(output.versions, output)

    def all_needed_by(self, digests: Iterable[str]) -> Needed:
        """Return some versions of outputs, and all that they need, directly or indirectly.

        For example, an index for training needs the dataset that it was made from, and this needs a
        list of raw files. So the index needs both.

        Args:
            digests: The versions to start from, such as all that are current.

        Returns:
            Digests of the versions, and names of files that they share with other versions.
        """
        needed = Needed()
        unfinished_digests: set[str] = set()
        digests_to_visit = list(digests)
        while digests_to_visit:
            digest = digests_to_visit.pop()
            output = self._output_by_digest.get(digest)
            if output is None or digest in needed.digests:
                continue  # it was deleted, or is in the result already

            needed.digests.add(digest)
            needs = self._needs_of(output, digest)
            digests_to_visit += needs.versions
            needed.add_shared_files(output, needs.shared_files)  # such as index files for trainers
            # Versions that a build may be making from this one now. They need nothing else.
            unfinished_digests.update(needs.unfinished)

        needed.digests |= unfinished_digests
        return needed

    def _needs_of(self, output: StoredOutput, digest: str) -> _VersionNeeds:
        """Return which other versions a version of an output needs, so that they are kept.

        A shard is a tokenized piece of text. To save space, its file may be deleted when a dataset
        has the same tokens. Then it needs the dataset:

            a dataset                        needs what it was made from
            a shard with a file of tokens    needs nothing: it was made from raw text
            a shard without                  needs the dataset that has its tokens

        Args:
            output: The output.
            digest: The digest that names the version.

        Raises:
            StorageError: The version cannot be read.
        """
        folder = output.folder / digest
        is_shard_or_similar = output.stage_folder in self._folders_of_pieces
        if not is_shard_or_similar:
            return _read_needs(self._root, folder)
        if digest in self._ignored_shards:
            return _VersionNeeds()
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
    """Read what a version of an output needs: the versions it was made from, and shared files.

    `nanoset gc`, which deletes what nothing needs, calls this for all versions that stay. If one of
    them cannot be read, it stops, rather than to delete what that version may need.

    Args:
        root: The output folder of the project.
        folder: Folder of the version. Its manifest, a JSON file, says what it was made from.

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
    """Return what a version of an output needs, so that `nanoset gc` does not delete it.

    Args:
        root: The output folder of the project.
        manifest: The manifest of the version, which says what it was made from.
    """
    shared_files: set[str] = set()
    stage = stage_of(manifest.stage, manifest.name)  # the code that makes outputs of its kind
    if isinstance(stage, SharesFiles):
        # Its versions share files in a common folder, such as the order of the samples.
        shared_files.update(stage.shared_files(manifest))

    return _VersionNeeds(
        versions=sources_of(root, manifest).digests,  # what it was made from
        unfinished=_unfinished_versions(manifest),  # what is being made from it
        shared_files=shared_files,
    )


def _lister_by_folder() -> dict[str, str]:
    """Return the outputs that consist of many small pieces, and where these pieces are listed.

    For example, a text is tokenized in thousands of shards, in the folder `shards`. Another output,
    in the folder `tokenized`, is the list of the shards in use.

    Returns:
        Folder of the pieces → folder of the lists, such as {"shards": "tokenized"}.
    """
    lister_by_folder: dict[str, str] = {}
    for stage in stages():  # a stage is the code that makes one kind of output
        if isinstance(stage, InternalStage):  # it makes such pieces
            listing_stage = stage.listed_by
            lister_by_folder[stage.layout.folder] = listing_stage.layout.folder
    return lister_by_folder


def _unfinished_versions(manifest: Manifest) -> list[str]:
    """Return what a build may be making from a version right now, so that it is not deleted.

    Large outputs, such as tars of training samples, are written by several builds in turn. As long
    as some tars are missing, the output looks like garbage, because no other output refers to it:

        shuffle_plans/web/77b0…    the plan: which samples go into which tar
        webdatasets/web/81aa…      the tars by this plan, 20 of 100 so far

    The plan is needed. So for the plan, this returns ["81aa…"].

    Args:
        manifest: Describes a complete version, such as the plan.

    Returns:
        The names (digests) of unfinished versions. They may not have been begun yet.
    """
    digests = []
    for stage in stages():  # a stage is the code that makes one kind of output
        if isinstance(stage, Resumable):
            # The digest of the tars is a hash of what they are made from, which includes the digest
            # of the plan. So it can be computed, whether there are tars or not. It is None if the
            # stage makes nothing from this version.
            digest = stage.unfinished_version(manifest)
            if digest is not None:
                digests.append(digest)
    return digests


def _old_versions_to_keep(
    listing: FileAccess, output: StoredOutput, policy: Policy
) -> Iterator[str]:
    """Yield the old versions of an output that `nanoset gc` keeps because the user wants so.

    For example, with the options "keep 1" and "keep what is younger than 30 days":

        version 3f9c…    made 50 days ago, replaced 40 days ago    deleted
        version 81aa…    made 40 days ago, replaced 35 days ago    kept: the newest old version
        version c04d…    made 35 days ago                          current, not yielded here

    Args:
        listing: Access to the output folder.
        output: The output. A version of it is one build.
        policy: The options.

    Yields:
        Digests that name the versions. One that is kept for two reasons comes twice.
    """
    # Since when is the current version in use? Since the file that names it was written, such as
    # datasets/web/current.json. The folder "shards" (tokenized pieces of texts) has no such file,
    # as many shards are in use. For these, take the file of the output that lists them.
    lister_by_folder = _lister_by_folder()
    is_shard = output.stage_folder in lister_by_folder
    folder = lister_by_folder.get(output.stage_folder, output.stage_folder)
    current_file = listing.folder.joinpath(folder, output.name, CURRENT)
    current_since_ns = listing.written_ns(current_file)  # 0 if there is no such file

    # Keep versions because of their age. One that is newer than the current one is kept, too, since
    # a build may be about to make it current.
    written_ns_by_digest = _old_complete_versions(listing, output)
    # Nothing replaces a shard: it is kept as long as a list that contains it.
    times = [] if is_shard else [*written_ns_by_digest.values(), current_since_ns]
    for digest, written_ns in written_ns_by_digest.items():
        # A version was in use until the next one was made, or an older one became current again.
        replaced_ns = min((time for time in times if time > written_ns), default=None)
        if policy.keeps(written_ns, current_since_ns, replaced_ns):
            yield digest

    # Keep a number of versions, the newest ones. This makes no sense for shards: each is a version,
    # and many are in use at the same time.
    if not is_shard:
        newest_first = _newest_first(written_ns_by_digest)
        yield from newest_first[: policy.keep]


def _old_complete_versions(listing: FileAccess, output: StoredOutput) -> dict[str, int]:
    """Return the old versions of an output, and when each was written.

    Every build of an output, such as a dataset, makes a version. At its end, the build writes a
    manifest, a file that describes the version. Versions without one are incomplete, and left out
    here, and so is the current version.

    Args:
        listing: Access to the output folder.
        output: The output.

    Returns:
        Digest that names a version → time of its manifest, in nanoseconds since 1970, such as
        {"3f9c…": 1767225600000000000}.
    """
    written_ns_by_digest: dict[str, int] = {}
    for digest in output.versions:
        if digest == output.current:
            continue
        written_ns = listing.written_ns(output.folder / digest / MANIFEST)
        has_manifest = written_ns > 0  # 0 means that the file does not exist
        if has_manifest:
            written_ns_by_digest[digest] = written_ns
    return written_ns_by_digest


def _newest_first(written_ns_by_digest: Mapping[str, int]) -> list[str]:
    """Return digests by the times at which they were written; equal times by the digests."""
    return sorted(written_ns_by_digest, key=lambda digest: (-written_ns_by_digest[digest], digest))


def datasets_with_tokens_of(outputs: OutputRoot, shard: Path) -> list[str]:
    """Return which datasets have to stay because a shard reads its tokens from them.

    A shard, which is a tokenized piece of text, usually has a file of its own. To save space,
    `nanoset gc` may delete that, since the dataset has the same tokens.

    Args:
        outputs: The output folder of the project.
        shard: Folder of the shard.

    Returns:
        Digests that name the datasets, such as ["3f9c…"]; none if the shard has its own file, or is
        damaged.
    """
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:
        return []  # the shard is damaged, and will be made again from the raw text
    if manifest is None:
        return []  # the shard was deleted

    digests = []
    for file in manifest.files.values():
        if file.within is not None:  # it is a part of datasets/web/3f9c…/web.bin
            dataset_folder = Path(file.within).parent
            digests.append(dataset_folder.name)  # 3f9c…
    return digests

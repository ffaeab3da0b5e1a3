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
    ignored_shards: Collection[str] = (),
) -> Needed:
    """Return which versions of outputs must not be deleted, because they are used or wanted.

    Every build of an output, such as a dataset, is kept as a version, whose name is a digest. Three
    kinds of versions are needed:

        the current version of each output
        old versions that the user wants to keep, such as the last two
        what these were made from, or refer to: a current view (selection of documents) may still
            refer to an old dataset

    Args:
        listing: Access to the output folder.
        outputs: All outputs in it, with the digests of their versions.
        policy: Which old versions the user wants to keep.
        ignored_shards: Digests of shards, which are tokenized pieces of a text collection, whose
            needs do not count: what only they need is not needed.

    Raises:
        StorageError: One of these versions cannot be read, so that it is not known what it needs.
    """
    # Start with the versions that stay for their own sake.
    digests: list[str] = []
    for output in outputs:
        if output.current is not None:
            digests.append(output.current)
        digests += _old_versions_to_keep(listing, output, policy)

    # Then follow what these need.
    search = _NeedSearch(OutputRoot(listing), outputs, ignored_shards)
    return search.all_needed_by(digests)


class _NeedSearch:
    """Follows what versions need to the versions that need nothing more."""

    def __init__(
        self, root: OutputRoot, outputs: Iterable[StoredOutput], ignored_shards: Collection[str]
    ) -> None:
        """Prepare a search.

        Args:
            root: The output root.
            outputs: All outputs below the root, with the digests of their versions.
            ignored_shards: Digests of shards whose needs do not count.
        """
        self._root = root
        self._ignored_shards = ignored_shards
        self._internal_folders = _lister_by_folder().keys()  # such as "shards"
        self._output_by_digest: dict[str, StoredOutput] = {}
        for output in outputs:
            self._output_by_digest |= dict.fromkeys(output.versions, output)

    def all_needed_by(self, digests: Iterable[str]) -> Needed:
        """Return some versions of outputs, and all that they need, directly or indirectly.

        A version is one build of an output, and is named by a digest. For example, an index for
        training needs the dataset that it was made from, and this needs a list of raw files:

            index 55d0…  →  dataset 3f9c…  →  list of files 81aa…

        Starting from 55d0…, the search finds all three.

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
            unfinished_digests.update(needs.unfinished)

        # Keep versions that a build may be writing now, too. Do not visit them: what they are made
        # from was visited, since that is how they were found.
        needed.digests |= unfinished_digests
        return needed

    def _needs_of(self, output: StoredOutput, digest: str) -> _VersionNeeds:
        """Return which other builds a build of an output needs, so that these stay, too.

        Most builds need what they were made from. Shards are an exception. They are the pieces in
        which text is tokenized, and all shards of a text are joined to a dataset. So all tokens are
        stored twice. To save space, the file of a shard can be deleted. Then the shard has its
        tokens in the dataset, and needs it, although the dataset was made from the shard:

            shard 1    has its own file                                     needs nothing
            shard 2    its tokens are bytes 4,000 to 6,000 of the dataset   needs the dataset

        Args:
            output: The output.
            digest: The digest that names the build.

        Raises:
            StorageError: The build cannot be read.
        """
        folder = output.folder / digest
        is_shard = output.stage_folder in self._internal_folders  # or a similar piece of an output
        if not is_shard:
            return _read_needs(self._root, folder)
        if digest in self._ignored_shards:
            # The caller does not want its needs. For example, `nanoset gc` is about to let it read
            # from a newer dataset, so it will not need its present one any more.
            return _VersionNeeds()

        # A shard also needs the list of raw files that it was made from. The search finds that in
        # another way: a list of all shards exists, too, and was made from the same list of files.
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

    There are three kinds of needs:

        versions      what it was made from:          an index was made from a dataset
        shared files  files in a common folder:       two indexes use the same shuffled order
        unfinished    what is being made from it:     tar files are written from a plan, perhaps by
                                                      a build that is still running

    Args:
        root: The output folder of the project.
        manifest: The manifest of the version, which says what it was made from.
    """
    shared_files: set[str] = set()
    stage = stage_of(manifest.stage, manifest.name)  # the code that makes outputs of its kind
    if isinstance(stage, SharesFiles):
        shared_files.update(stage.shared_files(manifest))

    return _VersionNeeds(
        versions=_versions_needed_by(root, manifest),
        unfinished=_unfinished_versions(manifest),
        shared_files=shared_files,
    )


def _versions_needed_by(root: OutputRoot, manifest: Manifest) -> list[str]:
    """Return the builds that one build of an output needs: it was made from them or lists them.

    Most outputs only need what they were made from. The manifest of a build names that as
    "parents". But a few outputs are lists of others. For example, text is tokenized in thousands of
    pieces, the shards, and another output lists them:

        its parents         the list of raw files, 81aa…
        what it lists       the shards 02bd…, 9e41…, c7f0… and so on

    Args:
        root: The output folder of the project, where the list is stored.
        manifest: Manifest of the build, a file that describes it.

    Returns:
        Digests that name the builds, here ["81aa…", "02bd…", "9e41…", "c7f0…", …].
    """
    digests = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)  # the code that makes outputs of its kind
    if stage is not None:  # None: a kind that this version of nanoset does not have
        digests += stage.references(root, manifest)
    return digests


def _lister_by_folder() -> dict[str, str]:
    """Return the outputs that consist of many small pieces, and where these pieces are listed.

    For example, a text collection is tokenized in thousands of pieces, the shards. They are in
    folders of their own, and another output, `tokenized`, is the list of the shards in use:

        shards/web/02bd…    a shard
        shards/web/9e41…    another one
        tokenized/web/…     the list: 02bd…, 9e41…

    Returns:
        Folder of the pieces → folder of the lists, such as {"shards": "tokenized"}.
    """
    lister_by_folder: dict[str, str] = {}
    for stage in stages():  # a stage is the code that makes one kind of output
        if isinstance(stage, InternalStage):
            listing_stage = stage.named_by
            lister_by_folder[stage.layout.folder] = listing_stage.layout.folder
    return lister_by_folder


def _unfinished_versions(manifest: Manifest) -> list[str]:
    """Return what a build may be making from a version right now, so that it is not deleted.

    Some outputs are so large that several builds write them bit by bit, such as the tar files of a
    webdataset. What they will have is written down first, in a plan:

        plan 55d0…    complete
        tars 81aa…    200 of 1,000 are written

    The folder of the tars is not complete, so it looks like garbage, and no output refers to it.
    But its name 81aa… is a hash of what the tars are made from, which includes the plan. So it can
    be computed from the plan. As long as the plan is needed, this folder stays.

    Args:
        manifest: The manifest of a complete version, such as the plan, which describes it.

    Returns:
        The names (digests) of unfinished versions, such as ["81aa…"]. They need not exist.
    """
    digests = []
    for stage in stages():  # a stage is the code that makes one kind of output
        if isinstance(stage, Resumable):
            digest = stage.unfinished_version(manifest)
            if digest is not None:  # None: it makes nothing from such a version
                digests.append(digest)
    return digests


def _old_versions_to_keep(
    listing: FileAccess, output: StoredOutput, policy: Policy
) -> Iterator[str]:
    """Yield the old versions of an output that stay although nothing needs them.

    Every build of an output, such as a dataset, is kept as a version until `nanoset gc` deletes it.
    The options of `nanoset gc` say which old ones to keep. For example, with "keep 1" and "keep
    what is younger than 30 days":

        version 3f9c…    40 days old    deleted
        version 81aa…    35 days old    stays: the newest one of the old versions
        version c04d…    today          current, so it stays anyway, and is not yielded here

    Args:
        listing: Access to the output folder.
        output: The output.
        policy: The options.

    Yields:
        Digests that name the versions. One that stays for two reasons comes twice.
    """
    # Keep versions because of their age. A version that is newer than the current one also stays,
    # since a build may be about to make it current.
    current_since_ns = _current_since_ns(listing, output)
    written_ns_by_digest = _old_complete_versions(listing, output)
    for digest, written_ns in written_ns_by_digest.items():
        if policy.keeps(written_ns, current_since_ns):
            yield digest

    # Keep a number of versions, the newest ones. This makes no sense for shards, the pieces in
    # which text is tokenized: each of them is a version, and many are in use at the same time.
    is_shard = output.stage_folder in _lister_by_folder()
    if not is_shard:
        newest_first = _newest_first(written_ns_by_digest)
        yield from newest_first[: policy.keep]


def _current_since_ns(listing: FileAccess, output: StoredOutput) -> int:
    """Return since when the current version of an output is in use, in ns since 1970.

    When a build makes a version current, it writes the name of the version to a small file. The
    time of this file is the result:

        output                     file                          names
        dataset of web             datasets/web/current.json     its current version
        list of shards of web      tokenized/web/current.json    its current version
        shards of web              tokenized/web/current.json    the current list

    Shards are the pieces in which text is tokenized. Many of them are in use at the same time, so
    they have no such file of their own. They are in use since their list is.

    Args:
        listing: Access to the output folder.
        output: The output, such as the dataset of `web`, or its shards.

    Returns:
        The time; 0 if there is no current version.
    """
    # Outputs such as shards, each with the output that lists them: {"shards": "tokenized", …}
    lister_by_folder = _lister_by_folder()
    folder_with_pointer = output.stage_folder
    if output.stage_folder in lister_by_folder:
        folder_with_pointer = lister_by_folder[output.stage_folder]
    pointer = listing.folder.joinpath(folder_with_pointer, output.name, CURRENT)
    return listing.written_ns(pointer)


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
    """Return which datasets have to stay because a shard has its tokens there.

    A shard has the tokens of a piece of a text collection. All shards are joined to a dataset, so
    the tokens are stored twice. To save space, `nanoset gc` may delete the file of a shard, and
    write into the shard's manifest (the file that describes it) where else the tokens are:

        tokens.bin    within datasets/web/3f9c…/web.bin, bytes 4,000 to 6,000

    Args:
        outputs: The output folder of the project.
        shard: Folder of the shard.

    Returns:
        Digests that name the datasets, such as ["3f9c…"]. There is none if the shard has its own
        file, or is damaged.
    """
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:
        return []  # the shard is damaged, and will be made again from the raw text
    if manifest is None:
        return []  # the shard was deleted

    digests = []
    for file in manifest.files.values():
        if file.within is not None:
            dataset_folder = Path(file.within).parent  # datasets/web/3f9c…
            digests.append(dataset_folder.name)
    return digests

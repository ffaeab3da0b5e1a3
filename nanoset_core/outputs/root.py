"""The folder of all outputs, the root: find, publish and read versions of outputs.

An output, such as the dataset of the corpus `web`, may have several versions. The folder of each is
named by the digest of its recipe; `current.json` names the current version, which is in use:

    <root>/datasets/web/<digest>/manifest.json
    <root>/datasets/web/<digest>/web_text_document.bin
    <root>/datasets/web/current.json
    <root>/datasets/web/current -> <digest>

The root is a local folder or a prefix in a bucket. For a bucket, `OutputRoot.folder` is a local
folder for copies of its files: a new version is written there first, and then uploaded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    StoredManifest,
    Written,
    no_manifest,
    read_manifest,
)
from nanoset_core.records.digests import is_digest
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import (
    UNFINISHED,
    can_make_links,
    point_to,
    published_folder,
    sha256_file,
    sweep_abandoned,
    write_atomic,
)
from nanoset_core.storage.copies.worker_folders import for_a_task
from nanoset_core.storage.location import (
    copies_folder,
    is_remote,
    path_on_this_machine,
    remote_location,
)
from nanoset_core.storage.many_folders import call_for_folders
from nanoset_core.storage.removing.removals import remove_file
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.writing.uploads import publish_folder, write_small_file
from nanoset_core.untrusted import shell_word, shortened

R = TypeVar("R")
CURRENT = "current.json"
"""File next to the versions of an output that names the current one."""
CURRENT_LINK = "current"
"""Symbolic link next to this file that leads to the current version. It is for other programs."""
BUILD_AGAIN = "run `nanoset build`, which rebuilds it"
"""Remedy for a version that is missing."""
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""
SEEN_SECONDS = 10.0
"""For so long a version that was found or made is not looked up again.

After this time at the latest, a process sees what other machines have built.
"""

_MOST_SEEN = 256
"""So many versions are remembered, at most."""

Writing = Callable[[Path], Written]
"""Function that writes the files of an output to a folder; see `OutputRoot.commit`."""


class StorePlace(NamedTuple):
    """Where to write a file: a store, which is a local folder or a bucket, and a name in it."""

    store: Store
    name: str


class _SeenVersion(NamedTuple):
    """A version that was found or made."""

    looked_up_at: float
    """By the monotonic clock, in seconds."""
    manifest: Manifest


class Seen(OrderedDict[Path, _SeenVersion]):
    """The versions that this process has found or made a short time ago.

    The steps of a run look up the same outputs again and again. This memory spares a bucket these
    requests. It has two kinds of keys:

        datasets/web           the current version of this output
        datasets/web/3f9c…     this version, whether or not it is current

    Methods that change an output remove it from the memory. There may be 100,000 versions, so only
    the latest ones are in it.
    """

    def add(self, folder: Path, manifest: Manifest) -> None:
        """Remember a version from now on.

        Args:
            folder: The key.
            manifest: Manifest of the version.
        """
        self[folder] = _SeenVersion(time.monotonic(), manifest)
        self.move_to_end(folder)
        if len(self) > _MOST_SEEN:
            self.popitem(last=False)  # the oldest one

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        """Pickle the memory as an empty one, so that another process looks for itself."""
        return Seen, ()


class ExistingVersion(NamedTuple):
    """What was found in the folder of a version."""

    looked_up_at: float
    """By the monotonic clock, in seconds."""
    manifest: Manifest | None
    """The manifest of a complete version; None if it is missing or damaged, or if files are."""
    has_no_manifest: bool
    """Whether there was no manifest at all."""

    def is_recent(self) -> bool:
        """Return whether it was looked up so recently that this need not be done again."""
        return time.monotonic() - self.looked_up_at < SEEN_SECONDS

    def is_surely_missing(self) -> bool:
        """Return whether it was missing so recently that no other machine has stored it since."""
        return self.has_no_manifest and self.is_recent()


@dataclass(frozen=True, slots=True)
class OutputRoot:
    """The folder that contains every output, each version at <stage>/<name>/<digest>/."""

    access: FileAccess
    """How the files are read and written."""
    rebuild: bool = False
    """Whether outputs are rebuilt even if they are complete."""
    seen: Seen | None = field(default=None, compare=False, repr=False)
    """Versions in a bucket that were found or made recently; None to ask each time."""

    @property
    def folder(self) -> Path:
        """Absolute path of the outputs, or of their local copies."""
        return self.access.folder

    @property
    def local(self) -> OutputRoot:
        """The outputs that are in the local folder; for a bucket, those that have copies there."""
        return OutputRoot(FileAccess(self.folder), self.rebuild)

    def place(self, recipe: Recipe) -> Path:
        """Return the local folder of a recipe's output, whether or not the output exists.

        Args:
            recipe: What the output is made from: its inputs and settings.

        Returns:
            For example `<root>/datasets/web/<digest of the recipe>`.
        """
        return self.folder / recipe.stage / recipe.name / recipe.digest

    def find(self, recipe: Recipe) -> Manifest | None:
        """Return the complete output of a recipe, or None if it is missing or damaged.

        Args:
            recipe: What the output is made from: its inputs and settings.
        """
        return self.find_at(self.place(recipe))

    def find_at(self, place: Path) -> Manifest | None:
        """Return the output in a folder, or None if it is not there or not whole.

        The manifest of an output is a JSON file that lists its files with their sizes, such as
        web.bin with 80 bytes. If the manifest or a file is missing, or a file has another size, the
        output is not whole.

        Args:
            place: Folder of the output. For outputs in a bucket, the folder for local copies of its
                files.
        """
        try:
            manifest = self.manifest_at(place)
        except FormatError:
            return None
        if manifest is None or not self.is_whole(manifest, place):
            return None
        return manifest

    @staticmethod
    def is_whole(manifest: Manifest, place: Path) -> bool:
        """Return whether a version is complete, according to its manifest.

        Args:
            manifest: The manifest that was found in the folder.
            place: The folder. Its name must be the digest in the manifest: otherwise, somebody has
                copied or renamed it.
        """
        return manifest.digest == place.name and manifest.damage() is None

    def with_listing(self, folder: Path) -> OutputRoot:
        """Return the same outputs, which answer from a listing of one folder in a bucket.

        The folder is listed when the first answer is needed, and not again: what other processes
        write afterwards is not seen.

        Args:
            folder: The folder, such as that of an output about which several questions are asked.
        """
        return replace(self, access=self.access.with_listing(folder))

    def each_version(
        self, work: Callable[[OutputRoot, Path], R], stage: str, name: str, digests: Sequence[str]
    ) -> list[R]:
        """Call a function for many versions of an output, with few requests to a bucket.

        For example, the shards of a corpus (parts of its tokens) are thousands of folders next to
        each other:

            shards/web/3f9c…/
            shards/web/a07e…/

        In a bucket, each look at a file would be a request. So these folders are listed together,
        and the function looks files up in the listing.

        Args:
            work: Called with (outputs, folder of the version). These outputs are a copy of `self`
                that has the listing. It may be called in several threads at once.
            stage: First folder of the path, such as `shards`.
            name: The rest of it, such as `web`.
            digests: Names of the folders.

        Returns:
            The results, in the order of the digests.
        """

        parent = self.folder / stage / name
        # What this process has looked up a few seconds ago is in memory, and needs no listing.
        if all(self._remembered(parent / digest) for digest in digests):
            return self.access.each(lambda digest: work(self, parent / digest), digests)

        def work_with_listing(access: FileAccess, folder: Path) -> R:
            """Call `work` for one version. `access` has a listing, usually of the parent."""
            outputs = replace(self, access=access)._with_listing_if_none(folder)
            return work(outputs, folder)

        return call_for_folders(self.access, work_with_listing, parent, digests)

    def _with_listing_if_none(self, folder: Path) -> OutputRoot:
        """Return the same outputs, which answer from a listing of a folder in a bucket.

        Args:
            folder: The folder. If these outputs have a listing that includes it, they are returned
                unchanged.
        """
        folder_name = self.access.name(folder)  # in the bucket
        is_listed = self.access.known_listing(folder_name) is not None
        return self if is_listed else self.with_listing(folder)

    def manifest_at(self, folder: Path) -> Manifest | None:
        """Return the manifest in a folder, or None if it has none.

        The manifest of an output is a JSON file. It says what the output was made from, lists its
        files, and has counts such as the number of tokens. It is written last, so a folder without
        one is unfinished.

        Args:
            folder: Folder of the output. For outputs in a bucket, the folder for local copies of
                its files.

        Raises:
            FormatError: The file exists, but is not a valid manifest.
        """
        # This process may have made or read this version a few seconds ago.
        remembered = self._remembered(folder)
        if remembered is not None:
            return remembered
        return read_manifest(folder, self.access)

    def version(
        self, stage: str, name: str, digest: str, what_if_missing: str, remedy: str = BUILD_AGAIN
    ) -> Manifest:
        """Return the manifest of a version that another output refers to by its digest.

        For example, the manifest of a nanoset says that it was made from `datasets/web/3f9c…`.
        A manifest is the JSON file that describes an output.

        Args:
            stage: First folder of the path, such as `datasets`.
            name: The rest of it, such as `web`.
            digest: Folder of the version, such as `3f9c…`.
            what_if_missing: Message of the error if the version is missing.
            remedy: What that error says to do.

        Returns:
            The manifest. Whether its files are complete is not checked.

        Raises:
            MissingError: The version does not exist.
            FormatError: Its manifest is not valid.
        """
        manifest = self.manifest_at(self.folder / stage / name / digest)
        if manifest is None:
            from nanoset_core.outputs.erasures import missing_version

            raise missing_version(
                self.access, (stage, name, digest), what_if_missing, remedy=remedy
            )
        return manifest

    def commit(
        self, recipe: Recipe, write: Writing, *, existing: ExistingVersion | None = None
    ) -> Manifest:
        """Return the output of a recipe. It is made and published only if it does not exist yet.

        A recipe is everything that decides the bytes of an output: its inputs and settings. The
        folder of the output is named by a digest of the recipe, so the same work is never done
        twice:

            datasets/web/3f9c…    exists: returned at once
            datasets/web/a07e…    is missing: made here, and uploaded if outputs are in a bucket

        Args:
            recipe: What the output is made from.
            write: Is called with a temporary folder, writes the files to it, and returns what it
                knows about them.
            existing: What `existing_version` has found for this recipe, if the caller has asked
                before. If that was long ago, or by default, it is looked up now.

        Returns:
            The manifest of the output. It is not the version that others read, until
            `make_current`.

        Raises:
            StorageError: There is no room for the output, or it cannot be uploaded.
        """
        folder = self.place(recipe)
        if existing is None or not existing.is_recent():
            existing = self.existing_version(recipe)
        if existing.manifest is not None:
            return self.rebase(existing.manifest)  # without the listing that has shown it, if any

        self._make_missing(recipe, write)
        try:
            return self._upload(folder, is_new=existing.is_surely_missing())
        except MissingError:
            # The new folder has vanished. Two processes may have found the same damaged version:
            # this one has replaced it, and then the other one has removed the new folder, to put
            # its own there. It may have been killed before that, so make the output again unless it
            # exists.
            self._make_missing(recipe, write)
            return self._upload(folder)

    def commit_record(self, recipe: Recipe, facts: Mapping[str, Any]) -> Manifest:
        """Store an output that has no files besides its manifest, and make it the current version.

        An example is the list of a corpus's shards, which are outputs of their own:

            {"documents": 1000, "shards": ["3f9c…", "a07e…"]}

        Args:
            recipe: What the output is made from.
            facts: What its manifest records.

        Returns:
            The manifest. If it was stored before, it only becomes the current version again.

        Raises:
            StorageError: There is no room for the manifest, or it cannot be uploaded.
        """

        def write_no_files(_folder: Path) -> Written:
            """Return what the manifest records. There are no other files to write."""
            return Written(facts)

        manifest = self.commit(recipe, write_no_files)
        return self.make_current(manifest)

    def existing_version(self, recipe: Recipe) -> ExistingVersion:
        """Look for the version of an output that a recipe makes, and check that it can be used.

        There are three results, for a folder such as datasets/web/3f9c…:

                                                manifest        has_no_manifest
            it is complete                      the manifest    False
            it has no manifest                  None            True
            a file is missing or damaged        None            False

        If the user has asked to rebuild all outputs, it is not looked at, and counts as damaged.

        Args:
            recipe: What the output is made from: its inputs and settings.

        Returns:
            What was found, and when it was looked for: soon after, another machine may store it.
        """
        folder = self.place(recipe)
        looked_up_at = time.monotonic()
        unusable = ExistingVersion(looked_up_at, manifest=None, has_no_manifest=False)
        if self.rebuild:
            return unusable
        try:
            manifest = self.manifest_at(folder)
        except FormatError:
            return unusable
        if manifest is None:
            return ExistingVersion(looked_up_at, manifest=None, has_no_manifest=True)
        if not self.is_whole(manifest, folder):
            return unusable
        return ExistingVersion(looked_up_at, manifest=manifest, has_no_manifest=False)

    def _make_missing(self, recipe: Recipe, write: Writing) -> None:
        """Make an output on this machine, unless it is here already.

        If outputs are in a bucket, each is first made on this machine, and then uploaded. A run
        that was interrupted in between has left it here.

        Args:
            recipe: What the output is made from: its inputs and settings.
            write: Writes its files; see `commit`.
        """
        if self.rebuild or self.local.find(recipe) is None:
            self._make(recipe, write)

    def _make(self, recipe: Recipe, write: Writing) -> None:
        """Write the files of an output and its manifest to its local folder.

        The files are written to a temporary folder, which is renamed once it is complete. So
        readers find the whole output or none.

        Args:
            recipe: What the output is made from: its inputs and settings.
            write: Is called with the temporary folder, writes the files to it, and returns what it
                knows about them, such as checksums.
        """

        def was_made_meanwhile() -> bool:
            """Return whether another process has finished the same output, which then stays."""
            return not self.rebuild and self.local.find(recipe) is not None

        # The files are written to a temporary folder, which is renamed once it is complete.
        with published_folder(self.place(recipe), keep=was_made_meanwhile) as scratch:
            written = write(scratch)
            files = _complete_file_facts(scratch, written.files)
            content = StoredManifest.of(recipe, written.facts, files)
            (scratch / MANIFEST).write_bytes(dump(content))

    def _upload(self, folder: Path, *, is_new: bool = False) -> Manifest:
        """Upload an output that was made on this machine, if the outputs are in a bucket.

        If they are on a disk, nothing is done, since the output is in its place already.

        Args:
            folder: Its local folder, such as `/cache/outputs/datasets/web/3f9c…`.
            is_new: Whether the bucket is known not to have it, which saves requests.

        Returns:
            The manifest, the JSON file that describes the output. It reads the files of the output
            from where they are stored, and not from the local folder.

        Raises:
            MissingError: Another process has removed the output from this machine.
        """
        # This process may remember the version that is replaced now.
        self._forget_version(folder)
        manifest = self.local.manifest_at(folder)
        if manifest is None:
            raise MissingError(
                "the output vanished while it was published", where=folder, remedy="run it again"
            )
        checksums = {name: fact.sha256 for name, fact in manifest.files.items()}
        stored_sizes = publish_folder(self.access, folder, checksums, MANIFEST, is_new=is_new)
        manifest = replace(manifest, access=self.access, stored=stored_sizes)
        self._remember(folder, manifest)
        return manifest

    @contextlib.contextmanager
    def in_task(self) -> Iterator[OutputRoot]:
        """Yield the same outputs for one task; on a cluster's worker, with temporary copies."""
        with for_a_task(self.access) as access:
            yield replace(self, access=access)

    def rebase(self, manifest: Manifest) -> Manifest:
        """Return a manifest that another process has read, so that this process can read the files.

        A manifest describes an output, and has the folder with local copies of its files. Machines
        may have these in different places:

            /scratch/a/datasets/web/3f9c…    on the machine that has read the manifest
            /scratch/b/datasets/web/3f9c…    on this machine

        Args:
            manifest: The manifest, of an output below the same folder or bucket.
        """
        folder = self.folder / manifest.stage / manifest.name / manifest.digest
        return replace(manifest, folder=folder, access=self.access)  # downloads to this folder

    def invalidate(self, recipe: Recipe) -> None:
        """Delete the manifest of an output, so that nobody takes the output for complete.

        The manifest is the JSON file that lists the files of the output. The caller then replaces
        these files one by one, and calls `finalize`, which writes a new manifest.

        Args:
            recipe: What the output is made from: its inputs and settings.
        """
        place = self.place(recipe)
        self._forget_version(place)
        self.access.store.delete(self.access.name(place / MANIFEST))

    def place_of_large_file(self, recipe: Recipe, folder: Path, name: str) -> StorePlace:
        """Return where to write a large file of an output that is being made.

            on a disk      to a temporary folder, which is renamed when the output is complete
            in a bucket    to its final place, since it may be larger than this machine's disk

        Args:
            recipe: What the output is made from: its inputs and settings.
            folder: The temporary folder; see `commit`.
            name: Name of the file.

        Returns:
            A folder or bucket, and the name of the file in it.
        """
        is_on_disk = not self.access.takes_requests  # a bucket cannot rename a folder
        if is_on_disk:
            return StorePlace(LocalStore(folder), name)

        # The output may exist in the bucket, and the file replaces one of its files. So first
        # delete its manifest, without which readers do not take it for complete.
        self.invalidate(recipe)
        final_path = self.place(recipe) / name
        return StorePlace(self.access.store, self.access.name(final_path))

    def finalize(
        self, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
    ) -> Manifest:
        """Complete an output whose files have been written to its folder, by writing its manifest.

        The manifest is a JSON file that lists the files. Without it, readers take the folder for
        unfinished. If the outputs are in a bucket, files that it lacks are uploaded first.

        Args:
            recipe: What the output was made from: its inputs and settings.
            facts: Counts and other findings, for the manifest, such as {"documents": 3}.
            files: Name within the folder → size and checksum of each file.

        Returns:
            The manifest of the output, which is complete from now on.
        """
        place = self.place(recipe)
        # A complete output has no other files, such as unfinished ones of killed processes.
        sweep_abandoned(place)
        write_atomic(place / MANIFEST, dump(StoredManifest.of(recipe, facts, files)))
        return self._upload(place)

    def current_version(self, stage: str, name: str) -> CurrentVersion:
        """Return the current version of an output, with what is wrong with it.

        A version that is missing or damaged is not an error: the result says so, for example "not
        built yet" or "damaged: web.bin is missing".

        To save requests to a bucket, these outputs may have a list of the names in it, which was
        made some time ago:

            by the list       result
            not built yet     the same
            whole             the same; its files are read from the bucket
            damaged           look again in the bucket: perhaps a file was written since

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.
        """
        version = self._look_up_current(stage, name)
        if not self._has_listing_of_names():
            return version

        outputs_without_listing = self._without_listing()
        if version.damage is not None:
            return outputs_without_listing._look_up_current(stage, name)
        if version.manifest is None:
            return version  # not built yet

        # The manifest looks the files of the version up when they are needed, which may be much
        # later than the list was made.
        manifest = outputs_without_listing.rebase(version.manifest)
        return replace(version, manifest=manifest)

    def _without_listing(self) -> OutputRoot:
        """Return the same outputs, which ask the bucket for every file."""
        return replace(self, access=replace(self.access, listing=None))

    def _has_listing_of_names(self) -> bool:
        """Return whether the names of some files in a bucket come from an earlier listing.

        A listing of the whole bucket is different: it also has the contents of the manifests, so
        that all that it says fits together.
        """
        listing = self.access.listing
        return listing is not None and listing.contents is None

    def _look_up_current(self, stage: str, name: str) -> CurrentVersion:
        """Find the current version of an output, and check its files.

        An output may have several versions. The file `current.json` next to them names the current
        one.

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.
        """
        # This process may have looked it up a few seconds ago. Only its files are checked then.
        remembered = self._remembered(self.folder / stage / name)
        if remembered is not None:
            return _checked_version(remembered)

        try:
            version = self._read_current_version(stage, name)
        except FormatError as error:  # current.json or the manifest is damaged
            return _damaged_version(error)
        if version.whole_manifest is not None:
            self._remember_current(version.whole_manifest)
        return version

    def _read_current_version(self, stage: str, name: str) -> CurrentVersion:
        """Read which version of an output is current, and the manifest of this version.

            datasets/web/current.json           {"digest": "3f9c…"}
            datasets/web/3f9c…/manifest.json    lists the files of the version

        Args:
            stage: First folder of the path, such as `datasets`.
            name: The rest of it, such as `web`.

        Raises:
            FormatError: One of both is not valid, or the manifest is that of another output.
        """
        folder = self.folder / stage / name
        digest = read_current(folder, self.access)
        if digest is None:
            return CurrentVersion(None)  # not built yet
        manifest = self.manifest_at(folder / digest)
        if manifest is None:
            return CurrentVersion(None, f"{digest}/{MANIFEST} is missing")
        _check_is_of_output(manifest, stage, name, digest)
        return _checked_version(manifest)

    def current_versions(self, stage: str, names: Sequence[str]) -> list[CurrentVersion]:
        """Return the current versions of several outputs, with few requests to a bucket.

        Each is what `current_version` returns. But in a bucket, the folder that contains all of
        them is listed once, and each version is then looked up in this listing.

        Args:
            stage: First folder of their paths, such as `datasets`.
            names: The rest of each path, such as `web` and `books`.

        Returns:
            A version for each name, in the same order.
        """

        def look_up(access: FileAccess, folder: Path) -> CurrentVersion:
            """Return the current version of the output in a folder; `access` has the listing."""
            outputs = replace(self, access=access)
            return outputs.current_version(stage, folder.name)

        return call_for_folders(self.access, look_up, self.folder / stage, names)

    def current(self, stage: str, name: str) -> Manifest | None:
        """Return the current version of an output; None if there is none, or a damaged one.

        A version is damaged if one of its files is missing or has another size. Call this to read
        the files, and `current_even_if_damaged` to describe or check an output.

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        return self._readable_version(stage, name).whole_manifest

    def current_even_if_damaged(self, stage: str, name: str) -> Manifest | None:
        """Return the current version of an output, even if its files are damaged.

        Unlike this, `current` returns None if a file is missing or has another size.

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.

        Returns:
            The manifest of the version, which lists its files; None if there is none.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        return self._readable_version(stage, name).manifest

    def _readable_version(self, stage: str, name: str) -> CurrentVersion:
        """Look up the current version of an output, and raise the error if it cannot be read.

        The file `current.json` names the version, and the version has a manifest. Somebody may have
        damaged one of these files.

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        version = self.current_version(stage, name)
        if version.error is not None:
            raise version.error
        return version

    def require(self, stage: str, name: str, *, remedy: str) -> Manifest:
        """Return the version of an output that another one is made from.

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.
            remedy: What the error says to do, such as "run `nanoset build` first".

        Returns:
            The manifest of a version whose files are all there.

        Raises:
            MissingError: The output was never made, or its files are damaged.
            FormatError: current.json, or the manifest, is not valid.
        """
        version = self._readable_version(stage, name)
        if version.whole_manifest is not None:
            return version.whole_manifest

        where = self.access.url(self.folder / stage / name)
        if not version.is_built:
            message = f"the output {stage}/{name} has not been built"
            raise MissingError(message, where=where, remedy=remedy)

        message = f"the output {stage}/{name} is damaged"
        raise MissingError(message, where=where, found=version.damage, remedy=remedy)

    def _remembered(self, folder: Path) -> Manifest | None:
        """Return the version that was found or made a few seconds ago; None if there is none.

        The steps of a build look up the same outputs many times. Each time would take a request to
        the bucket.

        Args:
            folder: Folder of an output, such as `<root>/datasets/web`, for its current version;
                or folder of a version, such as `<root>/datasets/web/3f9c…`.
        """
        if self.seen is None or folder not in self.seen:
            return None
        version = self.seen[folder]
        if time.monotonic() - version.looked_up_at >= SEEN_SECONDS:
            return None
        # Another process may have removed the local copy, to make room.
        if not (version.manifest.folder / MANIFEST).is_file():
            return None
        return version.manifest

    def _remember(self, folder: Path, manifest: Manifest) -> None:
        """Remember a version for a few seconds, if the outputs are in a bucket.

        Each lookup in a bucket takes requests. On a disk, it is fast, and nothing is remembered.

        Args:
            folder: Folder of the version, or of the output if the version is its current one.
            manifest: Manifest of the version: its recipe, facts and files.
        """
        if self.seen is None or not self.access.takes_requests:
            return
        # Leave out the listing of the bucket that the manifest may have been read with: it may be
        # large, and will soon be outdated.
        access_without_listing = replace(manifest.access, listing=None)
        manifest = replace(manifest, access=access_without_listing)
        self.seen.add(folder, manifest)

    def _remember_current(self, manifest: Manifest) -> None:
        """Remember for a few seconds that a version is the current one of its output.

        Args:
            manifest: Manifest of the version.
        """
        self._remember(manifest.folder, manifest)  # such as datasets/web/3f9c…
        self._remember(manifest.folder.parent, manifest)  # datasets/web

    def note_made(self, manifest: Manifest) -> None:
        """Take note of a version that a worker process has made and stored.

        This process then need not look it up in the bucket, to read its manifest and to check its
        files, if that happens within a few seconds.

        Args:
            manifest: Manifest of the version, which may have been read on another machine.
        """
        manifest = self.rebase(manifest)
        self._remember(manifest.folder, manifest)

    def forget(self, output: Path) -> None:
        """Let the next lookup of an output, and of its current version, ask the store again.

        Args:
            output: Folder of the output.
        """
        if self.seen is None:
            return
        current = self.seen.pop(output, None)
        if current is not None:
            self.seen.pop(current.manifest.folder, None)

    def _forget_version(self, folder: Path) -> None:
        """Let the next lookup of a version ask the store again, also if it is the current one.

        Args:
            folder: Folder of the version.
        """
        self.forget(folder.parent)
        if self.seen is not None:
            self.seen.pop(folder, None)

    def names(self, stage: str) -> list[str]:
        """Return the first folders of the paths of a stage's outputs, such as ["code", "web"].

        For most stages, these are the names of all outputs. The outputs of a nanoset have more
        folders: of nanosets/pretrain/handoff, this returns "pretrain". Hidden folders are left out:
        they are for internal use.

        Args:
            stage: Folder of the stage, such as `datasets`. It need not exist.
        """
        all_names = self.access.names(self.folder / stage)
        return sorted(name for name in all_names if not name.startswith("."))

    def versions(
        self, stage: str, name: str, *, before: Manifest | None = None, strict: bool = False
    ) -> Iterator[Manifest]:
        """Yield all versions of an output, the newest first, also damaged ones.

            datasets/web/b113…    made at 12:00
            datasets/web/a07e…    made at 11:00
            datasets/web/3f9c…    made at 10:00

        Args:
            stage: First folder of the output's path, such as `datasets`.
            name: The rest of it, such as `web`.
            before: Only yield versions that were made before this one.
            strict: Whether an invalid manifest raises FormatError. By default, its version is left
                out.

        Raises:
            FormatError: A manifest is not valid, and `strict` is set.
        """
        folder = self.folder / stage / name
        time_by_digest = self.digests_in(folder)
        if before is not None:
            time_by_digest = _earlier_than(before, time_by_digest)

        def sort_key(digest: str) -> tuple[int, str]:
            """Return the time of a version, and its digest, since times may be whole seconds."""
            return time_by_digest[digest], digest

        for digest in sorted(time_by_digest, key=sort_key, reverse=True):
            try:
                manifest = self.manifest_at(folder / digest)
            except FormatError:
                if strict:
                    raise
                continue
            if manifest is not None:
                yield manifest

    def previous(self, manifest: Manifest) -> Manifest | None:
        """Return the version of an output that was made before another one, or None.

        Versions that were deleted, or whose manifest is not valid, are left out.

        Args:
            manifest: Manifest of the other version.
        """
        return next(self.versions(manifest.stage, manifest.name, before=manifest), None)

    def digests_in(self, folder: Path) -> dict[str, int]:
        """Return the versions of an output, each with when it was made.

        For example, {"3f9c…": 1772323384000000000} for the folder `datasets/web`, which contains
        the version `3f9c…`. The time is that of the version's manifest, the file that is written
        last.

        Args:
            folder: Folder of the output.

        Returns:
            Digest → time in nanoseconds since 1970.
        """
        written_ns = self.access.written_in(folder, MANIFEST)
        return {name: time_ns for name, time_ns in written_ns.items() if is_digest(name)}

    def sweep(self) -> None:
        """Remove unfinished files of killed processes from the local folders of all outputs."""
        for folder, _ in self.unfinished():
            sweep_abandoned(folder)

    def unfinished(self) -> Iterator[tuple[Path, list[str]]]:
        """Yield all local folders, with the unfinished files that killed processes left there.

        Files are written under a name that starts with a certain prefix, and renamed when they are
        complete. So what still has such a name is unfinished. Complete outputs, which have a
        manifest, are not looked into.

        Yields:
            (folder, names of the unfinished files and folders directly in it)
        """
        for place, folder_names, file_names in os.walk(self.folder):
            folder = Path(place)
            all_names = [*folder_names, *file_names]
            yield folder, [name for name in all_names if name.startswith(UNFINISHED)]

            # `os.walk` goes on to the folders in this list, so remove the others from it.
            for name in list(folder_names):
                is_complete_output = (folder / name / MANIFEST).exists()
                if name.startswith(UNFINISHED) or is_complete_output:
                    folder_names.remove(name)

    def make_current(self, manifest: Manifest) -> Manifest:
        """Put a version of an output to use: let the file `current.json` name it.

        There is also a symbolic link for other programs, which do not read that file:

            datasets/web/current.json           {"digest": "3f9c…"}
            datasets/web/current      →         3f9c…

        Args:
            manifest: Manifest of the version.

        Returns:
            The same manifest.

        Raises:
            StorageError: A folder is in the place of the link.
        """
        output = manifest.folder.parent
        self.check_link_is_no_folder(output)
        self.forget(output)  # if writing fails, it is not known which version the file names
        write_small_file(self.access, output / CURRENT, dump(_CurrentFile(manifest.digest)))

        link = output / CURRENT_LINK
        is_right = link.is_symlink() and link.readlink() == Path(manifest.digest)
        if not is_right:
            point_to(link, manifest.digest)
        self._remember_current(manifest)
        return manifest

    def unset_current(self, output: Path) -> None:
        """Remove the file and the link that lead to the current version of an output.

        The versions themselves stay. The output then counts as not built.

        Args:
            output: Folder of the output, such as `<root>/datasets/web`. It must have a current
                version.
        """
        self.forget(output)
        remove_file(self.access, output / CURRENT)
        (output / CURRENT_LINK).unlink(missing_ok=True)

    def check_link(self, manifest: Manifest) -> None:
        """Check the link `current` of an output, which other programs follow.

        nanoset itself reads `current.json`, and so does not notice. For example, if `3f9c…` is the
        current version:

            datasets/web/current → 3f9c…    fine
            datasets/web/current → 81aa…    an error: it leads to an old version
            datasets/web/current/web.bin    an error: it was copied as a folder
            no such link                    an error, unless the file system has no links

        In a bucket, which has no links, nothing is checked.

        Args:
            manifest: Manifest of the current version.

        Raises:
            StorageError: The link is wrong. The next build can set it again, unless a folder is
                there.
        """
        if self.access.takes_requests:
            return
        output = manifest.folder.parent
        link = output / CURRENT_LINK
        if link.is_symlink():
            target = link.readlink()
            if target != Path(manifest.digest):
                raise StorageError(
                    "the link `current` leads to another version",
                    where=link,
                    found=target,
                    expected=manifest.digest,
                )
            return

        self.check_link_is_no_folder(output)
        if can_make_links(output):
            raise StorageError("the link `current` is missing", where=link)

    def check_link_is_no_folder(self, output: Path) -> None:
        """Check that no folder is in the place of a link, such as `datasets/web/current`.

        Some programs follow this link when they copy outputs. Then the copy has a folder there,
        with the files of one version, and a new link cannot replace it.

        Args:
            output: Folder of the output, such as `datasets/web`.

        Raises:
            StorageError: A folder is there.
        """
        link = output / CURRENT_LINK
        if link.is_symlink() or not link.is_dir():
            return
        command = delete_copies_command(self.folder)
        raise StorageError(
            "a folder is where the link `current` should be",
            where=link,
            expected="a symbolic link, which programs that copy outputs may turn into a folder",
            remedy=f"delete all such folders (`{command}`), and build again",
        )


def delete_copies_command(root: Path) -> str:
    """Return a shell command that deletes the folders that were made from links `current`.

    A corpus may be called `current`, too: its folders, such as `datasets/current`, stay.

    Args:
        root: Local folder of all outputs.
    """
    folders = f"find {shell_word(root)} -mindepth 3 -name {CURRENT_LINK} -type d"
    return f"{folders} -prune -exec rm -r {{}} +"


def _check_is_of_output(manifest: Manifest, stage: str, name: str, digest: str) -> None:
    """Check that a manifest, which describes a version of an output, is in the right folder.

    For example, somebody has copied a folder, and its manifest with it:

        found in             the manifest says    result
        datasets/web/3f9c    datasets/web/3f9c    fine
        datasets/code/3f9c   datasets/web/3f9c    an error, with "that of datasets/web/3f9c"

    Args:
        manifest: The manifest.
        stage: First folder of the path where it was found, such as `datasets`.
        name: The next one, such as `web`.
        digest: The folder of the version.

    Raises:
        FormatError: It belongs to another folder.
    """
    stated_folder = (manifest.stage, manifest.name, manifest.digest)
    if stated_folder != (stage, name, digest):
        raise no_manifest(
            manifest.url(MANIFEST),
            found=f"that of {manifest.location}",
            expected=f"that of {stage}/{name}/{digest}",
        )


def _earlier_than(version: Manifest, time_by_digest: Mapping[str, int]) -> dict[str, int]:
    """Return the versions of an output that were made before a certain one.

        version      3f9c     a07e     b113
        made at      10:00    11:00    12:00
        before b113: 3f9c and a07e

    Args:
        version: The version.
        time_by_digest: Digest of each version → when it was made, in nanoseconds since 1970.
    """
    # Prefer the time in this listing: all its times are from one clock, the store's.
    end_ns = time_by_digest.get(version.digest, version.written_ns)
    return {digest: time_ns for digest, time_ns in time_by_digest.items() if time_ns < end_ns}


def _complete_file_facts(
    folder: Path, known_facts: Mapping[str, str | FileFact]
) -> dict[str, FileFact]:
    """Return the size and checksum of each file of an output, for its manifest.

    Some checksums were computed while the files were written; the other files are read now. For
    example, in a folder with the files web.bin and web.idx:

        known     {"web.bin": "9f86…"}
        result    {"web.bin": (80 bytes, "9f86…"), "web.idx": (42 bytes, "4c2e…")}

    Args:
        folder: The folder of the output, with all its files except those that are stored elsewhere.
        known_facts: Name of some files → what is known already: the sha256, or a complete
            `FileFact`, which has size and sha256.

    Returns:
        Path below the folder → size and checksum.
    """
    facts_by_name: dict[str, FileFact] = {}
    sha256_by_name: dict[str, str] = {}
    for name, fact in known_facts.items():
        if isinstance(fact, FileFact):
            facts_by_name[name] = fact
        else:
            sha256_by_name[name] = fact

    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in facts_by_name and path.is_file():
            facts_by_name[name] = _file_fact(path, sha256_by_name.get(name))
    return facts_by_name


def _file_fact(path: Path, sha256: str | None) -> FileFact:
    """Return the size and checksum of a file, for the manifest of an output.

    If the checksum is not known, a small file is read to compute it. A large one (more than
    HASHED_BYTES) gets none, since that would take long.

    Args:
        path: The file.
        sha256: Its checksum, if it was computed while the file was written.
    """
    size = path.stat().st_size
    if sha256 is None and size <= HASHED_BYTES:
        sha256 = sha256_file(path)
    return FileFact(size, sha256)


@dataclass(frozen=True, slots=True)
class _CurrentFile(Record):
    """The content of current.json."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this does not name a version",
        remedy="delete the file; the next build writes it again",
        is_compact=True,
        ends_with_newline=True,
    )
    ignores_unknown_keys: ClassVar[bool] = True

    digest: str
    """Digest of the current version."""

    def check(self, value: dict[str, Any]) -> None:
        if not is_digest(self.digest):
            raise ValueError(f"{self.digest!r} is not a digest")


def _possible_contents(folder: Path, access: FileAccess) -> Iterator[bytes]:
    """Yield each content that the file current.json of an output can have.

    It names one of the output's versions. So there are few contents, and if the checksum of the
    file is known, nobody has to read it. For an output with the versions 3f9c… and a07e…:

        {"digest": "3f9c…"}
        {"digest": "a07e…"}

    Args:
        folder: Folder of the output, with a subfolder for each version.
        access: Lists the folder.
    """
    for name in access.names(folder):
        if is_digest(name):
            yield dump(_CurrentFile(name))


def _checked_version(manifest: Manifest) -> CurrentVersion:
    """Return a version that is the current one of its output, after checking its files.

    Args:
        manifest: Manifest of the version: its recipe, facts and files.
    """
    return CurrentVersion(manifest, manifest.damage())


def _damaged_version(error: FormatError) -> CurrentVersion:
    """Describe an output whose current version cannot be read, since a file about it is damaged.

    For example, somebody has edited `current.json`, which names the current version. Then the
    damage is "<path>/current.json: this does not name a version: …".

    Args:
        error: The error that was raised when the file was read.
    """
    damage = f"{error.where}: {error.what}: {error.found}"
    return CurrentVersion(None, damage, error)


def read_current(folder: Path, access: FileAccess) -> str | None:
    """Return the digest of the current version of an output, or None if it has none.

    It is in the file `current.json` in the folder of the output, such as {"digest": "3f9c…"}.

    Args:
        folder: Folder of the output, such as `datasets/web`.
        access: How its files are read.

    Raises:
        FormatError: current.json does not name a version.
        StorageError: The store does not answer, or refuses the request.
    """
    path = folder / CURRENT
    try:
        content = _current_file_content(folder, access)
        if content is None:
            return None
        return load(_CurrentFile, content, path).digest
    except FormatError as error:
        raise error.at(access.url(path)) from error


def _current_file_content(folder: Path, access: FileAccess) -> bytes | None:
    """Return the bytes of an output's current.json, the file that names the current version.

    The file names one of the versions in the folder, so only a few contents are possible. If the
    bucket was listed before, the listing has a checksum of the file. If it is the checksum of one
    of these guesses, the file need not be requested.

    Args:
        folder: Folder of the output.
        access: How its files are read.

    Returns:
        Such as `{"digest": "3f9c…"}`; None if the file is missing.

    Raises:
        FormatError: It cannot be read: a folder has its name, for example.
        StorageError: The store does not answer, or refuses the request.
    """
    path = folder / CURRENT
    try:
        return access.read_current(path, guesses=_possible_contents(folder, access))
    except FileNotFoundError:
        return None
    except StorageError:  # the store has failed, and not the file
        raise
    except OSError as error:  # which StorageError is, too
        form = _CurrentFile.json_form
        raise FormatError(
            form.problem, where=access.url(path), found=shortened(repr(error)), remedy=form.remedy
        ) from error


def open_root(
    location: str | os.PathLike[str] | OutputRoot, storage: StorageSpec | None = None
) -> OutputRoot:
    """Open the outputs in a local folder, or at an address such as s3://bucket/prefix.

    Files in a bucket are copied to a local folder before they are read. By default it is in the
    user's cache folder.

    Args:
        location: The folder or address, or a root that is open already and returned unchanged.
        storage: How the bucket is accessed. By default the AWS configuration is used.

    Returns:
        The root. Nothing is read yet, and the folder need not exist.

    Raises:
        ConfigError: The address is not valid.
    """
    if isinstance(location, OutputRoot):
        return location

    address = os.fspath(location)
    if not is_remote(address):
        return OutputRoot(FileAccess(path_on_this_machine(address).resolve()))
    # Files in a bucket are copied to a local folder before they are read.
    storage = storage or StorageSpec()
    place = remote_location(address, where="the output root", storage=storage).place
    return OutputRoot(storage.access_to(place, copies_folder(place, storage.mirror)))

"""The folder of all outputs, the root: find, publish and read versions of outputs.

An output, such as the dataset of the corpus `web`, may have several versions. The folder of each is
named by the digest of its recipe; `current.json` names the version that is in use:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.current import NOT_BUILT, CurrentVersion
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    StoredManifest,
    Written,
    is_digest,
    no_manifest,
    read_manifest,
)
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import (
    UNFINISHED,
    point_to,
    published_folder,
    sha256_file,
    sweep_abandoned,
    write_atomic,
)
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.location import StorageSpec, copies_folder, is_remote, remote_location
from nanoset_core.storage.many_folders import call_for_folders
from nanoset_core.storage.store import Store
from nanoset_core.storage.uploads import publish_folder, write_small_file
from nanoset_core.storage.worker_folders import for_a_task

R = TypeVar("R")
CURRENT = "current.json"
"""File next to the versions of an output that names the current one."""
BUILD_AGAIN = "run `nanoset build`, which rebuilds it"
"""Remedy for a version that is missing."""
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""
SEEN_SECONDS = 10.0
"""For so long a version that was found current is not looked up again.

After this time at the latest, a process sees what other machines have built.
"""

Writing = Callable[[Path], Written]
"""Function that writes the files of an output to a folder; see `OutputRoot.commit`."""


class StorePlace(NamedTuple):
    """Where to write a file: a store, which is a local folder or a bucket, and a name in it."""

    store: Store
    name: str


class _SeenVersion(NamedTuple):
    """A version that was found current."""

    looked_up_at: float
    """By the monotonic clock, in seconds."""
    manifest: Manifest


class Seen(dict[Path, _SeenVersion]):
    """Folder of an output → its version that was found current a short time ago.

    The steps of a run look up the same outputs again and again. This memory spares a bucket these
    requests. Methods that change an output remove it from the memory.
    """

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        """Pickle the memory as an empty one, so that another process looks for itself."""
        return Seen, ()


class _ExistingVersion(NamedTuple):
    """What was found in the folder of a version."""

    looked_up_at: float
    """By the monotonic clock, in seconds."""
    whole: Manifest | None
    """The manifest; None if it is missing or damaged, or if files are missing."""
    is_missing: bool
    """Whether there was no manifest."""

    def is_surely_missing(self) -> bool:
        """Return whether it was missing so recently that no other machine has stored it since."""
        is_recent = time.monotonic() - self.looked_up_at < SEEN_SECONDS
        return self.is_missing and is_recent


@dataclass(frozen=True, slots=True)
class OutputRoot:
    """The folder that contains every output, each version at <stage>/<name>/<digest>/."""

    access: FileAccess
    """How the files are read and written."""
    rebuild: bool = False
    """Whether outputs are rebuilt even if they are complete."""
    seen: Seen | None = field(default=None, compare=False, repr=False)
    """Versions in a bucket that were found current recently; None to ask each time."""

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
        """Return the complete version in a folder, or None if it is missing or damaged.

        Args:
            place: Folder of the version; for outputs in a bucket, the folder for its local copies.
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

        In a bucket, the folders of all versions are listed together.

        Args:
            work: Called with (outputs, folder of the version). These outputs are like `self`, but
                look up files in the common listing instead of asking the bucket.
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
            digests: Digests of the versions, by which their folders are named.

        Returns:
            The results, in the order of the digests.
        """

        def work_with_listing(access_with_listing: FileAccess, folder: Path) -> R:
            """Call `work` for one version."""
            return work(replace(self, access=access_with_listing), folder)

        parent = self.folder / stage / name
        return call_for_folders(self.access, work_with_listing, parent, digests)

    def manifest_at(self, folder: Path) -> Manifest | None:
        """Return the manifest of the version in a folder, or None if it has none.

        The manifest says what the version was made from, and lists its files.

        Args:
            folder: Folder of the version; for outputs in a bucket, the folder for its local copies.

        Raises:
            FormatError: The file exists, but is not a valid manifest.
        """
        seen = self._seen_current(folder.parent)
        if seen is not None and seen.folder == folder:
            return seen
        return read_manifest(folder, self.access)

    def version(
        self, stage: str, name: str, digest: str, what_if_missing: str, remedy: str = BUILD_AGAIN
    ) -> Manifest:
        """Return the manifest of a version that another output refers to by its digest.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
            digest: Digest of the version, by which its folder is named.
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
            raise missing_version(
                self.access, (stage, name, digest), what_if_missing, remedy=remedy
            )
        return manifest

    def commit(self, recipe: Recipe, write: Writing) -> Manifest:
        """Return the output of a recipe, after making and publishing it if it does not exist.

        A recipe names all inputs and settings of an output, so an output is only made once.

        Args:
            recipe: What the output is made from: its inputs and settings.
            write: Writes the files to the folder that it is passed, and returns what it knows about
                them. It is not called if the output exists.

        Returns:
            The manifest of the output. It is not made the current version; see `make_current`.

        Raises:
            StorageError: There is no room for the output, or it cannot be uploaded.
        """
        folder = self.place(recipe)
        existing = self._existing_version(folder)
        if existing.whole is not None:
            return existing.whole

        self._make_missing(recipe, write)
        try:
            return self._upload(folder, is_new=existing.is_surely_missing())
        except MissingError:
            # The folder that was just made has vanished. Another process has found the damaged
            # version before, and moved this one away by mistake, to put its own in the place. Make
            # the output again, in case that process was killed before it did so.
            self._make_missing(recipe, write)
            return self._upload(folder)

    def _existing_version(self, folder: Path) -> _ExistingVersion:
        """Look a version up, and check that it is whole, unless it is rebuilt in any case.

        Args:
            folder: Folder of the version.

        Returns:
            What was found, and when: soon after, another machine may have stored the version.
        """
        looked_up_at = time.monotonic()
        unusable = _ExistingVersion(looked_up_at, whole=None, is_missing=False)
        if self.rebuild:
            return unusable
        try:
            manifest = self.manifest_at(folder)
        except FormatError:
            return unusable
        if manifest is None:
            return _ExistingVersion(looked_up_at, whole=None, is_missing=True)
        if not self.is_whole(manifest, folder):
            return unusable
        return _ExistingVersion(looked_up_at, whole=manifest, is_missing=False)

    def _make_missing(self, recipe: Recipe, write: Writing) -> None:
        """Make an output, unless this machine has a whole copy of it, and may keep that.

        It has such a copy if an earlier run has made it, but was interrupted during the upload.

        Args:
            recipe: What the output is made from: its inputs and settings.
            write: As for `commit`.
        """
        if self.rebuild or self.local.find(recipe) is None:
            self._make(recipe, write)

    def _make(self, recipe: Recipe, write: Writing) -> None:
        """Write the files of an output and its manifest to its local folder.

        Args:
            recipe: What the output is made from: its inputs and settings.
            write: As for `commit`.
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

    def _upload(self, place: Path, *, is_new: bool = False) -> Manifest:
        """Upload an output from its local folder, if the outputs are in a bucket.

        Args:
            place: The local folder of the version.
            is_new: Whether the bucket is known not to have the output, which saves requests.

        Returns:
            The manifest, which reads files from the bucket from now on.

        Raises:
            MissingError: Another process has removed the output.
        """
        # This process may remember which version of the output is current. Look it up again, since
        # that version may be the one that is replaced now.
        self.forget(place.parent)
        manifest = self.local.manifest_at(place)  # read from the disk of this machine
        if manifest is None:
            raise MissingError(
                "the output vanished while it was published", where=place, remedy="run it again"
            )

        checksums = {name: fact.sha256 for name, fact in manifest.files.items()}
        objects = publish_folder(self.access, place, checksums, MANIFEST, is_new=is_new)
        return replace(manifest, access=self.access, stored=objects)

    @contextlib.contextmanager
    def in_task(self) -> Iterator[OutputRoot]:
        """Yield the same outputs for one task; on a cluster's worker, with temporary copies."""
        with for_a_task(self.access) as access:
            yield replace(self, access=access)

    def rebase(self, manifest: Manifest) -> Manifest:
        """Return a manifest that another process has read, with the folder of this process.

        Machines may have their copies of files in different folders.

        Args:
            manifest: The manifest, of an output below the same root.
        """
        place = self.folder / manifest.stage / manifest.name / manifest.digest
        return replace(manifest, folder=place, access=self.access)

    def invalidate(self, recipe: Recipe) -> None:
        """Delete the manifest of a recipe's output, so that nobody takes the output for complete.

        The caller then replaces its files one by one, and calls `finalize`.

        Args:
            recipe: What the output is made from: its inputs and settings.
        """
        place = self.place(recipe)
        self.forget(place.parent)
        self.access.store.delete(self.access.name(place / MANIFEST))

    def place_of_large_file(self, recipe: Recipe, folder: Path, name: str) -> StorePlace:
        """Return where to write a large file of an output that is being made.

        On a disk, that is the temporary folder that becomes the output. For outputs in a bucket,
        the file may be larger than the disk of this machine, so it is written directly to its final
        place in the bucket.

        Args:
            recipe: What the output is made from: its inputs and settings.
            folder: The temporary folder; see `commit`.
            name: Name of the file.
        """
        is_on_disk = self.access.renames_folders
        if is_on_disk:
            return StorePlace(LocalStore(folder), name)

        # If the output exists in the bucket, the file replaces one of its files. So delete its
        # manifest first, without which readers do not take it for complete.
        self.invalidate(recipe)
        final_path = self.place(recipe) / name
        return StorePlace(self.access.store, self.access.name(final_path))

    def finalize(
        self, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
    ) -> Manifest:
        """Complete an output whose files are in its local folder, by writing its manifest.

        If the outputs are in a bucket, the files that it lacks are then uploaded.

        Args:
            recipe: What the output was made from: its inputs and settings.
            facts: Counts and other findings, for the manifest.
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

        A version that is missing or damaged is not an error: the result says so.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
        """
        if not self._has_listing_of_names():
            return self._look_up_current(stage, name)

        # Look the version up in the listing, which saves requests to the bucket. But the listing
        # may be older than the last build. So if it lacks files of the version, ask the bucket.
        version = self._look_up_current(stage, name)
        up_to_date_outputs = replace(self, access=replace(self.access, snapshot=None))
        if version.exists and version.problem is not None:
            return up_to_date_outputs._look_up_current(stage, name)

        # The caller may read files of the version much later, when the listing is outdated: have
        # the manifest ask the bucket for them.
        if version.manifest is None:
            return version
        return replace(version, manifest=up_to_date_outputs.rebase(version.manifest))

    def _has_listing_of_names(self) -> bool:
        """Return whether the names of some files in a bucket come from an earlier listing.

        A snapshot of the whole bucket is different: it also has the contents of the manifests, so
        that all that it says fits together.
        """
        snapshot = self.access.snapshot
        return snapshot is not None and snapshot.contents is None

    def _look_up_current(self, stage: str, name: str) -> CurrentVersion:
        """Find which version of an output is current, and check its files.

        If `access` has a snapshot, an earlier listing of a bucket, this relies on it.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
        """
        # A version that was current a few seconds ago is not looked up again.
        remembered = self._seen_current(self.folder / stage / name)
        if remembered is not None:
            return _checked_version(remembered)

        try:
            version = self._read_current_version(stage, name)
        except FormatError as error:
            return _damaged_version(error)
        if version.manifest is not None and version.problem is None:
            self._remember(version.manifest)
        return version

    def _read_current_version(self, stage: str, name: str) -> CurrentVersion:
        """Read current.json and the manifest that it names, and check the files of the manifest.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.

        Raises:
            FormatError: One of both is not valid, or the manifest is that of another output.
        """
        folder = self.folder / stage / name
        digest = read_current(folder, self.access)
        if digest is None:
            return CurrentVersion(None, NOT_BUILT)
        manifest = self.manifest_at(folder / digest)
        if manifest is None:
            return CurrentVersion(None, f"damaged: {digest}/{MANIFEST} is missing")
        _check_is_of_output(manifest, stage, name, digest)
        return _checked_version(manifest)

    def current_versions(self, stage: str, names: Sequence[str]) -> list[CurrentVersion]:
        """Return the current versions of several outputs of a stage, with few requests to a bucket.

        In a bucket, the folders of all outputs are listed together.

        Args:
            stage: The stage, such as `datasets`.
            names: Names of the outputs, which are also the names of their folders.

        Returns:
            What `current_version` returns for each name, in the same order.
        """

        def look_up(access_with_listing: FileAccess, folder: Path) -> CurrentVersion:
            """Return the current version of one output, from the common listing if possible."""
            outputs = replace(self, access=access_with_listing)
            return outputs.current_version(stage, name=folder.name)

        return call_for_folders(self.access, look_up, self.folder / stage, names)

    def current(self, stage: str, name: str) -> Manifest | None:
        """Return the current version of an output, or None if there is none or it is damaged.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        version = self._readable_version(stage, name)
        if version.problem is not None:
            return None
        return version.manifest

    def live(self, stage: str, name: str) -> Manifest | None:
        """Return the version that current.json names, even if some of its files are damaged.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.

        Returns:
            The manifest; None if there is no version, or no manifest.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        return self._readable_version(stage, name).manifest

    def _readable_version(self, stage: str, name: str) -> CurrentVersion:
        """Look up the current version of an output, and raise the error if it cannot be read.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.

        Raises:
            FormatError: current.json, or the manifest, is not valid.
        """
        version = self.current_version(stage, name)
        if version.error is not None:
            raise version.error
        return version

    def require(self, stage: str, name: str, *, remedy: str) -> Manifest:
        """Return the current version of an output that another output is made from.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
            remedy: What the error says to do.

        Returns:
            The manifest of a version whose files are complete.

        Raises:
            MissingError: The output was never made, or its files are damaged.
            FormatError: current.json, or the manifest, is not valid.
        """
        version = self._readable_version(stage, name)
        if version.manifest is not None and version.problem is None:
            return version.manifest

        where = self.access.url(self.folder / stage / name)
        if not version.exists:
            message = f"the output {stage}/{name} has not been built"
            raise MissingError(message, where=where, remedy=remedy)

        # The problem is such as "damaged: web.bin is missing", which the message says already.
        message = f"the output {stage}/{name} is damaged"
        damage = (version.problem or "").removeprefix("damaged: ")
        raise MissingError(message, where=where, found=damage, remedy=remedy)

    def _seen_current(self, output: Path) -> Manifest | None:
        """Return the version that was found current a short time ago, or None.

        Args:
            output: Folder of the output.
        """
        if self.seen is None or output not in self.seen:
            return None
        version = self.seen[output]
        if time.monotonic() - version.looked_up_at >= SEEN_SECONDS:
            return None
        # Another process may have removed the local copy, to make room.
        if not (version.manifest.folder / MANIFEST).is_file():
            return None
        return version.manifest

    def _remember(self, manifest: Manifest) -> None:
        """Remember that a version is current now, if it would take requests to look it up again.

        Args:
            manifest: Manifest of the version: its recipe, facts and files.
        """
        if self.seen is None or not self.access.takes_requests:
            return
        # Without the listing, which may be large and will be outdated.
        access = replace(manifest.access, snapshot=None)
        version = _SeenVersion(time.monotonic(), replace(manifest, access=access))
        self.seen[manifest.folder.parent] = version

    def forget(self, output: Path) -> None:
        """Let the next lookup of an output ask the store again.

        Args:
            output: Folder of the output.
        """
        if self.seen is not None:
            self.seen.pop(output, None)

    def versions(
        self, stage: str, name: str, *, before: Manifest | None = None, strict: bool = False
    ) -> Iterator[Manifest]:
        """Yield all versions of an output, newest first, also if files of a version are damaged.

        Args:
            stage: Stage of the output, such as `datasets`.
            name: Name of the output, such as `web`.
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
        """Yield all local folders in which files or folders may be unfinished.

        They are the root and the folders below it, without those that are unfinished, or that are
        complete outputs, which have a manifest. Symbolic links are not followed.

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
        """Make a version the current one of its output: write current.json, and the link `current`.

        Args:
            manifest: Manifest of the version: its recipe, facts and files.

        Returns:
            The same manifest.

        Raises:
            StorageError: A folder is in the place of the link.
        """
        output = manifest.folder.parent
        link = output / "current"
        _check_no_folder_at(link)
        # Forget the earlier version first: if writing fails, it is unknown which one is current.
        self.forget(output)
        write_small_file(self.access, output / CURRENT, dump(_CurrentFile(manifest.digest)))
        # The link is for other programs; nanoset itself reads current.json.
        if not link.is_symlink() or link.readlink() != Path(manifest.digest):
            point_to(link, manifest.digest)
        self._remember(manifest)
        return manifest


def _check_no_folder_at(link: Path) -> None:
    """Check that no folder is where the link to the current version belongs.

    A program that copies outputs may follow the link, and make a folder in its place.

    Args:
        link: Path of the link `current`.

    Raises:
        StorageError: A folder is there.
    """
    if link.is_dir() and not link.is_symlink():
        raise StorageError(
            "a folder is where the link to the current version should be",
            where=link,
            expected="a symbolic link, or nothing",
            remedy=(
                "move the folder away (a program that copied the outputs may have made it from the "
                "link), and build again"
            ),
        )


def _check_is_of_output(manifest: Manifest, stage: str, name: str, digest: str) -> None:
    """Check that a manifest is that of a certain version, and not of a copied folder.

    Args:
        manifest: The manifest.
        stage: Stage of the output, such as `datasets`.
        name: Name of the output, such as `web`.
        digest: Digest of the version, by which its folder is named.

    Raises:
        FormatError: It is that of another output or version.
    """
    if (manifest.stage, manifest.name, manifest.digest) != (stage, name, digest):
        found = f"that of {manifest.stage}/{manifest.name}/{manifest.digest}"
        raise no_manifest(manifest.url(MANIFEST), found)


def _earlier_than(version: Manifest, time_by_digest: Mapping[str, int]) -> dict[str, int]:
    """Return the versions of an output that were made before another version.

    Args:
        version: The other version.
        time_by_digest: Digest of each version → when it was made, in nanoseconds since 1970.

    Returns:
        Digest → time of those versions.
    """
    # Prefer the time in this listing: all its times are from one clock, the store's.
    end_ns = time_by_digest.get(version.digest, version.written_ns)
    return {digest: time_ns for digest, time_ns in time_by_digest.items() if time_ns < end_ns}


def _complete_file_facts(
    folder: Path, known_facts: Mapping[str, str | FileFact]
) -> dict[str, FileFact]:
    """Return the size and checksum of each file of an output.

    Args:
        folder: The folder of the output, with all its files except those that are stored elsewhere.
        known_facts: Name of some files → what is known already: the sha256, or a complete
            `FileFact`.

    Returns:
        Path below the folder → size and checksum.
    """
    # Take complete facts as they are.
    facts_by_name: dict[str, FileFact] = {}
    for name, fact in known_facts.items():
        if isinstance(fact, FileFact):
            facts_by_name[name] = fact

    # Look up the size of all other files, and hash those whose checksum is not known.
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in facts_by_name or not path.is_file():
            continue
        known_fact = known_facts.get(name)
        sha256 = known_fact if isinstance(known_fact, str) else None
        facts_by_name[name] = _file_fact(path, sha256)
    return facts_by_name


def _file_fact(path: Path, sha256: str | None) -> FileFact:
    """Return the size and checksum of a file; a large file gets no checksum if none is known.

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
    """Yield what current.json contains if it names one of the versions in a folder.

    The ETag of a file is computed from its content. So if a listing of the bucket shows the ETag of
    one of these contents, the file need not be read.

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
    damage = manifest.damage()
    problem = None if damage is None else f"damaged: {damage}"
    return CurrentVersion(manifest, problem)


def _damaged_version(error: FormatError) -> CurrentVersion:
    """Return the current version of an output whose manifest or current.json is not valid.

    Args:
        error: The error that was raised when it was read.
    """
    problem = f"damaged: {error.where}: {error.what}: {error.found}"
    return CurrentVersion(None, problem, error)


def read_current(folder: Path, access: FileAccess) -> str | None:
    """Return the digest of the current version of an output, or None if it has none.

    Args:
        folder: Folder of the output.
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
    """Return the bytes of an output's current.json, or None if it does not exist.

    Args:
        folder: Folder of the output.
        access: How its files are read.

    Raises:
        FormatError: It cannot be read: a folder has its name, for example.
        StorageError: The store does not answer, or refuses the request.
    """
    path = folder / CURRENT
    # If the bucket was listed, the ETag of the file may show that it has one of these contents.
    # Then no request is needed to read it.
    possible_contents = _possible_contents(folder, access)
    try:
        return access.read_current(path, guesses=possible_contents)
    except FileNotFoundError:
        return None
    except StorageError:
        # It is an OSError, too, but says nothing about the file.
        raise
    except OSError as error:
        form = _CurrentFile.json_form  # the texts of errors about such a file
        raise FormatError(
            form.problem, where=access.url(path), found=repr(error)[:500], remedy=form.remedy
        ) from error


def open_root(
    location: str | os.PathLike[str] | OutputRoot, storage: StorageSpec | None = None
) -> OutputRoot:
    """Open the outputs in a local folder, or at an address such as s3://bucket/prefix.

    Args:
        location: The folder or address, or a root that is open already and returned unchanged.
        storage: How the bucket is accessed. By default the AWS configuration is used, and copies
            are kept in the user's cache folder.

    Returns:
        The root. Nothing is read yet, and the folder need not exist.

    Raises:
        ConfigError: The address is not valid.
    """
    if isinstance(location, OutputRoot):
        return location

    address = os.fspath(location)
    if not is_remote(address):
        return OutputRoot(FileAccess(Path(location).resolve()))
    # Files in a bucket are copied to a local folder before they are read.
    storage = storage or StorageSpec()
    place = remote_location(address, where="the output root", storage=storage).place
    return OutputRoot(storage.access_to(place, copies_folder(place, storage.mirror)))

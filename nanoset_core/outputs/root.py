"""The folder of all outputs: finding, committing and reading versions, each at
<stage>/<name>/<digest>/.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.current import NOT_BUILT, CurrentVersion
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    canonical_json,
    is_digest,
    manifest_bytes,
    no_manifest,
    read_manifest,
)
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import (
    UNFINISHED,
    point_to,
    published_folder,
    sha256_file,
    sweep_abandoned,
    write_atomic,
)
from nanoset_core.storage.location import StorageSpec, copies_folder, is_remote, remote_location
from nanoset_core.storage.working_copies import for_a_task

R = TypeVar("R")
CURRENT = "current.json"
REMADE = "run `nanoset build`: it makes it again"
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""
SEEN_SECONDS = 10.0
"""How long a version is taken to be current without asking again: so much later, other machines'
work is seen.
"""

Writing = Callable[[Path], tuple[Mapping[str, Any], Mapping[str, str | FileFact]]]
"""Fills a folder; see `OutputRoot.commit`."""


class Seen(dict[Path, tuple[float, Manifest]]):
    """A short memory of current versions, so that the steps of a run need not ask a bucket for the
    same one again.

    Folder of an output → (when it was looked up, by the monotonic clock; its current version). What
    changes an output forgets it. Pickled, it is empty.
    """

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        return Seen, ()


@dataclass(frozen=True, slots=True)
class OutputRoot:
    """The folder that holds every output, each at <stage>/<name>/<digest>/."""

    access: FileAccess
    """How the files are reached."""
    rebuild: bool = False
    """Whether outputs are made again even where they are complete."""
    seen: Seen | None = field(default=None, compare=False, repr=False)
    """Versions in a store that were found current lately; None: each is looked up whenever it is
    asked for.
    """

    @property
    def folder(self) -> Path:
        """Absolute: the outputs, or their copies."""
        return self.access.folder

    @property
    def local(self) -> OutputRoot:
        """The same outputs as they lie in the folder of this machine."""
        return OutputRoot(FileAccess(self.folder), self.rebuild)

    def place(self, recipe: Recipe) -> Path:
        """Return where the output of a recipe lies, whether or not it is there yet."""
        return self.folder / recipe.stage / recipe.name / recipe.digest

    def find(self, recipe: Recipe) -> Manifest | None:
        """Return the complete output of a recipe; None when it is missing or damaged, its manifest
        included.
        """
        return self.find_at(self.place(recipe))

    def find_at(self, place: Path) -> Manifest | None:
        """Return the complete output at the place of its recipe; None as for `find`."""
        try:
            manifest = self.manifest_at(place)
        except FormatError:
            return None
        return manifest if manifest is not None and self.is_whole(manifest, place) else None

    @staticmethod
    def is_whole(manifest: Manifest, place: Path) -> bool:
        """Return whether what was found at a place is the complete output that belongs there."""
        return manifest.digest == place.name and manifest.damage() is None

    def each_version(
        self, work: Callable[[OutputRoot, Path], R], stage: str, name: str, digests: Sequence[str]
    ) -> list[R]:
        """Call `work(outputs, folder)` for many versions of an output; results in order.

        The outputs passed to it answer from a listing where these live in a bucket; see
        `each_folder`.
        """

        def look(access: FileAccess, folder: Path) -> R:
            return work(replace(self, access=access), folder)

        return self.access.each_folder(look, self.folder / stage / name, digests)

    def manifest_at(self, folder: Path) -> Manifest | None:
        """Return the manifest of the version in a folder; None where there is none. Raises as
        `read_manifest`.
        """
        seen = self._seen_current(folder.parent)
        return (
            seen
            if seen is not None and seen.folder == folder
            else read_manifest(folder, self.access)
        )

    def version(
        self, stage: str, name: str, digest: str, gone: str, remedy: str = REMADE
    ) -> Manifest:
        """Return the manifest of a version; MissingError, which says what is `gone`, where there is
        none.
        """
        folder = self.folder / stage / name / digest
        if (found := self.manifest_at(folder)) is None:
            raise missing_version(self.access, (stage, name, digest), gone, remedy=remedy)
        return found

    def commit(self, recipe: Recipe, write: Writing) -> Manifest:
        """Make an output once: return it when it is there, else let `write` fill a folder and
        publish that folder.

        Args:
            recipe: what the output is made from.
            write: fills the folder that it is given; returns the facts, and name → sha256 of files
                that it hashed, or → `FileFact` of files that it stored elsewhere, or that need no
                sha256.
        """
        place, looked_at, there = self.place(recipe), time.monotonic(), True
        if not self.rebuild:
            with contextlib.suppress(FormatError):  # damaged: it is made again
                if (found := self.manifest_at(place)) is not None and self.is_whole(found, place):
                    return found
                there = found is not None
        if self.rebuild or self.local.find(recipe) is None:
            self._make(recipe, write)
        return self._send(place, is_new=not there and time.monotonic() - looked_at < SEEN_SECONDS)

    def _make(self, recipe: Recipe, write: Writing) -> None:
        def made_meanwhile() -> bool:
            return not self.rebuild and self.local.find(recipe) is not None

        with published_folder(self.place(recipe), keep=made_meanwhile) as scratch:
            facts, known = write(scratch)
            files = {name: fact for name, fact in known.items() if isinstance(fact, FileFact)}
            for path in sorted(scratch.rglob("*")):
                name = path.relative_to(scratch).as_posix()
                if path.is_file() and name not in files:
                    size, checksum = path.stat().st_size, known.get(name)
                    if not isinstance(checksum, str):
                        checksum = sha256_file(path) if size <= HASHED_BYTES else None
                    files[name] = FileFact(size, checksum)
            (scratch / MANIFEST).write_bytes(manifest_bytes(recipe, facts, files))

    def _send(self, place: Path, *, is_new: bool = False) -> Manifest:
        """Upload a finished output to where outputs live.

        Args:
            place: its folder.
            is_new: it had no manifest when it was looked at within SEEN_SECONDS, so nothing of it
                need be replaced.
        """
        manifest = self.local.manifest_at(place)
        self.forget(place.parent)
        if manifest is None:
            raise MissingError(
                "the output vanished while it was published", where=place, remedy="run it again"
            )
        files = {name: fact.sha256 for name, fact in manifest.files.items()}
        return replace(
            manifest,
            access=self.access,
            stored=self.access.publish(place, files, MANIFEST, is_new=is_new),
        )

    @contextlib.contextmanager
    def in_task(self) -> Iterator[OutputRoot]:
        """Yield the same outputs as one task of a worker reaches them; see `for_a_task`."""
        with for_a_task(self.access) as access:
            yield replace(self, access=access)

    def rebase(self, manifest: Manifest) -> Manifest:
        """Return another process's manifest of a stored output, as this process reaches it."""
        place = self.folder / manifest.stage / manifest.name / manifest.digest
        return replace(manifest, folder=place, access=self.access)

    def invalidate(self, recipe: Recipe) -> None:
        """Remove a stored manifest before the files of its output are replaced one by one."""
        place = self.place(recipe)
        self.forget(place.parent)
        self.access.store.delete(self.access.name(place / MANIFEST))

    def finalize(
        self, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
    ) -> Manifest:
        """Complete an output whose files are in place already: write its manifest."""
        place = self.place(recipe)
        sweep_abandoned(place)
        write_atomic(place / MANIFEST, manifest_bytes(recipe, facts, files))
        return self._send(place)

    def current_version(self, stage: str, name: str) -> CurrentVersion:
        """Look up the current version of an output; what is wrong with it is returned, not raised."""
        found, listing = self._current_version(stage, name), self.access.snapshot
        if listing is None or listing.contents is not None:
            return found
        unlisted = replace(self, access=replace(self.access, snapshot=None))
        if found.exists and found.problem is not None:  # or it was made anew since it was listed
            return unlisted._current_version(stage, name)
        return (
            found
            if found.manifest is None
            else replace(found, manifest=unlisted.rebase(found.manifest))
        )

    def _current_version(self, stage: str, name: str) -> CurrentVersion:
        folder = self.folder / stage / name
        if (seen := self._seen_current(folder)) is not None:
            return _whole_or_damaged(seen)
        try:
            digest = read_current(folder, self.access)
            if digest is None:
                return CurrentVersion(None, NOT_BUILT)
            manifest = self.manifest_at(folder / digest)
            if manifest is None:
                return CurrentVersion(None, f"damaged: {digest}/{MANIFEST} is missing")
            if (manifest.stage, manifest.name, manifest.digest) != (stage, name, digest):
                found = f"that of {manifest.stage}/{manifest.name}/{manifest.digest}"
                raise no_manifest(manifest.url(MANIFEST), found)
        except FormatError as error:
            return CurrentVersion(
                None, f"damaged: {error.where}: {error.what}: {error.found}", error
            )
        current = _whole_or_damaged(manifest)
        if current.problem is None:
            self._note_current(manifest)
        return current

    def current_versions(self, stage: str, names: Sequence[str]) -> list[CurrentVersion]:
        """Look up many outputs whose names have one part, as `current_version`: a bucket is asked
        for all at once.
        """
        return self.each_version(
            lambda outputs, folder: outputs.current_version(stage, folder.name), stage, "", names
        )

    def current(self, stage: str, name: str) -> Manifest | None:
        """Return the current version of an output, or None when there is none, or when files of it
        are missing.

        Raises:
            FormatError: the pointer to it, or its manifest, cannot be read.
        """
        found = self._readable(stage, name)
        return None if found.problem is not None else found.manifest

    def live(self, stage: str, name: str) -> Manifest | None:
        """Return the version that current.json names, whether its files are whole or not; raises as
        `current`.
        """
        return self._readable(stage, name).manifest

    def _readable(self, stage: str, name: str) -> CurrentVersion:
        found = self.current_version(stage, name)
        if found.error is not None:
            raise found.error
        return found

    def require(self, stage: str, name: str, *, remedy: str) -> Manifest:
        """Return the current version of an output that another is made from.

        Raises:
            MissingError: it was never made, or its files are damaged.
            FormatError: as `current`.
        """
        found = self._readable(stage, name)
        if found.manifest is None or found.problem is not None:
            what = f"the output {stage}/{name} {'is damaged' if found.exists else 'has not been built'}"
            damage = (found.problem or "").removeprefix("damaged: ") if found.exists else None
            raise MissingError(
                what, where=self.access.url(self.folder / stage / name), found=damage, remedy=remedy
            )
        return found.manifest

    def _seen_current(self, output: Path) -> Manifest | None:
        """Return the version of the output in a folder that was found current lately, unless its
        copy was removed.
        """
        found = None if self.seen is None else self.seen.get(output)
        if found is None or time.monotonic() - found[0] >= SEEN_SECONDS:
            return None
        return found[1] if (found[1].folder / MANIFEST).is_file() else None

    def _note_current(self, manifest: Manifest) -> None:
        if self.seen is not None and self.access.has_copies:
            access = replace(manifest.access, snapshot=None)
            self.seen[manifest.folder.parent] = time.monotonic(), replace(manifest, access=access)

    def forget(self, output: Path) -> None:
        """Look up the output in a folder anew when it is asked for next."""
        if self.seen is not None:
            self.seen.pop(output, None)

    def versions(
        self, stage: str, name: str, *, before: Manifest | None = None, strict: bool = False
    ) -> Iterator[Manifest]:
        """Yield the versions of an output, newest first, damaged ones too; each is read when it is
        asked for.

        Args:
            stage: of the output.
            name: of the output.
            before: only versions that were made before this one.
            strict: raise FormatError for a manifest that cannot be read; otherwise that version is
                passed over.
        """
        folder = self.folder / stage / name
        made = self.digests_in(folder)
        # by one clock, where it is there
        end = None if before is None else made.get(before.digest, before.written_ns)
        for at, digest in sorted(((at, digest) for digest, at in made.items()), reverse=True):
            try:
                manifest = self.manifest_at(folder / digest) if end is None or at < end else None
            except FormatError:
                if strict:
                    raise
                continue
            if manifest is not None:
                yield manifest

    def previous(self, manifest: Manifest) -> Manifest | None:
        """Return the version of an output that was made last before another, where one is left and
        readable.
        """
        return next(self.versions(manifest.stage, manifest.name, before=manifest), None)

    def digests_in(self, folder: Path) -> dict[str, int]:
        """Return digest → when it was made, nanoseconds since 1970, of all versions in the folder
        of an output.
        """
        return {
            name: at
            for name, at in self.access.written_in(folder, MANIFEST).items()
            if is_digest(name)
        }

    def sweep(self) -> None:
        """Remove unfinished files of killed processes wherever outputs are published."""
        for folder, _ in self.unfinished():
            sweep_abandoned(folder)

    def unfinished(self) -> Iterator[tuple[Path, list[str]]]:
        """Yield (folder, unfinished names in it) of each local folder, but not of complete outputs
        nor behind links.
        """
        for place, folders, files in os.walk(self.folder):
            folder = Path(place)
            yield folder, [name for name in (*folders, *files) if name.startswith(UNFINISHED)]
            folders[:] = [
                name
                for name in folders
                if not name.startswith(UNFINISHED) and not (folder / name / MANIFEST).exists()
            ]

    def make_current(self, manifest: Manifest) -> Manifest:
        """Let <stage>/<name>/current.json, and the `current` link beside it, name this version;
        return it.

        Raises:
            StorageError: a folder is in the place of the link, where readers would find another
                version.
        """
        parent = manifest.folder.parent
        link = parent / "current"
        if link.is_dir() and not link.is_symlink():
            raise StorageError(
                "a folder is where the link to the current version should be",
                where=link,
                expected="a symbolic link, or nothing",
                remedy="move the folder away (copying outputs may have made one of the link), and build again",
            )
        self.forget(parent)
        self.access.write(parent / CURRENT, _pointer(manifest.digest))
        if not link.is_symlink() or link.readlink() != Path(manifest.digest):
            point_to(link, manifest.digest)
        self._note_current(manifest)
        return manifest


def _pointer(digest: str) -> bytes:
    """Return the bytes of current.json."""
    return canonical_json({"digest": digest}) + b"\n"


def _pointers(folder: Path, access: FileAccess) -> Iterator[bytes]:
    """Yield what current.json may hold."""
    yield from (_pointer(name) for name in access.names(folder) if is_digest(name))


def _whole_or_damaged(manifest: Manifest) -> CurrentVersion:
    damage = manifest.damage()
    return CurrentVersion(manifest, None if damage is None else f"damaged: {damage}")


def read_current(folder: Path, access: FileAccess) -> str | None:
    """Return the digest of the current version of the output in a folder; None where there is none.

    Raises:
        FormatError: the file that names it cannot be read.
        StorageError: the store does not answer, or refuses.
    """
    path = folder / CURRENT
    try:
        digest = json.loads(access.read_current(path, guesses=_pointers(folder, access)))["digest"]
        if not is_digest(digest):
            raise ValueError(f"{digest!r} is no digest")
    except FileNotFoundError:
        return None
    except StorageError:  # of the store, not of the file
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        what, remedy = (
            "this does not name a version",
            "delete the file; the next build writes it again",
        )
        found, expected = repr(error)[:500], '{"digest": "…"}'
        raise FormatError(
            what, where=access.url(path), found=found, expected=expected, remedy=remedy
        ) from error
    return str(digest)


def open_root(
    location: str | os.PathLike[str] | OutputRoot, storage: StorageSpec | None = None
) -> OutputRoot:
    """Return the outputs at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live; a root that is open already is given back.
        storage: how the bucket is reached; absent = as the AWS configuration says, with copies in
            the user's cache folder.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if isinstance(location, OutputRoot):
        return location
    if not is_remote(os.fspath(location)):
        return OutputRoot(FileAccess(Path(location).resolve()))
    storage = storage or StorageSpec()
    place = remote_location(os.fspath(location), where="the output root", storage=storage).place
    return OutputRoot(
        FileAccess(copies_folder(place, storage.mirror), place, capacity=storage.capacity)
    )
